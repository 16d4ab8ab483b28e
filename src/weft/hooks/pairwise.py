"""The two functions that cotengra contracts pairs of tensors with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from weft.api.numpy_words import tensordot
from weft.networks.public import einsum
from weft.plans.keywords import refuse_unknown

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def cotengra(**options: Any) -> Pair:
    """The pair ``(einsum, tensordot)`` that cotengra takes as `implementation=`.

    ``tree.contract(arrays, implementation=weft.hooks.cotengra())``, or of `cotengra.einsum` and its kin. `options` are
    keywords of `weft.contract` and hold for each pair: `precision`, `promote`, `specialize`, `backend` ... Raises
    `ArgumentError` for others.

    >>> import cotengra, torch, weft.hooks
    >>> x = torch.eye(3)
    >>> cotengra.einsum("ab,bc,cd->ad", x, x, x, implementation=weft.hooks.cotengra())
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    refuse_unknown("einsum", options, "weft.hooks.cotengra")
    return partial(einsum, **options), partial(tensordot, **options)


@contextmanager
def implementing(**options: Any) -> Iterator[None]:
    """Within it cotengra contracts by weft wherever it is asked for nothing else, and so does quimb.

    `options` as for `cotengra`. It holds for the whole process, as cotengra's default does.
    """
    from cotengra.contract import default_implementation

    with default_implementation(cotengra(**options)):
        yield
