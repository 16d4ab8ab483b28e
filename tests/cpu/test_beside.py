"""Operands, coordinates and several results at the edges of blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cpu.extended import Extended, check_exact
from weft.testing import random_operand

EXTENTS = {"b": 2, "m": 9, "p": 3, "n": 7, "k": 5, "l": 4, "o": 3}


def whole(modes: str, seed: int, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> torch.Tensor:
    shape = tuple(EXTENTS[mode] for mode in modes)
    return random_operand(shape, dtype, seed, integers=True, layout=layout)


EVERYWHERE: dict[str, Any] = {
    "a_fn": lambda x, scale, k, b: x * scale + k - b,
    "b_fn": lambda x, shift, n, k: x + shift - n * k,
    "c_fn": lambda x, gate, m: x * gate + m,
    "epilogue": lambda x, bias, m, n: (x + bias - m, x > n, m + n),
    "indices": {"k": "k", "b": "b", "n": "n", "m": "m"},
}


@pytest.mark.parametrize("equation", ["bmpk,bkn->bmpn", "kmpb,nbk->pnbm", "bmpkl,bkno->nbpm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64, torch.int32])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_everywhere_at_once(equation: str, dtype: torch.dtype, layout: str) -> None:
    """On A, B, C and D, along batch, free, summed and lone modes."""
    terms, output = equation.split("->")
    a, b = (whole(term, seed, dtype, layout) for seed, term in enumerate(terms.split(",")))
    lone = "l" if "l" in terms else ""
    operands = {
        "scale": ("k" + lone + "p", whole("k" + lone + "p", 3, dtype if dtype != torch.float16 else torch.float32)),
        "shift": ("bn", whole("bn", 4, dtype, layout)),
        "gate": ("m", whole("m", 5)) if not dtype.is_complex else ("m", whole("m", 5, dtype)),
        "bias": ("np", whole("np", 6, layout=layout)),
    }
    options = {**EVERYWHERE, "operands": operands, "out_dtype": None}
    if dtype.is_complex:
        options["epilogue"] = lambda x, bias, m, n: (x + bias - m, x.real > n, m + n)
    if dtype is torch.int32:
        operands["gate"], operands["bias"] = ("m", whole("m", 5, dtype)), ("np", whole("np", 6, dtype))
    if dtype is torch.float16:
        options["out_dtype"] = (torch.float32, None, None)
    check_exact(Extended(equation, a, b, whole(output, 7, dtype), layout, options))


@pytest.mark.parametrize("equation", ["bmk,bkn->bmn", "m,n->nm", "mk,->m", "bm,bm->bm", "k,k->"])
def test_without_some_class_of_modes(equation: str) -> None:
    (term_a, term_b), output = equation.split("->")[0].split(","), equation.split("->")[1]
    options = {
        "a_fn": lambda x, s: x * s, "b_fn": lambda x, t: x + t, "epilogue": lambda x, u: (u, x, x - u),
        "operands": {
            "s": (term_a, whole(term_a, 1)), "t": (term_b[:1], whole(term_b[:1], 2)), "u": (output, whole(output, 3)),
        },
    }  # fmt: skip
    check_exact(Extended(equation, whole(term_a, 4), whole(term_b, 5), options=options))


def test_broadcast_tensors_that_functions_fill() -> None:
    """A and B have extent 1 where what their functions take moves: along a batch, a free and a summed mode."""
    a, b = whole("bmk", 1)[:1, :1, :1], whole("bkn", 2)
    options = {
        "a_fn": lambda x, s, k, m: x * s - k + m, "b_fn": lambda x, k: x + k,
        "operands": {"s": ("bk", whole("bk", 3))}, "indices": {"k": "k", "m": "m"},
        "epilogue": lambda x, m: x + m,
    }  # fmt: skip
    check_exact(Extended("bmk,bkn->bmn", a.expand(1, EXTENTS["m"], 1), b, options=options))


def test_lone_modes_that_only_an_operand_moves_along() -> None:
    a = whole("mk", 1)[..., None].expand(EXTENTS["m"], EXTENTS["k"], EXTENTS["l"])
    options = {"a_fn": lambda x, s, l: x * s + l, "operands": {"s": ("l", whole("l", 2))}, "indices": {"l": "l"}}
    check_exact(Extended("mkl,kn->mn", a, whole("kn", 3), options=options))


def test_empty_extents() -> None:
    options = {
        "a_fn": lambda x, s, k: x * s + k, "epilogue": lambda x, m: (x + m, m),
        "operands": {"s": ("k", torch.ones(0))}, "indices": {"k": "k", "m": "m"},
    }  # fmt: skip
    check_exact(Extended("mk,kn->mn", torch.ones(9, 0), torch.ones(0, 7), options=options, by_kernels=False))


@pytest.mark.parametrize("layout", ["contiguous", "permuted", "strided"])
def test_further_results_may_be_views_of_the_sums(layout: str) -> None:
    """D is written last: where the sums lie in D itself they must not be written over before."""
    options = {"epilogue": lambda x: (x * 2, x, -x, 1.0)}
    a, b = whole("mk", 1), whole("kn", 2)
    check_exact(Extended("mk,kn->mn", a, b, out_layout=layout, options=options))


def test_values_beside_conjugated_and_rounded_ones() -> None:
    """The function sees conjugated values; of a product type narrower than storage it sees rounded ones."""
    a, b = whole("mk", 1, torch.complex64), whole("kn", 2, torch.complex64)
    options = {"a_fn": lambda x, s: x * s.conj(), "operands": {"s": ("m", whole("m", 3, torch.complex64))}}
    check_exact(Extended("mk,kn->mn", a, b, options=options))
    a, b = torch.full((9, 5), 2049.0), whole("kn", 2)
    options = {"a_fn": lambda x, k: x + k * 2, "indices": {"k": "k"}, "precision": torch.float16}
    for schedule, (d,) in Extended("mk,kn->mn", a, b, options=options).results():
        rounded = 2048 + 2 * torch.arange(5.0).expand(9, 5)  # 2049 is no half-precision number
        assert torch.equal(d, rounded @ b), schedule
