"""First calls in processes that have called nothing, the self-test on: what they compute, and which trials they run.

Calls are found by name, so they stand in a file of `tests/` itself.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import weft
from forked import answered
from weft.selftest import gate


@dataclass(frozen=True)
class First:
    """What a process made of its first call and of the second."""

    values: list[torch.Tensor]
    again: list[torch.Tensor]
    trials: tuple[list[str], list[str]]  # that each of the two calls ran
    faults: list[str]
    warned: list[str]


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


A, B, C = numbers(37, 5, 21, seed=1), numbers(21, 5, 44, seed=2), numbers(44, 19, seed=3)
ALIKE = list(zip(numbers(4, 18, 24, seed=4), numbers(4, 24, 40, seed=5), strict=True))  # evenly spaced
PAIRS = [(numbers(rows, 24, seed=rows), numbers(24, 40, seed=-rows)) for rows in (3, 17, 30)]


def contract() -> list[torch.Tensor]:
    return [weft.contract("mak,kan->mn", A, B, epilogue=torch.relu, backend="cpu")]


def permute() -> list[torch.Tensor]:
    return [weft.permute(A, "abc->cab", fn=torch.abs, backend="cpu")]


def network() -> list[torch.Tensor]:
    return [weft.network("mak,kan,nl->ml", A, B, C, backend="cpu")(A, B, C)]


def grouped() -> list[torch.Tensor]:
    return list(weft.grouped("mk,kn->mn", PAIRS, epilogue=torch.relu, backend="cpu"))


def grouped_alike() -> list[torch.Tensor]:
    return list(weft.grouped("mk,kn->mn", ALIKE, epilogue=torch.relu, backend="cpu"))


def expected(name: str) -> list[torch.Tensor]:
    """What a call should find, by torch in double precision."""
    a, b, c = A.double(), B.double(), C.double()
    return {
        "contract": lambda: [torch.einsum("mak,kan->mn", a, b).relu()],
        "permute": lambda: [a.permute(2, 0, 1).abs()],
        "network": lambda: [torch.einsum("mak,kan,nl->ml", a, b, c)],
        "grouped": lambda: [(x.double() @ y.double()).relu() for x, y in PAIRS],
        "grouped_alike": lambda: [(x.double() @ y.double()).relu() for x, y in ALIKE],
    }[name]()


CALLS: dict[str, Callable[[], list[torch.Tensor]]] = {
    call.__name__: call for call in (contract, permute, network, grouped, grouped_alike)
}


def first(name: str, cache: Path) -> First:
    """The call of that name in a process that finds `cache`: `contract` in an interpreter of its own, others forked."""
    environment = {"WEFT_SELFTEST": "1", "WEFT_CACHE_DIR": str(cache)}
    found = _interpreted(name, environment) if name == "contract" else answered(_watched, name, **environment)
    values, again, *rest = found
    return First([torch.from_numpy(each) for each in values], [torch.from_numpy(each) for each in again], *rest)


def _interpreted(name: str, environment: dict[str, str]) -> tuple[Any, ...]:
    command = [sys.executable, __file__, name]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **environment}, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return tuple(pickle.loads(done.stdout))


def _watched(name: str) -> tuple[Any, ...]:
    ran: list[list[str]] = []
    faults: list[str] = []
    real = gate.run

    def run(*arguments: Any) -> Any:
        found = real(*arguments)
        ran[-1] += [f"{trial.family} {trial.name}" for trial in found]
        faults.extend(verdict.reason for verdict in found.values() if verdict.reason is not None)
        return found

    gate.run = run
    results = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            ran.append([])
            results.append([each.numpy() for each in CALLS[name]()])
    texts = [str(each.message) for each in warned if issubclass(each.category, weft.WeftWarning)]
    return *results, tuple(ran), faults, texts


if __name__ == "__main__":
    pickle.dump(_watched(sys.argv[1]), sys.stdout.buffer)
