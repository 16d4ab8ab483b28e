"""What a plan is asked for, checked and resolved: all that it depends on besides C and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from weft.algebra import Algebra
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Aux, Contraction, Label, Layout, Notation, canonical
from weft.spec.aux_operands import AuxInput
from weft.spec.contraction import class_modes, mode_extents, mode_strides
from weft.spec.permutation import Permutation, canonical_modes

#: What a call writes: D, or D and what the epilogue yields after it.
Results: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]

C_FN = 2  # place of `c_fn` among the hooks


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


@dataclass(frozen=True, slots=True)
class Request:
    """All that a plan depends on besides C and the result: what was asked, checked and resolved."""

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
    specialize: str = "now"  # one of `at_hand.SPECIALIZE`
    named: tuple[AuxInput, ...] = ()  # operands and coordinates of the functions
    outputs: tuple[torch.dtype, ...] | None = None  # of what the epilogue yields after D; None where it is no tuple
    algebra: TracedAlgebra | None = None
    raw_algebra: Algebra | None = field(default=None, compare=False)

    def extents(self) -> dict[Any, int]:
        return mode_extents(self.notation, (self.a.shape, self.b.shape))

    def contraction(self, c: Layout | None, d: Layout, outputs: tuple[Layout, ...] | None = None) -> Contraction:
        """The canonical contraction for one set of layouts of C, D and further outputs (contiguous by default)."""
        extents = self.extents()
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
                arithmetic=self.arithmetic,
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
            )
        )


@dataclass(frozen=True, slots=True)
class PermuteRequest:
    """All that a plan depends on besides the result: what was asked, checked and resolved."""

    notation: Notation  # one input, no ellipsis left
    text: str  # the equation as the caller wrote it
    x: Layout
    extents: tuple[tuple[Label, int], ...]  # of the output's labels
    conjugate: bool
    d_dtype: torch.dtype
    fn: Pointwise | None
    backend: str
    device: torch.device
    target: Target
    workspace_limit: int | None = None
    tune: str | None = None
    specialize: str = "now"
    raw: Callable[..., Any] | None = field(default=None, compare=False)  # the function as the user passed it

    @property
    def shape(self) -> tuple[int, ...]:
        extents = dict(self.extents)
        return tuple(extents[label] for label in self.notation.output)

    @property
    def value(self) -> torch.dtype:
        """The type of values behind fn."""
        result = self.fn.result if self.fn is not None else self.x.dtype
        assert isinstance(result, torch.dtype), "a function of several results is refused before"
        return result

    def permutation(self, d: Layout, *, scaled: bool, added: bool) -> Permutation:
        """The canonical permutation into one layout of D."""
        c = d if added else None
        return Permutation(
            modes=canonical_modes(self.notation, self.x, c, d, dict(self.extents)),
            x=self.x,
            c=c,
            d=d,
            compute=self.x.dtype,
            fn=self.fn,
            conjugate=self.conjugate,
            scaled=scaled,
            text=self.text,
        )
