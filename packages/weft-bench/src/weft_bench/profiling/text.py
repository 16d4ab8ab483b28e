"""A profile as text: the same sections as `explain`, each with its figures, and what is missing with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.figures import counted, duration, share, si
from weft.plans.explain.lines import aligned, section
from weft_bench.profiling.counters import ALL, PACK
from weft_bench.profiling.record import Record
from weft_bench.profiling.tradeoff import Trade

_MOST_NAME = 44  # characters of a launch's name


def text(profile: Record) -> str:
    """All that a profile says."""
    sections = {
        "time": _time(profile),
        "roof": _roof(profile),
        "kernels": _kernels(profile),
        "launches": _launches(profile),
        "counters": _counters(profile),
        "moved": _moved(profile),
        "patterns": _patterns(profile),
        "energy": _energy(profile),
        "missing": [f"{what}: {why}" for what, why in profile.missing.items()],
        "so": [profile.sentence],
    }
    lines = [line for name, found in sections.items() for line in section(name, found)]
    return "\n".join([f"{profile.about}  by {profile.name} on {profile.device}", *lines])


def _time(profile: Record) -> list[str]:
    found, how = profile.seconds, profile.timing
    where = "in a CUDA graph" if how.get("captured") else "called from Python"
    lines = [
        f"{duration(found.value)} a call [{duration(found.low)}, {duration(found.high)}], {len(profile.samples)} "
        f"samples of {how.get('calls')} calls {where}, operands {how.get('mode')}"
    ]
    if profile.schedule is not None:
        lines.append(f"schedule {profile.schedule}")
    if profile.host is not None:
        lines.append(f"the host spends {duration(profile.host)} on a call")
    clocks = how.get("clocks")
    if clocks:
        held = f", held down by {', '.join(clocks['throttled'])}" if clocks["throttled"] else ""
        lines.append(f"{clocks['sm_mhz']} MHz, {clocks['watts']:.0f} W, {clocks['celsius']} C{held}")
    return [*lines, *how.get("notes", ())]


def _roof(profile: Record) -> list[str]:
    if not profile.floor:
        return []
    floor, seconds = profile.floor, profile.seconds.value
    lines = [
        f"floor {duration(floor['seconds'])}, {floor['binds']} binds (compute {duration(floor['compute'])}, memory "
        f"{duration(floor['memory'])}, launch {duration(floor['launch'])}); the call is at {share(profile.share or 0)}",
        f"{si(profile.flops / seconds, 'FLOP/s')}, {si(profile.bytes / seconds, 'B/s')} of compulsory bytes",
    ]
    if profile.ceilings.get("source") == "datasheet":
        lines.append("ceilings are the data sheet's, not measured")
    return lines


def _kernels(profile: Record) -> list[str]:
    return [
        f"{each['name']}: {counted(each['programs'], 'program')} of {counted(each['warps'], 'warp')}, "
        f"{each['registers']} registers, "
        f"{each['spills']} B spilled, {si(each['shared'], 'B')} shared; {each['blocks_per_sm']} an SM by "
        f"{' and '.join(each['limited_by'])} ({share(each['occupancy'])} of its warps), {each['waves']:.2f} waves, "
        f"{share(each['slots_used'])} of slots used"
        for each in profile.kernels
    ]


def _launches(profile: Record) -> list[str]:
    if not profile.launches:
        return []
    whole = sum(each.seconds for each in profile.launches)
    rows = [
        (
            duration(each.seconds), share(each.seconds / whole) if whole else "-", _short(each.name),
            f"{each.programs} x {each.threads}" if each.programs else "",
            f"{each.registers} reg" if each.registers else "",
            f"{share(each.occupancy)} of warps, {each.waves or 0:.2f} waves" if each.occupancy is not None else "",
        )
        for each in profile.launches
    ]  # fmt: skip
    return [*aligned(rows, left=(2,)), f"together {duration(whole)}, each with warm caches"]


def _counters(profile: Record) -> list[str]:
    if not profile.counters:
        return []
    known = [each for each in ALL if any(each.key in found.values for found in profile.counters)]
    rows = [("", "", *(_short(each.kernel, 24) for each in profile.counters))]
    for each in known:
        cells = [_value(found.get(each.key), each.unit) for found in profile.counters]
        rows.append((each.key, each.words, *cells))
    lacking = [each.key for each in PACK if each not in known]
    return [*aligned(rows, left=(0, 1)), *([f"not known to this profiler: {', '.join(lacking)}"] if lacking else [])]


def _moved(profile: Record) -> list[str]:
    if profile.moved is None:
        return []
    times = f", {profile.moved / profile.bytes:.2f} times as much" if profile.bytes else ""
    return [f"{si(profile.moved, 'B')} to and from DRAM, compulsory {si(profile.bytes, 'B')}{times}"]


def _patterns(profile: Record) -> list[str]:
    words = {True: "yes", False: "no", None: "unknown"}
    return [f"{each.pattern:<11}{words[each.holds]:<8}{each.sentence}" for each in profile.findings]


def _energy(profile: Record) -> list[str]:
    found = profile.energy
    if not found:
        return []
    return [
        f"{found['joules']:.4g} J a call [{found['low']:.4g}, {found['high']:.4g}], {found['watts']:.0f} W by the "
        f"{found['source']}, idle {found['idle_watts']:.0f} W",
        f"{si(found['flops_per_joule'], 'FLOP/J')}, {si(found['bytes_per_joule'], 'B/J')}, EDP {found['edp']:.3g} J s, "
        f"ED2P {found['ed2p']:.3g} J s2",
        *([f"by the model {found['model_joules']:.4g} J: {found['model']}"] if "model" in found else []),
    ]


def trade_lines(trades: Sequence[Trade]) -> list[str]:
    """Time, joules and digits of each precision, in columns; nothing where none was tried."""
    if not trades:
        return []
    rows = [("precision", "time", "energy", "digits", "schedule")]
    for each in trades:
        energy = "-" if each.joules is None else f"{each.joules:.3g} J"
        if each.seconds is None or each.digits is None:
            rows.append((each.precision, "-", "-", "-", each.missing))
        else:
            rows.append((each.precision, duration(each.seconds), energy, f"{each.digits:.1f}", each.schedule or ""))
    return aligned(rows, left=(0, 4))


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "B":
        return si(value, "B")
    if unit == "s":
        return duration(value)
    return f"{value:.4g}{' %' if unit == '%' else ''}"


def _short(name: str, most: int = _MOST_NAME) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def side_by_side(profiles: Sequence[Record], evidence: dict[str, object] | None) -> str:
    """Several profiles, and what may be said of the first two."""
    parts = [text(each) for each in profiles]
    if evidence is not None:
        parts.append("\n".join(evidence_lines(evidence)))
    return "\n\n".join(parts)


def evidence_lines(evidence: dict[str, object]) -> list[str]:
    """Effect, mechanism, validity and reproducibility, each in a line."""
    effect: dict[str, float] | None = evidence["effect"]  # type: ignore[assignment]
    said = (
        "not known"
        if effect is None
        else (f"{effect['value']:.3g} times as fast [{effect['low']:.3g}, {effect['high']:.3g}]")
    )
    words = {True: "right within its bound", False: "a result is off", None: "not checked"}
    mechanisms: Sequence[str] = evidence["mechanisms"]  # type: ignore[assignment]
    missing: Sequence[str] = evidence["missing"]  # type: ignore[assignment]
    return [
        f"{evidence['fast']} against {evidence['slow']}",
        *section("effect", [said]),
        *section(
            "mechanism", [f"counters moved as these say: {', '.join(mechanisms)}" if mechanisms else "none matches"]
        ),
        *section("validity", [words[evidence["valid"]]]),  # type: ignore[index]
        *section("repeatable", ["yes" if evidence["reproducible"] else "no"]),
        *section("missing", list(missing)),
        *section("verdict", [str(evidence["verdict"])]),
    ]
