"""One primitive of JAX for all that weft computes, and its rules: shapes, lowering, batches, derivatives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from typing import Any

import jax.extend
import numpy as np
import torch
from jax.interpreters import ad, batching, mlir

import jax
from weft.algebra import NAMED, Algebra
from weft.base.arrays import grad_mode, without_autocast
from weft.cascades.backward import gradients_at
from weft.compiled.text import read, settled_algebra
from weft.errors import DTypeError, UnsupportedError, WeftError
from weft.jax.custom_call import CustomCallSpec, Tensors, register
from weft.planner.options import operand_pairs
from weft.planner.validity import default_precision
from weft.spec.dtypes import dtype_name, read_dtype, read_types, resolve
from weft.spec.notation import letters


class JaxOperation:
    """A computation on arrays of any shape. Equal ones compute the same, and `text` tells them apart for ever."""

    text: str
    recorded = False  # whether what it launches goes into XLA's CUDA graphs
    linear = False  # whether it is linear in each operand, and has `transposed`

    def results(self, operands: Sequence[CustomCallSpec]) -> tuple[CustomCallSpec, ...]:
        """Shapes and types of the results; raises what is wrong with those of the operands."""
        raise NotImplementedError

    def computed(self, operands: Tensors) -> Sequence[torch.Tensor]:
        """The results, differentiable."""
        raise NotImplementedError

    def run(self, operands: Tensors, results: Tensors) -> None:
        """Compute, into the results."""
        with grad_mode(False):
            for place, found in zip(results, self.computed(operands), strict=True):
                place.copy_(found)

    def bound(self, operands: Tensors, results: Tensors) -> Callable[[], object]:
        """The run on these very tensors, each time that it is called."""
        return partial(self.run, operands, results)

    def batched(self, places: Sequence[int | None], operands: Sequence[CustomCallSpec]) -> JaxOperation | None:
        """The operation along one more mode, which the operands have at these places and every result first; None where
        each index is computed by itself."""
        return None

    def transposed(self, at: int, cotangent: Any, other: Any, aval: Any) -> Any:
        """The gradient of an operand of what is linear."""
        raise NotImplementedError


@dataclass(frozen=True)
class SaidOperation(JaxOperation):
    """An operation that a text describes: see `weft.compiled.text`."""

    text: str

    @property
    def call(self) -> Any:
        return read(self.text)

    def computed(self, operands: Tensors) -> Tensors:
        found: Tensors = self.call.run(operands)
        return found


weft_p = jax.extend.core.Primitive("weft")
weft_p.multiple_results = True


def apply(operation: JaxOperation, *operands: Any) -> tuple[Any, ...]:
    """The results as arrays of JAX."""
    found: tuple[Any, ...] = tuple(weft_p.bind(*_varying_alike(operands), operation=operation))
    return found


def _varying_alike(operands: Sequence[Any]) -> list[Any]:
    """Operands that differ along the same axes of the mesh of a `shard_map`: one that does not is cast to do so, and
    the derivative of the cast adds its gradients up."""
    axes = [_axes(jax.typeof(each)) for each in operands]
    together = frozenset().union(*axes)
    if all(own == together for own in axes):
        return list(operands)
    return [
        jax.lax.pcast(each, tuple(sorted(together - own)), to="varying") if own != together else each
        for each, own in zip(operands, axes, strict=True)
    ]


def _axes(aval: Any) -> frozenset[str]:
    """The axes of a mesh along which values of this type differ."""
    kind = getattr(aval, "manual_axis_type", None)  # `vma` before JAX 0.10.2
    found: frozenset[str] = getattr(aval, "vma", frozenset()) if kind is None else kind.varying
    return found


def spec_of(value: Any) -> CustomCallSpec:
    """The shape and type of an array, or of what stands for one."""
    if not all(isinstance(extent, int) for extent in value.shape):
        raise UnsupportedError(f"extents {value.shape} are left open: weft plans for extents that are known")
    return CustomCallSpec(tuple(value.shape), read_dtype("an operand", value.dtype.name))


def given_operands(operands: Any) -> dict[str, tuple[Any, Any]]:
    """The operands of functions: names, each with its modes and an array of JAX."""
    return {name: (modes, jax.numpy.asarray(array)) for name, (modes, array) in operand_pairs(operands)}


_TYPES = ("out_dtype", "precision", "accumulate")


def said_keywords(keywords: Mapping[str, Any], arrays: Sequence[Any]) -> dict[str, Any]:
    """Keywords of a call of these arrays, but those that are None, with types and algebras as weft has them: what they
    say when JAX traces it."""
    found = {name: _said(name, value) for name, value in keywords.items() if value is not None}
    found.setdefault("precision", default_precision())
    if isinstance(algebra := found.get("algebra"), Algebra):
        found["algebra"] = _settled(algebra, [spec_of(each).dtype for each in arrays], found)
    return found


def _said(name: str, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_said(name, each) for each in value])
    if name in _TYPES and not (value is None or isinstance(value, (str, torch.dtype))):
        return jax.numpy.dtype(value).name
    return value


def _settled(algebra: Algebra, types: Sequence[torch.dtype], keywords: Mapping[str, Any]) -> Algebra | str:
    """One of weft's own by its name; another as what it computes for operands of these types, and as it is where it
    does not fit them, which the call says."""
    if NAMED.get(algebra.name) is algebra:
        return algebra.name
    try:
        _, precision, accumulate = read_types(None, keywords.get("precision"), keywords.get("accumulate"))
        stored = reduce(torch.promote_types, types)
        found = settled_algebra(algebra, resolve(stored, stored, precision, accumulate, algebra.name).accumulate)
    except (WeftError, RuntimeError):
        return algebra
    return algebra if found is None else found


def widened(
    terms: Sequence[Sequence[Any]], places: Sequence[int | None], *results: Sequence[Any]
) -> tuple[str, list[tuple[Any, ...]]]:
    """A letter that is in no term, and the operands' terms with it in those places, as they are where that is None."""
    batch = ("batch",)  # a label that no user has
    letter = letters([*terms, *results, (batch,)])[batch]
    pairs = zip(terms, places, strict=True)
    return letter, [tuple(term) if at is None else (*term[:at], letter, *term[at:]) for term, at in pairs]


