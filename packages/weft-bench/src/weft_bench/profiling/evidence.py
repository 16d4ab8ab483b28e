"""From a claim to its evidence: what must be shown before one variant is called faster *because* of something.

The four parts are those of section 3.6.4 of *Design and Performance Engineering of GPU-Accelerated Tensor Network
Algorithms*: effect, mechanism match, numerical validity, reproducibility. What is faster without matching counters is
reported as empirical and not attributed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from weft.machine.statistics import Interval, bootstrap_medians, percentile_interval

POINTS = 5.0  # of per cent: by so much a counter must move to count as moved
SHARE = 0.05  # the same of figures that are no shares of a peak


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the two that are compared: samples, figures by name, and what makes the result repeatable.

    `figures` are counters and derived ones (see `attribution.figures_of`), and "launches", "host" (seconds) and "bytes"
    (that really moved) where they are known. `error_over_bound` is at most 1 where the result is right.
    """

    name: str
    samples: Sequence[float] = ()  # seconds a call
    figures: Mapping[str, float] = field(default_factory=dict)
    error_over_bound: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)  # command, commit, device, driver


@dataclass(frozen=True, slots=True)
class Move:
    """How a figure must change from the slower variant to the faster one, if a mechanism is at work."""

    figure: str
    up: bool
    least: float = POINTS
    relative: bool = False

    def made(self, slow: Mapping[str, float], fast: Mapping[str, float]) -> bool | None:
        """None where a figure is missing."""
        before, after = slow.get(self.figure), fast.get(self.figure)
        if before is None or after is None:
            return None
        change = (after - before) if self.up else (before - after)
        return change >= (self.least * abs(before) if self.relative else self.least)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Why a variant may be faster: all moves of one of the ways must be seen; none of those that are known may fail."""

    name: str
    says: str
    ways: tuple[tuple[Move, ...], ...]


MECHANISMS = (
    Mechanism("launches", "fewer launches, or less of the host's time", (
        (Move("launches", up=False, least=SHARE, relative=True),),
        (Move("host", up=False, least=SHARE, relative=True),),
    )),
    Mechanism("traffic", "fewer bytes move", (
        (Move("bytes", up=False, least=SHARE, relative=True),),
    )),
    Mechanism("coalescing", "memory delivers more, or the first cache hits more often", (
        (Move("K2", up=True),), (Move("K4", up=True), Move("memory", up=True)),
    )),
    Mechanism("compute efficiency", "the SMs and their pipes, or the issue slots, are busier", (
        (Move("K1", up=True), Move("pipe", up=True)), (Move("K1", up=True), Move("K9", up=True)),
    )),
    Mechanism("occupancy", "more warps are active", (
        (Move("K6", up=True),), (Move("theoretical", up=True),),
    )),
    Mechanism("scheduling", "schedulers find more warps that can issue", (
        (Move("K8", up=True, least=SHARE, relative=True), Move("K9", up=True)),
    )),
    Mechanism("divergence", "fewer lanes are switched off", (
        (Move("K10", up=True, least=2 * POINTS),),
    )),
    Mechanism("precision", "products run on the tensor pipe that did not", (
        (Move("tensor", up=True), Move("K5", up=False)),
    )),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
    """The four parts, and what may be said."""

    slow: str
    fast: str
    effect: Interval | None  # how many times as fast, with its interval; None without samples
    mechanisms: tuple[str, ...]  # those whose counters moved as they must
    claimed: str | None
    valid: bool | None  # numerically; None where nobody checked
    reproducible: bool
    missing: tuple[str, ...]  # sentences
    verdict: str

    @property
    def attributed(self) -> bool:
        return self.verdict.startswith("attributed")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def weigh(first: Variant, second: Variant, claim: str | None = None) -> Evidence:
    """The evidence for two variants of one computation; `claim` names the one mechanism of `MECHANISMS` to be shown.

    The faster one is found from the samples; without samples of both, `second` is taken to be it.
    """
    known = [each.name for each in MECHANISMS]
    if claim is not None and claim not in known:
        raise ValueError(f"claim {claim!r} is none of {', '.join(known)}")
    slow, fast, effect = _effect(first, second)
    matched = tuple(each.name for each in MECHANISMS if _matches(each, slow.figures, fast.figures))
    missing = list(_missing(slow, fast, effect))
    errors = [each.error_over_bound for each in (slow, fast)]
    checked = [error <= 1 for error in errors if error is not None]
    valid = all(checked) if len(checked) == len(errors) else False if False in checked else None
    reproducible = all(each.provenance.get("command") and each.provenance.get("commit") for each in (slow, fast))
    if not reproducible:
        missing.append("command or commit of a variant is not known: nobody can repeat it")
    if slow.provenance.get("device") != fast.provenance.get("device"):
        missing.append("the variants ran on different devices")
    return Evidence(
        slow.name, fast.name, effect, matched, claim, valid, bool(reproducible), tuple(missing),
        _verdict(effect, matched, claim, valid, _counted(slow.figures, fast.figures)),
    )  # fmt: skip


def speedup(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Median over median with its 95 % bootstrap interval, of two sets of samples."""
    ratios = bootstrap_medians(slow, seed=1) / bootstrap_medians(fast, seed=2)
    return Interval(float(np.median(slow) / np.median(fast)), *percentile_interval(ratios))


