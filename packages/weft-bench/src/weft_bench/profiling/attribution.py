"""The reading of a kernel's counters: five patterns as stated rules, each with the numbers that it was decided by.

The patterns are those of section 5.5.2 of *Design and Performance Engineering of GPU-Accelerated Tensor Network
Algorithms*: compute, memory, occupancy, scheduler starvation, divergence. It states them in words; the thresholds stand
in `RULES` and nowhere else. Where it says "K5", the busiest of the FMA, tensor and FP64 pipes counts: a contraction may
live in any of them. A kernel that fills its issue slots is bound by computing as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_bench.profiling.counters import CounterSet

HIGH, LOW = 60.0, 40.0  # per cent of a peak: high from here on, low up to there
FULL_SLOTS = 80.0  # per cent of issue slots: nothing more can be issued
ENOUGH_WARPS = 1.0  # eligible warps a cycle and scheduler: with fewer, slots go empty
HALF_LANES = 75.0  # per cent of the lanes of a warp: below, a branch or a mask wastes every fourth
FEW_WARPS = 50.0  # per cent of the warps that an SM could hold


@dataclass(frozen=True, slots=True)
class Test:
    """A figure held against a threshold."""

    figure: str  # a key of `FIGURES`
    sign: str  # ">=" or "<"
    threshold: float | str  # a number, or another figure

    def holds(self, figures: Mapping[str, float]) -> bool | None:
        """None where a figure is missing."""
        value = figures.get(self.figure)
        bound = figures.get(self.threshold) if isinstance(self.threshold, str) else self.threshold
        if value is None or bound is None:
            return None
        return bool(_SIGNS[self.sign](value, bound))

    def __str__(self) -> str:
        return f"{self.figure} {self.sign} {self.threshold}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern: all clauses must hold, a clause by any of its tests; what is missing decides nothing.

    `needed` clauses, the first ones, must be known; the others are passed over where their figures are missing.
    """

    name: str
    says: str
    clauses: tuple[tuple[Test, ...], ...]
    needed: int = 1


_SIGNS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}

# In the order in which they bind: the first that holds is what a kernel is bound by.
RULES = (
    Rule("compute", "the SMs and one of their pipes, or the issue slots, are busy, and memory is less so", (
        (Test("K1", ">=", HIGH),),
        (Test("pipe", ">=", HIGH), Test("K9", ">=", FULL_SLOTS)),
        (Test("memory", "<", "K1"),),
    ), needed=2),
    Rule("memory", "DRAM or the L2 is busy, and warps wait for it", (
        (Test("memory", ">=", HIGH),),
        (Test("pipe", "<", "memory"),),
        (Test("K9", "<", FULL_SLOTS), Test("K8", "<", ENOUGH_WARPS)),
    )),
    Rule("divergence", "instructions run with lanes switched off", (
        (Test("K10", "<", HALF_LANES),),
    )),
    Rule("occupancy", "registers allow few blocks, and few warps are active", (
        (Test("register limit", ">=", 1),),
        (Test("K6", "<", FEW_WARPS),),
    ), needed=2),
    Rule("starvation", "schedulers find no warp that can issue", (
        (Test("K9", "<", LOW),),
        (Test("K8", "<", ENOUGH_WARPS),),
    )),
)  # fmt: skip

#: Figures that rules name besides counters: how each is made of them.
FIGURES: Mapping[str, Callable[[CounterSet], float | None]] = {
    "pipe": lambda found: _largest(found, ("K5", "tensor", "fp64")),
    "memory": lambda found: _largest(found, ("K2", "K3")),
    "register limit": lambda found: _register_limit(found),
}

_PIPES = {"K5": "FMA pipe", "tensor": "tensor pipe", "fp64": "FP64 pipe"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one pattern holds, and the numbers that said so."""

    pattern: str
    holds: bool | None  # None: counters that it needs are missing
    numbers: Mapping[str, float]
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        return {"pattern": self.pattern, "holds": self.holds, "numbers": dict(self.numbers), "sentence": self.sentence}


def figures_of(found: CounterSet) -> dict[str, float]:
    """Counters, and the figures made of them, that are known."""
    made = {name: make(found) for name, make in FIGURES.items()}
    return {**found.values, **{name: value for name, value in made.items() if value is not None}}


def attribute(found: CounterSet) -> list[Finding]:
    """Every rule applied, in the order of `RULES`."""
    figures = figures_of(found)
    return [_applied(rule, found, figures) for rule in RULES]


def binds(findings: Sequence[Finding]) -> Finding | None:
    """The first pattern that holds; None where none does."""
    return next((each for each in findings if each.holds), None)


def sentence(found: CounterSet) -> str:
    """The limit of a kernel in one sentence, with its numbers."""
    findings = attribute(found)
    first = binds(findings)
    if first is not None:
        others = [each.pattern for each in findings if each.holds and each is not first]
        also = f" ({' and '.join(others)} {'hold' if len(others) > 1 else 'holds'}, too)" if others else ""
        return f"{found.kernel}: bound by {first.pattern}: {first.sentence}{also}"
    unknown = [each.pattern for each in findings if each.holds is None]
    why = f" ({', '.join(unknown)}: counters are missing)" if unknown else ""
    return f"{found.kernel}: no pattern holds{why}; it waits for something that these counters do not see"


def _applied(rule: Rule, found: CounterSet, figures: Mapping[str, float]) -> Finding:
    verdicts = [_clause(clause, figures) for clause in rule.clauses]
    known = [verdict for at, verdict in enumerate(verdicts) if verdict is not None or at < rule.needed]
    holds = False if False in known else None if None in known else True
    used = {
        name: figures[name]
        for clause in rule.clauses
        for test in clause
        for name in (test.figure, test.threshold)
        if isinstance(name, str) and name in figures
    }
    return Finding(rule.name, holds, used, f"{rule.says} ({_numbers(used, found)})")


def _clause(clause: Sequence[Test], figures: Mapping[str, float]) -> bool | None:
    verdicts = [test.holds(figures) for test in clause]
    return True if True in verdicts else None if None in verdicts else False


def _numbers(used: Mapping[str, float], found: CounterSet) -> str:
    said = []
    for name, value in used.items():
        if name == "register limit":
            said.append("registers are what limits blocks" if value else "registers are not what limits blocks")
            continue
        unit = " warps" if name == "K8" else " %"
        label = name
        if name == "pipe":
            label = next((words for key, words in _PIPES.items() if found.get(key) == value), name)
        said.append(f"{label} {value:.3g}{unit}")
    return ", ".join(said) or "no counter known"


def _largest(found: CounterSet, keys: Sequence[str]) -> float | None:
    known = [value for key in keys if (value := found.get(key)) is not None]
    return max(known, default=None)


def _register_limit(found: CounterSet) -> float | None:
    """1 where registers allow fewest blocks. With no other limit known, where they allow less than all warps."""
    mine = found.get("K7")
    others = [value for key in ("limit_shared", "limit_warps", "limit_blocks") if (value := found.get(key)) is not None]
    if mine is None:
        return None
    return float(mine <= min(others)) if others else None
