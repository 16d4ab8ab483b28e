"""The counters that a profile reads: K1 to K10 of a fixed pack, what each pipe did, and bytes that really moved.

The pack is Table 5.2 of *Design and Performance Engineering of GPU-Accelerated Tensor Network Algorithms* (2026); each
counter has the names that versions of Nsight Compute know it by, the first one first, and a factor to its unit here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEDULERS = 4  # of an SM, each with issue slots of its own
LANES = 32  # of a warp


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: what it says, in which unit, and what profilers call it.

    A name's factor turns what the profiler says into the unit here; "schedulers" divides by all of the device.
    """

    key: str
    words: str
    unit: str  # "%", "warps", "blocks", "B", "s" or ""
    names: tuple[tuple[str, float | str], ...]


_PEAK, _BUSY = "avg.pct_of_peak_sustained_elapsed", "avg.pct_of_peak_sustained_active"


def _same(*names: str) -> tuple[tuple[str, float | str], ...]:
    return tuple((name, 1.0) for name in names)


PACK = (
    Counter("K1", "SM throughput", "%", _same(f"sm__throughput.{_PEAK}", f"sm__throughput.{_BUSY}")),
    Counter("K2", "DRAM throughput", "%", _same(
        f"dram__throughput.{_PEAK}", f"gpu__dram_throughput.{_PEAK}", f"dram__bytes.sum.{_PEAK.removeprefix('avg.')}",
    )),
    Counter("K3", "L2 throughput", "%", _same(f"lts__throughput.{_PEAK}", f"lts__t_sectors.{_PEAK}")),
    Counter("K4", "L1 hit rate", "%", _same("l1tex__t_sector_hit_rate.pct")),
    Counter("K5", "FP32 FMA pipe active", "%", _same(
        f"smsp__pipe_fma_cycles_active.{_BUSY}", f"sm__pipe_fma_cycles_active.{_BUSY}",
        f"sm__inst_executed_pipe_fma.{_BUSY}", f"smsp__inst_executed_pipe_fma.{_BUSY}",
    )),
    Counter("K6", "warps active", "%", _same(f"sm__warps_active.{_BUSY}", f"smsp__warps_active.{_BUSY}")),
    Counter("K7", "blocks that registers allow", "blocks", _same("launch__occupancy_limit_registers")),
    Counter("K8", "warps eligible a cycle and scheduler", "warps", (
        ("smsp__warps_eligible.avg.per_cycle_active", 1.0), ("smsp__warps_eligible.sum.per_cycle_active", "schedulers"),
    )),
    Counter("K9", "issue slots active", "%", (
        (f"smsp__issue_active.{_BUSY}", 1.0), ("smsp__issue_active.avg.per_cycle_active", 100.0),
        (f"sm__inst_issued.{_BUSY}", 1.0),
    )),
    Counter("K10", "lanes active an instruction", "%", (
        ("smsp__thread_inst_executed_per_inst_executed.pct", 1.0),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", 100.0 / LANES),
    )),
)  # fmt: skip

