"""The figures of JAX, ragged lists and triangles are of right results."""

from __future__ import annotations

import pytest

import door_figures


def test_triangles_are_held_against_whole_tensors():
    rows = list(door_figures.by_triangles(True, "cpu"))
    assert [row["type"] for row in rows] == ["float64", "float64", "float32", "float32"]
    for row in rows:
        assert max(row["error"].values()) < (1e-12 if row["type"] == "float64" else 1e-4)
        assert 0.3 < row["bytes"] < 0.9
        assert row["time over whole"] > 0
        assert "bytes" not in door_figures.line(row)
        assert row["type"] in door_figures.line(row)


def test_programs_of_jax_are_held_against_float64():
    jax = pytest.importorskip("jax")
    row = door_figures._programs(jax, *door_figures.HOST)
    assert max(row["error"].values()) < 2e-3
    assert set(row["seconds"]) == {"weft", "jnp.einsum"}


def test_lists_are_held_against_each_list_alone():
    x = door_figures._jagged([3, 1, 5], 8, 0, "cpu")
    ways, exact = door_figures._scores(x, x)
    found = door_figures._raced({name: ways[name] for name in ("weft", "strided")}, exact, "cpu")
    assert max(found["error"].values()) < 1e-2
    assert not found["refused"]
    assert found["over"] > 0
