"""`weft.jax.einsum`: any number of arrays, pair by pair, in the types that networks keep intermediates in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import opt_einsum

from weft.algebra import find
from weft.api.einsum import lone, read_einsum, read_order
from weft.base.describe import describe_many
from weft.compiled.letters import letters, spelled_equation
from weft.errors import ArgumentError, DTypeError, UnsupportedError, call_context
from weft.jax.contraction import ContractOperation, check_keywords, contract, read_call
from weft.jax.operation import apply, spec_of
from weft.jax.whole import network
from weft.planner.options import Options
from weft.plans.intermediates import intermediate_type, is_of_halves, step_options
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, storage_type
from weft.spec.notation import Notation, expand

#: Keywords of two arrays, and of no other number.
_OF_TWO = ("a_fn", "b_fn", "epilogue", "operands", "indices", "invariant")


def einsum(equation: Any, *arrays: Any, optimize: Any = "auto", **keywords: Any) -> Any:
    """Einstein summation over any number of arrays of JAX, pair by pair along a path of opt_einsum.

    Keywords are those of `contract`, functions and `invariant` for two arrays alone; NumPy's interleaved form is taken
    as well. It may stand under all of JAX's transformations. Three arrays and more of another algebra are a `network`.

    >>> import jax, weft.jax
    >>> weft.jax.einsum("ab,bc,cd->ad", *[jax.numpy.ones((2, 2))] * 3)[0, 0].item()
    4.0
    """
    check_keywords("jax.einsum", keywords)
    if len(arrays) == 2 and isinstance(equation, (str, tuple)):
        return contract(equation, *arrays, **keywords)
    text = equation if isinstance(equation, str) else "interleaved"
    with call_context(lambda: describe_many("jax.einsum", text, ())):
        notation, given = read_einsum((equation, *arrays))
        values = [jnp.asarray(each) for each in given]
        if not values:
            raise ArgumentError("jax.einsum needs arrays after the equation")
        notation = expand(notation, tuple(each.ndim for each in values))
        mode_extents(notation, [each.shape for each in values])
        names = letters((*notation.inputs, notation.output))
        spelled = spelled_equation(notation, names)
        if len(values) == 2:
            return contract((*notation.inputs, notation.output), *values, **keywords)
        for name in _OF_TWO:
            if keywords.get(name) is not None:
                raise UnsupportedError(f"jax.einsum takes {name} with two arrays alone, {len(values)} are given")
        if len(values) == 1:
            return _of_one(notation, spelled, values[0], keywords)
        if find(keywords.get("algebra", "plus_times")) is not None:
            return network(spelled, *values, optimize=optimize, **keywords)
        return _of_many(spelled, values, read_order(optimize), read_call(keywords, values))


def _of_one(notation: Notation, spelled: str, x: Any, keywords: Mapping[str, Any]) -> Any:
    """One array: moved where nothing is computed; else against a one, with which other algebras do not combine it."""
    if set(notation.inputs[0]) == set(notation.output) and not any(value is not None for value in keywords.values()):
        return jnp.einsum(spelled, x)
    algebra = find(keywords.get("algebra", "plus_times"))
    words = keywords if algebra is None else {**keywords, "algebra": lone(algebra)}
    return contract(spelled.replace("->", ",->"), x, jnp.ones((), x.dtype), **words)


def _of_many(spelled: str, values: list[Any], order: Any, options: Options) -> Any:
    """Pair by pair, in the types that `weft.network` has for intermediates and the result."""
    inputs, output = spelled.split("->")
    terms, types = inputs.split(","), [spec_of(each).dtype for each in values]
    for dtype in types:
        if dtype in NEEDS_OUT_DTYPE:
            raise DTypeError(
                f"{len(types)} arrays, one of them {dtype_name(dtype)}: intermediate results do not fit their "
                "type; convert the arrays, or contract two at a time"
            )
    result = options.out_dtype or reduce(partial(storage_type, promote=options.promote), types)
    halves = is_of_halves(types)
    path, _ = opt_einsum.contract_path(spelled, *[each.shape for each in values], shapes=True, optimize=order)
    for places in path:
        group = [(terms.pop(at), values.pop(at)) for at in sorted(places, reverse=True)]
        while len(group) > 1:
            (first, x), (second, y), *group = group
            last = not terms and not group
            needed = {*output, *"".join(terms), *"".join(term for term, _ in group)}
            left = output if last else "".join(dict.fromkeys(label for label in first + second if label in needed))
            specs = [spec_of(x), spec_of(y)]
            asked = step_options(options, specs[0].dtype, specs[1].dtype, halves)
            own = storage_type(specs[0].dtype, specs[1].dtype, False, asked.promote)
            kept = result if last else intermediate_type(own, options.out_dtype, options.accumulate)
            operation = ContractOperation.of(f"{first},{second}->{left}", specs, replace(asked, out_dtype=kept))
            group.insert(0, (left, apply(operation, x, y)[0]))
        terms.append(group[0][0])
        values.append(group[0][1])
    return values[0]
