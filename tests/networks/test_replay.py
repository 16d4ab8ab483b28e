"""When graphs are captured, replayed, gathered for and dropped: the rules, with a stand-in for CUDA's graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from nets import chain
from weft.networks import program as programs
from weft.networks import steps as replays
from weft.networks.memory import gathered_bytes


class Graph:
    """What was captured, to be run again on the very same tensors."""

    captured: list[Graph] = []  # noqa: RUF012  the test's own

    def __init__(self, work: Any) -> None:
        self._work = work
        Graph.captured.append(self)

    def replay(self) -> None:
        self._work()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    Graph.captured = []
    monkeypatch.setattr(replays, "captured", Graph)
    monkeypatch.setattr(programs, "is_capturing", lambda device: False)
    return Graph.captured


@pytest.mark.keeps
def test_known_addresses_are_replayed_and_others_gathered(graphs: list[Graph]) -> None:
    net = chain(6)
    planned = weft.network(net.equation, *net.tensors)
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    program.replay = replay = replays.NetworkReplay(program.each, program._run, 6, apart=False)
    for count in (0, 1, 1, 1):  # at once, captured, replayed
        torch.testing.assert_close(planned(*net.tensors), net.expected)
        assert len(graphs) == count
    others = [2 * tensor for tensor in net.tensors]
    torch.testing.assert_close(planned(*others), 64 * net.expected)
    assert len(graphs) == 2  # of gathered operands
    torch.testing.assert_close(planned(*net.tensors), net.expected)
    more = [3 * tensor for tensor in net.tensors]
    torch.testing.assert_close(planned(*more), 729 * net.expected)
    assert len(graphs) == 2
    torch.testing.assert_close(planned(*more), 729 * net.expected)
    assert len(graphs) == 3  # these came twice
    net.tensors[0].mul_(2)
    torch.testing.assert_close(planned(*net.tensors), 2 * net.expected)
    assert len(graphs) == 3
    assert len(replay._graphs) == 2


@pytest.mark.keeps
def test_a_kernel_that_is_exchanged_drops_the_graphs(graphs: list[Graph]) -> None:
    net = chain(5)
    planned = weft.network(net.equation, *net.tensors)
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    program.replay = replay = replays.NetworkReplay(program.each, program._run, 5, apart=False)

    class Exchanged:
        turned = wants_timing = False
        seconds = 1e-5

        def beside(self, seconds: float) -> None:
            assert seconds == self.seconds  # that of all of them

        def replayed(self, calls: int) -> bool:
            return self.turned

    launch = Exchanged()
    replay._promoting = [launch]  # type: ignore[list-item]
    for _ in range(3):
        planned(*net.tensors)
    assert len(replay._graphs) == 1
    launch.turned = True
    for _ in range(8):  # looked for at calls that lie ever further apart
        torch.testing.assert_close(planned(*net.tensors), net.expected)
        if not replay._graphs:
            break
    assert not replay._graphs


@pytest.mark.keeps
def test_operands_are_gathered_where_memory_is_left_for_copies(graphs: list[Graph]) -> None:
    """The steps take five of the six operands, of 4 x 4 float64 each; the last one is launched apart."""
    net = chain(6)
    planned = weft.network(net.equation, *net.tensors, optimize=[(0, 1), *[(0, at) for at in range(4, 0, -1)]])
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    tree, dtypes = planned.plan.tree, program.plan.dtypes
    copies = gathered_bytes(tree, dtypes)
    assert copies == 5 * 4 * 4 * 8
    others = [[scale * tensor for tensor in net.tensors] for scale in (2, 3)]
    for most, count in ((copies, 1), (copies - 1, 0)):
        graphs.clear()
        program.replay = replay = replays.NetworkReplay(program.each, program._run, 6, apart=False, most=most)
        for tensors, scale in ((net.tensors, 1), (others[0], 2**6), (others[1], 3**6)):
            torch.testing.assert_close(planned(*tensors), scale * net.expected)
        assert len(graphs) == count
        assert (replay._gathering is None) == (count == 0)


@pytest.mark.keeps
def test_copies_of_parts_take_as_much_as_is_said(graphs: list[Graph]) -> None:
    """The parts of a slice have gaps: rows of a matrix that is cut along its last mode."""
    net = chain(5)
    planned = weft.network(net.equation, *net.tensors, slices="bc")
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    program.replay = replay = replays.NetworkReplay(program.each, program._run, 5, apart=False)
    planned(*net.tensors)
    assert replay._gathering is not None
    held = sum(place.untyped_storage().nbytes() for place in replay._gathering[1])
    assert held == gathered_bytes(planned.plan.tree, planned.plan.dtypes)


@pytest.mark.keeps
def test_slices_are_gathered_one_by_one(graphs: list[Graph]) -> None:
    net = chain(5)
    planned = weft.network(net.equation, *net.tensors, slices="bc")
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    program.replay = replays.NetworkReplay(program.each, program._run, 5, apart=False)
    for _ in range(2):
        torch.testing.assert_close(planned(*net.tensors), net.expected)
    assert 1 <= len(graphs) <= 1 + replays.GRAPHS
