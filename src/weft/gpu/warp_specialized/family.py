"""Kernels with producer and consumer warps: schedules for a description, and the launch.

Producers load tiles by TMA, along up to two runs of memory; transform warps apply functions to tiles in shared memory;
consumers multiply, add C, apply the epilogue and store D. Written in Gluon for Hopper. `docs/planning.md` names the
variants.

Gluon is experimental and changes. Of the versions of Triton that the project has tested it is known that they compile
these kernels. Any other is tried, once for each kind of device: a process of its own (`main`), which needs no GPU and
may crash, compiles one schedule of each kernel. What comes of it is kept in weft's cache.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from functools import cache
from typing import Any, TypeAlias, TypeGuard

import torch

from weft.base.interpreter import command, environment
from weft.fn import trace
from weft.gpu.common.constants import DeviceFunction, TensorMap
from weft.gpu.common.constraints import LEAST_DOT, VECTOR, is_short
from weft.gpu.common.contraction_launch import ABSENT, A, B, C, ContractionLaunch, D, reduce_launch, run_count
from weft.gpu.common.driver import driver_version
from weft.gpu.common.launch import KernelLaunch, common_reasons, pointer_layouts
from weft.gpu.common.operation import operation
from weft.gpu.common.release import is_tested, version
from weft.gpu.warp_specialized.model import predict as predict_pipelined
from weft.gpu.warp_specialized.model import ws_params
from weft.gpu.warp_specialized.schedule import NAME, WsSchedule, candidates, output_map, partials_layout
from weft.gpu.warp_specialized.stationary_model import StationarySchedule, predict_stationary, stationary_params
from weft.gpu.warp_specialized.stationary_model import candidates as stationary_candidates
from weft.gpu.warp_specialized.views import TmaSchedule, in_kernel_order, n_parts, swap_ab, tensor_map
from weft.machine.shortage import is_shortage, says_shortage
from weft.machine.store import Store
from weft.planner.keys import of_backend
from weft.planner.schedule import Candidates, Launch, Target
from weft.planner.validity import now
from weft.spec import Contraction, Layout, Role, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import FP8, MATRIX_SUMS, dtype_name, resolve

# Of A's rows; of B's columns; of their second part along n where there is one.
OperandMaps: TypeAlias = tuple[TensorMap, TensorMap, TensorMap | None]


def operand_maps(contraction: Contraction, schedule: TmaSchedule) -> OperandMaps:
    tile_m, tile_n, tile_k = schedule.tile
    a = tensor_map(contraction.a, A, schedule.a, schedule.a.spans(tile_m, schedule.k, tile_k))
    b, *rest = (
        tensor_map(contraction.b, B, schedule.b, schedule.b.spans(width, schedule.k, tile_k))
        for width in n_parts(tile_n)
    )
    return a, b, rest[0] if rest else None


_ROOM = "weft.gpu.warp_specialized"
KERNEL = DeviceFunction(f"{_ROOM}.kernel", "ws_kernel")
STATIONARY_KERNEL = DeviceFunction(f"{_ROOM}.stationary_kernel", "stationary_kernel")
MADE = (*FP8, torch.float16, torch.bfloat16, torch.int8)  # products; and those of float32 cut to TF32
RESULTS = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int8, torch.bool)

__all__ = ["NAME", "WsSchedule", "adds_in_order", "build", "predict", "schedules", "supports"]


def supports(contraction: Contraction, target: Target) -> str | None:
    """Why the family cannot compute this, in one sentence; None where it can."""
    reason = common_reasons(contraction, target) or _unfit_operands(contraction)
    if reason is not None:
        return reason
    if target.kind != "cuda" or target.capability != 90:
        return "only devices of compute capability 9.0 have these matrix instructions"
    if contraction.d.dtype not in RESULTS:
        return f"results of {dtype_name(contraction.d.dtype)} are not stored here"
    if contraction.a_args or contraction.b_args:
        return "functions of A and B that take auxiliary operands are not applied here"
    return gluon_refusal(target)


def _unfit_operands(contraction: Contraction) -> str | None:
    """Why A and B are none that TMA loads and matrix instructions take from shared memory."""
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    arithmetic, product = contraction.arithmetic, contraction.arithmetic.product
    if {contraction.a.dtype, contraction.b.dtype} != {product}:
        return f"A and B are not stored as {dtype_name(product)}, which they are multiplied in"
    if product not in MADE and arithmetic.precision != "tf32":
        return f"{arithmetic.precision} products of {dtype_name(product)} are not made here"
    if product.itemsize != 2 and not (contraction.a_fn is None and contraction.b_fn is None):
        return f"functions of A and B are not applied to {dtype_name(product)} here"
    if arithmetic.accumulate is not MATRIX_SUMS.get(product, torch.float32):
        return f"products of {dtype_name(product)} are not added in {dtype_name(arithmetic.accumulate)} there"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return f"m={contraction.m}, n={contraction.n} or k={contraction.k} is shorter than a matrix instruction"
    if contraction.a.alignment < VECTOR or contraction.b.alignment < VECTOR:
        return f"A or B does not start at a multiple of {VECTOR} bytes"
    return "a mode is empty" if 0 in (mode.extent for mode in contraction.modes) else None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    """Both operands in pipelines, or one of them stationary; either gives the rows of output tiles."""
    swapped = swap_ab(contraction)
    pipelined = candidates(contraction, target)
    stationary = stationary_candidates(contraction, target)
    found = (
        *pipelined.schedules,
        *candidates(swapped, target, swap_ab=True).schedules,
        *stationary.schedules,
        *stationary_candidates(swapped, target, swap_ab=True).schedules,
    )
    return Candidates(found, (*pipelined.excluded, *stationary.excluded))


def adds_in_order(contraction: Contraction, schedule: WsSchedule | StationarySchedule) -> bool:
    """Whether products enter a sum as those of `gett` do: along one mode of k, in one run. A stationary operand has an
    order of its own."""
    if isinstance(schedule, StationarySchedule) or contraction.arithmetic.product.itemsize == 1:
        return False
    return len(contraction.of_role(Role.K)) == 1 and run_count(contraction) == schedule.splits == 1


def predict(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> float:
    """Seconds that the cost model expects."""
    if isinstance(schedule, StationarySchedule):
        return predict_stationary(contraction, schedule, target)
    return predict_pipelined(contraction, schedule, target)


def build(contraction: Contraction, schedule: WsSchedule | StationarySchedule, target: Target) -> Launch:
    """The kernel of a schedule, and the reduction of its split-K partials, ready to launch."""
    contraction = in_kernel_order(contraction, schedule)
    maps, c, pointers = operand_maps(contraction, schedule), contraction.c, pointer_layouts(contraction)
    params: Any
    stored: TensorMap | Layout
    partials = reduce = None
    if isinstance(schedule, StationarySchedule):
        kernel, params, stored = STATIONARY_KERNEL, stationary_params(contraction, schedule, target), contraction.d
    else:
        kernel, params = KERNEL, ws_params(contraction, schedule, target)
        stored = output_map(contraction, schedule, schedule.rows, params.tma.blocks).tensor
        if params.tma.splits > 1:
            partials, c, pointers = partials_layout(contraction, schedule, params.tma.blocks), None, None
            reduce = reduce_launch(contraction, params.tma, partials, target, params.stream_k)
    constants, real = {"PARAMS": params, "OP": operation(contraction)}, contraction.arithmetic.accumulate
    multiply = KernelLaunch(
        kernel, (*maps, c, stored), constants, real.is_floating_point, target, params.tma.programs, schedule.warps, 1,
        pointers, pdl=is_short(contraction),
    )  # fmt: skip
    # Rows, columns, and what is left of these; C; D, or the partials in its place.
    rows, columns = (B, A) if schedule.swap_ab else (A, B)
    order = (rows, columns, columns if maps[2] is not None else ABSENT, C, D)
    return ContractionLaunch(multiply, order, reduce, partials)


PROBES = "probes"  # of the store
PROBE_SECONDS = 300.0  # that compiling may take: about 5 on an idle core


def gluon_refusal(target: Target) -> str | None:
    """Why kernels in Gluon are not for this Triton, in one sentence; None where nothing stands against it.

    Costs nothing with a tested version, and some seconds with another where nobody has asked before.
    """
    error = None if is_tested() else _known_error(target.capability, version())
    return error and f"Triton {version()} does not compile these kernels: {error}"


@cache
def _known_error(capability: int, version: str) -> str | None:
    """The error of compiling for devices of a compute capability: found earlier, or now."""
    key = {
        "what": "gluon",
        "capability": capability,
        "triton": version,
        "torch": torch.__version__,
        "driver": driver_version(),
        "code": of_backend("triton"),
    }
    store = Store(PROBES)
    answer = store.load(key)
    if not _is_answer(answer):
        answer = asked(capability)
        if not answer.get("passing"):
            store.save(key, answer | {"date": now()})
    error: str | None = answer["error"]
    return error


def _is_answer(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and "error" in value and isinstance(value["error"], str | None)


def asked(capability: int) -> dict[str, Any]:
    """The answer of a process of its own: `error`, None where all is good; `passing` where another time may be
    better."""
    try:
        done = subprocess.run(
            command("-m", "weft.gpu.warp_specialized.family", str(capability)),
            env=environment(CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="0"),
            capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {PROBE_SECONDS:.0f} s", "passing": True}
    except OSError as error:
        return {"error": f"no process could be started for it ({error})", "passing": True}
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(done.stdout.splitlines()[-1])
        if _is_answer(answer):
            return {"error": answer["error"], "passing": bool(answer.get("passing"))}
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        crashed = f"the compiler crashed ({signal.Signals(-done.returncode).name})"
        return {"error": crashed, "passing": says_shortage(done.stderr)}
    return {"error": f"the compiler ended with status {done.returncode} and said nothing", "passing": True}


_M, _N, _K = 8192, 80, 64  # extents for which each kernel has a schedule


def main() -> None:
    """Compile, and say in the last line what came of it."""
    error, passing = None, False
    try:
        compile_each_kernel(int(sys.argv[1]))
    except Exception as raised:
        error, passing = _first_line(raised), is_shortage(raised)
    print(json.dumps({"error": error, "passing": passing}), flush=True)


def compile_each_kernel(capability: int) -> None:
    """Compile one schedule of each kernel of the family, with functions of both operands."""
    from weft.gpu.common.inspect import compiled

    target = Target("cuda", name="a GPU that is not here", capability=capability, processors=132, shared_memory=232448)
    contraction = _contraction()
    of_kernel: dict[Any, Any] = {}
    for schedule in schedules(contraction, target).schedules:
        launch: Any = build(contraction, schedule, target)  # type: ignore[arg-type]
        of_kernel.setdefault(launch.kernels[0].kernel, launch)
    for launch in of_kernel.values():
        compiled(launch.kernels[0], f"sm_{capability}")


def _contraction() -> Contraction:
    """A contraction of one tall operand and a small one, with functions of both."""
    half = torch.float16
    a, b = Layout.contiguous([_M, _K], half), Layout.contiguous([_N, _K], half)
    d = Layout.contiguous([_M, _N], torch.float32)
    modes = class_modes(parse("ik,jk->ij"), a, b, None, d, {"i": _M, "j": _N, "k": _K})
    relu = trace(torch.relu, (half,))
    return canonical(Contraction(modes, a, b, None, d, resolve(half, half, None), a_fn=relu, b_fn=relu))


def _first_line(error: BaseException) -> str:
    """The first line of the error at the bottom: the compiler's own say where it met it."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


if __name__ == "__main__":
    main()
