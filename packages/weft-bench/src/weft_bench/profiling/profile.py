"""One call measured and explained: time with its interval, floor, launches, host, kernels, counters, what binds it.

`Profile` is data: it prints itself, makes JSON, and a page (`weft_bench.profiling.page`). What could not be had is in
`missing`, with the reason.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from weft.api.contract import plan as make_plan
from weft.errors import UnsupportedError
from weft.machine.ceilings import Ceilings, rate_name
from weft.machine.counts import Work, contraction_work, permutation_work
from weft.machine.datasheets import limits_of
from weft.machine.roofline import Floor, contraction_floor, work_floor
from weft.machine.stamp import device_stamp
from weft.machine.timing import host_time, measure
from weft.plans.base import PlanBase
from weft.spec.permutation import Permutation
from weft_bench.cases import Case
from weft_bench.machine.laws import Scaling
from weft_bench.peers.registry import Tensors
from weft_bench.profiling import ncu
from weft_bench.profiling.launches import Launch, traced
from weft_bench.profiling.page import JSON_FILE, body, save, write_page
from weft_bench.profiling.record import Record, kept_l2
from weft_bench.profiling.replay import TURN
from weft_bench.profiling.subject import Subject, usual_sampling
from weft_bench.profiling.text import text
from weft_bench.profiling.tradeoff import Trade
from weft_bench.records import reading
from weft_bench.timed_sets import Sampling, TimedSets

NOT_ASKED = "not asked for"  # why a profile has no counters
SIDE_BY_SIDE = 6  # processes of the profiler: most of their time is spent on imports


@dataclass
class Profile(Record):
    """A profile of one call: data (see `Record`) that prints itself, in a notebook as a page, and is saved as both."""

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return body([self])

    def save(self, folder: Path | str) -> Path:
        """Write ``profile.json`` and the page ``index.html`` into a folder, and return the page's path."""
        return save([self], Path(folder))


def load(file: Path) -> list[Profile]:
    """Profiles that `save` wrote, by the folder or the JSON file; `WeftError` where there are none."""
    file = file / JSON_FILE if file.is_dir() else file
    with reading(file, "profile of weft"):
        return [Profile.from_dict(each) for each in json.loads(file.read_text())["profiles"]]


def page_anew(folder: Path) -> Path:
    """Write the page of profiles that `save` wrote anew; returns it."""
    profiles, file = load(folder), folder / JSON_FILE
    with reading(file, "profile of weft"):
        document = json.loads(file.read_text())
        measured = [Scaling.from_dict(each) for each in document["scaling"]]
        traded = [Trade(**each) for each in document["precisions"]]
    return write_page(profiles, folder, measured, traded)


def profiled(
    subject: Subject, *, sampling: Sampling | None = None, ceilings: Ceilings | None = None, counters: bool = True,
    error_over_bound: float | None = None, environment: Mapping[str, Any] | None = None,
) -> Profile:  # fmt: skip
    """Measure a subject. `counters` False leaves the profiler's run out."""
    sampling = sampling or usual_sampling(subject.device)
    on_gpu = subject.device.type == "cuda"
    sets = TimedSets(subject.tensors, subject.device, sampling)
    taken = measure(
        subject.call, sets.rotated(subject.call), device=subject.device, mode=sampling.mode, rrs=sampling.rrs,
        budget=sampling.budget, threads=sampling.threads, capture=sampling.capture,
    )  # fmt: skip
    how = {name: value for name, value in asdict(taken).items() if name != "samples"}
    found = Profile(
        subject.name, subject.about, _device_name(subject.device), datetime.now(UTC).isoformat(timespec="seconds"),
        samples=taken.samples, timing=how, error_over_bound=error_over_bound, environment=dict(environment or {}),
    )  # fmt: skip
    if subject.plan is not None:
        _of_plan(found, subject.plan, ceilings, on_gpu)
    if on_gpu:
        found.host = host_time(subject.call, subject.tensors, subject.device)
        _of_launches(found, subject)
    else:
        found.missing["launches"] = found.missing["host time"] = "on a CPU a call is one: nothing is launched"
    if counters:
        add_counters([(found, subject.recipe_bytes())], subject.device)
    else:
        found.missing["counters"] = NOT_ASKED
    return found


