"""`alpha` and `beta` as tensors: they are operands of the epilogue then, and have gradients as those have.

    D = epilogue(alpha * acc + beta * c_fn(C))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.algebra import find
from weft.api.contract import contract
from weft.api.lookup import read_notation
from weft.base.arrays import as_tensor
from weft.base.factors import is_zero
from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.fn.binding import parameters
from weft.planner.options import read_indices, read_operands
from weft.planner.request import HOOKS, Request
from weft.plans.contraction import Plan
from weft.spec.notation import expand


def with_factors(
    equation: Any,
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    keywords: Mapping[str, Any],
    return_arg: bool,
    validate: bool,
) -> Any:
    """The result of `weft.contract` where one of the factors is a tensor of no dimensions."""
    if find(keywords.get("algebra", "plus_times")) is not None:
        raise DTypeError("alpha and beta scale sums of products: other algebras have no such factors")
    if return_arg:
        raise UnsupportedError("return_arg is for algebras that select, which have no factors")
    if c is None and isinstance(beta, torch.Tensor):
        raise ShapeError("beta is a tensor and has no c to multiply: pass c")
    x, y = as_tensor("a", a), as_tensor("b", b)
    own = read_operands(keywords.get("operands"))
    operands: dict[str, Any] = dict(own)
    factors = []
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, torch.Tensor):
            value = as_tensor(name, value)
            if value.dim():
                raise ShapeError(
                    f"{name} has shape {tuple(value.shape)}: a factor is a number, or a tensor of no dimensions"
                )
            operands[f"weft_{name}"] = ("", value.to(x.device))
        factors.append(None if isinstance(value, torch.Tensor) else value)
    if c is not None:
        output = expand(read_notation(equation), (x.dim(), y.dim())).output
        operands["weft_c"] = (output, c.clone() if isinstance(c, torch.Tensor) and c is out else c)
    names = (*own, *read_indices(keywords.get("indices")))
    scaled = _scaled(factors, keywords.get("c_fn"), keywords.get("epilogue"), names, c is not None)
    given = {name: value for name, value in keywords.items() if name not in ("c_fn", "epilogue", "operands")}
    return contract(equation, x, y, epilogue=scaled, operands=operands, out=out, validate=validate, **given)


def _scaled(
    factors: Sequence[Any],
    c_fn: Callable[..., Any] | None,
    epilogue: Callable[..., Any] | None,
    names: tuple[str, ...],
    added: bool,
) -> Callable[..., Any]:
    """The epilogue with the factors, and C, in it."""
    own = [
        tuple(name for name in parameters(fn) or () if name in names) if fn is not None else ()
        for fn in (c_fn, epilogue)
    ]
    alpha, beta = factors

    def scaled(value: torch.Tensor, **given: torch.Tensor) -> Any:
        value = _times(given.get("weft_alpha", alpha), value)
        if added:
            c = given["weft_c"].to(value.dtype)
            if c_fn is not None:
                c = c_fn(c, **{name: given[name] for name in own[0]})
            value = value + _times(given.get("weft_beta", beta), c)
        return value if epilogue is None else epilogue(value, **{name: given[name] for name in own[1]})

    places = [*(["weft_alpha"] if alpha is None else []), *(["weft_beta"] if added and beta is None else [])]
    places += ["weft_c"] if added else []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    every = dict.fromkeys(("value", *places, *own[0], *own[1]))
    scaled.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in every])  # type: ignore[attr-defined]
    return scaled


def _times(factor: Any, value: torch.Tensor) -> torch.Tensor:
    """A factor of 0 leaves nothing of NaN and infinity; its derivative is the value, where that is finite."""
    if is_zero(factor):
        return torch.zeros_like(value)
    if isinstance(factor, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        value = torch.where((factor == 0) & (value - value != 0), 0, value)
    return value * factor


def plan_with_factors(
    plan: Plan, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, operands: Mapping[str, torch.Tensor],
    validate: bool,
) -> Any:  # fmt: skip
    """The same of a plan's call, on tensors that lie as planned: as `weft.contract` of what was planned."""
    request = plan.request
    labels = (*request.notation.inputs, request.notation.output)
    return with_factors(labels, a, b, c, alpha, beta, out, _keywords(request, operands), False, validate)


def _keywords(request: Request, operands: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What `weft.contract` is asked for to do what a plan does."""
    types = request.arithmetic
    terms = {each.name: each.term for each in request.named if each.layout is not None}
    return {
        **dict(zip(HOOKS, request.functions.raw, strict=True)),
        "operands": {name: (terms[name], tensor) for name, tensor in operands.items()},
        "indices": {each.name: each.term[0] for each in request.named if each.layout is None},
        "out_dtype": (request.d_dtype, *request.outputs) if request.outputs else request.d_dtype,
        "precision": types.precision if types.precision != "ieee" else "3m" if types.three else types.product,
        "accumulate": types.accumulate, "algebra": request.raw_algebra or "plus_times", "backend": request.backend,
        "workspace_limit": request.workspace_limit, "tune": request.tune, "specialize": request.specialize,
        "promote": request.promote, "kept_dtype": request.kept,
    }  # fmt: skip
