"""`weft tune` and `weft cache`: what they print, write and leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from weft.cli import main, tune
from weft.machine.store import Store
from weft.tune.cache import entries

SMALL = ["--leaders", "2", "--samples", "1", "--device", "cpu"]
SUITE = ["--suite", "tccg", "--cases", "1,4", "--pairs", "fp32", "--work", "20000", *SMALL]
EQUATION = ["ecbfa,fd->abcde", "--extents", "a=4,b=4,c=4,d=4,e=4,f=4", *SMALL]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main.app, arguments, input=given)


def test_an_equation_is_tuned_and_stored() -> None:
    done = run("tune", *EQUATION, "--b-fn", "elu", "--out-dtype", "float32")
    assert done.exit_code == 0, done.output
    assert "ecbfa,fd->abcde" in done.output
    assert "untuned_vs_tuned = " in done.output
    assert len(list(Store("schedules").directory.iterdir())) == 1


def test_a_suite_writes_its_record_and_goes_on_from_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "record.json"
    done = run("tune", *SUITE, "--out", str(file))
    assert done.exit_code == 0, done.output
    assert "tccg.fp32.untuned_vs_tuned = " in done.output
    record = json.loads(file.read_text())
    assert [case["name"] for case in record["cases"]] == ["tccg-01", "tccg-04"]
    record["cases"][0]["spent"] = 123.0  # to be told from one that is measured again
    file.write_text(json.dumps(record))
    again = run("tune", *SUITE, "--out", str(file))
    assert again.exit_code == 0, again.output
    assert json.loads(file.read_text())["cases"][0]["spent"] == 123.0
    other = run("tune", *EQUATION, "--out", str(file))
    assert other.exit_code == 2
    assert "is of another suite" in other.output
    more = run("tune", *SUITE, "--seed", "7", "--out", str(file))
    assert more.exit_code == 2
    assert "is of another effort: name another file, or --again replaces it" in " ".join(more.output.split())
    file.write_text(json.dumps(record | {"commit": "an earlier one", "effort": record["effort"] | {"jobs": 1}}))
    later = run("tune", *SUITE, "--out", str(file))
    assert later.exit_code == 2
    assert "is of another commit" in later.output
    anew = run("tune", *SUITE, "--out", str(file), "--again")
    assert anew.exit_code == 0, anew.output
    assert json.loads(file.read_text())["cases"][0]["spent"] != 123.0


def test_calibrating_on_a_cpu_is_refused() -> None:
    done = run("tune", *SUITE, "--calibrate")
    assert done.exit_code == 2
    assert "fitted on a GPU" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name an equation"),
        (["ik,kj->ij"], "needs --extents"),
        (["ik,kj->ij", "--suite", "tccg"], "name one of the two"),
        (["ik,kj->ij", "--extents", "i=2,k=3"], "no extent is given for 'j'"),
        (["--suite", "nothing"], "no suite"),
        (["--suite", "tccg", "--backend", "reference"], "nothing to tune"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], said: str) -> None:
    done = run("tune", *arguments, "--device", "cpu")
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_an_interrupted_run_says_that_it_can_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(run, jobs, **options) -> None:
        run.ended = "interrupted"

    monkeypatch.setattr("weft.cli.tuning.go", interrupted)
    done = run("tune", *SUITE)
    assert done.exit_code == 130
    assert "goes on" in done.output
    assert tune.CPU_WORK > 0


def test_the_cache_is_listed_verified_carried_and_cleared(tmp_path: Path, empty_cache: Path) -> None:
    assert "nothing" in run("cache").output
    run("tune", *EQUATION)
    listed = run("cache", "list", "--entries")
    assert listed.exit_code == 0, listed.output
    assert "schedules" in listed.output
    assert "ecbfa,fd->abcde" in listed.output
    assert str(empty_cache) in listed.output
    assert run("cache", "verify").exit_code == 0
    exported = tmp_path / "exported.json"
    assert "wrote 1 entry" in run("cache", "export", str(exported)).output
    (before,) = entries()
    assert run("cache", "clear", given="n\n").exit_code == 0
    assert len(list(entries())) == 1
    assert run("cache", "clear", given="y\n").exit_code == 0
    assert list(entries()) == []
    assert "took over 1 entry" in run("cache", "import", str(exported)).output
    (after,) = entries()
    assert (after.key, after.value, after.file) == (before.key, before.value, before.file)
    assert run("cache", "clear", "--rooms", "ceilings", "--yes").exit_code == 0
    assert len(list(entries())) == 1
    assert run("cache", "clear", "--rooms", "schedules", "--yes").exit_code == 0
    assert list(entries()) == []


def test_what_is_not_sound_is_found_and_cleared(empty_cache: Path) -> None:
    run("tune", *EQUATION)
    (entry,) = entries()
    folder = entry.file.parent
    (folder / f"{'0123' * 8}.json").write_text(entry.file.read_text())  # under another name
    (folder / f"{'4567' * 8}.json").write_text("{")
    (folder / f"{'89ab' * 8}.broken").write_text("")
    done = run("cache", "verify")
    assert done.exit_code == 1
    assert "its name is not the digest of its key" in done.output
    assert "it is no JSON of weft's" in done.output
    assert "set aside" in done.output
    assert "1 of 4 files are sound" in done.output
    assert run("cache", "list", "--entries").exit_code == 0
    assert run("cache", "clear", "--yes").exit_code == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"what": "weft cache", "format": 1, "entries": [{"room": "../etc", "key": {}, "value": 1}]}',
        '{"what": 1}',
    ],
)
def test_other_files_are_not_imported(content: str, tmp_path: Path, empty_cache: Path) -> None:
    (tmp_path / "file.json").write_text(content)
    assert run("cache", "import", str(tmp_path / "file.json")).exit_code == 2
    assert list(entries()) == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"what": "weft tune", "format": 1}', "[" * 100_000]
)
def test_a_file_that_is_no_record_stays(content: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(content)
    done = run("tune", *EQUATION, "--out", str(file))
    assert done.exit_code == 2
    assert "record.json is no record of weft tune" in done.output
    assert file.read_text() == content


def test_other_extents_and_types_are_not_those_of_the_record(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    for more in ("i=8,j=8,k=8 float32", "i=9,j=8,k=8 float32", "i=9,j=8,k=8 float64", "i=9,j=8,k=8 float64"):
        extents, dtype = more.split()
        done = run("tune", "ij,jk->ik", "--extents", extents, "--dtype", dtype, *SMALL, "--out", str(file))
        assert done.exit_code == 0, done.output
    cases = json.loads(file.read_text())["cases"]
    assert [case["extents"]["i"] for case in cases] == [8, 9, 9]
    assert len({case["mark"] for case in cases}) == 3


def test_what_is_imported_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    assert run("tune", *EQUATION).exit_code == 0
    file = tmp_path / "exported.json"
    assert run("cache", "export", str(file)).exit_code == 0
    document = json.loads(file.read_text())
    [entry] = [each for each in document["entries"] if each["room"] == "schedules"]
    assert run("cache", "clear", "--yes").exit_code == 0
    for bad in (entry | {"room": "../x"}, entry | {"value": float("inf")}):
        file.write_text(json.dumps(document | {"entries": [entry, bad]}))
        assert run("cache", "import", str(file)).exit_code == 2
        assert not list(entries())
    file.write_text("[" * 100000)
    assert run("cache", "import", str(file)).exit_code == 2
    assert run("cache", "export", str(tmp_path / "nowhere" / "x.json")).exit_code == 2
