"""Long runs in one process: what a checkpoint holds, goes on from, and refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from nets import Net, chain, net_of
from weft.networks import work

NET = chain(4, seed=2)
PAIRS = [(0, 1), (0, 1), (0, 1)]


def planned(net: Net = NET, slices: str = "bd", **keywords: Any) -> Any:
    """Along one path: the one that is found depends on slices, types and functions, of which tests change one."""
    optimize = keywords.pop("optimize", PAIRS)
    return weft.network(net.equation, *net.tensors, slices=slices, optimize=optimize, **keywords)


def count_slices(network: Any, then: Callable[[int], None] | None = None) -> list[int]:
    """A list that grows with every slice; `then` hears how long it is, amid the slice."""
    make, seen = network.work, []

    def making(*arguments: Any) -> Any:
        work = make(*arguments)
        run = work.slice

        def running(number: int) -> None:
            seen.append(number)
            if then is not None:
                then(len(seen))
            run(number)

        work.slice = running
        return work

    network.work = making
    return seen


def interrupted_at(number: int, signum: int = signal.SIGINT) -> Callable[[int], None]:
    return lambda seen: signal.raise_signal(signum) if seen == number else None


@pytest.mark.parametrize(
    ("slices", "keywords", "dtype"),
    [
        ("bd", {}, torch.float64),
        ("ac", {}, torch.float64),
        ("ac", {"functions": {"ae": torch.tanh}}, torch.float16),
        ("c", {}, torch.bfloat16),
        ("bd", {"algebra": "max_plus"}, torch.float64),
        ("ae", {"strip_exponent": True}, torch.float64),
    ],
)
def test_a_new_process_goes_on_where_ctrl_c_came(
    tmp_path: Path, slices: str, keywords: dict[str, Any], dtype: torch.dtype
) -> None:
    tensors = NET.of(dtype)

    def network() -> Any:
        return weft.network(NET.equation, *tensors, slices=slices, **keywords)

    first = network()
    expected = first(*tensors)
    seen = count_slices(first, interrupted_at(3))
    with pytest.raises(KeyboardInterrupt):
        first(*tensors, checkpoint=tmp_path / "run")
    assert len(seen) == 3
    again = network()
    more = count_slices(again)
    found = again(*tensors, checkpoint=tmp_path / "run")
    assert sorted([*seen, *more]) == list(range(again.plan.tree.slices))
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)
    done = count_slices(again)
    again(*tensors, checkpoint=tmp_path / "run")
    assert not done  # all of them are in the file
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["000002-0.npz"]


def test_resume_goes_on_with_a_checkpoint_too(tmp_path: Path) -> None:
    net = planned()
    count_slices(net, interrupted_at(5))
    with pytest.raises(KeyboardInterrupt):
        net(*NET.tensors, checkpoint=tmp_path / "run", checkpoint_every=0)
    torch.testing.assert_close(net.resume(), NET.expected)
    out = torch.full((8, 4), torch.nan, dtype=torch.float64)[::2]
    assert planned()(*NET.tensors, checkpoint=tmp_path / "run", out=out) is out
    torch.testing.assert_close(out, NET.expected)


def test_a_request_to_end_is_put_off_until_the_state_is_written(tmp_path: Path) -> None:
    net = planned()
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(len(seen)))
    try:
        seen = count_slices(net, interrupted_at(4, signal.SIGTERM))
        written: list[int] = []
        write = work.Keeper._write
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(work.Keeper, "_write", lambda *one: (written.append(len(one[2])), write(*one))[1])
            torch.testing.assert_close(net(*NET.tensors, checkpoint=tmp_path / "run"), NET.expected)
        assert asked == [4]
        assert written == [0, 4, 16]  # at the begin, before the handler of the caller, at the end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_states_are_written_at_an_interval(tmp_path: Path) -> None:
    written: list[int] = []
    write = work.Keeper._write
    for every, expected in ((0, list(range(17))), (3600, [0, 16])):
        written.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(work.Keeper, "_write", lambda *one: (written.append(len(one[2])), write(*one))[1])
            planned()(*NET.tensors, checkpoint=tmp_path / str(every), checkpoint_every=every)
        assert written == expected


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    planned()(*NET.tensors, checkpoint=path)

    def refused(network: Any, tensors: list[torch.Tensor], words: str) -> None:
        with pytest.raises(weft.ArgumentError, match=words):
            network(*tensors, checkpoint=path)

    changed = [x.clone() for x in NET.tensors]
    changed[2][0, 0] += 1e-9
    refused(planned(), changed, "it has other values of operand 2. Choose another folder")
    refused(planned(slices="bc"), NET.tensors, "it has other slices")
    refused(planned(optimize=[(2, 3), (1, 2), (0, 1)]), NET.tensors, "it has other path|it has other .*path")
    refused(planned(functions={"ae": torch.tanh}), NET.tensors, "it has other functions")
    half = NET.of(torch.float16)
    other_types = weft.network(NET.equation, *half, slices="bd", optimize=PAIRS)
    refused(other_types, half, r"it has other types, values of operand 0.* and 2 more")
    other = chain(3)
    refused(weft.network(other.equation, *other.tensors, slices="b"), other.tensors, "it has other shapes of operands")
    transposed = [x.mT.contiguous().mT for x in NET.tensors]  # lie otherwise, are the same
    torch.testing.assert_close(planned()(*transposed, checkpoint=path), NET.expected)


def test_algebras_are_compared_by_what_they_compute(tmp_path: Path) -> None:
    """Both are called "algebra"."""
    largest = weft.Algebra(torch.add, torch.maximum, "lowest")
    smallest = weft.Algebra(torch.add, torch.minimum, "highest")
    net = chain(3)
    found = planned(net, "b", algebra=largest, optimize="greedy")(*net.tensors, checkpoint=tmp_path)
    torch.testing.assert_close(found, weft.einsum(net.equation, *net.tensors, algebra="max_plus"))
    alike = weft.Algebra(lambda x, y: x + y, lambda p, q: torch.maximum(p, q), "lowest")
    again = planned(net, "b", algebra=alike, optimize="greedy")(*net.tensors, checkpoint=tmp_path)
    torch.testing.assert_close(again, found)
    with pytest.raises(weft.ArgumentError, match="it has other algebra"):
        planned(net, "b", algebra=smallest, optimize="greedy")(*net.tensors, checkpoint=tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_empty_result_is_read_again(dtype: torch.dtype, tmp_path: Path) -> None:
    net = net_of("ab,bc,cd->ad", {"a": 0, "b": 3, "c": 2, "d": 4})
    tensors = net.of(dtype)
    network = weft.network(net.equation, *tensors, slices="b")
    for _ in range(2):
        assert network(*tensors, checkpoint=tmp_path).shape == (0, 4)


def test_constants_are_compared_too(tmp_path: Path) -> None:
    def network(factor: float) -> Any:
        tensors = [NET.tensors[0], factor * NET.tensors[1], *NET.tensors[2:]]
        return weft.network(NET.equation, *tensors, slices="d", constants=[0, 1])

    network(1)(*NET.tensors[2:], checkpoint=tmp_path)
    with pytest.raises(weft.ArgumentError, match="it has other values of constants"):
        network(2)(*NET.tensors[2:], checkpoint=tmp_path)


def test_what_cannot_be_read_or_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    net = planned()
    net(*NET.tensors, checkpoint=tmp_path / "run")
    (file,) = (tmp_path / "run").iterdir()
    file.write_bytes(file.read_bytes()[:-200])
    seen = count_slices(net)
    with pytest.raises(weft.ArgumentError, match=r"000001-0.npz of the checkpoint cannot be read"):
        net(*NET.tensors, checkpoint=tmp_path / "run")
    with pytest.raises(weft.ArgumentError, match="is a file: a checkpoint is a folder"):
        net(*NET.tensors, checkpoint=file)
    with pytest.raises(weft.ArgumentError, match="checkpoint is a path, not 7"):
        net(*NET.tensors, checkpoint=7)
    with pytest.raises(weft.ArgumentError, match="checkpoint_every is a number of seconds, not 'often'"):
        net(*NET.tensors, checkpoint=tmp_path / "other", checkpoint_every="often")
    with pytest.raises(weft.ArgumentError, match="cannot be written"):
        net(*NET.tensors, checkpoint=Path(os.devnull) / "run")
    with pytest.raises(weft.UnsupportedError, match="no part in derivatives"):
        net(*[x.clone().requires_grad_() for x in NET.tensors], checkpoint=tmp_path / "other")
    with pytest.raises(weft.UnsupportedError, match="reuse keeps every intermediate"):
        weft.network(NET.equation, *NET.tensors, reuse=True)(*NET.tensors, checkpoint=tmp_path / "other")
    with pytest.raises(weft.UnsupportedError, match="one operand has no slices"):
        weft.network("ab->b", NET.tensors[0])(NET.tensors[0], checkpoint=tmp_path / "other")
    assert not seen
    assert not (tmp_path / "other").exists()


def test_a_full_disk_is_a_warning_amid_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = planned()
    write, calls = work.Keeper._write, []

    def failing(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) in (3, 4):
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(work.Keeper, "_write", failing)
    with pytest.warns(weft.WeftWarning, match="cannot be written: .*No space left"):
        found = net(*NET.tensors, checkpoint=tmp_path / "run", checkpoint_every=0)
    torch.testing.assert_close(found, NET.expected)
    seen = count_slices(net)
    net(*NET.tensors, checkpoint=tmp_path / "run")
    assert not seen


def test_a_small_limit_is_kept_by_sharing_places() -> None:
    """Under a megabyte nothing shares a place, unless the limit is lower than that."""
    net = chain(12, extent=16)
    planned = weft.network(net.equation, *net.tensors, memory_limit="10 KiB")
    assert planned.memory <= 10 << 10
    assert planned.plan.tree.slices == 1
    torch.testing.assert_close(planned(*net.tensors), net.expected)


def test_an_empty_label_stays_whole() -> None:
    net = weft.network("ab,bc,cd->ad", (2, 3), (3, 0), (0, 2), slices="c")
    assert net.slices == ()
    assert torch.equal(net(torch.ones(2, 3), torch.ones(3, 0), torch.ones(0, 2)), torch.zeros(2, 2))


#: Operands of "ij,jk->ik" that lie otherwise than contiguous ones.
ODD = {
    "complex values": lambda: (torch.rand(3, 4, dtype=torch.complex64), torch.rand(4, 5, dtype=torch.complex64)),
    "conjugate": lambda: (torch.rand(4, 3, dtype=torch.complex64).mH, torch.rand(5, 4, dtype=torch.complex64).mH),
    "parts of complex values": lambda: (torch.rand(3, 4, dtype=torch.complex64).imag, torch.rand(4, 5)),
    "negative": lambda: (torch.rand(3, 4, dtype=torch.complex64).conj().imag, torch.rand(4, 5)),
    "one element with stride 2": lambda: (torch.rand(4, 2)[:1, ::2][:, :1], torch.rand(2, 6)[::2, ::3][:1]),
    "transposed and expanded": lambda: (torch.rand(4, 3).T, torch.rand(4, 1).expand(4, 5)),
    "bfloat16 in steps": lambda: (torch.rand(3, 8).bfloat16()[:, ::2], torch.rand(4, 5).bfloat16()),
}


@pytest.mark.parametrize("name", ODD)
def test_operands_lie_as_they_like(name: str, tmp_path: Path) -> None:
    a, b = ODD[name]()
    net = weft.network("ij,jk->ik", a, b, slices="j")
    found = net(a, b, checkpoint=tmp_path / "run")
    torch.testing.assert_close(found, net(a, b))
    copied = [one.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for one in (a, b)]
    assert torch.equal(net(*copied, checkpoint=tmp_path / "run"), found), "the same values are the same operands"
    with pytest.raises(weft.ArgumentError, match="values of operand 0"):
        net(2 * a, b, checkpoint=tmp_path / "run")
