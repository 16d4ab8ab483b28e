"""Versions of Triton: those that were tested are known, others are tried once, and what fails excludes one family."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton

from gpu.warp_specialized_cases import H200, described
from weft.api.describe import choice_for, hypothetical
from weft.gpu.common.constants import whole
from weft.gpu.common.release import TESTED
from weft.gpu.warp_specialized import family as warp_specialized
from weft.machine.store import Store
from weft.plans.explain.report import explain

UNKNOWN = "3.99.1"
CONTRACTION = described("ad,bd->ab")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache, and a process that has planned nothing yet."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    forget()
    return tmp_path


@pytest.fixture
def version(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make Triton say another version."""
    return lambda name: monkeypatch.setattr(triton, "__version__", name)


def forget() -> None:
    warp_specialized._known_error.cache_clear()


def answering(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> list[int]:
    """Let the compiler's process answer so; the capabilities that it was asked for."""
    seen: list[int] = []

    def asked(capability: int) -> dict[str, Any]:
        seen.append(capability)
        return answer

    monkeypatch.setattr(warp_specialized, "asked", asked)
    return seen


@pytest.mark.parametrize("name", [*TESTED, "3.6.0", "3.9.4", "3.7.1+git1234"])
def test_of_tested_versions_nothing_is_asked(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, cache: Path, name: str
) -> None:
    version(name)
    seen = answering(monkeypatch, error="no")
    assert warp_specialized.supports(CONTRACTION, H200) is None
    assert not seen
    assert not list(cache.iterdir())


@pytest.mark.parametrize("name", ["3.5.1", "3.10.0", "3.60.0", "4.0", "main"])
@pytest.mark.parametrize("error", [None, "AttributeError: no barrier"])
def test_others_are_asked_for_once_on_a_machine(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str, error: str | None
) -> None:
    version(name)
    seen = answering(monkeypatch, error=error)
    for _ in range(3):
        forget()  # as in a new process
        reason = warp_specialized.supports(CONTRACTION, H200)
        assert (reason is None) == (error is None)
        assert reason is None or (name in reason and str(error) in reason)
    assert seen == [90]
    version(name + ".1")
    warp_specialized.supports(CONTRACTION, H200)
    assert seen == [90, 90]


def test_contractions_and_devices_that_the_family_refuses_ask_nothing(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    version(UNKNOWN)
    seen = answering(monkeypatch, error=None)
    assert warp_specialized.supports(described("ad,bd->ab", torch.float32), H200)
    assert warp_specialized.supports(CONTRACTION, replace(H200, capability=80))
    assert not seen


@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff", b'{"schema": 1, "key": {}, "value": {"error": null}}'])
def test_a_damaged_record_is_made_anew(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, cache: Path, damage: bytes
) -> None:
    version(UNKNOWN)
    seen = answering(monkeypatch, error="it does not")
    first = warp_specialized.supports(CONTRACTION, H200)
    (record,) = (cache / warp_specialized.PROBES).glob("*.json")
    record.write_bytes(damage)
    for _ in range(2):
        forget()
        assert warp_specialized.supports(CONTRACTION, H200) == first
    assert seen == [90, 90]


@pytest.mark.parametrize("value", [None, [], {}, {"error": 7}])
def test_a_record_that_says_something_else_is_made_anew(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    version(UNKNOWN)
    seen = answering(monkeypatch, error=None)
    monkeypatch.setattr(Store, "load", lambda store, key: value)
    assert warp_specialized.supports(CONTRACTION, H200) is None
    assert seen == [90]


@pytest.mark.parametrize(
    ("sent", "kept"), [(signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False), (0, False)]
)
def test_a_compiler_that_crashes_is_an_answer_and_one_that_is_killed_is_none(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, cache: Path, sent: int, kept: bool
) -> None:
    version(UNKNOWN)
    python = cache / "python"
    python.write_text(f"#!/bin/sh\n{f'kill -{sent} $$' if sent else 'echo nonsense'}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    reason = warp_specialized.supports(CONTRACTION, H200)
    assert reason is not None
    assert UNKNOWN in reason
    assert bool(list(cache.glob(f"{warp_specialized.PROBES}/*.json"))) is kept


def test_a_compiler_that_takes_too_long_is_asked_again_by_the_next_process(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    version(UNKNOWN)
    monkeypatch.setattr(warp_specialized, "PROBE_SECONDS", 0.01)
    assert "0 s" in str(warp_specialized.supports(CONTRACTION, H200))
    assert not list(cache.glob(f"{warp_specialized.PROBES}/*.json"))


def test_a_version_that_nobody_knows_compiles_the_kernels_and_is_used(
    version: Callable[[str], None], cache: Path
) -> None:
    """The real compiler, in a process of its own, for a GPU that is not here."""
    version(UNKNOWN)
    assert warp_specialized.supports(CONTRACTION, H200) is None
    assert list(cache.glob(f"{warp_specialized.PROBES}/*.json"))
    assert list(cache.glob("triton/*/*.cubin"))


def test_where_gluon_is_broken_one_sentence_says_so_and_the_rest_works(
    version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python runs `sitecustomize` first: there the compiler's process loses what kernels need."""
    lost = "from triton.experimental.gluon import language\ndel language.warp_specialize\n"
    (tmp_path / "sitecustomize.py").write_text(lost)
    monkeypatch.syspath_prepend(tmp_path)
    version(UNKNOWN)
    request = hypothetical(
        "mk,nk->mn", {"m": 512, "n": 520, "k": 528}, dtype=torch.float16, out_dtype=torch.float32, target="sm_90"
    )
    contraction, choice = choice_for(request)
    assert choice is not None
    (sentence,) = (line for line in explain(request, contraction, choice).splitlines() if UNKNOWN in line)
    assert "warp_specialized" in sentence
    assert "AttributeError" in sentence
    assert "warp_specialize" in sentence
    assert "warp_specialized" not in {rank.schedule.family for rank in choice.ranked}
    assert "gett" in {rank.schedule.family for rank in choice.ranked}


class _Inner(NamedTuple):
    tile: int
    parts: tuple[int, ...]

    @property
    def twice(self) -> int:
        return 2 * self.tile


class _Outer(NamedTuple):
    inner: _Inner
    pair: tuple[_Inner, ...]


def test_constants_in_one_piece_read_as_the_tuples_they_are_of() -> None:
    one, other = _Outer(_Inner(3, (1, 2)), (_Inner(4, ()),)), _Outer(_Inner(5, (1, 2)), (_Inner(4, ()),))
    piece = whole(one)
    assert not isinstance(piece, tuple)
    inner, pair = piece.inner.value, piece.pair.value  # each part is a constant to the compiler
    parts = tuple(each.value for each in inner.parts.value)
    assert (inner.tile.value, inner.twice.value, parts, pair[0].value.tile.value) == (3, 6, (1, 2), 4)
    assert (len(piece), piece[0].value.tile.value) == (2, 3)
    assert repr(piece) == repr(one)
    assert piece == whole(one)
    assert hash(piece) == hash(whole(one))
    assert piece != whole(other)
    assert piece.mangle() != whole(other).mangle()
    with pytest.raises(AttributeError):
        _ = piece.outer
