"""What users type on the command line: names of types and devices, numbers with an exponent, chained functions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runs import case, result, run
from weft.cli.main import app
from weft_bench.records import save
from weft_bench.two_groups import two_groups

PRODUCT = ("explain", "mk,kn->mn", "--extents", "m=64,n=48,k=32")


def weft(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and all that was written, in lines of any length."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("name", ["float16", "fp16", "half", "f16", "torch.float16", "FP16"])
def test_every_name_of_a_type(name: str) -> None:
    code, said = weft(*PRODUCT, "--dtype", name, "--out-dtype", "f32", "--accumulate", "double")
    assert code == 0
    assert "stored A float16, B float16, D float32; products float16 (ieee), summed in float64" in said


def test_a_wrong_name_gets_the_right_one() -> None:
    for options, sentence in (
        (("--dtype", "flaot32"), "--dtype='flaot32' names no number type: did you mean 'float32'?"),
        (("--out-dtype", "halff"), "--out-dtype='halff' names no number type: did you mean 'half'?"),
        (("--precision", "tf33"), "did you mean 'tf32"),
        (("--algebra", "maxplus"), "no algebra is called 'maxplus': did you mean 'max_plus'?"),
        (("--target", "h1000"), "did you mean 'h100'?"),
        (("--epilogue", "bias,reluu"), "has a function 'reluu': did you mean 'relu'?"),
        (("--strides-a", "m=1"), "strides of A are given for 'm', its labels are 'm', 'k'"),
        (("--strides-b", "k:1"), "'k:1' in --strides-b is not of the form m=64"),
        (("--schedule", "fastest"), "schedule 'fastest' is none of"),
    ):
        code, said = weft(*PRODUCT, *options)
        assert code == 2, options
        assert sentence in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("profile", "mk,kn->mn", "--extents", "m=4,n=4,k=4", "--device", "cpu", "--against", "torhc"),
         "--against torhc is neither a peer (cutensor, torch,"),
        (("tune", "mk,kn->mn", "--extents", "m=4,n=4,k=4", "--device", "cpu", "--suite", "tccg"),
         "an equation and --suite tccg are given: name one of the two"),
        (("warm", "--dtypes", "float32,flaot16"), "--dtypes='flaot16' names no number type: did you mean 'float16'?"),
        ((*PRODUCT, "--precision", "highest"), "or one of ieee, ieee_bound, tf32, tf32x3, 3m"),
        (("occupancy", "--registers", "96", "--warps", "8", "--target", "a100", "--programs", "0"),
         "0 programs on 108 SMs: no wave"),
        (("occupancy", "--registers", "16", "--warps", "2", "--limits", "registers=1024,processors=10",
          "--programs", "25"),
         "5 of 10 slots in the last (5 SMs at work"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(arguments: tuple[str, ...], sentence: str) -> None:
    code, said = weft(*arguments)
    assert sentence in said
    assert code == (0 if arguments[0] == "occupancy" else 2)


MANY = "9" * 5000  # digits, more than Python reads as a number


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("explain", "mk,kn->mn", "--extents", f"m=4,n=4,k={MANY}"), "...' in --extents is not of the form a=16"),
        ((*PRODUCT, "--strides-a", f"m=1,k={MANY}"), "...' in --strides-a is not of the form m=64"),
        ((*PRODUCT, "--strides-a", f"m=1,k={2**62}"), "strides {'m': 1, 'k': 4611686018427387904} of A: no tensor"),
        ((*PRODUCT, "--strides-a", f"m=1,k={10**20}"), "of A: no tensor reaches so far"),
        ((*PRODUCT, "--strides-a", "m=1,k=64,m=2"), "--strides-a gives 'm' twice: 1 and 2"),
        ((*PRODUCT, "--epilogue", "bias", "--operands", "bias=n,bias=m"), "--operands gives 'bias' twice"),
        ((*PRODUCT, "--epilogue", "relu", "--indices", "i=m,i=n"), "--indices gives 'i' twice: m and n"),
        (("bench", "tccg", "--cases", "1-99999999999"), "'1-99999999999' in --cases is of more than 10000 numbers"),
        (("ladder", "cpu", "--rung", "1-99999999999"), "'1-99999999999' in --rung is of more than 10000 numbers"),
        (("ladder", "cpu", "--rung", "3-1"), "'3-1' in --rung ends before it begins"),
        (("occupancy", "--registers", "8", "--warps", "1", "--limits", "warps=x"), "--limits takes a number of bytes"),
        (("occupancy", "--registers", "8", "--warps", "1", "--limits", "warps=1,warps=2"),
         "--limits gives 'warps' twice: 1 and 2"),
        (("occupancy", "--registers", "8", "--warps", "1", "--shared", MANY), "--shared takes a number of bytes"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_meant(arguments: tuple[str, ...], sentence: str) -> None:
    code, said = weft(*arguments)
    assert code == 2
    assert sentence in said
    assert len(said) < 300


def test_a_file_of_equations_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "equations").write_bytes(b"\xff\xfe\x00")
    code, said = weft("warm", tmp_path / "equations")
    assert code == 2
    assert said.endswith("equations is no text")


def test_a_folder_without_a_run_is_named_once(tmp_path: Path) -> None:
    code, said = weft("report", tmp_path)
    assert code == 2
    assert said.endswith("run.json is no run of weft bench: No such file or directory")


@pytest.mark.parametrize(
    ("target", "device"),
    [("h100", "NVIDIA H100 80GB HBM3"), ("a100", "NVIDIA A100-SXM4-80GB"), ("RTX 4090", "NVIDIA GeForce RTX 4090"),
     ("rtx4090", "NVIDIA GeForce RTX 4090"), ("b200", "NVIDIA B200"),
     ("rtx4070", "NVIDIA GeForce RTX 4070"), ("RTX 4080", "NVIDIA GeForce RTX 4080"),
     ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"), ("sm_100", "NVIDIA B200"), ("sm90", "NVIDIA H200")],
)  # fmt: skip
def test_gpus_by_product_and_architecture(target: str, device: str) -> None:
    pytest.importorskip("triton")
    code, said = weft(*PRODUCT, "--dtype", "half", "--target", target)
    assert code == 0
    assert f"by the triton backend on {device}" in said
    assert f"ceilings of {device}, from the datasheet" in said


@pytest.mark.parametrize(("target", "capability"), [("V100", "7.0"), ("RTX 2080 Ti", "7.5"), ("sm_75", "7.5")])
def test_gpus_without_kernels_are_named_by_capability(target: str, capability: str) -> None:
    code, said = weft(*PRODUCT, "--target", target)
    assert code == 2
    assert said.endswith(f"target '{target}' is of compute capability {capability}: weft has no kernels for it")


def test_algebras_strides_chained_functions_and_what_they_take() -> None:
    code, said = weft(
        *PRODUCT, "--algebra", "tropical", "--strides-a", "m=1,k=64", "--epilogue", "bias,relu", "--operands",
        "bias=n:float64",
    )  # fmt: skip
    assert code == 0
    assert "in the algebra min_plus" in said
    assert "epilogue = chained" in said
    assert "bias, operand along n, float64" in said
    code, said = weft(*PRODUCT, "--epilogue", "causal", "--indices", "i=m,j=n")
    assert code == 0
    assert "i, coordinate along m" in said


def test_a_report_as_json_and_one_of_its_candidates_forced() -> None:
    done = CliRunner().invoke(app, [*PRODUCT, "--json"])
    report = json.loads(done.output)
    assert report["flops"] == 2 * 64 * 48 * 32
    last = report["candidates"][-1]["text"]
    code, said = weft(*PRODUCT, "--schedule", last)
    assert code == 0
    assert "forced by schedule=" in said


def test_numbers_as_people_write_them() -> None:
    from weft.cli.arguments import read_work
    from weft.errors import NotationError

    assert [read_work(text) for text in ("1e7", "10000000", "10M", "10_000_000", "2.5k")] == [*[10_000_000] * 4, 2500]
    for text in ("many", "0.5", "-1", "1.5"):
        with pytest.raises(NotationError, match=text):
            read_work(text)
    code, said = weft("bench", "tccg", "--dtypes", "half_float", "--cases", "1", "--list", "--work", "1e7")
    assert code == 0
    assert "fp16_fp32" in said
    code, said = weft("bench", "tccg", "--dtypes", "fp61", "--list")
    assert code == 2
    assert "did you mean 'fp" in said


class TestReports:
    def test_runs_without_common_cases_say_so(self, tmp_path: Path) -> None:
        save(run(case("tccg-01", weft=10)), tmp_path / "one")
        save(run(case("tccg-01", group="fp32", weft=10), case("tccg-02", group="fp32", weft=9)), tmp_path / "two")
        code, said = weft("report", tmp_path / "one", tmp_path / "two")
        assert code == 2
        assert "the runs have no case in common: one has 1 of fp16_fp32; two has 2 of fp32" in said
        assert "geometric means" not in said

    def test_words_stand_above_tables_and_beside_ratios(self, tmp_path: Path) -> None:
        save(run(case("tccg-01", weft=10, torch=30), case("tccg-02", weft=10, torch=20)), tmp_path)
        code, said = weft("report", tmp_path)
        assert code == 0
        assert "Each row is one figure over all cases of a group" in said
        assert "in words" in said
        page = (tmp_path / "index.html").read_text()
        assert page.count('<p class="note">') >= page.count("<table")
        assert "times as fast as torch, geometric mean of all cases" in page
        assert "times as fast as torch in the worst case" in page
        assert "prefers-color-scheme: dark) { figure img" in page

    def test_samples_of_two_groups_are_flagged(self, tmp_path: Path) -> None:
        found = run(case("tccg-01", weft=10, torch=30))
        found.cases[0].results["torch"] = result(30)
        slow = [30e-6 + 1e-8 * at for at in range(12)] + [45e-6 + 1e-8 * at for at in range(8)]
        found.cases[0].results["torch"].samples = tuple(slow)
        save(found, tmp_path)
        _, said = weft("report", tmp_path)
        assert "fall into two groups" in said
        assert re.search(r"30\.0\d us \(60%\) and 45\.0\d us \(40%\)", (tmp_path / "index.html").read_text())

    def test_one_group_is_not_two(self) -> None:
        assert two_groups([1.0] * 20) is None
        assert two_groups([1 + 0.01 * at for at in range(30)]) is None
        assert two_groups([1.0] * 19 + [2.0]) is None, "one slow sample is an outlier"
        assert two_groups([1.0, 2.0]) is None
        two = two_groups([1.0, 1.001] * 6 + [1.5, 1.501] * 4)
        assert two is not None
        assert two.share == pytest.approx(0.4)
