"""The record of a microbenchmark: a table, figures drawn from it, and the table of an A100 to hold it against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft_bench.records import reading

FORMAT = 1
JSON_FILE = "micro.json"
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


@dataclass(frozen=True)
class Micros:
    """Microbenchmarks of one device, run one after another."""

    found: Sequence[Micro]
    environment: Mapping[str, Any] = field(default_factory=dict)  # see weft_bench.environment; {} of old records

    @property
    def device(self) -> str:
        return self.found[0].device if self.found else ""

    @property
    def commit(self) -> str | None:
        return self.environment.get("artifacts", {}).get("commit")

    @property
    def date(self) -> str | None:
        return self.environment.get("date")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them again."""
        found = [each.to_dict() for each in self.found]
        return {"format": FORMAT, "environment": dict(self.environment), "found": found}

    @classmethod
    def from_dict(cls, saved: Any) -> Micros:
        """A record as it was written; an old one is a list without an environment."""
        if isinstance(saved, list):
            saved = {"format": FORMAT, "environment": {}, "found": saved}
        if saved.get("format") != FORMAT:
            raise WeftError(f"these microbenchmarks have format {saved.get('format')}, this version reads {FORMAT}")
        tuples = [{name: tuple(each[name]) for name in ("y", "published")} for each in saved["found"]]
        found = [Micro(**{**each, **kept}) for each, kept in zip(saved["found"], tuples, strict=True)]
        return cls(found, saved["environment"])


def load(folder: Path) -> Micros:
    """The microbenchmarks in a folder, or the JSON file itself; `WeftError` where there are none."""
    file = folder / JSON_FILE if folder.is_dir() else folder
    with reading(file, "record of weft micro"):
        return Micros.from_dict(json.loads(file.read_text()))


def column(rows: Sequence[Row], name: str) -> list[float]:
    """The numbers of a column, where there are any."""
    return [float(value) for row in rows if isinstance(value := row.get(name), int | float)]
