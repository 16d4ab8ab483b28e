"""The public call that transposes in place: `transpose_`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, overload

import torch

from weft.base.arguments import describe_call
from weft.base.arrays import Array, as_result, grad_mode, increment_version, is_array, like, written
from weft.base.dispatch import is_dynamo_compiling, is_traced, outside
from weft.engine.calls import CALLS
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.planner.registry import need_triton
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.plans.checks import checked_scalar, reject_gradient
from weft.selftest.gate import check_in_place
from weft.spec.dtypes import dtype_name
from weft.spec.memory import overlaps_itself
from weft.spec.permutation import InPlace, scaling_type

# The rooms that transpose in place, imported at their first use.
_IN_PLACE = {
    "cpu": "weft.cpu.permute.transpose", "triton": "weft.gpu.transpose.family", "reference": "weft.oracle.reference",
}  # fmt: skip


class _KnownTranspose:
    """A call that scales nothing, of a tensor with a known layout."""

    def __init__(self, described: InPlace, transpose: Callable[..., None]) -> None:
        self._transpose, self._square = transpose, described.square
        self._shape, self._strides, self._offsets = described.places()
        self._result = described.result_shape(), described.result_strides()

    def run(self, x: torch.Tensor) -> torch.Tensor:
        base = x.storage_offset()
        for offset in self._offsets:
            self._transpose(x.as_strided(self._shape, self._strides, base + offset), 1)
        if not x.is_inference():
            increment_version((x,))  # as `written`
        return x if self._square else x.as_strided(*self._result, base)


@overload
def transpose_(x: Array, dims: Sequence[int] = (-2, -1), *, alpha: Scalar = 1.0, backend: str = "auto") -> Array: ...
@overload
def transpose_(x: Any, dims: Sequence[int] = (-2, -1), *, alpha: Scalar = 1.0, backend: str = "auto") -> Any: ...
def transpose_(x: Any, dims: Sequence[int] = (-2, -1), *, alpha: Scalar = 1.0, backend: str = "auto") -> Any:
    """Transpose the matrices along two dimensions of `x` in its own memory, scaled by `alpha`.

    Square matrices may have any strides. The result is `x` itself: its element [i, j] is then `alpha` times what
    [j, i] was.

    Matrices that are not square must be dense, row- or column-major (up to a common step; the other dimensions may have
    any strides). The result is a view of the same memory with the two extents exchanged, row-major where `x` was,
    column-major where `x` was. `x` keeps its shape and strides; it now shows the same elements in an order that means
    nothing, and is best forgotten: ``x = weft.transpose_(x)``.

    Every element is read and written once where matrices are square, else two or three times. The workspace hardly
    grows with the matrix: on the CPU it is at most 2 MiB for each thread (more, in proportion to the shorter side, from
    16 Ki elements along that side on) and a thousandth of the matrix; on the GPU an eighth of `x`, but at least 8 and
    at most 32 MiB (see `weft.gpu.transpose.family`). On the CPU a large matrix that is not square and whose elements
    have gaps between them goes by way of a copy, and so does any matrix where numba is missing.

    `dims`: the two dimensions. `alpha`: applied in `x`'s type, half precision by way of float32 and integers in int64.
    `backend` as for `permute`. Raises `ShapeError` where elements of `x` share memory (expanded, overlapping) and for
    matrices that are neither square nor dense, `UnsupportedError` for conjugate and negative views, read-only arrays
    and tensors that require a gradient, `DTypeError` for an `alpha` that does not fit; nothing is written then.

    >>> import torch, weft
    >>> x = torch.arange(6).reshape(2, 3)
    >>> weft.transpose_(x)
    tensor([[0, 3],
            [1, 4],
            [2, 5]])
    >>> x
    tensor([[0, 3, 1],
            [4, 2, 5]])
    """
    if is_dynamo_compiling():
        return outside(transpose_, x, dims, alpha=alpha, backend=backend)
    place = None
    plain = type(x) is torch.Tensor and type(dims) is tuple and type(alpha) in (float, int) and alpha == 1
    if plain and {*map(type, dims), type(backend)} == {int, str}:
        known, place = CALLS.find(("transpose_", dims, backend), (x,))
        if known is not None:
            return known.run(x)
    with call_context(lambda: describe_call("transpose_", tuple(dims) if isinstance(dims, Sequence) else dims, x=x)):
        if is_array(dims) and not is_array(x):
            raise ArgumentError("the tensor comes first: weft.transpose_(x, dims)")
        tensor = as_result(x, "x")
        if tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("x is a conjugate or negative view: transpose the tensor it is a view of")
        reject_gradient("x", tensor)
        described = InPlace.of(tensor, dims)
        if overlaps_itself(tensor):
            raise ShapeError(f"x with strides {tensor.stride()} overlaps itself: its elements cannot change places")
        factor = checked_scalar("alpha", alpha, scaling_type(tensor.dtype, tensor.dtype))
        if factor != 1 and tensor.dtype is torch.bool:
            raise DTypeError("bool is not scaled")
        with grad_mode(False):
            traced = is_traced((tensor,))  # then by operations of torch, which are seen
            chosen = resolve_backend("reference" if traced else backend, tensor.device)
            _transpose(tensor, described, factor if factor != 1 else 1, chosen)
        if not traced:
            written((tensor,))
        if place is not None and not traced and not described.trivial:
            CALLS.keep(place, (x,), _KnownTranspose(described, _in_place(described, chosen)))
        if described.square:
            return x
        result = tensor.as_strided(described.result_shape(), described.result_strides(), tensor.storage_offset())
    return like(x, result)


def _transpose(tensor: torch.Tensor, described: InPlace, alpha: Scalar, backend: str) -> None:
    if tensor.numel() == 0:
        return
    if alpha == 0:  # as in BLAS nothing is read
        tensor.zero_()
        return
    if described.trivial:
        if alpha != 1:
            tensor.mul_(alpha)
        return
    if backend == "triton":
        need_triton("a transposition in place runs on a GPU")
    if backend == "triton" and alpha != 1 and tensor.is_complex():
        raise UnsupportedError(f"{dtype_name(tensor.dtype)} is not scaled on the GPU yet")
    if backend != "reference":
        check_in_place(_IN_PLACE[backend], described, backend, target_of(backend, tensor.device))
    transpose = _in_place(described, backend)
    for stack in described.stacks(tensor):
        transpose(stack, alpha)


def _in_place(described: InPlace, backend: str) -> Callable[..., None]:
    """The function of a backend that transposes stacks of such matrices in place."""
    room = import_module(_IN_PLACE[backend])
    found: Callable[..., None] = room.square_ if described.square else room.rectangular_
    return found
