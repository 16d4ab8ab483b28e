"""Tables of pages, each made of the record that it names: see `figures`, which writes them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from weft.base.figures import duration
from weft_bench.ladder import LADDERS
from weft_bench.ladder.record import Climb, read
from weft_bench.ladder.rung import predicted_gain, published_gain
from weft_bench.ladder.text import times
from weft_bench.profiling.why import correlations, why
from weft_bench.records import Run, load
from weft_bench.regret.record import EMPTY, KEPT, Row
from weft_bench.regret.workloads import CALLS
from weft_bench.report.page import Cell, Table
from weft_bench.tuning.study import draws, expected_draws

ROOT = Path(__file__).parents[1]
H200 = ROOT / "results" / "h200"
NEAR = 0.05  # of a time: within it two ways are level, and a schedule is as good as the best
TYPES = {"tccg": "fp16 -> fp32", "tccg-bf16": "bf16 -> fp32", "tccg-tf32": "TF32", "tccg-fp64": "fp64"}
QUANTITIES = ("M N", "K", "least over greatest of M, N, K", "least extent", "weft's registers", "weft's occupancy")


def _words(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(heads, [[Cell(cell) for cell in row] for row in rows]).markdown()


def _studied() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, case in json.loads((H200 / "tuning" / "study.json").read_text())["cases"].items():
        yield name.split()[-1], case


def tuning_draws() -> str:
    """The paper's Figure 5 in figures: V, the rate, and what it takes to beat the peer."""
    rows = []
    for name, case in _studied():
        found, peer, first = draws(case), case["peer"]["seconds"], case["trials"][0]
        ahead = [each for each in found if each["seconds"] < peer]
        at = [each["at"] for each in ahead if each is not first]  # the model's choice is timed first: no draw
        best = min(each["seconds"] for each in case["trials"] if each["seconds"])
        tries = expected_draws([peer / each["seconds"] for each in found], 1.0, case["legal"])
        slow = sum(each["verdict"] == "slow" for each in found)
        rate = len(found) / case["spent"]
        longest = (1 - len(ahead) / len(found)) * case["legal"] / rate  # seconds until one does, all others drawn first
        rows.append((
            name, str(case["legal"]), f"{rate:.1f}", f"{slow / len(found):.0%}",
            f"{len(ahead) / len(found):.0%}", f"{tries:.1f}", f"{min(at):.1f}" if at else "none",
            f"{longest / 60:.1f} min",
            f"{best / peer:.2f}", f"{best / first['seconds']:.2f}", duration(best),
        ))  # fmt: skip
    rows.append(("the paper, TCCG 30", "331000", "0.30", "", "62%", "1.6", "5.4", "116 h", "", "", ""))
    return _words(
        ("case", "legal schedules", "configurations/s", "timed once", "draws that beat cuTENSOR",
         "tries until one does", "seconds until one did", "in the worst case", "best time over cuTENSOR's",
         "best time over the model's choice", "time of the best"),
        rows,
    )  # fmt: skip


def tuning_model() -> str:
    """The cost model against sampling: what it predicted for schedules beside what they took."""
    rows = []
    for name, case in _studied():
        timed = [each for each in case["trials"] if each["seconds"] and each["predicted"]]
        predicted, taken = (np.array([each[key] for each in timed]) for key in ("predicted", "seconds"))
        rank, _ = correlations(predicted, taken)
        best = taken.min()
        found = [best / each["seconds"] for each in draws(case)]
        near = any(value > 1 / (1 + NEAR) for value in found)
        tries = f"{expected_draws(found, 1 / (1 + NEAR), case['legal']):.0f}" if near else f"none of {len(found)}"
        off = np.mean(np.maximum(predicted / taken, taken / predicted) > 2)
        behind = f"{case['trials'][0]['seconds'] / best - 1:.0%}"
        rows.append((name, f"{rank.value:.2f}", behind, tries, f"{off:.0%}"))
    heads = ("case", "rank correlation", "the model's choice behind the best", "random tries within 5 % of the best",
             "predictions off by 2")  # fmt: skip
    return _words(heads, rows)


def _climb(name: str) -> Climb:
    return next(each for each in read(H200 / "ladder") if each.ladder == name)


