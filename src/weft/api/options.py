"""From the options of a call to a checked `Request`: functions traced, operands placed, types resolved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.algebra import Algebra, find
from weft.base.arrays import as_tensor, is_array
from weft.base.figures import counted
from weft.errors import ArgumentError, DTypeError, FunctionError, NotationError, ShapeError, UnsupportedError
from weft.fn import Pointwise, trace
from weft.fn.binding import bind
from weft.fn.fingerprint import fingerprints
from weft.planner.at_hand import check_specialize
from weft.planner.planner import check_tune
from weft.planner.request import HOOKS, Functions, Request, Results, hook_types
from weft.planner.schedule import Schedule
from weft.planner.target import check_backend, resolve_backend, target_of
from weft.plans.call_cache import call_signature
from weft.plans.checks import reject_gradient
from weft.plans.keywords import default_of, refuse_unknown
from weft.plans.select import check_schedule
from weft.spec import Label, Layout, Notation, aux_operands
from weft.spec.arguments import read_flag
from weft.spec.aux_operands import AuxInput
from weft.spec.contraction import Arithmetic, mode_extents, summed
from weft.spec.dtypes import FP8, dtype_name, read_types, resolve, result_type, storage_type
from weft.spec.notation import expand
from weft.spec.type_names import read_dtype
from weft.spec.whole_sums import result_types, results_of

_TENSORS = {"a_fn": "A", "b_fn": "B", "c_fn": "C", "epilogue": "D"}

OutDtype = torch.dtype | tuple[torch.dtype | None, ...] | None


@dataclass(frozen=True, slots=True)
class Options:
    """What a call asks for besides the equation, A, B, C and the result."""

    out_dtype: OutDtype = None
    precision: str | torch.dtype | None = None
    accumulate: torch.dtype | None = None
    functions: tuple[Callable[..., Any] | None, ...] = (None, None, None, None)  # in the order of HOOKS
    operands: Mapping[str, tuple[Hashable, torch.Tensor]] = field(default_factory=dict)  # modes as given, tensor
    indices: Mapping[str, Label] = field(default_factory=dict)
    algebra: Algebra | None = None  # None for plus-times
    deterministic: bool = True
    workspace_limit: int | None = None
    backend: str = "auto"
    tune: str | None = None
    specialize: str = "now"
    schedule: Schedule | str | None = None  # the one that is forced
    promote: bool = False
    kept: torch.dtype | None = None  # in which sums are kept for a gradient
    peak: bool = False  # launches find the largest magnitude of D, too; no call asks for it by a keyword

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The operands' tensors by name."""
        return {name: tensor for name, (_, tensor) in self.operands.items()}

    def key(self) -> tuple[Hashable, ...] | None:
        """All of it as a key that holds while this process runs; None for what must be read anew in each call."""
        prints, schedule = fingerprints(self.functions), self.schedule
        algebra: Hashable = None
        if self.algebra is not None:
            parts = fingerprints((self.algebra.combine, self.algebra.reduce))
            identity = self.algebra.identity
            # Numbers are told apart by kind and sign of zero.
            whole = identity if callable(identity) else repr(identity)
            algebra = None if parts is None else (self.algebra.name, parts, whole, self.algebra.requires)
        if prints is None or (self.algebra is not None and algebra is None):
            return None
        given: Hashable = None
        if self.operands or self.indices:
            placed = [(name, modes, call_signature(tensor)) for name, (modes, tensor) in self.operands.items()]
            if any(signature is None for _, _, signature in placed):
                return None
            given = (frozenset(placed), frozenset(self.indices.items()))
        forced = schedule if isinstance(schedule, Hashable) else str(schedule)
        return (
            self.out_dtype, self.precision, self.accumulate, prints, given, algebra, self.deterministic,
            self.workspace_limit, self.backend, self.tune, self.specialize, forced, self.promote, self.kept,
            self.peak,
        )  # fmt: skip


def read_options(call: str, keywords: Mapping[str, Any], target: Results | None = None) -> Options:
    """A call's keywords, checked and read; D's type is that of `target` where none is given.

    Keywords that belong to the call alone (`c`, `alpha`, ...) are not among them. Raises `ArgumentError` for one that
    the call does not take, else what the reading of each raises.
    """
    refuse_unknown(call, keywords)
    given = keywords.get
    check_limit(given("workspace_limit"))
    check_tune(given("tune"))
    specialize = given("specialize", default_of(call, "specialize"))
    check_specialize(specialize)
    check_backend(given("backend", "auto"))
    check_schedule(given("schedule"))
    asked, algebra = given("out_dtype"), given("algebra", "plus_times")
    if asked is None:
        asked = result_types(target)
    out_dtype, precision, accumulate = read_types(asked, given("precision"), given("accumulate"))
    return Options(
        out_dtype, precision, accumulate,
        tuple(given(hook) for hook in HOOKS),
        read_operands(given("operands")),
        read_indices(given("indices")),
        find(algebra),
        read_flag("deterministic", given("deterministic", True)),
        given("workspace_limit"), given("backend", "auto"), given("tune"), specialize, given("schedule"),
        read_flag("promote", given("promote", False)),
        read_dtype("kept_dtype", given("kept_dtype")) if given("kept_dtype") is not None else None,
    )  # fmt: skip


