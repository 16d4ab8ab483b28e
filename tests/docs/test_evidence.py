"""`make evidence`: pieces of one campaign, each gone on with until it is done."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import evidence
from pages import ROOT

MAKEFILE = """
quick:
\techo done >> $(RESULTS)/quick
long:
\ttest -e $(RESULTS)/long || { touch $(RESULTS)/long; sleep 60; }
wrong:
\tfalse
"""


@pytest.fixture
def make(tmp_path: Path) -> list[str]:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return ["make", "-s", "-f", str(tmp_path / "Makefile"), f"RESULTS={tmp_path}"]


def test_a_campaign_goes_on_with_what_was_cut_off_or_failed(tmp_path: Path, make: list[str]) -> None:
    targets = ["wrong", "quick", "long"]
    found = evidence.campaign(tmp_path, targets, make, minutes=0.03)
    assert {name: piece["state"] for name, piece in found["pieces"].items()} == {
        "wrong": evidence.FAILED, "quick": evidence.DONE, "long": evidence.CUT_OFF
    }  # fmt: skip
    assert "1 of 3 pieces are done\n  wrong: failed\n  long: cut off" in evidence.said(found, targets)
    found = evidence.campaign(tmp_path, targets, make, minutes=1)
    assert found["pieces"]["long"]["state"] == evidence.DONE
    assert (tmp_path / "quick").read_text() == "done\n"  # what is done is not done again
    assert list(found["pieces"]) == targets
    assert found == json.loads((tmp_path / evidence.FILE).read_text())


def test_another_commit_is_refused_and_several_cards_are_said(tmp_path: Path, make: list[str]) -> None:
    found = evidence.campaign(tmp_path, ["quick"], make, minutes=1)
    found["pieces"]["quick"]["cards"].append("another card")
    assert "of 2 cards" in evidence.said(found, ["quick"])
    (tmp_path / evidence.FILE).write_text(json.dumps(found | {"commit": "another"}))
    with pytest.raises(SystemExit, match="is of commit another, not of"):
        evidence.campaign(tmp_path, ["quick"], make, minutes=1)


def test_every_piece_is_a_target_of_the_makefile() -> None:
    made = subprocess.run(["make", "-n", "evidence", "PY=echo"], cwd=ROOT, capture_output=True, text=True, check=True)
    pieces = {word for word in made.stdout.split() if re.match(r"(figure|study|profile)-", word)}
    assert {"figure-tccg", "study-ladder", "study-kernelbench", "profile-13", "profile-22"} <= pieces
    subprocess.run(["make", "-n", "PY=echo", *pieces], cwd=ROOT, capture_output=True, check=True)
