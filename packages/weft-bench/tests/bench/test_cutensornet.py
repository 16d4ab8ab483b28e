"""cuTensorNet as a peer, of a library that is not the real one."""

import gc

import torch

from bench.sides import CPU
from fake_cutensornet import FakeCutensornet
from weft_bench.cases.networks import NetworkCase, networks, shrunk_network
from weft_bench.networks import NetworkProblem, NetworkTensors
from weft_bench.peers.cutensornet import CutensornetPeer, PreparedNetwork
from weft_bench.peers.registry import Prepared


def small_network(name: str, precision: str | None = None) -> NetworkCase:
    return next(shrunk_network(case, 1 << 16) for case in networks(precision) if case.name == name)


def test_networks_run_along_their_path_on_any_operands() -> None:
    for name in ("rtree_100", "mps_mpo_L100_chi64_D5", "connected_hyper_60", "connected_80_3_open"):
        case, fake = small_network(name), FakeCutensornet()
        problem = NetworkProblem(case)
        made = PreparedNetwork(fake.library, case, problem.inputs(CPU, 0), "32F")
        assert problem.check(problem.inputs(CPU, 1)).error(made, None) <= 1
        assert fake.ran == ["32F"]


def test_everything_of_a_network_is_destroyed_the_handle_last() -> None:
    case, fake = small_network("rtree_100"), FakeCutensornet()
    made = PreparedNetwork(fake.library, case, NetworkProblem(case).inputs(CPU, 0), "32F")
    assert len(fake.alive) > 1
    del made
    gc.collect()
    assert [*fake.alive.values()] == ["handle"]


def test_networks_on_a_cpu_say_so() -> None:
    case = small_network("rtree_100")
    assert CutensornetPeer().prepare(case, NetworkProblem(case).inputs(CPU, 0)) == "cuTensorNet runs on NVIDIA GPUs"


def test_products_as_exact_as_ieee_try_every_compute_type() -> None:
    case, fake = small_network("rtree_100", "ieee_bound"), FakeCutensornet(refuses=frozenset({"3XTF32"}))
    found = CutensornetPeer(fake.library).prepare(case, NetworkProblem(case).inputs(CPU, 0))
    assert isinstance(found, Prepared)
    assert [way.label for way in found.ways] == ["32F"]
    assert "not supported" in found.refused["3XTF32"]
    assert torch.isfinite(found.ways[0].run(*NetworkTensors(NetworkProblem(case).inputs(CPU, 1)))).all()
