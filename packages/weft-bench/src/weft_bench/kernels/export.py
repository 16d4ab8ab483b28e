"""A contraction for programs without Python: its kernel as a cubin, a C header that launches it, and an example.

Only what one kernel computes, which takes plain pointers, is written: schedules with tensor maps, a workspace or the
vendor's library are passed over for the best one without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import torch

from weft.base.files import hand_out
from weft.base.version import __version__
from weft.errors import UnsupportedError
from weft.oracle.validate import Sample, Sampled
from weft.planner.planner import Choice
from weft.spec import Contraction, Layout
from weft.spec.dtypes import dtype_name
from weft.spec.notation import Label

if TYPE_CHECKING:
    from weft.gpu.common.cubins import Cubin
    from weft.planner.request import Request
    from weft.planner.schedule import Schedule

TRIED = 64  # candidates, best first
# Types of C that hold one element, and functions of them that read it.
_ELEMENTS = {
    torch.float16: ("unsigned short", "half"), torch.bfloat16: ("unsigned short", "brain"),
    torch.float32: ("float", ""), torch.float64: ("double", ""), torch.int8: ("signed char", ""),
    torch.int32: ("int", ""), torch.int64: ("long long", ""),
}  # fmt: skip

_HEADER = Template("""\
/* $text: $extents
 * $schedule
 * Written by weft $version, compiled by Triton $triton for compute capability $capability.
 * Every address is that of a tensor on the GPU, at a multiple of $alignment bytes:
$tensors
 */
#ifndef WEFT_CONTRACTION_H
#define WEFT_CONTRACTION_H
#include <cuda.h>

/* Loads the kernel from the file of machine code into the current context. */
static inline CUresult contraction_load(const char *file, CUfunction *kernel)
{
    CUmodule module;
    CUresult status = cuModuleLoad(&module, file);
    if (status == CUDA_SUCCESS)
        status = cuModuleGetFunction(kernel, module, "$kernel");
    if (status == CUDA_SUCCESS)
        status = cuFuncSetAttribute(*kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, $shared);
    return status;
}

/* $formula, in order on the stream. */
static inline CUresult contraction(CUfunction kernel, CUstream stream, $parameters)
{
    CUdeviceptr scratch[2] = {0, 0};
    void *arguments[] = {$addresses, &scratch[0], &scratch[1]};
    return cuLaunchKernel(kernel, $programs, 1, 1, $threads, 1, 1, $shared, stream, arguments, NULL);
}

#endif
""")
_EXAMPLE = Template("""\
/* cc example.c -lcuda && ./a.out contraction.cubin */
#include <stdio.h>
#include <stdlib.h>
#include "contraction.h"

/* Elements of D by where they are stored, what they should be, and how far from it they may be. */
static const struct { size_t at; double value, bound; } expected[] = {
$expected
};
$reading
static void check(CUresult status, const char *what)
{
    const char *name = "";
    if (status == CUDA_SUCCESS)
        return;
    cuGetErrorName(status, &name);
    fprintf(stderr, "%s: %s\\n", what, name);
    exit(1);
}

int main(int count, char **words)
{
    CUdevice device;
    CUcontext context;
    CUfunction kernel;
    size_t i;
    check(cuInit(0), "the driver");
    check(cuDeviceGet(&device, 0), "a device");
    check(cuDevicePrimaryCtxRetain(&context, device), "its context");
    check(cuCtxSetCurrent(context), "its context");
    check(contraction_load(count > 1 ? words[1] : "contraction.cubin", &kernel), "the kernel");
$made
    check(contraction(kernel, NULL, $given), "the launch");
    check(cuCtxSynchronize(), "the kernel");
    check(cuMemcpyDtoH(host_d, d, sizeof(*host_d) * count_d), "the result");
    for (i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        double error = (double)$read(host_d[expected[i].at]) - expected[i].value;
        if (!(error <= expected[i].bound && -error <= expected[i].bound)) {
            printf("D[%zu] is off by %g, more than %g\\n", expected[i].at, error, expected[i].bound);
            return 1;
        }
    }
    printf("%zu elements of D are as expected\\n", i);
    return 0;
}
""")
_READING = {
    "": "",
    "half": """
