"""`Plan.explain` and plans for machines that are not there: what the text must say, and that its figures are right."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.api.contract import plan
from weft.api.describe import TARGETS, choice_for, hypothetical
from weft.base.figures import duration, folded, share, si, table
from weft.errors import NotationError, ShapeError, UnsupportedError, WorkspaceError
from weft.machine import ceilings
from weft.machine.ceilings import Ceilings
from weft.planner.schedule import Target
from weft.plans.explain.contraction import tiles
from weft.plans.explain.lines import known_ceilings
from weft.plans.explain.report import explain, report
from weft_bench import cases

RATES = {"float32": 1e11, "float16": 1e11}
ROUND = Ceilings("a round machine", "measured", 1e10, 1e10, 1e10, RATES, 1e-6, None, "2026-01-02T03:04:05+00:00", {})


@pytest.fixture
def round_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its full name: `weft.plan` is the function.
    monkeypatch.setattr(sys.modules["weft.plans.explain.lines"], "ceilings", lambda *_, **__: ROUND)


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ceilings, "_known", {})


def sections(text: str) -> dict[str, list[str]]:
    """The lines under each name, after the two of the head."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[2:]:
        name, rest = line[:12].strip(), line[12:]
        if name:
            found[name] = []
        found[list(found)[-1]].append(rest)
    return found


def test_says_where_a_copy_has_shown_the_rate_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = replace(ROUND, write=5e9, copy=8e9)
    monkeypatch.setattr(sys.modules["weft.plans.explain.lines"], "ceilings", lambda *_, **__: known)
    roof = sections(plan("mk,kn->mn", torch.ones(4, 4), torch.ones(4, 4)).explain())["roof"]
    assert "read 10.0 GB/s, write 8 GB/s (a copy's), " in roof[2]


@pytest.mark.usefixtures("round_ceilings")
def test_says_everything_about_a_fused_contraction() -> None:
    a, b = torch.ones(16, 8, 4, 6, 2), torch.ones(6, 10)
    c = torch.ones(2, 4, 8, 10, 16)
    p = plan("ecbfa,fd->abcde", a, b, c=c, b_fn=torch.nn.functional.elu, c_fn=torch.abs, epilogue=lambda x: x + 1)
    head, formula, *_ = p.explain().splitlines()
    found = sections(p.explain())
    assert head == "ecbfa,fd->abcde  by the cpu backend on CPU"
    assert formula == "  D[abcde] = epilogue(alpha * sum[f] A[ecbfa] * b_fn(B[fd]) + beta * c_fn(C[abcde]))"
    rows = {row[0]: row[1:] for row in map(str.split, found["modes"])}
    assert rows["d"] == ["10", "n", ".", "1", "16", "16"]
    assert rows["f"] == ["6", "k", "(summed)", "2", "10", ".", "."]
    assert found["modes"][-1] == "together M = 1024, N = 10, K = 6"
    assert found["types"] == [
        "stored A float32, B float32, C float32, D float32; products float32 (ieee), summed in float32"
    ]
    assert [line.partition(",")[0] for line in found["fused"]] == ["b_fn = elu", "c_fn = abs", "epilogue = a lambda"]
    flops, traffic = 2 * 1024 * 10 * 6, 4 * (1024 * 6 + 60 + 2 * 10240)
    assert found["work"][0].startswith(f"{si(flops, 'FLOP')} of products and sums, and ")
    assert found["work"][1].startswith(f"{si(traffic, 'B')} at least: read A ")
    assert found["work"][2] == f"operational intensity {si(flops / traffic, 'FLOP/B')}"
    assert found["roof"][0].startswith(f"floor {duration(traffic / 1e10 + 1e-6)}: memory binds (")
    assert found["roof"][1] == "ceilings of a round machine, measured 2026-01-02:"
    assert found["roof"][2] == "read 10.0 GB/s, write 10.0 GB/s, float32 products 100 GFLOP/s"
    assert found["plan"][0] == str(p.schedule)
    assert found["plan"][1].startswith("predicted ")
    assert found["plan"][1].endswith(f"workspace_bytes = {p.workspace_bytes}")
    assert found["candidates"][0].endswith(str(p.schedule))
    assert "stream: it computes products and their sums alone" in " ".join(found["excluded"])


