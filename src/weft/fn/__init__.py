"""User functions: ordinary Python on torch operations, recorded as pointwise graphs and written out as Triton.

`trace` makes a `Pointwise` of a function; `fingerprint` tells cheaply whether a function may have changed since.
Importing this room imports no Triton; only `Pointwise.jit` does.
"""

from weft.fn.fingerprint import fingerprint
from weft.fn.pointwise import Pointwise
from weft.fn.trace import trace

__all__ = ["Pointwise", "fingerprint", "trace"]
