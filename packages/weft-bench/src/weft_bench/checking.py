"""Whether a contender computes a case right, found out before any time is taken.

The measure is `weft.testing`: the oracle's result, and for each element the most by which a correct one may differ.
Of results too large for the oracle's wide copies, slabs are checked: the first, a middle and the last indices of D's
longest mode, so that offsets beyond 2^31 are among them. What is only moved is compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.oracle.bounds import expectation
from weft.oracle.judgement import fill_unwritten, judged
from weft.oracle.reference import contract, wide
from weft.spec.notation import Label
from weft.testing import assert_close, poisoned
from weft_bench.cases import Case
from weft_bench.peers.registry import Tensors

Run = Callable[..., torch.Tensor]

CALLS = 3  # of a contender, the last of which is checked: what the first ones noted serves from then on
_WHOLE = 1 << 27  # elements of one tensor up to which everything is checked, memory allowing
_CHECK_BYTES = 256  # that the check of one element takes in all: wide copies, magnitudes, function values
_SLAB = 1 << 22  # elements of one tensor in a slab, where one index allows
_PAIRS = 1 << 28  # pairs of A's and B's elements that the oracle combines, in other algebras than plus-times


@dataclass(frozen=True)
class ReferenceSlab:
    """The part of D at `start` to `start + length` of mode `at`, or all of it (None): the oracle's, with bounds."""

    case: Case
    part: tuple[int, int, int] | None
    reference: torch.Tensor
    bound: torch.Tensor
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
    _wider: dict[torch.dtype, torch.Tensor] = field(default_factory=dict, repr=False)

    def compare(self, d: torch.Tensor, stored: torch.dtype | None = None) -> float:
        """The largest error in units of its bound; `AssertionError` names the worst element past it.

        `stored` is the type in which a contender holds the sum before the epilogue and between other steps, where it
        does: its roundings are added to the bound.
        """
        have = d if self.part is None else d.narrow(*self.part)
        if stored is None or (stored is self.case.dtypes[2] and self._rounds_once):
            bound = self.bound
        else:
            if stored not in self._wider:
                self._wider[stored] = self._widened(stored)
            bound = self._wider[stored]
        try:
            assert_close(have, self.reference, bound)
        except AssertionError as found:
            alike = have.shape == self.reference.shape
            error = judged(have, self.reference, bound).worst if alike else math.inf
            raise WrongResult(error, str(found)) from None
        return judged(have, self.reference, bound).worst

    @property
    def _rounds_once(self) -> bool:
        """Whether D is the sum of products itself: then a contender that rounds to D's type early rounds no more."""
        case = self.case
        return case.epilogue is None and not case.add and case.alpha == 1 and not _has_single_operand_modes(case)

    def _widened(self, stored: torch.dtype) -> torch.Tensor:
        """The bound of a contender that rounds to `stored` after each step.

        The steps: an operand summed along modes of its own, the sum of products, alpha, C, the epilogue.
        """
        if not (stored.is_floating_point or stored.is_complex):
            return self.bound
        case, step = self.case, torch.finfo(stored).eps
        a, b, c = self.operands
        options = case.options()
        alpha, beta, c_fn, epilogue = (options.pop(name) for name in ("alpha", "beta", "c_fn", "epilogue"))
        value, off = expectation(case.equation, a, b, **{**options, "out_dtype": stored})
        if _has_single_operand_modes(case):
            a_fn, b_fn = options["a_fn"] or wide, options["b_fn"] or wide
            off = off + step * contract(case.equation, a_fn(wide(a)).abs(), b_fn(wide(b)).abs())
        value, off = alpha * value, abs(alpha) * (off + step * value.abs())
        if c is not None and case.c_as == "scale":
            value, off = value * wide(c), off * wide(c).abs() + 2 * step * (value * wide(c)).abs()
        elif c is not None and beta != 0:
            value = value + beta * wide(c_fn(wide(c)) if c_fn else c)
            off = off + 2 * step * value.abs()
        if epilogue:
            ends = [(epilogue(value + sign * off) - epilogue(value)).abs().double() for sign in (-1, 1)]
            off = torch.maximum(*ends).nan_to_num(nan=math.inf)
        return self.bound + off + 4 * step * self.reference.abs().double()


class WrongResult(AssertionError):
    """A result past its bound. `error` is the largest over its bound: infinite where an element was not written."""

    def __init__(self, error: float, found: str) -> None:
        kind = f"error {error:.3g} times its bound" if math.isfinite(error) else "elements not written, or not finite"
        super().__init__(f"{kind}: {found}")
        self.error = error


class ContractionCheck:
    """A contraction's result against the reference.

    Each way writes to poisoned memory of its own, between guard bands.
    """

    def __init__(self, case: Case, tensors: Tensors) -> None:
        self._case, self._tensors = case, tensors
        self._expected = reference_slabs(case, tensors)

    def error(self, run: Run, stored: torch.dtype | None = None) -> float:
        case, device = self._case, self._tensors.d.device
        for _ in range(CALLS):
            place = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3], device=device)
            result = run(*self._tensors._replace(d=place.tensor))
            place.check_guards()
        return max(slab.compare(result, stored) for slab in self._expected)


