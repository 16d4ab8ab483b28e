"""Contractions in plain form, which are differentiated: every label of a tensor once and at its full extent.

Diagonals and extents of 1 that broadcast are views, made by torch before (`plain`): torch's own rules write a gradient
into a diagonal, and a mode that a tensor broadcasts along is one that it lacks, over which its gradient is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import torch

from weft.algebra import Algebra
from weft.base.arrays import outside_transforms
from weft.errors import DTypeError
from weft.fn import Pointwise
from weft.planner.options import Options
from weft.planner.request import Request
from weft.planner.target import target_of
from weft.plans.resolving import resolved
from weft.spec import Arithmetic, Label, Layout, Notation
from weft.spec.dtypes import dtype_name
from weft.spec.notation import letters, unused_letters

A_FN, B_FN, C_FN, EPILOGUE = range(4)  # places among a contraction's functions
A, B, C, FIRST_OPERAND = range(4)  # places among its tensors
_UNKNOWN = 1024  # an extent of which a tracer knows nothing


@dataclass(frozen=True, slots=True)
class Spec:
    """A contraction in plain form. Labels are letters; `operands` and `indices` are (name, labels).

    Operands are named by their places, so that the names of a derivative's inputs are free in every derivative of it.

    Tensors come in the order A, B, C, then the operands as they stand here; C is None where `term_c` is. `results` are
    the types of what it yields, `several` whether that is a tuple. `how` are the options of the call that say how it is
    computed.
    """

    term_a: str
    term_b: str
    term_d: str
    term_c: str | None
    functions: tuple[Pointwise | None, ...]
    names: tuple[tuple[str, ...], ...]  # what each function takes after its value
    operands: tuple[tuple[str, str], ...]
    indices: tuple[tuple[str, str], ...]
    storage: tuple[torch.dtype, ...]  # of A, B, C (the accumulator's where there is none) and the operands
    arithmetic: Arithmetic
    results: tuple[torch.dtype, ...]
    several: bool
    how: Options
    algebra: Algebra | None = None

    @property
    def text(self) -> str:
        return f"{self.term_a},{self.term_b}->{self.term_d}"

    @property
    def accumulate(self) -> torch.dtype:
        return self.arithmetic.accumulate

    def terms(self) -> tuple[str | None, ...]:
        """The labels of each tensor."""
        return (self.term_a, self.term_b, self.term_c, *(term for _, term in self.operands))

    def extents(self, shapes: Iterable[Sequence[int] | None]) -> dict[str, int]:
        """The extent of each label, of tensors of these shapes."""
        given = [(term, shape) for term, shape in zip(self.terms(), shapes, strict=False) if term and shape]
        return {label: extent for term, shape in given for label, extent in zip(term, shape, strict=True)}

    def place(self, name: str) -> int:
        """The place of an operand among the tensors."""
        return FIRST_OPERAND + [each for each, _ in self.operands].index(name)

    def modes(self, name: str) -> str:
        return dict(self.operands)[name]

    def dtype_of(self, name: str) -> torch.dtype:
        """The type of an operand's elements or of a coordinate, as the functions were traced."""
        for function, names in zip(self.functions, self.names, strict=True):
            if function is not None and name in names:
                return function.dtypes[function.inputs.index(name)]
        raise KeyError(name)

    def taken(self, function: int) -> tuple[str, ...]:
        """The operands, without the coordinates, that a function takes."""
        known = {name for name, _ in self.operands}
        return tuple(name for name in self.names[function] if name in known)

    def aux(self, tensors: Sequence[torch.Tensor | None], used: Iterable[str]) -> dict[str, Any]:
        """`operands` and `indices` of a call, of those names."""
        used, given = set(used), zip(self.operands, tensors[FIRST_OPERAND:], strict=True)
        return {
            "operands": {name: (modes, tensor) for (name, modes), tensor in given if name in used},
            "indices": {name: label for name, label in self.indices if name in used},
        }

    def asked(self, **options: Any) -> Options:
        """The options of a step, with those given; a forced schedule and bits are for the forward call alone."""
        return replace(self.how, schedule=None, invariant=(), **options)

    def passing(self, **options: Any) -> Options:
        """The options of a pass over elements, in the type of sums."""
        types = {"precision": self.accumulate, "accumulate": self.accumulate, **options}
        return self.asked(promote=False, **types)

    def fresh_label(self) -> str:
        """A letter that no term has."""
        return next(unused_letters("".join(filter(None, (*self.terms(), self.term_d)))))

    def without(self, *functions: int) -> Spec:
        """The contraction without some functions, and without the operands that only they take."""
        kept = tuple(None if at in functions else each for at, each in enumerate(self.functions))
        names = tuple(() if at in functions else each for at, each in enumerate(self.names))
        used = {name for each in names for name in each}
        places = [at for at, (name, _) in enumerate(self.operands) if name in used]
        return replace(
            self, functions=kept, names=names,
            operands=tuple(self.operands[at] for at in places),
            indices=tuple(each for each in self.indices if each[0] in used),
            storage=(*self.storage[:FIRST_OPERAND], *(self.storage[FIRST_OPERAND + at] for at in places)),
        )  # fmt: skip


