"""The store on disk: what is saved comes back, what is damaged does not."""

import json
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from weft.errors import WeftWarning
from weft.machine.store import SCHEMA, Store, cache_directory

KEY = {"device": "a card", "processors": 132}
VALUE = {"read": 4.3e12, "names": ["x", "y"], "none": None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store("room", tmp_path)


def test_a_value_comes_back(store: Store) -> None:
    assert store.load(KEY) is None
    store.save(KEY, VALUE)
    assert store.load(KEY) == VALUE
    assert Store("room", store.directory.parent).load(dict(reversed(KEY.items()))) == VALUE
    store.save(KEY, {"read": 1.0})
    assert store.load(KEY) == {"read": 1.0}
    assert [file.suffix for file in store.directory.iterdir()] == [".json"]


@pytest.mark.parametrize("other", [{"processors": 131}, {"device": "another card"}, {"driver": "580"}])
def test_a_key_that_differs_anywhere_is_another_key(store: Store, other: dict) -> None:
    store.save(KEY, VALUE)
    assert store.load(KEY | other) is None
    assert store.load(KEY) == VALUE


def test_what_is_forgotten_is_gone(store: Store) -> None:
    store.save(KEY, VALUE)
    store.forget(KEY)
    assert store.load(KEY) is None
    store.forget(KEY)
    assert list(store.directory.iterdir()) == []


GOOD = json.dumps({"schema": SCHEMA, "key": KEY, "value": VALUE})


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        GOOD[: len(GOOD) // 2].encode(),
        b"\xff\xfe\x00",
        b"[]",
        b"7",
        b"{}",
        b"[" * 100_000,
        GOOD.replace("132", "131").encode(),  # another key's file under this one's name
        GOOD.replace("132", "NaN").encode(),
        json.dumps({"schema": SCHEMA + 1, "key": KEY, "value": VALUE}).encode(),
    ],
)
def test_a_damaged_file_is_a_miss_and_set_aside(store: Store, damaged: bytes) -> None:
    """Guards against corrupt and truncated cache files: triton#11512, pytorch#172144, DeepGEMM#301."""
    store.save(KEY, VALUE)
    file = store.path(KEY)
    file.write_bytes(damaged)
    assert store.load(KEY) is None
    assert not file.exists()
    assert file.with_suffix(".broken").read_bytes() == damaged
    store.save(KEY, VALUE)
    assert store.load(KEY) == VALUE


def test_a_failed_write_leaves_the_old_value_and_no_litter(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(KEY, VALUE)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        store.save(KEY, {"read": 1.0})
    assert store.load(KEY) == VALUE
    assert len(list(store.directory.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store("room", tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="cannot write its cache"):
        store.save(KEY, VALUE)
    assert store.load(KEY) is None


def test_one_warning_for_the_whole_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names the cache, what is kept instead, and the line of the program, not one of weft's."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for room in ("schedules", "selftest", "tuning"):
            assert not Store(room).save(KEY, VALUE)
    assert [(each.category, each.filename) for each in told] == [(WeftWarning, __file__)]
    assert str(told[0].message) == (
        f"weft cannot write its cache in {tmp_path / 'file'} (Not a directory): kernels are kept in memory, for this "
        "process alone. WEFT_CACHE_DIR names another folder"
    )


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user that its system does not know."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WEFT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    store = Store("room")
    assert store.load(KEY) is None
    with pytest.warns(WeftWarning, match="cannot write its cache"):
        assert not store.save(KEY, VALUE)


def test_values_that_json_lacks_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.save(KEY, {"rate": float("nan")})
    assert not store.path(KEY).exists()


def _write_often(root: str, value: int) -> None:
    for _ in range(100):
        Store("room", Path(root)).save(KEY, [value] * 2000)


def test_processes_that_write_at_once_leave_one_whole_value(store: Store) -> None:
    """Guards against raced cache files: triton#11512, DeepGEMM#301."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(str(store.directory.parent), value)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        value = store.load(KEY)
        assert value is None or value in ([1] * 2000, [2] * 2000)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert store.load(KEY) in ([1] * 2000, [2] * 2000)
    assert [file.suffix for file in store.directory.iterdir()] == [".json"]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache_directory() == tmp_path / "chosen"
    assert Store("room").directory == tmp_path / "chosen" / "room"
    monkeypatch.delenv("WEFT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "weft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "weft"
