"""A `Permutation` says what is to be moved, frozen and hashable, and nothing of how.

    D[modes in D's order] = alpha * fn(X[modes in X's order]) + beta * C[modes in D's order]

Its modes are in canonical form from the start: unit modes dropped, modes that lie contiguously together in every
tensor merged. So a permutation that only copies, or that is the transposition of a matrix, is seen to be one however
many modes it was written with.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

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
