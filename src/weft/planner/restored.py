"""Schedules read back from what `weft.planner.serialization` made of them, so that nothing is ranked again.

The types of fields say how each value is read. What was serialized comes from the same code, for the same description;
whatever does not come out as it went in counts as not understood, and the schedule is searched for anew.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from weft.planner.registry import imported
from weft.planner.schedule import Description, Ranked, Schedule, Target
from weft.planner.serialization import NotSerializable, serialize_schedule
from weft.spec import Mode
from weft.spec.contraction import with_operands_swapped


class NotUnderstoodError(ValueError):
    """A value that is not what its field's type says."""


def restored(serialized: Any, family: str, description: Description, target: Target) -> Ranked | None:
    """The schedule of a family (its module) with its predicted time; None where it is not understood."""
    module = imported(family)
    if isinstance(module, str) or not isinstance(serialized, Mapping):
        return None
    found: Any = module
    try:
        modes = list(description.modes)
        if serialized.get("swap_ab"):
            modes = [with_operands_swapped(mode) for mode in modes]
        schedule: Schedule = _Reader(modes, module.__package__ or family).value(serialized, Any)
        if serialize_schedule(schedule, description) != serialized:
            return None
        return Ranked(schedule, found.predict(description, schedule, target), found)
    except (NotUnderstoodError, NotSerializable, AttributeError, KeyError, NameError, TypeError, ValueError):
        return None


class _Reader:
    """Reads values of one description, whose modes a schedule names."""

    def __init__(self, modes: Sequence[Mode], package: str) -> None:
        self._modes = {(mode.extent, mode.role.value, tuple(mode.strides)): mode for mode in modes}
        self._alike = len(self._modes) < len(modes)  # modes that cannot be distinguished
        labels = [label for mode in modes for label in mode.labels]
        self._labels = {f"label {at}": label for at, label in enumerate(labels)}
        self._package = package

    def value(self, value: Any, hint: Any) -> Any:
        """A value as its type says; a schedule's own type is named by the value."""
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._of_union(value, get_args(hint))
        if isinstance(value, Mapping) and "is" in value:
            return self._dataclass(value)
        if hint is Mode:
            return self._mode(value)
        if hint is float:
            return float.fromhex(value)
        if isinstance(value, str):
            return self._text(value, hint)
        if origin is tuple:
            return self._tuple(value, get_args(hint))
        if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
            hints = _hints(hint)
            return hint(*(self.value(each, hints[name]) for each, name in zip(value, hint._fields, strict=True)))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(value)
        if value is None or isinstance(value, bool | int):
            return value
        raise NotUnderstoodError(f"{value!r} is no {hint}")

    def _dataclass(self, value: Mapping[str, Any]) -> Any:
        kind = _kind(value["is"], self._package)
        hints = _hints(kind)
        fields = {name: self.value(each, hints[name]) for name, each in value.items() if name != "is"}
        return kind(**fields)

    def _mode(self, value: Any) -> Mode:
        extent, role, strides = value
        if self._alike:
            raise NotUnderstoodError("two modes are alike")
        return self._modes[extent, role, tuple(strides)]

    def _text(self, value: str, hint: Any) -> Any:
        if hint is torch.dtype:
            return getattr(torch, value.removeprefix("torch."))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(value)
        if hint is str or get_origin(hint) is Literal:
            return self._labels.get(value, value) if hint is str else value
        return self._labels[value]

    def _tuple(self, value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(value, Sequence):
            raise NotUnderstoodError(f"{value!r} is no sequence")
        if len(hints) == 2 and hints[1] is Ellipsis:
            return tuple(self.value(each, hints[0]) for each in value)
        return tuple(self.value(each, hint) for each, hint in zip(value, hints, strict=True))

    def _of_union(self, value: Any, hints: tuple[Any, ...]) -> Any:
        if value is None:
            return None
        for hint in hints:
            if hint is not type(None):
                try:
                    return self.value(value, hint)
                except (NotUnderstoodError, KeyError, TypeError, ValueError, AttributeError):
                    continue
        raise NotUnderstoodError(f"{value!r} is none of {hints}")


@lru_cache
def _kind(name: str, package: str) -> type:
    """The dataclass of that name in the modules of a family."""
    for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
        kind = getattr(module, name, None)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    raise NotUnderstoodError(f"{package} has no {name}")


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
