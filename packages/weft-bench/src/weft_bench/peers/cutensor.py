"""cuTENSOR as a peer: every algorithm, compiled ahead and just in time, and the kernels a user must add around it.

Contractions go to the library with the strides they have. What it cannot do itself becomes a kernel of torch's that
is part of the timed call, as it would be of a user's program:

    a mode in one operand alone, not in D      that operand summed first
    a mode along which an operand repeats      that operand made contiguous first
    a function cuTENSOR has, on A or B         fused as its operator, or a kernel of its own: the faster counts
    any other function on A, B or C            a kernel that writes the operand's values to a copy
    an epilogue                                a kernel on the result

Each such kernel reads and writes every element once, no more than in-place kernels would.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.spec.notation import Label
from weft_bench.cases import FUNCTIONS, Case
from weft_bench.peers import cutensor_library
from weft_bench.peers.cutensor_library import CutensorError, Library
from weft_bench.peers.registry import Call, Prepared, Tensors, Way, first_line
from weft_bench.peers.views import view

Step = Callable[[torch.Tensor], torch.Tensor]

MOST_KERNELS = 16  # single kernels tried by number, beyond the named algorithms
# Bytes: torch allocates at multiples of these. Tensors without memory stand for those on a GPU.
_SURE_ALIGNMENT = {"cuda": 128, "meta": 128, "cpu": 16}
_WORKSPACE_SHARE = 4  # of the free memory, one part in so many
COMPILING_WORKSPACE = 1 << 34  # bytes: kernels that are compiled ahead may count on as much

EMULATED = ("9X16BF", "3XTF32", "8XINT8")  # compute types that make products of shorter ones
_FLOAT_COMPUTE = {"tf32": ("TF32",), "tf32x3": ("3XTF32",), "ieee_bound": ("32F", "9X16BF", "3XTF32", "TF32")}
_COMPUTE = {
    torch.float16: "32F",
    torch.bfloat16: "32F",
    torch.float32: "32F",
    torch.complex64: "32F",
    torch.float64: "64F",
    torch.complex128: "64F",
}


@dataclass(frozen=True)
class _Operand:
    """A or B on its way into the library."""

    steps: tuple[Step, ...]  # kernels that run before, each on the last one's result
    operator: int
    labels: tuple[Label, ...]
    sample: torch.Tensor  # after all steps, each label one dimension
    said: tuple[str, ...] = ()

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            tensor = step(tensor)
        return tensor


class CutensorPeer:
    """Common base of cuTENSOR's two adapters: the library, opened at its first use.

    `quick` tries fewer modes.
    """

    name = "cutensor"

    def __init__(self, library: Library | None = None, quick: bool = False) -> None:
        self._library = library
        self.quick = quick
        self._absent = ""

    def opened(self) -> Library | None:
        """The library, or None where it cannot be had."""
        if self._library is None and not self._absent:
            self._load()
        return self._library

    def prepare(self, case: Any, tensors: Any) -> Prepared | str:
        if self._library is None and tensors[0].device.type != "cuda":
            return "cuTENSOR runs on NVIDIA GPUs"
        library = self.opened()
        if library is None:
            return self._absent
        try:
            return self._ways(case, tensors, library)
        except (CutensorError, UnsupportedError, RuntimeError) as error:
            return first_line(error)

    def settings(self, case: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def _load(self) -> None:
        torch.cuda.init()  # the library finds the device through torch's context
        try:
            self._library = cutensor_library.load()
        except UnsupportedError as error:
            self._absent = str(error)

    def _ways(self, case: Any, tensors: Any, library: Library) -> Prepared | str:
        raise NotImplementedError


class Cutensor(CutensorPeer):
    """Contractions. `quick` tries the modes that won on an H200: no numbered kernels, two algorithms just in time.

    Just in time it takes one algorithm of an emulated compute type."""

    def _ways(self, case: Case, tensors: Tensors, library: Library) -> Prepared | str:
        computes = compute_names(case)
        _refuse(case, tensors)
        ways: list[Way] = []
        refused: dict[str, str] = {}
        for compute, fused in itertools.product(computes, fusions(case)):
            extra = fusion_text(case, fused) + (f" {compute}" if len(computes) > 1 else "")
            try:
                self._plans(case, tensors, library, compute, fused, extra, ways, refused)
            except (CutensorError, UnsupportedError) as error:
                refused[f"every mode{extra}"] = str(error)
        if not ways:
            return "; ".join(dict.fromkeys(refused.values()))
        summed = _modes_alone(case, 0)[1] or _modes_alone(case, 1)[1]
        stored = torch.promote_types(*case.dtypes[:2]) if summed else case.dtypes[2]
        own = {way.label for way in ways if way.label.endswith(f" {computes[0]}")} if len(computes) > 1 else set()
        note = f"{library.text}, compute {', '.join(computes)}"
        return Prepared(ways, refused, stored=stored, note=note, yardstick=own)

    def _plans(
        self,
        case: Case,
        tensors: Tensors,
        library: Library,
        compute: str,
        fused: frozenset[str],
        extra: str,
        ways: list[Way],
        refused: dict[str, str],
    ) -> None:
        """Every mode's plan of one choice of sums and fused functions, added to `ways` or `refused`.

        `extra` says that choice in labels.
        """
        a, b, operation = _operation(case, tensors, library, compute, fused)
        limit = _workspace_limit(tensors.a.device)
        for name, algorithm, jit in self._modes(compute):
            label = f"{name}{'+jit' if jit else ''}{extra}"
            try:
                plan = operation.plan(algorithm, jit, limit)
            except CutensorError as error:
                refused[label] = str(error)
                continue
            about = {"workspace bytes": plan.workspace_bytes, "separate kernels": [*a.said, *b.said, *_after(case)]}
            ways.append(Way(label, _runner(case, operation, plan, a, b), about))

    def compile(self, case: Case, tensors: Tensors) -> None:
        """Plan all that is compiled just in time, for the kernels alone: `tensors` need no memory."""
        library = self.opened()
        if library is None:
            raise UnsupportedError(self._absent)
        for compute, fused in itertools.product(compute_names(case), fusions(case)):
            _, _, operation = _operation(case, tensors, library, compute, fused)
            for _, algorithm, jit in self._modes(compute):
                if jit:
                    operation.plan(algorithm, jit, COMPILING_WORKSPACE)

    def _modes(self, compute: str) -> Iterator[tuple[str, int, int]]:
        quick = ("default",) if compute in EMULATED else ("default", "gett")
        for jit in (cutensor_library.NO_JIT, cutensor_library.JIT):
            for name, algorithm in cutensor_library.ALGORITHMS.items():
                if not (self.quick and jit and name not in quick):
                    yield name, algorithm, jit
        if not self.quick:
            for kernel in range(MOST_KERNELS):
                yield f"kernel-{kernel}", kernel, cutensor_library.NO_JIT


def compute_names(case: Case) -> tuple[str, ...]:
    """The compute descriptors that sum as the case asks; `UnsupportedError` where cuTENSOR has none.

    Of "ieee_bound" all that there are, IEEE sums first: the others count where their error is not above that of these.
    """
    common = torch.promote_types(*case.dtypes[:2])
    if isinstance(case.precision, torch.dtype) and case.precision is not common:
        raise UnsupportedError(f"cuTENSOR does not round {common} operands to {case.precision}")
    if case.accumulate is torch.float64 or common not in _COMPUTE:
        raise UnsupportedError(f"cuTENSOR has no sums of {common} in {case.accumulate or 'that type'}")
    if common in (torch.float32, torch.complex64) and isinstance(case.precision, str):
        return _FLOAT_COMPUTE.get(case.precision, ("32F",))
    emulated = ("8XINT8",) if case.precision == "ieee_bound" and _COMPUTE[common] == "64F" else ()
    return (_COMPUTE[common], *emulated)


def fusions(case: Case) -> list[frozenset[str]]:
    """Which functions to fuse as operators ("a_fn", "b_fn"): all that can be, and none."""
    possible = frozenset(hook for hook in ("a_fn", "b_fn") if getattr(case, hook) in cutensor_library.OPERATORS)
    return [possible, frozenset()] if possible else [frozenset()]


def fusion_text(case: Case, fused: frozenset[str]) -> str:
    """The functions as part of a way's label; nothing where none could be fused."""
    return "" if len(fusions(case)) == 1 else " fused" if fused else " unfused"


