"""weft: tensor contractions on GPUs and CPUs, with your own functions woven into the kernel."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from weft.base.extensions import NAMES as _NAMES
from weft.base.extensions import public as _public
from weft.base.interpreter import only_tells as _only_tells
from weft.base.version import __version__

if TYPE_CHECKING or not _only_tells():  # what imports torch
    from weft import algebra, blocks, cache, functions, nn, reference, testing
    from weft.algebra import Algebra
    from weft.api.contract import contract, plan
    from weft.api.describe import warm
    from weft.api.einsum import einsum
    from weft.api.keywords import Equation, Function
    from weft.api.numpy_words import inner, matmul, outer, tensordot, trace, transpose
    from weft.api.permute import permute, plan_permute
    from weft.api.transpose import transpose_
    from weft.base.log import start as _start_log
    from weft.cascades import reduced as _reduced  # noqa: F401  # which takes calls with reductions, and sums of three
    from weft.cascades.public import cascade, plan_cascade
    from weft.compiled import calls as _calls  # noqa: F401  # torch's operations; the name is for nothing else
    from weft.errors import (
        AccuracyError,
        ArgumentError,
        DTypeError,
        FunctionError,
        NotationError,
        RankError,
        ShapeError,
        UnsupportedError,
        WeftError,
        WeftWarning,
        WorkspaceError,
    )
    from weft.fn.reductions import amax, amin, argmax, argmin, log_softmax, logsumexp, mean, softmax, sum
    from weft.groups import ragged as _ragged  # noqa: F401  # which takes the calls of contract with ragged modes
    from weft.groups.grouped import grouped, plan_grouped
    from weft.groups.operators import OperatorSum, chain, operator_sum
    from weft.groups.plan import GroupedPlan
    from weft.networks.network import Network
    from weft.networks.public import network
    from weft.oracle.bounds import error_bound
    from weft.planner.validity import precision, set_precision
    from weft.plans.contraction import Plan
    from weft.plans.explain.report import Report
    from weft.plans.known_call import BoundCall
    from weft.plans.permutation import PermutePlan

    _start_log()

if TYPE_CHECKING:
    from collections.abc import Callable as _Callable

    from weft.cascades.plan import CascadePlan

    energy: _Callable[..., _Any]
    profile: _Callable[..., _Any]

#: What is imported when it is first named: rooms that import other libraries, and what few programs use.
_LATER = {
    "distributed": "weft.distributed",
    "hooks": "weft.hooks",
    "tn": "weft.tn",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return _import_module(_LATER[name])
    if name == "CascadePlan":  # of a room that few programs use
        return _import_module("weft.cascades.plan").CascadePlan
    if name in _NAMES:
        return _public(name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


__all__ = [
    "AccuracyError",
    "Algebra",
    "ArgumentError",
    "BoundCall",
    "CascadePlan",
    "DTypeError",
    "Equation",
    "Function",
    "FunctionError",
    "GroupedPlan",
    "Network",
    "NotationError",
    "OperatorSum",
    "PermutePlan",
    "Plan",
    "RankError",
    "Report",
    "ShapeError",
    "UnsupportedError",
    "WeftError",
    "WeftWarning",
    "WorkspaceError",
    "__version__",
    "algebra",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "blocks",
    "cache",
    "cascade",
    "chain",
    "contract",
    "einsum",
    "energy",
    "error_bound",
    "functions",
    "grouped",
    "inner",
    "log_softmax",
    "logsumexp",
    "matmul",
    "mean",
    "network",
    "nn",
    "operator_sum",
    "outer",
    "permute",
    "plan",
    "plan_cascade",
    "plan_grouped",
    "plan_permute",
    "precision",
    "profile",
    "reference",
    "set_precision",
    "softmax",
    "sum",
    "tensordot",
    "testing",
    "trace",
    "transpose",
    "transpose_",
    "warm",
]