@pytest.mark.usefixtures("round_ceilings")
def test_functions_that_are_not_there_are_not_named() -> None:
    text = plan("mk,kn->mn", torch.ones(3, 4), torch.ones(4, 5)).explain()
    assert "D[mn] = alpha * sum[k] A[mk] * B[kn]" in text
    assert "fused" not in sections(text)
    assert "functions" not in text
    assert "C stride" not in text


@pytest.mark.usefixtures("round_ceilings")
@pytest.mark.parametrize("case", [case for case in cases.general() if "function" not in case.tags], ids=str)
def test_every_kind_of_contraction_is_explained_in_forty_lines(case: cases.Case) -> None:
    given = cases.operands(case)
    options = {name: value for name, value in case.options().items() if name not in ("alpha", "beta")}
    text = plan(case.equation, given.a, given.b, c=given.c, backend="cpu", **options).explain()
    assert len(text.splitlines()) <= 40
    assert {"modes", "types", "work", "roof", "plan", "candidates"} <= set(sections(text))
    assert "nan" not in text


@pytest.mark.usefixtures("no_ceilings")
def test_no_floor_without_ceilings() -> None:
    found = sections(plan("mk,kn->mn", torch.ones(3, 4), torch.ones(4, 6)).explain())
    assert found["roof"] == ["no ceilings are known for CPU, so no floor is given: `weft info` measures them"]
    assert "floor" not in found["plan"][1]


@pytest.mark.usefixtures("no_ceilings")
def test_interpreter_has_no_ceilings() -> None:
    known, reason = known_ceilings(Target("interpreter", name="Triton interpreter", capability=90))
    assert known is None
    assert "interpreter" in reason


def test_the_reference_chooses_nothing() -> None:
    found = sections(plan("mk,kn->mn", torch.ones(3, 4), torch.ones(4, 7), backend="reference").explain())
    assert "nothing is chosen" in found["plan"][0]
    assert not {"candidates", "excluded"} & set(found)


def test_plans_for_a_gpu_elsewhere() -> None:
    """The floor of the paper's example on an H200 by its datasheet: 25.2 MB at 4.8 TB/s."""
    extents = {"a": 16, "b": 16, "c": 16, "d": 64, "e": 16, "f": 64}
    request = hypothetical(
        "ecbfa,fd->abcde", extents, dtype=torch.float16, out_dtype=torch.float32,
        b_fn=torch.nn.functional.elu, target="sm_90",
    )  # fmt: skip
    text = explain(request, *choice_for(request))
    found = sections(text)
    assert text.startswith("ecbfa,fd->abcde  by the triton backend on NVIDIA H200\n")
    moved = 2 * (16**4 * 64 + 64 * 64) + 4 * 16**4 * 64
    assert found["roof"][0].startswith(f"floor {duration(moved / 4.8e12)}: memory binds")
    assert found["roof"][1] == "ceilings of NVIDIA H200, from the datasheet, not measured:"
    assert re.match(r"(gett|simt) ", found["plan"][0])
    assert any("the 16 that lie together" in line for line in found["excluded"])


def test_candidates_are_ordered_and_counted() -> None:
    request = hypothetical("mk,kn->mn", {"m": 512, "n": 512, "k": 512}, dtype=torch.float16, target="sm_80")
    contraction, choice = choice_for(request)
    assert choice is not None
    found = sections(explain(request, contraction, choice))["candidates"]
    assert [line.split("  ", 1)[1] for line in found[:4]] == [str(each.schedule) for each in choice.ranked[:4]]
    assert found[4] == f"... and {len(choice.ranked) - 4} slower ones"


