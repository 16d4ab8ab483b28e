"""Figures that pages quote are those of the results that they name."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from pages import ROOT
from weft_bench.profiling.why import profiles_below, why
from weft_bench.records import load

RESULTS = ROOT / "results"


def read(*path: str) -> Any:
    return json.loads(RESULTS.joinpath(*path).read_text())


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def significant(value: float) -> str:
    """To three digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".")


def median(result: dict[str, Any]) -> float:
    ordered = sorted(result["samples"])
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2


def test_networks() -> None:
    """A row for each case, in milliseconds: weft, torch, how far weft is ahead, and cuTensorNet of an older run."""
    text = page("networks.md")
    notes = {
        case["name"]: case["results"]["weft"]["note"].partition("cuTensorNet took ")[2].split()
        for case in read("h200", "apart", "networks-cutensornet", "run.json")["cases"]
    }
    for case in read("h200", "networks", "run.json")["cases"]:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{case['name']}`"))
        ours, torch, ahead, theirs = (cell.strip() for cell in row.strip("|").split("|")[1:])
        weft, other = (1e3 * median(case["results"][name]) for name in ("weft", "torch"))
        assert (ours, torch, ahead) == (significant(weft), significant(other), f"{other / weft:.2f}")
        said = notes.get(case["name"])
        assert theirs == (f"{float(said[0]) * {'ms': 1.0, 'us': 1e-3}[said[1]]:g}" if said else "")


def test_networks_replayed() -> None:
    text = page("networks.md")
    for row in read("h200", "replay.json")["rows"]:
        cells = (significant(1e3 * row[form]) for form in ("launched", "replayed", "chosen", "torch"))
        assert f"| `{row['network']}` | {' | '.join(cells)} |" in text


def test_networks_on_paper() -> None:
    text = page("networks.md")
    rows = read("paper", "networks_by_modes.json")["found"]
    for name in dict.fromkeys(row["network"] for row in rows):
        called = "circuit" if name.startswith("circuit") else f"`{name}`"
        for way, figure in (("modes", "speedup"), ("slices", "speedup by slices")):
            said = [row[figure] for row in rows if row["network"] == name]
            cells = " | ".join(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in said)
            assert f"| {way}, {called} | {cells} |" in text


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def test_two_gpus() -> None:
    text = page("distributed.md")
    rows = {row["split"]: row for row in read("h200x2", "ranks.json")["found"][1:]}
    for split in rows:
        assert f"| {rows[split]['speedup']:.2f} |" in text
    k = rows["k"]
    assert f"{k['hidden']:.0%}".replace("%", " %") + " of the transfer hidden" in text
    assert f"| {k['against torch gathering']:.2f} |" in text
    words = " ".join(text.split())
    assert f"ahead of torch in that run ({rows['m, n gathered']['against torch']:.2f})" in words
    assert f"torch's one product and one sum ({k['against torch']:.2f})" in words
    assert f"({1e3 * k['one device']:.0f} ms on one)" in text
    runs = [read("h200x2", folder, "run.json")["cases"] for folder in ("scaling", "products")]
    cases = {case["name"]: case["results"] for run in runs for case in run}
    for name, results in cases.items():
        one, two = (median(results[of]) for of in ("1 rank", "2 ranks"))
        if not name.endswith("-weak"):
            assert f"| {milliseconds(one)} | {milliseconds(two)} | {one / two:.2f} |" in text, name
        else:
            assert f"{2 * one / two:.3g}" in " ".join(text.partition("Twice the work on two")[2].split()[:60]), name
    blocks = read("h200", "blocks.json")["found"][0]
    assert f"took {blocks['over the larger']:.2f} times the larger" in text


def test_ways_on_two_gpus() -> None:
    text = " ".join(page("distributed.md").split())
    found = [row for row in read("h200x2", "ways.json")["found"] if row.get("placed") == ["k", "k", "m"]]
    taken = {(*row["split"], row["loop"], row["parts"]): f"{1e3 * row['seconds']:.0f} ms" for row in found}
    assert f"{taken['m', 'k', 32]} in 32 parts of each rank's piece, {taken['m', 'k', 1]} in one" in text
    assert f"{taken['k', 'm', 32]} by sums that are scattered in 32 parts along m" in text
    assert f"{taken['k', None, 1]} by one product and one sum" in text


def test_products_on_paper() -> None:
    text = " ".join(page("distributed.md").split())
    found = {(row["case"], row["ranks"]): row["speedup"] for row in read("paper", "products.json")["found"]}
    for kind, said in (("strong", "one rank's speed on two, {} on four, {} on eight"), ("weak", "")):
        two, four, eight = (
            " and ".join(f"{found[f'product-{name}-{kind}', ranks]:.2f}" for name in "km") for ranks in (2, 4, 8)
        )
        assert (f"{two} times {said.format(four, eight)}" if said else f"{two}, {four}, {eight}") in text


def test_networks_by_modes_on_two_gpus() -> None:
    text = " ".join(page("distributed.md").split())
    about, modes, slices = read("h200x2", "networks_by_modes.json")["found"]
    assert f"the {about['limit'] / 1e9:.1f} GB that each rank may hold" in text
    assert f"took {1e3 * modes['seconds']:.0f} ms on two GPUs" in text
    assert f"Its own {about['slices']} slices took {1e3 * slices['seconds']:.0f} ms" in text


def leads(*path: str, peer: str = "cutensor") -> list[float]:
    """A peer's times over weft's, of the cases that both were measured in."""
    results = [case["results"] for case in read(*path)["cases"]]
    both = [each for each in results if all(each.get(name, {}).get("samples") for name in (peer, "weft"))]
    return [median(each[peer]) / median(each["weft"]) for each in both]


def test_bound_against_all_compute_types() -> None:
    text = " ".join(page("numbers.md").split())
    found = [lead for part in ("cases-1-22", "cases-23-45") for lead in leads("h200", "tccg-bound", part, "run.json")]
    assert f"{geometric_mean(found):.2f} times as fast in the mean of {len(found)} cases" in text
    assert f"of TCCG and {min(found):.2f} in the worst" in text
    pairs = leads("h200", "tccg-bound", "complex64", "run.json")
    assert len(pairs) == 12
    assert f"complex64 was {geometric_mean(pairs):.2f} times as fast" in text
    assert f"twelve cases of TCCG and {min(pairs):.2f} in the worst" in text
    double = leads("h200", "tccg-bound", "float64", "run.json")
    assert len(double) == 10
    assert f"{significant(geometric_mean(double))} times as fast in the mean of ten cases" in text
    assert f"of TCCG and {significant(min(double))} in the worst" in text


def test_networks_within_the_bound() -> None:
    text = " ".join(page("numbers.md").split())
    for case in read("h200", "tccg-bound", "networks", "run.json")["cases"]:
        weft, theirs = (median(case["results"][name]) for name in ("weft", "cutensornet"))
        found = text[text.index(f"`{case['name']}`") :]
        assert found.removeprefix(f"`{case['name']}` ").removeprefix("took ").startswith(f"{weft / theirs:.2f}")


def test_a_network_chosen_for_again() -> None:
    text = " ".join(page("numbers.md").split())
    case = read("h200", "tccg-bound", "peps", "run.json")["cases"][0]
    ours, theirs = (1e3 * median(case["results"][name]) for name in ("weft", "cutensornet"))
    assert f"`{case['name']}` took {ours:.1f} ms and cuTensorNet {theirs:.1f}" in text


def test_products_of_terms() -> None:
    text = " ".join(page("numbers.md").split())
    lines = read("h200", "terms.json")["lines"]
    for n in (8192, 4096):
        plain, fused = (
            fmean(float(line.split()[-2]) for line in lines if line.startswith(f"{n} {name} "))
            for name in ("plain", "bias relu")
        )
        assert abs(plain - fused) / plain < 0.06
        assert f"| {n} x {n} | {plain:.0f} TFLOP/s | {fused:.0f} TFLOP/s |" in text
    for columns in (16, 32, 64):
        (line,) = [each for each in lines if each.startswith(f"{columns} ieee_bound ")]
        assert f"| {columns} | {float(line.split()[2]):.2f} ms |" in text


def test_attention() -> None:
    text = page("cascades.md")
    cases = [case for case in read("h100", "attention.json")["cases"] if case["results"]]
    assert cases
    for case in cases:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{case['name']}`")]
        weft = median(case["results"]["weft"])
        for cell, peer in zip(row.strip("|").split("|")[1:], ("sdpa", "flex"), strict=True):
            theirs = case["results"][peer]
            assert cell.strip() == ("" if theirs["cannot"] else f"{median(theirs) / weft:.2f}")