def _gains() -> Iterator[tuple[str, str, str, float, float | None, float | None]]:
    """Ladder, flight and rung, and its gain as measured, predicted and published, of every rung that was timed."""
    for name in ("multiply", "transpose", "tensor", "reduce"):
        climb = _climb(name)
        for _, flight, rung in LADDERS[name]:
            before = flight.before(rung)
            step = climb.step(flight.name, rung.name)
            below = climb.step(flight.name, before.name) if before is not None else None
            if step and below and step.seconds and below.seconds:
                gain = below.seconds["value"] / step.seconds["value"]
                yield name, flight.name, rung.name, gain, predicted_gain(before, rung), published_gain(rung)


def ladder_found() -> str:
    """Figures of all ladders together: rungs that are slower than those that they are held against."""
    gains = list(_gains())
    published = [(gain, source) for *_, gain, _, source in gains if source]
    near = sum(max(gain / source, source / gain) < 4 / 3 for gain, source in published)
    slower = [each for each in gains if each[3] < 1]
    copies = [gain for ladder, _, rung, gain, _, _ in gains if (ladder, rung) == ("transpose", "copy")]
    top = next(gain for *place, gain, _, _ in gains if place == ["multiply", "fp32", "cuBLAS"])
    said = textwrap.fill(
        f"At the top of the ladder *multiply*, in single precision, weft takes {top:.2f} times cuBLAS's time. "
        f"Transposition takes {min(copies):.2f} to {max(copies):.2f} of the time of torch's copy, the driver's. "
        f"Of {len(published)} gains that a source published, {near} are reproduced within a third. Of {len(gains)} "
        f"rungs {len(slower)} are slower than the rung that they are held against:", 119,
    )  # fmt: skip
    rows = [(ladder, flight, rung, *map(times, figures)) for ladder, flight, rung, *figures in slower]
    return f"{said}\n\n{_words(('ladder', 'flight', 'rung', 'gain', 'predicted', 'published'), rows)}"


def leads() -> str:
    """Rank correlations of the lead over cuTENSOR with what a case is, for each pair of number types."""
    found: dict[str, dict[str, Cell]] = {}
    for folder in TYPES:
        run = load(H200 / folder)
        for group in run.groups:
            label = TYPES[folder] if folder != "tccg" else group.replace("_", " -> ")
            found[label] = {row[0].text: row[2] for row in why(run, "cutensor", group).rows}
    rows = [
        (name, *(f"**{cell.text}**" if (cell := each.get(name)) and cell.tone else cell.text if cell else ""
                 for each in found.values()))
        for name in QUANTITIES
    ]  # fmt: skip
    return _words(("quantity", *found), rows)


def _runs() -> Iterator[tuple[str, Run]]:
    for device in ("h200", "h100"):
        for file in sorted((ROOT / "results" / device).glob("*/run.json")):
            yield f"{device}/{file.parent.name}", load(file)


def clocks() -> str:
    """Timings during which the device held its clocks down, by record, of weft and of all others."""
    rows = []
    for name, run in _runs():
        cells = [_held(run, [run.ours]), _held(run, run.contenders[1:])]
        if any(" at " in cell for cell in cells):
            rows.append((name, *cells))
    return _words(("record", "weft", "others"), rows)


def _held(run: Run, contenders: Sequence[str]) -> str:
    """How many timings of contenders were held down, and the least rate of the SMs in them."""
    timed = [mine.timing for case in run.cases for name in contenders if (mine := case.measured(name))]
    known = [each["clocks"] for each in timed if each.get("clocks")]
    held = [each for each in known if each["throttled"]]
    least = f", at least at {min(each['sm_mhz'] for each in held)} MHz" if held else ""
    return f"{len(held)} of {len(known)}{least}"


def functions() -> str:
    """The time with a function over the plain time, by function, and how often clocks were held down."""
    run = load(H200 / "tccg-fusion")
    plain = {case.base: mine for case in run.cases if case.group == "none" and (mine := case.measured("weft"))}
    rows = []
    for group in run.groups:
        pairs = [
            (mine, plain[case.base])
            for case in run.cases
            if case.group == group and case.base in plain and (mine := case.measured("weft"))
        ]
        ratios = [mine.summary.median / other.summary.median for mine, other in pairs]
        held = sum(bool((mine.timing.get("clocks") or {}).get("throttled")) for mine, _ in pairs)
        rows.append((group, f"{geometric_mean(ratios):.3f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}",
                     f"{held} of {len(pairs)}"))  # fmt: skip
    return _words(("function", "mean", "least", "most", "timings held down"), rows)