def test_a_hypothetical_request_is_that_of_real_tensors() -> None:
    """The same contraction as from contiguous tensors, so that what is said is true of them."""
    request = hypothetical("kmb,nkb->bnm", {"b": 3, "k": 4, "m": 5, "n": 6}, epilogue=torch.relu, backend="cpu")
    real = plan("kmb,nkb->bnm", torch.ones(4, 5, 3), torch.ones(6, 4, 3), epilogue=torch.relu, backend="cpu")
    contraction, choice = choice_for(request)
    assert contraction == real.contraction
    assert choice is not None
    assert choice.best.schedule == real.schedule


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"extents": {"m": 2, "k": 3}}, ShapeError, "no extent is given for 'n'"),
        ({"extents": {"m": 2, "k": 3, "n": 4, "z": 5}}, NotationError, "'z'"),
        ({"extents": {"m": 2, "k": -3, "n": 4}}, ShapeError, "'k' has extent -3"),
        ({"equation": "m...k,kn->m...n"}, NotationError, "write its labels"),
        ({"equation": "mkn->mn"}, NotationError, "two operands"),
        ({"target": "sm_75"}, UnsupportedError, "compute capability 7.5"),
        ({"target": "sm_95"}, UnsupportedError, "none of sm_80, .*did you mean 'sm_90'"),
        ({"target": "sm_90", "backend": "cpu"}, UnsupportedError, "this machine"),
        ({"backend": "gpu"}, UnsupportedError, "none of auto, triton, cpu, reference"),
    ],
)
def test_bad_requests(options: dict[str, object], error: type[Exception], said: str) -> None:
    given = {"equation": "mk,kn->mn", "extents": {"m": 2, "k": 3, "n": 4}} | options
    with pytest.raises(error, match=said):
        hypothetical(given.pop("equation"), given.pop("extents"), **given)  # type: ignore[arg-type]


def test_a_workspace_limit_that_nothing_meets() -> None:
    request = hypothetical("mk,kn->mn", {"m": 8, "k": 8, "n": 8}, dtype=torch.float16, backend="cpu", workspace_limit=1)
    with pytest.raises(WorkspaceError):
        choice_for(request)


def test_targets_have_datasheets() -> None:
    for target in TARGETS.values():
        known, _ = known_ceilings(target)
        assert known is not None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (1, "1 B"), (999.4, "999 B"), (999.6, "1 kB"), (67.1e6, "67.1 MB"), (99.96e3, "100 kB"),
        (4.8e12, "4.8 TB"), (math.inf, "inf B"), (9.996, "10.0 B"),
    ],
)  # fmt: skip
def test_si(value: float, text: str) -> None:
    assert si(value, "B") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1, "1 s"), (75.0, "75.0 s"), (0.99951, "1 s"), (2.34e-5, "23.4 us"), (5e-10, "0.5 ns")],
)
def test_duration(value: float, text: str) -> None:
    assert duration(value) == text


def test_share() -> None:
    assert share(0.892) == "89%"
    assert share(math.inf) == "-"


def test_a_permutation_explains_itself_whatever_was_planned_before() -> None:
    x = torch.ones(50, 63)
    weft.permute(x, "ab->ba")
    scaled, plain = weft.plan_permute(x, "ab->ba", alpha=2.0), weft.plan_permute(x, "ab->ba")
    assert (scaled.permutation.scaled, plain.permutation.scaled) == (True, False)
    assert torch.equal(scaled(x, alpha=2.0), 2 * plain(x))


def test_a_plan_explains_itself_whatever_was_planned_before() -> None:
    a, b, c = torch.ones(50, 61), torch.ones(61, 90), torch.ones(50, 90)
    weft.contract("ij,jk->ik", a, b)
    added, plain = weft.plan("ij,jk->ik", a, b, c=c), weft.plan("ij,jk->ik", a, b)
    assert "beta * C" in added.explain()
    assert "beta * C" not in plain.explain()
    assert torch.equal(added(a, b, c=c), plain(a, b) + c)


