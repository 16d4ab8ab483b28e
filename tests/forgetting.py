"""Calls as if none had come before: what is kept of calls is set aside, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from weft.plans.lately import Lately

from weft.autograd import handed, product
from weft.base.bounded_cache import BoundedCache
from weft.plans.memo import CallCache, Memo, every_cache, guarded

_BY_SPEC = (product.product, handed.handed)  # rules, which keep the calls that they make


@contextmanager
def forgetting() -> Iterator[None]:
    """Nothing is kept within: `WEFT_REPLAY=0`, with tables that are empty."""
    tables: list[Memo | CallCache | Lately] = [*every_cache(), *guarded]
    before = [_emptied(table) for table in tables]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_REPLAY", "0")
        for made in _BY_SPEC:
            made.cache_clear()
        yield
    for table, content in zip(tables, before, strict=True):
        _fill(table, content)


def _emptied(table: Memo | CallCache | Lately) -> Any:
    """What a table had."""
    if isinstance(table, CallCache):
        content: Any = dict(table)
        table.clear()
    elif isinstance(table, Memo):
        content, table._entries = table._entries, BoundedCache(table._size)
    else:
        content, table._calls = table._calls, {}
    return content


def _fill(table: Memo | CallCache | Lately, content: Any) -> None:
    if isinstance(table, CallCache):
        table.update(content)
    elif isinstance(table, Memo):
        table._entries = content
    else:
        table._calls = content