static double half(unsigned short bits)
{
    double size = (bits & 1023) + (bits & 0x7c00 ? 1024 : 0);
    int power = (bits >> 10 & 31) - 25;
    for (power += power < -24; power > 0; power--)
        size *= 2;
    for (; power < 0; power++)
        size /= 2;
    return bits & 0x8000 ? -size : size;
}
""",
    "brain": """
static double brain(unsigned short bits)
{
    union { unsigned bits; float value; } word = {(unsigned)bits << 16};
    return word.value;
}
""",
}
_MADE = Template("""\
    static const $element some_$name[] = {$some};
    size_t count_$name = $count;
    $element *host_$name = malloc(sizeof($element) * count_$name);
    CUdeviceptr $name;
    for (i = 0; i < count_$name; i++)
        host_$name[i] = some_$name[i % $few];
    check(cuMemAlloc(&$name, sizeof($element) * count_$name), "memory");
    check(cuMemcpyHtoD($name, host_$name, sizeof($element) * count_$name), "a copy");
""")
FEW = 5  # values of the example's operands, which follow each other in memory
CHECKED = 16  # elements of D


def _some(dtype: torch.dtype) -> torch.Tensor:
    """1 to 5, of floats eighths of them: all types hold them, and sums of halves stay small."""
    numbers = torch.arange(1, FEW + 1, device="cpu")
    return (numbers / 8).to(dtype) if dtype.is_floating_point else numbers.to(dtype)


@dataclass(frozen=True, slots=True)
class _Filled:
    """A tensor as the example fills it, element by element in memory: a source for the oracle."""

    layout: Layout

    def gathered(self, sample: Sample, term: Sequence[Label], mark: Label) -> tuple[torch.Tensor, tuple[Label, ...]]:
        left = [at for at, label in enumerate(term) if label not in sample.labels]
        where = torch.zeros(len(sample.coordinates), *[1] * len(left), dtype=torch.int64, device="cpu")
        for at, (extent, step) in enumerate(zip(self.layout.shape, self.layout.strides, strict=True)):
            if at in left:
                steps = torch.arange(extent, device="cpu").reshape(-1, *[1] * (len(left) - 1 - left.index(at)))
            else:
                steps = sample.along(term[at]).reshape(-1, *[1] * len(left)) * (extent != 1)
            where = where + step * steps
        values = _some(self.layout.dtype)[where % FEW]
        kept = tuple(term[at] for at in left)
        return (values, (mark, *kept)) if len(left) < len(term) else (values[0], kept)


def export(request: Request, contraction: Contraction, choice: Choice, folder: Path) -> list[Path]:
    """Write `contraction.cubin`, `contraction.h` and `example.c`; the files. Nothing is loaded: no GPU is needed.

    The example holds some elements of D against the oracle's. Raises `UnsupportedError` where no candidate is one
    kernel of plain pointers.
    """
    schedule, launch = _one_kernel(contraction, choice)
    from weft.gpu.common.cubins import Cubin
    from weft.gpu.common.inspect import compiled

    cubin = Cubin.of(compiled(launch, f"sm_{choice.target.capability}"))
    tensors = _tensors(contraction, launch)
    if cubin.sizes is None or len(cubin.sizes) != len(list(_names(tensors))):
        raise UnsupportedError(f"{schedule} takes parameters that only Triton's launcher passes")
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str | bytes] = {
        "contraction.cubin": cubin.code,
        "contraction.h": _header(contraction, choice, schedule, launch, cubin, tensors),
        "example.c": _example(request, contraction, tensors),
    }
    for name, content in files.items():
        hand_out(folder / name, content)
    return [folder / name for name in files]


def _one_kernel(contraction: Contraction, choice: Choice) -> tuple[Schedule, Any]:
    """The best schedule that is one kernel of plain pointers, and its launch."""
    from weft.gpu.common.contraction_launch import ContractionLaunch
    from weft.gpu.common.launch import KernelLaunch, collected

    with collected():
        for rank in choice.ranked[:TRIED]:
            launch = rank.build(choice.description, choice.target)
            kernels = launch.kernels if isinstance(launch, ContractionLaunch) else ()
            plain = all(isinstance(layout, Layout | None) for each in kernels for layout in each.layouts)
            if len(kernels) == 1 and plain and type(kernels[0]) is KernelLaunch:
                return rank.schedule, kernels[0]
    raise UnsupportedError("no candidate is one kernel without tensor maps and workspace: name one by schedule=")


def _tensors(contraction: Contraction, launch: Any) -> dict[str, Layout]:
    """Tensors by their names in C, in the order of the kernel's parameters: before the factors, then after them."""
    layouts = zip("abcd", launch.layouts[:4], strict=True)
    others = [each.name for each in contraction.aux if each.layout is not None]
    return {name: layout for name, layout in layouts if layout is not None} | dict(
        zip(others, launch.pointers, strict=True)
    )


