"""Pages of results that are kept: what each of them says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import ROOT

RESULTS = ROOT / "results"
PAGES = sorted(RESULTS.glob("**/*.html"))
KINDS = ("What is measured", "Causes", "Other places", "Chance")


def name(file: Path) -> str:
    return str(file.parent.relative_to(RESULTS))


@pytest.mark.parametrize("file", PAGES, ids=name)
def test_threats_to_validity_stand_on_every_page(file: Path) -> None:
    """One paragraph of each kind, none of them empty."""
    _, *after = re.split(r"<h[23]>Threats to validity</h[23]>", file.read_text())
    assert after, f"{name(file)} says nothing of threats to its validity"
    for text in after:
        said = dict(re.findall(r"<p><b>([^<]+)\.</b> ([^<]*)</p>", text.partition("<h")[0]))
        assert tuple(said) == KINDS
        assert all(said.values())


def test_there_are_pages() -> None:
    assert len(PAGES) > 40
