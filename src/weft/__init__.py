"""weft: tensor contractions on GPUs, with your own functions woven into the kernel."""

from weft.errors import (
    DTypeError,
    FunctionError,
    NotationError,
    ShapeError,
    UnsupportedError,
    WeftError,
    WorkspaceError,
)

__version__ = "0.1.0"

__all__ = [
    "DTypeError",
    "FunctionError",
    "NotationError",
    "ShapeError",
    "UnsupportedError",
    "WeftError",
    "WorkspaceError",
    "__version__",
]
