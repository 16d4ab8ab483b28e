"""Lines of one emitted function while it is written, and what the lowerings of its operations ask for.

What depends on the language (names of types, constants, casts) a writer of that language says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import torch
from torch import fx

HALF_TYPES = (torch.float16, torch.bfloat16)
#: Floating types of one and two bytes, whose values are held as float32.
SHORT = (*HALF_TYPES, torch.float8_e4m3fn, torch.float8_e5m2)
#: The type by way of which torch converts floating numbers to a narrow integer type, on CPUs and on GPUs alike.
WRAPS_FROM = {torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int64}


@lru_cache
def past_e4m3() -> int:
    """Bits of what torch makes of numbers past the largest float8_e4m3fn: NaN in older versions, that one in newer."""
    return int(torch.tensor([torch.inf], device="cpu").to(torch.float8_e4m3fn).view(torch.uint8).item())


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` are held in inside an emitted function."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


class Writer(ABC):
    """Names, constants and casts of an emitted function, each written once."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[fx.Node, str] = {}
        self._held: dict[fx.Node, torch.dtype] = {}  # the dtype that a named value is held in
        self._known: dict[fx.Node, torch.Tensor] = {}  # values that depend on no input
        self._casts: dict[tuple[str, torch.dtype], str] = {}
        self._constants: dict[tuple[str, torch.dtype], str] = {}
        self._count = 0
        self._remark = ""
        self.rounded: torch.dtype | None = None  # the dtype that torch gives the value that is being written

    def let(self, expression: str) -> str:
        """Give the expression a name."""
        name = self._fresh()
        self._line(f"{name} = {expression}" + (f"  # {self._remark}" if self._remark else ""))
        return name

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        """A name for the expression, of that type."""
        return self.let(expression)

    def operand(self, value: Any, dtype: torch.dtype) -> str:
        """Name of a node's value or of a Python number, as `dtype`; a name that a lowering made stays as it is."""
        if isinstance(value, str):
            return value
        if not isinstance(value, fx.Node):
            return self.constant(value, dtype)
        if value in self._known:
            return self.constant(self.number(value), dtype)
        name, held = self._names[value], self._held[value]
        if held == dtype:
            return name
        if (name, dtype) not in self._casts:
            self._casts[name, dtype] = self._cast(name, held, dtype)
        return self._casts[name, dtype]

    def number(self, value: Any) -> Any:
        """The number of a value that is known without any input, else None."""
        if isinstance(value, fx.Node):
            return self._known[value].item() if value in self._known else None
        return None if isinstance(value, str) else value

    def compared(self, value: Any, common: torch.dtype) -> str:
        """An operand of a comparison in torch's common dtype: numbers are rounded to it, as torch rounds them."""
        if common == torch.bool:
            return self.operand(value, torch.int8)  # true is -1 to a signed comparison of single bits
        if self.number(value) is not None:
            value = representable(self.number(value), common)
        return self.operand(value, computing(common))

    def common(self, *values: Any) -> torch.dtype:
        """The dtype that torch promotes the operands to."""
        stand_ins = [
            torch.empty((() if value.meta["scalar"] else (1,)), dtype=value.meta["dtype"], device="meta")
            if isinstance(value, fx.Node)
            else value
            for value in values
        ]
        if len(stand_ins) == 1:
            return stand_ins[0].dtype
        return torch.result_type(*stand_ins)

    def define(self, node: fx.Node, name: str) -> None:
        """The value of a node, in the type that it is computed in."""
        self._names[node], self._held[node] = name, computing(node.meta["dtype"])

    def held(self, node: fx.Node) -> torch.dtype:
        """The dtype that a node's value is held in."""
        return self._held.get(node, computing(node.meta["dtype"]))

    def know(self, node: fx.Node, value: torch.Tensor) -> None:
        """The value of a node that depends on no input."""
        self._known[node] = value

    def knows(self, node: fx.Node) -> bool:
        return node in self._known

    def known(self, node: fx.Node) -> torch.Tensor:
        return self._known[node]

    @property
    def lines(self) -> list[str]:
        """All lines that are written, without indentation."""
        return [line.strip() for line in self._lines]

    def cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        """A value as another type; short ones are rounded to and held as float32."""
        return name if held == dtype else self._cast(name, held, dtype)

    @abstractmethod
    def type(self, dtype: torch.dtype) -> str:
        """The language's name of a dtype. `UnsupportedError` where it has none."""

    @abstractmethod
    def constant(self, number: Any, dtype: torch.dtype) -> str:
        """A 0-d constant of exactly that dtype and of the nearest value that it has."""

    @abstractmethod
    def _cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        """A value that is held in one dtype as another."""

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _line(self, text: str) -> None:
        self._lines.append(f"    {text}\n")


def representable(number: Any, dtype: torch.dtype) -> Any:
    """The number as `dtype` holds it: nearest for floats, wrapped for integers."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    bits = dtype.itemsize * 8
    wrapped = int(number) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype.is_signed and wrapped >> (bits - 1) else wrapped
