"""The record of a microbenchmark: a table, figures drawn from it, and the table of an A100 to hold it against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Row = Mapping[str, float | str | None]


@dataclass(frozen=True)
class Micro:
    """One microbenchmark's result. Columns have their units in their names."""

    name: str
    device: str
    says: str  # what was done, in a sentence
    x: str  # the column that is varied
    y: tuple[str, ...]  # columns that are drawn over it
    rows: Sequence[Row]
    figures: Mapping[str, float] = field(default_factory=dict)  # fitted or derived, units in their names
    finding: str = ""  # what the figures say, in a sentence
    published: Sequence[Row] = ()  # the same of an A100-SXM4-40GB
    source: str = ""  # of what is published
    missing: str = ""  # why there are no rows
    doubt: str = ""  # which rows another program on the machine made worthless

    @property
    def columns(self) -> list[str]:
        """All columns, in their order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def column(rows: Sequence[Row], name: str) -> list[float]:
    """The numbers of a column, where there are any."""
    return [float(value) for row in rows if isinstance(value := row.get(name), int | float)]
