"""`chain`: a tensor between two matrices."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain as chain_of
from typing import Any, overload

from weft.api.keywords import Equation, signed
from weft.base.arguments import describe_call
from weft.base.arrays import Array, as_result, as_tensor, returned
from weft.base.dispatch import outside_graphs
from weft.errors import DTypeError, NotationError, ShapeError, call_context
from weft.networks.public import einsum
from weft.plans.keywords import refuse_unknown
from weft.spec import parse
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.memory import share_memory
from weft.spec.notation import Term, expand, from_sequences, terms_of


@overload
def chain(equation: Equation, g: Array, x: Any, m: Any, **keywords: Any) -> Array: ...
@overload
def chain(equation: Equation, g: Any, x: Any, m: Any, **keywords: Any) -> Any: ...
@signed("chain", ("equation", "g", "x", "m"))
@outside_graphs
def chain(equation: Any, g: Any, x: Any, m: Any, **keywords: Any) -> Any:
    """A tensor between two matrices: ``chain("pq,bqc,cr->bpr", g, x, m)``, the update of two sites of a tensor network.

    `equation`: text or four sequences of labels. The first and the last operand share labels with the middle one and
    the result alone. `out`: where the result goes. `out_dtype`, `precision`, `accumulate`, `backend`, `specialize` as
    for `contract`.

    It is what `weft.einsum` makes of it: two contractions along the cheaper path, and intermediates of float16 in
    float32.

    Returns the kind of array that `g` is. Raises what `contract` raises, and `NotationError` for what is no chain.

    >>> import torch, weft
    >>> weft.chain("pq,bqc,cr->bpr", torch.ones(2, 3), torch.ones(4, 3, 5), torch.ones(5, 6)).shape
    torch.Size([4, 2, 6])
    """
    with call_context(lambda: describe_call("chain", equation, g=g, x=x, m=m, out=keywords.get("out"))):
        tensors = [as_tensor(name, value) for name, value in (("g", g), ("x", x), ("m", m))]
        for tensor in tensors:
            if tensor.dtype in FP8:
                kind = dtype_name(tensor.dtype)
                raise DTypeError(f"a chain with {kind}: the product of two operands does not fit it; convert them")
        if not isinstance(equation, str):
            equation = terms_of(equation)
        *terms, output = _terms(equation, tuple([tensor.dim() for tensor in tensors]))
        refuse_unknown("chain", keywords)
        out = keywords.pop("out", None)
        if out is not None:
            target = keywords["out"] = as_result(out)
            if any(share_memory(target, tensor) for tensor in tensors):
                raise ShapeError("out overlaps an operand in memory: the result would overwrite what is to be read")
        if isinstance(equation, str):
            result = einsum(equation, *tensors, **keywords)
        else:
            result = einsum(*chain_of.from_iterable(zip(tensors, terms, strict=True)), output, **keywords)
    return returned(g, out, result, False)


@lru_cache(maxsize=256)
def _terms(equation: Any, ranks: tuple[int, ...]) -> tuple[Term, ...]:
    """The terms of a chain of operands of these ranks, the result's last; `NotationError` names the label which no
    chain has."""
    notation = parse(equation) if isinstance(equation, str) else from_sequences(*equation)
    if len(notation.inputs) != 3:
        raise NotationError(f"a chain has three operands, '{notation}' names {len(notation.inputs)}")
    notation = expand(notation, ranks)
    first, middle, last = notation.inputs
    for label in notation.output:
        if (label in first or label in last) and (label in middle or (label in first and label in last)):
            raise NotationError(f"label '{label}' is in two operands and the result of '{notation}': no chain has it")
    kept = {label for label in notation.output if label not in first and label not in last}
    summed = [label for label in (*first, *last) if label not in notation.output]
    for label in (*summed, *middle):
        if (label in first) + (label in middle) + (label in last) + (label in kept) != 2:
            raise NotationError(f"label '{label}' of '{notation}' is neither summed between neighbours nor kept")
    return (*notation.inputs, notation.output)
