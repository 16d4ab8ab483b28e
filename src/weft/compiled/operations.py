"""`torch.ops.weft`: the operations, what they do, and what torch knows of their results.

`contract(call, tensors, alpha, beta)` has A, B, C where there is one, and the operands of functions among its tensors;
`call` is the text of `weft.compiled.text`. It returns all results. `contract_out` writes them.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.base.arrays import dispatch_modes, is_transforming, without_memory
from weft.compiled.cascades import read_cascade
from weft.compiled.moves import read_move
from weft.compiled.running import running
from weft.compiled.text import read
from weft.errors import UnsupportedError
from weft.planner.schedule import Scalar

_TENSORS = "str call, Tensor[] tensors, Scalar alpha, Scalar beta"
_SCHEMAS = {
    "contract": f"({_TENSORS}) -> Tensor[]",
    "contract_out": f"({_TENSORS}, Tensor(a!)[] out) -> ()",
    "permute": f"({_TENSORS}, SymInt[] extents) -> Tensor",
    "permute_out": f"({_TENSORS}, SymInt[] extents, Tensor(a!) out) -> ()",
    "cascade": "(str call, Tensor[] tensors) -> Tensor[]",
    "cascade_backward": "(str call, Tensor[] tensors, Tensor?[] grads, int[] wanted) -> Tensor[]",
}
_TAGS = (torch.Tag.pt2_compliant_tag,)

library = torch.library.Library("weft", "DEF")


def _contract(call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar) -> list[torch.Tensor]:
    return running(call)(tensors, alpha, beta, None)


def _contract_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: list[torch.Tensor]
) -> None:
    running(call)(tensors, alpha, beta, tuple(out))


def _fake_contract(call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar) -> list[torch.Tensor]:
    return read(call).results(tensors)


def _fake_contract_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: list[torch.Tensor]
) -> None:
    read(call).check_out(tensors, out)


def _permute(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
) -> torch.Tensor:
    return read_move(call).run(tensors, alpha, beta, extents, None)


def _permute_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor
) -> None:
    read_move(call).run(tensors, alpha, beta, extents, out)


def _fake_permute(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
) -> torch.Tensor:
    return read_move(call).result(tensors, extents)


def _fake_permute_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor
) -> None:
    read_move(call).check_out(tensors, extents, out)


def _differentiable_contract(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar
) -> list[torch.Tensor]:
    return running(call).made(tensors, alpha, beta, None)


def _differentiable_permute(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
) -> torch.Tensor:
    return read_move(call).as_contraction(tensors, alpha, beta, extents)


def _cascade(call: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return read_cascade(call).run(tensors)


def _fake_cascade(call: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return read_cascade(call).results(tensors)


def _cascade_backward(
    call: str, tensors: list[torch.Tensor], grads: list[torch.Tensor | None], wanted: list[int]
) -> list[torch.Tensor]:
    return read_cascade(call).gradients(tensors, grads, wanted)


def _fake_cascade_backward(
    call: str, tensors: list[torch.Tensor], grads: list[torch.Tensor | None], wanted: list[int]
) -> list[torch.Tensor]:
    return [torch.empty(tensors[at].shape, dtype=tensors[at].dtype, device=tensors[at].device) for at in wanted]


def _differentiable_cascade(call: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if is_transforming():
        return read_cascade(call).transformed(tensors)
    if not dispatch_modes() and not any(map(without_memory, tensors)):
        return read_cascade(call).run(tensors)  # which keeps what it has made
    return list(_TracedCascade.apply(call, *tensors))


def _no_second_derivative(call: str, tensors: list[torch.Tensor], *others: Any) -> None:
    raise UnsupportedError("gradients of a cascade in compiled code have no gradients: take them outside of it")


class _TracedCascade(torch.autograd.Function):
    """A cascade and its gradients as two operations, for those who trace."""

    @staticmethod
    def forward(ctx: Any, call: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found = tuple(CASCADE(call, list(tensors)))
        ctx.mark_non_differentiable(*(each for each in found if not each.is_floating_point()))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        wanted = [at for at, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        found = iter(CASCADE_BACKWARD(ctx.call, list(ctx.saved_tensors), list(grads), wanted))
        return (None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:]))


def _no_derivative(call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, *others: Any) -> None:
    raise UnsupportedError("out= has no derivative: leave it out where an operand requires a gradient")


_BODIES: dict[str, tuple[Any, Any, Any]] = {
    "contract": (_contract, _fake_contract, _differentiable_contract),
    "contract_out": (_contract_out, _fake_contract_out, _no_derivative),
    "permute": (_permute, _fake_permute, _differentiable_permute),
    "permute_out": (_permute_out, _fake_permute_out, _no_derivative),
    "cascade": (_cascade, _fake_cascade, _differentiable_cascade),
    "cascade_backward": (_cascade_backward, _fake_cascade_backward, _no_second_derivative),
}


def _with_autograd(name: str, body: Any, differentiable: Any) -> Any:
    """The kernel of autograd for an operation: nothing, or the public call, which knows its derivative.

    The public call is made of the same operations, by then without autograd: so a tracer sees its steps, and those of
    the backward pass.
    """
    overload = getattr(torch.ops.weft, name).default

    def operation(call: str, tensors: list[torch.Tensor], *others: Any) -> Any:
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


for _name, (_body, _fake, _derived) in _BODIES.items():
    library.define(_name + _SCHEMAS[_name], tags=_TAGS)
    library.impl(_name, _body, "CompositeExplicitAutograd")
    library.impl(_name, _with_autograd(_name, _body, _derived), "Autograd")
    library.impl(_name, _derived, "FuncTorchDynamicLayerFrontMode")  # transforms of torch.func, as calls know them
    torch.library.register_fake(f"weft::{_name}", _fake, lib=library)

CONTRACT = torch.ops.weft.contract.default
CONTRACT_OUT = torch.ops.weft.contract_out.default
PERMUTE = torch.ops.weft.permute.default
PERMUTE_OUT = torch.ops.weft.permute_out.default
CASCADE = torch.ops.weft.cascade.default
CASCADE_BACKWARD = torch.ops.weft.cascade_backward.default