def read_operands(operands: Any) -> dict[str, tuple[Hashable, torch.Tensor]]:
    """``{"bias": ("n", bias)}`` with tensors that a kernel sees as they are, and modes that can be looked up."""
    if operands is None:
        return {}
    if not isinstance(operands, Mapping):
        raise FunctionError(f"operands come as a mapping from names to (modes, tensor), not {type(operands).__name__}")
    read: dict[str, tuple[Hashable, torch.Tensor]] = {}
    for name, pair in operands.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise FunctionError(f"operand '{name}' is a pair (modes, tensor), not {type(pair).__name__}")
        modes, value = pair
        if is_array(modes) and not is_array(value):
            raise ArgumentError(f"operand '{name}' is a pair (modes, tensor), in that order: the two are swapped")
        tensor = as_tensor(f"operand '{name}'", value).resolve_conj().resolve_neg()
        read[name] = (tuple(modes) if isinstance(modes, list) else modes, tensor)
        _check_hashable(f"the modes of operand '{name}'", read[name][0])
    return read


def read_indices(indices: Any) -> dict[str, Label]:
    if indices is None:
        return {}
    if not isinstance(indices, Mapping):
        raise FunctionError(f"indices come as a mapping from names to labels, not {type(indices).__name__}")
    for name, label in indices.items():
        _check_hashable(f"the label of index '{name}'", label)
    return dict(indices)


def _check_hashable(what: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise NotationError(f"{what} cannot be labels: {value!r}") from None


def resolved(
    notation: Notation, text: str, a: torch.Tensor, b: torch.Tensor, options: Options, longest: int = 0
) -> Request:
    """Check everything that does not need C or the result. `longest`: a sum's length where that is not in `a` and `b`,
    which stand for others."""
    notation = expand(notation, (a.dim(), b.dim()))
    if a.device != b.device:
        raise ShapeError(f"a is on {a.device}, b is on {b.device}")
    extents = mode_extents(notation, (a.shape, b.shape))
    for name, tensor in (("a", a), ("b", b)):
        reject_gradient(name, tensor)
    algebra = options.algebra
    storage = storage_type(a.dtype, b.dtype, algebra is not None, options.promote)
    arithmetic = resolve(
        a.dtype, b.dtype, options.precision, options.accumulate, algebra.name if algebra else None, options.promote,
        results=results_of(options.out_dtype, storage), count=longest or summed(notation, extents),
    )  # fmt: skip
    named, names = _named(notation, extents, a.device, options)
    traced = _traced(options.functions, names, named, (a.dtype, b.dtype), arithmetic)
    backend = resolve_backend(options.backend, a.device)
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
        backend=backend,
        device=a.device,
        target=target_of(backend, a.device),
        workspace_limit=options.workspace_limit,
        tune=options.tune,
        specialize=options.specialize,
        named=named,
        outputs=outputs,
        algebra=algebra.traced(arithmetic.accumulate) if algebra is not None else None,
        raw_algebra=algebra,
        schedule=options.schedule,
        promote=options.promote,
        kept=_kept(options.kept, arithmetic.accumulate),
        peak=options.peak,
    )


def _named(
    notation: Notation, extents: dict[Label, int], device: torch.device, options: Options
) -> tuple[tuple[AuxInput, ...], dict[str, tuple[str, ...]]]:
    """Operands and coordinates in the order in which functions take them, and the names that each hook takes."""
    for name in options.operands:
        if name in options.indices:
            raise FunctionError(f"'{name}' is given both as an operand and as an index")
    functions = dict(zip(HOOKS, options.functions, strict=True))
    bound = bind(functions, [*options.operands, *options.indices])
    known = {name: aux_operands.coordinate(name, label, extents) for name, label in options.indices.items()}
    for name, (modes, tensor) in options.operands.items():
        if tensor.device != device:
            raise ShapeError(f"operand '{name}' is on {tensor.device}, a and b are on {device}")
        reject_gradient(f"operand '{name}'", tensor)
        term = aux_operands.read_modes(name, modes, tensor.dim())
        known[name] = aux_operands.operand(name, term, Layout.of(tensor), extents)
    reach = dict(zip(HOOKS, (*notation.inputs, notation.output, notation.output), strict=True))
    for hook, taken in bound.items():
        for name in taken:
            aux_operands.check_reach(known[name], hook, _TENSORS[hook], tuple(dict.fromkeys(reach[hook])))
    order = dict.fromkeys(name for taken in bound.values() for name in taken)
    return tuple(known[name] for name in order), bound


def _kept(asked: torch.dtype | None, accumulate: torch.dtype) -> torch.dtype | None:
    """The type that sums are asked to be kept in, which has their parts."""
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
    """What a prologue yields goes on as its tensor's values."""
    if isinstance(graph.result, tuple):
        raise FunctionError(f"{hook} returns {len(graph.result)} values: only the epilogue may return several")
    if not torch.can_cast(graph.result, value):
        raise DTypeError(f"{hook} returns {dtype_name(graph.result)}, which cannot be used as {dtype_name(value)}")


def _results(
    storage: torch.dtype, out_dtype: OutDtype, epilogue: Pointwise | None, accumulate: torch.dtype
) -> tuple[torch.dtype, tuple[torch.dtype, ...] | None]:
    """D's type, and those of what the epilogue yields after it: as asked, else as traced."""
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


def check_limit(workspace_limit: object) -> None:
    if workspace_limit is not None and not isinstance(workspace_limit, int):
        raise UnsupportedError(f"workspace_limit is a number of bytes, not {workspace_limit!r}")
    if workspace_limit is not None and workspace_limit < 0:
        raise UnsupportedError(f"workspace_limit is a number of bytes, 0 or more, not {workspace_limit}")
