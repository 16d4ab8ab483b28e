"""`weft.jax.einsum`: any number of arrays, pair by pair, in the types that networks keep intermediates in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import opt_einsum
import torch

from weft.algebra import find
from weft.api.einsum import lone, read_einsum, read_order
from weft.base.describe import describe_many
from weft.compiled.letters import letters, spelled_equation
from weft.errors import ArgumentError, DTypeError, UnsupportedError, call_context
from weft.jax.contraction import check_keywords, contract
from weft.jax.operation import name_of, said_keywords, spec_of
from weft.jax.whole import network
from weft.plans.intermediates import EXACT, intermediate_type, is_of_halves, step_changes
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, storage_type
from weft.spec.notation import Notation, expand
from weft.spec.type_names import read_dtype

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
        return _of_many(spelled, values, read_order(optimize), keywords)


def _of_one(notation: Notation, spelled: str, x: Any, keywords: Mapping[str, Any]) -> Any:
    """One array: moved where nothing is computed; else against a one, with which other algebras do not combine it."""
    if set(notation.inputs[0]) == set(notation.output) and not any(value is not None for value in keywords.values()):
        return jnp.einsum(spelled, x)
    algebra = find(keywords.get("algebra", "plus_times"))
    words = keywords if algebra is None else {**keywords, "algebra": lone(algebra)}
    return contract(spelled.replace("->", ",->"), x, jnp.ones((), x.dtype), **words)


def _of_many(spelled: str, values: list[Any], order: Any, keywords: Mapping[str, Any]) -> Any:
    inputs, output = spelled.split("->")
    terms, shapes = inputs.split(","), [each.shape for each in values]
    types = _Types([spec_of(each).dtype for each in values], said_keywords(keywords, values))
    path, _ = opt_einsum.contract_path(spelled, *shapes, shapes=True, optimize=order)
    for places in path:
        group = [(terms.pop(at), values.pop(at)) for at in sorted(places, reverse=True)]
        while len(group) > 1:
            (first, x), (second, y), *group = group
            last = not terms and not group
            needed = {*output, *"".join(terms), *"".join(term for term, _ in group)}
            left = output if last else "".join(dict.fromkeys(label for label in first + second if label in needed))
            words = {**keywords, **types.of_step(spec_of(x).dtype, spec_of(y).dtype, last)}
            group.insert(0, (left, contract(f"{first},{second}->{left}", x, y, **words)))
        terms.append(group[0][0])
        values.append(group[0][1])
    return values[0]


class _Types:
    """The types of intermediates and of the result, as `weft.network` has them."""

    def __init__(self, given: Sequence[torch.dtype], keywords: Mapping[str, Any]) -> None:
        for dtype in given:
            if dtype in NEEDS_OUT_DTYPE:
                raise DTypeError(
                    f"{len(given)} arrays, one of them {dtype_name(dtype)}: intermediate results do not fit their "
                    "type; convert the arrays, or contract two at a time"
                )
        self._asked, self._accumulate = (
            None if keywords.get(name) is None else read_dtype(name, keywords[name])
            for name in ("out_dtype", "accumulate")
        )
        self._promote = bool(keywords.get("promote", False))
        self._halves = is_of_halves(given) and self._accumulate is None and keywords.get("precision") in EXACT
        self._result = self._asked or reduce(self._common, given)

    def _common(self, a: torch.dtype, b: torch.dtype) -> torch.dtype:
        return storage_type(a, b, False, self._promote)

    def of_step(self, a: torch.dtype, b: torch.dtype, last: bool) -> dict[str, Any]:
        """Keywords of a step whose operands have these types."""
        changes = step_changes(a, b, self._halves)
        own = storage_type(a, b, False, self._promote or changes.get("promote", False))
        kept = self._result if last else intermediate_type(own, self._asked, self._accumulate)
        return {**changes, "out_dtype": name_of(kept)}