def _refuse(case: Case, tensors: Tensors) -> None:
    a, b, d = case.dtypes
    if case.algebra != "plus_times":
        raise UnsupportedError(f"cuTENSOR has products and sums alone, not {case.algebra}")
    if not {a, b, d} <= cutensor_library.DATA_TYPES.keys():
        raise UnsupportedError(f"cuTENSOR does not know {a}, {b}, {d}")
    if torch.promote_types(a, b).is_complex != d.is_complex:
        raise UnsupportedError(f"cuTENSOR does not write {d} for operands of {a} and {b}")
    if tensors.c is not None and (tensors.c.shape, tensors.c.stride()) != (tensors.d.shape, tensors.d.stride()):
        raise UnsupportedError("cuTENSOR wants C to lie as D does")
    if 0 in case.extents.values():
        raise UnsupportedError("cuTENSOR wants extents over 0")


def _operation(
    case: Case, tensors: Tensors, library: Library, compute: str, fused: frozenset[str]
) -> tuple[_Operand, _Operand, cutensor_library.CutensorContraction]:
    """The steps on A and B before the library sees them, and the contraction as it sees it."""
    a = _operand(case, 0, tensors.a, fused)
    b = _operand(case, 1, tensors.b, fused)
    output = view(case.notation.output, tensors.d)
    numbers: dict[Label, int] = {}
    operation = library.contraction(
        described(a.labels, a.sample, alignment(a.sample), numbers), a.operator,
        described(b.labels, b.sample, alignment(b.sample), numbers), b.operator,
        described(output.labels, output.of(tensors.d), alignment(tensors.c, tensors.d), numbers), compute,
    )  # fmt: skip
    return a, b, operation


