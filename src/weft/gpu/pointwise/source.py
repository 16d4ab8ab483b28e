"""The text of a kernel: each thread reads its runs of elements, computes, and writes.

All that a thread reads it reads before it writes, so that what is written may be what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from weft.fn.cuda import PRELUDE, CudaWriter, conversions, loading, stored_type
from weft.fn.writer import SHORT, Held
from weft.gpu.pointwise.form import THREADS, PassForm, Step, parameters

NAME = "pointwise"
#: Writes what is computed of an element: of the values that are read, and of factors, those that are written.
Body = Callable[[CudaWriter, list[Held], list[Held]], Sequence[Held]]

_RUN = """
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Run { T at[N]; };
"""


class KernelText(NamedTuple):
    """The source of a kernel, and the bytes of its parameters."""

    source: str
    sizes: tuple[int, ...]


def kernel_text(form: PassForm, factors: Sequence[torch.dtype], body: Body, prelude: str = PRELUDE) -> KernelText:
    """A kernel of a form; its parameters are pointers, factors of these types, and the form's numbers.

    Raises `UnsupportedError` for what has no code in CUDA C++.
    """
    tensors = range(len(form.dtypes))
    pointers = [at for at in tensors if not form.indices[at]]
    read = [at for at in tensors if at < len(form.dtypes) - form.written]
    given = [f"{'const ' * (at in read)}{stored_type(form.dtypes[at])}* x{at}" for at in pointers]
    given += [f"{_factor_type(dtype)} factor{at}" for at, dtype in enumerate(factors)]
    numbers = parameters(form)
    given += [f"{kind} {name}" for kind, name in numbers]
    lines = [*_coordinates(form), *(line for at in read for line in _reads(form, at))]
    lines += [f"Run<{stored_type(form.dtypes[at])}, {form.width}> y{at};" for at in tensors if at not in read]
    lines += [
        "#pragma unroll", f"for (int32 e = 0; e < {form.width}; ++e) {{",
        *(f"  {line}" for line in _element(form, read, factors, body)), "}",
        *(line for at in tensors if at not in read for line in _writes(form, at)),
    ]  # fmt: skip
    head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {NAME}({", ".join(given)}, void*, void*)'
    text = "\n".join(["{", *(f"  {line}" for line in lines), "}"])
    sizes = [8] * (len(pointers) + len(factors)) + [4 if kind == "uint32" else 8 for kind, _ in numbers]
    return KernelText(f"{prelude}{conversions()}{_RUN}\n{head} {text}\n", tuple(sizes))


def _factor_type(dtype: torch.dtype) -> str:
    return "double" if dtype.is_floating_point else "int64"


def _coordinates(form: PassForm) -> list[str]:
    """The coordinates of a thread's first element: i0 along the innermost mode, i1 along the next, ..."""
    lines = [f"uint32 rest = blockIdx.x * {THREADS}u + threadIdx.x;", "if (rest >= count) return;"]
    for mode in range(form.modes - 1):
        lines.append(f"const uint32 i{mode} = rest % n{mode}{f' * {form.width}u' * (mode == 0)};")
        lines.append(f"rest /= n{mode};")
    last = form.modes - 1
    return [*lines, f"const uint32 i{last} = rest{f' * {form.width}u' * (last == 0)};"]


def _offset(form: PassForm, at: int) -> str:
    """The offset of a thread's first element."""
    terms = [f"int64(i{mode}) * s{at}_{mode}" for mode in range(1, form.modes)]
    if form.steps[at] is Step.RUN and not form.indices[at]:
        terms.append("i0")
    elif form.steps[at] is not Step.SAME or form.indices[at]:
        terms.append(f"int64(i0) * s{at}_0")
    return " + ".join(terms) or "0"


def _reads(form: PassForm, at: int) -> list[str]:
    if form.indices[at]:
        return [f"const int64 r{at} = first{at} + {_offset(form, at)};"]
    kind, width = stored_type(form.dtypes[at]), form.width
    lines = [f"const {kind}* const p{at} = x{at} + ({_offset(form, at)});"]
    if form.steps[at] is Step.SAME:
        return [*lines, f"const {kind} r{at} = *p{at};"]
    run = f"Run<{kind}, {width}>"
    if form.steps[at] is Step.RUN:
        return [*lines, f"const {run} r{at} = *reinterpret_cast<const {run}*>(p{at});"]
    return [
        *lines, f"{run} r{at};", "#pragma unroll",
        f"for (int32 e = 0; e < {width}; ++e) r{at}.at[e] = p{at}[int64(e) * s{at}_0];",
    ]  # fmt: skip


def _element(form: PassForm, read: Sequence[int], factors: Sequence[torch.dtype], body: Body) -> list[str]:
    w = CudaWriter()
    values = []
    for at in read:
        dtype = form.dtypes[at]
        if form.indices[at]:
            values.append(Held(w.typed(f"r{at} + int64(e) * s{at}_0", dtype), dtype))
        else:
            stored = f"r{at}" if form.steps[at] is Step.SAME else f"r{at}.at[e]"
            held = torch.float32 if dtype in SHORT else dtype
            values.append(Held(w.typed(f"{loading(dtype)}({stored})", held), dtype))
    given = [Held(w.typed(f"factor{at}", dtype), dtype) for at, dtype in enumerate(factors)]
    for at, value in enumerate(body(w, values, given), len(read)):
        w.line(f"y{at}.at[e] = {w.stored(value.name, value.dtype, form.dtypes[at])};")
    return w.lines


def _writes(form: PassForm, at: int) -> list[str]:
    kind, width = stored_type(form.dtypes[at]), form.width
    place = f"{kind}* const p{at} = x{at} + ({_offset(form, at)});"
    if form.steps[at] is Step.RUN:
        return [place, f"*reinterpret_cast<Run<{kind}, {width}>*>(p{at}) = y{at};"]
    return [
        place, "#pragma unroll",
        f"for (int32 e = 0; e < {width}; ++e) p{at}[int64(e) * s{at}_0] = y{at}.at[e];",
    ]  # fmt: skip
