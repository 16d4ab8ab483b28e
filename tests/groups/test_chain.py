"""Chains: a tensor between two matrices."""

from __future__ import annotations

import pytest
import torch

import weft
from support import Backend
from weft.testing import random_operand


def operands(shapes: tuple[tuple[int, ...], ...], device: str) -> list[torch.Tensor]:
    return [random_operand(shape, torch.float64, at, integers=True, device=device) for at, shape in enumerate(shapes)]


SHAPES = [
    ((16, 16), (1, 16, 40), (40, 33)),
    ((4, 3), (9, 3, 17), (17, 5)),
    ((1, 1), (1, 1, 1), (1, 1)),
    ((70, 20), (2, 20, 16), (16, 16)),
    ((2, 2), (3, 2, 0), (0, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_values(shapes: tuple[tuple[int, ...], ...], backend: Backend) -> None:
    g, x, m = operands(shapes, backend.device)
    found = weft.chain("pq,bqc,cr->bpr", g, x, m, backend=backend.name)
    assert torch.equal(found, torch.einsum("pq,bqc,cr->bpr", g, x, m))


@pytest.mark.parametrize("equation", ["qp,cqb,rc->pbr", "pq,qc,cr->rp", "pq,qbc,cr->bpr"])
def test_any_order_and_strides(equation: str, backend: Backend) -> None:
    extents = dict(zip("bpqcr", (3, 18, 5, 20, 17), strict=True))
    terms = equation.partition("->")[0].split(",")
    given = operands(tuple(tuple(extents[label] for label in term) for term in terms), backend.device)
    right = torch.einsum(equation, *given)
    out = torch.full((*right.shape, 2), torch.nan, dtype=torch.float64, device=backend.device)[..., 1]
    assert weft.chain(equation, *given, out=out, backend=backend.name) is out
    assert torch.equal(out, right)


def test_several_modes_and_the_order_of_fewer_products() -> None:
    given = operands(((2, 3, 4), (3, 4, 5, 6), (6, 7)), "cpu")
    assert torch.equal(weft.chain("pxy,xybc,cr->bpr", *given), torch.einsum("pxy,xybc,cr->bpr", *given))
    given = operands(((50, 3), (2, 3, 40), (40, 2)), "cpu")
    assert torch.equal(weft.chain("pq,bqc,cr->bpr", *given), torch.einsum("pq,bqc,cr->bpr", *given))


@pytest.mark.parametrize("kind", [list, tuple])
def test_sequences_of_labels(kind: type) -> None:
    g, x, m = operands(((2, 3), (4, 3, 5), (5, 6)), "cpu")
    equation = kind([kind(term) for term in (("p", 7), ("b", 7, "c"), ("c", "r"), ("b", "p", "r"))])
    assert torch.equal(weft.chain(equation, g, x, m), torch.einsum("pq,bqc,cr->bpr", g, x, m))
    with pytest.raises(weft.NotationError, match="not hashable"):
        weft.chain([[["p"], 7], *equation[1:]], g, x, m)


def test_float32_within_its_bound(triton_backend: Backend) -> None:
    g, x, m = (torch.randn(shape, device=triton_backend.device) for shape in ((16, 16), (2, 16, 64), (64, 20)))
    found = weft.chain("pq,bqc,cr->bpr", g, x, m, backend="triton").double()
    exact = torch.einsum("pq,bqc,cr->bpr", g.double(), x.double(), m.double())
    bound = 80 * torch.finfo(torch.float32).eps * torch.einsum("pq,bqc,cr->bpr", *(t.double().abs() for t in (g, x, m)))
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.parametrize("equation", ["pq,bqc,cr->bprq", "pq,bqc,cp->bp", "pq,bqcz,cr->bpr", "pq,bqc->bpc"])
def test_what_is_no_chain(equation: str) -> None:
    shapes = tuple((2,) * len(term) for term in equation.partition("->")[0].split(","))
    given = operands(shapes, "cpu")
    with pytest.raises(weft.WeftError, match=r"chain|neither summed|three operands"):
        weft.chain(equation, *given, *([given[0]] if len(given) == 2 else []))


def test_bad_operands() -> None:
    g, x, m = (torch.ones(shape, dtype=torch.float64) for shape in ((2, 2), (3, 2, 4), (4, 5)))
    with pytest.raises(weft.ShapeError, match="'c'"):
        weft.chain("pq,bqc,cr->bpr", g, x, m.T)
    with pytest.raises(weft.ShapeError, match="out overlaps"):
        weft.chain("pq,bqc,cr->bpr", g, x, m[:, :4], out=x)
    with pytest.raises(weft.ShapeError):
        weft.chain("pq,bqc,cr->bpr", g, x, m, out=torch.empty(3, 2, 4, dtype=torch.float64))


@pytest.mark.parametrize("n", [4, 20])
def test_the_product_between_leaves_the_range_of_a_half(n: int, backend: Backend) -> None:
    g, x, m = (
        torch.full(shape, value, dtype=torch.float16, device=backend.device)
        for shape, value in (((n, n), 100.0), ((2, n, n), 1000.0), ((n, n), 1e-5))
    )
    found = weft.chain("pq,bqc,cr->bpr", g, x, m, backend=backend.name)
    assert found.dtype == torch.float16
    torch.testing.assert_close(
        found.double(), torch.einsum("pq,bqc,cr->bpr", g.double(), x.double(), m.double()), rtol=2e-3, atol=0
    )


def test_the_product_between_does_not_fit_fp8() -> None:
    """Whatever the type of the result."""
    one = torch.ones(2, 2).to(torch.float8_e4m3fn)
    with pytest.raises(weft.DTypeError, match=r"a chain with float8_e4m3fn: .*convert them"):
        weft.chain("pq,qc,cr->pr", one, one, one, out_dtype=torch.float32)


def test_what_is_special_about_a_later_call_is_looked_at(backend: Backend) -> None:
    """Gradients, overlaps, other strides."""
    equation = "pq,bqc,cr->bpr"  # of extents that no other test has
    given = operands(((5, 3), (8, 3, 19), (19, 6)), backend.device)
    right = torch.einsum(equation, *given)
    out = torch.empty_like(right)
    for _ in range(3):
        others = [tensor.clone() for tensor in given]
        assert torch.equal(weft.chain(equation, *others, backend=backend.name), right)
        out.fill_(torch.nan)
        assert weft.chain(equation, *others, out=out, backend=backend.name) is out
        assert torch.equal(out, right)
    turned = [tensor.mT.contiguous().mT for tensor in given]
    assert torch.equal(weft.chain(equation, *turned, backend=backend.name), right)
    memory = torch.zeros(8 * 5 * 6, dtype=torch.float64, device=backend.device)
    last, inside = memory[: 19 * 6].view(19, 6), memory.view(8, 5, 6)
    with pytest.raises(weft.ShapeError, match="out overlaps an operand in memory"):
        weft.chain(equation, *given[:2], last, out=inside, backend=backend.name)
    if backend.name != "triton":
        x = given[1].clone().requires_grad_()
        weft.chain(equation, given[0], x, given[2], backend=backend.name).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.einsum("pq,cr->qc", given[0], given[2]).expand_as(x))


def test_autocast_reads_a_chain_that_is_known_anew() -> None:
    given = [torch.randn(shape) for shape in ((4, 3), (9, 3, 17), (17, 5))]
    assert weft.chain("pq,bqc,cr->bpr", *given).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert weft.chain("pq,bqc,cr->bpr", *given).dtype == torch.bfloat16
    assert weft.chain("pq,bqc,cr->bpr", *given).dtype == torch.float32
