"""Permutations that cannot be: the right error, a message that names what is at fault, and nothing written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import weft
from support import Backend
from weft.testing import poisoned


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@dataclass(frozen=True)
class Bad:
    """One call that must fail: `words` all stand in its message."""

    name: str
    error: type[weft.WeftError]
    words: tuple[str, ...]
    equation: Any = "ab->ba"
    x: Any = field(default_factory=lambda: ones(2, 3))
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


N, S, D, F, U = weft.NotationError, weft.ShapeError, weft.DTypeError, weft.FunctionError, weft.UnsupportedError
W = weft.WorkspaceError
READ_ONLY = np.ones((3, 2), dtype=np.float32)
READ_ONLY.flags.writeable = False

BAD = [
    Bad("a mode left out", N, ("label 'b'", "not in the output", "einsum"), "ab->a"),
    Bad("two modes left out", N, ("labels 'a', 'c'", "einsum"), "abc->b", ones(1, 2, 3)),
    Bad("a repeated mode left out", N, ("label 'a'", "einsum"), "aab->b", ones(2, 2, 3)),
    Bad("implicit output sums", N, ("label 'a'", "einsum"), "aa", ones(2, 2)),
    Bad("repeated output label", N, ("'a'", "2 times"), "ab->aba"),
    Bad("two operands", N, ("one operand", "names 2"), "ab,ab->ab"),
    Bad("two arrows", N, ("'->'", "more than once"), "ab->ba->ab"),
    Bad("digit", N, ("'1'", "letters"), "a1->1a"),
    Bad("ellipsis lost", N, ("'...'", "output"), "...b->b"),
    Bad("no equation", N, ("int",), 7),
    Bad("three sequences", N, ("two sequences", "3 are given"), (("a", "b"), ("b",), ("a",))),
    Bad("labels as a set", N, ("sequence", "set"), ({"a", "b"}, ("b", "a"))),
    Bad("extents of a stranger", N, ("label 'z'", "'ba'", "lacks"), options={"extents": {"z": 3}}),
    Bad("extents as a list", N, ("mapping", "list"), "ab->bac", options={"extents": [5]}),
    Bad("new label without extent", S, ("label 'c'", "new", "extents={'c': ...}", "out"), "ab->bac"),
    Bad("extent clashes", S, ("label 'b'", "3 in x", "5"), options={"extents": {"b": 5}}),
    Bad("negative extent", S, ("label 'c'", "-1"), "ab->bac", options={"extents": {"c": -1}}),
    Bad("extent that is no integer", S, ("label 'c'", "integer", "2.5"), "ab->bac", options={"extents": {"c": 2.5}}),
    Bad("too many elements", W, (str(6 * 2**70), "elements"), "ab->bac", options={"extents": {"c": 2**70}}),
    Bad("alpha beyond 64 bits", D, ("alpha", "64 bits"), x=ones(2, 3, dtype=torch.int64), options={"alpha": 2**63}),
    Bad("too few labels", S, ("'a'", "1 label", "2 dim"), "a->a"),
    Bad("diagonal clashes", S, ("'a'", "twice", "2 and 3"), "aa->a"),
    Bad("diagonal does not broadcast", S, ("'a'", "twice", "1 and 3"), "aa->a", ones(1, 3)),
    Bad("out of another shape", S, ("out", "(2, 3)", "(3, 2)"), options={"out": ones(2, 3)}),
    Bad("out of another rank", S, ("out", "(3, 2, 1)", "(3, 2)"), options={"out": ones(3, 2, 1)}),
    Bad("out expanded", S, ("out", "overlaps itself", "(0, 1)"), options={"out": ones(2).expand(3, 2)}),
    Bad("out overlapping", S, ("out", "overlaps itself"), options={"out": ones(9).as_strided((3, 2), (1, 1))}),
    Bad("out on another device", S, ("out", "meta"), options={"out": torch.ones(3, 2, device="meta")}),
    Bad("beta without c", S, ("beta=2.0", "no c", "c=out"), options={"beta": 2.0}),
    Bad("half into single", D, ("out is float32", "float16"), options={"out": ones(3, 2), "out_dtype": torch.float16}),
    Bad("float as integer", D, ("float32", "int32"), options={"out_dtype": torch.int32}),
    Bad("complex as real", D, ("complex64", "float32"), x=ones(2, 3, dtype=torch.complex64),
        options={"out_dtype": torch.float32}),
    Bad("numpy's text", D, ("out_dtype", "str_"), options={"out_dtype": np.str_}),
    Bad("function's floats as integers", D, ("float32", "int32"), x=ones(2, 3, dtype=torch.int32),
        options={"fn": torch.tanh, "out_dtype": torch.int32}),
    Bad("bool scaled", D, ("bool", "scaled"), x=ones(2, 3, dtype=torch.bool), options={"alpha": 2}),
    Bad("complex alpha of reals", D, ("alpha", "complex"), options={"alpha": 1j}),
    Bad("half an integer", D, ("alpha=0.5", "no integer"), x=ones(2, 3, dtype=torch.int32), options={"alpha": 0.5}),
    Bad("alpha a vector", S, ("alpha has shape (2,)",), options={"alpha": torch.ones(2)}),
    Bad("list", D, ("x is list",), x=[[1.0]]),
    Bad("control flow", F, ("torch.where",), options={"fn": lambda v: v if v > 0 else -v}),
    Bad("not pointwise", F, ("sum",), options={"fn": lambda v: v.sum()}),
    Bad("no function", F, ("not a function",), options={"fn": 3}),
    Bad("two results", U, ("2 values",), options={"fn": lambda v: (v, -v)}),
    Bad("backend unheard of", U, ("'cuda'", "auto"), options={"backend": "cuda"}),
    Bad("sparse", U, ("sparse",), x=ones(2, 3).to_sparse()),
    Bad("read-only result", U, ("read-only",), x=np.ones((2, 3), dtype=np.float32), options={"out": READ_ONLY}),
    Bad("negative strides", U, ("negative strides",), x=np.ones((2, 3), dtype=np.float32)[::-1]),
    Bad("conjugate result", U, ("conjugate",), x=ones(2, 3, dtype=torch.complex64),
        options={"out": ones(3, 2, dtype=torch.complex64).conj()}),
    Bad("workspace limit", U, ("bytes", "'much'"), options={"workspace_limit": "much"}),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_error(bad: Bad) -> None:
    for call in (weft.permute, weft.plan_permute):
        with pytest.raises(bad.error) as caught:
            call(bad.x, bad.equation, **bad.options)
        message = str(caught.value)
        assert all(word in message for word in bad.words), message
        assert call.__name__ in message, "the call describes itself"


@pytest.mark.parametrize("overlap", ["same", "shifted", "transposed"])
def test_out_must_not_be_x(overlap: str, quick_backend: Backend) -> None:
    memory = torch.arange(40.0, device=quick_backend.device)
    x = memory[:36].view(6, 6)
    out = {"same": x, "shifted": memory[3:39].view(6, 6), "transposed": x.T}[overlap]
    before = memory.clone()
    with pytest.raises(weft.ShapeError, match="out overlaps x"):
        weft.permute(x, "ab->ba", out=out, backend=quick_backend.name)
    assert torch.equal(memory, before)


@pytest.mark.parametrize(
    "options", [{"fn": torch.tanh, "alpha": 1j}, {"beta": 2j}, {"alpha": "two"}, {"fn": lambda v: v.sum()}]
)
def test_nothing_is_written(options: dict[str, Any]) -> None:
    guarded = poisoned((3, 2), torch.float32)
    with pytest.raises(weft.WeftError):
        weft.permute(ones(2, 3), "ab->ba", out=guarded.tensor, **options)
    assert bool(guarded.tensor.isnan().all())
    guarded.check_guards()


def test_no_plan_fits_the_workspace() -> None:
    with pytest.raises(weft.WorkspaceError, match=r"bytes of workspace, the limit is 100"):
        weft.permute(ones(64, 64), "ab->ba", fn=torch.relu, workspace_limit=100)


def test_triton_function_needs_triton() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def double(value):  # type: ignore[no-untyped-def]
        return value + value

    with pytest.raises(weft.UnsupportedError, match="Triton function"):
        weft.permute(ones(2, 3), "ab->ba", fn=double, backend="cpu")
