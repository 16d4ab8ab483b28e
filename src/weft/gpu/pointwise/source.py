"""How a pass goes over its tensors, and the text of its kernel.

Modes are merged, and each thread takes runs of elements along the innermost one. A kernel is made for a form: how many
modes are left, which types, and which tensors move along the innermost mode. Extents and strides are numbers that it
takes at run time. Each thread reads, computes, and writes: all that it reads it reads before it writes, so that what is
written may be what was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from weft.fn.cuda import PRELUDE, CudaWriter, conversions, loading, stored_type
from weft.fn.writer import SHORT, Held

THREADS = 128  # of a program
_WIDEST = 8  # elements of a thread
_RUN, _LOAD = 32, 16  # bytes of a thread's run of the widest tensor; of one load
_FEW = 5  # modes that are left where a kernel is made for their number;
_MANY = (8, 12, 16, 20, 24, 28, 32)  # more of them, each short, are as many as one of these
_SECTOR = 32  # bytes
_MOST = 2**31 - 1


class Step(Enum):
    """How a tensor moves along the innermost mode."""

    RUN = "run"  # element after element
    SAME = "same"  # not at all
    APART = "apart"  # with a stride


class PassTensor(NamedTuple):
    """A tensor of a pass as its part sees it; or a coordinate, whose value moves as an offset would."""

    dtype: torch.dtype
    strides: tuple[int, ...]  # elements, along each mode
    start: int = 0  # the offset of the part's first element, or its coordinate
    alignment: int = 16  # bytes
    is_index: bool = False


class PassForm(NamedTuple):
    """Form that a kernel is made for."""

    modes: int
    width: int  # elements of a thread
    dtypes: tuple[torch.dtype, ...]  # of tensors that are read, then of those that are written
    steps: tuple[Step, ...]
    indices: tuple[bool, ...]  # which of them are coordinates
    written: int  # how many are written


class Passage(NamedTuple):
    """A form, and the numbers of one layout."""

    form: PassForm
    programs: int
    numbers: tuple[int, ...]  # see `parameters`
    starts: tuple[int, ...]  # bytes from each tensor's address on


def passage(extents: Sequence[int], tensors: Sequence[PassTensor], written: int) -> Passage | str:
    """Passage over tensors; the last ones are written. Or, in one sentence, why it had better not be.

    Where few modes are left, the first tensor and all that are written must lie alike, as far as their innermost mode
    goes. Of many, which are short, threads that are neighbours take a sector of the first result and one of the first
    tensor.
    """
    if 0 in extents:
        return "there is nothing to compute"
    modes = _merged(extents, [each.strides for each in tensors], tensors[-written].strides)
    if len(modes) > _MANY[-1]:
        return f"{len(modes)} modes are left after merging, a pass takes {_MANY[-1]}"
    if len(modes) > _FEW:
        modes = _many(modes, tensors, written)
    elif _turns(modes, (0, *range(len(tensors) - written, len(tensors)))):
        return "sums and results lie in other orders"
    inner = modes[-1].strides
    width = _width(modes, tensors)
    count = math.prod(mode.extent for mode in modes) // width
    if count > _MOST:
        return f"a pass takes at most {_MOST} runs of elements"
    form = PassForm(
        len(modes), width, tuple([each.dtype for each in tensors]), tuple([_step(stride) for stride in inner]),
        tuple([each.is_index for each in tensors]), written,
    )  # fmt: skip
    return Passage(
        form, -(-count // THREADS), _numbers(form, count, modes, tensors),
        tuple([0 if each.is_index else each.start * each.dtype.itemsize for each in tensors]),
    )  # fmt: skip


class _Mode(NamedTuple):
    extent: int
    strides: tuple[int, ...]  # in each tensor


def _merged(extents: Sequence[int], strides: Sequence[Sequence[int]], order: Sequence[int]) -> list[_Mode]:
    """As few modes as describe the same, outermost in the first result first; one of extent 1 where none is longer."""
    found: list[_Mode] = []
    for at in sorted(range(len(extents)), key=lambda at: -order[at]):
        if extents[at] == 1:
            continue
        mode = _Mode(extents[at], tuple([each[at] for each in strides]))
        last = found[-1] if found else None
        fits = last is not None and last.extent * mode.extent <= _MOST
        if last is not None and fits and all(
            outer == inner * mode.extent for outer, inner in zip(last.strides, mode.strides, strict=True)
        ):
            found[-1] = mode._replace(extent=last.extent * mode.extent)
        else:
            found.append(mode)
    return found or [_Mode(1, (1,) * len(strides))]


def is_scattered(extents: Sequence[int], source: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a copy between two layouts is one of many modes, and takes torch long."""
    return 0 not in extents and _FEW < len(_merged(extents, (source, result), result)) <= _MANY[-1]


