"""`chain`: a tensor between two matrices."""

from __future__ import annotations

from itertools import chain as chain_of
from typing import Any, overload

import torch

from weft.api.keywords import Equation, signed
from weft.base.arrays import Array, as_result, as_tensor, returned
from weft.base.describe import describe_call
from weft.base.dispatch import outside_graphs
from weft.engine.calls import CALLS, present
from weft.errors import DTypeError, NotationError, ShapeError, call_context
from weft.networks.public import einsum
from weft.plans.checks import check_storage
from weft.plans.keywords import read_options
from weft.spec import Notation, parse
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.memory import share_memory
from weft.spec.notation import expand, from_sequences, terms_of


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
    out = keywords.get("out")
    with call_context(lambda: describe_call("chain", equation, g=g, x=x, m=m, out=out)):
        target = None if out is None else as_result(out)
        if not isinstance(equation, str):
            equation = terms_of(equation)
        said = read_options("chain", keywords, target).said()
        words, given = present(("chain", equation, said), g, x, None, target, (m,))
        checked, place = (None, None) if said is None else CALLS.find(words, given)
        tensors = [g, x, m]
        if checked is None:
            tensors = [as_tensor(name, value) for name, value in (("g", g), ("x", x), ("m", m))]
            _check(_read(equation), tensors)
            CALLS.keep(place, given, True)
        if target is not None and any(share_memory(target, tensor) for tensor in tensors):
            raise ShapeError("out overlaps an operand in memory: the result would overwrite what is to be read")
        if target is not None:
            keywords["out"] = target
        if isinstance(equation, str):
            result = einsum(equation, *tensors, **keywords)
        else:
            *terms, output = equation
            result = einsum(*chain_of.from_iterable(zip(tensors, terms, strict=True)), output, **keywords)
    return returned(g, out, result, False)


def _check(notation: Notation, tensors: list[torch.Tensor]) -> None:
    """Raises for what is no chain, and for operands that do not fit one."""
    for name, tensor in zip(("g", "x", "m"), tensors, strict=True):
        check_storage(name, tensor)
        if tensor.dtype in FP8:
            kind = dtype_name(tensor.dtype)
            raise DTypeError(f"a chain with {kind}: the product of two operands does not fit it; convert them")
    notation = expand(notation, [tensor.dim() for tensor in tensors])
    _check_labels(notation)
    mode_extents(notation, [tensor.shape for tensor in tensors])


def _check_labels(notation: Notation) -> None:
    """Raises `NotationError` that names the label which no chain has."""
    first, middle, last = notation.inputs
    for label in notation.output:
        if (label in first or label in last) and (label in middle or (label in first and label in last)):
            raise NotationError(f"label '{label}' is in two operands and the result of '{notation}': no chain has it")
    kept = {label for label in notation.output if label not in first and label not in last}
    summed = [label for label in (*first, *last) if label not in notation.output]
    for label in (*summed, *middle):
        if (label in first) + (label in middle) + (label in last) + (label in kept) != 2:
            raise NotationError(f"label '{label}' of '{notation}' is neither summed between neighbours nor kept")


def _read(equation: Any) -> Notation:
    notation = parse(equation) if isinstance(equation, str) else from_sequences(*equation)
    if len(notation.inputs) != 3:
        raise NotationError(f"a chain has three operands, '{notation}' names {len(notation.inputs)}")
    return notation