def _names(tensors: dict[str, Layout]) -> Iterator[tuple[str, str]]:
    """C types and names of the parameters, alpha and beta after A, B, C and D."""
    for at, name in enumerate(tensors):
        if at == len([each for each in tensors if each in "abcd"]):
            yield from _FACTORS
        yield "CUdeviceptr", name
    if all(each in "abcd" for each in tensors):
        yield from _FACTORS


_FACTORS = (("double", "alpha"), ("double", "beta"))


def _header(
    contraction: Contraction, choice: Choice, schedule: Schedule, launch: Any, cubin: Cubin, tensors: dict[str, Layout]
) -> str:  # fmt: skip
    names = list(_names(tensors))
    number = "double" if launch._real else "long long"
    return _HEADER.substitute(
        text=contraction.text, schedule=schedule, version=__version__, triton=cubin.triton,
        extents=", ".join(f"{mode.name} = {mode.extent}" for mode in contraction.modes),
        capability=f"{choice.target.capability / 10:.1f}", kernel=cubin.name, shared=cubin.shared,
        alignment=min(layout.alignment for layout in tensors.values()), threads=cubin.threads, programs=launch.programs,
        tensors="\n".join(f" *   {name}: {_described(layout)}" for name, layout in tensors.items()),
        formula=f"D = alpha * {contraction.text}{' + beta * C' if contraction.c is not None else ''}",
        parameters=", ".join(f"{number if kind == 'double' else kind} {name}" for kind, name in names),
        addresses=", ".join(f"&{name}" for _, name in names),
    )  # fmt: skip


def _described(layout: Layout) -> str:
    shape, strides = (" x ".join(map(str, each)) or "1" for each in (layout.shape, layout.strides))
    return f"{shape} of {dtype_name(layout.dtype)}, strides {strides}"


def _example(request: Request, contraction: Contraction, tensors: dict[str, Layout]) -> str:
    made = []
    for name, layout in tensors.items():
        if layout.dtype not in _ELEMENTS:
            raise UnsupportedError(f"an example in C has no {dtype_name(layout.dtype)}")
        count = 1 + sum((extent - 1) * step for extent, step in zip(layout.shape, layout.strides, strict=True))
        some = ", ".join(map(str, _bits(_some(layout.dtype)).tolist()))
        made.append(_MADE.substitute(name=name, count=count, element=_ELEMENTS[layout.dtype][0], some=some, few=FEW))
    given = ", ".join({"alpha": "1", "beta": "0"}.get(name, name) for _, name in _names(tensors))
    read = _ELEMENTS[contraction.d.dtype][1]
    return _EXAMPLE.substitute(
        made="\n".join(made), given=given, reading=_READING[read], read=read, expected=_expected(request, tensors)
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16) if values.dtype in (torch.float16, torch.bfloat16) else values


def _expected(request: Request, tensors: dict[str, Layout]) -> str:
    """Rows of a table in C: where some elements of D are stored, what they are, and how far from it they may be."""
    others = {each.name: _Filled(each.layout) for each in request.named if each.layout is not None}
    sampled = Sampled.of(request, _Filled(request.a), _Filled(request.b), None, 1, 0, others, most=CHECKED)
    rows: list[tuple[int, float, float]] = []
    for problem in sampled.problems:
        values, bounds = problem.expected()[0]
        places = problem.sample.coordinates @ torch.tensor(tensors["d"].strides, dtype=torch.int64, device="cpu")
        rows += zip(places.tolist(), values.tolist(), bounds.tolist(), strict=True)
    return "\n".join(f"    {{{place}, {value:.17g}, {bound:.3g}}}," for place, value, bound in rows)
