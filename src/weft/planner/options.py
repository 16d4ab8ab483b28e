"""The options of calls: one table of their names, types, defaults, takers and readers, and the value that they become.

A public call reads its keywords once (`weft.plans.keywords`). What it finds is an `Options`, which rooms hand on: a
gradient, a network or a rank makes those of its steps by `dataclasses.replace`, and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import torch

from weft.algebra import Algebra, find
from weft.base.arrays import as_tensor, is_array
from weft.errors import ArgumentError, FunctionError, NotationError, UnsupportedError
from weft.fn.fingerprint import fingerprints
from weft.planner.request import HOOKS, Request
from weft.planner.schedule import Schedule
from weft.planner.target import check_backend
from weft.spec import Label
from weft.spec.arguments import read_flag
from weft.spec.contraction import Arithmetic
from weft.spec.dtypes import read_dtype, read_types

OutDtype = torch.dtype | tuple[torch.dtype | None, ...] | None
Functions = tuple[Callable[..., Any] | None, ...]
Reader = Callable[[str, Any], Any]

TUNE = (None, "model", "measure")  # what `tune=` may be
SPECIALIZE = ("auto", "now", "never", "library")  # what `specialize=` may be
NO_FUNCTIONS: Functions = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Options:
    """All that a call says, but for its equation, tensors and factors. Its fields are options of the table, read."""

    out_dtype: OutDtype = None
    precision: str | torch.dtype | None = None
    accumulate: torch.dtype | None = None
    functions: Functions = NO_FUNCTIONS  # in the order of HOOKS
    operands: Mapping[str, tuple[Hashable, Any]] = field(default_factory=dict, hash=False)  # modes, tensor
    indices: Mapping[str, Label] = field(default_factory=dict, hash=False)
    algebra: Algebra | None = None  # None for plus-times
    deterministic: bool = True
    workspace_limit: int | None = None
    backend: str = "auto"
    tune: str | None = None
    specialize: str = "now"
    schedule: Schedule | str | None = None  # the one that is forced
    promote: bool = False
    kept_dtype: torch.dtype | None = None  # in which sums are kept for a gradient
    invariant: tuple[Label, ...] = ()  # labels of D whose extents the bits of an element do not depend on

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The operands' tensors by name."""
        return {name: tensor for name, (_, tensor) in self.operands.items()}

    def having(self, **functions: Callable[..., Any] | None) -> Options:
        """Options with other functions in the place of those named."""
        pairs = zip(HOOKS, self.functions, strict=True)
        return replace(self, functions=tuple(functions.get(hook, own) for hook, own in pairs))

    def of_steps(self) -> Options:
        """Options for each of several contractions, without those that only the last one takes."""
        return replace(
            self, out_dtype=None, functions=NO_FUNCTIONS, operands={}, indices={}, kept_dtype=None, invariant=()
        )  # fmt: skip

    def said(self) -> tuple[Hashable, ...] | None:
        """All of it but tensors, as a key that holds while this process runs; None for what is read in each call."""
        plain, (a_fn, b_fn, c_fn, epilogue) = _as_they_are(self), self.functions
        bare = a_fn is b_fn is c_fn is epilogue is None and self.algebra is None and self.schedule is None
        if bare and not (self.operands or self.indices):
            return plain
        found = [encode(value) for encode, value in zip(_ENCODED.values(), _to_encode(self), strict=True)]
        return None if any(each is None for each in found) else (*plain, *found)


#: Fields that are no keys, each as a key that is made of it; None for what cannot be told from another.
_ENCODED: dict[str, Callable[[Any], Hashable | None]] = {
    "functions": fingerprints,
    "operands": lambda operands: tuple([(name, modes) for name, (modes, _) in operands.items()]),
    "indices": lambda indices: tuple(indices.items()),
    "algebra": lambda algebra: () if algebra is None else algebra.said(),
    "schedule": lambda schedule: (schedule if isinstance(schedule, Hashable) else str(schedule),),
}
_to_encode = attrgetter(*_ENCODED)
_as_they_are = attrgetter(*[each.name for each in fields(Options) if each.name not in _ENCODED])


