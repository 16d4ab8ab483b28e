"""From the options of a call to a checked `Request`: functions traced, operands placed, types resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.base.figures import counted
from weft.errors import DTypeError, FunctionError, NotationError
from weft.fn import Pointwise, trace
from weft.fn.binding import bind
from weft.planner.options import Options, OutDtype
from weft.planner.request import HOOKS, Functions, Request, hook_types
from weft.planner.target import resolve_backend, target_of
from weft.plans.checks import check_devices, reject_gradient
from weft.spec import Label, Layout, Notation, contraction
from weft.spec.contraction import Arithmetic, AuxInput, mode_extents, summed
from weft.spec.dtypes import FP8, dtype_name, resolve, result_type, results_of, storage_type
from weft.spec.notation import expand, label_text

_TENSORS = {"a_fn": "A", "b_fn": "B", "c_fn": "C", "epilogue": "D"}


def resolved(
    notation: Notation, text: str, a: torch.Tensor, b: torch.Tensor, options: Options, longest: int = 0
) -> Request:
    """Check everything that does not need C or the result. `longest`: a sum's length where that is not in `a` and `b`,
    which stand for others."""
    notation = expand(notation, (a.dim(), b.dim()))
    check_devices(a, b, None, options.tensors)
    extents = mode_extents(notation, (a.shape, b.shape))
    for name, tensor in (("a", a), ("b", b)):
        reject_gradient(name, tensor)
    algebra = options.algebra
    storage = storage_type(a.dtype, b.dtype, algebra is not None, options.promote)
    arithmetic = resolve(
        a.dtype, b.dtype, options.precision, options.accumulate, algebra.name if algebra else None, options.promote,
        results=results_of(options.out_dtype, storage), count=longest or summed(notation, extents),
    )  # fmt: skip
    named, names = _named(notation, extents, options)
    traced = _traced(options.functions, names, named, (a.dtype, b.dtype), arithmetic)
    service = served_by(options, a.device)
    d_dtype, outputs = _results(storage, options.out_dtype, traced.epilogue, arithmetic.accumulate)
    return Request(
        notation=notation,
        text=text,
        a=Layout.of(a),
        b=Layout.of(b),
        conjugate=(a.is_conj(), b.is_conj()),
        arithmetic=arithmetic,
        d_dtype=d_dtype,
        functions=traced,
        named=named,
        outputs=outputs,
        algebra=algebra.traced(arithmetic.accumulate) if algebra is not None else None,
        raw_algebra=algebra,
        kept=_kept(options.kept_dtype, arithmetic.accumulate),
        invariant=_invariant(notation, options),
        **service,
    )


def served_by(options: Options, device: torch.device) -> dict[str, Any]:
    """The fields of a request that say what may serve it."""
    backend = resolve_backend(options.backend, device)
    said = {name: getattr(options, name) for name in ("workspace_limit", "tune", "specialize", "schedule", "promote")}
    return {"backend": backend, "device": device, "target": target_of(backend, device), **said}


def _invariant(notation: Notation, options: Options) -> tuple[Label, ...]:
    """The labels whose extents no bit may depend on, which D has."""
    for label in options.invariant:
        if label not in notation.output:
            raise NotationError(
                f"invariant names '{label_text(label)}', which D does not have: the bits of a sum depend on its length"
            )
    return options.invariant


def _named(
    notation: Notation, extents: dict[Label, int], options: Options
) -> tuple[tuple[AuxInput, ...], dict[str, tuple[str, ...]]]:
    """Operands and coordinates in the order in which functions take them, and the names that each hook takes."""
    for name in options.operands:
        if name in options.indices:
            raise FunctionError(f"'{name}' is given both as an operand and as an index")
    functions = dict(zip(HOOKS, options.functions, strict=True))
    bound = bind(functions, [*options.operands, *options.indices])
    known = {name: contraction.coordinate(name, label, extents) for name, label in options.indices.items()}
    for name, (modes, tensor) in options.operands.items():
        reject_gradient(f"operand '{name}'", tensor)
        term = contraction.read_modes(name, modes, tensor.dim())
        known[name] = contraction.operand(name, term, Layout.of(tensor), extents)
    reach = dict(zip(HOOKS, (*notation.inputs, notation.output, notation.output), strict=True))
    for hook, taken in bound.items():
        for name in taken:
            contraction.check_reach(known[name], hook, _TENSORS[hook], tuple(dict.fromkeys(reach[hook])))
    order = dict.fromkeys(name for taken in bound.values() for name in taken)
    return tuple(known[name] for name in order), bound


def _kept(asked: torch.dtype | None, accumulate: torch.dtype) -> torch.dtype | None:
    """The type that sums are to be kept in by request, which has their parts."""
    if asked is not None and (asked.is_complex != accumulate.is_complex or not (
        asked.is_floating_point or asked.is_complex
    )):  # fmt: skip
        raise DTypeError(f"kept_dtype: sums in {dtype_name(accumulate)} are not kept in {dtype_name(asked)}")
    return asked


def _traced(
    functions: tuple[Callable[..., Any] | None, ...],
    names: Mapping[str, tuple[str, ...]],
    named: tuple[AuxInput, ...],
    stored: tuple[torch.dtype, torch.dtype],
    arithmetic: Arithmetic,
) -> Functions:
    values = hook_types(stored, arithmetic)
    dtypes = {found.name: found.dtype for found in named}
    graphs: list[Pointwise | None] = []
    for hook, function, value in zip(HOOKS, functions, values, strict=True):
        graph = None
        if function is not None:
            if value in FP8:
                raise DTypeError(
                    f"{hook} cannot compute in {dtype_name(value)}: leave precision out for float16 values"
                )
            graph = trace(function, (value, *(dtypes[name] for name in names[hook])), names=names[hook], hook=hook)
            if hook != "epilogue":
                _check_result(graph, hook, value)
        graphs.append(graph)
    a_fn, b_fn, c_fn, epilogue = graphs
    return Functions(a_fn, b_fn, c_fn, epilogue, tuple(names[hook] for hook in HOOKS), functions)


def _check_result(graph: Pointwise, hook: str, value: torch.dtype) -> None:
    """A prologue returns one value, of a type that can be cast to its tensor's."""
    if isinstance(graph.result, tuple):
        raise FunctionError(f"{hook} returns {len(graph.result)} values: only the epilogue may return several")
    if not torch.can_cast(graph.result, value):
        raise DTypeError(f"{hook} returns {dtype_name(graph.result)}, which cannot be used as {dtype_name(value)}")


def _results(
    storage: torch.dtype, out_dtype: OutDtype, epilogue: Pointwise | None, accumulate: torch.dtype
) -> tuple[torch.dtype, tuple[torch.dtype, ...] | None]:
    """D's type, and those of what the epilogue yields after it: as requested, else as traced."""
    value = epilogue.result if epilogue is not None else accumulate
    if not isinstance(value, tuple):
        if isinstance(out_dtype, tuple):
            raise DTypeError(f"out_dtype names {len(out_dtype)} types, the epilogue returns no tuple")
        return result_type(storage, out_dtype, value), None
    if len(value) < 2:
        raise FunctionError("the epilogue returns a tuple of one value: return the value itself")
    asked = out_dtype if isinstance(out_dtype, tuple) else (out_dtype, *(None for _ in value[1:]))
    if len(asked) != len(value):
        raise DTypeError(f"out_dtype names {len(asked)} types, the epilogue returns {counted(len(value), 'value')}")
    others = tuple(
        result_type(traced, wanted or traced, traced) for traced, wanted in zip(value[1:], asked[1:], strict=True)
    )
    return result_type(storage, asked[0], value[0]), others
