"""One page of HTML for profiles, in the design of the bench's, with JSON beside it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.base.figures import duration, share, si
from weft_bench.machine.laws import Scaling, amdahl_limit
from weft_bench.profiling.counters import ALL
from weft_bench.profiling.record import Record, call_share, compared
from weft_bench.profiling.threats import of_profiles
from weft_bench.profiling.tradeoff import Trade, picture
from weft_bench.records import write_whole
from weft_bench.report.page import Cell, Table, disclosure, figure, page, section
from weft_bench.report.threats import TITLE, paragraphs

JSON_FILE, PAGE_FILE = "profile.json", "index.html"

_TIMES = (
    "One row a variant: the median of its time with the interval that holds it with 95 % confidence, the least time "
    "that the device's ceilings allow, and how much of that roof is reached."
)
_PATTERNS = (
    "Five patterns, each a rule over the counters of the launch that took longest; the numbers are those that it was "
    "decided by. The first that holds is what binds."
)
_COUNTERS = "One column a launch. K1 to K10 are the fixed pack; the rows below say which pipe works and what moved."
_LAUNCHES = "What one call launches, in order, and how long each launch takes with warm caches."
_KERNELS = (
    "What each kernel takes of an SM, how many of its programs an SM holds at once, what limits them, and how the grid "
    "falls into waves."
)
_TRADES = (
    "The same values in each precision: what the time and the energy buy in digits, against the product of fp64 values."
)
_EVIDENCE = (
    "A variant is called faster because of something only where there is an effect, the counters moved as that "
    "mechanism says, results are right, and others can repeat it."
)


def save(
    profiles: Sequence[Record], folder: Path, measured: Sequence[Scaling] = (), trades: Sequence[Trade] = ()
) -> Path:
    """Write profiles, the second held against the first, as JSON and as a page into a folder; returns the page.

    `measured` are scalings over threads, `trades` one contraction in several precisions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "profiles": [each.to_dict() for each in profiles], "evidence": compared(profiles),
        "scaling": [each.to_dict() for each in measured], "precisions": [each.to_dict() for each in trades],
    }  # fmt: skip
    write_whole(folder / JSON_FILE, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return write_page(profiles, folder, measured, trades)


def write_page(
    profiles: Sequence[Record], folder: Path, measured: Sequence[Scaling] = (), trades: Sequence[Trade] = ()
) -> Path:
    """The page alone; returns it."""
    first = profiles[0]
    lead = f"{first.device}, {first.date}. {first.sentence}"
    content = page(f"weft profile {first.about}", lead, [body(profiles, measured), _traded(trades)])
    write_whole(folder / PAGE_FILE, content)
    return folder / PAGE_FILE


def body(profiles: Sequence[Record], measured: Sequence[Scaling] = ()) -> str:
    """The sections of a page."""
    first = profiles[0]
    parts = [
        section("Time", times(profiles).html() + _sentences(profiles), _TIMES),
        section("What binds it", patterns(first).html(), _PATTERNS) if first.findings else "",
        *(_evidence(evidence) for evidence in [compared(profiles)] if evidence is not None),
        _pictures(profiles, measured),
        *(_counted(each, len(profiles) > 1) for each in profiles if each.counters),
        *(_launched(each, len(profiles) > 1) for each in profiles if each.launches),
        *(section("Kernels", kernels(each).html(), _KERNELS) for each in profiles if each.kernels),
        section("Energy", energies(profiles).html()) if any(each.energy for each in profiles) else "",
        section("What is missing", missing(profiles).html()) if any(each.missing for each in profiles) else "",
        section(TITLE, paragraphs(of_profiles(profiles))),
        section("How it was measured", disclosure(first.environment | {"timing of this call": first.timing})),
    ]
    return "\n".join(part for part in parts if part)


def times(profiles: Sequence[Record]) -> Table:
    """Time, floor and rates of each variant."""
    heads = (
        "variant", "time", "interval", "floor", "binds", "of the roof", "rate", "bytes", "moved / least", "host",
    )  # fmt: skip
    return Table(heads, [_time_row(each) for each in profiles]).dense()


def patterns(profile: Record) -> Table:
    """Each rule, whether it holds, and its numbers."""
    words = {True: "yes", False: "no", None: "unknown"}
    tones = {True: "worse", False: "", None: ""}
    return Table(
        ("pattern", "holds", "why"),
        [(Cell(each.pattern), Cell(words[each.holds], tone=tones[each.holds]), Cell(each.sentence, tone="words"))
         for each in profile.findings],
    )  # fmt: skip


def counters(profile: Record) -> Table:
    """One row a counter, one column a launch."""
    known = [each for each in ALL if any(each.key in found.values for found in profile.counters)]
    heads = ["counter", "what", *(f"{at + 1}: {found.kernel}" for at, found in enumerate(profile.counters))]
    rows = []
    for each in known:
        cells = [_counter(found.get(each.key), each.unit) for found in profile.counters]
        rows.append([Cell(each.key), Cell(each.words), *cells])
    return Table(heads, rows)


def launches(profile: Record) -> Table:
    """Each launch with its time and what it takes."""
    whole = sum(each.seconds for each in profile.launches)
    rows = []
    for each in profile.launches:
        share_of_all = _number(each.seconds / whole if whole else None, ".0%")
        taken = (each.programs, each.threads, each.registers, each.shared)
        row = [Cell(each.name, tone="words"), _time(each.seconds), share_of_all]
        row += [_number(count, "d") for count in taken]
        rows.append([*row, _number(each.occupancy, ".0%"), _number(each.waves, ".2f")])
    heads = ("launch", "time", "of all", "programs", "threads", "registers", "shared B", "of an SM's warps", "waves")
    return Table(heads, rows)


def kernels(profile: Record) -> Table:
    """Occupancy and waves of each kernel of weft's."""
    counts = ("programs", "warps", "registers", "spills", "shared", "blocks_per_sm")
    rows = [
        [
            Cell(each["name"]), *(_number(each[count], "d") for count in counts), _number(each["occupancy"], ".0%"),
            Cell(" and ".join(each["limited_by"])), _achieved(profile, each["name"]), _number(each["waves"], ".2f"),
            _number(each["tail"], "d"), _number(each["slots_used"], ".0%"),
        ]
        for each in profile.kernels
    ]  # fmt: skip
    heads = (
        "kernel", "programs", "warps", "registers", "spilled B", "shared B", "blocks an SM", "of its warps",
        "limited by", "warps active", "waves", "in the last", "slots used",
    )  # fmt: skip
    return Table(heads, rows)


def energies(profiles: Sequence[Record]) -> Table:
    """Joules and what they buy."""
    heads = ("variant", "J a call", "interval", "W", "idle W", "GFLOP/J", "GB/J", "EDP uJ s", "read by")
    rows = []
    for each in profiles:
        if found := each.energy:
            rows.append((
                Cell(each.name), _number(found["joules"], ".4g"), Cell(f"[{found['low']:.4g}, {found['high']:.4g}]"),
                _number(found["watts"], ".0f"), _number(found["idle_watts"], ".0f"),
                _number(found["flops_per_joule"] / 1e9, ".4g"), _number(found["bytes_per_joule"] / 1e9, ".4g"),
                _number(found["edp"] * 1e6, ".4g"), Cell(found["source"]),
            ))  # fmt: skip
    return Table(heads, rows)


def missing(profiles: Sequence[Record]) -> Table:
    """The missing measurements, and why they are missing."""
    return Table(
        ("variant", "what", "why"),
        [
            (Cell(each.name), Cell(what), Cell(why, tone="words"))
            for each in profiles
            for what, why in each.missing.items()
        ],
    )


def _time_row(profile: Record) -> list[Cell]:
    found = profile.seconds
    moved = profile.moved / profile.bytes if profile.moved is not None and profile.bytes else None
    return [
        Cell(profile.name), _time(found.value), Cell(f"[{duration(found.low)}, {duration(found.high)}]"),
        _time(profile.floor.get("seconds")), Cell(str(profile.floor.get("binds", ""))), _number(profile.share, ".0%"),
        _rate(profile.flops, found.value, "FLOP/s"), _rate(profile.bytes, found.value, "B/s"), _number(moved, ".3g"),
        _time(profile.host),
    ]  # fmt: skip


def _sentences(profiles: Sequence[Record]) -> str:
    """The schedule of each variant in full, and what its host time leaves to faster kernels."""
    said = [f"{each.name}: {each.schedule}" for each in profiles if each.schedule]
    for each in profiles:
        if (part := call_share(each)) is not None and part < 1:
            said.append(
                f"{each.name}: the device takes {share(part)} of one call from Python, so that faster kernels speed it "
                f"up {amdahl_limit(part):.3g} times at most"
            )
    return "".join(f"<p>{html.escape(each)}</p>" for each in said)


def _evidence(found: Mapping[str, Any]) -> str:
    effect = found["effect"]
    said = (
        "not known"
        if effect is None
        else (f"{effect['value']:.3g} times as fast [{effect['low']:.3g}, {effect['high']:.3g}]")
    )
    validity = {True: "both right within their bounds", False: "a result is off", None: "not checked for both"}
    rows = [
        ("effect", said),
        ("mechanisms whose counters moved", ", ".join(found["mechanisms"]) or "none"),
        ("numerical validity", validity[found["valid"]]),
        ("reproducible", "command and commit are known" if found["reproducible"] else "no"),
        *(("missing", each) for each in found["missing"]),
        ("verdict", found["verdict"]),
    ]
    table = Table(("part", "what was found"), [(Cell(part), Cell(text, tone="words")) for part, text in rows])
    return section(f"{found['fast']} against {found['slow']}", table.html(), _EVIDENCE)


def _pictures(profiles: Sequence[Record], measured: Sequence[Scaling]) -> str:
    try:
        from weft_bench.profiling.scaling import pictures
    except ImportError as error:
        return section("Pictures", f'<p class="note">{html.escape(f"none: {error}")}</p>')
    drawn = [figure(png, words, narrow=True) for words, png in pictures(profiles, measured).items()]
    return section("Pictures", "\n".join(drawn)) if drawn else ""


def _counted(profile: Record, named: bool) -> str:
    moved = (
        ""
        if profile.moved is None
        else (f" All launches together moved {si(profile.moved, 'B')}; {si(profile.bytes, 'B')} had to.")
    )
    return section(f"Counters{f' of {profile.name}' if named else ''}", counters(profile).html(), _COUNTERS + moved)


def _launched(profile: Record, named: bool) -> str:
    return section(f"Launches{f' of {profile.name}' if named else ''}", launches(profile).html(), _LAUNCHES)


def _traded(trades: Sequence[Trade]) -> str:
    """One contraction in several precisions, as a table and in one picture."""
    if not trades:
        return ""
    rows = [
        (Cell(each.precision), _time(each.seconds), _number(each.joules, ".3g"), _number(each.digits, ".1f"),
         Cell(each.schedule or each.missing, tone="words"))
        for each in trades
    ]  # fmt: skip
    parts = [Table(("precision", "time", "J a call", "digits", "schedule"), rows).html()]
    try:
        from weft_bench.report.drawing import png

        drawn = picture(trades, "time, joules and digits")
        if drawn is not None:
            parts.append(figure(png(drawn), "Digits over time, each point as large as its joules.", narrow=True))
    except ImportError as error:
        parts.append(f'<p class="note">{html.escape(f"no picture: {error}")}</p>')
    return section("Precisions", "\n".join(parts), _TRADES)


def _achieved(profile: Record, kernel: str) -> Cell:
    """K6 of the first launch of that kernel: what was achieved beside what could be."""
    found = next((each.get("K6") for each in profile.counters if each.kernel.startswith(kernel)), None)
    return _number(found / 100 if found is not None else None, ".0%")


def _counter(value: float | None, unit: str) -> Cell:
    if value is None:
        return Cell("")
    text = si(value, "B") if unit == "B" else duration(value) if unit == "s" else f"{value:.4g}"
    return Cell(f"{text} %" if unit == "%" else text, value)


def _time(seconds: float | None) -> Cell:
    return Cell("") if seconds is None else Cell(duration(seconds), seconds)


def _rate(amount: int, seconds: float, unit: str) -> Cell:
    return Cell(si(amount / seconds, unit), amount / seconds) if amount else Cell("")


def _number(value: float | None, how: str) -> Cell:
    return Cell("") if value is None else Cell(format(value, how), float(value))
