"""`weft.jax.contract`: contractions of arrays of JAX, with functions of `jax.numpy` fused in.

A contraction without functions is linear in both operands, and its derivatives are contractions of the same kind, to
any order. One with functions is derived as JAX derives the program without weft: the functions are applied by XLA
then, and the contraction between them is weft's.

`weft.jax.einsum` contracts any number of arrays, pair by pair, in the types that networks keep intermediates in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import opt_einsum
import torch

import jax
from weft.algebra import find
from weft.api.einsum import lone, read_einsum, read_order
from weft.api.lookup import find_plan
from weft.base.arguments import describe_call, describe_many
from weft.compiled.contraction import spelled_options
from weft.compiled.text import stand_in, text_of
from weft.errors import ArgumentError, DTypeError, UnsupportedError, call_context
from weft.fn.binding import bind
from weft.jax.custom_call import CustomCallSpec, Tensors
from weft.jax.functions import as_torch
from weft.jax.operation import SaidOperation, apply, by_torch, given_operands, said_keywords, spec_of, widened
from weft.jax.whole import network
from weft.planner.options import NO_FUNCTIONS, Options
from weft.planner.request import HOOKS, Request, hook_types
from weft.plans.intermediates import intermediate_type, is_of_halves, step_options
from weft.plans.keywords import read_options, refuse_unknown
from weft.spec.contraction import mode_extents, output_shape
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, read_dtype, storage_type
from weft.spec.notation import Notation, expand, letters, spelled_equation

Function = Callable[..., Any]


@dataclass(frozen=True)
class ContractOperation(SaidOperation):
    """A contraction of two arrays and of what its functions take beside their values, as its text says it."""

    recorded = True  # what it launches goes into XLA's CUDA graphs

    @staticmethod
    def of(equation: Any, arrays: Sequence[CustomCallSpec], options: Options) -> ContractOperation:
        """The contraction of such arrays, and with options whose operands stand for others."""
        a, b = ((each.dtype, len(each.shape)) for each in arrays[:2])
        return ContractOperation(spelled_options(equation, (a, b), "meta", options, False, False, False)[0])

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return not any(self.call.options.functions) and self.call.options.algebra is None

    @property
    def terms(self) -> tuple[str, str, str]:
        inputs, d = self.call.equation.split("->")
        a, b = inputs.split(",")
        return a, b, d

    def request(self, operands: Sequence[CustomCallSpec]) -> Request:
        """All of it resolved, of tensors without memory; raises what is wrong."""
        return self.call.request([each.empty() for each in operands])

    def results(self, operands: Sequence[CustomCallSpec]) -> tuple[CustomCallSpec, ...]:
        request = self.request(operands)
        shape = output_shape(request.notation, request.extents)
        return tuple(CustomCallSpec(shape, dtype) for dtype in self.call.types)

    def run(self, operands: Tensors, results: Tensors) -> None:
        self.call.run(operands, out=results)

    def bound(self, operands: Tensors, results: Tensors) -> Callable[[], object]:
        a, b, _, options = self.call.split(operands)
        out = tuple(results) if len(results) > 1 else results[0]
        return find_plan(self.call.equation, a, b, options).bind(a, b, out, operands=options.tensors or None)

    def batched(self, places: Sequence[int | None], operands: Sequence[CustomCallSpec]) -> ContractOperation | None:
        options = self.call.options
        beside = {name: str(modes) for name, (modes, _) in options.operands.items()}
        letter, terms = widened([*self.terms[:2], *beside.values()], places, self.terms[2])
        a, b, *others = map("".join, terms)
        if letter not in a + b:
            return None
        named = {name: (modes, None) for name, modes in zip(beside, others, strict=True)}
        equation = f"{a},{b}->{letter}{self.terms[2]}"
        return ContractOperation(
            text_of(replace(self.call, equation=equation, options=replace(options, operands=named)))
        )

    def transposed(self, at: int, cotangent: Any, other: Any, aval: Any) -> Any:
        term, with_other, d = self.terms[at], self.terms[1 - at], self.terms[2]
        left = "".join(dict.fromkeys(label for label in term if label in d + with_other))
        dtype = read_dtype("out_dtype", _gradient_type(cotangent, other, aval))
        options = replace(self.call.options, out_dtype=dtype, promote=True, invariant=())
        specs = [spec_of(cotangent), spec_of(other)]
        operation = ContractOperation.of(f"{d},{with_other}->{left}", specs, options)
        return _spread(apply(operation, cotangent, other)[0], left, term, aval)


def _gradient_type(cotangent: Any, other: Any, aval: Any) -> str:
    """The type in which the gradient of an operand is made: a complex one where a real operand met complex values."""
    complex_ = any(jnp.issubdtype(each.dtype, jnp.complexfloating) for each in (cotangent, other))
    return (jnp.promote_types(aval.dtype, jnp.complex64) if complex_ else jnp.dtype(aval.dtype)).name


def _spread(found: Any, left: str, term: str, aval: Any) -> Any:
    """A gradient along the labels `left` as one along those of an operand: on its diagonal, the same along labels that
    were summed by themselves, summed where the operand broadcasts."""
    for at, label in enumerate(left):
        if aval.shape[term.index(label)] == 1 != found.shape[at]:
            found = found.sum(at, keepdims=True)
    here = [label for at, label in enumerate(term) if label in left and term.index(label) == at]
    found = jnp.transpose(found, [left.index(label) for label in here])
    absent = [at for at, label in enumerate(term) if label not in left or term.index(label) != at]
    found = jnp.broadcast_to(jnp.expand_dims(found, absent), aval.shape)
    for at, label in enumerate(term):
        first = term.index(label)
        if first != at:
            same = jax.lax.broadcasted_iota(int, aval.shape, first) == jax.lax.broadcasted_iota(int, aval.shape, at)
            found = jnp.where(same, found, 0)
    found = found if jnp.issubdtype(aval.dtype, jnp.complexfloating) else found.real
    return found.astype(aval.dtype)


def contract(
    equation: Any, a: Any, b: Any, *, a_fn: Function | None = None, b_fn: Function | None = None,
    epilogue: Function | None = None, operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Any] | None = None, **keywords: Any,
) -> Any:  # fmt: skip
    """Contract two arrays of JAX: ``D = epilogue(sum over k of a_fn(A) * b_fn(B))``, as `weft.contract` does.

    * `equation`, `a`, `b`: as in `weft.contract`; arrays, or what stands for them under `jax.jit`.
    * `a_fn`, `b_fn`, `epilogue`: functions of `jax.numpy` of one element, fused into the kernel; the epilogue may
      return a tuple. `operands` and `indices` name what they take beside the value.
    * `out_dtype`, `precision`, `accumulate`, `algebra`, `invariant`, `workspace_limit`, `tune`, `specialize`,
      `promote`, `backend`: as in `weft.contract`, but that `specialize` is ``"now"`` by default.

    It may stand under `jit`, `grad`, `jvp` and `vmap`, on a CPU and on GPUs. Derivatives of one with functions apply
    them apart from the contraction; other algebras have reverse mode, once. Factors, and C, are terms of the epilogue.

    Raises what `weft.contract` raises, where JAX traces it.

    >>> import jax, weft.jax
    >>> x, w = jax.numpy.ones((2, 3)), jax.numpy.ones((3, 4))
    >>> contract, square = weft.jax.contract, jax.numpy.square
    >>> f = jax.jit(lambda x, w: contract("mk,kn->mn", x, w, epilogue=square))
    >>> f(x, w)[0, 0].item()
    9.0
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    with call_context(lambda: describe_call("jax.contract", equation, a=a, b=b)):
        check_keywords("jax.contract", keywords)
        functions = dict(zip(("a_fn", "b_fn", "epilogue"), (a_fn, b_fn, epilogue), strict=True))
        given = given_operands(operands)
        arrays = (a, b, *(array for _, array in given.values()))
        specs = [spec_of(each) for each in arrays]
        stand_ins = {name: (modes, stand_in(spec_of(x).dtype, x.ndim)) for name, (modes, x) in given.items()}
        options = read_call({**keywords, "operands": stand_ins, "indices": indices}, (a, b))
        if not any(functions.values()):
            return _one(_apply(ContractOperation.of(equation, specs, options), *arrays))
        fused, taken = _fused(equation, specs, options, functions)
        return _one(_differentiable(fused, functions, taken)(*arrays))


