"""Groups, chains, sums of operators and blocks on a GPU: types, captured in CUDA graphs, larger extents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft import tn
from weft_bench.cases.small import SmallCase, small
from weft_bench.peers.small import TorchLoop, WeftSmall
from weft_bench.small import SmallProblem

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def replayed(call: Callable[[], Any]) -> Any:
    """The result of a call that was captured, after its operands may have changed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    graph.replay()
    torch.cuda.synchronize()
    return result


@pytest.mark.parametrize("case", [case for case in small() if case.name != "operators-50"], ids=lambda case: case.name)
def test_the_tasks_of_the_suite(case: SmallCase) -> None:
    problem = SmallProblem(case)
    tensors = problem.inputs(CUDA, 1)
    check = problem.check(tensors)
    for contender in (WeftSmall(), TorchLoop()):
        prepared = contender.prepare(case, problem.inputs(CUDA, 0))
        assert not isinstance(prepared, str)
        assert check.error(prepared.ways[0].run) <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_and_functions_of_groups(dtype: torch.dtype) -> None:
    generator = torch.Generator(CUDA).manual_seed(1)
    pairs = [
        (torch.randn(m, k, dtype=dtype, device=CUDA, generator=generator),
         torch.randn(k, n, dtype=dtype, device=CUDA, generator=generator).contiguous())
        for m, n, k in ((1, 1, 1), (33, 65, 129), (200, 7, 40), (64, 64, 64), (5, 0, 3), (4, 4, 0))
    ]  # fmt: skip
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, epilogue=torch.relu), pairs, strict=True):
        exact = torch.relu(a.double() @ b.double())
        bound = (2 * a.shape[1] * torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
                 * (a.double().abs() @ b.double().abs()) + torch.finfo(dtype).eps * exact)  # fmt: skip
        assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("real", [False, True])
def test_complex_groups(dtype: torch.dtype, real: bool) -> None:
    generator = torch.Generator(CUDA).manual_seed(5)
    kinds = (dtype, dtype.to_real() if real else dtype)
    pairs = [
        tuple(torch.randn(shape, dtype=kind, device=CUDA, generator=generator) for shape, kind in zip(
            ((m, k), (k, n)), kinds, strict=True))
        for m, n, k in ((1, 1, 1), (33, 65, 129), (200, 7, 40), (64, 64, 64), (5, 0, 3), (4, 4, 0))
    ]  # fmt: skip
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, a_fn=torch.conj), pairs, strict=True):
        exact = a.to(torch.complex128).conj() @ b.to(torch.complex128)
        size = a.to(torch.complex128).abs() @ b.to(torch.complex128).abs()
        assert ((found - exact).abs() <= 8 * (a.shape[1] + 2) * torch.finfo(dtype).eps * size).all()
    plain = weft.grouped("mk,kn->mn", pairs, epilogue=torch.tanh)
    for found, (a, b) in zip(plain[:1], pairs, strict=False):
        torch.testing.assert_close(found, torch.tanh(a @ b.to(dtype)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn])
def test_whole_numbers_in_groups(dtype: torch.dtype) -> None:
    generator = torch.Generator(CUDA).manual_seed(6)
    pairs = [
        tuple(torch.randint(0, 9, shape, device=CUDA, generator=generator).to(dtype) for shape in ((m, k), (k, n)))
        for m, n, k in ((1, 1, 1), (33, 65, 129), (200, 7, 40), (5, 0, 3), (4, 4, 0))
    ]
    small = torch.int32 if not dtype.is_floating_point else torch.float32
    result = small if dtype.itemsize == 1 else None
    for found, (a, b) in zip(weft.grouped("mk,kn->mn", pairs, out_dtype=result), pairs, strict=True):
        assert torch.equal(found.double(), a.double() @ b.double())