def recipes() -> str:
    """Each recipe's first way with weft beside the fastest other way that is as precise, on the H200."""
    saved = json.loads((H200 / "cookbook.json").read_text())["recipes"]
    rows = []
    for name, recipe in saved.items():
        known = {way: each["seconds"] for way, each in recipe["times"].items() if "seconds" in each}
        ours = next(way for way in known if way.startswith("weft"))
        others = [way for way in known if not way.startswith("weft") and not way.endswith("TF32")]
        other = min(others, key=known.__getitem__)
        ratio = known[other] / known[ours]
        verdict = "level" if abs(ratio - 1) <= NEAR else "ahead" if ratio > 1 else "behind"
        rows.append((f"[{name.replace('_', ' ')}]({name}.md)", f"{ours}, {duration(known[ours])}",
                     f"{other}, {duration(known[other])}", f"{ratio:.2f}", verdict,
                     f"{recipe['commit'][:8]}, {recipe['date'][:10]}"))  # fmt: skip
    rows.sort(key=lambda row: -float(row[3]))
    counted = {verdict: sum(row[4] == verdict for row in rows) for verdict in ("ahead", "level", "behind")}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
    return f"Of {len(rows)} recipes: {said}.\n\n" + _words(
        ("recipe", "weft", "the fastest other way", "times as fast", "", "commit"), rows
    )


def regret() -> str:
    """The time of calls from the first of a process on, over torch's, by the number of calls; before and after."""
    rows = []
    for file in ("regret_before.json", "regret.json"):
        run = json.loads((H200 / file).read_text())
        commit, found = run["environment"]["artifacts"]["commit"][:8], [Row(**row) for row in run["rows"]]
        for caches, words in ((EMPTY, "empty"), (KEPT, "of an earlier process")):
            calls = [row for row in found if row.caches == caches and row.kind == CALLS]
            means = [geometric_mean(row.regret(at) for row in calls) for at in range(len(calls[0].marks))]
            steady = geometric_mean(row.steady for row in calls)
            rows.append((commit, words, *(f"{mean:.2f}" for mean in (*means, steady))))
    marks = [f"{mark} call{'s' if mark > 1 else ''}" for mark in calls[0].marks]
    return _words(("commit", "caches", *marks, "a call at the end"), rows)


def kernelbench() -> str:
    """Shares of KernelBench's tasks by level, and means, beside torch and torch.compile."""
    run, rows = load(H200 / "kernelbench"), []
    for group in run.groups:
        cases = [case for case in run.cases if case.group == group]
        for peer in run.peers:
            pairs = [(case.measured(peer), case.measured("weft")) for case in cases]
            ratios = [other.summary.median / mine.summary.median for other, mine in pairs if other and mine]
            shares = (f"{sum(ratio > level for ratio in ratios)} of {len(cases)}" for level in (0, 1, 2))
            means = (geometric_mean(ratios), min(ratios), max(ratios))
            rows.append((f"{group}, {peer}", *shares, *(f"{mean:.2f}" for mean in means)))
    heads = ("level, peer", "fast_0", "fast_1", "fast_2", "times as fast, mean", "least", "most")
    return f"NVIDIA H200, commit {run.environment['artifacts']['commit'][:8]}:\n\n" + _words(heads, rows)


def pyscf() -> str:
    """The times of peers over weft's on equations of gpu4pyscf, most called first."""
    run, rows = load(H200 / "pyscf"), []
    for peer in run.peers:
        pairs = [(case.measured(peer), case.measured("weft")) for case in run.cases]
        ratios = sorted(other.summary.median / mine.summary.median for other, mine in pairs if other and mine)
        quick = sum(ratio < 1 - NEAR for ratio in ratios)
        figures = (geometric_mean(ratios), ratios[len(ratios) // 2], ratios[0], ratios[-1])
        rows.append((peer, str(len(ratios)), *(f"{figure:.2f}" for figure in figures), str(quick)))
    heads = ("peer", "equations", "times as fast, mean", "median", "least", "most", "faster than weft by 5 %")
    return f"NVIDIA H200, commit {run.environment['artifacts']['commit'][:8]}:\n\n" + _words(heads, rows)


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        tuning_draws, tuning_model, ladder_found, leads, clocks, functions, recipes, regret, kernelbench, pyscf,
    )
}
