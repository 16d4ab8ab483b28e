"""The one signature, as type checkers and `help` read it: the types of the keywords that the public calls share.

The table of options, `weft.planner.options`, says which call takes what; type checkers read these classes.
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
from weft.spec.type_names import DTypeLike

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
