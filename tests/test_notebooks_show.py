"""What a notebook shows of plans, networks and reports: well-formed HTML with the figures that `report` has."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import weft
from weft.base.figures import folded, si, table

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
