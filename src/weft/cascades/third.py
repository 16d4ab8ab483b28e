"""Sums of products of three tensors without the product of two of them in memory, as `einsum` has them on a GPU.

    ig,ij,jg->g:    S[g, j] = sum over i of A[i, g] B[i, j],    D[g] = sum over j of S[g, j] C[j, g]

Two tensors are contracted to all the labels of the third, which meets their product element by element; the labels of
one of the two that are not in D are summed. That is a cascade of one contraction, which a kernel makes in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.base.dispatch import taken_by
from weft.cascades.public import plan_cascade
from weft.errors import WeftError
from weft.fn import reductions
from weft.spec import Label, Notation

_TYPES = (torch.float32, torch.float64)


class Met(NamedTuple):
    """The two tensors that are contracted and the third, by place; labels of their product, and those summed of it."""

    first: int
    second: int
    third: int
    product: tuple[Label, ...]
    summed: tuple[str, ...]


@lru_cache(maxsize=512)
def met(notation: Notation) -> Met | None:
    """How a sum of three is one contraction that meets a third; None where it is not."""
    terms = notation.inputs
    if len(terms) != 3 or any(len(set(term)) < len(term) or ... in term for term in (*terms, notation.output)):
        return None
    kept = set(notation.output)
    for first, second, third in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        a, b, c = (set(terms[at]) for at in (first, second, third))
        between, summed = (a & b) - c - kept, c - kept
        alone = summed == a - b or summed == b - a
        if between and summed and alone and c == (a | b) - between and kept < c:
            product = (*notation.output, *(label for label in terms[third] if label in summed))
            return Met(first, second, third, product, tuple(map(str, product[len(kept) :])))
    return None


def met_by_kernel(
    notation: Notation, tensors: Sequence[torch.Tensor], precision: Any
) -> Callable[..., torch.Tensor] | None:
    """The sum of these tensors by a kernel; None where none is faster than two contractions."""
    dtype, device = tensors[0].dtype, tensors[0].device
    how = met(notation) if device.type == "cuda" and dtype in _TYPES else None
    if how is None or any(each.dtype != dtype or each.device != device for each in tensors):
        return None
    from weft.cascades.serving import is_quick  # with what runs cascades: with the first call, not with weft

    try:
        plan = plan_of(how, notation, tensors, precision=precision, specialize="auto")
    except WeftError:  # extents that do not agree, say: einsum's own words are about its equation
        return None
    if plan.kernel is None or not is_quick(plan.frame, plan.kernel.tile):
        return None

    def summed(*each: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = plan.run((each[how.first], each[how.second]), {"other": each[how.third]})
        return found

    return summed


def plan_of(how: Met, notation: Notation, tensors: Sequence[torch.Tensor], **keywords: Any) -> Any:
    """The cascade of these tensors."""
    a, b, c = (notation.inputs[at] for at in how[:3])
    return plan_cascade(
        (a, b, how.product), tensors[how.first], tensors[how.second], between=_summed_with(how.summed),
        operands={"other": (c, tensors[how.third])}, **keywords,
    )  # fmt: skip


@lru_cache(maxsize=512)
def _summed_with(modes: tuple[str, ...]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def summed(product: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return reductions.sum(product * other, modes)

    return summed


taken_by("sum of three", met_by_kernel)