# What a contraction needs besides: which of the other pipes work, what moved, and what else limits an SM.
MORE = (
    Counter("tensor", "tensor pipe active", "%", _same(
        f"sm__pipe_tensor_cycles_active.{_BUSY}", f"sm__inst_executed_pipe_tensor.{_BUSY}",
        f"sm__pipe_tensor_op_gmma_cycles_active.{_BUSY}", f"sm__pipe_tensor_op_hmma_cycles_active.{_BUSY}",
    )),
    Counter("fp64", "FP64 pipe active", "%", _same(
        f"sm__pipe_fp64_cycles_active.{_BUSY}", f"sm__inst_executed_pipe_fp64.{_BUSY}",
    )),
    Counter("alu", "ALU pipe active", "%", _same(
        f"sm__pipe_alu_cycles_active.{_BUSY}", f"sm__inst_executed_pipe_alu.{_BUSY}",
    )),
    Counter("dram_read", "bytes read from DRAM", "B", _same("dram__bytes_read.sum")),
    Counter("dram_write", "bytes written to DRAM", "B", _same("dram__bytes_write.sum")),
    Counter("l2_bytes", "bytes through the L2", "B", _same("lts__t_bytes.sum")),
    Counter("l2_hits", "L2 hit rate", "%", _same("lts__t_sector_hit_rate.pct", "lts__average_t_sector_hit_rate.pct")),
    Counter("l2_hit", "sectors that the L2 had", "", _same("lts__t_sectors_lookup_hit.sum")),
    Counter("l2_miss", "sectors that the L2 lacked", "", _same("lts__t_sectors_lookup_miss.sum")),
    Counter("inst_warp", "instructions a warp", "", _same("smsp__average_inst_executed_per_warp.ratio")),
    Counter("global_ld", "bytes of global loads", "B", _same("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum")),
    Counter("global_st", "bytes of global stores", "B", _same("l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum")),
    Counter("shared_ld_turns", "wavefronts of shared loads", "",
            _same("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum")),
    Counter("shared_ld", "shared loads", "", _same("smsp__inst_executed_op_shared_ld.sum")),
    Counter("shared_st_turns", "wavefronts of shared stores", "",
            _same("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum")),
    Counter("shared_st", "shared stores", "", _same("smsp__inst_executed_op_shared_st.sum")),
    Counter("shared_busy", "shared memory busy", "%",
            _same(f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_PEAK}")),
    Counter("seconds", "time under the profiler", "s", _same("gpu__time_duration.sum", "gpu__time_duration.avg")),
    Counter("limit_shared", "blocks that shared memory allows", "blocks", _same("launch__occupancy_limit_shared_mem")),
    Counter("limit_warps", "blocks that warps allow", "blocks", _same("launch__occupancy_limit_warps")),
    Counter("limit_blocks", "block slots", "blocks", _same("launch__occupancy_limit_blocks")),
    Counter("theoretical", "warps that could be active", "%", _same("sm__maximum_warps_per_active_cycle_pct")),
    Counter("waves", "waves", "", _same("launch__waves_per_multiprocessor")),
    Counter("registers", "registers a thread", "", _same("launch__registers_per_thread")),
)  # fmt: skip

HIT_RATES = ("K4", "l2_hits")
ALL = (*PACK, *MORE)
KNOWN: Mapping[str, Counter] = {each.key: each for each in ALL}


def metric_names() -> list[str]:
    """Every name of every counter: a profiler answers for those it knows."""
    return list(dict.fromkeys(name for counter in ALL for name, _ in counter.names))


@dataclass(frozen=True, slots=True)
class CounterSet:
    """The counters of one launch: values by key in the units of `KNOWN`, and the name that each was read under.

    A counter that the profiler does not know is missing.
    """

    kernel: str
    values: Mapping[str, float]
    names: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    source: str = ""  # where the numbers come from, if not from a run of the profiler here

    def get(self, key: str) -> float | None:
        """A counter, or None where it is missing."""
        return self.values.get(key)

    @property
    def dram_bytes(self) -> float | None:
        """Bytes that really moved between memory and the chip."""
        read, write = self.get("dram_read"), self.get("dram_write")
        return None if read is None or write is None else read + write

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "device": self.device, "source": self.source, "values": dict(self.values),
            "names": dict(self.names),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> CounterSet:
        return cls(
            saved["kernel"], dict(saved["values"]), dict(saved.get("names", {})), saved.get("device", ""),
            saved.get("source", ""),
        )  # fmt: skip


def counted(
    kernel: str, metrics: Mapping[str, float], *, processors: int | None = None, device: str = ""
) -> CounterSet:
    """Counters from metrics by the profiler's names, the first name of each that is there.

    `processors` is the number of SMs, by which sums over all schedulers are divided; without it they are left out.
    """
    values: dict[str, float] = {}
    names: dict[str, str] = {}
    for counter in ALL:
        for name, factor in counter.names:
            if name not in metrics or (isinstance(factor, str) and not processors):
                continue
            scale = 1 / (SCHEDULERS * processors) if isinstance(factor, str) and processors else factor
            values[counter.key], names[counter.key] = metrics[name] * float(scale), name
            break
    hit, miss = values.get("l2_hit"), values.get("l2_miss")
    if hit is not None and miss is not None and hit + miss:
        values["l2_hits"], names["l2_hits"] = 100 * hit / (hit + miss), f"{names['l2_hit']} and {names['l2_miss']}"
    for key in HIT_RATES:  # of counters read in several passes: one that cannot be is left out
        if values.get(key, 0.0) > 100:
            del values[key], names[key]
    return CounterSet(kernel, values, names, device)


def text_of(key: str, value: float) -> str:
    """A counter's value as people read it: ``"K1 98.5 %"``."""
    unit = KNOWN[key].unit
    return f"{key} {value:.3g}{f' {unit}' if unit else ''}"