def _operand(case: Case, at: int, tensor: torch.Tensor, fused: frozenset[str]) -> _Operand:
    """Collect what must run before the library sees A (0) or B (1)."""
    hook, name = ("a_fn", case.a_fn) if at == 0 else ("b_fn", case.b_fn)
    term, letter = case.notation.inputs[at], "AB"[at]
    steps: list[tuple[Step, str]] = []
    operator = cutensor_library.OPERATORS[name] if name and hook in fused else cutensor_library.IDENTITY
    if any(stride == 0 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1):
        steps.append((lambda x: x.contiguous(), f"{letter} made contiguous"))
    if name and hook not in fused:
        steps.append((FUNCTIONS[name], f"{name} of {letter}"))
    elif tensor.is_conj() and name:
        steps.append((torch.resolve_conj, f"{letter} conjugated"))
    elif tensor.is_conj():
        operator = cutensor_library.CONJUGATE
        steps.append((torch.conj, ""))  # drops the bit alone: the library conjugates as it reads
    steps.append((lambda x: view(term, x).of(x), ""))
    labels, alone = _modes_alone(case, at)
    if alone:
        if operator not in (cutensor_library.IDENTITY, cutensor_library.CONJUGATE):
            raise UnsupportedError(f"{letter} must be summed first: its function cannot be an operator")
        steps.append((lambda x: x.sum(alone, dtype=x.dtype), f"{letter} summed along modes of its own"))
    sample = tensor
    for step, _ in steps:
        sample = step(sample)
    said = tuple(text for _, text in steps if text)
    return _Operand(tuple(step for step, _ in steps), operator, labels, sample, said)


def _modes_alone(case: Case, at: int) -> tuple[tuple[Label, ...], list[int]]:
    """Labels of an operand that stand in B (or A) or D too, and the positions of its other ones in its view."""
    term, shape = case.notation.inputs[at], case.shapes[at]
    other = zip(case.notation.inputs[1 - at], case.shapes[1 - at], strict=True)
    shared = {*case.notation.output, *(label for label, extent in other if extent != 1)}
    labels = tuple(dict.fromkeys(label for label, extent in zip(term, shape, strict=True) if extent != 1))
    kept = tuple(label for label in labels if label in shared)
    return kept, [i for i, label in enumerate(labels) if label not in shared]


def described(
    labels: Sequence[Label], seen: torch.Tensor, aligned: int, numbers: dict[Label, int]
) -> cutensor_library.Tensor:
    """A tensor for the library; `numbers` gives each label its number, the same in all tensors of one operation."""
    modes = [numbers.setdefault(label, ord("a") + len(numbers)) for label in labels]
    return cutensor_library.Tensor(modes, seen.shape, seen.stride(), seen.dtype, aligned)


def alignment(*tensors: torch.Tensor | None) -> int:
    """Bytes: the largest power of two that divides all addresses, and those of other tensors that lie as these."""
    present = [tensor for tensor in tensors if tensor is not None]
    address = _SURE_ALIGNMENT[present[0].device.type]
    for tensor in present:
        address |= tensor.data_ptr()
    return address & -address


def _after(case: Case) -> list[str]:
    c_fn = f"{case.c_fn} of C" if case.c_fn and case.add else ""
    epilogue = f"{case.epilogue} of D" if case.epilogue else ""
    return [said for said in (c_fn, epilogue) if said]


def _runner(
    case: Case, operation: cutensor_library.CutensorContraction, plan: cutensor_library.Plan, a: _Operand, b: _Operand
) -> Call:
    """One timed call: the kernels before, the contraction, the kernels after."""
    device = a.sample.device
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
    alpha = operation.scalar(case.alpha)
    beta = operation.scalar(case.beta if case.add else 0.0)
    c_fn = FUNCTIONS[case.c_fn] if case.c_fn else None
    epilogue = FUNCTIONS[case.epilogue] if case.epilogue else None

    def run(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        left, right = a.read(x), b.read(y)
        addend = d if c is None else c_fn(c) if c_fn else c
        plan.run(
            alpha, left.data_ptr(), right.data_ptr(), beta, addend.data_ptr(), d.data_ptr(),
            workspace.data_ptr(), current_stream(device),
        )  # fmt: skip
        return epilogue(d) if epilogue else d

    return run


def current_stream(device: torch.device) -> int:
    """The stream on which torch would launch, as the library takes it."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _workspace_limit(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 30
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) // _WORKSPACE_SHARE
