"""`alpha` and `beta` as tensors: they are operands of the epilogue then, and have gradients as those have.

    D = epilogue(alpha * acc + beta * c_fn(C))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.api.entry import contraction
from weft.api.lookup import Terms, read_notation
from weft.base.arguments import check_dimensions, is_zero
from weft.base.arrays import as_tensor
from weft.engine.ways import Arguments
from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.fn.binding import naming, parameters
from weft.planner.options import Options
from weft.spec.notation import expand


def with_factors(equation: Terms, call: Arguments, options: Options, return_arg: bool, validate: bool) -> Any:
    """The result of `weft.contract` where one of the factors is a tensor of no dimensions."""
    a, b, c, out, alpha, beta, _ = call
    if options.algebra is not None:
        raise DTypeError("alpha and beta scale sums of products: other algebras have no such factors")
    if return_arg:
        raise UnsupportedError("return_arg is for algebras that select, which have no factors")
    if c is None and isinstance(beta, torch.Tensor):
        raise ShapeError("beta is a tensor and has no c to multiply: pass c")
    operands: dict[str, Any] = dict(options.operands)
    factors = []
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, torch.Tensor):
            value = as_tensor(name, value)
            check_dimensions(name, value)
            operands[f"weft_{name}"] = ("", value.to(a.device))
        factors.append(None if isinstance(value, torch.Tensor) else value)
    if c is not None:
        output = expand(read_notation(equation), (a.dim(), b.dim())).output
        operands["weft_c"] = (output, c.clone() if c is out else c)
    _, _, c_fn, epilogue = options.functions
    scaled = _scaled(factors, c_fn, epilogue, (*options.operands, *options.indices), c is not None)
    asked = replace(options.having(c_fn=None, epilogue=scaled), operands=operands)
    return contraction(equation, a, b, asked, out=out, validate=validate)


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
    return naming(dict.fromkeys(("value", *places, *own[0], *own[1])), scaled)


def _times(factor: Any, value: torch.Tensor) -> torch.Tensor:
    """A factor of 0 leaves nothing of NaN and infinity; its derivative is the value, where that is finite."""
    if is_zero(factor):
        return torch.zeros_like(value)
    if isinstance(factor, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        value = torch.where((factor == 0) & (value - value != 0), 0, value)
    return value * factor
