"""Moving complex numbers and computing with them on the way, at the speed of memory.

A `Task` is a permutation of complex elements with more to it than `permute` does: functions of complex values, complex
factors, conversions between complex and real types; and what makes a complex product a real one, see `Form`:

    (x_re, x_im) as a row  times  | y_re  y_im |   is   (x y)_re, (x y)_im
                                  |-y_im  y_re |

Blocks are cut as those of `permute`, over elements of 8 or 16 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
from weft.kernels.geometry import Side
from weft.kernels.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, _stand_in, wide, wide_index
from weft.kernels.permute import PermuteSchedule, block_seconds, blocks, programs, turn_of
from weft.plan.schedule import Candidates, Scalar, Target
from weft.spec import Layout, Strides
from weft.spec.arithmetic import REAL_OF, dtype_name
from weft.spec.permutation import Permutation

NAME = "pairs"

#: How D is written. "plain": element by element. Else every element becomes a matrix of two rows, `jump` elements
#: apart: "along": the rows hold what makes up the real and the imaginary part of a product, each next to the other
#: operand's (re, im); "across": the rows are those that the other operand's re and its im are multiplied by. "halves"
#: and "thirds": D is real, and every element becomes two numbers or three, `jump` elements apart: re, im and re + im.
Form = Literal["plain", "along", "across", "halves", "thirds"]


@dataclass(frozen=True, slots=True)
class Task:
    """D = epilogue(alpha * fn(X) + beta * c_fn(C)), in the modes of the permutation."""

    permutation: Permutation
    form: Form = "plain"
    jump: int = 0  # elements of D between the rows, or the thirds
    fold: int = 0  # elements of X between products with the real and with the imaginary part of the other factor
    thirds: int = 0  # elements of a real X between the products of two operands' three parts
    negate: bool = False  # the other factor stands conjugated: what its imaginary part meets changes its sign
    c_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    size: int = 0  # elements of a workspace D, gaps included

    @property
    def workspace_bytes(self) -> int:
        return self.size * self.permutation.d.dtype.itemsize


class PairsCut(NamedTuple):
    """All that the kernel takes of a task and its schedule, as compile-time constants."""

    r: Side  # D's run first
    tile: tuple[int, ...]
    r_of_x: Side  # the same axes, the source's run first
    tile_of_x: tuple[int, ...]
    turn: tuple[int, ...]  # dimensions of the source's tile in the order of D's
    kinds: tuple[str, str, str]  # how X, C and D are accessed: "words", "pairs" or "reals"
    form: str
    jump: int
    fold: int
    thirds: int
    negate: bool
    conjugate: bool
    fn_complex: bool  # whether the functions yield complex values
    c_fn_complex: bool
    epilogue_complex: bool
    wide: tuple[bool, ...]
    wide_index: bool


# -- the four doors, for permutations ----------------------------------------------------------------------------------


def supports(permutation: Permutation, target: Target) -> str | None:
    """As a family of permutations: those that complex numbers take part in."""
    layouts = [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]
    if not any(layout.dtype.is_complex for layout in layouts):
        return "no complex number takes part"
    if permutation.is_move:
        return "nothing is computed: complex numbers that only move go as words"
    if not permutation.x.dtype.is_complex and permutation.fn is not None:
        return "the function is of real values, what is written is complex"
    return reason_against(Task(permutation))


def schedules(permutation: Permutation, target: Target) -> Candidates:
    legal = _legal(Task(permutation))
    return Candidates(tuple(legal), () if legal else ("a grid holds at most 2^31 - 1 blocks",))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    return seconds(Task(permutation), schedule, target)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PairsLaunch:
    return built(Task(permutation), schedule, target)


# -- and for tasks -----------------------------------------------------------------------------------------------------


def reason_against(task: Task) -> str | None:
    """Why the kernel cannot do a task, in one sentence."""
    permutation = task.permutation
    for function in (permutation.fn, task.c_fn, task.epilogue):
        try:
            _ = function and function.parts.source
        except (UnsupportedError, FunctionError) as error:
            return str(error)
    for layout in (permutation.x, permutation.c, permutation.d):
        if layout is not None and _real(layout.dtype) not in TRITON_TYPES:
            return f"{dtype_name(layout.dtype)} has no Triton type here"
    return None


def best(task: Task, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    ranked = [(seconds(task, schedule, target), at, schedule) for at, schedule in enumerate(_legal(task))]
    time, _, schedule = min(ranked)
    return schedule, time


def seconds(task: Task, schedule: PermuteSchedule, target: Target) -> float:
    """Predicted as `permute` predicts; D is written twice where elements become matrices, X read twice where folded,
    and three times each where it is in thirds."""
    read = 3 if task.thirds else 2 if task.fold else 1
    written = {"plain": 1, "thirds": 3}.get(task.form, 2)
    return block_seconds(task.permutation, schedule, target, read, written)


def built(task: Task, schedule: PermuteSchedule, target: Target) -> PairsLaunch:
    from weft.kernels.pairs_kernel import pairs_kernel

    permutation = task.permutation
    cut = pairs_cut(task, schedule)
    scaled = permutation.scaled or permutation.c is not None
    scale = permutation.scale if task.epilogue is None else task.epilogue.dtypes[0]
    constants = {
        "CUT": cut,
        "FN": permutation.fn and permutation.fn.parts.jit,
        "C_FN": task.c_fn and task.c_fn.parts.jit,
        "EPILOGUE": task.epilogue and task.epilogue.parts.jit,
        "COMPUTE": TRITON_TYPES[_real(permutation.compute)],
        "SCALE": TRITON_TYPES[_real(scale)] if scaled else None,
        "RESULT": TRITON_TYPES[_real(permutation.d.dtype)],
    }
    layouts = [
        layout and layout._replace(dtype=element_type(layout))
        for layout in (permutation.x, permutation.c, permutation.d)
    ]
    launch = ComplexKernelLaunch(
        pairs_kernel, layouts, constants, True, target, programs(permutation, schedule), schedule.warps, stages=1
    )
    return PairsLaunch(launch, cut.kinds)


class PairsLaunch:
    """A built task: call it with X, C, D and complex factors."""

    def __init__(self, launch: KernelLaunch, kinds: tuple[str, str, str]) -> None:
        self.launch = launch
        self._kinds = kinds

    def __call__(self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        tensors = [
            None if tensor is None else seen_as(tensor, kind)
            for tensor, kind in zip((x, c, d), self._kinds, strict=True)
        ]
        self.launch(*tensors, alpha, beta)


class ComplexKernelLaunch(KernelLaunch):
    """A kernel that takes complex factors, each in two parts."""

    def __call__(self, *arguments: Any) -> None:
        *tensors, alpha, beta = arguments
        parts = (alpha.real, alpha.imag, beta.real, beta.imag)
        full = (*tensors, *(self._bits(float(part)) for part in parts), *self._trailing)
        if self._device is None or self._device.index == torch.cuda.current_device():
            self._run(*full)
        else:
            with torch.cuda.device(self._device):
                self._run(*full)

    def compile(self) -> Any:
        stand_ins = [_stand_in(layout) for layout in self.layouts]
        return self.kernel.warmup(*stand_ins, 0, 0, 0, 0, grid=(1,), **self.constants, **self.options)


def pairs_cut(task: Task, schedule: PermuteSchedule) -> PairsCut:
    permutation = task.permutation
    source, result, turn = turn_of(permutation, schedule)
    doubled = [replace(mode, strides=Strides(*(2 * stride for stride in mode.strides))) for mode in permutation.modes]
    wider = wide(doubled)
    # With the jump to the second row, or to the last third.
    far_x, far_d = (2 * jump >= 2**30 for jump in (max(task.fold, task.thirds), task.jump))
    functions = (permutation.fn, task.c_fn, task.epilogue)
    return PairsCut(
        r=result,
        tile=tuple(axis.tile for axis in result.axes if axis.place >= 0),
        r_of_x=source,
        tile_of_x=tuple(axis.tile for axis in source.axes if axis.place >= 0),
        turn=turn,
        kinds=tuple(kind_of(layout) for layout in (permutation.x, permutation.c, permutation.d)),  # type: ignore[arg-type]
        form=task.form,
        jump=task.jump,
        fold=task.fold,
        thirds=task.thirds,
        negate=task.negate,
        conjugate=permutation.conjugate,
        fn_complex=_yields_complex(functions[0]),
        c_fn_complex=_yields_complex(functions[1]),
        epilogue_complex=_yields_complex(functions[2]),
        wide=(wider[0] or far_x, *wider[1:3], wider[3] or far_d, *wider[4:]),
        wide_index=wide_index(schedule.cuts),
    )


def _legal(task: Task) -> list[PermuteSchedule]:
    found: dict[PermuteSchedule, None] = {}
    for cuts in blocks(task.permutation):
        size = math.prod(cut.tile for cut in cuts) * task.permutation.x.dtype.itemsize
        schedule = PermuteSchedule(cuts, 8 if size >= 32768 else 4, family=NAME)
        if programs(task.permutation, schedule) <= MOST_PROGRAMS:
            found[schedule] = None
    return list(found)


def _yields_complex(function: Pointwise | None) -> bool:
    return function is not None and isinstance(function.result, torch.dtype) and function.result.is_complex


def _real(dtype: torch.dtype) -> torch.dtype:
    return REAL_OF.get(dtype, dtype)


def element_type(layout: Layout) -> torch.dtype:
    """What a kernel sees of an element: a word of 64 bits, or one of two parts."""
    return torch.int64 if kind_of(layout) == "words" else _real(layout.dtype)


def kind_of(layout: Layout | None) -> str:
    if layout is None or not layout.dtype.is_complex:
        return "reals"
    return "words" if layout.dtype is torch.complex64 and layout.alignment >= 8 else "pairs"


def seen_as(tensor: Tensor, kind: str) -> Tensor:
    """The same memory as the kernel sees it; only its address and type matter."""
    if not tensor.dtype.is_complex:
        return tensor
    return tensor.view(torch.int64) if kind == "words" else torch.view_as_real(tensor)
