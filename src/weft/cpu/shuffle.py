"""Transposing contiguous blocks in cache, from one buffer into another."""

from __future__ import annotations

import torch
from torch.nn.functional import channel_shuffle

# The type in which elements of each size are moved; up to 8 bytes those that torch's channel shuffle takes.
WORDS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}


def exchanged(flat: torch.Tensor, rows: int, columns: int, run: int = 1) -> torch.Tensor:
    """[..., rows, columns, run] -> [..., columns, rows, run], both flat; `flat` itself where nothing moves.

    In an image whose channels are innermost in memory torch's channel shuffle exchanges two groups of channels, pixel
    by pixel, vectorised and on all threads: a batch of transpositions. Where a run of words stays together it is
    transposed along with the columns and then put back in order.
    """
    size = flat.dtype.itemsize
    if rows == 1 or columns == 1:
        return flat
    if size == 1:  # which channel shuffle does not take
        return flat.view(-1, rows, columns, run).transpose(1, 2).reshape(-1)
    words, run = flat.view(WORDS[min(size, 8)]), run * max(size // 8, 1)
    words = _transposed(words, rows, columns * run)
    if run > 1:
        words = _transposed(words, run, rows)
    return words.view(flat.dtype)


def _transposed(words: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[..., rows, columns] -> [..., columns, rows], both flat."""
    batch = words.numel() // (rows * columns)
    images = words.view(batch, 1, 1, rows * columns).permute(0, 3, 1, 2)  # channels innermost
    return channel_shuffle(images, rows).permute(0, 2, 3, 1).reshape(-1)
