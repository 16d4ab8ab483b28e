"""The main job: it measures what it says, finds wrong results, and keeps what it has when it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from weft import cases
from weft.api import contract as api
from weft.cli import demo
from weft.cli import main as cli
from weft.errors import NotationError, UnsupportedError
from weft.machine import ceilings as device
from weft.machine.ceilings import Probe
from weft.machine.statistics import geometric_mean
from weft.testing import assert_close, expectation

SMALL = ["--work", "2000", "--budget", "0", "--hot"]


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ceilings of an empty cache, measured in no time on arrays too small to be right."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "_known", {})
    monkeypatch.setattr(Probe, "of", classmethod(lambda cls, _: cls(1 << 16, (32,), 0.0)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["demo", "--device", "cpu", *SMALL, *arguments])


def names(text: str) -> list[str]:
    return [case.name for case in demo.select(text)]


def test_selects_by_number_range_and_name() -> None:
    assert [case.name for case in demo.select(None)] == ["example", *(case.name for case in cases.tccg())]
    assert names("1, 4,20-22") == ["tccg-01", "tccg-04", "tccg-20", "tccg-21", "tccg-22"]
    assert names("example,tccg-48,48") == ["example", "tccg-48"]


@pytest.mark.parametrize("text", ["0", "49", "47-49", "3-1", "sample", "", "-3", "1-"])
def test_refuses_cases_that_are_not_there(text: str) -> None:
    with pytest.raises(NotationError, match="case"):
        demo.select(text)


def test_scales_on_a_cpu_and_not_on_a_gpu() -> None:
    on_cpu = demo.settings_for("cpu")
    case = demo.fitted(cases.tccg()[19], on_cpu)
    assert demo.CPU_WORK / 2 < case.work <= demo.CPU_WORK
    assert case.dtypes == (torch.float32,) * 3
    on_gpu = demo.Settings(torch.device("cuda"), "triton", (torch.float16, torch.float16, torch.float32), None)
    assert demo.fitted(cases.tccg()[19], on_gpu) == cases.tccg()[19]
    assert demo.fitted(demo.EXAMPLE, on_gpu) is demo.EXAMPLE


def test_the_example_is_the_papers() -> None:
    assert demo.EXAMPLE.equation == "ecbfa,fd->abcde"
    assert demo.EXAMPLE.d_shape == (16, 16, 16, 64, 16)
    assert demo.EXAMPLE.extents["f"] == 64
    assert demo.EXAMPLE.dtypes == (torch.float16, torch.float16, torch.float32)
    assert demo.EXAMPLE.b_fn == "elu"
    assert demo.fitted(demo.EXAMPLE, demo.settings_for("cpu", work=1000)).dtypes == demo.EXAMPLE.dtypes


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
    lines = done.output.splitlines()
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


def breaking(case_name: str, how: Callable[[torch.Tensor], object]) -> Callable[..., Any]:
    """`contract` that spoils the result of one case."""
    equation = next(case.equation for case in cases.tccg() if case.name == case_name)

    def contract(given: str, *operands: torch.Tensor, out: torch.Tensor, **options: Any) -> Any:
        result = api.contract(given, *operands, out=out, **options)
        if given == equation:
            how(out)
        return result

    return contract


def one_element_off(out: torch.Tensor) -> None:
    out.view(-1)[-1] += 1


def one_element_missing(out: torch.Tensor) -> None:
    out.view(-1)[3] = torch.nan


def one_byte_too_many(out: torch.Tensor) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0)


@pytest.mark.parametrize(
    ("how", "said"),
    [(one_element_off, "its bound"), (one_element_missing, "not written"), (one_byte_too_many, "outside the tensor")],
)
def test_a_wrong_result_fails_the_run_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: Callable[[torch.Tensor], object], said: str
) -> None:
    monkeypatch.setattr(demo, "contract", breaking("tccg-13", how))
    file = tmp_path / "numbers.json"
    done = run("--cases", "12-14", "--json", str(file))
    assert done.exit_code == 1
    assert "weft: wrong results: tccg-13 (" in done.output
    assert said in done.output
    document = json.loads(file.read_text())
    assert document["wrong"] == ["tccg-13"]
    first, wrong, last = document["cases"]
    assert "seconds" in first
    assert "seconds" in last, "a wrong case stopped the others"
    assert "seconds" not in wrong, "a wrong result was timed"
    assert any(line.split()[:1] == ["13"] and "WRONG" in line for line in done.output.splitlines())
    speeds = [case["speed against torch"] for case in (first, last)]
    assert document["geometric means"]["speed against torch"] == pytest.approx(geometric_mean(speeds))


def test_what_is_checked_is_not_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other operands, and a result that was poison before."""
    checked: list[tuple[torch.Tensor, ...]] = []
    timed: list[tuple[torch.Tensor, ...]] = []

    def contract(equation: str, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, **options: Any) -> Any:
        assert out.isnan().all()
        checked.append((a, b))
        return api.contract(equation, a, b, out=out, **options)

    def measured(call: Callable[..., Any], inputs: Any, **options: Any) -> Any:
        timed.extend(arguments for arguments in inputs if arguments)
        return measure(call, inputs, **options)

    measure = demo.measure
    monkeypatch.setattr(demo, "contract", contract)
    monkeypatch.setattr(demo, "measure", measured)
    settings = demo.settings_for("cpu", work=2000, budget=0, mode="hot")
    assert demo.run_case(demo.fitted(cases.tccg()[11], settings), settings, None).failure == ""
    assert checked
    assert timed
    assert not any(torch.equal(x[0], y[0]) or torch.equal(x[1], y[1]) for x in checked for y in timed)


def test_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = demo.run_case

    def run_case(case: cases.Case, *rest: Any) -> demo.Outcome:
        if case.name == "tccg-14":
            raise KeyboardInterrupt
        return real(case, *rest)

    monkeypatch.setattr(demo, "run_case", run_case)
    file = tmp_path / "numbers.json"
    done = run("--cases", "12-16", "--json", str(file))
    assert done.exit_code == 130
    assert "weft: interrupted" in done.output
    assert [line.split()[0] for line in done.output.splitlines() if line[:2].isdigit()] == ["12", "13"]
    document = json.loads(file.read_text())
    assert not document["complete"]
    assert [case["case"] for case in document["cases"]] == ["tccg-12", "tccg-13"]


def test_running_out_of_memory_ends_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def contract(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 1 TiB")

    monkeypatch.setattr(demo, "contract", contract)
    done = run("--cases", "12")
    assert done.exit_code == 2
    assert done.output.strip().splitlines()[-1] == "weft: tccg-12: cpu is out of memory"


def test_torch_side_computes_the_same() -> None:
    case = demo.fitted(demo.EXAMPLE, demo.settings_for("cpu", work=5000))
    given = cases.operands(case)
    theirs = demo._by_torch(case)(given.a, given.b, None)
    assert theirs.is_contiguous()
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
def test_runs_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    done = CliRunner().invoke(cli.app, ["demo", "--device", "cuda", "--cases", "example,12,31", "--json", str(file)])
    assert done.exit_code == 0, done.output
    for case in json.loads(file.read_text())["cases"]:
        assert case["timing"]["captured"]
        assert case["timing"]["mode"] == "cold"
