"""Requests without tensors: what a call would ask, of this machine or of another, and its kernels compiled ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from typing import Any

import torch

from weft.api.contract import plan
from weft.api.permute import plan_permute
from weft.base.extensions import reader
from weft.base.figures import nearest
from weft.errors import DTypeError, NotationError, ShapeError, UnsupportedError
from weft.machine.datasheets import find_sm, plain_name
from weft.planner import promotion
from weft.planner.planner import Choice
from weft.planner.promotion import SPECIALISED, Tier
from weft.planner.registry import BLAS, need_triton
from weft.planner.request import Request
from weft.planner.schedule import Description, Target
from weft.planner.target import BACKENDS, target_of
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.plans.select import ServiceRequest, select
from weft.selftest.gate import admitted
from weft.spec import Contraction, Layout, Notation, parse
from weft.spec.arguments import reads
from weft.spec.contraction import output_shape
from weft.tune.compile_pool import Compiler
from weft.tune.progress import shown

_FARTHEST = 2**63  # bytes that no tensor has
_WIDEST = 16  # bytes of a number
# What drivers call the products of `machine.processor` that kernels are made for.
_NAMES = {
    "a100": "NVIDIA A100-SXM4-80GB", "rtx3090": "NVIDIA GeForce RTX 3090", "a6000": "NVIDIA RTX A6000",
    "rtx4090": "NVIDIA GeForce RTX 4090", "rtx4080": "NVIDIA GeForce RTX 4080", "rtx4070": "NVIDIA GeForce RTX 4070",
    "rtx6000ada": "NVIDIA RTX 6000 Ada Generation", "l40s": "NVIDIA L40S", "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200", "b200": "NVIDIA B200", "rtx5090": "NVIDIA GeForce RTX 5090",
}  # fmt: skip


def _product(short: str) -> Target:
    limits, processors = find_sm(short)
    return Target("cuda", 0, _NAMES[short], limits.capability, processors or 1, limits.shared_block)


# GPUs that plans can be made for from anywhere, by products, and one of each architecture.
PRODUCTS = {short: _product(short) for short in _NAMES}
TARGETS = {
    "sm_80": PRODUCTS["a100"], "sm_86": PRODUCTS["rtx3090"], "sm_89": PRODUCTS["rtx4090"], "sm_90": PRODUCTS["h200"],
    "sm_100": PRODUCTS["b200"], "sm_120": PRODUCTS["rtx5090"],
}  # fmt: skip


def find_target(name: str) -> Target:
    """The GPU of that architecture or product: "sm_90", "sm90", "h100", "RTX 4090"; `UnsupportedError` for others."""
    plain = plain_name(name)
    known = {**{each.replace("_", ""): target for each, target in TARGETS.items()}, **PRODUCTS}
    if plain in known:
        return known[plain]
    names = (*TARGETS, *PRODUCTS)
    try:
        limits, _ = find_sm(name)
    except UnsupportedError:
        raise UnsupportedError(f"target {name!r} is none of {', '.join(names)}{nearest(name, names)}") from None
    of = f"compute capability {limits.capability / 10}"
    raise UnsupportedError(f"target {name!r} is of {of}: weft has no kernels for it")


def hypothetical(
    equation: str,
    extents: Mapping[str, int],
    *,
    dtype: torch.dtype = torch.float32,
    operands: Mapping[str, tuple[str, torch.dtype]] | None = None,
    strides: Sequence[Mapping[str, int] | None] = (None, None),
    backend: str = "auto",
    target: str | None = None,
    schedule: str | None = None,
    **options: Any,
) -> Request:
    """The request that `weft.contract` makes of two contiguous operands of `dtype` whose labels have these extents.

    Options as for `weft.plan`; `operands` has a dtype in the place of each tensor. `strides`: of A and of B, in
    elements by label; contiguous where there are none. `target`, one of `TARGETS` or `PRODUCTS`, asks for a plan of the
    Triton backend for that GPU, wherever this runs; without it `backend` "auto" is Triton's where there is a GPU, else
    the CPU's. Raises the errors of `weft.contract`. Nothing is allocated: the operands are meta tensors.
    """
    notation = _read(equation)
    _check_labels(notation, extents)
    shapes = [[extents[str(label)] for label in term] for term in notation.inputs]
    if any(math.prod(shape) * dtype.itemsize >= _FARTHEST for shape in shapes):
        raise ShapeError(f"extents {dict(extents)}: no tensor has so many elements")
    a, b = (
        torch.empty_strided(shape, _strides(term, shape, given, name), dtype=dtype, device="meta")
        for term, shape, given, name in zip(notation.inputs, shapes, strides, "AB", strict=True)
    )
    chosen, device, planned_for = _placed(backend, target)
    aux_args = {
        name: (modes, torch.empty([extents.get(label, 1) for label in modes], dtype=kind, device="meta"))
        for name, (modes, kind) in (operands or {}).items()
    }
    # The oracle takes tensors on any device, so its request can be made of meta tensors; then it is sent elsewhere.
    asked = replace(read_options("plan", options), operands=aux_args, backend="reference")
    request = resolved(notation, equation, a, b, asked)
    return replace(request, backend=chosen, device=device, target=planned_for, schedule=schedule)


def choice_for(request: Request) -> tuple[Contraction, Choice | None]:
    """The contraction of a request with a contiguous result and no C, and the schedule chosen for it; nothing is built.

    A stored tuned schedule goes first, where this machine has one.

    The choice is None for the reference backend, which chooses nothing.
    """
    result = Layout.contiguous(output_shape(request.notation, request.extents), request.d_dtype)
    contraction = request.contraction(None, result)
    if request.backend == "reference":
        return contraction, None
    asked = ServiceRequest(
        contraction, request.backend, request.target, request.workspace_limit, request.tune, request.schedule
    )
    return contraction, select(asked)


def kernels_for(request: Request, choice: Choice | None) -> tuple[Any, ...]:
    """The kernels of a choice, for reading: nothing is loaded, so its GPU need not be here.

    Raises `UnsupportedError` where Triton is missing, or is in its interpreter, which compiles nothing, and without
    weft-tensor-bench, which reads them.
    """
    from weft.planner.target import interpreting

    if choice is None or request.target.kind == "cpu":
        return ()
    need_triton("kernels are compiled")
    if interpreting():
        raise UnsupportedError("Triton is in its interpreter, which compiles nothing: unset TRITON_INTERPRET")
    from weft.gpu.common.launch import collected

    with collected():
        launch = choice.built()[1]
        found: tuple[Any, ...] = reader("kernels.kernel", "the code of kernels").kernels_of(launch, request.target)
        return found


def _strides(
    term: Sequence[object], shape: Sequence[int], given: Mapping[str, int] | None, operand: str
) -> tuple[int, ...]:
    """Strides of one operand: those given for each of its labels, else contiguous ones."""
    if given is None:
        return Layout.contiguous(shape, torch.float32).strides
    labels = [str(label) for label in term]
    if sorted(given) != sorted(set(labels)):
        names = _listed(list(given))
        raise NotationError(f"strides of {operand} are given for {names}, its labels are {_listed(labels)}")
    strides = tuple(given[label] for label in labels)
    if sum(stride * extent for stride, extent in zip(strides, shape, strict=True)) * _WIDEST >= _FARTHEST:
        raise ShapeError(f"strides {dict(given)} of {operand}: no tensor reaches so far")
    return strides


def _read(equation: str) -> Notation:
    notation = parse(equation)
    if len(notation.inputs) != 2:
        raise NotationError(f"a contraction has two operands, '{notation}' names {len(notation.inputs)}")
    if any(Ellipsis in term for term in notation.inputs):
        raise NotationError("'...' has no extents without tensors: write its labels out")
    return notation


def _check_labels(notation: Notation, extents: Mapping[str, int]) -> None:
    """Every label has an extent, and every extent a label."""
    labels = list(dict.fromkeys(str(label) for term in notation.inputs for label in term))
    if missing := [label for label in labels if label not in extents]:
        raise ShapeError(f"no extent is given for {_listed(missing)}")
    if strangers := [label for label in extents if label not in labels]:
        raise NotationError(f"extents are given for {_listed(strangers)}, which '{notation}' does not have")
    for label, extent in extents.items():
        if extent < 0:
            raise ShapeError(f"label '{label}' has extent {extent}")


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(f"'{label}'" for label in labels)


def _placed(backend: str, target: str | None) -> tuple[str, torch.device, Target]:
    """Backend, device of the operands, and what the plan is for."""
    if backend not in BACKENDS:
        raise UnsupportedError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
    if target is not None:
        found = find_target(target)
        if backend not in ("auto", "triton"):
            raise UnsupportedError(f"the {backend} backend plans for this machine, not for {target}")
        return "triton", torch.device("cuda"), found
    if backend == "auto":
        backend = "triton" if torch.cuda.is_available() else "cpu"
    if backend == "triton" and not torch.cuda.is_available():
        raise UnsupportedError(f"there is no GPU here to plan for: name a target ({', '.join(TARGETS)})")
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "triton" else torch.device("cpu")
    return backend, device, target_of(backend, device)


# -- kernels compiled ahead --------------------------------------------------------------------------------------------


@reads("warm")
def warm(
    equations: Iterable[tuple[str, Sequence[torch.Tensor]]] = (),
    *,
    dtypes: Sequence[torch.dtype] = (),
    device: torch.device | str = "cuda",
    jobs: int | None = None,
) -> int:
    """Compile the specialised kernels of equations into weft's store on disk, several at once; returns how many.

    `equations`: each with its two operands (meta tensors serve) or the one of a permutation. `dtypes`: types that they
    are compiled for in place of the operands' own, each equation for all of them. `device`: an NVIDIA GPU. `jobs`:
    compilers at once, by default one for each core but one. A terminal shows a progress bar.

    The self-test of each kernel's family runs once for the machine, as before its first use. Default calls of these
    equations change to their kernels early, as if these had served in an earlier process. Raises `UnsupportedError` for
    another device, `DTypeError` for what is no torch dtype.
    """
    chosen = torch.device(device)
    if chosen.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        raise UnsupportedError(f"kernels are compiled ahead for NVIDIA GPUs, not for '{chosen}' here")
    for dtype in dtypes:
        if not isinstance(dtype, torch.dtype):
            raise DTypeError(f"dtypes are torch dtypes, not {dtype!r}")
    target = target_of("triton", chosen)
    wanted = choices((described(*each) for each in in_types(equations, dtypes)), target)
    with Compiler(target, "triton", jobs) as compiler, shown("compiling") as report:
        futures = [compiler.submit(choice.description, choice.best) for choice in wanted]
        for done, _ in enumerate(as_completed(futures), 1):
            report("kernels", done, len(futures))
    for choice in wanted:
        if admitted(choice):
            promotion.promote(choice, None, Tier(SPECIALISED, "it was compiled ahead"))
    return len(wanted)


def in_types(
    equations: Iterable[tuple[str, Sequence[torch.Tensor]]], dtypes: Sequence[torch.dtype]
) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Equations with operands of each type, of the same layouts; with their own where no types are given."""
    for equation, operands in equations:
        if not dtypes:
            yield equation, operands
        for dtype in dtypes:
            yield equation, [
                torch.empty_strided(each.shape, each.stride(), dtype=dtype, device="meta") for each in operands
            ]