def _effect(first: Variant, second: Variant) -> tuple[Variant, Variant, Interval | None]:
    """Slower, faster, and by how much."""
    if not first.samples or not second.samples:
        return first, second, None
    if float(np.median(first.samples)) < float(np.median(second.samples)):
        first, second = second, first
    return first, second, speedup(first.samples, second.samples)


def _matches(mechanism: Mechanism, slow: Mapping[str, float], fast: Mapping[str, float]) -> bool:
    """Whether one way was seen: its first move certainly, no other one against it."""
    for way in mechanism.ways:
        made = [move.made(slow, fast) for move in way]
        if made[0] and False not in made:
            return True
    return False


def _counted(slow: Mapping[str, float], fast: Mapping[str, float]) -> tuple[str, ...]:
    """The mechanisms that could have been seen: both variants have the figure that one way begins with."""
    both = slow.keys() & fast.keys()
    return tuple(each.name for each in MECHANISMS if any(way[0].figure in both for way in each.ways))


def _missing(slow: Variant, fast: Variant, effect: Interval | None) -> Sequence[str]:
    said = []
    if effect is None:
        said.append("samples of a variant are missing: there is no effect to explain")
    counters = {key for each in (slow, fast) for key in each.figures if key.startswith("K")}
    lacking = [each.name for each in (slow, fast) if not any(key in each.figures for key in counters)]
    if not counters or lacking:
        said.append(f"no counters of {' and '.join(lacking or (slow.name, fast.name))}")
    unchecked = [each.name for each in (slow, fast) if each.error_over_bound is None]
    if unchecked:
        said.append(f"nobody has checked the result of {' and '.join(unchecked)}")
    return said


def _verdict(
    effect: Interval | None, matched: Sequence[str], claim: str | None, valid: bool | None, counted: Sequence[str]
) -> str:
    if effect is not None and effect.low <= 1.0:
        return "no effect: the interval of the speed-up holds 1"
    if valid is False:
        return "invalid: a result is further off than it may be"
    if claim is not None and claim not in matched:
        seen = f"; what moved is {', '.join(matched)}" if matched else ""
        if claim not in counted:
            return f"empirical, not attributed: what tells {claim} was not counted{seen}"
        return f"empirical, not attributed: the counters of {claim} did not move as they must{seen}"
    if not matched and not counted:
        return "empirical, not attributed: nothing was counted"
    if not matched:
        return "empirical, not attributed: no counters moved as any mechanism says"
    return f"attributed to {claim or ', '.join(matched)}"
