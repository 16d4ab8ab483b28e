"""A `Permutation` says what is to be moved, frozen and hashable, and nothing of how.

    D[modes in D's order] = alpha * fn(X[modes in X's order]) + beta * C[modes in D's order]

Its modes are in canonical form from the start: unit modes dropped, modes that lie contiguously together in every
tensor merged. So a permutation that only copies, or that is the transposition of a matrix, is seen to be one however
many modes it was written with.

A transposition in place is told by `InPlace`: the matrices of a tensor, and their transposes in the same memory.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from weft.base.figures import counted
from weft.errors import NotationError, ShapeError, WorkspaceError
from weft.fn import Pointwise
from weft.spec.canonical import merged
from weft.spec.contraction import Layout, Mode, Role, Strides, mode_extents, mode_strides
from weft.spec.notation import Label, Notation, label_text, term_text

MOST_ELEMENTS = 2**59  # of 16 bytes, which 63 bits count

Kind = Literal["copy", "transpose", "general"]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A permutation ready to be planned: from the source X to D, which may be accumulated into.

    Every mode has role M; its strides count elements in X (`a`), C (`c`) and D (`d`), and `b` is 0. A mode of source
    stride 0 broadcasts. Modes stand outermost in D first. Equal permutations have equal results and equal plans.
    """

    modes: tuple[Mode, ...]
    x: Layout
    c: Layout | None  # None where nothing is added
    d: Layout
    compute: torch.dtype  # in which fn sees values: X's own
    fn: Pointwise | None = None
    conjugate: bool = False  # X's values are conjugated before fn sees them
    scaled: bool = False  # alpha, or beta and C, are applied
    text: str = field(default="", compare=False)  # the equation as given, for messages

    @property
    def is_move(self) -> bool:
        """Whether the bits of elements are copied as they are, so that any type of their size may stand for theirs."""
        computed = self.fn is not None or self.conjugate or self.scaled
        return not computed and self.x.dtype == self.d.dtype

    @property
    def value(self) -> torch.dtype:
        """The type of values behind fn."""
        result = self.fn.result if self.fn is not None else self.compute
        assert isinstance(result, torch.dtype), "a function of several results is refused before"
        return result

    @property
    def scale(self) -> torch.dtype:
        """The type in which alpha, beta and C are applied."""
        return scaling_type(self.value, self.d.dtype)

    @property
    def size(self) -> int:
        """Elements of D."""
        return math.prod(mode.extent for mode in self.modes)

    @property
    def kind(self) -> Kind:
        """The kind of permutation that is left once modes are merged.

        "copy": no mode passes another on its way, the source may have gaps or repeat itself. "transpose": the two
        innermost modes change places, the others stay outside of them in their order. "general": anything else.
        """
        in_d = [mode for mode in self.modes if mode.strides.a]
        in_x = sorted(in_d, key=lambda mode: -mode.strides.a)
        if in_x == in_d:
            return "copy"
        return "transpose" if [*in_x[:-2], *in_x[:-3:-1]] == in_d else "general"


def canonical_modes(
    notation: Notation, x: Layout, c: Layout | None, d: Layout, extents: Mapping[Label, int]
) -> tuple[Mode, ...]:
    """As few modes as describe the same moves, outermost in D first. `notation` has one input and no ellipsis."""
    every = dict(extents)
    in_x = mode_strides(notation.inputs[0], x, every)
    in_c = mode_strides(notation.output, c, every) if c is not None else {}
    in_d = mode_strides(notation.output, d, every)
    modes = [
        Mode((label,), extents[label], Role.M, Strides(in_x.get(label, 0), 0, in_c.get(label, 0), in_d[label]))
        for label in notation.output
        if extents[label] != 1
    ]
    return tuple(sorted(merged(sorted(modes, key=_outermost_first)), key=_outermost_first))


def permutation_extents(
    notation: Notation,
    shape: Sequence[int],
    given: Mapping[Label, int],
    out: Sequence[int] | None = None,
) -> dict[Label, int]:
    """Extent of every label of the output, from the shape of X, `given` by the caller, and the shape of `out`.

    What X has counts, but for an extent of 1, which broadcasts. What it has not is taken from `given`, else from `out`.
    Raises `NotationError` for labels of X that the output lacks and for labels given that it lacks, `ShapeError` for
    extents that clash and for a new label without one.
    """
    (term,), output = notation.inputs, notation.output
    if summed := [label for label in dict.fromkeys(term) if label not in output]:
        verb = "are" if len(summed) > 1 else "is"
        raise NotationError(f"{_listed(summed)} of x {verb} not in the output: permute sums over nothing, einsum does")
    if strangers := [label for label in given if label not in output]:
        raise NotationError(f"extents are given for {_listed(strangers)}, which the output '{term_text(output)}' lacks")
    extents = mode_extents(notation, (shape,))
    asked = dict(zip(output, out, strict=True)) if out is not None and len(out) == len(output) else {}
    for label in output:
        have = extents.get(label)
        want = given.get(label, asked.get(label, have))
        if want is None:
            raise ShapeError(
                f"label '{label_text(label)}' is new and has no extent: give it by extents={{{label!r}: ...}} or by out"
            )
        if have not in (None, 1, want) and label in given:
            raise ShapeError(f"label '{label_text(label)}' has extent {have} in x, {want} is given")
        extents[label] = want if have in (None, 1) else have
    if (count := math.prod(extents[label] for label in output)) >= MOST_ELEMENTS:
        raise WorkspaceError(f"the result has {count} elements, and no memory has room for so many")
    return extents


