"""A `Contraction` says what is to be computed, frozen and hashable, and nothing of how.

    acc[m, n, batch] = sum over k of a_fn(A[batch, m, k], ...) * b_fn(B[batch, n, k], ...)
    D = epilogue(alpha * acc + beta * c_fn(C, ...), ...)

and the same of an algebra, with its `combine` for the product, its `reduce` for the sum and neither alpha nor beta. The
dots stand for auxiliary operands: operands and coordinates that functions take beside the value.

Modes are classed by where they stand (x: there, .: not):

    role    A B D
    BATCH   x x x
    M       x . x
    N       . x x
    K       x x .   reduced; also x . . and . x ., with stride 0 in the operand that lacks it

All strides count elements. A mode that an operand lacks, or along which it broadcasts, has stride 0 there. A mode of
role BATCH or N may have stride 0 in A where `a_fn` takes an auxiliary operand that moves along it, and likewise for B.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch

from weft.errors import NotationError, ShapeError
from weft.fn import Pointwise
from weft.fn.algebra import TracedAlgebra
from weft.spec.notation import Label, Notation, expand, from_sequences, label_text, parse, term_text

_LARGEST_INT32 = 2**31 - 1


class Role(Enum):
    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"

    __hash__ = object.__hash__  # members are single objects; a planner hashes modes some ten thousand times


class Strides(tuple[int, ...]):
    """Strides of one mode, in elements: in A, B, C and D, then in each auxiliary operand of the contraction.

    `strides[4 + i]` is `strides.aux[i]`.
    """

    __slots__ = ()

    def __new__(cls, a: int, b: int, c: int, d: int, *aux: int) -> Strides:
        return super().__new__(cls, (a, b, c, d, *aux))

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    a, b, c, d = (property(itemgetter(tensor)) for tensor in range(4))

    @property
    def aux(self) -> tuple[int, ...]:
        return tuple(self[4:])


class Mode(NamedTuple):
    """One index of the contraction: its labels (several once merged, outermost first), extent, role and strides."""

    labels: tuple[Label, ...]
    extent: int
    role: Role
    strides: Strides

    @property
    def name(self) -> str:
        return "".join(map(label_text, self.labels))


def with_operands_swapped(mode: Mode) -> Mode:
    """The mode of the contraction that has B in the place of A, and A in that of B."""
    a, b, *others = mode.strides
    role = {Role.M: Role.N, Role.N: Role.M}.get(mode.role, mode.role)
    return mode._replace(role=role, strides=Strides(b, a, *others))


class Layout(NamedTuple):
    """How one tensor lies in memory, without its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dtype: torch.dtype
    alignment: int = 16  # bytes: the largest power of two up to 16 that divides the address of its first element

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        address = tensor.data_ptr() if tensor.device.type != "meta" else 0
        alignment = 16 if address % 16 == 0 else address & -address
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, alignment)

    @classmethod
    def contiguous(cls, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Row-major, as torch allocates it."""
        strides, run = [], 1
        for extent in reversed(shape):
            strides.append(run)
            run *= max(extent, 1)
        return cls(tuple(shape), tuple(reversed(strides)), dtype)

    @property
    def transposed(self) -> Layout:
        """The last two dimensions in turn."""
        (*outer, rows, columns), (*outer_steps, down, right) = self.shape, self.strides
        return self._replace(shape=(*outer, columns, rows), strides=(*outer_steps, right, down))


@dataclass(frozen=True, slots=True)
class Aux:
    """Something that stands beside A, B, C and D and lies along the contraction's modes.

    operand: a tensor whose elements a function takes beside the value.
    index: the coordinate along one mode. It has no memory: its stride is 1 along that mode and 0 along all others, so
        that its offset is the coordinate; `dtype` is int32 where that holds every coordinate, else int64.
    output: a further result of D's modes, the next value of an epilogue that yields several.

    `Mode.strides.aux` has its strides.
    """

    name: str = field(compare=False)
    kind: Literal["operand", "index", "output"]
    layout: Layout | None  # None for an index
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The three choices of number type besides storage, and how the products are made.

    `product` is the type in which A and B are multiplied and which `a_fn` and `b_fn` see; `accumulate` the type of
    the sum, which `c_fn` and `epilogue` see; `precision` how fp32 products use the hardware; `three` whether a complex
    product may be made of three real ones; `split` whether a product may be made of those of shorter terms, see
    `weft.planner.split_schemes`.
    """

    product: torch.dtype
    accumulate: torch.dtype
    precision: str = "ieee"  # or "tf32", "tf32x3"; of a step of another schedule "bf16x6"
    three: bool = False
    split: bool = False

    @property
    def fastest(self) -> str:
        """The fastest way that products may be made: `precision`, or of what terms."""
        return "fp16x3" if self.split else self.precision


@dataclass(frozen=True)
class Contraction:
    """A contraction of two tensors, ready to be planned. `a`, `b`, `c`, `d` are the tensors' layouts.

    `c` is None where nothing is added. `a_args`, `b_args`, `c_args` and `epilogue_args` are positions in `aux`: what
    each function takes after the value, in the order of its parameters. One auxiliary operand may serve several
    functions. Those of kind "output" come last, in the order in which the epilogue yields them after D. `algebra` None
    is plus-times. Equal contractions have equal results and equal plans: functions compare by the identity of what
    they compute.

    `invariant`: 0, or elements of D for each index of the modes whose extents no bit may depend on. The bits of an
    element follow from its own products and from that number then.
    """

    modes: tuple[Mode, ...]
    a: Layout
    b: Layout
    c: Layout | None
    d: Layout
    arithmetic: Arithmetic
    a_fn: Pointwise | None = None
    b_fn: Pointwise | None = None
    c_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    conjugate_a: bool = False
    conjugate_b: bool = False
    aux: tuple[Aux, ...] = ()
    a_args: tuple[int, ...] = ()
    b_args: tuple[int, ...] = ()
    c_args: tuple[int, ...] = ()
    epilogue_args: tuple[int, ...] = ()
    algebra: TracedAlgebra | None = None
    text: str = field(default="", compare=False)  # the equation as given, for messages
    invariant: int = 0

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Positions in `aux` of what the epilogue yields after D."""
        return tuple(at for at, each in enumerate(self.aux) if each.kind == "output")

    def of_role(self, *roles: Role) -> tuple[Mode, ...]:
        return tuple([mode for mode in self.modes if mode.role in roles])

    def extent_of(self, *roles: Role) -> int:
        """Product of the extents of all modes of these roles (1 when there are none)."""
        return math.prod([mode.extent for mode in self.modes if mode.role in roles])

    batch = cached_property(lambda self: self.extent_of(Role.BATCH))
    m = cached_property(lambda self: self.extent_of(Role.M))
    n = cached_property(lambda self: self.extent_of(Role.N))
    k = cached_property(lambda self: self.extent_of(Role.K))


def mode_extents(notation: Notation, shapes: Sequence[Sequence[int]]) -> dict[Label, int]:
    """Extent of every label, extent 1 broadcasting; `ShapeError` names the label and extents that clash."""
    extents: dict[Label, int] = {}
    first: dict[Label, int] = {}
    for operand, (term, shape) in enumerate(zip(notation.inputs, shapes, strict=True)):
        check_diagonals(term, shape, f"operand {operand}")
        for label, extent in zip(term, shape, strict=True):
            known = extents.setdefault(label, extent)
            first.setdefault(label, operand)
            if known == extent or extent == 1:
                continue
            if known != 1:
                raise ShapeError(
                    f"label '{label_text(label)}' has extent {known} in operand {first[label]} and {extent} in "
                    f"operand {operand}"
                )
            extents[label], first[label] = extent, operand
    return extents


def check_diagonals(term: Sequence[Label], shape: Sequence[int], operand: str) -> None:
    """A label that an operand repeats has one extent there: no broadcasting within a diagonal."""
    seen: dict[Label, int] = {}
    for label, extent in zip(term, shape, strict=True):
        if seen.setdefault(label, extent) != extent:
            raise ShapeError(
                f"label '{label_text(label)}' stands twice in {operand} with extents {seen[label]} and {extent}"
            )


def mode_strides(term: Iterable[Label], layout: Layout, extents: dict[Label, int]) -> dict[Label, int]:
    """Stride of every label in one tensor: the sum over a diagonal's dimensions, 0 where extent 1 broadcasts."""
    strides: dict[Label, int] = {}
    for label, extent, stride in zip(term, layout.shape, layout.strides, strict=True):
        step = stride if extent == extents[label] and extent != 1 else 0
        strides[label] = strides.get(label, 0) + step
    return strides


def output_shape(notation: Notation, extents: dict[Label, int]) -> tuple[int, ...]:
    return tuple(extents[label] for label in notation.output)


def summed(notation: Notation, extents: dict[Label, int]) -> int:
    """How many products one element of the output is the sum of."""
    return math.prod([extent for label, extent in extents.items() if label not in notation.output])


def class_modes(
    notation: Notation,
    a: Layout,
    b: Layout,
    c: Layout | None,
    d: Layout,
    extents: dict[Label, int],
    aux: Sequence[dict[Label, int]] = (),
) -> tuple[Mode, ...]:
    """Every label of the equation as a `Mode`, in order of first appearance: D's labels, then A's, then B's.

    `aux` holds the strides of each auxiliary operand by label.
    """
    term_a, term_b = notation.inputs
    in_a = mode_strides(term_a, a, extents)
    in_b = mode_strides(term_b, b, extents)
    in_c = mode_strides(notation.output, c, extents) if c is not None else {}
    in_d = mode_strides(notation.output, d, extents)
    modes = []
    for label in dict.fromkeys((*notation.output, *term_a, *term_b)):
        if label not in in_d:
            role = Role.K
        elif label in in_a:
            role = Role.BATCH if label in in_b else Role.M
        else:
            role = Role.N
        strides = Strides(*[steps.get(label, 0) for steps in (in_a, in_b, in_c, in_d, *aux)])
        modes.append(Mode((label,), extents[label], role, strides))
    return tuple(modes)


# -- what functions take beside the value: operands and coordinates by name, and their layout along the modes ----------


@dataclass(frozen=True, slots=True)
class AuxInput:
    """An operand or a coordinate that functions ask for by the name of a parameter."""

    name: str
    term: tuple[Label, ...]  # an operand's modes, or the one label of a coordinate
    layout: Layout | None  # None for a coordinate
    dtype: torch.dtype

    @property
    def aux(self) -> Aux:
        return Aux(self.name, "index" if self.layout is None else "operand", self.layout, self.dtype)

    def strides(self, extents: dict[Label, int]) -> dict[Label, int]:
        """Along each label it has: 1 for a coordinate, whose offset is its value."""
        return {self.term[0]: 1} if self.layout is None else mode_strides(self.term, self.layout, extents)


def read_modes(name: str, modes: Any, rank: int) -> tuple[Label, ...]:
    """The labels of an operand of that rank: text (``"mn"``, ``"...n"``) or a sequence of labels."""
    read = parse(f"{modes}->", new_labels=True) if isinstance(modes, str) else from_sequences(modes, ())
    if len(read.inputs) != 1:
        raise NotationError(f"operand '{name}' has one term of modes, not '{modes}'")
    (term,) = read.inputs
    try:
        return expand(Notation((term,), term), (rank,)).inputs[0]
    except ShapeError as error:
        raise ShapeError(f"operand '{name}': {error}") from None


def operand(name: str, term: tuple[Label, ...], layout: Layout, extents: Mapping[Label, int]) -> AuxInput:
    """An operand with those modes, its extents checked: each is the mode's, or 1 and broadcasts."""
    check_diagonals(term, layout.shape, f"operand '{name}'")
    for label, extent in zip(term, layout.shape, strict=True):
        wanted = extents.get(label, extent)  # an unknown label is refused where a function asks for it
        if extent not in (wanted, 1):
            raise ShapeError(
                f"label '{label_text(label)}' has extent {extent} in operand '{name}' and {wanted} in the contraction"
            )
    return AuxInput(name, term, layout, layout.dtype)


def coordinate(name: str, label: Label, extents: Mapping[Label, int]) -> AuxInput:
    """The coordinate along one mode: int32 where that holds every one of them, else int64."""
    try:
        extent = extents.get(label, 1)
    except TypeError:
        raise NotationError(f"index '{name}' is one label, not {type(label).__name__}") from None
    if label not in extents and isinstance(label, str) and len(label) > 1 and all(each in extents for each in label):
        raise NotationError(f"index '{name}' is the coordinate along one label, '{label}' names {len(label)}")
    return AuxInput(name, (label,), None, torch.int32 if extent - 1 <= _LARGEST_INT32 else torch.int64)


def check_reach(named: AuxInput, hook: str, tensor: str, labels: Collection[Label]) -> None:
    """A function sees one element of its tensor: what it takes beside it lies along that tensor's modes alone."""
    for label in named.term:
        if label not in labels:
            kind = "operand" if named.layout is not None else "index"
            there = f"its modes are '{term_text(tuple(labels))}'" if labels else "it has no modes"
            raise NotationError(
                f"{hook} works on elements of {tensor}, which has no label '{label_text(label)}' ({there}): "
                f"{kind} '{named.name}' cannot lie along it"
            )
