"""What lies in the cache: weft's own files are listed, verified and removed, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.cpu.machine_code import CodeStore, MachineCode
from weft.machine.store import Store
from weft.tune import cache as module

SOFTWARE = "0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with a file in every room."""
    root = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE_DIR", str(root))
    for room in module.ABOUT:
        if room != module.MACHINE_CODE:
            Store(room).save({"a": room}, {"text": room})
    CodeStore(root / module.MACHINE_CODE).save("a source", MachineCode("entry", (), b"an object"))
    return root


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["cache", *words])


def test_every_room_that_something_is_kept_in_is_known() -> None:
    """By the names that the sources give to stores."""
    import re

    sources = [file.read_text() for file in Path(weft.__file__).parent.rglob("*.py")]
    names = {name for text in sources for name in re.findall(r'(?:^ROOM = |Store\()"([\w-]+)"', text, re.MULTILINE)}
    assert names
    assert names <= module.ABOUT.keys()


def test_all_is_listed_sound_and_removed(cache: Path) -> None:
    assert weft.cache.info()["rooms"].keys() == module.ABOUT.keys()
    assert weft.cache.info()["rooms"]["cpu"]["files"] == 1
    assert command("verify").exit_code == 0
    files = [file for file in cache.rglob("*") if file.is_file()]
    assert weft.cache.clear() == len(files) == len(module.ABOUT)
    assert weft.cache.info()["files"] == 0


FOREIGN = (
    "notes.txt", "schedules/notes.json", "schedules/0123.json", "schedules/sub/" + "a" * 32 + ".json", "mine/x.json",
    "mine/" + "a" * 32 + ".json", "cpu/" + "a" * 31 + ".json", "cpu/mine/" + "a" * 32 + ".json",
    f"cpu/{SOFTWARE}/mine.py", f"cpu/{SOFTWARE}/objects/mine.o", f"cpu/{SOFTWARE}/mine/" + "a" * 64 + ".o",
    "schedules/" + "a" * 32 + ".json.orig", "a" * 32 + ".json",
)  # fmt: skip


def test_what_weft_did_not_make_stays(cache: Path) -> None:
    for name in FOREIGN:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text("mine")
    assert command("clear", "--yes").exit_code == 0
    assert {str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file()} == set(FOREIGN)


@pytest.mark.parametrize("place", ["room", "software", "file"])
def test_links_are_not_followed(cache: Path, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (cache / "cpu" / SOFTWARE).mkdir()
    (cache / "cpu" / SOFTWARE / f"{'a' * 32}.json").touch()
    linked = {
        "room": cache / "schedules", "software": cache / "cpu" / SOFTWARE,
        "file": next((cache / "schedules").iterdir()),
    }[place]  # fmt: skip
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    kept = sorted(elsewhere.rglob("*")) if elsewhere.is_dir() else [elsewhere]
    assert command("clear", "--yes").exit_code == 0
    assert all(each.exists() for each in kept)
    assert linked.is_symlink()


def test_files_of_earlier_versions_are_removed(cache: Path) -> None:
    former = cache / "cpu" / SOFTWARE
    name = f"weft_cpu_{'b' * 24}"
    code = f"__pycache__/{name}.entry-6.py311.nbi", f"__pycache__/{name}.entry-6.py311.1.nbc"
    names = f"{name}.py", *code, f"objects/{'c' * 64}.o", f"{'d' * 32}.json"
    for folder in ("__pycache__", "objects"):
        (former / folder).mkdir(parents=True)
    for each in names:
        (former / each).touch()
    assert command("verify").exit_code == 0
    weft.cache.clear("cpu")
    assert not [each for each in names if (former / each).exists()]
    assert weft.cache.info()["rooms"].keys() == module.ABOUT.keys() - {"cpu"}


@pytest.mark.parametrize("room", module.ABOUT)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00"])
def test_verify_finds_damage_in_every_room_and_clear_removes_it(cache: Path, room: str, content: bytes) -> None:
    for file in [file for file in (cache / room).rglob("*") if file.is_file()]:
        before = file.read_bytes()
        file.write_bytes(content)
        found = command("verify", "--rooms", room)
        assert found.exit_code == 1
        assert file.name in found.output.replace("\n", "")
        file.write_bytes(before)
    assert command("verify", "--rooms", room).exit_code == 0


def test_verify_finds_a_changed_digit(cache: Path) -> None:
    Store("ceilings").save({"a": 1}, {"read": 12})
    file = Store("ceilings").path({"a": 1})
    file.write_text(file.read_text().replace("12", "13"))
    found = command("verify")
    assert "it is not as it was written" in found.output.replace("\n", " ")


def test_verify_says_where_a_folder_is_not_used(cache: Path) -> None:
    os.chmod(cache / "selftest", 0o777)
    found = command("verify")
    assert found.exit_code == 1
    assert "its folder is not used: others may write there" in found.output.replace("\n", " ")


def test_machine_code_is_neither_exported_nor_imported(cache: Path) -> None:
    document = weft.cache.export()
    assert {entry["room"] for entry in document["entries"]} == module.ABOUT.keys() - {"cpu", "cubins", "jax"}
    entry = {"room": "cpu", "key": {"a": 1}, "value": {}}
    with pytest.raises(weft.WeftError, match="'cpu' is no room"):
        weft.cache.import_(document | {"entries": [entry]})
    assert weft.cache.import_(document) == len(document["entries"])


@pytest.mark.parametrize("words", [("list",), ("verify",), ("clear", "--yes"), ("export", "exported.json")])
def test_a_room_that_the_cache_has_not(cache: Path, words: tuple[str, ...]) -> None:
    done = command(*words, "--rooms", "schedule")
    assert done.exit_code == 2
    assert "the cache has no room 'schedule': its rooms are schedules, tuning," in done.output
    assert not Path("exported.json").exists()


def test_an_import_says_what_could_not_be_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exported, file = tmp_path / "exported.json", tmp_path / "a file"
    count = len(weft.cache.export(exported)["entries"])
    file.touch()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(file))
    with pytest.warns(weft.WeftWarning, match="weft cannot write its cache"):
        done = command("import", str(exported))
    assert done.exit_code == 2
    assert f"took over 0 of {count} entries: the cache cannot be written" in done.output


def test_an_export_goes_where_a_link_leads_and_into_a_pipe(cache: Path, tmp_path: Path) -> None:
    """A file in the place of /dev/null, which root may write, would be in the way of every other program."""
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "exported.json")
    document = weft.cache.export(link)
    assert link.is_symlink()
    assert json.loads((tmp_path / "exported.json").read_text()) == document
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    weft.cache.export(pipe)
    assert json.loads(os.read(reader, 1 << 20)) == document
    os.close(reader)
    assert pipe.is_fifo()
