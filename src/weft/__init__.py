"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from importlib import import_module as _import_module
from typing import Any as _Any

from weft import algebra, blocks, cache, functions, reference, testing
from weft.algebra import Algebra
from weft.api.contract import contract, plan
from weft.api.einsum import einsum
from weft.api.keywords import Equation, Function
from weft.api.matmul import matmul
from weft.api.numpy_words import inner, outer, tensordot, trace, transpose
from weft.api.permute import permute, plan_permute
from weft.api.transpose import transpose_
from weft.api.warm import warm
from weft.base.log import start as _start_log
from weft.base.version import __version__
from weft.errors import (
    AccuracyError,
    ArgumentError,
    DTypeError,
    FunctionError,
    NotationError,
    ShapeError,
    UnsupportedError,
    WeftError,
    WeftWarning,
    WorkspaceError,
)
from weft.groups.chain import chain
from weft.groups.grouped import GroupedPlan, grouped, plan_grouped
from weft.groups.operator_sum import OperatorSum, operator_sum
from weft.oracle.bounds import error_bound
from weft.plans.contraction import Plan
from weft.plans.explain.data import Report
from weft.plans.permutation import PermutePlan

_start_log()

#: Rooms that are imported when they are first named, as they import other libraries.
_LATER = ("hooks", "tn")


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return _import_module(f"weft.{name}")
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


__all__ = [
    "AccuracyError",
    "Algebra",
    "ArgumentError",
    "DTypeError",
    "Equation",
    "Function",
    "FunctionError",
    "GroupedPlan",
    "NotationError",
    "OperatorSum",
    "PermutePlan",
    "Plan",
    "Report",
    "ShapeError",
    "UnsupportedError",
    "WeftError",
    "WeftWarning",
    "WorkspaceError",
    "__version__",
    "algebra",
    "blocks",
    "cache",
    "chain",
    "contract",
    "einsum",
    "error_bound",
    "functions",
    "grouped",
    "inner",
    "matmul",
    "operator_sum",
    "outer",
    "permute",
    "plan",
    "plan_grouped",
    "plan_permute",
    "reference",
    "tensordot",
    "testing",
    "trace",
    "transpose",
    "transpose_",
    "warm",
]