def _turns(modes: Sequence[_Mode], tensors: Sequence[int]) -> bool:
    """Whether some of these tensors lie along another mode than the innermost one."""
    for tensor in tensors:
        inner = modes[-1].strides[tensor]
        if inner and inner != min([mode.strides[tensor] for mode in modes if mode.strides[tensor]]):
            return True
    return False


def _many(modes: Sequence[_Mode], tensors: Sequence[PassTensor], written: int) -> list[_Mode]:
    """Modes in the order in which threads take them, and others of one index before them.

    Innermost are those of a sector of the first result, then those of a sector of the first tensor.
    """
    rest, inward = list(modes), []
    for tensor in (len(tensors) - written, 0):
        count = 1
        while rest and count * tensors[tensor].dtype.itemsize < _SECTOR:
            nearest = min(rest, key=lambda mode: mode.strides[tensor] or math.inf)
            if not nearest.strides[tensor]:
                break
            rest.remove(nearest)
            inward.append(nearest)
            count *= nearest.extent
    ordered = [*rest, *reversed(inward)]
    count = next(each for each in _MANY if each >= len(ordered))
    return [_Mode(1, (0,) * len(tensors))] * (count - len(ordered)) + ordered


def _step(stride: int) -> Step:
    return {0: Step.SAME, 1: Step.RUN}.get(stride, Step.APART)


def _width(modes: Sequence[_Mode], tensors: Sequence[PassTensor]) -> int:
    """The most elements that a thread takes of each tensor by loads of 16 bytes, or of all bytes that it takes."""
    *outer, inner = modes
    runs = [at for at, each in enumerate(tensors) if inner.strides[at] == 1 and not each.is_index]
    width = _WIDEST
    while width > 1:
        if inner.extent % width == 0 and all(
            width * tensors[at].dtype.itemsize <= _RUN and _aligned(tensors[at], [m.strides[at] for m in outer], width)
            for at in runs
        ):
            break
        width //= 2
    return width


def _aligned(tensor: PassTensor, strides: Sequence[int], width: int) -> bool:
    size = tensor.dtype.itemsize
    load = min(width * size, _LOAD)
    return not (tensor.alignment % load or any(each * size % load for each in (tensor.start, *strides)))


def parameters(form: PassForm) -> list[tuple[str, str]]:
    """Type and name of each number that a kernel takes: runs, extents but the outermost, then strides.

    Of a tensor there are strides along all modes but the innermost one, and along that where it is neither 0 nor 1; of
    a coordinate those of all modes, and the first one.
    """
    found = [("uint32", "count"), *(("uint32", f"n{mode}") for mode in range(form.modes - 1))]
    for at, step in enumerate(form.steps):
        if form.indices[at]:
            found.append(("int64", f"first{at}"))
        if step is Step.APART or form.indices[at]:
            found.append(("int64", f"s{at}_0"))
        found += [("int64", f"s{at}_{mode}") for mode in range(1, form.modes)]
    return found


def _numbers(form: PassForm, count: int, modes: Sequence[_Mode], tensors: Sequence[PassTensor]) -> tuple[int, ...]:
    inward = list(reversed(modes))  # mode 0 is the innermost
    named = {"count": count, "n0": inward[0].extent // form.width}
    named |= {f"n{at}": mode.extent for at, mode in enumerate(inward) if at}
    for at, tensor in enumerate(tensors):
        named |= {f"s{at}_{mode}": each.strides[at] for mode, each in enumerate(inward)}
        named[f"first{at}"] = tensor.start
    return tuple([named[name] for _, name in parameters(form)])


NAME = "pointwise"
#: Writes what is computed of an element: of the values that are read, and of factors, those that are written.
Body = Callable[[CudaWriter, list[Held], list[Held]], Sequence[Held]]

_RUN_TYPE = """
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
    return KernelText(f"{prelude}{conversions()}{_RUN_TYPE}\n{head} {text}\n", tuple(sizes))


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
