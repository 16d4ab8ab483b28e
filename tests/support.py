"""What several test files need: where a contraction runs, and one careful call of it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.cpu import jit
from weft.testing import Guarded, assert_close, expectation, poisoned, random_operand
from weft_bench import cases
from weft_bench.cases import Case

# Multiply-adds of a case run in Triton's interpreter, which takes milliseconds for every tile.
INTERPRETED_WORK = 1 << 11
CPU_WORK = 1 << 16
FULL_SPEED = 6e-3  # seconds of 100000 additions of Python

# Backends that run functions with operands, several results and algebras on tensors of the CPU: see the fixture `on`.
BACKENDS = ("reference", "cpu", "triton")


@dataclass(frozen=True)
class Backend:
    """A backend by its public name and the device its tensors live on."""

    name: str
    device: str

    @property
    def interpreted(self) -> bool:
        return self.name == "triton" and self.device == "cpu"

    @property
    def calls(self) -> int:
        """Of a plan until what it noted in the first ones serves."""
        return 1 if self.interpreted else 3

    def fitted(self, case: Case) -> Case:
        """`case` at a size that this backend finishes in well under a second."""
        if self.device != "cpu":
            return case
        return cases.scaled(case, INTERPRETED_WORK if self.interpreted else CPU_WORK)


def link_compiled(cache: Path, kept: Path | None = None) -> None:
    """Let a cache of weft's have the functions that lie compiled in `kept`, those of these tests if None."""
    kept = kept or jit.folder()
    kept.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # by another process, or it has its own
        (cache / "cpu").symlink_to(kept.resolve())


def slowness() -> float:
    """How many times as long as one at full speed this processor takes now, at least 1: by additions of Python."""

    def additions() -> float:
        begun, total = time.thread_time(), 0
        for number in range(100_000):
            total += number
        return time.thread_time() - begun

    return max(1.0, min(additions() for _ in range(10)) / FULL_SPEED)


def own_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A cache for one test, but for compiled functions, that other processes find as well."""
    link_compiled(cache)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(cache))


def run_poisoned(case: Case, backend: Backend, given: cases.CaseOperands, specialize: str = "now") -> torch.Tensor:
    """D of a call, written over poison as in those before; checks that nothing else was written."""
    before = [None if x is None else x.clone() for x in given]
    options: dict[str, Any] = case.options()
    for _ in range(backend.calls):
        guarded: Guarded = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3], device=backend.device)
        result = weft.contract(
            case.equation, given.a, given.b, c=given.c, out=guarded.tensor, backend=backend.name,
            specialize=specialize, **options,
        )
        assert result is guarded.tensor
        guarded.check_guards()
    for now, then in zip(given, before, strict=True):
        assert now is None or torch.equal(now, then), "an input was written"
    return guarded.tensor


def check(case: Case, backend: Backend, seed: int = 0, specialize: str = "now") -> None:
    """One call on normal values lies within its bound of the oracle.

    Triton's interpreter cuts off where it converts to bfloat16 and a GPU rounds: there it gets whole numbers.
    """
    cut_off = backend.interpreted and torch.bfloat16 in (case.dtypes[2], case.precision)
    given = cases.operands(case, device=backend.device, seed=seed, integers=cut_off)
    result = run_poisoned(case, backend, given, specialize)
    assert_close(result, *expectation(case.equation, given.a, given.b, c=given.c, **case.options()))


def integers(
    shape: tuple[int, ...], backend: Backend, seed: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Whole numbers from -3 to 3, whose sums are exact, on the device of `backend`."""
    return random_operand(shape, dtype, seed, integers=True, device=backend.device)
