"""Write a recorded graph as the source text of one `@triton.jit` function.

Every value is one line. Values of float16, bfloat16 and fp8 are held in float32 and rounded to their own dtype only
at explicit casts and at the end, so a fused function is more exact than torch's eager chain of rounded steps; all
other dtypes compute as themselves, integers wrapping. What only picks among float16 values (`relu`), one of them as it
came, and goes nowhere else picks among them in float16: nothing is rounded there but what would be, and two fit one
instruction. So do two values of an ELU, in either half precision. Constants are written with their type and to the last
bit.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.triton.lowering_exp import HALF_TYPES
from weft.fn.triton.lowering_select import LOWERINGS

_TRITON_TYPES = {
    torch.bool: "int1",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float8_e4m3fn: "float8e4nv",
    torch.float8_e5m2: "float8e5",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_PICKING = frozenset({"aten::clamp_min", "aten::clamp_max", "aten::clamp", "aten::maximum", "aten::minimum"})
_NARROW_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.uint16})


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` are held in inside an emitted function."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def emit(graph: fx.Graph) -> str:
    """Source of one function of the graph's inputs in order, named `fused_` and a digest of its own text.

    The text refers to `triton`, `tl`, `libdevice` and `device_math` and to nothing else. Raises `UnsupportedError` for
    complex values, which Triton does not have.
    """
    if any(node.meta["dtype"].is_complex for node in graph.nodes if node.op != "output"):
        raise UnsupportedError("functions of complex values do not run on the Triton backend yet")
    with torch._C._DisableAutocast():
        body = Writer().run(graph)
    parameters = ", ".join(node.target for node in graph.nodes if node.op == "placeholder")
    digest = hashlib.sha256(f"{parameters}\n{body}".encode()).hexdigest()[:16]
    return f"@triton.jit\ndef fused_{digest}({parameters}):\n{body}"


class Writer:
    """Lines of an emitted function, and what the lowerings ask of it."""

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

    def run(self, graph: fx.Graph) -> str:
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        narrow = narrow_nodes(graph)
        for node in graph.nodes:
            self._remark = str(node.target).rpartition(".")[0]
            if node.op == "placeholder":
                self._names[node], self._held[node] = str(node.target), node.meta["dtype"]
            elif node.op == "call_function" and not self._fold(node):
                self.rounded = node.meta["dtype"]
                lowering = LOWERINGS[node.target._schema.name.removeprefix("aten::")]
                self._held[node] = node.meta["dtype"] if node in narrow else computing(node.meta["dtype"])
                text = lowering(self, self._held[node], *node.args, **node.kwargs)
                self._names[node] = text if text.isidentifier() else self.let(text)
        (result,) = next(node for node in graph.nodes if node.op == "output").args
        self._remark = ""
        results = [self._returned(node, inputs) for node in (result if isinstance(result, tuple) else (result,))]
        trailing = "," if isinstance(result, tuple) and len(results) == 1 else ""
        self._line(f"return {', '.join(results)}{trailing}")
        return "".join(self._lines)

    def _fold(self, node: fx.Node) -> bool:
        """Compute a value that depends on no input here and now, by torch."""
        name = node.target._schema.name  # type: ignore[union-attr]
        if name == "aten::full_like":
            self._known[node] = torch.full((1,), node.args[1], dtype=node.meta["dtype"], device="cpu")  # type: ignore[arg-type]
        elif all(source in self._known for source in node.all_input_nodes):
            arguments = fx.map_arg((node.args, node.kwargs), self._known.__getitem__)
            self._known[node] = node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
        return node in self._known

    def _returned(self, node: fx.Node, inputs: list[fx.Node]) -> str:
        """The value in its own dtype and in the shape that all inputs have together, whichever of them it reads."""
        dtype = node.meta["dtype"]
        held = self._held.get(node, computing(dtype))
        name = self.operand(node, held)
        if held != dtype:
            name = self.let(f"{name}.to({self.type(dtype)})")
        read = self._sources(node)
        for unread in (entry for entry in inputs if entry not in read):
            spread = self._fresh()
            self._line(f"{spread}, _ = tl.broadcast({name}, {unread.target})")
            name = spread
        return name

    def _sources(self, node: fx.Node) -> set[fx.Node]:
        """What enters a value, itself and inputs included."""
        found: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if current not in found and current not in self._known:
                found.add(current)
                waiting += current.all_input_nodes
        return found

    # -- what lowerings ask for ----------------------------------------------------------------------------------

    def let(self, expression: str) -> str:
        """Give the expression a name."""
        name = self._fresh()
        self._line(f"{name} = {expression}" + (f"  # {self._remark}" if self._remark else ""))
        return name

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
        """What a value is where that is known without any input, else None."""
        if isinstance(value, fx.Node):
            return self._known[value].item() if value in self._known else None
        return None if isinstance(value, str) else value

    def compared(self, value: Any, common: torch.dtype) -> str:
        """An operand of a comparison in torch's common dtype: numbers are rounded to it, as torch rounds them."""
        if common == torch.bool:
            return self.operand(value, torch.int8)  # true is -1 to a signed comparison of single bits
        if self.number(value) is not None:
            value = _representable(self.number(value), common)
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

    def type(self, dtype: torch.dtype) -> str:
        """Triton's name of a dtype."""
        if dtype not in _TRITON_TYPES:
            raise UnsupportedError(f"{dtype} inside a function does not run on the Triton backend")
        return f"tl.{_TRITON_TYPES[dtype]}"

    def constant(self, number: Any, dtype: torch.dtype) -> str:
        """Name of a 0-d constant of exactly that dtype and of the nearest value that it has.

        A literal alone would be float32 to Triton, and +0.0 for -0.0: what that changes is written by its bits.
        """
        value = _representable(number, dtype)
        key = (repr(value), dtype)
        if key not in self._constants:
            literal = self._literal(value, dtype)
            remark, self._remark = self._remark, repr(value) if "bitcast" in literal else ""
            self._constants[key] = self.let(f"tl.cast({literal})")
            self._remark = remark
        return self._constants[key]

    # ------------------------------------------------------------------------------------------------------------

    def _literal(self, value: Any, dtype: torch.dtype) -> str:
        kind = self.type(dtype)
        if not isinstance(value, float):
            return f"{value!r}, {kind}"
        if not math.isfinite(value):
            return f'float("{value!r}"), {kind}'
        if (value == 0 and math.copysign(1, value) > 0) or _is_normal_float32(value):
            return f"{value!r}, {kind}"
        packed = struct.pack({torch.float64: "<d", torch.float16: "<e"}.get(dtype, "<f"), value)
        pattern = int.from_bytes(packed[-dtype.itemsize :], "little", signed=True)  # bfloat16: the high half of float32
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return f"tl.cast({pattern}, {self.type(bits)}), {kind}, bitcast=True"

    def _cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.let(f"{name} != {self.constant(0, held)}")
        if held.is_floating_point and dtype in _NARROW_INTEGERS:
            # To 32 bits first: beyond its range the direct conversion is undefined on a GPU, while this one wraps.
            name = self.let(f"{name}.to(tl.int32)")
        return self.let(f"{name}.to({self.type(dtype)})")

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _line(self, text: str) -> None:
        self._lines.append(f"    {text}\n")


