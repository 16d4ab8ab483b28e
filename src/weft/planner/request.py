"""Requests of plans, checked and resolved: all that a plan depends on, but for C and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from weft.algebra import NAMED, Algebra
from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra
from weft.planner.schedule import Schedule, Target
from weft.planner.target import target_of
from weft.spec import Arithmetic, Aux, Contraction, Label, Layout, Notation, canonical
from weft.spec.contraction import AuxInput, class_modes, mode_extents, mode_strides, summed
from weft.spec.dtypes import NARROW, fits_int32, value_type
from weft.spec.notation import Broadcast
from weft.spec.permutation import Permutation, canonical_modes

#: What a call writes: D, or D and what the epilogue yields after it.
Results: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]

HOOKS = ("a_fn", "b_fn", "c_fn", "epilogue")
C_FN = 2  # place of `c_fn` among the hooks


def hook_types(stored: tuple[torch.dtype, torch.dtype], arithmetic: Arithmetic) -> tuple[torch.dtype, ...]:
    """The types of the values that functions see, in the order of the hooks."""
    product, accumulate = arithmetic.product, arithmetic.accumulate
    return (value_type(stored[0], product), value_type(stored[1], product), accumulate, accumulate)


@dataclass(frozen=True, slots=True)
class Functions:
    """The four hooks as traced graphs; None where there is none. `raw` keeps what the user passed.

    `names` holds for each hook what its function takes after the value.
    """

    a: Pointwise | None = None
    b: Pointwise | None = None
    c: Pointwise | None = None
    epilogue: Pointwise | None = None
    names: tuple[tuple[str, ...], ...] = ((), (), (), ())
    raw: tuple[Callable[..., Any] | None, ...] = field(default=(None, None, None, None), compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what the user passed, which is traced again where it is loaded."""
        return _traced_again, (self.raw, self.names, tuple(graph and graph.dtypes for graph in self._graphs))

    @property
    def _graphs(self) -> tuple[Pointwise | None, ...]:
        return self.a, self.b, self.c, self.epilogue

    def again(self, hooks: Sequence[str] = HOOKS) -> Functions:
        """The caller's functions traced again; `FunctionError` where one returns another type than before.

        `hooks`: what errors call them.
        """
        make, arguments = self.__reduce__()
        found: Functions = make(*arguments, hooks)
        for hook, old, new in zip(hooks, self._graphs, found._graphs, strict=True):
            _check_result(hook, old, new)
        return found


def _traced_again(
    raw: tuple[Callable[..., Any] | None, ...],
    names: tuple[tuple[str, ...], ...],
    dtypes: tuple[tuple[torch.dtype, ...] | None, ...],
    hooks: Sequence[str] = HOOKS,
) -> Functions:
    graphs = [
        trace(function, types, names=taken, hook=hook) if function is not None and types is not None else None
        for function, types, taken, hook in zip(raw, dtypes, names, hooks, strict=True)
    ]
    a, b, c, epilogue = graphs
    return Functions(a, b, c, epilogue, names, raw)


def _check_result(hook: str, planned: Pointwise | None, now: Pointwise | None) -> None:
    if planned is not None and now is not None and planned.result != now.result:
        raise FunctionError(f"{hook} returned {planned.result} when it was planned, now {now.result}: plan anew")


