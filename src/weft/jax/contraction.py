"""`weft.jax.contract`: contractions of arrays of JAX, with functions of `jax.numpy` fused in.

A contraction without functions is linear in both operands, and its derivatives are contractions of the same kind, to
any order. One with functions is derived as JAX derives the program without weft: the functions are applied by XLA
then, and the contraction between them is weft's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import torch

import jax
from weft.api.contract import plan
from weft.api.lookup import read_notation
from weft.base.describe import describe_call
from weft.compiled.letters import letters, spelled_equation
from weft.engine.memo import Memo
from weft.errors import ArgumentError, call_context
from weft.fn.binding import bind
from weft.jax.custom_call import Spec, Tensors
from weft.jax.functions import TorchFunction, as_torch
from weft.jax.operation import apply, by_torch, given_operands, name_of, said_keywords, spec_of
from weft.planner.options import read_indices
from weft.planner.request import HOOKS, Request, hook_types
from weft.plans.keywords import read_options, refuse_unknown
from weft.plans.resolving import resolved
from weft.spec import parse
from weft.spec.aux_operands import read_modes
from weft.spec.contraction import output_shape
from weft.spec.notation import expand

Function = Callable[..., Any]
_BATCH = ("batch",)  # a label that no user has


@dataclass(frozen=True)
class ContractOperation:
    """A contraction of two arrays and of what its functions take beside their values."""

    equation: str  # of letters, without ellipsis
    functions: tuple[TorchFunction | None, ...] = (None, None, None)  # of A, B and the sums
    operands: tuple[tuple[str, str], ...] = ()  # name and modes, in the order of the arrays
    indices: tuple[tuple[str, str], ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    recorded = True  # what it launches goes into XLA's CUDA graphs

    @property
    def text(self) -> str:
        functions = [each and each.text for each in self.functions]
        return f"contract {self.equation} {functions} {self.operands} {self.indices} {self.keywords}"

    @property
    def linear(self) -> bool:
        """Whether it is linear in each operand."""
        return not any(self.functions) and dict(self.keywords).get("algebra", "plus_times") == "plus_times"

    @property
    def terms(self) -> tuple[str, str, str]:
        inputs, d = self.equation.split("->")
        a, b = inputs.split(",")
        return a, b, d

    def words(self, operands: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The keywords of a call; `operands` beside A and B."""
        given = {name: (modes, tensor) for (name, modes), tensor in zip(self.operands, operands, strict=True)}
        a_fn, b_fn, epilogue = (each and each.of_torch for each in self.functions)
        functions = {"a_fn": a_fn, "b_fn": b_fn, "epilogue": epilogue}
        return {**functions, "operands": given or None, "indices": dict(self.indices) or None, **dict(self.keywords)}

    def request(self, operands: Sequence[Spec]) -> Request:
        """All of it resolved, of tensors without memory; raises what is wrong."""
        a, b, *rest = [torch.empty(each.shape, dtype=each.dtype, device="meta") for each in operands]
        options = replace(read_options("plan", self.words(rest)), backend="reference")
        return resolved(parse(self.equation), self.equation, a, b, options)

    def results(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        request = self.request(operands)
        shape = output_shape(request.notation, request.extents)
        return tuple(Spec(shape, dtype) for dtype in (request.d_dtype, *(request.outputs or ())))

    def run(self, operands: Tensors, results: Tensors) -> None:
        a, b, *rest = operands
        found, given = self._plan(operands), dict(zip((name for name, _ in self.operands), rest, strict=True))
        found(a, b, out=tuple(results) if len(results) > 1 else results[0], operands=given or None)

    def bound(self, operands: Tensors, results: Tensors) -> Callable[[], object]:
        a, b, *rest = operands
        found, given = self._plan(operands), dict(zip((name for name, _ in self.operands), rest, strict=True))
        return found.bind(a, b, tuple(results) if len(results) > 1 else results[0], operands=given or None)

    def _plan(self, operands: Tensors) -> Any:
        a, b, *rest = operands
        key = (self, *((tuple(each.shape), each.dtype, each.device) for each in operands))
        return _PLANS.made(key, lambda: plan(self.equation, a, b, **self.words(rest)))

    def computed(self, operands: Tensors) -> tuple[torch.Tensor, ...]:
        a, b, *rest = operands
        found = plan(self.equation, a.detach(), b.detach(), **self.words([each.detach() for each in rest]))
        given = {name: tensor for (name, _), tensor in zip(self.operands, rest, strict=True)}
        result: Any = found(a, b, operands=given or None)
        return result if isinstance(result, tuple) else (result,)

    def batched(self, places: Sequence[int | None], operands: Sequence[Spec]) -> ContractOperation | None:
        terms: list[str] = [*self.terms[:2], *(modes for _, modes in self.operands)]
        letter = letters([*terms, self.terms[2], (_BATCH,)])[_BATCH]
        a, b, *aux = [
            term if at is None else f"{term[:at]}{letter}{term[at:]}" for term, at in zip(terms, places, strict=True)
        ]
        if letter not in a + b:
            return None
        named = tuple((name, modes) for (name, _), modes in zip(self.operands, aux, strict=True))
        return replace(self, equation=f"{a},{b}->{letter}{self.terms[2]}", operands=named)

    def transposed(self, at: int, cotangent: Any, other: Any, aval: Any) -> Any:
        """The gradient of an operand, of a contraction without functions."""
        term, with_other, d = self.terms[at], self.terms[1 - at], self.terms[2]
        left = "".join(dict.fromkeys(label for label in term if label in d + with_other))
        keywords = {**dict(self.keywords), "out_dtype": _gradient_type(cotangent, other, aval), "promote": True}
        keywords.pop("invariant", None)
        operation = ContractOperation(f"{d},{with_other}->{left}", keywords=tuple(sorted(keywords.items())))
        return _spread(apply(operation, cotangent, other)[0], left, term, aval)


_PLANS = Memo("jax: plans", 1024)


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
    >>> jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, epilogue=jax.numpy.square))(x, w)[0, 0].item()
    9.0
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    with call_context(lambda: describe_call("jax.contract", equation, a=a, b=b)):
        check_keywords("jax.contract", keywords)
        functions = dict(zip(("a_fn", "b_fn", "epilogue"), (a_fn, b_fn, epilogue), strict=True))
        given = given_operands(operands)
        plain, order = _read(equation, (a, b), given, read_indices(indices), keywords)
        arrays = (a, b, *(given[name][1] for name in order))
        if not any(functions.values()):
            bind({}, [*given, *(name for name, _ in plain.indices)])  # refuses what no function takes
            return _one(_apply(plain, *arrays))
        fused, taken = _fused(plain, arrays, functions)
        return _one(_differentiable(fused, functions, taken)(*arrays))


