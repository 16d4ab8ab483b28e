"""Networks on the Triton backend without a GPU: kernels run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

import weft
from nets import chain, net_of, random_net
from weft.planner.target import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="TRITON_INTERPRET is not set")

TRITON = {"backend": "triton"}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_networks(seed: int) -> None:
    net = random_net(seed, 4)
    tensors = net.of(torch.float32)
    found = weft.network(net.equation, *tensors, **TRITON)(*tensors)
    torch.testing.assert_close(found.double(), net.expected, rtol=1e-4, atol=1e-4)


def test_slices_at_odd_offsets() -> None:
    net = net_of("abc,cde,ef->afbd", {"a": 2, "b": 3, "c": 3, "d": 2, "e": 3, "f": 3})
    tensors = net.of(torch.float32)
    found = weft.network(net.equation, *tensors, slices="ac", **TRITON)(*tensors)
    torch.testing.assert_close(found.double(), net.expected, rtol=1e-4, atol=1e-4)


def test_exponents_and_functions() -> None:
    net = chain(3, seed=2)
    tensors = net.of(torch.float32)
    mantissa, exponent = weft.network(net.equation, *tensors, strip_exponent=True, **TRITON)(*tensors)
    torch.testing.assert_close(mantissa.double() * 10**exponent, net.expected, rtol=1e-4, atol=1e-4)
    net_with = weft.network(net.equation, *tensors, functions={3: torch.relu}, optimize=[(0, 1), (0, 1)], **TRITON)
    torch.testing.assert_close(net_with(*tensors), torch.relu(tensors[0] @ tensors[1]) @ tensors[2])
