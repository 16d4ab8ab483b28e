"""Networks whose slices ranks share: right, the same bits on every rank and every run; one error on all; no hang."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import network_rank_cases as cases
import weft
from nets import chain
from on_ranks import Outcome, on_ranks
from weft.networks.shared import Pace, shares

pytestmark = pytest.mark.early


def values(outcomes: list[Outcome]) -> list[Any]:
    assert [outcome.message for outcome in outcomes] == [""] * len(outcomes)
    assert not any(outcome.ended for outcome in outcomes)
    return [outcome.value for outcome in outcomes]


def number(parts: list[np.ndarray], dtype: torch.dtype) -> np.ndarray:
    """A result in double precision; a mantissa times its power of ten, all over 10**-800."""
    mantissa = torch.from_numpy(parts[0]).view(dtype)
    if len(parts) == 1:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return mantissa.to(wide).numpy()
    exponent = torch.from_numpy(parts[1]).view(torch.float64)
    return (mantissa.double() * 10 ** (exponent + 800)).numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def four(folder: Path) -> list[dict[str, Any]]:
    return values(on_ranks(4, cases.everything, str(folder)))


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_results_are_right_and_the_same_bits_on_all_ranks_and_again(size: int, four: list[dict[str, Any]]) -> None:
    hold([one["results"] for one in four] if size == 4 else values(on_ranks(size, cases.results)))


def test_some_have_parts_of_several_indices_each_a_sum_of_slices() -> None:
    trees = [planned.plan.tree for name, (planned, _) in cases.networks().items() if "stretches" in name]
    assert len(trees) == 3
    for tree in trees:
        assert max(tree.stretches) > 1
        assert 1 < tree.summed < tree.slices


def hold(found: list[dict[str, Any]]) -> None:
    """The results of all ranks are one, that of rank 0 without a group."""
    nets = cases.networks()
    for name in found[0]:
        first = found[0][name]["first"]
        for one in found:
            for other in (one[name]["first"], one[name]["again"]):
                assert all(np.array_equal(x, y) for x, y in zip(first, other, strict=True)), name
        dtype = nets[name][0].plan.dtype if name in nets else torch.float64
        tolerance = 4e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4
        alone = number(found[0][name]["alone"], dtype)
        np.testing.assert_allclose(number(first, dtype), alone, rtol=tolerance, atol=tolerance, err_msg=name)
    tensors = nets["many slices"][1]
    np.testing.assert_allclose(
        number(found[0]["many slices"]["first"], torch.float64),
        torch.linalg.multi_dot(tensors).reshape(-1).numpy(),
        rtol=1e-10,
    )


def test_large_results_travel_in_pieces_and_parts(four: list[dict[str, Any]]) -> None:
    assert [one["large"] for one in four] == [dict.fromkeys(("b", "xb", "function"), (True, True))] * 4


def test_a_large_result_of_a_group_of_one_stays_where_it_is() -> None:
    assert values(on_ranks(1, cases.large, 1)) == [dict.fromkeys(("b", "xb", "function"), (True, True))]


@pytest.mark.gpu
def test_results_over_nccl() -> None:
    """On two GPUs where there are two; on one the messages of a group of one."""
    size = min(2, torch.cuda.device_count())
    hold(values(on_ranks(size, cases.results, backend="cpu:gloo,cuda:nccl", limit=500)))
    found = values(on_ranks(size, cases.large, 8, backend="cpu:gloo,cuda:nccl", limit=500))
    assert found == [dict.fromkeys(("b", "xb", "function"), (True, True))] * size


@pytest.fixture(scope="module")
def refused(four: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["errors"] for one in four]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("operands", "ShapeError", ("rank 1 of 4: operand 0 has shape (3, 4), the network was made for (4, 4)",)),
        ("operands of a known call", "ShapeError", ("rank 1 of 4: operand 0 has shape (3, 4)",)),
        ("path", "ShapeError", ("path differs: rank 0 of 4:", "ranks 1, 2, 3 of 4:", "optimize=")),
        ("slices", "ShapeError", ("slices differs", "16 over [1, 3]", "16 over [1, 2]")),
        ("types", "ShapeError", ("precision differs: rank 0 of 4: None", "ranks 1, 2, 3 of 4: tf32")),
        ("gradients", "UnsupportedError", ("rank 1 of 4", "no part in derivatives")),
        ("not finite", "AccuracyError", ("rank 3 of 4: operand 0 holds NaN or Inf in 1 place in slice",)),
    ],
)
def test_what_is_wrong_on_some_ranks_is_said_on_all(
    refused: list[dict[str, Any]], what: str, kind: str, words: tuple[str, ...]
) -> None:
    error, message = refused[0][what]
    said = message.partition("\n  in ")[0]  # what follows tells a rank's own operands
    assert all(one[what][0] == error and one[what][1].startswith(said) for one in refused)
    assert error == kind
    for word in words:
        assert word in message


def test_ranks_at_different_networks_say_so(four: list[dict[str, Any]]) -> None:
    said = [one["another network"] for one in four]
    assert [kind for kind, _ in said] == ["RankError"] * 4
    (words,) = {text.partition("\n")[0] for _, text in said}
    assert words.startswith("ranks are at different calls: ranks 0, 2, 3 of 4: the end of the slices of Network(")
    assert "; rank 1 of 4: the end of the slices of Network(" in words


def test_what_is_no_group_is_refused(refused: list[dict[str, Any]]) -> None:
    assert refused[0]["no group"] == refused[3]["no group"]
    assert "group is a process group of torch.distributed, not int" in refused[0]["no group"][1]
    net = chain(3)
    planned = weft.network(net.equation, *net.tensors, slices="b")
    with pytest.raises(weft.ArgumentError, match="no process group: start the program with torchrun"):
        planned(*net.tensors, group=7)


@pytest.mark.keeps
def test_a_rank_that_ends_is_named_on_the_others() -> None:
    begun = time.monotonic()
    first, second, third = on_ranks(3, cases.one_ends, limit=40)
    assert second.ended
    for outcome in (first, third):
        assert outcome.error == "RankError"
        assert "rank 1 of 3" in outcome.message
        assert "ended" in outcome.message
    assert time.monotonic() - begun < 20


@pytest.mark.keeps
def test_an_interrupted_run_goes_on_from_its_checkpoint(four: list[dict[str, Any]], folder: Path) -> None:
    found = [one["checkpoints"] for one in four]
    for name in ("sum", "parts"):
        assert {one[name, "interrupted"] for one in found} == {"rank 1 of 4 was interrupted"}
        assert found[0][name, "files"] == [f"000001-{rank}.npz" for rank in range(4)]
        assert all(np.array_equal(found[0][name, "result"][0], one[name, "result"][0]) for one in found)
        assert all(one[name, "right"] for one in found)
        assert [file.name for file in sorted((folder / name).iterdir())] == [f"000003-{r}.npz" for r in range(4)]
        net = chain(4, seed=2)  # the same without a group
        alone = weft.network(net.equation, *net.tensors, slices={"sum": "bcd", "parts": "ac"}[name])
        torch.testing.assert_close(alone(*net.tensors, checkpoint=folder / name), net.expected)
    said = {one["other values"] for one in found}
    assert len(said) == 1
    assert "values of operand 3 differs" in next(iter(said))[1]
    kind, message = found[3]["of another"]
    assert kind == "ArgumentError"
    assert "rank 0 of 4: the checkpoint" in message
    assert "it has other values of operand 0. Choose another folder" in message
    assert found[0]["half"] == "interrupted"
    assert all(one["more ranks"] for one in found)


@pytest.mark.keeps
def test_a_call_without_a_checkpoint_is_resumed_by_all(four: list[dict[str, Any]]) -> None:
    assert [one["resumed"] for one in four] == [True] * 4


def test_slices_go_to_the_rank_that_would_be_done_first() -> None:
    even = shares(range(27), [Pace(1.0)] * 2)
    assert [len(one) for one in even] == [14, 13]
    assert [number for one in even for number in one] == list(range(27))
    assert [len(one) for one in shares(range(30), [Pace(1.0), Pace(2.0)])] == [20, 10]
    assert [len(one) for one in shares(range(8), [Pace(1.0, once=4.0), Pace(1.0, once=4.0)])] == [4, 4]
    assert [len(one) for one in shares(range(2), [Pace(1.0)] * 4)] == [1, 1, 0, 0]
    assert shares([], [Pace(1.0)] * 2) == [[], []]
