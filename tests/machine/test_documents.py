"""Stored documents with any field of another type, missing, huge or negative: a miss, and never a raw error."""

from __future__ import annotations

import base64
import json
import operator
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tune_problems import choice_of, described
from weft.api.describe import TARGETS
from weft.cpu.machine_code import CodeStore, MachineCode
from weft.gpu.common import cubins
from weft.gpu.common.cubins import Cubin
from weft.gpu.common.driver import MapForm
from weft.gpu.warp_specialized import family as warp_specialized
from weft.machine import ceilings, folder, pack, store
from weft.machine.store import Store
from weft.planner import coefficients, promotion, tuned, verdicts
from weft.planner.promotion import SPECIALISED, Tier
from weft.planner.target import target_of
from weft.planner.tuned import TunedSchedule
from weft.tune import cache as cache_files
from weft.tune.candidates import Candidate, Journal

H100 = TARGETS["sm_90"]
CHANGED: tuple[Any, ...] = (
    None, True, -1, 0, -2.5, 1e308, 2**63, 10**400, "", "x", "../../x", "x" * 5000, "\ud800", [], {}, [None], {"a": 1},
    [[[]]], float("inf"), float("nan"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(folder, "_told", set())
    yield tmp_path
    verdicts.forget()


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """A value with each of its parts replaced or left out, in turn."""

    def at(path: tuple[Any, ...], part: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        yield path, part
        for key, each in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
            yield from at((*path, key), each)

    for path, _ in list(at((), value)):
        for changed in CHANGED if path else CHANGED[:-2]:
            yield f"{path} {str(changed)[:20]}", _with(value, path, partial(_set, changed))
        if path:
            yield f"{path} gone", _with(value, path, operator.delitem)
    yield "one more", value | {"stranger": 1} if isinstance(value, dict) else value


def _set(changed: Any, holder: Any, key: Any) -> None:
    holder[key] = changed


def _with(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    holder = root = [deepcopy(value)]
    for key in (0, *path)[:-1]:
        holder = holder[key]
    change(holder, (0, *path)[-1])
    return root[0]


def written(file: Path, key: Any, value: Any) -> None:
    """As the store writes it, whatever the value."""
    text = json.dumps({"schema": store.SCHEMA, "key": key, "value": value})
    file.write_text(store._with_digest(text.removeprefix("{")))


def schedules() -> Callable[[], bool]:
    choice = choice_of(described("ik,kj->ij", (40, 30), (30, 50), epilogue=torch.tanh))
    best = choice.best.schedule
    tuned.remember(choice, None, TunedSchedule(best, 1e-6, choice.ranked[-1].schedule, 2e-6, 3))

    def read() -> bool:
        found = tuned.recalled(choice, None)
        assert found is None or found.best in choice.ranked
        return found is not None

    return read


def promotions() -> Callable[[], bool]:
    description = described("ik,kj->ij", (40, 30), (30, 50), epilogue=torch.tanh)
    choice = choice_of(description)
    promotion.promote(choice, None, Tier(SPECIALISED, "", switch_at=3))

    def read() -> bool:
        found = promotion.kept(description, "cpu", choice.target, None)
        assert found is None or found.choice is None or found.choice.best in choice.ranked
        return found is not None and found.choice is not None

    return read


def tuning() -> Callable[[], bool]:
    choice = choice_of(described("ij,j->i", (40, 30), (30,)))

    def candidates() -> list[Candidate]:
        return [Candidate(rank) for rank in choice.ranked[:3]]

    first = candidates()
    first[0].verdict, first[0].seconds = "measured", 1e-6
    first[1].verdict, first[1].reason = "refused", "it is too large"
    Journal(choice, None).begin(first, first[2])

    def read() -> bool:
        found = candidates()
        Journal(choice, None).restore(found)
        for each in found:
            assert each.seconds is None or each.seconds >= 0
            each.document()
        return [each.verdict for each in found] == ["measured", "refused", "refused"]

    return read


def kept_ceilings() -> Callable[[], bool]:
    stamp = ceilings.device_stamp("cpu")
    found = ceilings.Ceilings(
        "cpu", "measured", 1e9, 1e9, 1e9, {"float32": 1e12}, 1e-6, None, "2026-01-01", stamp, 0.01, "read", 0.0
    )
    key = {"what": "ceilings", "format": ceilings._FORMAT, **stamp, "machine": ceilings.machine_digest()}
    Store("ceilings").save(key, asdict(found))

    def read() -> bool:
        ceilings._known.clear()
        with suppress(weft.WeftError):
            known = ceilings.ceilings("cpu", may_measure=False)
            assert known.rate("float32") is None or known.rate("float32") > 0
            assert max(known.best_read, known.best_write, known.spread) < 1e308
            return True
        return False

    return read


def kept_coefficients() -> Callable[[], bool]:
    target = replace(H100, name="a card of our own")
    coefficients.keep(target, replace(coefficients.Coefficients(), families={"gett": 1.2}))

    def read() -> bool:
        coefficients._known.cache_clear()
        found = coefficients.coefficients(target)
        assert found.overlap(2) + found.launch > 0
        assert all(each > 0 for each in found.families.values())
        return found.families == {"gett": 1.2}

    return read


def selftest() -> Callable[[], bool]:
    target, family = target_of("cpu", torch.device("cpu")), "weft.cpu.stream.family"
    verdicts.record(family, "cpu", target, {
        "one": verdicts.Verdict("it differs", "2026-01-01", 0.5), "two": verdicts.Verdict(None, "2026-01-01", 1)
    })  # fmt: skip

    def read() -> bool:
        verdicts._found.clear()
        for each in verdicts.known(family, "cpu", target).values():
            assert f"{each.seconds:.2f} {each.date}"
        verdicts.failures("cpu", target, (family,))
        return len(verdicts.known(family, "cpu", target)) == 2

    return read


def probes() -> Callable[[], bool]:
    warp_specialized._known_error.cache_clear()
    answers = [{"error": "no such thing"}, {"error": None, "passing": True}]
    warp_specialized.asked, asked = lambda capability: answers[-1], warp_specialized.asked
    try:
        answers.pop()
        assert warp_specialized._known_error(90, "9.9") == "no such thing"
    finally:
        warp_specialized.asked = asked

    def read() -> bool:
        warp_specialized._known_error.cache_clear()
        warp_specialized.asked = lambda capability: {"error": "asked again", "passing": True}
        try:
            error = warp_specialized._known_error(90, "9.9")
            assert error is None or isinstance(error, str)
            return error == "no such thing"
        finally:
            warp_specialized.asked = asked

    return read


CUBIN = Cubin(b"\x7fELF", "kernel", 128, 1, 1024, 0, False, (8, 8, 4), (MapForm(6, 2, 3, (64, 64)),), "3.5")


def kept_cubins() -> Callable[[], bool]:
    cubins.keep("a key", 90, CUBIN)

    def read() -> bool:
        return cubins.found("a key", 90) == CUBIN

    return read


def code() -> Callable[[], bool]:
    kept = CodeStore(folder.cache_directory() / "cpu")
    kept.save("a source", MachineCode("entry", ("memcpy",), b"an object"))

    def read() -> bool:
        found = kept.load("a source")
        assert found is None or (isinstance(found.symbol, str) and all(isinstance(name, str) for name in found.needs))
        return found is not None

    return read


def handlers() -> Callable[[], bool]:
    custom_call = pytest.importorskip("weft.jax.custom_call")
    library = base64.b64encode(zlib.compress(b"a library")).decode()
    Store("jax").save(custom_call._library_key(), {"library": library})

    def read() -> bool:
        assert custom_call._kept_library() in (None, b"a library", b"")
        return custom_call._kept_library() == b"a library"

    return read


KINDS: dict[str, Callable[[], Callable[[], bool]]] = {
    "schedules": schedules, "promotions": promotions, "tuning": tuning, "ceilings": kept_ceilings, "jax": handlers,
    "coefficients": kept_coefficients, "selftest": selftest, "probes": probes, "cubins": kept_cubins, "cpu": code,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_any_field_may_be_anything(cache: Path, kind: str) -> None:
    read = KINDS[kind]()
    [file] = (cache / kind).rglob("*.json")
    key, value = store.understood(file.read_bytes())
    assert read()
    for what, changed in changes(value):
        written(file, key, changed)
        try:
            read()
            for entry in cache_files.entries():
                assert isinstance(entry.what, str)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        file.with_suffix(".broken").unlink(missing_ok=True)


@pytest.mark.parametrize("at", range(10))
def test_any_fact_of_a_cubin_may_be_anything(at: int) -> None:
    head, _, elf = CUBIN.to_bytes().partition(b"\n")
    for what, changed in list(changes(json.loads(head)))[at::10]:
        with suppress(ValueError):
            found = Cubin.from_bytes(json.dumps(changed).encode() + b"\n" + elf)
            assert (found.name, found.triton) == (str(found.name), str(found.triton)), what
            numbers = [found.threads, found.barriers, found.shared, found.tensor_memory, *(found.sizes or ())]
            assert all(isinstance(each, int) and 0 <= each < 2**63 for each in numbers), what


def test_any_entry_of_a_shelf_may_be_anything(tmp_path: Path) -> None:
    file = tmp_path / "sm_90.pack"
    pack.write_shelf(file, {"key": b"code"}, {"triton": "3.5", "code": {"module": ["digest", 1]}})
    head = file.read_bytes()
    size = int.from_bytes(head[pack._HEAD - 8 : pack._HEAD], "little")
    index, rest = json.loads(head[pack._HEAD : pack._HEAD + size]), head[pack._HEAD + size :]
    for what, changed in changes(index):
        text = json.dumps(changed).encode()
        digest = pack.hashlib.sha256(text).digest()
        file.write_bytes(pack._MAGIC + digest + len(text).to_bytes(8, "little") + text + rest)
        pack._tell.cache_clear()
        pack._opened.cache_clear()
        with pytest.MonkeyPatch.context() as changing:
            changing.setenv("WEFT_KERNELS", str(tmp_path))
            changing.setattr(pack, "warn", lambda message: None)
            try:
                assert pack.find("sm_90", "key") in (None, b"code")
            except Exception as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def test_any_field_of_an_exported_cache_may_be_anything(cache: Path) -> None:
    for kind in ("promotions", "selftest", "tuning"):
        KINDS[kind]()
    document = weft.cache.export()
    document["entries"] = [
        {**entry, "value": {"a": 1}, "key": {"what": entry["key"]["what"]}} for entry in document["entries"]
    ]
    for what, changed in changes(document):
        try:
            assert weft.cache.import_(changed) <= 3
        except weft.WeftError:
            pass
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert weft.cache.info()["files"]


@pytest.mark.parametrize("door", ["promotion", "tuned"])
def test_a_document_imports_no_module(cache: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """`weft.cache.import_` takes promotions of others, whose families are names."""
    (cache / "of_a_stranger.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(cache))
    read = {"promotion": promotions, "tuned": schedules}[door]()
    document = weft.cache.export()
    for entry in document["entries"]:
        entry["value"] |= {"family": "of_a_stranger"}
    weft.cache.clear()
    assert weft.cache.import_(document) == 1
    read()
    assert "of_a_stranger" not in sys.modules
