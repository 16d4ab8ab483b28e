"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from weft.accuracy import error_bound
from weft.algebra import Algebra
from weft.api import contract, einsum, plan
from weft.dense import matmul
from weft.errors import (
    AccuracyError,
    DTypeError,
    FunctionError,
    NotationError,
    ShapeError,
    UnsupportedError,
    WeftError,
    WorkspaceError,
)
from weft.layout import permute, plan_permute, transpose_
from weft.plan.permute_plan import PermutePlan
from weft.plan.plan import Plan

__version__ = "0.1.0"

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
    "WorkspaceError",
    "__version__",
    "contract",
    "einsum",
    "error_bound",
    "matmul",
    "permute",
    "plan",
    "plan_permute",
    "transpose_",
]
