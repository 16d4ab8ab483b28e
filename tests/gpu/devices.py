"""Which family of kernels serves which device, told by the families themselves: `docs/devices.md` is made of it.

    PYTHONPATH=src:tests python -m gpu.devices > docs/devices.md

Each family is asked for a problem that it is made for. Where it declines, its sentence says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from gpu.permutations import described as permutation
from weft.api.describe import hypothetical
from weft.gpu.blas import family as blas
from weft.gpu.common.launch import precision_reason, type_reason
from weft.gpu.complex import direct, interleaved, real_forms
from weft.gpu.composite import counting, logsumexp, ttgt
from weft.gpu.gett import family as gett
from weft.gpu.permute import family as permute
from weft.gpu.semiring import family as semiring
from weft.gpu.simt import family as simt
from weft.gpu.warp_specialized import family as warp_specialized
from weft.planner import pre_reduce
from weft.planner.schedule import Description, Target
from weft.spec import Layout
from weft.spec.contraction import Arithmetic
from weft.spec.dtypes import dtype_name
from weft_bench.cases import tccg

DEVICES = {
    "sm_80": Target("cuda", 0, "NVIDIA A100", 80, 108, 166912),
    "sm_90": Target("cuda", 0, "NVIDIA H200", 90, 132, 232448),
    "sm_100": Target("cuda", 0, "NVIDIA B200", 100, 148, 232448),
    "gfx942": Target("hip", 0, "AMD Instinct MI300X", 94, 304, 65536),
}
TYPES = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
)
HEAD = """# Devices

Tests compile the kernels of every family for each architecture below, with each Triton from 3.6 to 3.9. The kernels
have run only on an H200 and an H100. A family that does not support a device gives the reason shown here; `explain()`
of a plan gives the same.

`python -m gpu.devices` generates this page from the families, and a test compares them.
"""


class Task(NamedTuple):
    """A family, and a problem that it is made for."""

    room: Any
    says: str
    describe: Callable[[], Description]


def contraction(equation: str, extents: dict[str, int], **options: Any) -> Description:
    """A contraction of contiguous tensors, whatever the device."""
    request = hypothetical(equation, extents, backend="triton", target="sm_90", **options)
    shape = [extents[str(label)] for label in request.notation.output]
    return request.contraction(None, Layout.contiguous(shape, request.d_dtype))


def _tasks() -> dict[str, Task]:
    half, single, complex_ = torch.float16, torch.float32, torch.complex64
    square = dict.fromkeys("mnk", 1024)
    suite = {case.name: case for case in tccg()}

    def case(number: int, **options: Any) -> Callable[[], Description]:
        found = suite[f"tccg-{number:02}"]
        return partial(contraction, found.equation, found.extents, **options)

    halves = {"dtype": half, "out_dtype": single}
    truth = {"dtype": torch.bool, "algebra": "or_and"}
    gate = {"p": 2, "q": 2, "a": 2, "b": 2, "x": 64, "y": 64, "z": 256}
    found = (
        Task(blas, "a matrix product", partial(contraction, "mk,kn->mn", square, dtype=half)),
        Task(warp_specialized, "TCCG 15, float16", case(15, **halves)),
        Task(gett, "TCCG 1, float16", case(1, **halves)),
        Task(ttgt, "TCCG 20, float16", case(20, **halves)),
        Task(semiring, "a max-plus product", partial(contraction, "mk,nk->mn", square, algebra="max_plus")),
        Task(logsumexp, "a product in the algebra log", partial(contraction, "mk,nk->mn", square, algebra="log")),
        Task(counting, "a product in the algebra or_and", partial(contraction, "mk,nk->mn", square, **truth)),
        Task(simt, "a matrix times a vector", partial(contraction, "mk,k->m", {"m": 4096, "k": 4096})),
        Task(pre_reduce, "a mode that A has alone", partial(contraction, "mkx,kn->mn", square | {"x": 64})),
        Task(direct, "a gate, complex64", partial(contraction, "pqab,xaybz->xpyqz", gate, dtype=complex_)),
        Task(real_forms, "TCCG 24, complex64", case(24, dtype=complex_)),
        Task(permute, "a permutation", partial(permutation, "abc->cab", (512, 96, 64), half)),
        Task(
            interleaved, "complex64 to complex128",
            partial(permutation, "ab->ba", (512, 512), complex_, torch.complex128),
        ),
    )
    return {task.room.NAME: task for task in found}


TASKS = _tasks()


def table(head: str, rows: dict[str, list[str]]) -> str:
    """A table with a column for each device."""
    lines = [f"| {head} | {' | '.join(DEVICES)} |", "|--" + "|--" * len(DEVICES) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def families() -> str:
    """A row for each family."""
    rows = {}
    for name, task in TASKS.items():
        description = task.describe()
        rows[f"{name}: {task.says}"] = [task.room.supports(description, device) or "yes" for device in DEVICES.values()]
    return table("family", rows)


def types() -> str:
    """A row for each type of elements, and of products of float32, that some device does not serve."""
    reasons = {dtype_name(dtype): partial(type_reason, dtype) for dtype in TYPES}
    single = {name: Arithmetic(torch.float32, torch.float32, name) for name in ("ieee", "tf32", "tf32x3")}
    reasons |= {f"products in {name}": partial(precision_reason, arithmetic) for name, arithmetic in single.items()}
    rows = {name: [reason(device) or "yes" for device in DEVICES.values()] for name, reason in reasons.items()}
    return table("numbers", {name: cells for name, cells in rows.items() if set(cells) != {"yes"}})


def page() -> str:
    named = "\n".join(f"* `{name}`: {device.name}" for name, device in DEVICES.items())
    return f"{HEAD}\n{named}\n\n{families()}\n\nNumber types that some device does not support:\n\n{types()}\n"


if __name__ == "__main__":
    print(page(), end="")
