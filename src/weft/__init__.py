"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from weft.api import contract, einsum, plan
from weft.errors import (
    DTypeError,
    FunctionError,
    NotationError,
    ShapeError,
    UnsupportedError,
    WeftError,
    WorkspaceError,
)
from weft.plan.plan import Plan

__version__ = "0.1.0"

__all__ = [
    "DTypeError",
    "FunctionError",
    "NotationError",
    "Plan",
    "ShapeError",
    "UnsupportedError",
    "WeftError",
    "WorkspaceError",
    "__version__",
    "contract",
    "einsum",
    "plan",
]
