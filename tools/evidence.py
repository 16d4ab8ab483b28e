"""One campaign of all that pages quote, piece by piece: `make evidence` goes on with it until all is done.

    python tools/evidence.py --results out/evidence --minutes 9 figure-tccg study-ladder ...

A piece is a target of the Makefile. Each runs to its end or until the minutes are over: then it is interrupted, and the
next call goes on with it. `campaign.json` beside the results says of each piece its state, seconds, and cards. Results
of another commit are refused; those of several cards are said, piece by piece.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from weft.base.files import hand_out
from weft.machine.stamp import commit

FILE = "campaign.json"
PATIENCE = 30.0  # seconds that a piece has to save what it measured
DONE, CUT_OFF, FAILED = "done", "cut off", "failed"


def card() -> str:
    """The GPU's own number, which tells one card from another of the same name."""
    asked = ["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"


def begun(results: Path) -> dict[str, Any]:
    """The campaign in a folder, or a new one; ends the program where that is of another commit."""
    file = results / FILE
    if not file.exists():
        return {"commit": commit(), "pieces": {}}
    found: dict[str, Any] = json.loads(file.read_text())
    if found["commit"] != commit():
        sys.exit(f"{file} is of commit {found['commit']}, not of {commit()}: move {results} away first")
    return found


def run(target: str, make: list[str], seconds: float) -> str:
    """Run one piece; interrupted after so many seconds, it keeps what it has."""
    process = subprocess.Popen([*make, target], start_new_session=True)  # with all that it starts
    try:
        return DONE if process.wait(seconds) == 0 else FAILED
    except subprocess.TimeoutExpired:
        for left in (signal.SIGINT, signal.SIGKILL):
            os.killpg(process.pid, left)
            try:
                process.wait(PATIENCE)
                break
            except subprocess.TimeoutExpired:
                continue
        return CUT_OFF


def campaign(results: Path, targets: list[str], make: list[str], minutes: float) -> dict[str, Any]:
    """Go on with the pieces that are not done, in order, those that failed last, until the minutes are over."""
    found, here, deadline = begun(results), card(), time.monotonic() + 60 * minutes
    pieces = found["pieces"]
    left = [target for target in targets if pieces.get(target, {}).get("state") != DONE]
    for target in sorted(left, key=lambda target: pieces.get(target, {}).get("state") == FAILED):
        before, rest = time.monotonic(), deadline - time.monotonic()
        if rest <= 0:
            break
        known = pieces.setdefault(target, {"seconds": 0.0, "cards": []})
        known["state"] = run(target, make, rest)
        known["seconds"] = round(known["seconds"] + time.monotonic() - before, 1)
        known["cards"] = list(dict.fromkeys([*known["cards"], here]))
        results.mkdir(parents=True, exist_ok=True)
        hand_out(results / FILE, json.dumps(found, indent=1) + "\n")
    return found


def said(found: dict[str, Any], targets: list[str]) -> str:
    """A count of pieces that are done, those that are left, and whether all are of one card."""
    pieces = found["pieces"]
    states = {target: pieces.get(target, {}).get("state", "not begun") for target in targets}
    cards = {card for piece in pieces.values() for card in piece["cards"]}
    lines = [f"{sum(state == DONE for state in states.values())} of {len(targets)} pieces are done"]
    lines += [f"  {target}: {state}" for target, state in states.items() if state != DONE]
    if len(cards) > 1:
        lines.append(f"of {len(cards)} cards: pages that quote these results say which piece is of which")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--make", default="make", help="how make is called, with its variables")
    asked = parser.parse_args()
    whole = campaign(asked.results, asked.targets, shlex.split(asked.make), asked.minutes)
    print(said(whole, asked.targets))
    if any(whole["pieces"].get(target, {}).get("state") != DONE for target in asked.targets):
        sys.exit(3)
