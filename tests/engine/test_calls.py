"""The table of known calls: what its look at tensors sees, what it keeps, and what it leaves to the full path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.engine import calls as engine
from weft.engine.calls import CALLS, Calls
from weft.planner.validity import outdate

WORDS = ("xk,ky->xy", (), ())


def product(a: Any, b: Any) -> Any:
    return weft.contract("xk,ky->xy", a, b)


@pytest.fixture
def known() -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices whose product is known."""
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    for _ in range(3):
        product(a, b)
    assert CALLS.find(WORDS, (a, b))[0] is not None
    return a, b


OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "strides": lambda a: a.T.contiguous().T,
    "an alignment": lambda a: torch.cat((a.new_zeros(1), a.flatten()))[1:].view(4, 5),
    "a type": lambda a: a.double(),
    "an extent": lambda a: a[:3],
    "no address": lambda a: a.to("meta"),
    "sparse": lambda a: a.to_sparse(),
    "rows": lambda a: a.to_sparse_csr(),
    "of MKL-DNN": lambda a: a.to_mkldnn(),
    "an array": lambda a: a.numpy(),
    "a gradient": lambda a: a.clone().requires_grad_(),
    "a parameter": lambda a: torch.nn.Parameter(a),
    "nothing": lambda a: None,
}


@pytest.mark.keeps
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_read_in_full(known: tuple[torch.Tensor, torch.Tensor], name: str) -> None:
    a, b = known
    assert CALLS.find(WORDS, (OTHERS[name](a), b))[0] is None


@pytest.mark.keeps
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    """torch's guards would end the process."""
    a, b = known
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(weft.UnsupportedError, match="nested"):
            product(torch.nested.nested_tensor([a, a], layout=layout), b)


@pytest.mark.keeps
def test_modes_and_transforms_see_the_call(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Also where the tensors themselves are plain."""
    a, b = known
    with FlopCounterMode(display=False) as counted:
        product(a, b)
    assert counted.get_total_flops() == 2 * 4 * 5 * 6
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(product(a, b), torch._subclasses.FakeTensor)
    seen = torch.func.vmap(lambda x: x + product(a, b).sum())(torch.zeros(3))
    torch.testing.assert_close(seen, (a @ b).sum().expand(3))
    with torch.inference_mode():
        assert product(a, b).is_inference()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones(4, 5))
        tangent = torch.autograd.forward_ad.unpack_dual(product(dual, b)).tangent
    torch.testing.assert_close(tangent, torch.ones(4, 5) @ b)
    with torch.autocast("cpu"):
        assert product(a, b).dtype == torch.bfloat16


@pytest.mark.keeps
def test_what_is_outdated_is_not_found(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    outdate()
    assert CALLS.find(WORDS, known)[0] is None
    for _ in range(3):
        torch.testing.assert_close(product(*known), known[0] @ known[1])
    assert CALLS.find(WORDS, known)[0] is not None


def keep(calls: Calls, words: Any, given: tuple[torch.Tensor, ...], call: Any) -> None:
    calls.keep(calls.find(words, given)[1], given, call)


@pytest.mark.keeps
def test_calls_of_the_same_words_are_told_apart_by_their_tensors() -> None:
    calls, tensors = Calls(64), [(torch.rand(rows, 4),) for rows in range(1, 40)]
    odd = torch.rand(64)
    tensors += [(odd[at : at + 16],) for at in range(1, 4)]  # alike but for the alignment
    tensors += [(torch.rand(4, 6).T,), (torch.rand(6, 4).double(),), (torch.rand(6, 4, requires_grad=True),)]
    for at, given in enumerate(tensors):
        keep(calls, "words", given, at)
    assert [calls.find("words", given)[0] for given in tensors] == [*range(len(tensors))]
    assert calls.find("other words", tensors[0])[0] is None


@pytest.mark.keeps
def test_one_tensor_twice_is_another_call() -> None:
    calls, same, other = Calls(4), torch.rand(4, 4), torch.rand(4, 4)
    keep(calls, "words", (same, same), "one tensor")
    assert calls.find("words", (other, other))[0] == "one tensor"
    assert calls.find("words", (same, other))[0] is None
    keep(calls, "words", (same, other), "two")
    assert calls.find("words", (other, same))[0] == "two"
    assert calls.find("words", (same, same))[0] == "one tensor"
    keep(calls, "words", (same, other, same), "the first again")
    assert calls.find("words", (other, same, other))[0] == "the first again"
    assert calls.find("words", (other, same, same))[0] is None


@pytest.mark.keeps
def test_the_table_is_bounded_and_the_longest_not_renewed_goes_first() -> None:
    calls, given = Calls(2), (torch.rand(4, 4),)
    for words in ("first", "second"):
        keep(calls, words, given, words)
    keep(calls, "first", (given[0].T,), "renewed")
    keep(calls, "third", given, "third")
    assert [calls.find(words, given)[0] for words in ("first", "second", "third")] == ["first", None, "third"]
    place = calls.find("words", given)[1]
    for at in range(3):
        outdate()
        keep(calls, at, given, "call")
    assert len(calls) == 1
    calls.keep(place, given, "planned before")
    assert calls.find("words", given)[0] is None


def test_words_without_a_hash_are_kept_and_found_nowhere() -> None:
    calls, given = Calls(2), (torch.rand(4, 4),)
    keep(calls, ["no hash"], given, "call")  # type: ignore[arg-type]
    assert calls.find(["no hash"], given)[0] is None  # type: ignore[arg-type]
    assert len(calls) == 0


@pytest.mark.keeps
def test_a_signature_takes_the_place_of_guards_that_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", None)
    calls, a, b = Calls(8), torch.rand(4, 6), torch.rand(4, 6)
    keep(calls, "words", (a, a.T), "call")
    assert isinstance(next(iter(calls._known.values()))[0].guards, engine._Signature)
    assert calls.find("words", (b, b.T))[0] == "call"
    for other in (b.double(), b.to(torch.complex64), torch.rand(6, 4).T, b.clone().requires_grad_()):
        assert calls.find("words", (other, b.T))[0] is None
    with torch.autocast("cpu"):
        assert calls.find("words", (b, b.T))[0] is None


def test_autocast_and_its_type_are_part_of_the_key() -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    for _ in range(3):
        assert weft.matmul(a, b).dtype == torch.float32
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert weft.matmul(a, b).dtype == dtype
                assert weft.einsum("ij,jk->ik", a, b).dtype == dtype


def test_nothing_is_kept_where_replay_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_REPLAY", "0")
    a, b = torch.rand(3, 7), torch.rand(7, 2)
    before = len(CALLS)
    for _ in range(3):
        torch.testing.assert_close(weft.contract("ik,kj->ij", a, b), a @ b)
    assert len(CALLS) == before