def narrow_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Operations that compute in half precision themselves: what they are made of has it, and so has their result."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and (_picks(node, found) or _is_elu(node, found)):
            found.add(node)
    for node in reversed(list(graph.nodes)):
        if any(user.op != "output" and user not in found for user in node.users):
            found.discard(node)
    return found


def _picks(node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether an operation picks among float16 values, one at most that is to be rounded first, and numbers that
    float16 has."""
    if node.target._schema.name not in _PICKING or node.meta["dtype"] != torch.float16:  # type: ignore[union-attr]
        return False
    tensors = node.all_input_nodes
    computed = [each for each in tensors if each.op != "placeholder" and each not in found]
    numbers = [each for each in (*node.args, *node.kwargs.values()) if isinstance(each, (bool, int, float))]
    return (
        len(computed) < min(len(tensors), 2)
        and all(each.meta["dtype"] == torch.float16 for each in tensors)
        and all(number == _representable(number, torch.float16) for number in numbers)
    )


def _is_elu(node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether an operation is an ELU, without factors, of a value in half precision."""
    if node.target._schema.name != "aten::elu" or node.meta["dtype"] not in HALF_TYPES:  # type: ignore[union-attr]
        return False
    (value,) = node.all_input_nodes
    factors = (*node.args[1:], *node.kwargs.values())
    return all(factor == 1 for factor in factors) and (value.op == "placeholder" or value in found)


def _representable(number: Any, dtype: torch.dtype) -> Any:
    """The number as `dtype` holds it: nearest for floats, wrapped for integers."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    bits = dtype.itemsize * 8
    wrapped = int(number) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype.is_signed and wrapped >> (bits - 1) else wrapped


def _is_normal_float32(value: float) -> bool:
    if not 2.0**-126 <= abs(value) < 2.0**128:
        return False
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] == value
    except OverflowError:
        return False
