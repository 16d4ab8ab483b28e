"""`warm`: the specialised kernels of equations compiled ahead, so that no call waits for a compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed

import torch

from weft.api.contract import plan
from weft.api.permute import plan_permute
from weft.errors import DTypeError, NotationError, UnsupportedError
from weft.planner import promotion
from weft.planner.planner import Choice
from weft.planner.promotion import SPECIALISED, Tier
from weft.planner.registry import BLAS
from weft.planner.schedule import Description, Target
from weft.planner.target import target_of
from weft.plans.select import ServiceRequest, select
from weft.selftest.gate import admitted
from weft.spec.arguments import reads
from weft.tune.compile_pool import Compiler
from weft.tune.progress import shown


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