@weft_p.def_abstract_eval
def _abstract(*avals: Any, operation: JaxOperation) -> list[Any]:
    with without_autocast():
        found = operation.results([spec_of(each) for each in avals])
    types = [np.dtype(jax.numpy.dtype(dtype_name(each.dtype))) for each in found]
    for dtype in types:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise DTypeError(f'a result of {dtype} is for programs with jax.config.update("jax_enable_x64", True)')
    varying = next((aval for aval in avals if _axes(aval)), None)
    return [_type_of(varying, each.shape, dtype) for each, dtype in zip(found, types, strict=True)]


def _type_of(varying: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """JAX's type of a result; `varying`: that of operands which differ along axes of a mesh, as results do then."""
    if varying is None:
        return jax.core.ShapedArray(shape, dtype)
    whole = jax.sharding.NamedSharding(varying.sharding.mesh, jax.sharding.PartitionSpec(*[None] * len(shape)))
    return varying.update(shape=shape, dtype=dtype, weak_type=False, sharding=whole)


@lru_cache(maxsize=1024)
def _compiled(operation: JaxOperation) -> Callable[..., Any]:
    return jax.jit(lambda *operands: weft_p.bind(*operands, operation=operation))


@weft_p.def_impl
def _impl(*operands: Any, operation: JaxOperation) -> Any:
    forbidden = (jax.config.jax_debug_nans, "nan", np.isnan), (jax.config.jax_debug_infs, "inf", np.isinf)
    # Else it would be this call again, and again where JAX finds a forbidden value and calls what it had compiled.
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        found = _compiled(operation)(*operands)
    for is_forbidden, name, test in forbidden:
        if is_forbidden and any(test(each).any() for each in found):
            raise FloatingPointError(f"invalid value ({name}) encountered in weft")
    return found


def _lowering(platform: str) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, operation: JaxOperation) -> Any:
        specs = tuple(tuple(map(spec_of, avals)) for avals in (ctx.avals_in, ctx.avals_out))
        name = _registered(platform, operation, *specs)
        return jax.ffi.ffi_lowering(name)(ctx, *operands)

    return lower


