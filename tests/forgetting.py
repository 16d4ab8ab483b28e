"""Calls as if none had come before: what is kept of calls is set aside, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weft.base.caches import BoundedCache
from weft.engine.calls import Calls
from weft.engine.memo import TABLES, Memo


@contextmanager
def forgetting() -> Iterator[None]:
    """Nothing is kept within: `WEFT_REPLAY=0`, with tables that are empty."""
    tables: list[Memo | Calls] = list(TABLES)
    before = [_emptied(table) for table in tables]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_REPLAY", "0")
        yield
    for table, content in zip(tables, before, strict=True):
        if isinstance(table, Memo):
            table._entries = content
        else:
            table._known = content


def _emptied(table: Memo | Calls) -> Any:
    """The content of a table, which is not there any more."""
    if isinstance(table, Memo):
        content: Any = table._entries
        table._entries = BoundedCache(table._size)
    else:
        content, table._known = table._known, {}
    return content