def batched(
    spec: Spec, tensors: Sequence[torch.Tensor | None], batches: Sequence[bool], size: int
) -> tuple[Spec, tuple[torch.Tensor | None, ...]]:
    """The contraction with one more mode, D's first. Tensors with True in `batches` have it first, the others lack it.

    A function sees an operand only along modes of its own tensor: where that lacks the mode it is repeated along it.
    """
    label, given, has = spec.fresh_label(), list(tensors), list(batches)
    for hook in (0, 1):
        if any(has[spec.place(name)] for name in spec.taken(hook)) and not has[hook]:
            has[hook] = True
            given[hook] = mapped_first(given[hook], None, size)
    if not has[A] and not has[B]:
        has[A] = True
        given[A] = mapped_first(given[A], None, size)
    terms = [term if term is None or not there else label + term for term, there in zip(spec.terms(), has, strict=True)]
    wider = replace(
        spec, term_a=terms[A] or "", term_b=terms[B] or "", term_c=terms[C], term_d=label + spec.term_d,
        operands=tuple(
            (name, term or "") for (name, _), term in zip(spec.operands, terms[FIRST_OPERAND:], strict=True)
        ),
    )  # fmt: skip
    return wider, tuple(given)


def mapped_first(tensor: torch.Tensor | None, at: int | None, size: int) -> torch.Tensor | None:
    """A tensor with the dimension that `vmap` maps as the first one, of that size where it is mapped along none."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if at is None else tensor.movedim(at, 0)


View = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Plain:
    """A `Spec`, and the view of each tensor that it is of; None where that is the tensor itself."""

    spec: Spec
    views: tuple[View | None, ...]
    given: tuple[str, ...]  # the operands' names in the call

    def of(self, tensors: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        return tuple(
            tensor if view is None or tensor is None else view(tensor)
            for tensor, view in zip(tensors, self.views, strict=True)
        )


def plain(request: Request, c: tuple[Sequence[int], torch.dtype] | None, backend: str) -> Plain:
    """A request in plain form; `c` is the shape and type of C. `backend` is the requested one."""
    extents, letter = request.extents, Letters(request)
    functions = request.functions
    named = {each.name: each for each in request.named}
    (first, second), output = request.notation.inputs, request.notation.output
    views: list[View | None] = []
    storage: list[torch.dtype] = []

    def seen(term: Sequence[Label], shape: Sequence[int], dtype: torch.dtype, hook: int | None) -> str:
        """The labels of a tensor in plain form. Operands of its function may have a mode that it broadcasts along."""
        names = () if hook is None else functions.names[hook]
        view, labels = _view(term, shape, extents, {label for name in names for label in named[name].term})
        views.append(view)
        storage.append(dtype)
        return letter.text(labels)

    term_a = seen(first, request.a.shape, request.a.dtype, A_FN)
    term_b = seen(second, request.b.shape, request.b.dtype, B_FN)
    if c is None:
        term_c = None
        views.append(None)
        storage.append(request.arithmetic.accumulate)
    else:
        term_c = seen(output, *c, C_FN)
    used = {name for at, names in enumerate(functions.names) if at != C_FN or c is not None for name in names}
    new = {each.name: f"u{at}" for at, each in enumerate(request.named)}
    operands, placed = [], []
    for each in request.named:
        if each.name not in used:
            continue
        if each.layout is None:
            placed.append((new[each.name], letter.text(each.term)))
        else:
            operands.append((new[each.name], seen(each.term, each.layout.shape, each.dtype, None)))
    hooks = (functions.a, functions.b, functions.c if c is not None else None, functions.epilogue)
    spec = Spec(
        term_a=term_a, term_b=term_b, term_d=letter.text(output), term_c=term_c,
        functions=tuple(each and each.renamed([new.get(name, "value") for name in each.inputs]) for each in hooks),
        names=tuple(
            tuple(new[name] for name in names) if hooks[at] is not None else ()
            for at, names in enumerate(functions.names)
        ),
        operands=tuple(operands),
        indices=tuple(placed),
        storage=tuple(storage),
        arithmetic=request.arithmetic,
        results=(request.d_dtype, *(request.outputs or ())),
        several=request.outputs is not None,
        how=Options(
            backend=backend, workspace_limit=request.workspace_limit, tune=request.tune,
            specialize=request.specialize, schedule=request.schedule, promote=request.promote,
            kept_dtype=request.kept, invariant=tuple(letter.text(request.invariant)),
        ),
        algebra=request.raw_algebra,
    )  # fmt: skip
    given = tuple(each.name for each in request.named if each.layout is not None and each.name in used)
    return Plain(spec, tuple(views), given)


def check_differentiable(request: Request) -> None:
    """`DTypeError` where no result is of numbers that have derivatives."""
    if not is_differentiable(request):
        over = request.raw_algebra.name if request.raw_algebra is not None else dtype_name(request.d_dtype)
        raise DTypeError(
            f"a result of {over} in {dtype_name(request.d_dtype)} is not differentiable, and an operand requires a "
            "gradient: detach it, or call within torch.no_grad()"
        )


def is_differentiable(request: Request) -> bool:
    """Whether some result is of numbers that have derivatives."""
    for dtype in (request.d_dtype, *(request.outputs or ())):
        if dtype.is_floating_point or dtype.is_complex:
            return is_smooth(request.arithmetic.accumulate)
    return False


def is_smooth(dtype: torch.dtype) -> bool:
    """Whether values of a type have derivatives."""
    return dtype.is_floating_point or dtype.is_complex


class Letters:
    """A letter for each label of a request, by `of`: its own where it is one."""

    def __init__(self, request: Request) -> None:
        notation = request.notation
        self.of = letters((*notation.inputs, notation.output, *(each.term for each in request.named)))

    def text(self, term: Iterable[Label]) -> str:
        return "".join(self.of[label] for label in term)


def _view(
    term: Sequence[Label], shape: Sequence[int], extents: dict[Label, int], needed: set[Label]
) -> tuple[View | None, tuple[Label, ...]]:
    """The view of a tensor with each label once and at its extent, and its labels; None where it is the tensor."""
    labels, sizes = list(term), list(shape)
    steps: list[View] = []
    for label in dict.fromkeys(term):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            steps.append(methodcaller("diagonal", 0, first, second))
            size = sizes[first]
            labels = [each for at, each in enumerate(labels) if at not in (first, second)] + [label]
            sizes = [each for at, each in enumerate(sizes) if at not in (first, second)] + [size]
    for label in list(labels):
        at = labels.index(label)
        if sizes[at] == 1 and extents.get(label, 1) != 1:
            if label in needed:
                sizes[at] = extents[label]
                steps.append(methodcaller("expand", tuple(sizes)))
                continue
            steps.append(methodcaller("squeeze", at))
            del labels[at], sizes[at]
    if not steps:
        return None, tuple(labels)

    def view(tensor: torch.Tensor) -> torch.Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return view, tuple(labels)


def as_contraction(request: Request) -> Request:
    """The request of a permutation as that of a contraction with that one."""
    options = Options(
        request.d_dtype, functions=(request.functions.a, None, None, None), workspace_limit=request.workspace_limit,
        tune=request.tune, specialize=request.specialize, backend="reference",
    )  # fmt: skip
    found = resolved(request.notation, request.text, meta(request.a), meta(request.b), options)
    return replace(found, backend=request.backend, device=request.device, target=request.target)


def meta_request(
    notation: Notation, text: str, a: torch.Tensor, b: torch.Tensor, options: Options, device: torch.device
) -> Request:
    """The request of a call, of tensors without memory: those inside a transform have no address.

    The backend is the reference's, which takes them; `device` is where the tensors are.
    """
    operands = {name: (modes, meta(tensor)) for name, (modes, tensor) in options.operands.items()}
    asked = replace(options, operands=operands, backend="reference", schedule=None)
    found = resolved(notation, text, meta(a), meta(b), asked)
    return replace(found, schedule=options.schedule, device=device, target=target_of("reference", device))


def meta(tensor: torch.Tensor | Layout) -> torch.Tensor:
    """Shape and type without memory. An extent that a tracer leaves open is what it is at present."""
    with outside_transforms():
        return torch.empty([present(extent) for extent in tensor.shape], dtype=tensor.dtype, device="meta")


def present(extent: Any) -> int:
    """The extent itself, or what stands for it in a program that is traced for any: plans are chosen by it."""
    if type(extent) is int:
        return extent
    hint = extent.node.hint
    return int(hint) if hint is not None else _UNKNOWN