@pytest.mark.parametrize("extents", [{"a": 64, "b": 64, "c": 512, "k": 512}, {"a": 63, "b": 56, "c": 72, "k": 72}])
def test_tiles_cover_all_products_and_their_share_is_told(extents: dict[str, int]) -> None:
    asked = hypothetical("abk,kc->cab", extents, dtype=torch.float16, out_dtype=torch.float32, target="sm_90")
    contraction, choice = choice_for(asked)
    families = set()
    for rank in choice.ranked:
        if found := tiles(contraction, rank.schedule):
            families.add(rank.schedule.family)
            covered, tile = found["covered"], rank.schedule.tile
            tile = (tile[1], tile[0], tile[2]) if getattr(rank.schedule, "swap_ab", False) else tile
            m, n, k = (-(-extent // along) * along for extent, along in zip((extents["a"] * extents["b"], extents["c"],
                       extents["k"]), tile, strict=True))  # fmt: skip
            assert covered[0] >= m, rank.schedule
            assert covered[1:] == (n, k), rank.schedule
            assert found["useful"] == pytest.approx(math.prod(extents.values()) / math.prod(covered))
            assert (found["padding"] == 0) == (found["useful"] == 1)
    assert {"gett", "warp_specialized"} <= families
    found = tiles(contraction, choice.best.schedule)
    text = explain(asked, contraction, choice)
    assert "of the products are useful; nothing is padded" in text
    assert report(asked, contraction, choice).useful_share == found["useful"]


VOID = {"img", "br", "line", "circle", "meta", "hr", "path", "rect", "input", "col", "use"}


class Shown(HTMLParser):
    """Text of a fragment, its tags closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(fragment)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_plan() -> None:
    a, b = torch.randn(6, 5), torch.randn(5, 7)
    plan = weft.plan("mk,kn->mn", a, b, epilogue=torch.relu)
    shown = Shown(plan._repr_html_())
    assert "mk,kn->mn" in shown.text
    assert si(2 * 6 * 5 * 7, "flop") in shown.text
    assert "epilogue" in shown.text
    assert str(plan.schedule) in shown.text
    assert plan.explain() in shown.text


def test_a_plan_of_a_permutation_and_one_of_the_oracle() -> None:
    x = torch.randn(3, 4)
    assert "ab->ba" in Shown(weft.plan_permute(x, "ab->ba")._repr_html_()).text
    oracle = weft.plan("mk,kn->mn", x, x.T, backend="reference")
    assert "reference backend" in Shown(oracle._repr_html_()).text


def test_a_report_and_text_that_looks_like_html() -> None:
    a = torch.randn(2, 3)
    report = weft.plan([("<b>", 1), (1, "&"), ("<b>", "&")], a, a.T).report()
    shown = Shown(report._repr_html_())
    assert "b" not in shown.tags
    assert shown.tags.count("table") == 1 + bool(report.candidates)


def test_a_network() -> None:
    net = weft.network("ab,bc,cd,da->", *[(4, 4)] * 4, slices="a")
    shown = Shown(net._repr_html_())
    assert "4 over a" in shown.text
    assert net.explain() in shown.text


def test_a_group() -> None:
    plan = weft.plan_grouped("mk,kn->mn", [(torch.ones(2, 3), torch.ones(3, 4)), (torch.ones(5, 1), torch.ones(1, 6))])
    assert repr(plan) == "GroupedPlan('mk,kn->mn', 2 pairs, float32)"
    assert si(2 * (24 + 30), "flop") in Shown(plan._repr_html_()).text


def test_a_profile() -> None:
    a = torch.randn(8, 8)
    found = weft.profile(weft.plan("ij,jk->ik", a, a), a, a, budget=0.005, counters=False)
    assert "What could not be had" in Shown(found._repr_html_()).text or "counters" in Shown(found._repr_html_()).text


@pytest.mark.parametrize("text", ["<script>", 'a "b" & c'])
def test_everything_is_escaped(text: str) -> None:
    shown = Shown(table([(text, text)], (text, text)) + folded(text, text))
    assert "script" not in shown.tags
    assert shown.text.count(text) == 6