def options_of(request: Request, operands: Mapping[str, torch.Tensor]) -> Options:
    """Options of a call that computes what a plan of this request does."""
    terms = {each.name: each.term for each in request.named if each.layout is not None}
    return Options(
        (request.d_dtype, *request.outputs) if request.outputs else request.d_dtype,
        *types_of(request.arithmetic),
        request.functions.raw,
        {name: (terms[name], tensor) for name, tensor in operands.items()},
        {each.name: each.term[0] for each in request.named if each.layout is None},
        request.raw_algebra,
        backend=request.backend, workspace_limit=request.workspace_limit, tune=request.tune,
        specialize=request.specialize, promote=request.promote, kept_dtype=request.kept, invariant=request.invariant,
    )  # fmt: skip


def types_of(types: Arithmetic) -> tuple[Any, torch.dtype]:
    """`precision` and `accumulate` that ask for this arithmetic."""
    if types.precision != "ieee":
        return types.precision, types.accumulate
    return "3m" if types.three else "ieee_bound" if types.split else types.product, types.accumulate


# -- readers -----------------------------------------------------------------------------------------------------------


def read_operands(operands: Any) -> dict[str, tuple[Hashable, torch.Tensor]]:
    """``{"bias": ("n", bias)}`` with tensors that a kernel sees as they are, and modes that can be looked up."""
    read: dict[str, tuple[Hashable, torch.Tensor]] = {}
    for name, (modes, value) in operand_pairs(operands):
        tensor = as_tensor(f"operand '{name}'", value).resolve_conj().resolve_neg()
        read[name] = (tuple(modes) if isinstance(modes, list) else modes, tensor)
        _check_hashable(f"the modes of operand '{name}'", read[name][0])
    return read


