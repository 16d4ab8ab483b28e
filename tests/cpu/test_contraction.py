"""Every class of modes and every schedule, against `numpy.einsum` in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpu.problems import BLAS, GETT, NONE, TTGT, Problem, check, operands
from weft.testing import LAYOUTS

EXTENTS = {"a": 5, "b": 4, "c": 3, "d": 6, "e": 2, "f": 5, "x": 7, "y": 8, "z": 1}

EQUATIONS = {  # and the families that serve each
    "xy,yf->xf": BLAS,  # matrix product
    "yx,fy->fx": BLAS,
    "xy,y->x": BLAS,  # matrix and vector
    "y,xy->x": BLAS,
    "xy,xy->": BLAS,  # dot product
    "x,x->": BLAS,
    "x,y->xy": BLAS,  # outer product
    "x,y->yx": BLAS,
    "xy,yx->xy": BLAS,  # no sum
    "xy,y->xy": BLAS,
    "abc,cd->bda": TTGT,
    "axb,byc->xcay": TTGT,
    "afbce,df->edcba": TTGT,  # TCCG 7, 20 and 31 in row-major order
    "fbea,ecfd->dcba": TTGT,
    "axed,cbfx->fedcba": TTGT,
    "bxy,byf->bxf": BLAS,  # batch
    "xby,ybf->fbx": BLAS,
    "abxy,bayf->xafb": TTGT,
    "xyb,yfb->xfb": TTGT,
    "bx,bx->b": BLAS,
    "bxy,by->bx": BLAS,
    "xyab,fyab->": GETT,
    "xa,yb->xy": GETT,  # modes in one operand alone
    "xya,y->x": GETT,
    "ax,by->": GETT,
    "xy,->yx": BLAS,
    "axy,->y": GETT,
    "xx,xy->xy": BLAS,  # diagonals
    "xyx,yy->x": GETT,
    "xzy,yzf->xzf": BLAS,  # extent 1
    "z,z->z": BLAS,
    ",->": BLAS,
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str) -> None:
    a, b = operands(equation, EXTENTS)
    check(Problem(equation, a, b, families=EQUATIONS[equation]))


#: Families that serve other layouts than contiguous ones: TTGT where steps of its own are worth it.
OF_LAYOUTS = {
    "fbea,ecfd->dcba": {"expanded": GETT, "overlapping": GETT},
    "xby,ybf->fbx": {"contiguous": BLAS | TTGT, "expanded": TTGT, "offset": TTGT, "overlapping": GETT, "strided": TTGT},
}


@pytest.mark.parametrize("equation", ["fbea,ecfd->dcba", "xby,ybf->fbx", "xa,yb->xy", "xy,y->xy"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(equation: str, layout: str) -> None:
    """Operands with strides of 0, overlapping, padded, off alignment; D strided wherever it may be."""
    a, b = operands(equation, EXTENTS, layouts=(layout, LAYOUTS[LAYOUTS.index(layout) - 1]))
    out_layout = layout if layout not in ("expanded", "overlapping") else "strided"
    families = OF_LAYOUTS.get(equation, {}).get(layout, EQUATIONS[equation])
    check(Problem(equation, a, b, out_layout=out_layout, families=families))


@pytest.mark.parametrize("extents", [{"b": 0}, {"x": 0}, {"f": 0}, {"y": 0}, {"x": 0, "y": 0}, {"a": 0}, {"z": 0}])
def test_empty_modes(extents: dict[str, int]) -> None:
    """An empty sum is 0 and everything after it still happens; an empty D is not touched."""
    equation = "bxya,bfyz->xbf"
    a, b = operands(equation, EXTENTS | extents)
    c = torch.randn(Problem(equation, a, b).shape)
    functions = {"epilogue": torch.cos}
    check(Problem(equation, a, b, c=c, beta=-0.5, functions=functions, families=NONE), steepest=1.0)
    check(Problem(equation, a, b, families=NONE))


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
    check(Problem(equation, a, b, families=BLAS if extent == 1 else TTGT))


@pytest.mark.parametrize(
    ("equation", "extents", "families"),
    [
        ("adb,cd->cba", {"a": 40, "b": 33, "c": 24, "d": 50}, TTGT),
        ("dca,bd->cba", {"a": 65, "b": 70, "c": 17, "d": 129}, TTGT),
        ("fdea,cebf->dcba", dict.fromkeys("abcdef", 11), TTGT),
        ("badg,cgfe->fedcba", dict.fromkeys("abcdefg", 6), TTGT),
        ("bmk,bkn->bmn", {"b": 300, "m": 9, "n": 10, "k": 11}, BLAS),
        ("mkb,nkb->mnb", {"b": 65, "m": 33, "n": 9, "k": 17}, TTGT),
        ("km,kn->mn", {"k": 5000, "m": 3, "n": 4}, BLAS),
        ("mk,k->m", {"m": 700, "k": 301}, BLAS),
        ("mk,nk->mn", {"m": 257, "k": 65, "n": 129}, BLAS),
    ],
)
def test_moderate_sizes(equation: str, extents: dict[str, int], families: frozenset[str]) -> None:
    """Sizes at which what is chosen takes several blocks; only what is offered runs."""
    a, b = operands(equation, extents)
    check(Problem(equation, a, b, families=families), every=False)


def test_blocks_of_other_sizes_in_one_launch() -> None:
    """Odd last blocks along several modes at once, A packed once for all blocks of B and the other way round."""
    equation = "fbea,ecfd->dcba"
    a, b = operands(equation, {"a": 9, "b": 4, "c": 5, "d": 7, "e": 3, "f": 8}, integers=True)
    problem = Problem(equation, a, b, families=TTGT)
    expected = torch.einsum(equation, a.double(), b.double()).float()
    for schedule, d in problem.results():
        assert torch.equal(d, expected), schedule