def _apply(operation: ContractOperation, *arrays: Any) -> tuple[Any, ...]:
    return apply(operation, *arrays) if operation.linear else by_torch(operation, *arrays)


def _one(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


def read_call(keywords: Mapping[str, Any], arrays: Sequence[Any]) -> Options:
    """Options of contractions of these arrays."""
    return read_options("jax.contract", {"specialize": "now", **said_keywords(keywords, arrays)})


def check_keywords(call: str, keywords: Mapping[str, Any]) -> None:
    """`ArgumentError` for a keyword that a call does not take."""
    for name in ("c", "alpha", "beta", "c_fn"):
        if name in keywords:
            raise ArgumentError(f"{call} takes no keyword {name!r}: it is a term of the epilogue")
    refuse_unknown(call, keywords)


def _fused(
    equation: Any, specs: Sequence[CustomCallSpec], options: Options, functions: Mapping[str, Function | None]
) -> tuple[ContractOperation, dict[str, tuple[str, ...]]]:
    """The contraction with its functions as torch has them, and the names that each of them takes."""
    first = options.out_dtype[0] if isinstance(options.out_dtype, tuple) else options.out_dtype  # of several results
    bare = ContractOperation.of(equation, specs, replace(options, out_dtype=first, operands={}, indices={}))
    arithmetic = bare.request(specs[:2]).arithmetic
    types = dict(zip(HOOKS, hook_types((specs[0].dtype, specs[1].dtype), arithmetic), strict=True))
    beside = {name: tensor.dtype for name, tensor in options.tensors.items()}
    beside |= dict.fromkeys(options.indices, torch.int32)
    taken = bind(functions, list(beside))
    found = {
        hook: as_torch(hook, function, types[hook], taken[hook], beside)
        for hook, function in functions.items() if function is not None
    }  # fmt: skip
    options = replace(options.having(**found), accumulate=arithmetic.accumulate)
    return ContractOperation.of(equation, specs, options), taken


def _differentiable(
    fused: ContractOperation, functions: Mapping[str, Function | None], taken: Mapping[str, tuple[str, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """The call, whose derivatives are those of the same computation with its functions apart."""
    if fused.call.options.algebra is not None:
        return partial(by_torch, fused)

    @jax.custom_jvp
    def call(*arrays: Any) -> tuple[Any, ...]:
        return apply(fused, *arrays)

    @call.defjvp
    def derived(primals: Any, tangents: Any) -> Any:
        return jax.jvp(partial(_apart, fused, functions, taken), primals, tangents)

    return call


def _apart(
    fused: ContractOperation, functions: Mapping[str, Function | None], taken: Mapping[str, tuple[str, ...]],
    *arrays: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Results of a contraction whose functions XLA applies before and after it."""
    specs = [spec_of(each) for each in arrays]
    request, results = fused.request(specs), fused.results(specs)
    a_fn, b_fn, epilogue = functions.values()
    types, terms = hook_types((specs[0].dtype, specs[1].dtype), request.arithmetic), fused.terms
    factors = []
    for at, (hook, function) in enumerate((("a_fn", a_fn), ("b_fn", b_fn))):
        value = arrays[at]
        if function is not None:
            named = _beside(fused, taken[hook], terms[at], value.shape, arrays[2:])
            made = function(value.astype(dtype_name(types[at])), **named)
            value = jnp.broadcast_to(made, value.shape).astype(dtype_name(types[at]))
        factors.append(value)
    options = replace(fused.call.options, functions=NO_FUNCTIONS, operands={}, indices={})
    if epilogue is not None:
        options = replace(options, out_dtype=request.arithmetic.accumulate)
    operation = ContractOperation.of(fused.call.equation, [spec_of(each) for each in factors], options)
    sums = apply(operation, *factors)[0]
    if epilogue is None:
        return (sums,)
    found = epilogue(sums, **_beside(fused, taken["epilogue"], terms[2], sums.shape, arrays[2:]))
    each = found if isinstance(found, (tuple, list)) else (found,)
    pairs = zip(each, results, strict=True)
    return tuple(jnp.broadcast_to(value, spec.shape).astype(dtype_name(spec.dtype)) for value, spec in pairs)


def _beside(
    fused: ContractOperation, names: Sequence[str], term: str, shape: Sequence[int], arrays: Sequence[Any]
) -> dict[str, Any]:
    """Arrays that a function takes beside a value with the labels of `term`, along the value's dimensions."""
    found: dict[str, Any] = {}
    options: Any = fused.call.options  # whose modes are letters
    for (name, (modes, _)), array in zip(options.operands.items(), arrays, strict=True):
        if name in names:
            order = sorted(range(len(modes)), key=lambda at: term.index(modes[at]))
            absent = [at for at, label in enumerate(term) if label not in modes]
            found[name] = jnp.expand_dims(jnp.transpose(array, order), absent)
    for name, label in options.indices.items():
        if name in names:
            found[name] = jax.lax.broadcasted_iota(jnp.int32, tuple(shape), term.index(label))
    return found


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