class PermutationCheck:
    """A permutation's result, bit for bit: `value` with its dimensions in the order `dims`."""

    def __init__(self, tensors: Any, value: torch.Tensor, dims: Sequence[int]) -> None:
        self._tensors = tensors
        self._expected = _bits(_permuted(value, dims))

    def error(self, run: Run, stored: torch.dtype | None = None) -> float:
        for _ in range(CALLS):
            fill_unwritten(self._tensors.d)
            result = run(*self._tensors)
        return _same_bits(result, self._expected)


class TransposeCheck:
    """A transposition in place, bit for bit. The matrix is given its first values anew before each way."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x, self._original = x, x.clone()
        self._expected = _bits(x.t().contiguous())

    def error(self, run: Run, stored: torch.dtype | None = None) -> float:
        x = self._x
        x.copy_(self._original)
        result = run(x)
        if result.data_ptr() != x.data_ptr():
            raise AssertionError("the result lies in other memory")
        return _same_bits(result, self._expected)


def _permuted(value: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    try:
        return value.permute(tuple(dims)).contiguous()
    except RuntimeError:  # torch's GPU kernels end at 25 dimensions
        return value.cpu().permute(tuple(dims)).contiguous().to(value.device)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The elements of a dense `x` as whole numbers, in one dimension."""
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(x.dtype.itemsize, torch.int64)
    return x.contiguous().view(-1).view(word)


def _same_bits(have: torch.Tensor, expected: torch.Tensor) -> float:
    """0, the error over a bound that has none; `AssertionError` says how many words of how many differ."""
    off = int((_bits(have) != expected).sum())
    if off:
        raise AssertionError(f"{off} of {expected.numel()} words differ from what torch moves")
    return 0.0


def reference_slabs(case: Case, tensors: Tensors) -> list[ReferenceSlab]:
    """The right result of `case` on `tensors`, in one part or in slabs."""
    a, b, c, d = tensors
    elements, most, slab = max(x.numel() for x in (a, b, d)), _affordable(d.device), _SLAB
    if case.algebra != "plus_times":  # pair by pair: no matrix product helps
        elements, most, slab = case.work, _PAIRS, _PAIRS
    if elements <= most:
        return [_truth(case, None, (a, b, c))]
    at = max(range(d.dim()), key=lambda i: d.shape[i])
    label = case.notation.output[at]
    return [_truth(case, (at, start, length), _narrowed(case, tensors, label, start, length, at))
            for start, length in _slabs(d.shape[at], elements, slab)]  # fmt: skip


def tolerance_text() -> str:
    """How correctness is judged, for the disclosure."""
    return (
        "every element within the worst-case rounding bound of weft.testing.expectation (K times the accumulator's "
        "epsilon times the sum of magnitudes, functions and result type besides) of the oracle weft.reference in "
        f"float64; slabs of results with more than {_WHOLE} elements; what is only moved, with a function or a cast, "
        "bit for bit; every contender and every way before it is timed, on operands of their own, D between guard bands"
    )


def _affordable(device: torch.device) -> int:
    """Elements of one tensor that can be checked at once."""
    if device.type != "cuda":
        return _WHOLE
    free, _ = torch.cuda.mem_get_info(device)
    return min(_WHOLE, int(free) // _CHECK_BYTES)


def _has_single_operand_modes(case: Case) -> bool:
    """Whether a label stands in A or B alone: such an operand may be summed, and rounded, before the product."""
    in_a, in_b = (
        {label for label, extent in zip(term, shape, strict=True) if extent != 1}
        for term, shape in zip(case.notation.inputs, case.shapes, strict=True)
    )
    return bool((in_a ^ in_b) - set(case.notation.output))


def _slabs(extent: int, elements: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Start and length along a mode: first, middle and last, each of about `wanted` of all elements."""
    length = max(1, min(extent // 3, wanted * extent // elements))
    for start in dict.fromkeys((0, (extent - length) // 2, extent - length)):
        yield start, length


def _narrowed(
    case: Case, tensors: Tensors, label: Label, start: int, length: int, at: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    def part(term: tuple[Any, ...], x: torch.Tensor) -> torch.Tensor:
        for i, name in enumerate(term):
            if name == label and x.shape[i] != 1:
                x = x.narrow(i, start, length)
        return x

    a, b = (part(term, x) for term, x in zip(case.notation.inputs, tensors[:2], strict=True))
    c = tensors.c
    return a, b, c if c is None or c.shape[at] == 1 else c.narrow(at, start, length)


def _truth(
    case: Case, part: tuple[int, int, int] | None, operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
) -> ReferenceSlab:
    a, b, c = operands
    options = case.options()
    if case.algebra == "log_direct":  # the same algebra as `log`, which no kernel may take for it
        options["algebra"] = "log"
    if case.c_as == "scale" and c is not None:
        options, c = case.with_operand(c), None
    reference, bound = expectation(case.equation, a, b, c=c, **options)
    return ReferenceSlab(case, part, reference, bound, operands)
