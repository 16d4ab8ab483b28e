"""Descriptions and schedules as plain JSON, for keys and values that outlive the process.

Every field that takes part in comparing two values is serialized, so a field that is added later makes other keys by
itself. Labels are left out: modes differ by where they stand, and a contraction is the same whatever its
letters. A function is the digest of what it computes. What another process would not understand raises
`NotSerializable`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from weft.fn import Pointwise
from weft.planner.schedule import Description, Schedule
from weft.spec import Mode

Names = Mapping[Any, str]


class NotSerializable(TypeError):
    """A value that means something in this process only."""


def serialize_description(description: Description) -> Any:
    """A contraction or permutation; equal for equal ones whatever their labels."""
    return _serialize(description, _positions(description))


def serialize_schedule(schedule: Schedule, description: Description) -> Any:
    """A schedule of a description."""
    return _serialize(schedule, _positions(description))


def digest(serialized: Any) -> str:
    """A digest of a serialized value, short enough for a file."""
    return hashlib.sha256(json.dumps(serialized, sort_keys=True).encode()).hexdigest()[:32]


def _positions(description: Description) -> Names:
    """The text that stands for each label that is a string, where a label is named outside of its mode."""
    labels = [label for mode in description.modes for label in mode.labels]
    return {label: f"label {at}" for at, label in enumerate(labels) if isinstance(label, str)}


def _serialize(value: Any, names: Names) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value.hex()  # infinities and NaN too, which JSON lacks
    if isinstance(value, complex):
        return {"is": "complex", "parts": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Pointwise):
        return {"is": "function", "digest": hashlib.sha256(value.identity.encode()).hexdigest()}
    if isinstance(value, Mode):
        return [value.extent, value.role.value, list(value.strides)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sequence):
        return [_serialize(item, names) for item in value]
    if isinstance(value, Mapping):
        return [[_serialize(key, names), _serialize(item, names)] for key, item in value.items()]
    if hasattr(value, "ranked"):  # a choice within a schedule: what was chosen counts, not among what
        return _serialize(value.best.schedule, _positions(value.description))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        return {"is": type(value).__name__} | {name: _serialize(getattr(value, name), names) for name in fields}
    raise NotSerializable(f"a {type(value).__name__} means something in this process only")
