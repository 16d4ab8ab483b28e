"""Ceilings: measured small on this machine, kept on disk, and named by the types of a contraction."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from weft.errors import UnsupportedError, WeftWarning
from weft.machine import ceilings as module
from weft.machine import identity
from weft.machine.ceilings import Ceilings, Probe, ceilings, from_datasheet, measure_ceilings, rate_name
from weft.machine.identity import machine_identity
from weft.machine.stamp import cpu_name, device_stamp, package_version

SMALL = Probe(array_bytes=1 << 20, matrix_extents=(64, 128), budget=0.01)


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What is being measured, as it is said."""
    return []


@pytest.fixture(scope="module")
def small(heard: list[str]) -> Ceilings:
    return measure_ceilings("cpu", SMALL, heard.append)


def test_every_ceiling_of_this_cpu_is_measured(small: Ceilings) -> None:
    assert small.source == "measured"
    assert small.device == cpu_name()
    for rate in (small.read, small.write, small.copy):
        assert 1e8 < rate < 1e13
    assert {"float16", "bfloat16", "float32", "float64"} <= small.matrix.keys()
    assert "tf32" not in small.matrix  # a CPU has none
    assert all(1e6 < rate < 1e15 for rate in small.matrix.values())
    assert 1e-8 < small.launch_eager < 1e-3
    assert small.launch_graph is None
    assert small.stamp == device_stamp("cpu")


def test_the_better_round_counts_and_the_other_says_how_far_it_is_off() -> None:
    rounds = [{"read": module._Rate(28.0, 0.01)}, {"read": module._Rate(122.0, 0.02)}]
    assert module._better(rounds)["read"] == module._Rate(122.0, 1 - 28 / 122)
    assert module._better(rounds[1:])["read"].spread == 0.02


@pytest.fixture(scope="module")
def steady(small: Ceilings) -> Ceilings:
    return replace(small, spread=0.0, shakiest="float32 products", others=0.0)


def test_derived_rates(small: Ceilings) -> None:
    assert small.matrix["float16"] >= small.matrix["float32"]
    assert small.best_read == max(small.read, small.copy)
    assert small.best_write == max(small.write, small.copy)
    assert small.rate("float64") == small.matrix["float64"]
    assert small.rate("tf32x3") is None
    assert replace(small, matrix={"tf32": 300.0}).rate("tf32x3") == 100.0


def test_progress_names_every_measurement(small: Ceilings, heard: list[str]) -> None:
    assert heard[:4] == ["launches", "read", "write", "copy"]
    assert heard.count("read") == 2, "in two rounds"
    assert "float64 products" in heard


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ((torch.float16, torch.float32), "float16"),
        ((torch.bfloat16, torch.float64), "float64"),
        ((torch.float32, torch.float32), "float32"),
        ((torch.float32, torch.float32, "tf32"), "tf32"),
        ((torch.complex64, torch.complex64, "tf32x3"), "tf32x3"),
        ((torch.float32, torch.float64, "tf32"), "float64"),
        ((torch.complex64, torch.complex128), "float64"),
        ((torch.int8, torch.int32), "int8"),
    ],
)
def test_types_name_their_rate(types: tuple, name: str) -> None:
    assert rate_name(*types) == name


