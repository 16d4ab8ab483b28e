"""The one signature, as type checkers and `help` read it: the types of the keywords that the public calls share.

The table of options, `weft.planner.options`, says which call takes what; type checkers read these classes.

Within `torch.autocast` torch casts floating operands of a product, but for float64, to autocast's type, and the result
has it (torch's documentation of automatic mixed precision, "CUDA Ops that can autocast to float16"). Keywords say the
same here: the operands are converted as they are read, and no copies are made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

import torch

from weft.algebra import Algebra
from weft.base.arrays import is_array
from weft.errors import ArgumentError
from weft.planner.options import OF_NAME, TAKEN
from weft.planner.schedule import Schedule
from weft.plans.keywords import CallKeywords, FactorKeywords
from weft.spec import Label
from weft.spec.dtypes import DTypeLike

Equation: TypeAlias = str | Sequence[Sequence[Label]]
Function: TypeAlias = Callable[..., Any]
Backend: TypeAlias = Literal["auto", "triton", "cpu", "reference"]
Precision: TypeAlias = Literal["ieee", "ieee_bound", "tf32", "tf32x3", "3m"]
Tune: TypeAlias = Literal["model", "measure"]
Specialize: TypeAlias = Literal["auto", "now", "never", "library"]
OutDtype: TypeAlias = "DTypeLike | tuple[DTypeLike | None, ...] | None"


class PermuteKeywords(TypedDict, total=False):
    """Keywords of every plan."""

    out_dtype: OutDtype
    workspace_limit: int | None
    backend: Backend
    tune: Tune | None
    specialize: Specialize
    schedule: Schedule | str | None
    promote: bool


class PlanKeywords(PermuteKeywords, total=False):
    """Keywords of plans of contractions."""

    precision: Precision | DTypeLike | None
    accumulate: DTypeLike | None
    a_fn: Function | None
    b_fn: Function | None
    c_fn: Function | None
    operands: Mapping[str, tuple[Any, Any]] | None
    indices: Mapping[str, Label] | None
    algebra: str | Algebra
    deterministic: bool
    kept_dtype: DTypeLike | None
    invariant: str | Sequence[Label] | None


class ContractKeywords(PlanKeywords, CallKeywords, total=False):
    """Keywords of `contract`, but for `epilogue`, `reduce`, `ragged` and `return_arg`, which decide what it returns."""


class TensorKeywords(ContractKeywords, total=False):
    """Keywords of calls whose result is one tensor."""

    epilogue: Callable[..., torch.Tensor] | None
    return_arg: Literal[False]


class AnyKeywords(ContractKeywords, total=False):
    """Keywords of calls whose result their values decide."""

    epilogue: Function | None
    return_arg: bool


class MovingKeywords(PermuteKeywords, FactorKeywords, total=False):
    """Keywords of `permute`, but for `reduce`, which decides what it returns."""

    fn: Function | None
    extents: Mapping[Label, int] | None


class EinsumKeywords(ContractKeywords, total=False):
    """Keywords of `einsum`, but for those two."""

    optimize: Any


class NetworkKeywords(TypedDict, total=False):
    """Keywords of `network`, but for `strip_exponent`, which decides what its calls return."""

    output: Any
    optimize: Any
    memory_limit: int | str | None
    slices: Any
    functions: Mapping[Any, Function] | None
    constants: Sequence[int]
    dtype: DTypeLike | None
    device: Any
    reuse: bool
    check_finite: bool
    progress: bool
    cuda_graph: bool | Literal["auto"]
    out_dtype: DTypeLike | None
    precision: Precision | DTypeLike | None
    accumulate: DTypeLike | None
    algebra: str | Algebra
    backend: Backend
    specialize: Specialize
    tune: Tune | None
    promote: bool
    deterministic: bool


AUTOCAST = frozenset((torch.float16, torch.bfloat16, torch.float32))  # types of operands that it converts

Call = TypeVar("Call", bound=Callable[..., Any])


def refuse_swapped(call: str, equation: object, form: str) -> None:
    """`ArgumentError` where an array stands in the place of an equation."""
    if is_array(equation):
        raise ArgumentError(f"the equation comes first: weft.{call}({form}); an array stands in its place")


def signed(call: str, first: Sequence[str], result: Any = Any) -> Callable[[Call], Call]:
    """Show the whole signature where `help` and editors ask for it; the function itself takes keywords as they come."""

    def show(function: Call) -> Call:
        given = inspect.signature(function).parameters
        kinds = inspect.Parameter
        places = [
            kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=given[name].default, annotation=given[name].annotation)
            if given[name].kind is kinds.POSITIONAL_OR_KEYWORD
            else given[name]
            for name in first
        ]
        shared = [kinds(name, kinds.KEYWORD_ONLY, default=OF_NAME[name].default_of(call)) for name in TAKEN[call]]
        function.__signature__ = inspect.Signature([*places, *shared], return_annotation=result)  # type: ignore[attr-defined]
        return function

    return show


def with_autocast(keywords: dict[str, Any], a: Any, b: Any, out: Any) -> dict[str, Any]:
    """`keywords` as autocast has them; unchanged where it does not apply, or where a type of products is named."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return keywords
    return autocast_keywords(keywords, a.device.type, (a.dtype, b.dtype), out is not None)


def autocast_keywords(
    keywords: dict[str, Any], kind: str, stored: tuple[torch.dtype, torch.dtype], given: bool
) -> dict[str, Any]:
    """`with_autocast` of operands stored in two types on a `kind` of device; `given`: the result has a place."""
    if (chosen := autocast_type(kind, *stored)) is None or keywords.get("precision") is not None:
        return keywords
    algebra = keywords.get("algebra", "plus_times")
    if not isinstance(algebra, str) or algebra != "plus_times":
        return keywords
    found = {**keywords, "precision": chosen}
    if stored[0] != stored[1]:
        found["promote"] = True
    if not given and keywords.get("out_dtype") is None:
        found["out_dtype"] = chosen
    return found


def cast_by_autocast(tensors: Sequence[torch.Tensor], precision: Any) -> list[torch.Tensor]:
    """The operands of calls that take them in one type, as torch casts them; as they are where `precision` names a type
    of products."""
    if precision is not None or not all(isinstance(each, torch.Tensor) for each in tensors):
        return list(tensors)
    chosen = autocast_type(tensors[0].device.type, *[each.dtype for each in tensors])
    return list(tensors) if chosen is None else [tensor.to(chosen) for tensor in tensors]


def is_cast(*tensors: torch.Tensor) -> bool:
    """Whether torch would cast these operands of a product now."""
    return autocast_type(tensors[0].device.type, *[each.dtype for each in tensors]) is not None


def autocast_type(kind: str, *stored: torch.dtype) -> torch.dtype | None:
    """The type that autocast has products of such operands made in on a kind of device; None where it casts none."""
    if kind == "meta" or not torch.is_autocast_enabled(kind) or not AUTOCAST.issuperset(stored):
        return None
    return torch.get_autocast_dtype(kind)