def add_counters(profiles: Sequence[tuple[Profile, bytes | str]], device: torch.device) -> None:
    """Add the counters of several calls, each by its recipe, or by the sentence that says why there is none.

    Processes of the profiler start side by side, and take turns at the GPU.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(lambda each: _of_counters(each[0], each[1], device, Path(folder)), profiles))


def add_work(found: Profile, case: Case, tensors: Tensors, known: Ceilings | None) -> None:
    """Work and floor of a case for a peer, which has no plan that says them."""
    if found.flops or found.bytes:
        return
    options = case.options()
    for name in ("alpha", "beta"):
        del options[name]
    a, b, c, d = tensors
    plan: Any = make_plan(case.equation, a, b, c=c, out=d, backend="reference", **options)
    _of_work(found, plan.contraction, known, a.device.type == "cuda")


def work_of(subject: Subject) -> Work:
    """Flops and compulsory bytes of a subject that has a plan."""
    return (
        _work(subject.plan._first().description, None, False)[0] if subject.plan is not None else Work(0, 0, 0, 0, 0, 0)
    )


def _device_name(device: torch.device) -> str:
    return str(device_stamp(device)["name"])


def _of_plan(found: Profile, plan: PlanBase, known: Ceilings | None, on_gpu: bool) -> None:
    """Work, floor and kernels, which a plan knows of itself."""
    found.schedule = str(plan.schedule) if plan.schedule is not None else None
    _of_work(found, plan._first().description, known, on_gpu)
    try:
        found.kernels = [kernel.to_dict() for kernel in plan.kernels]
    except UnsupportedError as error:
        found.missing["kernels"] = str(error)
    if not found.kernels and on_gpu and "kernels" not in found.missing:
        found.missing["kernels"] = "all launches are a vendor's library's: the launches say what they take"


def _of_work(found: Profile, description: Any, known: Ceilings | None, on_gpu: bool) -> None:
    """Flops, bytes and, where ceilings are known, the floor."""
    work, floor, rate = _work(description, known, on_gpu)
    found.flops, found.bytes = work.flops, work.traffic
    if known is None or floor is None:
        found.missing["floor"] = "no ceilings are known of this device: `weft info` measures them"
        return
    l2 = kept_l2(torch.device("cuda")) if on_gpu and torch.cuda.is_available() else None
    causes = {name: value for name, value in asdict(floor).items() if math.isfinite(value)}
    found.floor = {"seconds": floor.seconds, "binds": floor.binds, **causes}
    found.ceilings = {
        "source": known.source, "read": known.best_read, "write": known.best_write, "copy": known.copy,
        "rate": rate, "products": known.rate(rate) if rate else None, "matrix": dict(known.matrix),
        "launch": known.launch_graph if on_gpu else known.launch_eager, "l2": l2,
    }  # fmt: skip


def _work(description: Any, known: Ceilings | None, on_gpu: bool) -> tuple[Work, Floor | None, str]:
    """Counts, the floor where ceilings are known, and the name of the rate that bounds the products."""
    if isinstance(description, Permutation):
        work = permutation_work(description.x, description.d, description.fn)
        return work, work_floor(work, known, in_graph=on_gpu) if known is not None else None, ""
    arithmetic = description.arithmetic
    rate = rate_name(arithmetic.product, arithmetic.accumulate, arithmetic.fastest)
    floor = contraction_floor(description, known, in_graph=on_gpu) if known is not None else None
    return contraction_work(description), floor, rate


def _of_launches(found: Profile, subject: Subject) -> None:
    try:
        found.launches = _placed(traced(lambda: subject.call(*subject.tensors)), subject.device)
    except (RuntimeError, OSError, ValueError) as error:
        found.missing["launches"] = f"torch's profiler gave no trace: {str(error).partition(chr(10))[0]}"
        return
    if not found.launches:
        found.missing["launches"] = "torch's profiler saw no launch: another profiler may hold the GPU"


def _placed(launches: list[Launch], device: torch.device) -> list[Launch]:
    """Launches with what they could fill of the device's SMs, where its architecture is in the table."""
    properties = torch.cuda.get_device_properties(device)
    try:
        limits = limits_of(10 * properties.major + properties.minor)
    except UnsupportedError:
        return launches
    return [each.on(limits, properties.multi_processor_count) for each in launches]


def _of_counters(found: Profile, sent: bytes | str, device: torch.device, folder: Path) -> None:
    """One run of the profiler."""
    found.missing.pop("counters", None)
    if (reason := _uncounted(device)) or isinstance(sent, str):
        found.missing["counters"] = reason or str(sent)
        return
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    with tempfile.NamedTemporaryFile(suffix=".weft-call", dir=folder) as file:
        file.write(sent)
        file.flush()
        counted = ncu.count(
            Path(file.name), processors=processors, device=found.device, environment={TURN: str(folder / "turn")}
        )
    found.counters = list(counted.sets)
    if counted.missing:
        found.missing["counters"] = counted.missing
    found.environment["profiling"] = {
        "tool": f"Nsight Compute {counted.version}".strip(), "command": counted.command, "launches": len(counted.sets),
        "replay": "a process of its own, one call after two that warm up; kernels replayed, caches emptied before each "
        "pass, clocks left alone",
    }  # fmt: skip


def _uncounted(device: torch.device) -> str:
    """Why a device has no counters; empty where it has."""
    if device.type != "cuda":
        return "hardware counters are read of NVIDIA's GPUs: this ran on a CPU"
    return "hardware counters are read by Nsight Compute, which knows no AMD GPU" if torch.version.hip else ""
