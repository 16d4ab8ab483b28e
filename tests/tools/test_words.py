"""The linter of words finds what its rules forbid, and nothing in fenced blocks or ordinary sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

import words


@pytest.mark.parametrize("beginning", ["What", "Those", "The same", "Of"])
def test_beginnings_of_docstrings(beginning: str, tmp_path: Path) -> None:
    file = tmp_path / "room.py"
    file.write_text(f'"""Rooms."""\n\n\ndef first():\n    """{beginning} and more."""\n\n\nx = "{beginning}"\n')
    assert list(words.faults(tmp_path)) == [f'{file}:5: the docstring begins with "{beginning}": begin with the noun']


def test_clauses_of_docstrings_and_pages(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text('class Room:\n    """A room.\n\n    Doors,\n    of which one is open.\n    """\n')
    (tmp_path / "page.md").write_text("# Rooms\n\n```text\nDoors, of which\n```\n\nDoors, of which one is open.\n")
    assert [fault.split(": ")[0] for fault in words.faults(tmp_path)] == [
        f"{tmp_path / 'page.md'}:7", f"{tmp_path / 'room.py'}:4",
    ]  # fmt: skip
    assert words.main(str(tmp_path)) == 1


def test_other_words_pass(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text('def first():\n    """Offsets of rooms: what is within, of that which is."""\n')
    assert words.main(str(tmp_path)) == 0


def test_clean_rooms_are_there() -> None:
    assert all((words.ROOT / room).exists() for room in words.CLEAN)
