"""`weft.jax.network` and `cascade`: what weft plans as a whole, with the gradients that torch derives of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import torch

from weft.base.arguments import describe_many
from weft.base.arrays import grad_mode
from weft.cascades.described import CascadeNotation
from weft.compiled.cascades import plan_text, spelled_cascade
from weft.engine.memo import Memo
from weft.errors import ArgumentError, UnsupportedError, call_context
from weft.fn.binding import bind
from weft.jax.custom_call import CustomCallSpec, Tensors
from weft.jax.functions import as_torch
from weft.jax.operation import JaxOperation, SaidOperation, by_torch, given_operands, said_keywords, spec_of, widened
from weft.networks.public import network as plan_network
from weft.planner.options import read_indices
from weft.plans.keywords import refuse_unknown
from weft.spec import parse
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import read_dtype
from weft.spec.notation import expand, letters, spelled_equation

_PLANS = Memo("jax: networks", 256)
_TENSORS = "arrays of JAX are its operands, and make its results"
#: Keywords of `weft.network` that are not for arrays of JAX, and why.
_NOT_HERE = {
    "strip_exponent": "it has one result", "reduce": "it has one result", "reuse": "XLA says not which arrays changed",
    "functions": "weft.jax.contract and weft.jax.cascade take functions", "output": "the equation says it",
    **dict.fromkeys(("constants", "dtype", "device"), _TENSORS),
}  # fmt: skip


@dataclass(frozen=True)
class NetworkOperation(JaxOperation):
    """A network of any number of arrays."""

    terms: tuple[str, ...]
    output: str
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def text(self) -> str:  # type: ignore[override]
        return repr(self)

    @property
    def equation(self) -> str:
        return f"{','.join(self.terms)}->{self.output}"

    def plan(self, operands: Sequence[CustomCallSpec], device: Any) -> Any:
        specs = tuple(operands)
        return _PLANS.made((self, specs, device), lambda: _network(self, specs, device))

    def results(self, operands: Sequence[CustomCallSpec]) -> tuple[CustomCallSpec, ...]:
        extents = mode_extents(parse(self.equation), [each.shape for each in operands])
        asked = dict(self.keywords).get("out_dtype")
        dtype = operands[0].dtype if asked is None else read_dtype("out_dtype", asked)
        return (CustomCallSpec(tuple(extents[label] for label in self.output), dtype),)

    def computed(self, operands: Tensors) -> tuple[torch.Tensor, ...]:
        return (self._of(operands)(*operands),)

    def run(self, operands: Tensors, results: Tensors) -> None:
        with grad_mode(False):
            self._of(operands)(*operands, out=results[0])

    def _of(self, operands: Sequence[torch.Tensor]) -> Any:
        specs = tuple(CustomCallSpec(tuple(each.shape), each.dtype) for each in operands)
        return self.plan(specs, operands[0].device)

    def batched(self, places: Sequence[int | None], operands: Sequence[CustomCallSpec]) -> NetworkOperation:
        letter, terms = widened(self.terms, places, self.output)
        return replace(self, terms=tuple(map("".join, terms)), output=letter + self.output)


def _network(operation: NetworkOperation, operands: tuple[CustomCallSpec, ...], device: Any) -> Any:
    dtypes = {spec.dtype for spec in operands}
    if len(dtypes) > 1:
        raise ArgumentError(f"the operands of jax.network have one type, not {', '.join(sorted(map(str, dtypes)))}")
    shapes = [spec.shape for spec in operands]
    return plan_network(operation.equation, *shapes, dtype=dtypes.pop(), device=device, **dict(operation.keywords))


@dataclass(frozen=True)
class CascadeOperation(SaidOperation):
    """A contraction, a function with reductions, and a second contraction, as its text says it."""

    def results(self, operands: Sequence[CustomCallSpec]) -> tuple[CustomCallSpec, ...]:
        call = self.call
        call.plan(call.notation, call.terms, [each.empty("cpu") for each in operands])  # tells now what is wrong
        results = call.results([each.empty() for each in operands])
        return tuple(CustomCallSpec(tuple(each.shape), each.dtype) for each in results)

    def batched(self, places: Sequence[int | None], operands: Sequence[CustomCallSpec]) -> CascadeOperation | None:
        call, given = self.call, self.call.notation
        if all(at is None for at in places[:2]):
            return None
        terms = [given.a, given.b, *(() if given.c is None else (given.c,)), *(modes for _, modes in call.terms)]
        letter, (a, b, *others) = widened(terms, places, given.s, given.d or ())
        c, d = (None, None) if given.d is None else (others.pop(0), (letter, *given.d))
        named = tuple(zip(call.options.operands, others, strict=True))
        wider = CascadeNotation(a, b, (letter, *given.s), c, d)
        plan = call.plan(wider, named, [each.empty("cpu") for each in operands])
        return CascadeOperation(plan_text(plan, plan.options, plan.alpha))


def network(equation: str, *arrays: Any, **keywords: Any) -> Any:
    """A network of any number of arrays of JAX, planned once as a whole where JAX traces it.

    Keywords are those of `weft.network` that are numbers and text: `optimize`, `memory_limit`, `slices`, `out_dtype`,
    `precision`, `accumulate`, `algebra`, `specialize`, ... It may stand under `jit`, `vmap` and `grad`; gradients are
    made by torch and have none of their own, for which there is `weft.jax.einsum`.

    >>> import jax, weft.jax
    >>> x = jax.numpy.ones((2, 2))
    >>> weft.jax.network("ab,bc,cd->ad", x, x, x, memory_limit="1GB")[0, 0].item()
    4.0
    """
    values = [jnp.asarray(each) for each in arrays]
    with call_context(lambda: describe_many("jax.network", equation, ())):
        refuse_unknown("network", keywords)
        for name in keywords:
            if name in _NOT_HERE:
                raise UnsupportedError(f"{name} is not for jax.network: {_NOT_HERE[name]}")
        notation = expand(parse(equation), tuple(each.ndim for each in values))
        inputs, output = spelled_equation(notation, letters((*notation.inputs, notation.output))).split("->")
        said = tuple(sorted(said_keywords(keywords, values).items()))
        operation = NetworkOperation(tuple(inputs.split(",")), output, said)
        operation.plan([spec_of(each) for each in values], torch.device("cpu"))  # tells now what is wrong
    return by_torch(operation, *values)[0]


def cascade(
    equation: Any, a: Any, b: Any, c: Any = None, *, between: Callable[..., Any] | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None, indices: Mapping[str, Any] | None = None, **keywords: Any,
) -> Any:  # fmt: skip
    """A contraction, a function that may reduce, and a second contraction, of arrays of JAX, as `weft.cascade`.

    `between` is a function of `jax.numpy` of one element of S. It reduces over modes by `weft.jax.softmax`,
    `log_softmax`, `logsumexp`, `sum`, `mean`, `amax` and `amin`. It may stand under `jit`, `vmap` and `grad`; gradients
    are made by torch and have none of their own.

    >>> import jax, weft.jax
    >>> q = jax.numpy.ones((4, 8))
    >>> attend = lambda s: weft.jax.softmax(s, "j")
    >>> weft.jax.cascade("id,jd->ij, ij,je->ie", q, q, q, between=attend)[0, 0].item()
    1.0
    """
    values = [jnp.asarray(each) for each in (a, b, c) if each is not None]
    with call_context(lambda: describe_many("jax.cascade", equation, ())):
        given, places = given_operands(operands), read_indices(indices)
        beside = {name: spec_of(array).dtype for name, (_, array) in given.items()} | dict.fromkeys(places, torch.int32)
        function = None
        if between is not None:
            double = spec_of(values[0]).dtype is torch.float64
            value = read_dtype("accumulate", keywords.get("accumulate") or ("float64" if double else "float32"))
            taken = bind({"between": between}, list(beside))["between"]
            function = as_torch("between", between, value, taken, beside)
        stored = tuple((spec_of(each).dtype, each.ndim) for each in values)
        named = tuple((name, modes, (beside[name], array.ndim)) for name, (modes, array) in given.items())
        options = {"specialize": "now", **said_keywords(keywords, values), "indices": places}
        text, _, _ = spelled_cascade(equation, stored, "meta", named, tuple(options.items()), function)
        found = by_torch(CascadeOperation(text), *values, *(array for _, array in given.values()))
    return found[0] if len(found) == 1 else found
