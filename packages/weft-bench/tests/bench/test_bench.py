"""`weft bench` and `weft report` from the command line, on the CPU, with small cases."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.sides import have_ceilings
from commands import told
from support import own_cache
from weft_bench.checking import ReferenceSlab
from weft_bench.environment import missing
from weft_bench.records import load, save

pytestmark = pytest.mark.early
WITHOUT_CEILINGS = """
import weft.cli.main, weft.machine.ceilings
def measure_ceilings(*place, **how):
    raise weft.machine.ceilings.UnsupportedError("no ceilings here")
weft.machine.ceilings.measure_ceilings = measure_ceilings
weft.cli.main.main()
"""
QUICK = ("--work", "1024", "--budget", "0", "--rrs", "1000", "--device", "cpu")


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_cache(monkeypatch, tmp_path / "cache")
    have_ceilings(monkeypatch)


def test_a_suite_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = told("bench", "tccg", "--cases", "1,20-21", "--peers", "torch,numpy", "--out", out, *QUICK)
    assert "tccg-21" in said
    assert "tccg.fp16_fp32.gm1_torch" in said
    run = load(out)
    assert run.ended == "finished"
    assert run.contenders == ["weft", "torch", "numpy"]
    assert [(case.group, case.name) for case in run.cases] == [
        (group, f"tccg-{at}") for group in ("fp16_fp32", "fp16_fp16") for at in ("01", "20", "21")
    ]
    assert all(case.measured(name) for case in run.cases for name in run.contenders)
    assert run.caveat == "scaled cases, selected cases, operands in the cache"
    assert missing(run.environment) == []  # the whole disclosure
    assert run.environment["platform"]["ceilings"]["matrix"] == {"float16": 1e11, "float32": 1e11}
    assert {"run.csv", "index.html", "swarm.png", "roofline.png", "cumulative.png"} <= {f.name for f in out.iterdir()}


def test_the_other_suites(tmp_path: Path) -> None:
    said = told("bench", "tccg-fusion", "--cases", "4", "--out", tmp_path / "f", "--peers", "torch", *QUICK)
    assert (tmp_path / "f" / "fusion.png").is_file()
    assert "fusion.geomean_over_plain" in said
    said = told(
        "bench", "beyond", "--cases", "hadamard,fused-gelu", "--out", tmp_path / "b", "--peers", "ttgt", *QUICK
    )
    run = load(tmp_path / "b")
    assert "no matrix product" in run.cases[0].results["ttgt"].cannot
    assert "beyond.gm1_ttgt" in said


@pytest.mark.parametrize(
    ("suite", "cases", "figure"),
    [
        ("permute", "permute-2*,permute-3a", "permute.geomean_vs_copy"),
        ("transpose", "in-place-4*,in-place-1000x9000", "transpose_inplace.square_vs_copy"),
        ("dense", "dense-square-100x*,dense-square-1300x*", "dense.worst_small_over_cublas"),
    ],
)
def test_suites_of_matrices_and_moves(suite: str, cases: str, figure: str, tmp_path: Path) -> None:
    said = told("bench", suite, "--cases", cases, "--out", tmp_path, *QUICK)
    assert figure in said
    run = load(tmp_path)
    assert run.ended == "finished"
    assert all(case.measured("weft") for case in run.cases)
    told("report", "--summary", tmp_path, "--out", tmp_path / "summary.json")
    assert figure in json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "index.html").unlink()
    told("report", tmp_path)  # draws it anew
    assert (tmp_path / "index.html").is_file()


def test_the_host_time_of_calls(tmp_path: Path) -> None:
    said = told("bench", "call", "--cases", "product", "--out", tmp_path, *QUICK)
    assert "call.host_us" in said
    run = load(tmp_path)
    assert run.host
    assert run.mode == "hot"
    assert run.contenders == ["weft", "weft-contract", "torch"]
    assert all(run.cases[0].measured(name) for name in run.contenders)
    told("report", "--summary", tmp_path, "--out", tmp_path / "summary.json")
    unit = json.loads((tmp_path / "summary.json").read_text())["call.host_us"]["unit"]
    assert unit.startswith("us (")


def test_plans_of_the_model_alone_beside_the_tuned_ones(tmp_path: Path) -> None:
    out = ("--out", tmp_path)
    said = told("bench", "tccg", "--cases", "1,20", "--peers", "weft-model", "--dtypes", "fp32", *out, *QUICK)
    assert "tccg.fp32.untuned_vs_tuned" in said
    assert "gm1_weft-model" not in said


def test_a_wrong_result_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = ReferenceSlab.compare

    def off(self: ReferenceSlab, d: object, stored: object = None) -> float:
        if stored is None:  # weft; peers say how they store
            self = replace(self, reference=self.reference + 1)
        return compare(self, d, stored)  # type: ignore[arg-type]

    monkeypatch.setattr(ReferenceSlab, "compare", off)
    said = told("bench", "tccg", "--cases", "1", "--peers", "torch", "--out", tmp_path, *QUICK, code=1)
    assert "weft: wrong results: fp16_fp32 tccg-01 (" in said
    assert load(tmp_path).cases[0].results["weft"].samples == ()
    assert load(tmp_path).cases[0].measured("torch")


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    """A real process, a real signal, while cases are still coming."""
    command = [
        sys.executable, "-c", WITHOUT_CEILINGS, "bench", "tccg", "--cases", "1-12", "--peers", "torch", "--out",
        str(tmp_path / "out"), "--work", "1024", "--budget", "0.3", "--rrs", "0", "--device", "cpu",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit it ignored
    )
    assert process.stdout is not None
    process.stdout.readline()  # the first case's line
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "weft: interrupted; what was measured is kept" in errors
    run = load(tmp_path / "out")
    assert run.ended == "interrupted"
    assert 1 <= len(run.cases) < 24
    assert (tmp_path / "out" / "index.html").is_file()
    assert "index.html" in output
    more = ("--peers", "weft,torch", "--out", tmp_path / "out", "--resume")
    said = told("bench", "tccg", "--cases", "1-12", *more, *QUICK)
    assert "tccg-01" not in said.partition("fp16_fp16")[0]  # it was there
    run = load(tmp_path / "out")
    assert run.ended == "finished"
    assert len(run.cases) == 24
    assert run.environment["continues"][0]["ended"] == "interrupted"


def test_a_run_to_go_on_with_begins_where_there_is_none(tmp_path: Path) -> None:
    asked = ("bench", "tccg", "--cases", "1", "--peers", "torch", "--out", tmp_path / "out", "--resume", *QUICK)
    for begun in (True, False):
        said = told(*asked)
        assert (" fp16_fp32 tccg-01 " in said.partition("figure")[0]) == begun
    assert len(load(tmp_path / "out").cases) == 2


def test_lists() -> None:
    said = told("bench", "--list")
    assert all(name in said for name in ("tccg", "tccg-fusion", "beyond", "192"))
    said = told("bench", "beyond", "--list")
    assert "hadamard" in said
    assert "abc,cab->abc" in said.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench",), "which suite"),
        (("bench", "spec"), "no suite is called 'spec'"),
        (("bench", "tccg", "--peers", "mkl"), "no peer is called 'mkl'"),
        (("bench", "tccg", "--dtypes", "fp8"), "no number types are called 'fp8'"),
        (("bench", "tccg", "--device", "tpu"), "no device"),
        (("bench", "tccg", "--mode", "warm"), "neither cold nor hot"),
        (("bench", "tccg", "--tune", "xx"), "tune='xx' is none of"),
        (("bench", "tccg", "--cases", "5-1"), "'5-1' in --cases ends before it begins"),
        (("report", "--summary", "."), "is no run of weft bench"),
    ],
)
def test_misuse_is_a_line_and_exit_code_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    output = told(*arguments, "--out", tmp_path / "run", code=2)
    assert said in output
    assert output.startswith("weft: ")
    assert not (tmp_path / "run").exists()


DAMAGED = (b"", b"{", b"{}", b"[7]", b"3", b"null", b'{"cases": 1}', b'{"profiles": []}', b"\xff\x00", b"[" * 100_000)


@pytest.mark.parametrize(
    ("file", "arguments", "said"),
    [
        ("run.json", ("report",), "is no run of weft bench"),
        ("run.json", ("bench", "tccg", "--cases", "1", "--resume", *QUICK, "--out"), "is no run of weft bench"),
        ("regret.json", ("bench", "regret", "--device", "cpu", "--resume", "--out"), "is no run of weft bench regret"),
        ("study.json", ("bench", "tuning", "--device", "cpu", "--resume", "--out"), "is no study of weft bench tuning"),
        ("micro.json", ("report",), "is no record of weft micro"),
        ("profile.json", ("report",), "is no profile of weft"),
        ("ladder-cpu.json", ("ladder", "--page"), "is no ladder of weft"),
        ("ladder-cpu.json", ("ladder", "cpu", "--device", "cpu", "--resume", "--out"), "is no ladder of weft"),
    ],
)
def test_a_record_that_was_damaged_is_a_line(
    tmp_path: Path, file: str, arguments: tuple[str, ...], said: str
) -> None:
    for content in DAMAGED:
        (tmp_path / file).write_bytes(content)
        output = told(*arguments, tmp_path, code=2)
        assert output.count("\n") == 1
        assert said in output or "this version" in output
        assert (tmp_path / file).read_bytes() == content


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    for name in ("one", "two"):
        said = told("bench", "tccg", "--cases", "1", "--peers", "torch", "--out", tmp_path / name, *QUICK)
    faster = load(tmp_path / "two")
    for case in faster.cases:
        result = case.results["weft"]
        result.samples = tuple(sample / 100 for sample in result.samples)
    save(faster, tmp_path / "two")
    said = told("report", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "compared.html")
    assert "faster" in said
    assert "geometric mean" in (tmp_path / "compared.html").read_text()
    said = told("report", tmp_path / "one", tmp_path / "one", code=2)
    assert "named twice" in said


def runs_of_figures() -> dict[str, list[str]]:
    """What `make figures` measures, by folder: the arguments of `weft bench`."""
    text = (Path(__file__).parents[4] / "Makefile").read_text()
    return {name: arguments.split() for name, arguments in re.findall(r"^RUN_(\S+)\s*:= (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", runs_of_figures())
def test_every_figure_is_measured_by_a_command_that_there_is(name: str) -> None:
    told("bench", *runs_of_figures()[name], "--list")


def studies() -> list[tuple[str, str]]:
    """The names of `make study` and the like, and the command of each."""
    text = (Path(__file__).parents[4] / "Makefile").read_text()
    return re.findall(r"^DO_(\S+)\s*:= (.+)$", text, re.MULTILINE)


def test_the_study_is_of_commands_that_there_are() -> None:
    found = studies()
    studied = {"tuning", "ladder", "micro", "scaling"}
    assert {name for name, _ in found} == studied | {
        "everyday", "regret", "cascade", "accuracy", "kernelbench", "pyscf", "cookbook"
    }  # fmt: skip
    for name, arguments in found:
        _, module, *words = shlex.split(arguments.replace("$(RESULTS)", "out"))
        assert module == ("cookbook" if name == "cookbook" else "weft")  # whose own tests are with the pages
        if module == "weft":
            told(*words, "--help")


def test_reasons_go_to_a_file(tmp_path: Path) -> None:
    """All groups with enough cases, under the run's commit."""
    run = Path(__file__).parents[4] / "results" / "h200" / "tccg-tf32"
    told("report", run, "--why", "cutensor", "--out", tmp_path / "why.md")
    text = (tmp_path / "why.md").read_text()
    assert text.startswith("# tccg on NVIDIA H200, commit ")
    assert "| quantity | cases | spearman | interval | pearson | interval |" in text
    assert "| M N | 48 | 0.50 |" in text


def test_the_figures_that_are_quoted_are_those_that_are_measured() -> None:
    """Each folder of results has the command that `make figures`, or a study, gives it, but for where it goes."""
    results = Path(__file__).parents[4] / "results" / "h200"
    studied = {name: shlex.join(["python", *shlex.split(line)]).partition(" --out")[0] for name, line in studies()}
    runs = {
        folder.parent.name: load(folder.parent).environment["artifacts"]["command"]
        for folder in results.glob("*/run.json")
    }
    wanted = {
        name: shlex.join(["python", "-m", "weft", "bench", *arguments]) for name, arguments in runs_of_figures().items()
    }
    found = {name: command.partition(" --out")[0] for name, command in runs.items()}
    assert found == wanted | {name: studied[name] for name in ("kernelbench", "pyscf")}