def test_a_group_that_lies_as_one_before_on_a_gpu() -> None:
    """Calls in turn share a plan, and no call reads another's addresses; nor does one on another stream."""
    def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(n, n, device=CUDA), torch.randn(n, 3, device=CUDA)) for n in (4, 9, 30)]

    lists = [pairs() for _ in range(6)]
    found = [weft.grouped("mk,kn->mn", one) for one in lists]
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
        found += [weft.grouped("mk,kn->mn", one) for one in lists]
    torch.cuda.synchronize()
    for results, one in zip(found, lists * 2, strict=True):
        torch.testing.assert_close(results, [a @ b for a, b in one], rtol=1e-4, atol=1e-4)


def test_gradients_of_groups_and_blocks_on_a_gpu() -> None:
    a, b = (torch.randn(5, 5, device=CUDA, dtype=torch.complex128, requires_grad=True) for _ in range(2))
    total = sum(x.abs().square().sum() for x in weft.grouped("mk,kn->mn", [(a, b), (b, a)]))
    right = sum(x.abs().square().sum() for x in (a @ b, b @ a))
    for one, other in zip(torch.autograd.grad(total, (a, b)), torch.autograd.grad(right, (a, b)), strict=True):
        torch.testing.assert_close(one, other)
    x = weft.blocks.BlockTensor({(0, 0): a, (1, 0): b})
    y = weft.blocks.BlockTensor({(0, 5): b})
    total = weft.blocks.contract("ab,bc->ac", x, y).buffer.abs().square().sum()
    right = sum(z.abs().square().sum() for z in (a @ b, b @ b))
    for one, other in zip(torch.autograd.grad(total, (a, b)), torch.autograd.grad(right, (a, b)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("extents", [(1, 16, 16, 256, 256), (256, 16, 16, 256, 256), (3, 100, 40, 300, 70)])
def test_chains(extents: tuple[int, ...], dtype: torch.dtype) -> None:
    b, p, q, c, r = extents
    generator = torch.Generator(CUDA).manual_seed(2)
    g, x, m = (torch.randn(s, dtype=dtype, device=CUDA, generator=generator) for s in ((p, q), (b, q, c), (c, r)))
    found = replayed(lambda: weft.chain("pq,bqc,cr->bpr", g, x, m)).double()
    exact = g.double() @ x.double() @ m.double()
    size = g.double().abs() @ x.double().abs() @ m.double().abs()
    eps = torch.finfo(dtype).eps
    assert ((found - exact).abs() <= 2 * ((q + c) * min(eps, 2**-23) + 2 * eps) * size).all()


def test_a_plan_in_a_graph_takes_other_values() -> None:
    pairs = [(torch.randn(n, n, device=CUDA), torch.randn(n, 3, device=CUDA)) for n in (4, 9, 30)]
    out = [torch.empty(n, 3, device=CUDA) for n in (4, 9, 30)]
    plan = weft.plan_grouped("mk,kn->mn", pairs, out=out)
    graph = torch.cuda.CUDAGraph()
    plan()
    with torch.cuda.graph(graph):
        plan()
    for a, _ in pairs:
        a.mul_(2)
    graph.replay()
    for place, (a, b) in zip(out, pairs, strict=True):
        torch.testing.assert_close(place, a @ b, rtol=1e-4, atol=1e-4)


def test_operators_in_a_graph() -> None:
    terms = [tuple(torch.randn(n, n, device=CUDA, dtype=torch.float64) for n in (16, 3, 20)) for _ in range(20)]
    kept, state = weft.OperatorSum(terms), torch.randn(16, 3, 20, device=CUDA, dtype=torch.float64)
    found = replayed(lambda: kept(state))
    right = sum(torch.einsum("Ll,Ss,Rr,lsr->LSR", *term, state) for term in terms)
    torch.testing.assert_close(found, right)


def test_dmrg() -> None:
    chain = tn.heisenberg(10, device="cuda")
    exact = float(torch.linalg.eigvalsh(chain.to_dense())[0])
    found = tn.dmrg(chain, tn.MPS.random(10, 2, 8, seed=1, device="cuda"), max_bond=32, sweeps=4)
    assert found.energy == pytest.approx(exact, abs=1e-8)
