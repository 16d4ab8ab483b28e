"""How results of weft and of its peers are judged."""

from dataclasses import replace

import pytest
import torch

from bench.sides import tensors_of
from weft.oracle.judgement import fill_unwritten
from weft.reference import contract
from weft_bench import checking
from weft_bench.cases import Case, from_letters
from weft_bench.checking import WrongResult, reference_slabs
from weft_bench.networks import NetworkCheck, planned_network
from weft_bench.peers.registry import Tensors
from weft_bench.suites import entries

HALF, SINGLE = torch.float16, torch.float32


PRODUCT = from_letters("product", "bmk,bkn->bmn", b=2, m=31, k=16, n=9, dtypes=(HALF, HALF, SINGLE))


def right(case: Case, tensors: Tensors) -> torch.Tensor:
    return contract(case.equation, tensors.a, tensors.b, c=tensors.c, out=tensors.d, **case.options())


def test_a_right_result_passes_and_one_wrong_element_does_not() -> None:
    tensors = tensors_of(PRODUCT)
    (slab,) = reference_slabs(PRODUCT, tensors)
    d = right(PRODUCT, tensors)
    assert slab.compare(d) <= 1
    d[1, 30, 8] += 0.01
    with pytest.raises(AssertionError, match=r"1 of 558 elements are off; the worst at \(1, 30, 8\)"):
        slab.compare(d)


@pytest.mark.parametrize("dtype", [SINGLE, HALF, torch.complex64, torch.int32, torch.int8])
def test_an_element_left_unwritten_does_not_pass(dtype: torch.dtype) -> None:
    inputs = torch.int8 if not (dtype.is_complex or dtype.is_floating_point) else dtype
    case = replace(PRODUCT, dtypes=(inputs, inputs, dtype))
    tensors = tensors_of(case)
    fill_unwritten(tensors.d)
    with pytest.raises(AssertionError):
        reference_slabs(case, tensors)[0].compare(tensors.d)


@pytest.mark.parametrize("equation", ["bmk,bkn->bmn", "mkb,nbk->nbm"])
def test_slabs_of_a_large_result_reach_both_ends(monkeypatch: pytest.MonkeyPatch, equation: str) -> None:
    monkeypatch.setattr(checking, "_WHOLE", 100)
    monkeypatch.setattr(checking, "_SLAB", 100)
    case = from_letters("large", equation, b=2, m=31, k=16, n=9, add=True, beta=2.0)
    tensors = tensors_of(case)
    parts = reference_slabs(case, tensors)
    d = right(case, tensors)
    assert len(parts) == 3
    assert all(part.compare(d) <= 1 for part in parts)
    longest = case.d_shape.index(31)
    assert parts[0].part is not None
    assert parts[0].part[0] == longest
    for at, part in zip((0, 15, 30), parts, strict=True):
        broken = d.clone()
        broken.narrow(longest, at, 1).fill_(1e3)
        with pytest.raises(AssertionError):
            part.compare(broken)


def test_a_peer_that_stores_half_is_allowed_its_rounding_and_no_more() -> None:
    tensors = tensors_of(PRODUCT)
    (slab,) = reference_slabs(PRODUCT, tensors)
    rounded = right(PRODUCT, tensors).half().float()
    with pytest.raises(AssertionError):
        slab.compare(rounded)
    assert slab.compare(rounded, stored=HALF) <= 1
    with pytest.raises(AssertionError):
        slab.compare(rounded + 0.05, stored=HALF)


def test_each_step_of_a_peer_may_round() -> None:
    case = replace(PRODUCT, alpha=0.3, beta=0.7, add=True, epilogue="gelu", equation="bmkx,bkn->bmn",
                   shapes=((2, 31, 16, 5), (2, 16, 9)), dtypes=(torch.bfloat16,) * 3)  # fmt: skip
    tensors = tensors_of(case)
    (slab,) = reference_slabs(case, tensors)
    a = tensors.a.sum(-1)
    c = tensors.c
    assert c is not None
    stepwise = torch.nn.functional.gelu(torch.einsum("bmk,bkn->bmn", a, tensors.b) * 0.3 + c * 0.7)
    with pytest.raises(AssertionError):
        slab.compare(stepwise)
    assert slab.compare(stepwise, stored=torch.bfloat16) <= 1
    with pytest.raises(AssertionError):
        slab.compare(stepwise + 2, stored=torch.bfloat16)


def test_a_network_of_many_steps_that_is_off_by_little_is_found() -> None:
    """Magnitudes of a hundred tensors come to far more than they do: their bound alone would find nothing."""
    (entry,) = entries("networks", (), ["rtree_100"], None)
    tensors = entry.case.operands(device=torch.device("cpu"), seed=0)
    check, net = NetworkCheck(entry.case, tensors), planned_network(entry.case, tensors)
    assert check.error(net, None) < 0.1
    with pytest.raises(WrongResult, match="rtree_100 of 100 operands"):
        check.error(lambda *operands: 1.01 * net(*operands), None)
