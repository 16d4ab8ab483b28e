"""weft's calls on arrays of JAX: under `jit`, `grad` and `vmap`, on a CPU and on GPUs, without copies.

A call is one custom call of XLA, whose handler launches weft's kernels on XLA's buffers and stream. Functions are
written in `jax.numpy`.
"""

from weft.errors import UnsupportedError as _UnsupportedError

try:
    import jax as _jax  # noqa: F401
except ImportError as _error:
    raise _UnsupportedError("weft.jax needs JAX, which is not installed: pip install 'weft-tensor[jax]'") from _error

from weft.jax.contraction import contract, einsum
from weft.jax.functions import amax, amin, log_softmax, logsumexp, mean, softmax, sum
from weft.jax.whole import cascade, network

__all__ = [
    "amax", "amin", "cascade", "contract", "einsum", "log_softmax", "logsumexp", "mean", "network", "softmax", "sum",
]  # fmt: skip