class TestKept:
    """What `ceilings` measures once, it finds again."""

    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steady: Ceilings) -> None:
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(module, "_known", {})
        self.measured, self.spread, self.others = 0, 0.0, 0.0

        def measure(device: object, **options: object) -> Ceilings:
            self.measured += 1
            return replace(steady, spread=self.spread, others=self.others)

        monkeypatch.setattr(module, "measure_ceilings", measure)

    def _forget(self) -> None:
        module._known.clear()

    def test_in_memory_and_on_disk(self, steady: Ceilings) -> None:
        assert ceilings("cpu") == ceilings("cpu") == steady
        self._forget()
        assert ceilings("cpu") == steady
        assert self.measured == 1

    def test_what_is_not_repeatable_is_told_and_not_kept(self, tmp_path: Path) -> None:
        """On a busy host 28 GFLOP/s were found, stored and believed where 122 were to be had."""
        self.spread = 0.77
        with pytest.warns(WeftWarning, match=r"not repeatable \(float32 products differs by 77 %.*not kept"):
            found = ceilings("cpu")
        assert not found.steady
        assert not (tmp_path / "ceilings").exists()
        self._forget()
        self.spread = 0.0
        assert ceilings("cpu").steady
        assert self.measured == 2

    def test_what_was_measured_while_others_were_at_work_is_told_and_not_kept(self, tmp_path: Path) -> None:
        """Rounds agree on a machine that is busy through both: 1.77 GB/s were found so, kept and believed."""
        self.others = 0.6
        with pytest.warns(WeftWarning, match=r"others took 60 % of the processor's time meanwhile.*not kept"):
            assert not ceilings("cpu").steady
        assert not (tmp_path / "ceilings").exists()

    @pytest.mark.parametrize(
        "change", [{"cores": 3}, {"set": "4-7"}, {"memory": 7}, {"maker": ["A", "B"]}, {"hypervisor": "xen"}]
    )
    def test_another_machine_of_the_same_processor_is_another_device(
        self, monkeypatch: pytest.MonkeyPatch, change: dict
    ) -> None:
        ceilings("cpu")
        real = machine_identity()
        monkeypatch.setattr(identity, "machine_identity", lambda: real | change)
        self._forget()
        ceilings("cpu")
        assert self.measured == 2

    def test_refresh_measures_again(self) -> None:
        ceilings("cpu")
        ceilings("cpu", refresh=True)
        assert self.measured == 2

    def test_another_number_of_threads_is_another_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ceilings("cpu")
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
        ceilings("cpu")
        assert self.measured == 2

    @pytest.mark.parametrize("change", [{"read": 0.0}, {"copy": -1.0}, {"matrix": None}, {"unknown": 1}])
    def test_what_makes_no_sense_is_measured_again(self, tmp_path: Path, change: dict) -> None:
        ceilings("cpu")
        (file,) = (tmp_path / "ceilings").glob("*.json")
        entry = json.loads(file.read_text())
        entry["value"] |= change
        file.write_text(json.dumps(entry))
        self._forget()
        assert math.isfinite(ceilings("cpu").read)
        assert self.measured == 2

    def test_an_unknown_device_has_no_datasheet(self) -> None:
        with pytest.raises(UnsupportedError, match="no ceilings are known"):
            ceilings("cpu", may_measure=False)
        assert self.measured == 0


def test_a_datasheet_says_that_it_is_one() -> None:
    h200 = from_datasheet("NVIDIA H200")
    assert h200.source == "datasheet"
    assert h200.read == h200.write == h200.copy == 4.8e12
    assert h200.date == ""
    json.dumps(asdict(h200), allow_nan=False)


def test_stamp_is_json_and_names_the_software() -> None:
    stamp = json.loads(json.dumps(device_stamp("cpu")))
    assert stamp == device_stamp("cpu")
    assert stamp["torch"] == torch.__version__
    assert package_version("no-such-distribution") is None


def test_the_switch_of_tf32_is_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = (matmul.allow_tf32, getattr(matmul, "fp32_precision", None))
    for wanted in (True, False):
        with module.float32_products(tf32=wanted):
            assert matmul.allow_tf32 is wanted
        assert (matmul.allow_tf32, getattr(matmul, "fp32_precision", None)) == before


@pytest.mark.gpu
def test_ceilings_of_this_gpu_are_below_its_datasheet() -> None:
    measured = measure_ceilings("cuda", Probe(1 << 28, (4096,), 0.2))
    assert measured.launch_graph is not None
    assert measured.launch_graph < measured.launch_eager
    assert measured.matrix["tf32"] > measured.matrix["float32"]
    printed = module.datasheet(measured.device)
    if printed is not None:
        assert 0.5 * printed.bandwidth < measured.copy < printed.bandwidth
        for name, rate in measured.matrix.items():
            assert rate < 1.01 * printed.matrix.get(name, math.inf)