def operand_pairs(operands: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The names of operands, each with its modes and its array."""
    if operands is None:
        return
    if not isinstance(operands, Mapping):
        raise FunctionError(f"operands come as a mapping from names to (modes, tensor), not {type(operands).__name__}")
    for name, pair in operands.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise FunctionError(f"operand '{name}' is a pair (modes, tensor), not {type(pair).__name__}")
        modes, value = pair
        if is_array(modes) and not is_array(value):
            raise ArgumentError(f"operand '{name}' is a pair (modes, tensor), in that order: the two are swapped")
        yield name, (modes, value)


def read_indices(indices: Any) -> dict[str, Label]:
    """``{"i": "m"}``: names of coordinates with their labels."""
    if indices is None:
        return {}
    if not isinstance(indices, Mapping):
        raise FunctionError(f"indices come as a mapping from names to labels, not {type(indices).__name__}")
    for name, label in indices.items():
        _check_hashable(f"the label of index '{name}'", label)
    return dict(indices)


def read_labels(name: str, labels: Any) -> tuple[Label, ...]:
    """Text or a sequence of labels; nothing for None."""
    if labels is not None and not isinstance(labels, (str, list, tuple)):
        raise ArgumentError(f"{name} is text or a sequence of labels, not {type(labels).__name__}")
    found = tuple(labels or ())
    _check_hashable(name, found)
    return found


def _check_hashable(what: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise NotationError(f"{what} cannot be labels: {value!r}") from None


def check_limit(workspace_limit: object) -> None:
    """`UnsupportedError` for a `workspace_limit` that is no number of bytes."""
    if workspace_limit is not None and not isinstance(workspace_limit, int):
        raise UnsupportedError(f"workspace_limit is a number of bytes, not {workspace_limit!r}")
    if workspace_limit is not None and workspace_limit < 0:
        raise UnsupportedError(f"workspace_limit is a number of bytes, 0 or more, not {workspace_limit}")


def check_schedule(schedule: Any) -> None:
    """`ArgumentError` for a `schedule` that is neither None nor one, nor text."""
    if not (schedule is None or isinstance(schedule, str) or hasattr(schedule, "family")):
        raise ArgumentError(f"schedule is one of plan.report().candidates or its text, not {type(schedule).__name__}")


def _checked(check: Callable[[Any], None]) -> Reader:
    """A reader of what stays as it is once it is checked."""

    def read(name: str, value: Any) -> Any:
        check(value)
        return value

    return read


def _one_of(*words: str | None) -> Reader:
    """A reader of one of these words."""

    def read(name: str, value: Any) -> Any:
        if not (value is None or isinstance(value, str)) or value not in words:
            raise UnsupportedError(f"{name}={value!r} is none of {', '.join(map(repr, words))}")
        return value

    return read


read_tune = _one_of(*TUNE)


def _read_kept(name: str, value: Any) -> torch.dtype | None:
    return None if value is None else read_dtype(name, value)


# -- the table ---------------------------------------------------------------------------------------------------------

_CONTRACTIONS = ("contract", "einsum", "matmul", "tensordot", "inner", "outer", "trace")
#: Calls that take the same options.
_KIN = {
    "contract": _CONTRACTIONS, "pair": ("contract",),
    "reducing": ("contract", "einsum", "permute", "grouped", "network"),
    "permute": ("permute", "plan_permute"),
    "grouped": ("grouped", "plan_grouped"), "cascade": ("cascade", "plan_cascade"),
    "blocks": ("blocks.contract",), "network": ("network", "hooks.contract_tree"),
    "whole": ("network",), "sum": ("operator_sum", "OperatorSum"), "jax": ("jax.contract", "jax.einsum"),
    "call": ("a plan's call",), "move": ("a permutation plan's call",),
}  # fmt: skip
_SAME: Any = object()


@dataclass(frozen=True, slots=True)
class Option:
    """An option of public calls: `takers` are calls, or words for several of them.

    `type` is its annotation in `weft.api.keywords`, `says` what it is in one line. `read` makes of a value what
    `Options` has under that name; None where a call reads it by itself.
    """

    name: str
    type: str
    default: Any
    takers: str
    says: str
    read: Reader | None = None
    planned: Any = _SAME  # the default where a call makes a plan, which is for many calls

    @property
    def calls(self) -> tuple[str, ...]:
        """The calls that take it."""
        return tuple(call for taker in self.takers.split() for call in _KIN.get(taker, (taker,)))

    def default_of(self, call: str) -> Any:
        """The default in a call."""
        return self.planned if call.startswith("plan") and self.planned is not _SAME else self.default


_FUNCTION, _DTYPE = "Function | None", "DTypeLike | None"

#: Every option, in the order in which `help` shows them.
OPTIONS: Sequence[Option] = (
    Option("c", "Any", None, "contract plan permute call move", "a tensor that is added, times beta"),
    Option("alpha", "Scalar", 1.0, "contract permute cascade call move", "the factor of the sum"),
    Option("beta", "Scalar | None", None, "contract permute call move", "the factor of c, or of out without a c"),
    Option("out", "Any", None, "contract plan permute grouped operator_sum chain call move",
           "the tensor that D is written to"),
    Option("out_dtype", "OutDtype", None, "contract plan permute grouped blocks network chain cascade jax",
           "the number type of D", lambda _, value: read_types(value, None, None)[0]),
    Option("precision", "Precision | DTypeLike | None", None,
           "contract plan grouped blocks sum network chain cascade jax", "how products are made",
           lambda _, value: read_types(None, value, None)[1]),
    Option("accumulate", _DTYPE, None, "contract plan grouped blocks sum network chain cascade jax",
           "the number type of sums", lambda _, value: read_types(None, None, value)[2]),
    Option("a_fn", _FUNCTION, None, "contract plan grouped blocks jax", "a function of the values of A"),
    Option("b_fn", _FUNCTION, None, "contract plan grouped blocks jax", "a function of the values of B"),
    Option("c_fn", _FUNCTION, None, "contract plan", "a function of the values of C"),
    Option("epilogue", _FUNCTION, None, "contract plan grouped blocks jax", "a function of each sum"),
    Option("between", _FUNCTION, None, "cascade", "a function of each element of S, which may reduce"),
    Option("operands", "Mapping[str, tuple[Any, Any]] | None", None, "contract plan cascade call jax",
           "tensors for further parameters of the functions", lambda _, value: read_operands(value)),
    Option("indices", "Mapping[str, Label] | None", None, "contract plan cascade jax",
           "coordinates for further parameters of the functions", lambda _, value: read_indices(value)),
    Option("algebra", "str | Algebra", "plus_times", "contract plan network cascade jax",
           "the functions in place of product and sum", lambda _, value: find(value)),
    Option("invariant", "str | Sequence[Label] | None", None, "pair plan jax",
           "labels whose extents the bits of each element do not depend on", read_labels),
    Option("deterministic", "bool", True, "contract plan sum network jax",
           "whether results are the same from run to run, as they are with either value", read_flag),
    Option("workspace_limit", "int | None", None, "contract plan permute sum cascade jax",
           "the most bytes to allocate besides D", _checked(check_limit)),
    Option("backend", "Backend", "auto", "contract plan permute grouped blocks sum network chain cascade jax",
           "what computes it", _checked(check_backend)),
    Option("tune", "Tune | None", None, "contract plan permute grouped blocks sum network chain jax",
           "whether a measured schedule is taken", read_tune),
    Option("specialize", "Specialize", "auto", "contract plan permute sum network chain cascade jax",
           "which kernels may serve", _one_of(*SPECIALIZE), "now"),
    Option("schedule", "Schedule | str | None", None, "contract plan permute", "the schedule that is forced",
           _checked(check_schedule)),
    Option("promote", "bool", False, "contract plan permute network jax",
           "whether operands of different types are multiplied in a common one", read_flag),
    Option("kept_dtype", _DTYPE, None, "contract plan", "the number type of sums that a gradient keeps", _read_kept),
    Option("reduce", "Any", None, "reducing", "further results that keep some of D's modes, by name"),
    Option("ragged", "Any", None, "pair", "the offsets of modes whose extents differ from list to list"),
    Option("return_arg", "bool", False, "contract plan", "whether the places of selected pairs are returned, too"),
    Option("validate", "bool", False, "contract call", "whether a sample of D is computed a second time"),
    Option("fn", _FUNCTION, None, "permute", "a function of each element"),
    Option("extents", "Mapping[Label, int] | None", None, "permute", "extents of modes that x lacks"),
    Option("accumulate_into", "bool", False, "grouped", "whether results are added to what out holds"),
    Option("transpose_a", "bool", False, "matmul", "whether a comes transposed"),
    Option("transpose_b", "bool", False, "matmul", "whether b comes transposed"),
    Option("axes", "Any", 2, "tensordot", "the axes that are summed"),
    Option("offset", "int", 0, "trace", "how far above the main diagonal"),
    Option("axis1", "int", 0, "trace", "the first axis of the diagonal"),
    Option("axis2", "int", 1, "trace", "the second axis of the diagonal"),
    Option("output", "Any", None, "whole", "the labels of the result"),
    Option("optimize", "Any", "auto", "einsum whole jax.einsum", "the order of contractions"),
    Option("slices", "Any", (), "network", "the labels that are sliced"),
    Option("functions", "Any", None, "network", "functions of intermediates and of the result"),
    Option("constants", "Sequence[int]", (), "whole", "operands whose values are fixed"),
    Option("dtype", _DTYPE, None, "whole", "the number type of operands that are given as shapes"),
    Option("device", "Any", None, "whole", "where operands are that are given as shapes"),
    Option("memory_limit", "Any", None, "network", "the most bytes besides operands"),
    Option("strip_exponent", "bool", False, "network", "whether the exponent of the result is kept apart"),
    Option("reuse", "bool", False, "network", "whether intermediates are kept from call to call"),
    Option("check_finite", "bool", False, "network", "whether the step that makes NaN or Inf is named"),
    Option("progress", "bool", False, "network", "whether a bar is shown"),
    Option("cuda_graph", "bool | str", "auto", "network", "whether calls are replayed as a CUDA graph"),
)  # fmt: skip
OF_NAME = {option.name: option for option in OPTIONS}
#: Options that hold for the last of several contractions; all others hold for each.
LAST = ("c", "alpha", "beta", "out", "out_dtype", "c_fn", "epilogue", "operands", "indices", "return_arg", "kept_dtype")
#: The options of each call.
TAKEN: dict[str, tuple[str, ...]] = {
    call: tuple(option.name for option in OPTIONS if call in option.calls)
    for call in dict.fromkeys(call for option in OPTIONS for call in option.calls)
}
