"""Nonsense in every argument of every public name ends in an error of weft, or in Python's own check of signatures."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from inspect import isclass, isfunction, ismodule
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import weft
from nonsense import Call, Outcome, outcome, variants
from nonsense_calls import CALLS
from weft.base import memory

FEW, MANY = 16, 270  # versions of each call
MEMORY = 1 << 30  # bytes
#: What has no arguments of its own, or only such as nobody passes.
NO_CALLS = {
    "BoundCall", "CascadePlan", "Equation", "Function", "GroupedPlan", "Network", "Plan", "PermutePlan", "Report",
    "blocks.ChargedSplit", "blocks.Key", "blocks.Sector", "distributed.DistributedPlan", "distributed.Event",
    "distributed.MeasuredCalls", "distributed.OutOfCorePlan", "distributed.Ranks", "distributed.Timeline",
    "tn.DmrgResult", "tn.PepsNorm", "tn.Split", "tn.TebdResult", "tn.TwoSite",
    "hooks.pyscf",  # it needs PySCF: see tests/hooks/test_pyscf.py
}  # fmt: skip
MODULES = ("blocks", "cache", "distributed", "hooks", "nn", "reference", "testing", "tn")


class Slow(Exception):
    """A call took too long."""


def ring(_: int, __: FrameType | None) -> None:
    raise Slow("it takes too long")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files that nonsense names are made elsewhere, what hangs is ended, and no machine has memory for large layers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "whole", lambda device: MEMORY)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def spoiled(call: Call, count: int, seed: int) -> list[str]:
    """The internal errors of so many versions of a call, each with its number."""
    found = []
    for number, (places, keywords) in enumerate(variants(call, count, seed)):
        signal.alarm(2 if call.lasts else 20)
        ended: Outcome = outcome(call, places, keywords)
        signal.alarm(0)
        if ended.kind == "internal" and not (call.lasts and isinstance(ended.error, Slow)):
            found.append(f"version {number} of seed {seed}: {ended.where}")
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_few(call: Call) -> None:
    assert not spoiled(call, FEW, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_many(call: Call) -> None:
    """Some 30,000 calls; `NONSENSE_SEED` draws others."""
    assert not spoiled(call, MANY, int(os.environ.get("NONSENSE_SEED", "2")))


def test_right_calls_are_right() -> None:
    """What is spoiled would else be refused for another reason."""
    refused = {"warm", "energy", "distributed.find_ranks", "distributed.measure_link"}  # of GPUs and ranks
    for call in CALLS:
        usual = {name: call.keywords[name]() for name in call.usual}
        ended = outcome(call, tuple(make() for make in call.places), usual)
        assert ended.kind == ("refused" if call.name in refused else "result"), (call.name, ended.error)


def public() -> Iterator[str]:
    """Every function and class that users name."""
    for name in weft.__all__:
        found: Any = getattr(weft, name)
        if isfunction(found) or (isclass(found) and not issubclass(found, Exception | Warning)):
            yield name
    for name in MODULES:
        module = getattr(weft, name)
        assert ismodule(module)
        for each in getattr(module, "__all__", [one for one in vars(module) if not one.startswith("_")]):
            found = getattr(module, each)
            if (isfunction(found) or isclass(found)) and found.__module__.startswith("weft"):
                yield f"{name}.{each}"


def test_every_public_name_is_among_them() -> None:
    named = {call.name.split(",")[0].split("()")[0].split(" of ")[0] for call in CALLS}
    named |= {name.rpartition(".")[0] for name in named}
    inner = {"testing.Guarded", "testing.Algebra", "testing.cast", "cache.Room", "cache.Info"}
    missing = [name for name in public() if name not in named | NO_CALLS | inner and not _is_imported(name)]
    assert not missing


def _is_imported(name: str) -> bool:
    """Whether a module only uses a name, which another room has."""
    room, _, each = name.rpartition(".")
    module = getattr(weft, room, None) if room else None
    return module is not None and not hasattr(module, "__all__") and getattr(module, each).__module__ != module.__name__


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: weft.tn.split([[1.0]]), "matrix is list"),
        (lambda: weft.tn.split(), "tn.split: missing a required argument: 'matrix'"),
        (lambda: weft.tn.MPS.random(4, "2", 3), "extent is a whole number, not '2'"),
        (lambda: weft.testing.poisoned((2, 3), "float33"), "names no number type"),
        (lambda: weft.nn.Linear(3, 4, bias="yes"), "bias is True or False, not 'yes'"),
        (lambda: weft.nn.Linear(3, -4), "numbers of features are not negative"),
        (lambda: weft.cache.export(3), "file is a path, not 3"),
        (lambda: weft.error_bound("mk,kn->mn", 3, None), "b is NoneType"),
        (lambda: weft.reference.contract("k,k->", [1.0], [2.0], epilogue=3), "epilogue is a function, not 3"),
        (lambda: weft.blocks.BlockTensor({(0,): [1.0]})[3], "block"),
        (lambda: weft.profile(3), "not of int"),
        (lambda: weft.matmul([[1.0]], [[1.0]], promote="yes"), "promote is True or False"),
        (lambda: weft.einsum("ij->ji", object()), "operand 0 is object"),
    ],
)
def test_messages_name_the_argument(call: Any, said: str) -> None:
    with pytest.raises(weft.WeftError, match="(?s).*" + said.replace("(", r"\(")):
        call()
