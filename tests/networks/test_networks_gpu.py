"""Networks on a GPU: replay as CUDA graphs, gathered operands, streams, the caller's own capture, slices, exponents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from nets import Net, chain, net_of, random_net

pytestmark = pytest.mark.gpu


def on_gpu(net: Net, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [tensor.to("cuda", dtype) for tensor in net.tensors], net.expected.to("cuda")


def comb(teeth: int = 12) -> Net:
    """A tree with many independent steps at one depth: pairs of matrices, then their product."""
    labels = [chr(ord("a") + at) for at in range(2 * teeth + 1)]
    return net_of(",".join(labels[at] + labels[at + 1] for at in range(2 * teeth)) + "->" + labels[0] + labels[-1],
                  dict.fromkeys(labels, 5), 3)  # fmt: skip


def comb_path(count: int) -> list[tuple[int, int]]:
    """Neighbours first, level by level."""
    return [(0, 1)] * (count - 1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("graphs", [True, False])
def test_random_networks_are_right(seed: int, graphs: bool) -> None:
    net = random_net(seed)
    tensors, expected = on_gpu(net)
    planned = weft.network(net.equation, *tensors, cuda_graph=graphs)
    for _ in range(4):  # eager, captured, replayed
        torch.testing.assert_close(planned(*tensors), expected)
    again = [tensor.clone() for tensor in tensors]
    for _ in range(3):  # other addresses: gathered, then captured on them
        torch.testing.assert_close(planned(*again), expected)


def test_a_graph_is_replayed_on_new_values_and_on_new_addresses() -> None:
    net = chain(8)
    tensors, expected = on_gpu(net)
    planned = weft.network(net.equation, *tensors, cuda_graph=True)
    for _ in range(20):  # until no kernel is to be timed any more
        planned(*tensors)
        replay = planned.latest.replay
        assert replay is not None
        if replay._graphs:
            break
    assert len(replay._graphs) == 1
    tensors[0].mul_(2)
    torch.testing.assert_close(planned(*tensors), 2 * expected)
    for factor in (3.0, 5.0, 7.0):
        fresh = [tensor.clone() for tensor in tensors]
        fresh[3] *= factor
        torch.testing.assert_close(planned(*fresh), 2 * factor * expected)
    assert replay._gathering is not None
    torch.testing.assert_close(planned(*tensors), 2 * expected)


def test_independent_steps_run_side_by_side_and_come_out_alike() -> None:
    net = comb()
    tensors, expected = on_gpu(net)
    path = comb_path(len(tensors))
    planned = weft.network(net.equation, *tensors, optimize=path, cuda_graph=True)
    eager = weft.network(net.equation, *tensors, optimize=path, cuda_graph=False)(*tensors)
    for _ in range(50):
        found = planned(*tensors)
        assert torch.equal(found, eager)
    torch.testing.assert_close(found, expected)
    assert planned.latest.replay._branches


def test_small_steps_are_replayed_and_large_ones_are_not() -> None:
    small, _ = on_gpu(chain(10))
    assert weft.network(chain(10).equation, *small)(*small) is not None
    planned = weft.network(chain(10).equation, *small)
    planned(*small)
    assert planned.latest.replay is not None
    large = [torch.randn(4096, 4096, device="cuda") for _ in range(4)]
    planned = weft.network("ab,bc,cd,de->ae", *large)
    planned(*large)
    assert planned.latest.replay is None


@pytest.mark.parametrize("graphs", [True, False])
def test_a_network_becomes_part_of_the_callers_graph(graphs: bool) -> None:
    net = chain(6)
    tensors, expected = on_gpu(net)
    planned = weft.network(net.equation, *tensors, cuda_graph=graphs)
    planned(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = planned(*tensors)
    planned(*[torch.zeros_like(tensor) for tensor in tensors])  # nothing of it is the graph's
    graph.replay()
    torch.testing.assert_close(found, expected)
    tensors[2].mul_(3)
    graph.replay()
    torch.testing.assert_close(found, 3 * expected)


def test_streams_do_not_meet_in_the_arena() -> None:
    net = chain(8, extent=64)
    tensors, _ = on_gpu(net, torch.float32)
    planned = weft.network(net.equation, *tensors)
    expected = planned(*tensors)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found: list[torch.Tensor] = []
    for at in range(30):
        with torch.cuda.stream(streams[at % 3]):
            found.append(planned(*tensors))
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in found)


@pytest.mark.parametrize("graphs", ["auto", True, False])
@pytest.mark.parametrize("slices", ["b", "ac", "bd"])
def test_sliced_networks_add_up(slices: str, graphs: Any) -> None:
    net = net_of("abc,cde,ef->afbd", {"a": 3, "b": 5, "c": 7, "d": 3, "e": 5, "f": 3})
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        tensors, expected = on_gpu(net, dtype)
        planned = weft.network(net.equation, *tensors, slices=slices, cuda_graph=graphs)
        for _ in range(2):
            torch.testing.assert_close(planned(*tensors).double(), expected, rtol=near, atol=near)


def test_large_steps_lie_as_the_next_one_reads_them() -> None:
    net = net_of("abcd,cefg,gahi,iebd->fh", dict.fromkeys("abcdefghi", 9), dtype=torch.float64)
    tensors, expected = on_gpu(net)
    for keywords in ({}, {"specialize": "now"}, {"memory_limit": "3MB"}):
        planned = weft.network(net.equation, *tensors, **keywords)
        torch.testing.assert_close(planned(*tensors), expected)


def test_exponents_reuse_and_constants() -> None:
    net = chain(6, scale=1e-12)
    tensors, _ = on_gpu(net, torch.float32)
    mantissa, exponent = weft.network(net.equation, *tensors, strip_exponent=True)(*tensors)
    exact = torch.linalg.multi_dot([tensor.double() * 1e12 for tensor in tensors])
    torch.testing.assert_close(mantissa.double() * 10 ** (exponent + 72), exact, rtol=1e-4, atol=1e-4)
    tensors, expected = on_gpu(chain(6))
    reuse = weft.network(net.equation, *tensors, reuse=True)
    torch.testing.assert_close(reuse(*tensors), expected)
    tensors[4].mul_(2)
    torch.testing.assert_close(reuse(*tensors), 2 * expected)
    fixed = weft.network(net.equation, *tensors, constants=[0, 1, 2])
    torch.testing.assert_close(fixed(*tensors[3:]), 2 * expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("net", [chain(6), comb()], ids=["chain", "comb"])
def test_exponents_are_stripped_in_replayed_steps(net: Net, dtype: torch.dtype) -> None:
    """On new values, of other magnitudes, in the same memory and in other memory."""
    tensors, expected = on_gpu(net, dtype)
    planned = weft.network(net.equation, *tensors, strip_exponent=True, cuda_graph=True)
    loose = {torch.float16: 3e-2, torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    for factor in (1.0, 1.0, 2.0, 2.0**-6, 3.0):
        for given in ([tensor * factor for tensor in tensors], tensors):
            scale = factor ** len(tensors) if given is not tensors else 1.0
            mantissa, exponent = planned(*given)
            assert mantissa.abs().max() <= 1
            torch.testing.assert_close(
                mantissa.double() * 10**exponent / scale, expected, rtol=loose, atol=loose * expected.abs().max().item()
            )
    assert planned.latest.replay is not None


def test_memory_stays_under_what_is_said() -> None:
    tensors = [torch.randn(1024, 1024, device="cuda") for _ in range(6)]
    planned = weft.network("ab,bc,cd,de,ef,fg->ag", *tensors)
    planned(*tensors)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    del planned
    planned = weft.network("ab,bc,cd,de,ef,fg->ag", *tensors)
    planned(*tensors)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= planned.memory + (8 << 20)


@pytest.mark.parametrize("room", [True, False])
def test_copies_of_operands_for_a_graph_are_in_the_memory_that_is_said(room: bool) -> None:
    """Sixteen operands of 16 MiB at other addresses in each call."""
    generator = torch.Generator("cuda").manual_seed(1)
    operands = [
        [torch.randn(2048, 2048, device="cuda", generator=generator) / 45 for _ in range(16)] for _ in range(3)
    ]
    terms = [chr(97 + at) + chr(98 + at) for at in range(16)]
    equation = f"{','.join(terms)}->a{chr(97 + 16)}"
    whole = weft.network(equation, *operands[0], cuda_graph=True)
    copies = whole.report()["gathered_bytes"]
    assert copies >= 15 * (16 << 20)
    limit = whole.memory if room else whole.memory - 1
    planned = weft.network(equation, *operands[0], cuda_graph=True, memory_limit=limit)
    assert planned.slices == ()
    assert planned.memory == (limit if room else limit + 1 - copies)
    del whole
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for tensors in (*operands, *operands):
        result = planned(*tensors)
    exact = torch.linalg.multi_dot([tensor.double() for tensor in operands[-1]])
    torch.testing.assert_close(result.double(), exact, rtol=1e-3, atol=1e-3)
    del exact
    replay = planned.latest.replay
    assert replay is not None
    assert (replay._gathering is not None) == room
    torch.cuda.reset_peak_memory_stats()
    planned(*operands[0])
    library = 80 << 20  # that torch keeps for cuBLAS on two streams, the captured one too; the copies would be more
    assert torch.cuda.max_memory_allocated() - before <= planned.memory + 2 * result.nbytes + library


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tuned_network_is_captured_anew_and_right(dtype: torch.dtype) -> None:
    net = chain(8, extent=64, scale=0.1)
    tensors, expected = on_gpu(net, dtype)
    planned = weft.network(net.equation, *tensors, cuda_graph=True)
    for _ in range(3):
        planned(*tensors)
    report = planned.tune(*tensors, budget=20)
    assert report.measured > 0
    for _ in range(4):
        torch.testing.assert_close(planned(*tensors).double(), expected, rtol=1e-3, atol=1e-3)
    replay = planned.latest.replay
    assert replay is not None
    assert replay._graphs
    assert planned.tune(*tensors).measured == 0