def checked_extents(extents: Mapping[Label, int]) -> dict[Label, int]:
    """Extents as a caller gives them, as plain integers; `NotationError` or `ShapeError` for anything else."""
    if not isinstance(extents, Mapping):
        raise NotationError(f"extents are a mapping from labels to numbers, not {type(extents).__name__}")
    return {label: _extent(label, value) for label, value in extents.items()}


def scaling_type(value: torch.dtype, d: torch.dtype) -> torch.dtype:
    """The type in which values of type `value` are scaled and added to, on their way to D.

    Wide enough for both; half types go by float32, integers by int64.
    """
    wide = [_widened(dtype) for dtype in (value, d) if dtype.is_floating_point or dtype.is_complex]
    return torch.promote_types(wide[0], wide[-1]) if wide else torch.int64


def _widened(dtype: torch.dtype) -> torch.dtype:
    if dtype is torch.complex32:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _extent(label: Label, value: object) -> int:
    try:
        extent = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"the extent of label '{label_text(label)}' is an integer, not {value!r}") from None
    if extent < 0:
        raise ShapeError(f"label '{label_text(label)}' is given extent {extent}")
    return extent


def _outermost_first(mode: Mode) -> tuple[int, ...]:
    return (-mode.strides.d, -mode.strides.a, -mode.extent)


def _listed(labels: Iterable[Label]) -> str:
    texts = [f"'{label_text(label)}'" for label in labels]
    return f"label{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


# -- in place ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InPlace:
    """The matrices along two dimensions of a tensor, one for each index of the others.

    A square matrix may have any strides and keeps them. Any other lies dense, its rows or its columns contiguous up to
    a common step, and so does its transpose: what was row-major stays row-major.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dims: tuple[int, int]  # of the rows' and the columns' index

    @classmethod
    def of(cls, tensor: torch.Tensor, dims: Sequence[int]) -> InPlace:
        """Raises `ShapeError` for dims that are no two dimensions of `tensor` and for matrices that cannot stay."""
        try:
            first, second = (operator.index(dim) for dim in dims)
        except Exception:  # whatever an object of somebody else raises
            raise ShapeError(f"dims are two dimensions, not {dims!r}") from None
        rank = tensor.dim()
        for dim in (first, second):
            if not -rank <= dim < rank:
                raise ShapeError(f"dimension {dim} of dims is none of a tensor of {counted(rank, 'dimension')}")
        if first % rank == second % rank:
            raise ShapeError(f"dims {first} and {second} are the same dimension")
        found = cls(tuple(tensor.shape), tensor.stride(), (first % rank, second % rank))
        if not (found.square or found.trivial or found.row_major or found.column_major):
            rows, columns = found.extents
            steps = tuple(found.strides[dim] for dim in found.dims)
            raise ShapeError(
                f"matrices of {rows} x {columns} with strides {steps} are not dense: only square ones are transposed "
                "within gaps"
            )
        return found

    @property
    def extents(self) -> tuple[int, int]:
        """(rows, columns)"""
        rows, columns = self.dims
        return self.shape[rows], self.shape[columns]

    @property
    def square(self) -> bool:
        rows, columns = self.extents
        return rows == columns

    @property
    def trivial(self) -> bool:
        """Whether no element has to move."""
        return 1 in self.extents or 0 in self.shape

    @property
    def row_major(self) -> bool:
        rows, columns = self.dims
        return self.strides[rows] == self.strides[columns] * self.shape[columns]

    @property
    def column_major(self) -> bool:
        rows, columns = self.dims
        return self.strides[columns] == self.strides[rows] * self.shape[rows]

    def result_strides(self) -> tuple[int, ...]:
        """Strides of the transposes, in the tensor's order of dimensions."""
        strides = list(self.strides)
        first, second = self.dims
        if self.trivial:
            strides[first], strides[second] = strides[second], strides[first]
        elif not self.square:
            rows, columns = self.extents
            step = min(strides[first], strides[second])
            inner, outer = (second, first) if self.row_major else (first, second)
            strides[inner], strides[outer] = step, step * (rows if self.row_major else columns)
        return tuple(strides)

    def result_shape(self) -> tuple[int, ...]:
        shape = list(self.shape)
        first, second = self.dims
        shape[first], shape[second] = shape[second], shape[first]
        return tuple(shape)

    def stacks(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """The matrices as views (batch, rows, columns), those of one stride together.

        Row-major where they are not square: a column-major matrix is the row-major one of its transpose.
        """
        size, strides, offsets = self.places()
        base = int(tensor.storage_offset())
        for offset in offsets:
            yield tensor.as_strided(size, strides, base + offset)

    def places(self) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
        """The shape and strides of the views of `stacks`, and where each begins, from the tensor's first element."""
        first, second = self.dims
        if not self.square and not self.row_major:
            first, second = second, first
        others = [
            Mode((at,), extent, Role.BATCH, Strides(stride, 0, 0, 0))
            for at, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True))
            if at not in self.dims and extent != 1
        ]
        runs = merged(sorted(others, key=lambda mode: -mode.strides.a))[::-1]
        longest, *left = sorted(runs, key=lambda mode: -mode.extent) or [Mode((), 1, Role.BATCH, Strides(0, 0, 0, 0))]
        size = (longest.extent, self.shape[first], self.shape[second])
        strides = (longest.strides.a, self.strides[first], self.strides[second])
        corners = itertools.product(*([index * mode.strides.a for index in range(mode.extent)] for mode in left))
        return size, strides, [sum(corner) for corner in corners]
