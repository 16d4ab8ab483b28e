"""Elements by number type for loops that are written once: loads, stores, and the wider type that sums are kept in.

A type is given by its place in `NAMES`, as the type of a tuple of so many numbers: see `marker`.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import overload

from weft.cpu.stream.params import NAMES, SIZES
from weft.fn.numba.values import LOADS, STORES

_WIDE = {types.float32: types.float64, types.complex64: types.complex128, types.int32: types.int64}


def _name(kind: Any) -> str:
    return NAMES[kind.count - 1]


def load(base: int, index: int, kind: Any, held: Any) -> Any:
    """An element of a type, as a value of the type of `held`."""
    raise NotImplementedError("compiled code alone")


def store(base: int, index: int, value: Any, kind: Any, held: Any) -> None:
    """A value to memory, by way of the type of `held`."""
    raise NotImplementedError("compiled code alone")


def load_sum(base: int, index: int, held: Any) -> Any:
    """A sum of values of the type of `held`."""
    raise NotImplementedError("compiled code alone")


def store_sum(base: int, index: int, value: Any, held: Any) -> None:
    """A sum to the workspace."""
    raise NotImplementedError("compiled code alone")


def sum_size(held: Any) -> int:
    """Bytes of a sum of such values."""
    raise NotImplementedError("compiled code alone")


def item_size(kind: Any) -> int:
    """Bytes of an element."""
    raise NotImplementedError("compiled code alone")


@overload(load, strict=False)
def _load(base: Any, index: Any, kind: Any, held: Any) -> Any:
    read, cast = LOADS[_name(kind)], held
    return lambda base, index, kind, held: cast(read(base, index))


@overload(store, strict=False)
def _store(base: Any, index: Any, value: Any, kind: Any, held: Any) -> Any:
    write, cast = STORES[_name(kind)], held
    return lambda base, index, value, kind, held: write(base, index, cast(value))


def wide(held: Any) -> Any:
    """The type of sums of values of a type."""
    return _WIDE.get(held, held)


@overload(sum_size, strict=False)
def _sum_size(held: Any) -> Any:
    size = wide(held).bitwidth // 8
    return lambda held: size


@overload(item_size, strict=False)
def _item_size(kind: Any) -> Any:
    size = SIZES[_name(kind)]
    return lambda kind: size


@overload(load_sum, strict=False)
def _load_sum(base: Any, index: Any, held: Any) -> Any:
    read = LOADS[str(wide(held))]
    return lambda base, index, held: read(base, index)


@overload(store_sum, strict=False)
def _store_sum(base: Any, index: Any, value: Any, held: Any) -> Any:
    write, cast = STORES[str(wide(held))], wide(held)
    return lambda base, index, value, held: write(base, index, cast(value))