def choices(descriptions: Iterable[Description], target: Target) -> list[Choice]:
    """The specialised choices of these that have kernels to compile, each once."""
    found = [select(ServiceRequest(description, "triton", target)) for description in dict.fromkeys(descriptions)]
    return [choice for choice in found if choice.best.family.__name__ != BLAS]


def read_equations(text: str) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Equations of a file, of float32: a line has one and the extent of each label, ``ab,bc->ac a=3,b=4,c=5``.

    Lines that are empty or begin with # say nothing. Raises `NotationError` for a line that cannot be read.
    """
    for number, line in enumerate(text.splitlines(), 1):
        equation, _, given = line.partition(" ")
        if not equation or equation.startswith("#"):
            continue
        try:
            extents = {label: int(extent) for label, extent in (pair.split("=") for pair in given.strip().split(","))}
            operands = _operands(equation, extents)
        except (ValueError, KeyError, TypeError, RuntimeError):  # the last two of extents that torch does not take
            raise NotationError(f"line {number} is no equation with the extent of every label: {line!r}") from None
        yield equation, operands


def described(equation: str, operands: Sequence[torch.Tensor]) -> Description:
    """The oracle takes tensors on any device: what it is to do is described as it is for the others."""
    if len(operands) == 1:
        return plan_permute(operands[0], equation, backend="reference").permutation
    return plan(equation, *operands, backend="reference").contraction


def _operands(equation: str, extents: dict[str, int]) -> list[torch.Tensor]:
    """Meta tensors of extents by letter."""
    terms = equation.partition("->")[0].split(",")
    return [torch.empty([extents[label] for label in term], dtype=torch.float32, device="meta") for term in terms]