@cache
def _registered(
    platform: str, operation: JaxOperation, operands: tuple[CustomCallSpec, ...], results: tuple[CustomCallSpec, ...]
) -> str:
    """The name of the custom call, which says all that it computes: programs that JAX keeps on disk have it."""
    text = f"{operation.text} {operands} {results}"
    name = f"weft_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    register(name, platform, operands, results, operation.run, operation.bound, operation.recorded)
    return name


for _platform in ("cpu", "cuda"):
    mlir.register_lowering(weft_p, _lowering(_platform), platform=_platform)


def _batch(operands: Sequence[Any], places: Sequence[Any], *, operation: JaxOperation) -> Any:
    along = operation.batched(places, [spec_of(each) for each in operands])
    if along is not None:
        found = weft_p.bind(*operands, operation=along)
    else:
        pairs = zip(operands, places, strict=True)
        mapped = [jax.numpy.moveaxis(each, place, 0) for each, place in pairs if place is not None]

        def one(taken: Any) -> Any:
            left = iter(taken)
            each = [next(left) if place is not None else whole for whole, place in zip(operands, places, strict=True)]
            return weft_p.bind(*each, operation=operation)

        found = jax.lax.map(one, mapped)
    return found, [0] * len(found)


batching.primitive_batchers[weft_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, operation: JaxOperation) -> Any:
    """The tangent of what is linear in each operand."""
    if not operation.linear:
        raise UnsupportedError(
            "what torch derives has one derivative, in reverse mode: those of jax.contract and jax.einsum have all"
        )
    results = apply(operation, *primals)
    parts = [
        apply(operation, *primals[:at], tangent, *primals[at + 1 :])[0]
        for at, tangent in enumerate(tangents)
        if type(tangent) is not ad.Zero
    ]
    return results, [sum(parts[1:], parts[0])]


def _transpose(cotangents: Sequence[Any], *operands: Any, operation: JaxOperation) -> list[Any]:
    found: list[Any] = [None] * len(operands)
    (at,) = [at for at, each in enumerate(operands) if ad.is_undefined_primal(each)]
    if type(cotangents[0]) is ad.Zero:
        found[at] = ad.Zero(operands[at].aval)
    else:
        found[at] = operation.transposed(at, cotangents[0], operands[1 - at], operands[at].aval)
    return found


ad.primitive_jvps[weft_p] = _jvp
ad.primitive_transposes[weft_p] = _transpose


@dataclass(frozen=True)
class Gradient(JaxOperation):
    """Gradients of the operands of another operation, of these and of its results' gradients: by torch's autograd.

    Operands of `of` that have none, as they are integers, are left out.
    """

    of: JaxOperation
    floating: tuple[bool, ...]  # of the operands

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"gradients of {self.of.text}"

    def results(self, operands: Sequence[CustomCallSpec]) -> tuple[CustomCallSpec, ...]:
        return tuple(spec for spec, smooth in zip(operands, self.floating, strict=False) if smooth)

    def computed(self, operands: Tensors) -> list[torch.Tensor]:
        given, cotangents = operands[: len(self.floating)], operands[len(self.floating) :]
        wanted = [at for at, smooth in enumerate(self.floating) if smooth]
        conjugates = [each.conj() for each in cotangents]  # torch's gradients are conjugates of JAX's
        return [grad.conj() for grad in gradients_at(self.of.computed, given, conjugates, wanted)]


def by_torch(operation: JaxOperation, *operands: Any) -> tuple[Any, ...]:
    """The results of an operation that torch derives once; its `computed` makes them, and records how."""
    floating = tuple(jax.numpy.issubdtype(each.dtype, jax.numpy.inexact) for each in operands)

    @jax.custom_vjp
    def call(*operands: Any) -> tuple[Any, ...]:
        return apply(operation, *operands)

    def forward(*operands: Any) -> Any:
        return apply(operation, *operands), operands

    def backward(operands: Any, cotangents: Any) -> Any:
        found = iter(apply(Gradient(operation, floating), *operands, *cotangents))
        return tuple(
            next(found) if smooth else np.zeros(each.shape, jax.dtypes.float0)
            for each, smooth in zip(operands, floating, strict=True)
        )

    call.defvjp(forward, backward)
    found: tuple[Any, ...] = call(*_varying_alike(operands))
    return found
