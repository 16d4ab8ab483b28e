"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from typing import TYPE_CHECKING, Any

from weft import algebra, cache, functions, reference, testing
from weft.algebra import Algebra
from weft.api.contract import contract, plan
from weft.api.keywords import Equation, Function
from weft.api.matmul import matmul
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
from weft.networks.network import Network
from weft.networks.public import einsum, network
from weft.oracle.bounds import error_bound
from weft.plans.contraction import Plan
from weft.plans.explain.data import Report
from weft.plans.permutation import PermutePlan

if TYPE_CHECKING:
    from weft.profiling.api import energy, profile

_start_log()


def __getattr__(name: str) -> Any:
    """What few programs use is imported when it is first asked for."""
    if name in ("energy", "profile"):
        from weft.profiling import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AccuracyError",
    "Algebra",
    "ArgumentError",
    "DTypeError",
    "Equation",
    "Function",
    "FunctionError",
    "Network",
    "NotationError",
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
    "cache",
    "contract",
    "einsum",
    "energy",
    "error_bound",
    "functions",
    "matmul",
    "network",
    "permute",
    "plan",
    "plan_permute",
    "profile",
    "reference",
    "testing",
    "transpose_",
    "warm",
]