@dataclass(frozen=True)
class Request:
    """All that a plan depends on, but for C and the result: a call's words, checked and resolved."""

    notation: Notation  # two inputs, no ellipsis left
    text: str  # the equation as the caller wrote it
    a: Layout
    b: Layout
    conjugate: tuple[bool, bool]
    arithmetic: Arithmetic
    d_dtype: torch.dtype
    functions: Functions
    backend: str
    device: torch.device
    target: Target
    workspace_limit: int | None = None
    tune: str | None = None
    specialize: str = "now"  # one of `options.SPECIALIZE`
    named: tuple[AuxInput, ...] = ()  # operands and coordinates of the functions
    outputs: tuple[torch.dtype, ...] | None = None  # of what the epilogue yields after D; None where it is no tuple
    algebra: TracedAlgebra | None = None
    raw_algebra: Algebra | None = field(default=None, compare=False)
    schedule: Schedule | str | None = None  # the one that is forced
    promote: bool = False
    kept: torch.dtype | None = None  # of the sums that a gradient needs; None: as `weft.autograd` finds best
    invariant: tuple[Label, ...] = ()  # labels of D whose extents the bits of an element do not depend on
    #: A permutation: elements of A arrive as they are, but for `a_fn`, whose values have the accumulator's type. B is a
    #: one, repeated along modes that A lacks or has with extent 1.
    moves: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what belongs to this process: traced functions and algebra, and what the device can do."""
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("target", "algebra")}
        return _requested_again, (kept,)

    def again(self) -> Request:
        """The request with the caller's functions as they are now."""
        functions, algebra = self.functions.again(("fn",) * 4 if self.moves else HOOKS), self.algebra
        if self.raw_algebra is not None:
            algebra = self.raw_algebra.traced(self.arithmetic.accumulate)
        return replace(self, functions=functions, algebra=algebra)

    @property
    def raw(self) -> tuple[Callable[..., Any] | None, ...]:
        """The functions that the caller gave; those of a ready algebra do not change."""
        algebra = self.raw_algebra
        if algebra is None or NAMED.get(algebra.name) is algebra:
            return self.functions.raw
        return (*self.functions.raw, algebra.combine, algebra.reduce)

    def given(self, functions: tuple[Callable[..., Any] | None, ...], algebra: Algebra | None) -> Request:
        """The request of another caller, whose functions compute what these do."""
        return replace(self, functions=replace(self.functions, raw=functions), raw_algebra=algebra)

    def aligned(self, operands: Sequence[int], aux: Sequence[int]) -> Request:
        """The request with A, B and auxiliary operands at other alignments (bytes); `()` for those planned."""
        a, b = self.a, self.b
        if operands:
            a, b = (layout._replace(alignment=to) for layout, to in zip((a, b), operands, strict=True))
        left = iter(aux)
        named = tuple(
            each if not aux or each.layout is None else replace(each, layout=each.layout._replace(alignment=next(left)))
            for each in self.named
        )
        return replace(self, a=a, b=b, named=named)

    def summed_over_nothing(self) -> Request:
        """The request with one mode more in A and B, the last, of extent 0: every sum is zero."""
        mode = Broadcast(0)  # as no ellipsis has one
        a, b = (x._replace(shape=(*x.shape, 0), strides=(*x.strides, 1), alignment=16) for x in (self.a, self.b))
        first, second = ((*term, mode) for term in self.notation.inputs)
        return replace(self, notation=Notation((first, second), self.notation.output), a=a, b=b, schedule=None)

    @cached_property
    def extents(self) -> dict[Any, int]:
        """The extent of each label."""
        return mode_extents(self.notation, (self.a.shape, self.b.shape))

    @property
    def narrows(self) -> bool:
        """Whether sums in int64 may be made in int32, which they do not leave where they are short and nothing joins
        them. Matrix instructions add in int32 alone."""
        wide = self.arithmetic.accumulate is torch.int64 and self.arithmetic.product in NARROW
        return wide and self.algebra is None and self.functions.epilogue is None

    def _elements_of_a_row(self, extents: dict[Label, int], c: Layout | None) -> int:
        """Elements of D for each index of the labels whose extents no bit may depend on; 0 where there are none, and
        where any kernel makes the same bits."""
        if not self.invariant or self._is_exact(extents, c):
            return 0
        return max(math.prod([extents[label] for label in self.notation.output if label not in self.invariant]), 1)

    def _is_exact(self, extents: dict[Label, int], c: Layout | None) -> bool:
        """Whether nothing is rounded but C times its factor: D is empty, or sums are."""
        if not all(extents[label] for label in self.notation.output):
            return True
        computes = any(function is not None for function in (self.functions.c, self.functions.epilogue))
        return not all(extents.values()) and not computes and (c is None or not c.dtype.is_complex)

    def _narrowed(self, c: Layout | None, extents: dict[Label, int]) -> Arithmetic:
        short = c is None and fits_int32(self.arithmetic.product, summed(self.notation, extents))
        return replace(self.arithmetic, accumulate=torch.int32) if short else self.arithmetic

    def permutation(self, d: Layout, *, scaled: bool, added: bool) -> Permutation:
        """The canonical permutation into one layout of D, of a request that moves."""
        c, notation = d if added else None, self.moved
        return Permutation(
            modes=canonical_modes(notation, self.a, c, d, self.extents),
            x=self.a,
            c=c,
            d=d,
            compute=self.a.dtype,
            fn=self.functions.a,
            conjugate=self.conjugate[0],
            scaled=scaled,
            text=self.text,
        )

    @property
    def moved(self) -> Notation:
        """The notation of a permutation, without the one."""
        return Notation(self.notation.inputs[:1], self.notation.output)

    def contraction(
        self, c: Layout | None, d: Layout, outputs: tuple[Layout, ...] | None = None, *, scaled: bool = False
    ) -> Contraction:
        """The canonical contraction for one set of layouts of C, D and further outputs (contiguous by default).

        `scaled`: whether an alpha other than 1 comes with it, which counts where `narrows`.
        """
        extents = self.extents
        functions = self.functions
        if outputs is None:
            outputs = tuple(Layout.contiguous(d.shape, dtype) for dtype in self.outputs or ())
        taken = [names if hook != C_FN or c is not None else () for hook, names in enumerate(functions.names)]
        named = [found for found in self.named if any(found.name in names for names in taken)]
        places = {found.name: at for at, found in enumerate(named)}
        a_args, b_args, c_args, epilogue_args = (tuple(places[name] for name in names) for names in taken)
        steps = [found.strides(extents) for found in named]
        steps += [mode_strides(self.notation.output, layout, extents) for layout in outputs]
        aux = [found.aux for found in named]
        aux += [Aux(f"output {at}", "output", layout, layout.dtype) for at, layout in enumerate(outputs, 1)]
        return canonical(
            Contraction(
                modes=class_modes(self.notation, self.a, self.b, c, d, extents, steps),
                a=self.a,
                b=self.b,
                c=c,
                d=d,
                arithmetic=self._narrowed(c, extents) if self.narrows and not scaled else self.arithmetic,
                a_fn=functions.a,
                b_fn=functions.b,
                c_fn=functions.c if c is not None else None,
                epilogue=functions.epilogue,
                conjugate_a=self.conjugate[0],
                conjugate_b=self.conjugate[1],
                aux=tuple(aux),
                a_args=a_args,
                b_args=b_args,
                c_args=c_args,
                epilogue_args=epilogue_args,
                algebra=self.algebra,
                text=self.text,
                invariant=self._elements_of_a_row(extents, c),
            )
        )


def _requested_again(kept: dict[str, Any]) -> Request:
    """The request on the machine where it is loaded; `UnsupportedError` where its device is not there."""
    algebra, arithmetic = kept["raw_algebra"], kept["arithmetic"]
    traced = algebra.traced(arithmetic.accumulate) if algebra is not None else None
    return Request(**kept, algebra=traced, target=_target_here(kept["backend"], kept["device"]))


def _target_here(backend: str, device: torch.device) -> Target:
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UnsupportedError(f"the plan is for {device}, which is not here: torch sees {count} GPUs")
    return target_of(backend, device)
