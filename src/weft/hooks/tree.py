"""A whole contraction tree of cotengra, its slices summed in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cotengra as ctg
import torch

from weft.base.arrays import as_tensor, like
from weft.errors import ArgumentError, ShapeError
from weft.hooks.pairwise import cotengra


def contract_tree(
    tree: ctg.ContractionTree, arrays: Sequence[Any], *, strip_exponent: bool = False, **options: Any
) -> Any:
    """Contract `arrays` along a `cotengra.ContractionTree`, slices included.

    `arrays`: one for each of ``tree.inputs``, of the extents that ``tree.size_dict`` has. `options`: keywords of
    `weft.contract` for every step. Slices that are summed go into one result in place: besides the arrays and the
    result, one slice's intermediates are in memory. With `strip_exponent` the result is ``(mantissa, exponent)`` and
    stands for ``mantissa * 10**exponent``: arrays are scaled by powers of two, and each intermediate to a largest
    element of 1, so that a value past the range of the type comes out right.

    Returns the kind of array that the first of `arrays` is. Raises `ArgumentError` for what is no tree, `ShapeError`
    for arrays that do not fit it, and what `weft.contract` raises.
    """
    if not isinstance(tree, ctg.ContractionTree):
        raise ArgumentError(f"tree is a cotengra.ContractionTree, not {type(tree).__name__}")
    tensors = [as_tensor(f"arrays[{at}]", array) for at, array in enumerate(arrays)]
    _check(tree, tensors)
    implementation = cotengra(**options)
    summed = tree.sliced_inds and not set(tree.sliced_inds) & set(tree.output)
    if strip_exponent:
        scaled, exponents = zip(*map(_scaled, tensors), strict=True)
        found, exponent = tree.contract(scaled, implementation=implementation, strip_exponent=True, check_zero=True)
        return like(arrays[0], found), float(exponent) + math.log10(2) * sum(exponents)
    if not summed:
        return like(arrays[0], tree.contract(tensors, implementation=implementation))
    total = tree.contract_slice(tensors, 0, implementation=implementation)
    for at in range(1, tree.multiplicity):
        total.add_(tree.contract_slice(tensors, at, implementation=implementation))
    return like(arrays[0], total)


def _scaled(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The same divided by a power of two, so that its largest part is about 1, and which power that was."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    largest = float(parts.abs().max()) if tensor.numel() else 0.0
    if not math.isfinite(largest) or largest == 0:
        return tensor, 0
    least = math.frexp(torch.finfo(parts.dtype).tiny)[1] + 1  # for 2**-power to be finite
    power = max(math.frexp(largest)[1], least)
    found = parts * 2.0**-power
    return torch.view_as_complex(found) if tensor.is_complex() else found, power


def _check(tree: ctg.ContractionTree, tensors: Sequence[Any]) -> None:
    if len(tensors) != len(tree.inputs):
        raise ShapeError(f"the tree has {len(tree.inputs)} inputs, {len(tensors)} arrays are given")
    for at, (labels, tensor) in enumerate(zip(tree.inputs, tensors, strict=True)):
        wanted = tuple(tree.size_dict[label] for label in labels)
        if tuple(tensor.shape) != wanted:
            raise ShapeError(f"arrays[{at}] of shape {tuple(tensor.shape)}: the tree has {wanted} for {tuple(labels)}")
