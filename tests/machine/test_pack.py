"""The pack of code built ahead: what is damaged, foreign or cut short counts as absent, with one sentence."""

import warnings
from pathlib import Path

import pytest

import weft
from weft.machine import pack

ENTRIES = {"first": b"\x7fELF" + b"a" * 5000, "second": b"", "third": bytes(range(256)) * 9}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_KERNELS", str(tmp_path))
    pack._opened.cache_clear()
    pack._tell.cache_clear()
    pack.write_shelf(tmp_path / "sm_90.pack", ENTRIES, {"source": "here"})
    return tmp_path / "sm_90.pack"


def test_every_entry_is_found_as_it_was_written(shelf: Path) -> None:
    assert {key: pack.find("sm_90", key) for key in ENTRIES} == ENTRIES
    assert pack.Shelf(shelf).about == {"source": "here"}


@pytest.mark.parametrize(("name", "key"), [("sm_90", "fourth"), ("sm_80", "first")])
def test_what_is_not_there_is_absent_without_a_word(shelf: Path, name: str, key: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pack.find(name, key) is None


def test_a_pack_is_turned_off_by_its_variable(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KERNELS", "0")
    assert pack.find("sm_90", "first") is None


@pytest.mark.parametrize("length", [0, 5, 40, 60, 200])
def test_a_shelf_cut_short_is_absent_with_one_sentence(shelf: Path, length: int) -> None:
    shelf.write_bytes(shelf.read_bytes()[:length])
    with pytest.warns(weft.WeftWarning, match=r"does without .*sm_90\.pack") as told:
        assert [pack.find("sm_90", "first") for _ in range(3)] == [None] * 3
    assert len(told) == 1


def test_an_entry_that_was_changed_is_absent_and_the_others_serve(shelf: Path) -> None:
    content = bytearray(shelf.read_bytes())
    content[-1] ^= 1  # of the last entry
    shelf.write_bytes(content)
    with pytest.warns(weft.WeftWarning, match="an entry is not as it was written"):
        assert pack.find("sm_90", "third") is None
    assert pack.find("sm_90", "first") == ENTRIES["first"]


def test_a_foreign_file_is_absent_with_one_sentence(shelf: Path) -> None:
    shelf.write_bytes(b"PK\x03\x04" + b"x" * 4000)
    with pytest.warns(weft.WeftWarning, match="no pack of this version"):
        assert pack.find("sm_90", "first") is None
