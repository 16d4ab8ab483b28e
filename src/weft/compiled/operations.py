"""`torch.ops.weft`: the operations, what they do, and what torch knows of their results.

`contract(call, tensors, alpha, beta)` has A, B, C where there is one, and the operands of functions among its tensors;
`call` is a text (`weft.compiled.text`) of what runs it. It returns all results. `contract_out` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from weft.base.arrays import dispatch_modes, is_transforming, without_memory
from weft.compiled import cascades
from weft.compiled.text import read
from weft.errors import UnsupportedError

Tensors = list[torch.Tensor]
_TENSORS = "str call, Tensor[] tensors, Scalar alpha, Scalar beta"

library = torch.library.Library("weft", "DEF")


class _Operation(NamedTuple):
    """An operation: its schema, and methods of what a text describes."""

    schema: str
    run: str
    made: str  # empty tensors as the results will be, or a check of the places for them
    derived: str | Callable[..., Any] | None  # the results, differentiable
    undefined: str = "out= has no derivative: leave it out where an operand requires a gradient"


_OPERATIONS = {
    "contract": _Operation(f"({_TENSORS}) -> Tensor[]", "run", "results", "run"),
    "contract_out": _Operation(f"({_TENSORS}, Tensor(a!)[] out) -> ()", "run", "check_out", None),
    "permute": _Operation(f"({_TENSORS}, SymInt[] extents) -> Tensor", "run", "results", "derived"),
    "permute_out": _Operation(f"({_TENSORS}, SymInt[] extents, Tensor(a!) out) -> ()", "run", "check_out", None),
    "cascade": _Operation("(str call, Tensor[] tensors) -> Tensor[]", "run", "results", cascades.derived),
    "cascade_backward": _Operation(
        "(str call, Tensor[] tensors, Tensor?[] grads, int[] wanted) -> Tensor[]",
        "gradients", "gradient_results", None,
        "gradients of a cascade in compiled code have no gradients: take them outside of it",
    ),
}  # fmt: skip


def _calls(method: str, returns: bool) -> Callable[..., Any]:
    """A method of what a text describes, of an operation's arguments."""

    def call(text: str, *arguments: Any) -> Any:
        found = getattr(read(text), method)(*arguments)
        return found if returns else None

    return call


def _derives(operation: _Operation) -> Callable[..., Any]:
    """The kernel where a gradient is requested."""

    def refused(*_: Any) -> Any:
        raise UnsupportedError(operation.undefined)

    found = refused if operation.derived is None else operation.derived
    return _calls(found, True) if isinstance(found, str) else found


def _with_autograd(name: str, body: Any, differentiable: Any) -> Any:
    """The kernel of autograd for an operation: nothing, or the public call, which knows its derivative.

    The public call is made of the same operations, by then without autograd: so a tracer sees its steps, and those of
    the backward pass.
    """
    overload = getattr(torch.ops.weft, name).default

    def operation(call: str, tensors: Tensors, *others: Any) -> Any:
        asked, plain = torch.is_grad_enabled(), not (dispatch_modes() or is_transforming())
        for tensor in tensors:  # no generators: this is read at every call of compiled code
            if asked and tensor.requires_grad:
                return differentiable(call, tensors, *others)
            plain = plain and (type(tensor) is torch.Tensor or not without_memory(tensor)) and not tensor.is_meta
        if plain:
            found = body(call, tensors, *others)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                found = overload(call, tensors, *others)
        if found is None:
            torch.autograd.graph.increment_version(others[-1])
        return found

    return operation


for _name, _found in _OPERATIONS.items():
    _returns = not _found.schema.endswith("()")
    _body = _calls(_found.run, _returns)
    _derived = _derives(_found)
    library.define(_name + _found.schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(_name, _body, "CompositeExplicitAutograd")
    library.impl(_name, _with_autograd(_name, _body, _derived), "Autograd")
    library.impl(_name, _derived, "FuncTorchDynamicLayerFrontMode")  # transforms of torch.func, as calls know them
    torch.library.register_fake(f"weft::{_name}", _calls(_found.made, _returns), lib=library)

CONTRACT = torch.ops.weft.contract.default
CONTRACT_OUT = torch.ops.weft.contract_out.default
PERMUTE = torch.ops.weft.permute.default
PERMUTE_OUT = torch.ops.weft.permute_out.default
CASCADE = torch.ops.weft.cascade.default
