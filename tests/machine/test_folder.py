"""Folders of the cache: nobody else's link or folder leads weft anywhere, and root's cache serves all users."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.errors import WeftWarning
from weft.machine import folder as folders
from weft.machine.folder import Folder
from weft.machine.store import Store

OTHER = 12345  # another user
KEY = {"a": 1}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache, and beside it a folder that a link may lead to."""
    root = tmp_path / "shared" / "cache"
    monkeypatch.setenv("WEFT_CACHE_DIR", str(root))
    monkeypatch.setattr(folders, "_told", set())
    (tmp_path / "target" / "room").mkdir(parents=True)
    for each in (tmp_path / "target", tmp_path / "target" / "room"):
        each.chmod(0o750)
    return root


def given(place: Path) -> None:
    os.chown(place, OTHER, -1, follow_symlinks=False)


def linked(link: Path, target: Path, *, owner: int = OTHER) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    os.chown(link, owner, -1, follow_symlinks=False)


def made(folder: Path) -> None:
    folder.mkdir(parents=True)
    given(folder)


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a room is another's link": lambda cache, target: linked(cache / "room", target / "room"),
    "the cache is another's link": lambda cache, target: linked(cache, target),
    "a folder above is another's link": lambda cache, target: linked(cache.parent, target),
    "another's relative link": lambda cache, target: linked(cache / "room", Path("../../target/room")),
    "a link of root's to another's link": lambda cache, target: (
        linked(cache.parent / "second", target), linked(cache, cache.parent / "second", owner=0)
    ),
    "a room is another's folder": lambda cache, target: made(cache / "room"),
    "the cache is another's folder": lambda cache, target: (made(cache), (cache / "room").mkdir()),
    "a folder above is another's": lambda cache, target: made(cache.parent),
    "the cache is another's folder, with a link of root's": lambda cache, target: (
        made(cache), linked(cache / "room", target / "room", owner=0)
    ),
    "a link of root's in a folder that all may write": lambda cache, target: (
        linked(cache / "room", target / "room", owner=0), cache.chmod(0o777)
    ),
}  # fmt: skip


@as_root
@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_is_done_where_another_user_leads(cache: Path, tmp_path: Path, planted: str) -> None:
    target = tmp_path / "target"
    PLANTED[planted](cache, target)
    before = {each: each.lstat().st_mode for each in tmp_path.rglob("*")}
    with pytest.warns(WeftWarning, match=f"does not use its cache in .*({OTHER}|others may write)"):
        assert not Store("room").save(KEY, "value")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        assert Store("room").load(KEY) is None
        Store("room").touch(KEY)
        Store("room").bound(0)
        with Folder(cache / "room").turn("a", 0.0):
            assert {each: each.lstat().st_mode for each in tmp_path.rglob("*")} == before


@as_root
def test_what_another_has_planted_is_not_read_either(cache: Path, tmp_path: Path) -> None:
    store = Store("room", tmp_path / "target")
    assert store.save(KEY, "value")
    linked(cache, tmp_path / "target")
    with pytest.warns(WeftWarning, match=f"{cache}: it is a link of user {OTHER}"):
        assert Store("room").load(KEY) is None
    Store("room").forget(KEY)
    assert store.load(KEY) == "value"


@pytest.mark.parametrize("place", ["room", "cache", "above", "in a sticky folder"])
def test_links_of_ones_own_are_followed(cache: Path, tmp_path: Path, place: str) -> None:
    link, target = {
        "room": (cache / "room", "../../target/room"), "cache": (cache, str(tmp_path / "target")),
        "above": (cache.parent, "target/.././target"), "in a sticky folder": (cache / "room", "../../target/room"),
    }[place]  # fmt: skip
    linked(link, Path(target), owner=os.geteuid())
    if place == "in a sticky folder":
        cache.chmod(0o1777)
    assert Store("room").save(KEY, "value")
    assert Store("room").load(KEY) == "value"
    assert list((tmp_path / "target").rglob("*.json"))


def test_a_link_that_leads_to_itself(cache: Path) -> None:
    linked(cache, cache, owner=os.geteuid())
    with pytest.warns(WeftWarning, match="cannot write its cache in"):
        assert not Store("room").save(KEY, "value")


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o750, 0o700])
def test_a_cache_of_roots_stays_as_open_as_it_is(cache: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    before = os.umask(0o022)
    try:
        for value in range(3):
            assert Store("objects", cache / "room").save({"a": value}, value)
    finally:
        os.umask(before)
    for each in (cache, *cache.rglob("*")):
        expected = mode if each.is_dir() else mode & 0o644
        assert stat.S_IMODE(each.stat().st_mode) == expected, each


def test_the_working_folder_may_be_where_a_cache_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path / "target")
    monkeypatch.setenv("WEFT_CACHE_DIR", "relative/../cache")
    (tmp_path / "target" / "relative").mkdir()
    assert Store("room").save(KEY, "value")
    assert Store("room", tmp_path / "target" / "cache").load(KEY) == "value"