def _apply(operation: ContractOperation, *arrays: Any) -> tuple[Any, ...]:
    return apply(operation, *arrays) if operation.linear else by_torch(operation, *arrays)


def _one(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


def check_keywords(call: str, keywords: Mapping[str, Any]) -> None:
    """`ArgumentError` for a keyword that a call does not take."""
    for name in ("c", "alpha", "beta", "c_fn"):
        if name in keywords:
            raise ArgumentError(f"{call} takes no keyword {name!r}: it is a term of the epilogue")
    refuse_unknown(call, keywords)


def _read(
    equation: Any, arrays: Sequence[Any], operands: Mapping[str, tuple[Any, Any]], indices: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> tuple[ContractOperation, tuple[str, ...]]:  # fmt: skip
    """The contraction without its functions, in letters, and the order of what they take beside their values."""
    notation = expand(read_notation(equation), tuple(each.ndim for each in arrays))
    named = {name: read_modes(name, modes, array.ndim) for name, (modes, array) in operands.items()}
    names = letters((*notation.inputs, notation.output, *named.values(), tuple(indices.values())))
    spelled = tuple((name, "".join(names[label] for label in term)) for name, term in named.items())
    said = said_keywords(keywords, arrays)
    if isinstance(said.get("invariant"), (str, tuple)):
        said["invariant"] = "".join(names.get(label, str(label)) for label in said["invariant"])
    found = ContractOperation(
        spelled_equation(notation, names), operands=spelled, keywords=tuple(sorted(said.items())),
        indices=tuple((name, names[label]) for name, label in indices.items()),
    )  # fmt: skip
    return found, tuple(named)


def _fused(
    plain: ContractOperation, arrays: Sequence[Any], functions: Mapping[str, Function | None]
) -> tuple[ContractOperation, dict[str, tuple[str, ...]]]:
    """The contraction with its functions as torch has them, and the names that each of them takes."""
    specs = [spec_of(each) for each in arrays]
    keywords, asked = dict(plain.keywords), dict(plain.keywords).get("out_dtype")
    if isinstance(asked, tuple):  # of several results
        keywords["out_dtype"] = asked[0]
    bare = replace(plain, operands=(), indices=(), keywords=tuple(keywords.items())).request(specs[:2])
    types = dict(zip(HOOKS, hook_types((specs[0].dtype, specs[1].dtype), bare.arithmetic), strict=True))
    beside = {name: spec.dtype for (name, _), spec in zip(plain.operands, specs[2:], strict=True)}
    beside |= {name: torch.int32 for name, _ in plain.indices}
    taken = bind(functions, list(beside))
    found = tuple(
        None if function is None else as_torch(hook, function, types[hook], taken[hook], beside).traced()
        for hook, function in functions.items()
    )
    return replace(plain, functions=found), taken


def _differentiable(
    fused: ContractOperation, functions: Mapping[str, Function | None], taken: Mapping[str, tuple[str, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """The call, whose derivatives are those of the same computation with its functions apart."""
    if dict(fused.keywords).get("algebra", "plus_times") != "plus_times":
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
            made = function(value.astype(name_of(types[at])), **named)
            value = jnp.broadcast_to(made, value.shape).astype(name_of(types[at]))
        factors.append(value)
    keywords = {**dict(fused.keywords), "accumulate": name_of(request.arithmetic.accumulate)}
    if epilogue is not None:
        keywords["out_dtype"] = name_of(request.arithmetic.accumulate)
    sums = apply(ContractOperation(fused.equation, keywords=tuple(sorted(keywords.items()))), *factors)[0]
    if epilogue is None:
        return (sums,)
    found = epilogue(sums, **_beside(fused, taken["epilogue"], terms[2], sums.shape, arrays[2:]))
    each = found if isinstance(found, (tuple, list)) else (found,)
    pairs = zip(each, results, strict=True)
    return tuple(jnp.broadcast_to(value, spec.shape).astype(name_of(spec.dtype)) for value, spec in pairs)


def _beside(
    fused: ContractOperation, names: Sequence[str], term: str, shape: Sequence[int], arrays: Sequence[Any]
) -> dict[str, Any]:
    """Arrays that a function takes beside a value with the labels of `term`, along the value's dimensions."""
    found: dict[str, Any] = {}
    for (name, modes), array in zip(fused.operands, arrays, strict=True):
        if name in names:
            order = sorted(range(len(modes)), key=lambda at: term.index(modes[at]))
            absent = [at for at, label in enumerate(term) if label not in modes]
            found[name] = jnp.expand_dims(jnp.transpose(array, order), absent)
    for name, label in fused.indices:
        if name in names:
            found[name] = jax.lax.broadcasted_iota(jnp.int32, tuple(shape), term.index(label))
    return found

