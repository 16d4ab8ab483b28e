"""Moving complex numbers and computing with them on the way, at the speed of memory.

A `Task` is a permutation of complex elements with more to it than `permute` does: functions of complex values, complex
factors, conversions between complex and real types; and what makes a complex product a real one, see `Form`:

    (x_re, x_im) as a row  times  | y_re  y_im |   is   (x y)_re, (x y)_im
                                  |-y_im  y_re |

Tiles are those of `permute`, over elements of 8 or 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from weft.errors import FunctionError, UnsupportedError
from weft.fn import Pointwise
from weft.gpu.common.aux_operands import AuxParams, aux_bytes, entries
from weft.gpu.common.complex_elements import as_elements, kind_of, real, seen_as
from weft.gpu.common.launch import MOST_PROGRAMS, TRITON_TYPES, KernelLaunch, _stand_in, type_reason, wide, wide_index
from weft.gpu.common.tiling import TENSORS, TiledDim
from weft.gpu.permute.cost import COPY_RATE, move_seconds
from weft.gpu.permute.params import tile_orders
from weft.gpu.permute.schedule import PermuteSchedule, programs, tilings
from weft.planner.schedule import AuxTensors, Candidates, Scalar, Target
from weft.spec import Layout, Strides
from weft.spec.contraction import Aux
from weft.spec.permutation import Permutation

NAME = "pairs"

#: How D is written. "plain": element by element. Else every element becomes a matrix of two rows, `jump` elements
#: apart: "along": the rows hold what makes up the real and the imaginary part of a product, each next to the other
#: operand's (re, im); "across": the rows are those that the other operand's re and its im are multiplied by. "halves"
#: and "thirds": D is real, and every element becomes two numbers or three, `jump` elements apart: re, im and re + im.
Form = Literal["plain", "along", "across", "halves", "thirds"]


class TaskAux(NamedTuple):
    """What the functions of a task take beside the value, and results after D."""

    aux: tuple[Aux, ...] = ()  # those that the task uses; `Mode.strides.aux` has their strides
    places: tuple[int, ...] = ()  # where they stand among those of the contraction
    fn: tuple[int, ...] = ()  # positions in `aux`: what each function takes, in the order of its parameters
    c_fn: tuple[int, ...] = ()
    epilogue: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


_ALONE = TaskAux()


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
    aux_args: TaskAux = _ALONE

    @property
    def workspace_bytes(self) -> int:
        return self.size * self.permutation.d.dtype.itemsize


class PairsParams(NamedTuple):
    """All that the kernel takes of a task and its schedule, as compile-time constants."""

    r: TiledDim  # D's run first
    tile: tuple[int, ...]
    r_of_x: TiledDim  # the same axes, the source's run first
    tile_of_x: tuple[int, ...]
    order: tuple[int, ...]  # dimensions of the source's tile in the order of D's
    kinds: tuple[str, str, str]  # how X, C and D are accessed: "words", "pairs" or "reals"
    form: str
    jump: int
    fold: int
    thirds: int
    negate: bool
    conjugate: bool
    of_reals: tuple[bool, bool, bool]  # whether the functions of X and C and the epilogue see real values
    fn_complex: bool  # whether the first two yield complex values
    c_fn_complex: bool
    parts: tuple[tuple[int, int], ...]  # of each result, where the epilogue yields its parts; -1: it has one
    wide: tuple[bool, ...]
    wide_index: bool


# -- the four doors, for permutations ----------------------------------------------------------------------------------


def supports(permutation: Permutation, target: Target) -> str | None:
    """As a family of permutations: those that complex numbers take part in."""
    layouts = [layout for layout in (permutation.x, permutation.c, permutation.d) if layout is not None]
    inside = permutation.fn is not None and permutation.fn.is_complex
    if not inside and not any(layout.dtype.is_complex for layout in layouts):
        return "no complex number takes part"
    if permutation.is_move:
        return "nothing is computed: complex numbers that only move go as words"
    return reason_against(Task(permutation), target)


def schedules(permutation: Permutation, target: Target) -> Candidates:
    legal = _legal(Task(permutation))
    return Candidates(tuple(legal), () if legal else ("a grid holds at most 2^31 - 1 blocks",))


def predict(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> float:
    return seconds(Task(permutation), schedule, target)


def build(permutation: Permutation, schedule: PermuteSchedule, target: Target) -> PairsLaunch:
    return built(Task(permutation), schedule, target)


# -- and for tasks -----------------------------------------------------------------------------------------------------


def reason_against(task: Task, target: Target) -> str | None:
    """Why the kernel cannot do a task, in one sentence."""
    permutation = task.permutation
    layouts = (permutation.x, permutation.c, permutation.d, *(each.layout for each in task.aux_args.aux))
    return function_reason((permutation.fn, task.c_fn, task.epilogue), layouts, target)


def function_reason(
    functions: Sequence[Pointwise | None], layouts: Sequence[Layout | None], target: Target
) -> str | None:
    """Why a kernel cannot apply functions to pairs, or take elements of tensors."""
    for function in functions:
        try:
            _ = function and function.split_complex.source
        except (UnsupportedError, FunctionError) as error:
            return str(error)
    return next(filter(None, (type_reason(layout.dtype, target) for layout in layouts if layout is not None)), None)


def best(task: Task, target: Target) -> tuple[PermuteSchedule, float]:
    """The schedule of the least predicted time, and that time in seconds."""
    ranked = [(seconds(task, schedule, target), at, schedule) for at, schedule in enumerate(_legal(task))]
    time, _, schedule = min(ranked)
    return schedule, time


def seconds(task: Task, schedule: PermuteSchedule, target: Target) -> float:
    """Predicted as `permute` predicts; D is written twice where elements become matrices, X read twice where folded,
    and three times each where it is in thirds. What stands beside is read or written once, at the rate of a copy."""
    read = 3 if task.thirds else 2 if task.fold else 1
    written = {"plain": 1, "thirds": 3}.get(task.form, 2)
    return (
        move_seconds(task.permutation, schedule, target, read, written)
        + aux_bytes(task.aux_args.aux, task.permutation.modes) / COPY_RATE
    )


def built(task: Task, schedule: PermuteSchedule, target: Target) -> PairsLaunch:
    from weft.gpu.complex.pairs_kernel import pairs_kernel

    permutation = task.permutation
    params = pairs_params(task, schedule)
    scaled = permutation.scaled or permutation.c is not None
    scale = permutation.scale if task.epilogue is None else task.epilogue.dtypes[0]
    every = entries(task.aux_args.aux)
    own = task.aux_args
    taken = (own.fn, (), own.c_fn, own.epilogue, own.outputs)
    constants = {
        "PARAMS": params,
        "FN": permutation.fn and permutation.fn.split_complex.jit,
        "C_FN": task.c_fn and task.c_fn.split_complex.jit,
        "EPILOGUE": task.epilogue and task.epilogue.split_complex.jit,
        "COMPUTE": TRITON_TYPES[real(permutation.compute)],
        "SCALE": TRITON_TYPES[real(scale)] if scaled else None,
        "RESULT": TRITON_TYPES[real(permutation.d.dtype)],
        "AUX": AuxParams(*(tuple(every[at] for at in each) for each in taken)),
    }
    layouts = [layout and as_elements(layout) for layout in (permutation.x, permutation.c, permutation.d)]
    pointers = [as_elements(each.layout) for each in own.aux if each.layout is not None]
    launch = ComplexKernelLaunch(
        pairs_kernel, layouts, constants, True, target, programs(permutation, schedule), schedule.warps, stages=1,
        pointers=pointers,
    )  # fmt: skip
    return PairsLaunch(launch, params.kinds, own)


class PairsLaunch:
    """A built task: call it with X, C, D, complex factors, and auxiliary operands where it takes some."""

    def __init__(self, launch: KernelLaunch, kinds: tuple[str, str, str], aux_args: TaskAux) -> None:
        self.launch = launch
        self._kinds = kinds
        self._aux = [
            (place, kind_of(each.layout))
            for place, each in zip(aux_args.places, aux_args.aux, strict=True)
            if each.layout is not None
        ]

    def __call__(
        self, x: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tensors = [
            None if tensor is None else seen_as(tensor, kind)
            for tensor, kind in zip((x, c, d), self._kinds, strict=True)
        ]
        pointers = tuple(seen_as(aux[place], kind) for place, kind in self._aux)  # type: ignore[arg-type]
        self.launch(tensors, alpha, beta, pointers)


class ComplexKernelLaunch(KernelLaunch):
    """A kernel that takes complex factors, each in two parts."""

    def _factors(self, alpha: Scalar, beta: Scalar) -> tuple[int, ...]:
        return tuple(self._bits(float(part)) for part in (alpha.real, alpha.imag, beta.real, beta.imag))

    def compile(self) -> Any:
        stand_ins = [_stand_in(layout) for layout in self.layouts]
        aux_args = (tuple(_stand_in(layout) for layout in self.pointers),) if self.pointers else ()
        return self.kernel.warmup(
            *stand_ins, 0, 0, 0, 0, *aux_args, grid=(1,), **self._alone, **self.constants, **self.options
        )


def pairs_params(task: Task, schedule: PermuteSchedule) -> PairsParams:
    permutation = task.permutation
    tensors = TENSORS + len(task.aux_args.aux)
    source, result, order = tile_orders(permutation, schedule, tensors)
    doubled = [mode._replace(strides=Strides(*(2 * stride for stride in mode.strides))) for mode in permutation.modes]
    wider = wide(doubled, tensors)
    # With the jump to the second row, or to the last third.
    far_x, far_d = (2 * jump >= 2**30 for jump in (max(task.fold, task.thirds), task.jump))
    functions = (permutation.fn, task.c_fn, task.epilogue)
    return PairsParams(
        r=result,
        tile=tuple(axis.tile for axis in result.axes if axis.place >= 0),
        r_of_x=source,
        tile_of_x=tuple(axis.tile for axis in source.axes if axis.place >= 0),
        order=order,
        kinds=tuple(kind_of(layout) for layout in (permutation.x, permutation.c, permutation.d)),  # type: ignore[arg-type]
        form=task.form,
        jump=task.jump,
        fold=task.fold,
        thirds=task.thirds,
        negate=task.negate,
        conjugate=permutation.conjugate,
        of_reals=tuple(each is not None and not each.dtypes[0].is_complex for each in functions),  # type: ignore[arg-type]
        fn_complex=yields_complex(permutation.fn),
        c_fn_complex=yields_complex(task.c_fn),
        parts=parts_of(task.epilogue),
        wide=(wider[0] or far_x, *wider[1:3], wider[3] or far_d, *wider[4:]),
        wide_index=wide_index(schedule.axes),
    )


def _legal(task: Task) -> list[PermuteSchedule]:
    found: dict[PermuteSchedule, None] = {}
    for axes in tilings(task.permutation):
        size = math.prod(axis.tile for axis in axes) * task.permutation.x.dtype.itemsize
        schedule = PermuteSchedule(axes, 8 if size >= 32768 else 4, family=NAME)
        if programs(task.permutation, schedule) <= MOST_PROGRAMS:
            found[schedule] = None
    return list(found)


def yields_complex(function: Pointwise | None) -> bool:
    return function is not None and isinstance(function.result, torch.dtype) and function.result.is_complex


def parts_of(function: Pointwise | None) -> tuple[tuple[int, int], ...]:
    """Where the parts of each result stand among all that the function of parts yields."""
    if function is None:
        return ()
    results = function.result if isinstance(function.result, tuple) else (function.result,)
    found, at = [], 0
    for result in results:
        found.append((at, at + 1 if result.is_complex else -1))
        at += 2 if result.is_complex else 1
    return tuple(found)
