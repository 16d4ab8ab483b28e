"""What a tuning run comes down to: how good the cost model's first choices were.

Names are ``suite.group.untuned_vs_tuned``: the geometric mean over the group's cases of the tuned time over that of
the model's choice. 1 is perfect, 0.9 says that tuning saves a tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.machine.statistics import Interval, mean_ratio

FIGURE = "untuned_vs_tuned"


def figures(record: Mapping[str, Any]) -> dict[str, Interval]:
    """The figures of a record of `weft.cli.tuning.run`, with 95 % bootstrap intervals from the last
    round's samples.

    Where a schedule was stored before, its one known time stands for its samples. Cases that failed are left out.
    """
    groups: dict[str, list[tuple[list[float], list[float]]]] = {}
    for case in record["cases"]:
        fastest, model = (_samples(case.get(part)) for part in ("winner", "model"))
        if fastest and model:
            # Where the model's choice won, both are the same samples: their ratio is 1 and nothing else.
            groups.setdefault(case["group"], []).append(([1.0], [1.0]) if fastest == model else (fastest, model))
    suite = record["suite"]
    return {
        ".".join(filter(None, (suite, group, FIGURE))): mean_ratio(*map(list, zip(*pairs, strict=True)))
        for group, pairs in groups.items()
    }


def _samples(part: Mapping[str, Any] | None) -> list[float]:
    if part is None:
        return []
    if part.get("samples"):
        return list(part["samples"])
    return [part["seconds"]] if part.get("seconds") else []
