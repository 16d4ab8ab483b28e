"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from weft import reference
from weft.algebra import Algebra
from weft.api.contract import contract, einsum, plan
from weft.api.matmul import matmul
from weft.api.permute import permute, plan_permute, transpose_
from weft.api.warm import warm
from weft.base.version import __version__
from weft.errors import (
    AccuracyError,
    DTypeError,
    FunctionError,
    NotationError,
    ShapeError,
    UnsupportedError,
    WeftError,
    WeftWarning,
    WorkspaceError,
)
from weft.oracle.bounds import error_bound
from weft.plans.contraction import Plan
from weft.plans.permutation import PermutePlan

__all__ = [
    "AccuracyError",
    "Algebra",
    "DTypeError",
    "FunctionError",
    "NotationError",
    "PermutePlan",
    "Plan",
    "ShapeError",
    "UnsupportedError",
    "WeftError",
    "WeftWarning",
    "WorkspaceError",
    "__version__",
    "contract",
    "einsum",
    "error_bound",
    "matmul",
    "permute",
    "plan",
    "plan_permute",
    "reference",
    "transpose_",
    "warm",
]
