"""The fuzz for a GPU finds what is wrong: its cases on the CPU, sound and spoiled."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import fuzz_gpu
import fuzz_jobs
import weft


def drawn(seed: int) -> fuzz_jobs.Draw:
    draw = fuzz_jobs.Draw(random.Random(seed), seed, 8, 1, "cpu", 1 << 10)
    draw.backend = {"backend": "reference"}
    return draw


def jobs(count: int = 60) -> list[fuzz_jobs.Job]:
    return [drawn(at % 8).job(kind) for kind in ("library", "permutation") for at in range(count // 2)]


def test_sound_results_pass_on_any_values() -> None:
    for job in jobs():
        for _ in range(2):
            job.reset()
            job.run()
            error, what = job.check()
            assert what is None, (job.text, what)
            assert error <= 1
            job.renew()


@pytest.mark.parametrize("fault", ["unwritten", "one off", "beside"])
def test_every_fault_is_found(fault: str) -> None:
    found = 0
    for job in jobs(20):
        if fault != "unwritten":
            job.run()
        place: Any = next(cell.cell_contents for cell in job.check.__closure__ or ()
                          if isinstance(cell.cell_contents, list))[0][0]  # fmt: skip
        if fault == "one off" and place.tensor.numel():
            place.tensor[(0,) * place.tensor.dim()] += 1
        if fault == "beside":
            place.memory[0] ^= 1
        found += job.check()[1] is not None
    assert found >= 18  # what is infinite or of eight bits may hide a one


def test_a_call_that_goes_wrong_after_others_is_found() -> None:
    """It leaves out D from the third call on."""
    (job,) = jobs(2)[1:]
    calls, run, tally = count(1), job.run, fuzz_gpu.Tally()
    job.run = lambda: run() if next(calls) < 3 else None
    fuzz_gpu.eager(tally, "permutation", [job], "cpu")
    assert [fault["what"].partition(":")[0] for fault in tally.faults] == ["eager, call 3", "eager, call 4"]


def test_a_worker_counts_and_a_table_sums_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_gpu, "WEIGHTS", {"permutation": 1})
    monkeypatch.setattr(fuzz_jobs, "MOVES", ("ab->ba",))
    file = tmp_path / "0.json"
    fuzz_gpu.worker(0, 1, 2.0, 3, "cpu", file, 256)
    sound = json.loads(file.read_text())
    assert sum(sound["tried"].values()) > 4
    assert not sound["wrong"]
    monkeypatch.setattr(weft, "permute", lambda x, equation, out, **words: out.fill_(1))
    spoiled = tmp_path / "1.json"
    fuzz_gpu.worker(0, 1, 2.0, 3, "cpu", spoiled, 256)
    found = fuzz_gpu.gathered([file, spoiled, tmp_path / "2.json"], [0, 0, -11])
    assert found["wrong"]["worker / 2"] == 1
    assert sum(found["wrong"].values()) > 1
    last = fuzz_gpu.table(found, 4.0).splitlines()[-1]
    assert last == f"{sum(found['tried'].values())} cases in 4 s, {sum(found['wrong'].values())} wrong"
    assert torch.get_default_dtype() is torch.float32
