"""The identity of a recorded function: its graph and its constants, written canonically."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx


def canonical(graph: fx.Graph) -> str:
    """Text that two recorded graphs share exactly when they compute the same thing in the same way.

    Operations stand in recording order with their overload, arguments and result dtype; values are numbered, so the
    names of functions and parameters leave no trace. Floats are written in hexadecimal, which tells -0.0 from 0.0
    and loses no bit; integers and booleans keep their kind, because torch promotes each differently.
    """
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"return {_argument(node.args[0], numbers)}")
            continue
        numbers[node] = f"%{len(numbers)}"
        if node.op == "placeholder":
            lines.append(f"{numbers[node]}: {_dtype(node.meta['dtype'])}")
            continue
        arguments = [_argument(argument, numbers) for argument in node.args]
        arguments += [f"{key}={_argument(node.kwargs[key], numbers)}" for key in sorted(node.kwargs)]
        lines.append(f"{numbers[node]} = {node.target}({', '.join(arguments)}): {_dtype(node.meta['dtype'])}")
    return "\n".join(lines)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _argument(value: Any, numbers: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_argument(item, numbers) for item in value)})"
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return f"complex({value.real.hex()}, {value.imag.hex()})"
    if isinstance(value, torch.dtype):
        return _dtype(value)
    return repr(value)
