"""Launches of a product by terms: of operands, of the verdict, of the kernel by each scheme, of split-K partials."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.dependent import is_short
from weft.gpu.common.driver import note
from weft.gpu.common.launch import KernelLaunch
from weft.gpu.common.operation import operation
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.terms.model import described, schedule_of, terms_params
from weft.gpu.terms.packing import FIRST_COUNT, OperandTerms, new_words, verdict_launch
from weft.gpu.warp_specialized.family import SwizzledTensorMap, swizzled_maps
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.roles import WARPS
from weft.gpu.warp_specialized.schedule import output_map, partials_layout
from weft.planner.schedule import Scalar, Target
from weft.planner.split_schemes import BF16X6, SplitScheme
from weft.spec import Layout

KERNEL = DeviceFunction("weft.gpu.terms.kernel", "terms_kernel")
MOST_TERMS = 3
WORD = VECTOR // 4  # elements of float32


class TermsKernel:
    """The kernel of one scheme on terms that lie so."""

    def __init__(
        self, a: Sequence[Tensor], b: Sequence[Tensor], d: Tensor, words: Tensor | None, scheme: SplitScheme,
        target: Target, epilogue: Pointwise | None = None,
    ) -> None:  # fmt: skip
        contraction = described(a[0], b[0], d, epilogue)
        schedule = schedule_of(contraction, scheme, target)
        if isinstance(schedule, str):
            raise UnsupportedError(schedule)
        self.schedule = schedule
        params = ws_params(contraction, schedule, target)
        map_a, map_b, _ = swizzled_maps(contraction, schedule)
        map_d = SwizzledTensorMap(*output_map(contraction, schedule, schedule.rows, params.tma.blocks).tensor_map)
        left = [map_a if at < scheme.terms else None for at in range(MOST_TERMS)]
        right = [map_b if at < scheme.terms else None for at in range(MOST_TERMS)]
        constants = {"PARAMS": params, "OP": operation(contraction), "TERMS": terms_params(scheme, schedule.tile[2])}
        layouts = (*left, *right, Layout.of(words) if words is not None else None, map_d)
        self.multiply = KernelLaunch(
            KERNEL, layouts, constants, True, target, params.tma.programs, WARPS, 1, pdl=is_short(contraction)
        )  # fmt: skip
        split = schedule.splits > 1
        self.partials = partials_layout(contraction, schedule, params.tma.blocks) if split else None
        self._reduced = contraction, params.tma, target

    def reduction(self) -> KernelLaunch | None:
        """The launch that adds partials; None where sums are whole."""
        contraction, params, target = self._reduced
        return reduce_launch(contraction, params, self.partials, target) if self.partials is not None else None

    def __call__(
        self, a: Sequence[Tensor], b: Sequence[Tensor], words: Tensor | None, stored: Tensor, alpha: Scalar
    ) -> None:
        """Multiply, to D or to partials."""
        absent = (None,) * (MOST_TERMS - len(a))
        self.multiply((*a, *absent, *b, *absent, words, stored), alpha, 1)


class TermsProduct:
    """The epilogue of `alpha` times the product of float32 matrices that lie like `left` and `right`.

    These are (batch, m, k) and (batch, k, n), or without batch. The first scheme that serves makes it; bfloat16,
    which always does, is the last of them. `UnsupportedError` where the kernel does not take the matrices.
    """

    def __init__(
        self, left: Tensor, right: Tensor, place: Tensor, schemes: Sequence[SplitScheme], target: Target,
        epilogue: Pointwise | None = None,
    ) -> None:  # fmt: skip
        self._left = OperandTerms(left, 0, FIRST_COUNT, target)
        self._right = OperandTerms(right.mT, 1, FIRST_COUNT + self._left.rows, target)
        self._schemes = tuple(schemes)
        self._aside = not _is_stored_by_tma(place)
        meta = torch.device("meta")  # that tells how memory of a call will lie
        d = self._place(place, meta)
        words = new_words(self._left, self._right, meta) if len(schemes) > 1 else None
        for side in (self._left, self._right):
            side.prepare(self._schemes, words)
        x, y = self._rooms(meta)
        self._kernels = [
            TermsKernel(*self._terms(x, y, each), d, words, each, target, epilogue) for each in self._schemes
        ]
        self._reduce = self._kernels[-1].reduction()  # partials lie alike, whichever scheme serves
        self._verdict = verdict_launch(words, left.shape[-1], target) if words is not None else None

    def _terms(self, x: Tensor, y: Tensor, scheme: SplitScheme) -> tuple[list[Tensor], list[Tensor]]:
        """Terms of A and B as matrices of the product."""
        left, right = (
            side.views(room[: scheme.terms].view(scheme.term))
            for side, room in ((self._left, x), (self._right, y))
        )  # fmt: skip
        return left, [each.mT for each in right]

    def __call__(self, left: Tensor, right: Tensor, place: Tensor, alpha: Scalar = 1) -> None:
        note(None)  # zeros of words are no launch of weft's
        x, y = self._rooms(left.device)
        operands = (self._left, left, x), (self._right, right.mT, y)
        words = None
        if self._verdict is not None:
            words = new_words(self._left, self._right, left.device)
            for side, operand, _ in operands:
                side.peak(operand, words)
        for scheme in self._schemes:
            for side, operand, room in operands:
                side.split(operand, words, room[: scheme.terms].view(scheme.term), scheme)
            if self._verdict is not None and scheme is not BF16X6:
                self._verdict((words,), 1, 1)
        last, d = self._kernels[-1], self._place(place, place.device)
        stored = d
        if last.partials is not None:
            stored = torch.empty(last.partials.shape, dtype=last.partials.dtype, device=left.device)
        for kernel, scheme in zip(self._kernels, self._schemes, strict=True):
            kernel(*self._terms(x, y, scheme), words, stored, alpha)
        if self._reduce is not None:
            self._reduce((stored, None, d), alpha, 1)
        if d is not place:
            place.copy_(d)

    def _rooms(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Memory for the terms of both operands, by whichever scheme."""
        left, right = (side.room(MOST_TERMS) for side in (self._left, self._right))
        return torch.empty(left, dtype=torch.int16, device=device), torch.empty(right, dtype=torch.int16, device=device)

    def _place(self, place: Tensor, device: torch.device) -> Tensor:
        """D, or memory of its own where TMA cannot store that."""
        if not self._aside:
            return place
        *outer, columns = place.shape
        return place.new_empty((*outer, -(-columns // WORD) * WORD), device=device)[..., :columns]


def _is_stored_by_tma(place: Tensor) -> bool:
    """Whether rows or columns of a matrix are contiguous, and all others begin at whole words."""
    steps = sorted(stride for size, stride in zip(place.shape, place.stride(), strict=True) if size > 1)
    whole = all(step > 0 and step % WORD == 0 for step in steps[1:])
    return 1 in place.stride()[-2:] and whole and place.data_ptr() % VECTOR == 0
