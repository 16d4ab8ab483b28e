"""Copies of many modes: by the shape-generic kernel where it is at hand, bit for bit what torch copies."""

from __future__ import annotations

import pytest
import torch

from weft.library import moves


def scattered(modes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A place, and a source whose modes lie in another order."""
    generator = torch.Generator().manual_seed(modes)
    shape = [2 + at % 2 for at in range(modes)]
    order = torch.randperm(modes, generator=generator).tolist()
    back = [order.index(at) for at in range(modes)]
    source = torch.randn([shape[at] for at in order], generator=generator).to(dtype).permute(back)
    return torch.full(shape, 7.0, dtype=dtype), source


@pytest.mark.parametrize("modes", [1, 6, 12])
def test_a_cpu_copies_as_torch(modes: int) -> None:
    place, source = scattered(modes, torch.float32)
    moves.copy(place, source)
    assert torch.equal(place, source)


def test_conversions_and_conjugates_are_torch_s() -> None:
    place, source = scattered(9, torch.complex64)
    assert not moves._is_plain(place, source.conj())
    assert not moves._is_plain(place, source.to(torch.complex128))
    assert moves._is_plain(place, source)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("modes", [7, 12, 16])
def test_a_gpu_copies_the_same_bits(modes: int, dtype: torch.dtype) -> None:
    import weft

    place, source = scattered(modes, dtype)
    on_gpu = source.to("cuda")
    moved = torch.empty_strided(source.shape, source.stride(), dtype=dtype, device="cuda").copy_(on_gpu)
    letters = "abcdefghijklmnop"[:modes]
    weft.permute(moved, f"{letters}->{letters}", specialize="never")  # the kernel is kept from now on
    found = place.to("cuda")
    moves.copy(found, moved)
    moves.copy(found[:, :1], moved[:, 1:2])  # another start
    wanted = source.clone()
    wanted[:, :1] = source[:, 1:2]
    assert torch.equal(found.cpu(), wanted)
    assert any(moves._LAUNCHES.values())
