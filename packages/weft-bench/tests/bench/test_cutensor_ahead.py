"""Kernels that another process compiled for cuTENSOR are those that the measurement asks for."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_cutensor import FakeCutensor
from weft.testing import poisoned
from weft_bench import cases
from weft_bench.cases import Case, from_letters
from weft_bench.peers.cutensor import Cutensor
from weft_bench.peers.cutensor_ahead import compile_into, compile_kernels, meta_tensors
from weft_bench.peers.registry import Prepared, Tensors

CPU = torch.device("cpu")
PLAIN = from_letters("plain", "mk,kn->mn", m=4, k=5, n=6, dtypes=(torch.float16, torch.float16, torch.float32))


def tensors_of(case: Case) -> Tensors:
    return Tensors(*cases.operands(case), poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3]).tensor)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the CPU is aligned as memory of the GPU is, as far as the stand-in looks."""
    monkeypatch.setattr("weft_bench.peers.cutensor._SURE_ALIGNMENT", {"cpu": 16, "meta": 16})


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"a_fn": "relu", "b_fn": "relu", "epilogue": "relu"},
        {"a_fn": "leaky_relu"},
        {"dtypes": (torch.complex64,) * 3, "conjugate": (True, False)},
        {"layouts": ("permuted", "contiguous", "contiguous", "permuted")},
        {"add": True, "beta": 2.0},
    ],
)
def test_what_was_compiled_elsewhere_is_found(change: dict, tmp_path: Path) -> None:
    case = replace(PLAIN, **change)
    there, here = FakeCutensor(), FakeCutensor()
    compile_into(there.library, [case], tmp_path / "kernels")
    assert there.compiled > 0
    assert there.contractions == []
    here.library.read_kernels(tmp_path / "kernels")
    assert isinstance(Cutensor(here.library).prepare(case, tensors_of(case)), Prepared)
    assert here.compiled == 0


def test_without_it_kernels_are_compiled_where_they_are_needed() -> None:
    here = FakeCutensor()
    Cutensor(here.library).prepare(PLAIN, tensors_of(PLAIN))
    assert here.compiled > 0


def test_a_case_that_the_library_refuses_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    integers = replace(PLAIN, dtypes=(torch.int8, torch.int8, torch.int32))
    fake = FakeCutensor()
    compile_into(fake.library, [integers, PLAIN], tmp_path / "kernels")
    assert fake.compiled > 0
    assert (tmp_path / "kernels").exists()


def test_tensors_without_memory_lie_as_the_real_ones() -> None:
    for case in (*cases.beyond(), *cases.tccg()):
        small = cases.scaled(case, 1 << 10)
        for unreal, real in zip(meta_tensors(small), tensors_of(small), strict=True):
            assert (unreal is None) == (real is None), case
            if real is not None:
                assert (unreal.shape, unreal.stride(), unreal.dtype) == (real.shape, real.stride(), real.dtype), case
                assert unreal.is_conj() == real.is_conj()


def test_without_a_gpu_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.peers.cutensor_library.load", pytest.fail)
    compile_kernels([Cutensor()], [PLAIN] * 8, CPU, jobs=4)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_all_shares_arrive_and_one_that_fails_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand in for the processes, which need a GPU."""
    here = FakeCutensor()
    wide = [replace(PLAIN, name=str(n), shapes=((4, 5), (5, n))) for n in range(2, 8)]
    elsewhere: list[FakeCutensor] = []

    def share(given: list[Case], file: Path, device: torch.device, quick: bool) -> None:
        if wide[1] in given:
            raise RuntimeError("no room on the GPU")
        elsewhere.append(FakeCutensor())
        compile_into(elsewhere[-1].library, given, file, quick)

    monkeypatch.setattr("weft_bench.peers.cutensor_ahead._processes", ThreadPoolExecutor)
    monkeypatch.setattr("weft_bench.peers.cutensor_ahead._compile_share", share)
    peer = Cutensor(here.library)
    with pytest.warns(UserWarning, match="not all compiled ahead: RuntimeError: no room on the GPU"):
        compile_kernels([object(), peer], [*wide, replace(wide[0], a_fn="relu")], torch.device("cuda"), jobs=3)
    assert len(elsewhere) == 2
    for at, case in enumerate(wide):
        before = here.compiled
        assert isinstance(peer.prepare(case, tensors_of(case)), Prepared)
        assert (here.compiled > before) == (at % 3 == 1)
