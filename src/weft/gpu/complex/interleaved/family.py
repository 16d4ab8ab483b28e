"""Permutations of complex elements: schedules for a description, and the launch."""

from __future__ import annotations

from torch import Tensor

from weft.gpu.common.aux_operands import AuxParams, as_elements, entries
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.complex.interleaved.model import NAME, Transfer, best, candidates, interleaved_params, seconds
from weft.gpu.complex.launch import ComplexKernelLaunch, complex_operation, function_reason
from weft.gpu.permute.schedule import PermuteSchedule, programs
from weft.planner.schedule import AuxTensors, Candidates, Scalar, Target
from weft.spec.permutation import Permutation

KERNEL = DeviceFunction("weft.gpu.complex.interleaved.kernel", "interleaved_kernel")


class InterleavedLaunch:
    """A built transfer: call it with X, C, D, complex factors, and auxiliary operands where it takes some."""

    def __init__(self, transfer: Transfer, schedule: PermuteSchedule, target: Target) -> None:
        own = transfer.aux_args
        self.launch = kernel_launch(transfer, schedule, target)
        self._places = [place for place, each in zip(own.places, own.aux, strict=True) if each.layout is not None]

    def __call__(
        self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        self.launch((x, c, d), alpha, beta, tuple([aux[place] for place in self._places]))


def kernel_launch(transfer: Transfer, schedule: PermuteSchedule, target: Target) -> ComplexKernelLaunch:
    permutation, own, every = transfer.permutation, transfer.aux_args, entries(transfer.aux_args.aux)
    scaled = permutation.scaled or permutation.c is not None
    scale = permutation.scale if transfer.epilogue is None else transfer.epilogue.dtypes[0]
    taken = (own.fn, (), own.c_fn, own.epilogue, own.outputs)
    op = complex_operation(
        (permutation.x, None, permutation.c, permutation.d), (permutation.fn, transfer.c_fn, transfer.epilogue),
        (permutation.conjugate, False), permutation.compute, scale if scaled else None,
        AuxParams._make(tuple(every[at] for at in each) for each in taken),
    )  # fmt: skip
    layouts = [layout and as_elements(layout) for layout in (permutation.x, permutation.c, permutation.d)]
    pointers = [as_elements(each.layout) for each in own.aux if each.layout is not None]
    return ComplexKernelLaunch(
        KERNEL, layouts, {"PARAMS": interleaved_params(transfer, schedule), "OP": op}, True, target,
        programs(permutation, schedule), schedule.warps, stages=1, pointers=pointers,
    )  # fmt: skip


__all__ = ["NAME", "best", "build", "predict", "reason_against", "schedules", "supports"]


def supports(permutation: Permutation, target: Target) -> str | None:
    layouts = [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]
    inside = permutation.fn is not None and permutation.fn.is_complex
    if not inside and not any(layout.dtype.is_complex for layout in layouts):
        return "no complex number takes part"
    if permutation.is_move:
        return "nothing is computed: complex numbers that only move go as words"
    return reason_against(Transfer(permutation), target)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    return candidates(Transfer(permutation))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    return seconds(Transfer(permutation), schedule, target)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> InterleavedLaunch:
    return InterleavedLaunch(Transfer(permutation), schedule, target)


def reason_against(transfer: Transfer, target: Target) -> str | None:
    """Why the kernel cannot do a transfer, in one sentence."""
    permutation = transfer.permutation
    layouts = (permutation.x, permutation.c, permutation.d, *(each.layout for each in transfer.aux_args.aux))
    return function_reason((permutation.fn, transfer.c_fn, transfer.epilogue), layouts, target)
