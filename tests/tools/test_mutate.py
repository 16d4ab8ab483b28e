"""Faults that the tool puts in: one of each kind, none in messages or annotations, and the test that finds one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mutate

FAULTS = [
    ("a < b", ["a <= b"]),
    ("a is not None", ["a is None"]),
    ("a in b and c", ["a not in b and c", "a in b or c"]),
    ("not (a)", [" (a)"]),
    ("f(a, key=b, **c)", ["f(a, **c)"]),
    ("f(key=b)", []),
    ("a[0], a[2], a[-1]", ["a[-1], a[2], a[-1]", "a[0], a[-2], a[-1]", "a[0], a[2], a[0]"]),
    ("a = 'é' * 3", ["a = 'é' // 3", "a = 'é' * 4"]),
    ("if a:\n    return b\n", ["if a:\n    pass\n"]),
    ("def f(a: X[3] = 2) -> Y[4]: pass", ["def f(a: X[3] = 3) -> Y[4]: pass"]),
    ("raise E(f'{a + 1}')", []),
    ("log.info('%d', a + 1)", []),
    ("_LIMIT = 1 << 20", []),
    ('"""A sum, a + 1."""', []),
    ("@lru_cache(maxsize=4)\ndef f(): pass", []),
]


@pytest.mark.parametrize(("text", "changed"), FAULTS)
def test_faults_of_a_text(text: str, changed: list[str]) -> None:
    found = mutate.faults_of(text)
    assert [text[: at.start] + at.after + text[at.start + len(at.before) :] for at in found] == changed


def test_a_room_has_the_same_faults_each_time() -> None:
    few, many = (mutate.chosen("spec", count, seed=3) for count in (4, 8))
    assert few == many[:4]
    assert len({(fault.file, fault.line) for fault in many}) == 8
    assert mutate.chosen("spec", 4, seed=4) != few
    assert all(fault.file.startswith(f"{mutate.BENCH}/cases/") for fault in mutate.chosen("bench/cases", 4, seed=3))


@pytest.mark.parametrize(
    ("line", "limit", "answer"),
    [
        ("assert True", 60, "not found"),
        ("assert False", 60, "test_it.py::test_it"),
        ("while True: pass", 1, "time"),
        ("import os; os._exit(3)", 60, "the process"),
    ],
)
def test_what_tests_answer(line: str, limit: float, answer: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {line}\n")
    assert mutate.tried(tmp_path, ["test_it.py"], limit) == answer
