"""Plain values that kernels take besides tensors; Triton takes its own in their place.

So kernels are planned, keyed and loaded without Triton. A constant that is compiled into a kernel is a number, a text,
None, an element type of `TRITON_TYPES`, a function that has a `jit`, or tuples of these. A tensor map stands for a
tensor that is found tile by tile.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import torch

from weft.fn.triton.device_code import jit_function
from weft.spec import Layout


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type, by its name in `triton.language`."""

    name: str

    @property
    def meant(self) -> Any:
        return getattr(import_module("triton.language"), self.name)


TRITON_TYPES = {
    torch.float8_e4m3fn: ElementType("float8e4nv"),
    torch.float8_e5m2: ElementType("float8e5"),
    torch.float16: ElementType("float16"),
    torch.bfloat16: ElementType("bfloat16"),
    torch.float32: ElementType("float32"),
    torch.float64: ElementType("float64"),
    torch.int8: ElementType("int8"),
    torch.uint8: ElementType("uint8"),
    torch.int16: ElementType("int16"),
    torch.int32: ElementType("int32"),
    torch.int64: ElementType("int64"),
    torch.bool: ElementType("int1"),
}


@dataclass(frozen=True, slots=True)
class GluonLayout:
    """A layout of tiles, by its name in Gluon's language and what that takes."""

    name: str
    given: tuple[Any, ...]

    @property
    def meant(self) -> Any:
        layout = getattr(import_module("triton.experimental.gluon.language"), self.name)
        return layout(*map(_as_lists, self.given))


def _as_lists(value: Any) -> Any:
    return list(map(_as_lists, value)) if isinstance(value, tuple) else value


class TensorMap(NamedTuple):
    """A tensor that a kernel reads or writes tile by tile through the tensor memory accelerator."""

    layout: Layout
    block: tuple[int, ...]

    def descriptor(self, tensor: Any) -> Any:
        """The descriptor of `tensor`, which has this layout, as Gluon takes it."""
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        if tensor.dtype != self.layout.dtype:
            tensor = tensor.view(self.layout.dtype)
        return TensorDescriptor(
            tensor, list(self.layout.shape), list(self.layout.strides), list(self.block), self.shared.meant
        )

    @property
    def shared(self) -> GluonLayout:
        """How tiles lie in shared memory: Gluon does not choose it."""
        *_, rows, columns = self.block
        return matrix_layout((rows, columns), True, self.layout.dtype.itemsize, len(self.block))


def matrix_layout(shape: tuple[int, int], along_k: bool, size: int, rank: int = 2) -> GluonLayout:
    """How a tile of so many rows and columns lies in shared memory, its contiguous side as it is in memory.

    Its order is the widest that its lines fill.
    """
    rows, columns = shape
    line = (columns if along_k else rows) * size
    swizzle = next(width for width in (128, 64, 32) if line % width == 0)
    return GluonLayout("NVMMASharedLayout", (swizzle, 8 * size, rank))


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A kernel by its module and name. The module is imported when it is compiled."""

    module: str
    name: str
    made: Any = field(default=None, compare=False)  # what `triton.jit` has made, where that is known already

    @classmethod
    def of(cls, kernel: Any) -> DeviceFunction:
        """`kernel` is one, or what `triton.jit` has made."""
        return kernel if isinstance(kernel, cls) else cls(kernel.fn.__module__, kernel.fn.__name__, kernel)

    @property
    def jit(self) -> Any:
        return self.made if self.made is not None else getattr(import_module(self.module), self.name)


@dataclass(frozen=True, slots=True)
class WrittenFunction:
    """A function of weft's own that kernels take, by its text."""

    source: str

    @property
    def identity(self) -> str:
        return self.source

    @property
    def jit(self) -> Any:
        return jit_function(self.source)


class WholeConstant:
    """A named tuple among a kernel's constants that the compiler hands on in one piece.

    Since 3.8 it takes tuples apart, at every call within a kernel: a schedule has some thousand values, and a kernel
    then takes five times as long to compile. A kernel reads fields as ever.
    """

    __slots__ = ("_fields_of",)

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self._fields_of = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _part(getattr(self._fields_of, name))

    def __getitem__(self, place: int) -> Any:
        return _part(self._fields_of[place])

    def __len__(self) -> int:
        return len(self._fields_of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WholeConstant) and self._fields_of == other._fields_of

    def __hash__(self) -> int:
        return hash(self._fields_of)

    def __repr__(self) -> str:
        return repr(self._fields_of)

    def mangle(self) -> str:
        """The constant's part of the names of functions."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def _part(value: Any) -> Any:
    """A part of a constant, as what it is to the compiler too: a constant."""
    if isinstance(value, tuple):
        value = WholeConstant(value) if hasattr(value, "_fields") else tuple(map(_part, value))
    return import_module("triton.language").constexpr(value)


def whole(value: Any) -> Any:
    """A constant, and named tuples in it in one piece."""
    if isinstance(value, tuple):
        return WholeConstant(value) if hasattr(value, "_fields") else tuple(map(whole, value))
    return value


def meant(value: Any) -> Any:
    """A constant as Triton takes it."""
    if isinstance(value, tuple):
        found = map(meant, value)
        return value._make(found) if hasattr(value, "_make") else tuple(found)
    return value.meant if hasattr(type(value), "meant") else getattr(value, "jit", value)


class UnspelledError(Exception):
    """A constant that no text tells apart from others."""


def spelled(value: Any) -> str:
    """A text that two constants share only if they are the same. `UnspelledError` where there is none."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, ElementType):
        return value.name
    if isinstance(value, GluonLayout):
        return repr(value)
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(map(spelled, value))})"
    identity = getattr(value, "identity", None)
    if isinstance(identity, str):
        return f"function {identity!r}"
    raise UnspelledError(type(value).__name__)


def calls(value: Any) -> bool:
    """Whether a constant is a function, or a tuple with functions in it."""
    if isinstance(value, tuple):
        return any(map(calls, value))
    return hasattr(value, "identity")