def profile(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read("h200", "profiles", name, "profile.json")["profiles"][0]
    return found


def test_reading_a_profile() -> None:
    text = " ".join(page("profiling.md").split())

    def says(sentence: str, *values: float) -> None:
        assert sentence.format(*(f"{value:.0f} %" for value in values)) in text

    memory, products, slots = profile("tccg-46"), profile("tccg-20"), profile("max-plus")
    for found in profiles_below([RESULTS / "h200" / "profiles"]).values():
        assert found.environment["date"][:10] in text
        assert found.environment["artifacts"]["commit"][:8] in text
        assert found.environment["artifacts"]["commit"].endswith("+changes") == ("of two uncommitted states" in text)
    counters = memory["counters"][-1]["values"]
    says("The call is at {} of the floor.", 100 * memory["share"])
    busy = (counters[key] for key in ("K3", "K2", "tensor"))
    says("The L2 is busy {} of the time and DRAM {}; the tensor pipe {}", *busy)
    says("of a scheduler's slots {} are taken", counters["K9"])
    says("allow four blocks, {} of the warps", counters["K6"])
    assert f"an intensity of {memory['floor']['intensity']:.0f} flop/B" in text
    assert f"knee at {memory['floor']['ridge']:.0f}" in text
    pack, product = (each["values"] for each in products["counters"])
    says("(the L2 is busy {} there)", pack["K3"])
    says("the tensor pipe is busy {} of the time", product["tensor"])
    assert f"has {product['K8']:.2f} warps ready in a cycle" in text
    says("{} of the warps are there", product["K6"])
    says("The call as a whole is at {} of the roof", 100 * products["share"])
    counters = slots["counters"][0]["values"]
    says("{} of the slots are taken, the ALU pipe (maxima) is busy {}", counters["K9"], counters["alu"])
    says("the FMA pipe (additions) {}", counters["K5"])
    assert f"{counters['K8']:.2f} warps are ready in a cycle" in text
    says("the call is at {} of it", 100 * slots["share"])


def test_the_pages_results_are_there() -> None:
    for name in ("profiling.txt", "profiles/index.md", "blocks.json"):
        assert (Path(RESULTS) / "h200" / name).is_file(), name


def test_doors() -> None:
    """JAX, lists of different lengths, blocks and triangles on an H200."""
    text = page("jax.md")
    programs = read("h200", "doors", "jax.json")["found"]
    for row in programs[:10]:
        ours, theirs = (1e6 * row["seconds"][name] for name in ("weft", "jnp.einsum"))
        assert f"| `{row['equation']}` | {ours:.1f} | {theirs:.1f} | {row['over']:.2f} |" in text
    assert f"The mean speedup is {geometric_mean([row['over'] for row in programs[:10]]):.2f}." in text
    alone = programs[-1]["seconds"]
    said = f"takes {1e6 * alone['weft']:.1f} us there and `jnp.einsum` {1e6 * alone['jnp.einsum']:.1f}"
    assert said in " ".join(text.split())
    text = page("groups.md")
    lists = {(row["case"], row["lengths"][:5]): row for row in read("h200", "doors", "ragged.json")["found"]}
    named = {"a matrix for": "a matrix for each list", "scores": "attention scores", "one matrix": "linear"}
    for name, said in named.items():
        many, few = (lists[said, spread] for spread in ("lists", "most "))
        line = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
        times = [f"{1e6 * each['seconds']['weft']:.0f} us, {each['over']:.2f}" for each in (many, few)]
        assert all(each in line for each in times), line
    blocks = read("h200", "doors", "block_sparse.json")["found"]
    ratios = [row["device: over"]["cutensor"] for row in blocks]
    words = " ".join(text.split())
    assert f"took {1 / geometric_mean(ratios):.2f} of the time of cuTENSOR's" in words
    assert f"and {1 / min(ratios):.2f} in the worst. A loop" in words
    loops = [geometric_mean([row[f"{kind}: over"]["loop"] for row in blocks]) for kind in ("device", "call")]
    assert f"took {loops[0]:.0f} times as long" in words
    assert f"and {loops[1]:.0f} times as long launched by the host" in words
    double, exchanged, single, both = read("h200", "doors", "triangles.json")["found"]
    for symmetry, one, other in (("within each pair", double, single), ('(`"efab": 1`)', exchanged, both)):
        cells = " | ".join(f"{value:.2f}" for value in (one["time over whole"], other["time over whole"], one["bytes"]))
        assert f"{symmetry} | {cells} |" in text


def test_invariant_bits() -> None:
    text = " ".join(page("contractions.md").split())
    longer = [1 / ratio for ratio in leads("h200", "doors", "invariant", "run.json", peer="weft-invariant")]
    assert f"{geometric_mean([1 / each for each in longer]):.2f} times as long in the geometric mean of TCCG" in text
    slow = sorted(1 / each for each in longer)[-4:]
    assert f"up to {slow[0]:.1f} under another schedule, and {slow[1]:.1f} to {slow[3]:.1f} in three" in text


def test_random_schedules() -> None:
    text, once = page("tuning.md"), []
    for name, case in read("h200", "tuning", "study.json")["cases"].items():
        line = next(line for line in text.splitlines() if line.startswith(f"| {name.split()[1]} |"))
        drawn = case["trials"][1:]
        ahead = sum(each.get("seconds", 1.0) < case["peer"]["seconds"] for each in drawn) / len(drawn)
        random = [each for each in case["trials"] if each["drawn"]]
        once.append(sum(each["verdict"] == "slow" for each in random) / len(random))
        assert f"| {case['legal']} | {len(random) / case['spent']:.1f} | {once[-1]:.0%} | {ahead:.0%} |" in line
        best = min(each["seconds"] for each in case["trials"] if "seconds" in each)
        assert f"| {best / case['peer']['seconds']:.2f} | {best / case['trials'][0]['seconds']:.2f} |" in line
    said = f"timed by that run alone, {100 * min(once):.0f} to {100 * max(once):.0f} % of the draws"
    assert said in " ".join(text.split())
    orders = read("h200", "tuning", "study.json")["cases"]
    worst = {name[-2:]: max(each["orders"]["seconds"].values()) / min(each["orders"]["seconds"].values())
             for name, each in orders.items()}  # fmt: skip
    assert min(worst["28"], worst["30"]) > 1.49
    assert max(value for name, value in worst.items() if name not in ("28", "30")) < 1.165
    hits = read("h200", "tuning-orders", "study.json")["cases"]["fp16_fp32 tccg-20"]["orders"]["hits"]
    assert f"In case 20 at least {min(hits['8'], hits['16']):.0f} % of accesses hit" in " ".join(text.split())
    assert f"in groups of 8 to 16 rows, and {hits['1']:.0f} % in groups of one" in " ".join(text.split())


def test_tccg_by_the_model_alone() -> None:
    text = " ".join(page("tuning.md").split())
    found = {peer: leads("h200", "tuning", "tccg", "run.json", peer=peer) for peer in ("cutensor", "torch")}
    assert f"is {geometric_mean(found['cutensor']):.2f} times as fast as cuTENSOR, " in text
    assert f"{min(found['cutensor']):.2f} in the worst case" in text
    assert f"and {geometric_mean(found['torch']):.2f} times as fast as `torch.einsum`" in text


def test_what_goes_with_the_lead() -> None:
    """The counters of ten cases say nothing; a table of the page has the shapes, all number types side by side."""
    profiles = profiles_below([RESULTS / "h200" / "profiles"])
    table = why(load(RESULTS / "h200" / "tccg"), "cutensor", "fp16_fp32", profiles)
    counters = [row for row in table.rows if row[0].text.startswith("counter: ")]
    assert len(counters) > 10
    assert not [row[0].text for row in counters if row[2].tone]
    assert {row[1].text for row in counters} == {"10"}


def test_minutes_of_suites() -> None:
    """From the beginning of one, or of its last piece, to that of the next in the records of one device."""
    begun = []
    for file in (RESULTS / "h100").glob("*/run.json"):
        environment = json.loads(file.read_text())["environment"]
        begun.append((environment["date"], file.parent.name))
        begun += [(piece["date"], "") for piece in environment.get("continues", [])]
    begun.sort()
    dates = [datetime.fromisoformat(date) for date, _ in begun]
    minutes = {name: (after - before).total_seconds() / 60
               for (_, name), before, after in zip(begun, dates, dates[1:], strict=False)}  # fmt: skip
    text = " ".join(page("benchmarks.md").split())
    for name in ("tccg", "tccg-fp64", "tccg-tf32", "permute", "dense"):
        took = " took" if name == "tccg" else ""
        assert re.search(rf"`{name}`{took} {minutes[name]:.1f}\b", text), (name, minutes[name])
    said = text.partition("and `dense` 1.5; ")[2].partition(" took less than one")[0]
    short = re.findall(r"`(\w+)`", said)
    assert len(short) == 6
    assert max(minutes[name] for name in short) < 1


def test_what_settled_sums_cost() -> None:
    """Within one percent of products with functions, within four of attention."""
    rows = read("h200", "settled.json")["rows"]
    text = " ".join(page("figures.md").split())
    assert "change by at most one percent, attention, forward and backward, by at most four" in text
    fused = [row for row in rows if row["suite"] == "tccg-fusion" and row["group"] != "none"]
    attention = [row for row in rows if row["suite"] == "cascade"]
    for some, count, most in ((fused, 24, 0.0115), (attention, 10, 0.045)):
        assert len(some) == count
        assert max(abs(row["after_us"] / row["before_us"] - 1) for row in some) < most


def test_workspace_of_tccg() -> None:
    """A row for each case, or for several that take as much."""
    rows = page("planning.md").partition("## Workspace of the TCCG cases")[2].splitlines()
    said = {}
    for cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows if re.match(r"\| \d", row)):
        first, _, last = cells[0].partition("-")
        said |= dict.fromkeys(range(int(first), int(last or first) + 1), cells[1:])
    found: dict[int, list[str]] = {}
    for case in read("h200", "tccg", "run.json")["cases"]:
        taken = case["results"]["weft"]["about"]["workspace bytes"] / 2**20
        found.setdefault(int(case["name"].removeprefix("tccg-")), []).append(f"{round(taken, 1):g}")
    assert said == found


def test_everyday_calls_on_a_cpu_with_predictions_held_against_them_and_without() -> None:
    def times(name: str) -> dict[str, float]:
        results = {case["name"]: case["results"] for case in read("cpu", name)["cases"]}
        return {case: median(of["weft"]) / median(of["torch"]) for case, of in results.items()
                if all(of.get(who, {}).get("samples") for who in ("weft", "torch"))}  # fmt: skip

    held, without = times("everyday.json"), times("everyday-unguarded.json")
    cases = sorted(held.keys() & without.keys())
    means = [geometric_mean([each[case] for case in cases]) for each in (held, without)]
    text = " ".join(page("planning.md").split())
    assert f"Over {len(cases)} everyday calls on a CPU, the default takes" in text
    assert f"takes {means[0]:.3f} of torch's time with this check and {means[1]:.3f} without it" in text
