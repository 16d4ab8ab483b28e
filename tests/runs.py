"""Runs made up for tests: known times instead of measured ones."""

from __future__ import annotations

from typing import Any

from weft_bench.records import CaseRecord, Result, Run

MICRO = 1e-6


def result(microseconds: float, spread: float = 0.001, count: int = 11, **fields: Any) -> Result:
    """Samples spread evenly by `spread` of their median to both sides."""
    steps = [(2 * at / (count - 1) - 1) * spread for at in range(count)]
    samples = tuple(microseconds * MICRO * (1 + step) for step in steps)
    return Result(samples=samples, error_over_bound=0.25, timing={"ended": "converged"}, **fields)


def case(name: str, group: str = "fp16_fp32", functions: dict[str, str] | None = None, **times: float) -> CaseRecord:
    """A case whose contenders took so many microseconds."""
    return CaseRecord(
        name=name,
        group=group,
        base=name,
        equation="mk,kn->mn",
        extents=[("m", 100), ("k", 200), ("n", 300)],
        dtypes=("float16", "float16", "float32"),
        precision="",
        functions=functions or {},
        layouts=("contiguous",) * 4,
        scaled=False,
        modes={"m": 100, "n": 300, "k": 200, "batch": 1},
        work={"flops": 12_000_000, "function_flops": 0, "bytes": 280_000},
        floor={"seconds": 5 * MICRO, "binds": "memory", "compute": 3 * MICRO, "memory": 4 * MICRO, "launch": 1 * MICRO},
        results={name: result(time) for name, time in times.items()},
    )


def run(*cases: CaseRecord, suite: str = "tccg", ended: str = "finished", **fields: Any) -> Run:
    """A run on a made-up device, of whoever stands in the cases."""
    contenders = list(dict.fromkeys(name for each in cases for name in each.results)) or ["weft", "torch"]
    environment = {
        "date": fields.pop("date", "2026-11-20T12:00:00+00:00"),
        "platform": {"device": {"name": "NVIDIA H200"}},
        "artifacts": {"command": f"weft bench {suite}", "commit": fields.pop("commit", "abc123")},
    }
    given: dict[str, Any] = {"suite": suite, "device": "NVIDIA H200", "contenders": contenders, "ended": ended}
    return Run(**{**given, "environment": environment, **fields}, cases=list(cases))
