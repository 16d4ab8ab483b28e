"""Every class of modes and every schedule, against `numpy.einsum` in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu.problems import Problem, check, operands
from weft.testing import LAYOUTS

EXTENTS = {"a": 5, "b": 4, "c": 3, "d": 6, "e": 2, "f": 5, "x": 7, "y": 8, "z": 1}

EQUATIONS = [
    "xy,yf->xf",  # matrix product
    "yx,fy->fx",
    "xy,y->x",  # matrix and vector
    "y,xy->x",
    "xy,xy->",  # dot product
    "x,x->",
    "x,y->xy",  # outer product
    "x,y->yx",
    "xy,yx->xy",  # no sum
    "xy,y->xy",
    "abc,cd->bda",
    "axb,byc->xcay",
    "afbce,df->edcba",  # TCCG 7, 20 and 31 in row-major order
    "fbea,ecfd->dcba",
    "axed,cbfx->fedcba",
    "bxy,byf->bxf",  # batch
    "xby,ybf->fbx",
    "abxy,bayf->xafb",
    "xyb,yfb->xfb",
    "bx,bx->b",
    "bxy,by->bx",
    "xyab,fyab->",
    "xa,yb->xy",  # modes in one operand alone
    "xya,y->x",
    "ax,by->",
    "xy,->yx",
    "axy,->y",
    "xx,xy->xy",  # diagonals
    "xyx,yy->x",
    "xzy,yzf->xzf",  # extent 1
    "z,z->z",
    ",->",
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str) -> None:
    a, b = operands(equation, EXTENTS)
    check(Problem(equation, a, b))


@pytest.mark.parametrize("equation", ["fbea,ecfd->dcba", "xby,ybf->fbx", "xa,yb->xy", "xy,y->xy"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(equation: str, layout: str) -> None:
    """Operands with strides of 0, overlapping, padded, off alignment; D strided wherever it may be."""
    a, b = operands(equation, EXTENTS, layouts=(layout, LAYOUTS[LAYOUTS.index(layout) - 1]))
    out_layout = layout if layout not in ("expanded", "overlapping") else "strided"
    check(Problem(equation, a, b, out_layout=out_layout))


@pytest.mark.parametrize("extents", [{"b": 0}, {"x": 0}, {"f": 0}, {"y": 0}, {"x": 0, "y": 0}, {"a": 0}, {"z": 0}])
def test_empty_modes(extents: dict[str, int]) -> None:
    """An empty sum is 0 and everything after it still happens; an empty D is not touched."""
    equation = "bxya,bfyz->xbf"
    a, b = operands(equation, EXTENTS | extents)
    c = torch.randn(Problem(equation, a, b).shape)
    functions = {"epilogue": torch.cos}
    check(Problem(equation, a, b, c=c, beta=-0.5, functions=functions, by_kernels=False), steepest=1.0)
    check(Problem(equation, a, b, by_kernels=False))


def test_broadcast_extent_of_one() -> None:
    a, b = torch.randn(5, 1), torch.randn(6, 7)
    check(Problem("xy,yf->xf", a, b))


def test_sum_over_what_neither_moves_along() -> None:
    """Both operands expanded along a summed mode: each product counts as often as its extent."""
    a, b = torch.randn(5, 1).expand(5, 6), torch.randn(6, 1).t().expand(6, 6)[:1].expand(6, 6)
    check(Problem("xy,yf->xf", a, b.t()[:, :1].expand(6, 4)))


@pytest.mark.parametrize("extent", [1, 2, 3])
def test_many_small_modes(extent: int) -> None:
    """Eleven modes, shuffled in every tensor."""
    rank = 11 if extent < 3 else 7
    labels = "abcdefghijk"[:rank]
    shuffled = np.random.default_rng(0).permutation(list(labels))
    term_a, term_b = "".join(shuffled[: rank - 2]), "".join(shuffled[3:][::-1])
    kept = "".join([*sorted(set(term_a) ^ set(term_b)), shuffled[4]])
    equation = f"{term_a},{term_b}->{kept[::-1]}"
    a, b = operands(equation, dict.fromkeys(labels, extent))
    check(Problem(equation, a, b))


@pytest.mark.parametrize(
    ("equation", "extents"),
    [
        ("adb,cd->cba", {"a": 40, "b": 33, "c": 24, "d": 50}),
        ("dca,bd->cba", {"a": 65, "b": 70, "c": 17, "d": 129}),
        ("fdea,cebf->dcba", dict.fromkeys("abcdef", 11)),
        ("badg,cgfe->fedcba", dict.fromkeys("abcdefg", 6)),
        ("bmk,bkn->bmn", {"b": 300, "m": 9, "n": 10, "k": 11}),
        ("mkb,nkb->mnb", {"b": 65, "m": 33, "n": 9, "k": 17}),
        ("km,kn->mn", {"k": 5000, "m": 3, "n": 4}),
        ("mk,k->m", {"m": 700, "k": 301}),
        ("mk,nk->mn", {"m": 257, "k": 65, "n": 129}),
    ],
)
def test_moderate_sizes(equation: str, extents: dict[str, int]) -> None:
    """Sizes at which what is chosen takes several blocks; only what is offered runs."""
    a, b = operands(equation, extents)
    check(Problem(equation, a, b), every=False)


def test_blocks_of_other_sizes_in_one_launch() -> None:
    """Odd last blocks along several modes at once, A packed once for all blocks of B and the other way round."""
    equation = "fbea,ecfd->dcba"
    a, b = operands(equation, {"a": 9, "b": 4, "c": 5, "d": 7, "e": 3, "f": 8}, integers=True)
    problem = Problem(equation, a, b)
    expected = torch.einsum(equation, a.double(), b.double()).float()
    for schedule, d in problem.results():
        assert torch.equal(d, expected), schedule
