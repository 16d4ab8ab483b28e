"""`warm`: the shape-generic kernels compiled ahead, so that no first call waits for a compiler.

Planning finds the kernels: ordinary shapes and a sample of random ones, for each of which the best shape-generic
schedules are chosen. Equal structures are one kernel, so that some hundred remain for each type.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any

import torch

from weft.api.contract import plan
from weft.api.permute import plan_permute
from weft.errors import DTypeError, NotationError, UnsupportedError
from weft.planner.registry import AT_HAND, imported
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.target import target_of
from weft.selftest import gate
from weft.selftest.cases import trials_of
from weft.spec.arguments import reads
from weft.tune.compile_pool import Compiler
from weft.tune.progress import shown

LIKELY = 1.05  # times the best predicted time of a shape up to which a neighbouring shape may well take a schedule
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

SAMPLED = 600  # random contractions of each kind that are planned to see which kernels shapes ask for
# Extents of a kind, and multiply-adds at most.
_KINDS = (((2, 2, 2, 3, 4, 8, 16), 2**24), ((2, 3, 5, 8, 12, 24, 48), 2**31))

# Equations and extents, of all letters or by letter, that a random one seldom is.
_ORDINARY: tuple[tuple[str, Any], ...] = (
    ("ab,bc->ac", 20), ("xab,xbc->xac", 6), ("ab,b->a", 40), ("ab,b->a", 300), ("ab,ba->ab", 40), ("a,b->ab", 40),
    ("ab,ab->", 50), ("abc,bc->a", 9), ("abc,->ca", 9), ("ab,bc->ac", {"a": 3, "b": 9000, "c": 5}),
    ("ab,bc->ac", {"a": 30, "b": 9000, "c": 50}), ("ab,bc->ac", 1536), ("ba,bc->ac", 1536), ("ab,cb->ac", 1536),
    ("ba,cb->ac", 1536), ("abc,cd->dab", 160), ("abc,db->cad", 160), ("ab,b->a", 2048), ("ab,a->b", 2048),
    ("ab,ab->ab", 2048), ("ab,ba->ab", 2048),
    ("ab->ba", 40), ("abc->bac", 12), ("abcd->dbca", 7), ("ab->ba", 2048), ("abcd->dbca", 48),
    ("abc->bac", {"a": 512, "b": 512, "c": 16}), ("abc->cba", {"a": 65, "b": 129, "c": 255}), ("abc->bac", 128),
)  # fmt: skip


@reads("warm")
def warm(
    equations: Iterable[tuple[str, Sequence[torch.Tensor]]] = (),
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: torch.device | str = "cuda",
    jobs: int | None = None,
) -> int:
    """Compile the shape-generic kernels into weft's store on disk, several at once; returns how many.

    `dtypes`: types of operands that they are compiled for. `equations`: further equations whose kernels are compiled
    too, each with its two operands (meta tensors serve) or the one of a permutation. `device`: an NVIDIA GPU.
    `jobs`: compilers at once, by default one for each core but one. A terminal shows a progress bar.

    The self-test of these kernels runs once for the machine, as before their first use. Raises `UnsupportedError` for
    another device, `DTypeError` for what is no torch dtype.
    """
    chosen = torch.device(device)
    if chosen.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        raise UnsupportedError(f"kernels are compiled ahead for NVIDIA GPUs, not for '{chosen}' here")
    for dtype in dtypes:
        if not isinstance(dtype, torch.dtype):
            raise DTypeError(f"dtypes are torch dtypes, not {dtype!r}")
    target = target_of("triton", chosen)
    wanted = list(tasks(described(equations, dtypes), target))
    with Compiler(target, "triton", jobs) as compiler, shown("compiling") as report:
        futures = [compiler.submit(*task) for task in wanted]
        for done, _ in enumerate(as_completed(futures), 1):
            report("kernels at hand", done, len(futures))
    for name in dict.fromkeys(name for names in AT_HAND["triton"].values() for name in names):
        gate.run(trials_of(name, "triton"), "triton", target)
    return len(wanted)


def described(
    equations: Iterable[tuple[str, Sequence[torch.Tensor]]], dtypes: Sequence[torch.dtype]
) -> Iterator[Description]:
    """Contractions and permutations whose shape-generic kernels are compiled: the given ones, and ordinary ones."""
    for equation, operands in equations:
        yield _description(equation, *operands)
    for dtype in dtypes:
        for equation, given in (*_ORDINARY, *sampled()):
            yield _description(equation, *_operands(equation, given, dtype))


def sampled() -> Iterator[tuple[str, dict[str, int]]]:
    """Contractions of five to nine modes in any order, the same ones every time."""
    rng = random.Random(0)
    for sizes, most in _KINDS:
        for _ in range(SAMPLED):
            modes = rng.sample("abcdefghijkl", rng.randint(5, 9))
            roles = {mode: "mnk"[at] if at < 3 else rng.choice("mnkkb") for at, mode in enumerate(modes)}
            extents = {mode: rng.choice(sizes) for mode in modes}
            while math.prod(extents.values()) > most:
                largest = max(extents, key=lambda mode: extents[mode])
                extents[largest] //= 2
            terms = [[mode for mode in modes if roles[mode] in own] for own in ("mkb", "nkb", "mnb")]
            for term in terms:
                rng.shuffle(term)
            a, b, d = map("".join, terms)
            yield f"{a},{b}->{d}", extents


def read_equations(
    text: str, dtypes: Sequence[torch.dtype]
) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Equations of a file, each in every type: a line has one and the extent of each label, ``ab,bc->ac a=3,b=4,c=5``.

    Lines that are empty or begin with # say nothing. Raises `NotationError` for a line that cannot be read.
    """
    for number, line in enumerate(text.splitlines(), 1):
        equation, _, given = line.partition(" ")
        if not equation or equation.startswith("#"):
            continue
        try:
            extents = {label: int(extent) for label, extent in (pair.split("=") for pair in given.strip().split(","))}
            operands = [_operands(equation, extents, dtype) for dtype in dtypes]
        except (ValueError, KeyError, TypeError, RuntimeError):  # the last two of extents that torch does not take
            raise NotationError(f"line {number} is no equation with the extent of every label: {line!r}") from None
        for each in operands:
            yield equation, each


def tasks(descriptions: Iterable[Description], target: Target) -> Iterator[tuple[Description, Ranked]]:
    """The best shape-generic schedules of these, each structure of a kernel once."""
    known: set[Any] = set()
    for description in descriptions:
        kind = "contraction" if hasattr(description, "algebra") else "permutation"
        for name in AT_HAND["triton"][kind]:
            family: Any = imported(name)
            if not hasattr(family, "structures") or family.supports(description, target) is not None:
                continue
            offered = family.schedules(description, target).schedules
            seconds = [family.predict(description, schedule, target) for schedule in offered]
            for schedule, predicted in zip(offered, seconds, strict=True):
                if predicted > LIKELY * min(seconds):
                    continue
                structures = family.structures(description, schedule, target)
                if not known.issuperset(structures):
                    known.update(structures)
                    yield description, Ranked(schedule, 0.0, family)


def _operands(equation: str, given: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """Meta tensors of extents by letter, or of one extent for all."""
    terms = equation.partition("->")[0].split(",")
    shapes = [[given if isinstance(given, int) else given[label] for label in term] for term in terms]
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def _description(equation: str, *operands: torch.Tensor) -> Description:
    """The oracle takes tensors on any device: what it is to do is described as it is for the others."""
    if len(operands) == 1:
        return plan_permute(operands[0], equation, backend="reference").permutation
    return plan(equation, *operands, backend="reference").contraction


