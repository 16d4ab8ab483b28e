"""Rooms are held to their ceilings of code lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import count_lines


def test_rooms_over_their_ceilings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, blanks and docstrings do not count."""
    texts = {"low": "x = 1\n", "high": "x = 1\ny = 2\n", "new": "x = 1\n", "said": '"""Text."""\n\n# more\n'}
    for room, text in texts.items():
        file = tmp_path / "src/weft" / room / "file.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setattr(count_lines, "ROOT", tmp_path)
    monkeypatch.setattr(count_lines, "CEILINGS", tmp_path / "ceilings.json")
    count_lines.CEILINGS.write_text(json.dumps({"low": 1, "high": 1, "said": 0}))
    high, new = count_lines.over_ceilings()
    assert high.startswith("high has 2 lines of code, its ceiling is 1")
    assert new.startswith("new has no ceiling")
    with pytest.raises(SystemExit, match="high has 2"):
        count_lines.main(["--check"])
    count_lines.main(["--set"])
    assert count_lines.over_ceilings() == []
