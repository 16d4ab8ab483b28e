"""Contractions in plain form, which are differentiated: every label of a tensor once and at its full extent.

Diagonals and extents of 1 that broadcast are views, made by torch before (`plain`): torch's own rules write a gradient
into a diagonal, and a mode that a tensor broadcasts along is one that it lacks, over which its gradient is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.algebra import Algebra
from weft.errors import DTypeError
from weft.fn import Pointwise
from weft.planner.options import Options
from weft.planner.request import Request
from weft.spec import Arithmetic, Label
from weft.spec.dtypes import dtype_name
from weft.spec.notation import letters, unused_letters

A_FN, B_FN, C_FN, EPILOGUE = range(4)  # places among a contraction's functions
A, B, C, FIRST_OPERAND = range(4)  # places among its tensors


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
            given[hook] = _repeated(given[hook], size)
    if not has[A] and not has[B]:
        has[A] = True
        given[A] = _repeated(given[A], size)
    terms = [term if term is None or not there else label + term for term, there in zip(spec.terms(), has, strict=True)]
    wider = replace(
        spec, term_a=terms[A] or "", term_b=terms[B] or "", term_c=terms[C], term_d=label + spec.term_d,
        operands=tuple(
            (name, term or "") for (name, _), term in zip(spec.operands, terms[FIRST_OPERAND:], strict=True)
        ),
    )  # fmt: skip
    return wider, tuple(given)


def _repeated(tensor: torch.Tensor | None, size: int) -> torch.Tensor:
    assert tensor is not None
    return tensor.unsqueeze(0).expand(size, *tensor.shape)


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
    first, second = request.notation.inputs
    output = request.notation.output
    views: list[View | None] = []
    terms: list[str | None] = []
    storage = [request.a.dtype, request.b.dtype]
    for at, (term, layout) in enumerate(((first, request.a), (second, request.b))):
        # Operands of a function may have a mode that its value broadcasts along.
        needed = {label for name in functions.names[at] for label in named[name].term}
        view, labels = _view(term, layout.shape, extents, needed)
        views.append(view)
        terms.append(letter.text(labels))
    if c is None:
        views.append(None)
        terms.append(None)
        storage.append(request.arithmetic.accumulate)
    else:
        needed = {label for name in functions.names[C_FN] for label in named[name].term}
        view, labels = _view(output, c[0], extents, needed)
        views.append(view)
        terms.append(letter.text(labels))
        storage.append(c[1])
    used = {name for at, names in enumerate(functions.names) if at != C_FN or c is not None for name in names}
    new = {each.name: f"u{at}" for at, each in enumerate(request.named)}
    operands, placed = [], []
    for each in request.named:
        if each.name not in used:
            continue
        if each.layout is None:
            placed.append((new[each.name], letter.text(each.term)))
            continue
        view, labels = _view(each.term, each.layout.shape, extents, set())
        views.append(view)
        operands.append((new[each.name], letter.text(labels)))
        storage.append(each.dtype)
    hooks = (functions.a, functions.b, functions.c if c is not None else None, functions.epilogue)
    spec = Spec(
        term_a=terms[A] or "", term_b=terms[B] or "", term_d=letter.text(output), term_c=terms[C],
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
            steps.append(_diagonal(first, second))
            size = sizes[first]
            labels = [each for at, each in enumerate(labels) if at not in (first, second)] + [label]
            sizes = [each for at, each in enumerate(sizes) if at not in (first, second)] + [size]
    for label in list(labels):
        at = labels.index(label)
        if sizes[at] == 1 and extents.get(label, 1) != 1:
            if label in needed:
                sizes[at] = extents[label]
                steps.append(_expanded(tuple(sizes)))
                continue
            steps.append(_squeezed(at))
            del labels[at], sizes[at]
    if not steps:
        return None, tuple(labels)

    def view(tensor: torch.Tensor) -> torch.Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return view, tuple(labels)


def _diagonal(first: int, second: int) -> View:
    return lambda tensor: tensor.diagonal(0, first, second)


def _squeezed(at: int) -> View:
    return lambda tensor: tensor.squeeze(at)


def _expanded(shape: tuple[int, ...]) -> View:
    return lambda tensor: tensor.expand(shape)
