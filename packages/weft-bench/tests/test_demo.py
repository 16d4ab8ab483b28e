"""The main job: it measures what it says, finds wrong results, and keeps what it has when it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from weft.cli import main as cli
from weft.errors import NotationError, UnsupportedError
from weft.machine import ceilings as device
from weft.machine.ceilings import Probe
from weft.testing import assert_close, expectation
from weft_bench import cases
from weft_bench.cli import demo_job as demo
from weft_bench.peers.pytorch import Einsum
from weft_bench.peers.registry import Prepared, Tensors, Weft

SMALL = ["--work", "2000", "--budget", "0", "--hot"]


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ceilings of an empty cache, measured in no time on arrays too small to be right."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "_known", {})
    monkeypatch.setattr(Probe, "of", classmethod(lambda cls, _: cls(1 << 16, (32,), 0.0)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["demo", "--device", "cpu", *SMALL, *arguments])


ON_CPU = demo.settings_for("cpu")
ON_GPU = demo.Settings(torch.device("cuda"), "triton", "fp16_fp32", None)


def names(text: str | None) -> list[str]:
    return [entry.case.name for entry in demo.select(text, ON_CPU)]


def the_case(text: str, settings: demo.Settings) -> cases.Case:
    (entry,) = demo.select(text, settings)
    found: cases.Case = entry.case
    return found


def test_selects_by_number_range_and_name() -> None:
    assert names(None) == ["example", *(case.name for case in cases.tccg())]
    assert names("1, 4,20-22") == ["tccg-01", "tccg-04", "tccg-20", "tccg-21", "tccg-22"]
    assert names("example,tccg-48,48") == ["example", "tccg-48"]


@pytest.mark.parametrize("text", ["0", "49", "47-49", "3-1", "sample", "", "-3", "1-"])
def test_refuses_cases_that_are_not_there(text: str) -> None:
    with pytest.raises(NotationError, match="case"):
        demo.select(text, ON_CPU)


def test_scales_on_a_cpu_and_not_on_a_gpu() -> None:
    case = the_case("20", ON_CPU)
    assert demo.CPU_WORK / 2 < case.work <= demo.CPU_WORK
    assert case.dtypes == (torch.float32,) * 3
    assert the_case("20", ON_GPU) == cases.tccg()[19]
    assert the_case("example", ON_GPU) is demo.EXAMPLE


def test_the_example_is_the_papers() -> None:
    assert demo.EXAMPLE.equation == "ecbfa,fd->abcde"
    assert demo.EXAMPLE.d_shape == (16, 16, 16, 64, 16)
    assert demo.EXAMPLE.extents["f"] == 64
    assert demo.EXAMPLE.dtypes == (torch.float16, torch.float16, torch.float32)
    assert demo.EXAMPLE.b_fn == "elu"
    assert the_case("example", demo.settings_for("cpu", work=1000)).dtypes == demo.EXAMPLE.dtypes


@pytest.mark.parametrize(
    ("device_name", "backend"), [("tpu", "auto"), ("cuda:99", "auto"), ("meta", "auto"), ("cpu", "cuda")]
)
def test_refuses_devices_and_backends_that_are_not_there(device_name: str, backend: str) -> None:
    with pytest.raises(UnsupportedError):
        demo.settings_for(device_name, backend)


def test_prints_the_plan_the_table_and_the_means(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    done = run("--cases", "example,1,7,31", "--json", str(file))
    assert done.exit_code == 0, done.output
    document = json.loads(file.read_text())
    assert document["complete"]
    assert document["wrong"] == []
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ecbfa,fd->abcde  by the cpu backend")
    assert any(line.startswith("fused       b_fn = elu, on values of B") for line in lines)
    assert any(line.startswith("measured    ") for line in lines)
    rows = {words[0]: words for line in lines if (words := line.split()) and words[0] in ("01", "07", "31")}
    assert [case["case"] for case in document["cases"]] == ["example", "tccg-01", "tccg-07", "tccg-31"]
    for case in document["cases"][1:]:
        words = rows[case["case"][-2:]]
        assert words[1:5] == [case["equation"], str(case["m"]), str(case["n"]), str(case["k"])]
        assert words[-1] == f"{case['speed against torch']:.2f}x"
        assert words[-2] == f"{case['error over bound']:.3f}"
    mean = document["geometric means"]["speed against torch"]
    assert any(line.split()[:2] == ["geometric", "mean"] and line.endswith(f"{mean:.2f}x") for line in lines)
    assert "2,000 multiply-adds" in " ".join(done.output.split())


def test_numbers_follow_from_each_other(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    assert run("--cases", "example,2,12,13", "--json", str(file)).exit_code == 0
    document = json.loads(file.read_text())
    for case in document["cases"]:
        extents = case["extents"].values()
        assert case["flops"] == 2 * torch.Size(extents).numel() <= 2 * 2000
        counted = case["flops"] if case["rate unit"] == "FLOP/s" else case["compulsory bytes"]
        assert case["rate"] == pytest.approx(counted / case["seconds"])
        assert case["floor over time"] == pytest.approx(case["floor seconds"] / case["seconds"])
        assert case["speed against torch"] == pytest.approx(case["torch timing"]["median"] / case["seconds"])
        assert case["timing"]["median"] == case["seconds"]
        assert case["timing"]["mode"] == "hot"
        assert 0 < case["error over bound"] <= 1
    assert document["cases"][0]["functions"] == {"b_fn": "elu"}
    assert document["cases"][0]["function flops"] > 0
    suite = [case["speed against torch"] for case in document["cases"][1:]]  # the example is not part of it
    assert document["geometric means"]["speed against torch"] == pytest.approx(geometric_mean(suite))
    assert document["environment"]["platform"]["ceilings"]["source"] == "measured"


def watching(
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[cases.Case], object] = lambda case: None,
    after: Callable[[cases.Case, torch.Tensor], object] = lambda case, d: None,
) -> None:
    """`before` sees each case before weft plans it; `after` the case and the result of each call that is checked."""
    prepare = Weft.prepare

    def watched(self: Weft, case: cases.Case, tensors: Tensors) -> Prepared | str:
        before(case)
        prepared = prepare(self, case, tensors)
        assert isinstance(prepared, Prepared)
        (way,) = prepared.ways

        def run(*arguments: torch.Tensor) -> torch.Tensor:
            result = way.run(*arguments)
            after(case, result)
            return result

        return replace(prepared, ways=[replace(way, run=run)])

    monkeypatch.setattr(Weft, "prepare", watched)


def test_a_wrong_result_fails_the_run_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spoil(case: cases.Case, d: torch.Tensor) -> None:
        if case.name == "tccg-13":
            d.view(-1)[-1] += 1

    watching(monkeypatch, after=spoil)
    file = tmp_path / "numbers.json"
    done = run("--cases", "12-14", "--json", str(file))
    assert done.exit_code == 1
    assert "weft: wrong results: tccg-13 (" in done.output
    assert "its bound" in done.output
    document = json.loads(file.read_text())
    assert document["wrong"] == ["tccg-13"]
    first, wrong, last = document["cases"]
    assert ["seconds" in case for case in (first, wrong, last)] == [True, False, True]
    assert any(line.split()[:1] == ["13"] and "WRONG" in line for line in done.output.splitlines())
    speeds = [case["speed against torch"] for case in (first, last)]
    assert document["geometric means"]["speed against torch"] == pytest.approx(geometric_mean(speeds))


def test_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def before(case: cases.Case) -> None:
        if case.name == "tccg-14":
            raise KeyboardInterrupt

    watching(monkeypatch, before)
    file = tmp_path / "numbers.json"
    done = run("--cases", "12-16", "--json", str(file))
    assert done.exit_code == 130
    assert "weft: interrupted" in done.output
    assert [line.split()[0] for line in done.output.splitlines() if line[:2].isdigit()] == ["12", "13"]
    document = json.loads(file.read_text())
    assert not document["complete"]
    assert [case["case"] for case in document["cases"]] == ["tccg-12", "tccg-13"]


def test_running_out_of_memory_ends_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 1 TiB")

    watching(monkeypatch, after=full)
    done = run("--cases", "12")
    assert done.exit_code == 2
    assert done.output.strip().splitlines()[-1] == "weft: tccg-12: cpu is out of memory"


def test_torch_side_computes_the_same() -> None:
    """In the operands' type, and no other."""
    case = the_case("example", demo.settings_for("cpu", work=5000))
    given = cases.operands(case)
    theirs = Einsum(cast=False).way(case, Tensors(*given, torch.empty(case.d_shape)))(*given, None)
    assert theirs.is_contiguous()
    assert theirs.dtype is torch.float16
    options = case.options() | {"out_dtype": torch.float16}
    reference, bound = expectation(case.equation, given.a, given.b, **options)
    assert_close(theirs, reference, bound + 2e-3 * reference.abs().max())


def test_runs_in_tritons_interpreter() -> None:
    done = CliRunner().invoke(
        cli.app, ["demo", "--backend", "triton", "--device", "cpu", *SMALL, "--work", "500", "--cases", "example,12"]
    )
    assert done.exit_code == 0, done.output
    assert "by the triton backend on Triton interpreter" in done.output


def test_runs_on_the_reference() -> None:
    assert run("--backend", "reference", "--cases", "example,12").exit_code == 0


@pytest.mark.gpu
@pytest.mark.alone
def test_runs_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    done = CliRunner().invoke(cli.app, ["demo", "--device", "cuda", "--cases", "example,12,31", "--json", str(file)])
    assert done.exit_code == 0, done.output
    for case in json.loads(file.read_text())["cases"]:
        assert case["timing"]["captured"]
        assert case["timing"]["mode"] == "cold"
