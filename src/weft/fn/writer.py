"""Lines of emitted code while it is written, and what the lowerings of its operations ask for.

What depends on the language (names of types, constants, casts, choices) a writer of that language says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import fx

from weft.base.figures import dtype_name

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


class Held(NamedTuple):
    """A value in emitted code: its name, and the torch type that it has; loop bodies hold half types as float32."""

    name: str
    dtype: torch.dtype


class Writer(ABC):
    """Names, constants and casts of emitted code, each written once, and the expressions that languages differ in.

    In those, `t` is the type that an operation computes in, `x` and `y` are its operands, and texts are values of that
    type.
    """

    language: str  # the column of `weft.fn.operations`
    where: str  # as refusals say it: "for the CPU"
    of_complex: frozenset[str] = frozenset()  # the operations that take complex values

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[fx.Node, Held] = {}
        self.known: dict[fx.Node, torch.Tensor] = {}  # values that depend on no input
        self.rounded: torch.dtype | None = None  # the dtype that torch gives the value that is being written
        self._casts: dict[tuple[str, torch.dtype], str] = {}
        self._count = 0

    # -- lines -----------------------------------------------------------------------------------------------------

    def let(self, expression: str) -> str:
        """Give the expression a name."""
        name = self.fresh()
        self.line(f"{name} = {expression}")
        return name

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        """A name for the expression, of that type."""
        return self.let(expression)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"v{self._count - 1}"

    # -- values ----------------------------------------------------------------------------------------------------

    def take(self, node: fx.Node, value: Held) -> None:
        """An input of a graph, in the type that it is computed in."""
        kind = computing(node.meta["dtype"])
        self.values[node] = Held(self.cast(value.name, value.dtype, kind), kind)

    def computes(self, node: fx.Node) -> torch.dtype:
        """The type that an operation computes in."""
        return computing(node.meta["dtype"])

    def operand(self, value: Any, dtype: torch.dtype) -> str:
        """Name of a node's value or of a Python number, as `dtype`; a name that a lowering made stays as it is."""
        if isinstance(value, str):
            return value
        if not isinstance(value, fx.Node):
            return self.constant(value, dtype)
        if value in self.known:
            return self.constant(self.number(value), dtype)
        name, held = self.values[value]
        if held == dtype:
            return name
        if (name, dtype) not in self._casts:
            self._casts[name, dtype] = Writer.cast(self, name, held, dtype)  # in bodies no operand is of a short type
        return self._casts[name, dtype]

    def number(self, value: Any) -> Any:
        """The number of a value that is known without any input, else None."""
        if isinstance(value, fx.Node):
            return self.known[value].item() if value in self.known else None
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

    def cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        """A value that is held in one type as another."""
        if held == dtype:
            return name
        if dtype == torch.bool:
            return self.typed(f"{name} != {self.zero(held)}", dtype)
        if held.is_floating_point and dtype in WRAPS_FROM:
            name = self.typed(self.converted_to(name, WRAPS_FROM[dtype]), WRAPS_FROM[dtype])
        return self.typed(self.converted_to(name, dtype), dtype)

    # -- the language ----------------------------------------------------------------------------------------------

    @abstractmethod
    def type(self, dtype: torch.dtype) -> str:
        """The language's name of a dtype. `UnsupportedError` where it has none."""

    @abstractmethod
    def constant(self, number: Any, dtype: torch.dtype) -> str:
        """A 0-d constant of exactly that dtype and of the nearest value that it has."""

    def zero(self, dtype: torch.dtype) -> str:
        """The number that values of a type are compared to for their truth."""
        return "0"

    def converted_to(self, name: str, dtype: torch.dtype) -> str:
        """The expression of a value of another type that `typed` gives this one."""
        return name

    @abstractmethod
    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        """A function of floating numbers, by the name that C has for it."""

    def part(self, expression: str) -> str:
        """An expression within another one, which has a name of its own in Triton."""
        return expression

    @abstractmethod
    def select(self, condition: str, x: str, y: str) -> str:
        """x where the condition holds, else y."""

    def quotient(self, t: torch.dtype, x: Any, y: Any) -> str:
        """A quotient of floating numbers, rounded correctly."""
        return f"{self.operand(x, t)} / {self.operand(y, t)}"

    def truncated(self, t: torch.dtype, x: str, y: str) -> str:
        """A quotient of integers, towards zero."""
        return f"{x} / {y}"

    def rest(self, t: torch.dtype, x: str, y: str) -> str:
        """The rest of that division, with the sign of the dividend."""
        return f"{x} % {y}"

    @abstractmethod
    def extremum(self, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        """The larger or the smaller of two values, NaN where one is."""


class BodyWriter(Writer):
    """A writer of loop bodies, where values of short types are held as float32."""

    rounds: bool  # whether the results of functions are rounded to their types

    def cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        """The value as another type; short ones are rounded to and held as float32."""
        if held == dtype:
            return name
        if dtype in SHORT:
            return self.nearest(self.cast(name, held, torch.float32), dtype_name(dtype))
        return super().cast(name, torch.float32 if held in SHORT else held, dtype)

    @abstractmethod
    def nearest(self, name: str, short: str) -> str:
        """A float32, rounded to the short type of that name."""


def representable(number: Any, dtype: torch.dtype) -> Any:
    """The number as `dtype` holds it: nearest for floats, wrapped for integers."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    bits = dtype.itemsize * 8
    wrapped = int(number) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype.is_signed and wrapped >> (bits - 1) else wrapped
