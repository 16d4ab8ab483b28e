"""Calls that are known by one look: what the look sees, and what it leaves to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.api.entry import LATELY
from weft.planner.validity import outdate
from weft.plans import lately
from weft.plans.lately import MOST, Lately

WORDS = (("xk,ky->xy", (), ()), False, True, True)


def product(a: Any, b: Any) -> Any:
    return weft.contract("xk,ky->xy", a, b)


@pytest.fixture
def known() -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices whose product came lately."""
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    for _ in range(3):
        product(a, b)
    assert LATELY.find(WORDS, (a, b)) is not None
    return a, b


def test_it_computes_on_the_tensors_of_the_call(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    assert LATELY.find(WORDS, (a, b)) is not None
    torch.testing.assert_close(product(a, b), a @ b)


OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "strides": lambda a: a.T.contiguous().T,
    "an address": lambda a: torch.cat((a.new_zeros(1), a.flatten()))[1:].view(4, 5),
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


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_read_in_full(known: tuple[torch.Tensor, torch.Tensor], name: str) -> None:
    a, b = known
    assert LATELY.find(WORDS, (OTHERS[name](a), b)) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    """torch's guards would end the process."""
    a, b = known
    for layout in (torch.strided, torch.jagged):
        with pytest.raises(weft.UnsupportedError, match="nested"):
            product(torch.nested.nested_tensor([a, a], layout=layout), b)


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


def test_gradients_are_recorded_where_they_are_requested() -> None:
    a, b = torch.rand(4, 5, requires_grad=True), torch.rand(5, 6)
    for _ in range(4):
        assert product(a, b).requires_grad
        with torch.no_grad():
            assert not product(a, b).requires_grad
    torch.testing.assert_close(torch.autograd.grad(product(a, b).sum(), a)[0], b.sum(1).expand(4, 5))


def test_conjugate_views_are_known() -> None:
    a, b = (torch.rand(4, 4, dtype=torch.complex128) for _ in range(2))
    for _ in range(4):
        a, b = b, a + 1
        for x, y in ((a.conj(), b), (a, b.conj()), (a, b)):
            torch.testing.assert_close(weft.contract("ck,kd->cd", x, y), x @ y)
    assert LATELY.find((("ck,kd->cd", (), ()), False, True, True), (a.conj(), b)).launch is not None


def test_what_is_outdated_is_not_found(known: tuple[torch.Tensor, torch.Tensor]) -> None:
    outdate()
    assert LATELY.find(WORDS, known) is None
    for _ in range(3):
        torch.testing.assert_close(product(*known), known[0] @ known[1])
    assert LATELY.find(WORDS, known) is not None


def test_a_few_calls_of_the_same_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, tensors = Lately(2), [(torch.rand(rows, 4),) for rows in range(1, 2 * MOST)]
    for at, given in enumerate(tensors):
        calls.note("words", given, at)
    assert [calls.find("words", given) for given in tensors] == [*range(MOST), *[None] * (MOST - 1)]
    monkeypatch.setattr(lately, "PATIENCE", 1)  # what comes again and again takes a place in the end
    calls.note("words", tensors[-1], "late")
    assert calls.find("words", tensors[-1]) == "late"
    same = torch.rand(4, 4)
    calls.note("twice", (same, same), "one tensor")
    assert calls.find("twice", (same, same)) == "one tensor"
    assert calls.find("twice", (same, same.clone())) is None
    for words in ("second", "third"):
        calls.note(words, (same,), words)
    assert calls.find("third", (same,)) == "third"
    assert calls.find("words", tensors[0]) is None
    with pytest.raises(TypeError):
        calls.find(["no hash"], (same,))  # type: ignore[arg-type]
