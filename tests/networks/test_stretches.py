"""Slices that have several indices of a label: as many as a memory limit allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from nets import Net, net_of
from weft.networks import derivatives

RING = net_of("abcd,cdef,efgh,ghab->", dict.fromkeys("abcdefgh", 6))
INTO = net_of("abc,cde,bdf->aef", {"a": 12, "b": 8, "c": 10, "d": 9, "e": 4, "f": 12}, seed=1)
REPEATED = net_of("aab,bc,cda,dd->d", {"a": 8, "b": 12, "c": 12, "d": 6}, seed=2)
HYPER = net_of("xa,xb,xc,abc->x", {"x": 30, "a": 12, "b": 10, "c": 9}, seed=3)
NETS = [RING, INTO, REPEATED, HYPER]


def planned(net: Net, share: float = 0.5, **keywords: Any) -> Any:
    """A network that may hold this share of what it would take without a limit."""
    whole = weft.network(net.equation, *net.tensors, **keywords)
    found = weft.network(net.equation, *net.tensors, memory_limit=int(whole.memory * share), **keywords)
    assert found.memory <= whole.memory * share
    return found


def in_stretches(net: Net, share: float = 0.5, **keywords: Any) -> Any:
    """The same, which is sliced in stretches."""
    found = planned(net, share, **keywords)
    assert max(found.report()["stretches"]) > 1
    return found


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.equation)
@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
@pytest.mark.parametrize("keywords", [{}, {"constants": [0]}, {"strip_exponent": True}], ids=str)
def test_results(net: Net, share: float, keywords: dict[str, Any]) -> None:
    found = planned(net, share, **keywords)
    reverse = tuple(reversed(range(net.expected.dim())))
    out = torch.full(net.expected.shape[::-1], torch.nan, dtype=torch.float64).permute(reverse)
    result = found(*net.tensors[len(keywords.get("constants", [])) :], out=out)
    if "strip_exponent" in keywords:
        result = result[0] * 10 ** result[1]
    torch.testing.assert_close(result, net.expected)


def test_no_more_slices_than_fit() -> None:
    """Three quarters of the memory take two slices, two fifths three: an index at a time it would be six."""
    for share, slices in ((0.75, 2), (0.4, 3)):
        assert planned(RING, share).plan.tree.slices == slices


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64], ids=str)
def test_types(dtype: torch.dtype) -> None:
    tensors = [(tensor / 4).to(dtype) for tensor in INTO.tensors]
    found = in_stretches(Net(INTO.equation, tensors, INTO.expected))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.einsum(INTO.equation, *[tensor.to(wide) for tensor in tensors])
    tolerance = 2e-2 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(found(*tensors).to(exact.dtype), exact, rtol=tolerance, atol=tolerance)


def test_the_bound_of_the_error_has_the_shape_of_the_result() -> None:
    tensors = [tensor.float() for tensor in INTO.tensors]
    found = in_stretches(Net(INTO.equation, tensors, INTO.expected))
    bound = found.error_bound(*tensors)
    assert bound.shape == INTO.expected.shape
    exact = torch.einsum(INTO.equation, *[tensor.double() for tensor in tensors])
    assert ((found(*tensors).double() - exact).abs() <= bound).all()


def test_functions_keep_their_sums_whole() -> None:
    path = [(0, 1), (0, 1)]
    found = in_stretches(INTO, 0.7, functions={"abde": torch.tanh}, optimize=path)
    assert "c" not in found.slices
    first = torch.tanh(torch.einsum("abc,cde->abde", *INTO.tensors[:2]))
    torch.testing.assert_close(found(*INTO.tensors), torch.einsum("abde,bdf->aef", first, INTO.tensors[2]))


@pytest.mark.parametrize("net", [RING, INTO], ids=lambda net: net.equation)
def test_gradients(net: Net) -> None:
    found = in_stretches(net, 0.6)
    given, same = ([tensor.clone().requires_grad_() for tensor in net.tensors] for _ in range(2))
    result = found(*given)
    assert result.shape == net.expected.shape
    weights = torch.linspace(-1, 1, max(net.expected.numel(), 1), dtype=torch.float64).view(net.expected.shape)
    (result * weights).sum().backward()
    (torch.einsum(net.equation, *same) * weights).sum().backward()
    for one, other in zip(given, same, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_backward_sweep_takes_stretches_too() -> None:
    whole = weft.network(RING.equation, *RING.tensors)
    found = weft.network(RING.equation, *RING.tensors, memory_limit=whole.memory)
    assert not found.slices
    assert derivatives.contractions_of(found.plan).tree.slices < 6


def test_a_checkpoint_is_of_these_stretches(tmp_path: Path) -> None:
    found = in_stretches(RING)
    torch.testing.assert_close(found(*RING.tensors, checkpoint=tmp_path / "run"), RING.expected)
    torch.testing.assert_close(found(*RING.tensors, checkpoint=tmp_path / "run"), RING.expected)
    other = planned(RING, 0.3, optimize=found.path)
    assert other.slices == found.slices
    assert other.plan.tree.slices > found.plan.tree.slices
    with pytest.raises(weft.ArgumentError, match="it has other slices"):
        other(*RING.tensors, checkpoint=tmp_path / "run")


def test_reports_say_how_many_indices_a_slice_has() -> None:
    found = in_stretches(RING)
    (label,), (length,) = found.slices, found.report()["stretches"]
    slices = 6 // length
    assert found.report()["sliced"] == [label]
    assert f"slices       {slices} over {label} ({length} at a time)" in found.explain()
    assert f"{slices} over {label} ({length} at a time)" in found._repr_html_()


def test_nan_is_found_in_the_slice_that_has_it() -> None:
    found = in_stretches(RING, check_finite=True)
    label, (length,) = found.slices[0], found.report()["stretches"]
    at, dim = next((at, term.index(label)) for at, term in enumerate(RING.equation[:-2].split(",")) if label in term)
    tensors = [tensor.clone() for tensor in RING.tensors]
    tensors[at].select(dim, 5)[0, 0, 0] = torch.nan
    with pytest.raises(weft.AccuracyError, match=rf"operand {at} holds NaN .* in slice {label}={6 - length}..5\n"):
        found(*tensors)


def test_extents_that_nothing_divides_take_an_index_at_a_time() -> None:
    net = net_of("abcd,cdef,efab->", dict.fromkeys("abcdef", 5))
    found = planned(net)
    assert set(found.report()["stretches"]) == {1}
    torch.testing.assert_close(found(*net.tensors), net.expected)
