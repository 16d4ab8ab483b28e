"""The public calls that move data: `permute` and `plan_permute`, and `transpose_`, which does it in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from weft.api.options import fingerprints
from weft.base.arrays import as_result, as_tensor, like
from weft.base.bounded_cache import BoundedCache
from weft.base.describe import describe_call
from weft.errors import DTypeError, NotationError, ShapeError, UnsupportedError, call_context
from weft.fn import Pointwise, trace
from weft.planner.at_hand import check_specialize
from weft.planner.planner import check_tune
from weft.planner.request import PermuteRequest
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.planner.validity import generation
from weft.plans.call_cache import CallCache, KnownCall, call_signature
from weft.plans.checks import checked_scalar, reject_gradient
from weft.plans.permutation import PermutePlan
from weft.selftest.gate import check_in_place
from weft.spec import Label, Layout, Notation, parse
from weft.spec.dtypes import dtype_name
from weft.spec.memory import overlaps_itself
from weft.spec.notation import expand, from_sequences
from weft.spec.permutation import checked_extents, permutation_extents, scaling_type
from weft.spec.transpose import InPlace

Equation = str | Sequence[Sequence[Label]]
Function = Callable[..., Any]

_CALLS = CallCache(4096)  # plans by all that a call says
_PLANS = BoundedCache(4096)  # by request: asked where a call is not known
# The rooms that transpose in place, imported when first asked.
_IN_PLACE = {
    "cpu": "weft.cpu.permute.transpose", "triton": "weft.gpu.transpose.family", "reference": "weft.oracle.reference",
}  # fmt: skip


def permute(
    x: Any,
    equation: Equation,
    *,
    fn: Function | None = None,
    out: Any = None,
    out_dtype: torch.dtype | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    extents: Mapping[Label, int] | None = None,
    workspace_limit: int | None = None,
    backend: str = "auto",
    tune: str | None = None,
    specialize: str = "auto",
) -> Any:
    """Rearrange the modes of a tensor: ``out = alpha * fn(permuted x) + beta * out``, in one pass over memory.

    `equation` names the modes of `x` and of the result: text (``"abc->cab"``, ``"...ab->...ba"``) or two sequences of
    hashable labels. A label that `x` repeats is its diagonal. A label of the result that `x` lacks, or has with extent
    1, is broadcast along; its extent comes from `extents` (``{"b": 5}``) or from `out`. A label that the result lacks
    is an error: `weft.einsum` sums.

    `x`: a torch tensor with any strides, or an array that speaks DLPack; elements of 1 to 16 bytes. `fn`: a Python
    function of torch operations, traced and fused, which sees values of `x`'s type. `out`: where the result goes, any
    strides, sharing no memory with `x`. `out_dtype`: the result's type, by default `out`'s, else that of `fn`'s
    results, else `x`'s; a cast costs no pass of its own. `alpha` and `beta` are applied in the wider of the two types,
    half precision by way of float32 and integers in int64; with ``beta == 0`` `out` is not read.

    Where nothing is computed the bits of each element arrive as they are. A conjugate view is conjugated on the way; a
    negative view is resolved first.

    `workspace_limit`: most bytes to allocate besides the result. `backend`: ``"auto"``, ``"triton"``, ``"cpu"`` or
    ``"reference"``. `tune` as for `contract`: None, ``"measure"`` or ``"model"``. `specialize` as for `contract`.

    Returns the result, never a view of `x`, as the kind of array that `x` is; or `out` when that is given. Raises a
    `weft.WeftError` (`NotationError`, `ShapeError`, `DTypeError`, `FunctionError`, `UnsupportedError`,
    `WorkspaceError`); nothing is written then.

    >>> import torch, weft
    >>> weft.permute(torch.tensor([[1, -2], [3, -4]]), "ab->ba", fn=torch.relu)
    tensor([[1, 3],
            [0, 0]])
    >>> weft.permute(torch.tensor([1.5, 2.5]), "a->ba", extents={"b": 2})
    tensor([[1.5000, 2.5000],
            [1.5000, 2.5000]])
    """
    with call_context(lambda: describe_call("permute", equation, x=x, out=out)):
        source = as_tensor("x", x).resolve_neg()
        target = as_result(out) if out is not None else None
        found = _find_plan(equation, source, target, fn, out_dtype, extents, workspace_limit, backend, tune,
                           specialize)  # fmt: skip
        result = found.run(source, target, alpha, beta)
    return out if out is not None else like(x, result)


def plan_permute(
    x: Any,
    equation: Equation,
    *,
    fn: Function | None = None,
    out: Any = None,
    out_dtype: torch.dtype | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    extents: Mapping[Label, int] | None = None,
    workspace_limit: int | None = None,
    backend: str = "auto",
    tune: str | None = None,
    specialize: str = "now",
) -> PermutePlan:
    """Plan a permutation without running it; arguments and errors as for `permute`.

    The plan holds for tensors that lie as `x` does. What `out`, `alpha` and `beta` ask for is prepared; other values
    of them are prepared when a call first brings them.

    >>> import torch, weft
    >>> x = torch.rand(8, 5, 7)
    >>> p = weft.plan_permute(x, "abc->cba")
    >>> torch.equal(p(x), x.permute(2, 1, 0))
    True
    """
    with call_context(lambda: describe_call("plan_permute", equation, x=x, out=out)):
        source = as_tensor("x", x).resolve_neg()
        target = as_result(out) if out is not None else None
        found = _find_plan(equation, source, target, fn, out_dtype, extents, workspace_limit, backend, tune,
                           specialize)  # fmt: skip
        return found.prepare(source, target, alpha, beta)


def transpose_(x: Any, dims: Sequence[int] = (-2, -1), *, alpha: Scalar = 1.0, backend: str = "auto") -> Any:
    """Transpose the matrices along two dimensions of `x` in its own memory, scaled by `alpha`.

    Square matrices may have any strides. The result is `x` itself: its element [i, j] is then `alpha` times what
    [j, i] was.

    Matrices that are not square must lie dense, row- or column-major (up to a common step; the other dimensions lie as
    they like). The result is a view of the same memory with the two extents exchanged, row-major where `x` was,
    column-major where `x` was. `x` keeps its shape and strides; it now shows the same elements in an order that means
    nothing, and is best forgotten: ``x = weft.transpose_(x)``.

    Every element is read and written once where matrices are square, else two or three times; on the GPU up to six
    times where the extents have no divisor that suits. The workspace hardly grows with the matrix: on the CPU it is at
    most 2 MiB for each thread (more, in proportion to the shorter side, from 16 Ki elements along that side on) and a
    thousandth of the matrix; on the GPU an eighth of `x`, but at least 8 and at most 32 MiB (see
    `weft.gpu.transpose.family`). On the CPU a large matrix that is not square and whose elements have gaps between
    them goes by way of a copy, and so does any matrix where numba is missing.

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
    with call_context(lambda: describe_call("transpose_", tuple(dims) if isinstance(dims, Sequence) else dims, x=x)):
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
        with torch.no_grad():
            _transpose(tensor, described, factor if factor != 1 else 1, resolve_backend(backend, tensor.device))
        if described.square:
            return x
        result = tensor.as_strided(described.result_shape(), described.result_strides(), tensor.storage_offset())
    return like(x, result)


def _transpose(tensor: torch.Tensor, described: InPlace, alpha: Scalar, backend: str) -> None:
    if tensor.numel() == 0:
        return
    if described.trivial:
        if alpha != 1:
            tensor.mul_(alpha)
        return
    room = import_module(_IN_PLACE[backend])
    if backend == "triton" and alpha != 1 and tensor.is_complex():
        raise UnsupportedError(f"{dtype_name(tensor.dtype)} is not scaled on the GPU yet")
    if backend != "reference":
        check_in_place(room.__name__, described, backend, target_of(backend, tensor.device))
    transpose = room.square_ if described.square else room.rectangular_
    for stack in described.stacks(tensor):
        transpose(stack, alpha)


def _find_plan(
    equation: Equation,
    x: torch.Tensor,
    out: torch.Tensor | None,
    fn: Function | None,
    out_dtype: torch.dtype | None,
    extents: Mapping[Label, int] | None,
    workspace_limit: int | None,
    backend: str,
    tune: str | None,
    specialize: str,
) -> PermutePlan:
    """The plan for this request, remembered by everything it depends on."""
    check_tune(tune)
    check_specialize(specialize)
    notation_key = _notation_key(equation)
    given = checked_extents(extents) if extents is not None else {}
    if out_dtype is None and out is not None:
        out_dtype = out.dtype
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise DTypeError(f"out_dtype is a torch dtype, not {out_dtype!r}")
    if workspace_limit is not None and not isinstance(workspace_limit, int):
        raise UnsupportedError(f"workspace_limit is a number of bytes, not {workspace_limit!r}")
    shape = tuple(out.shape) if out is not None else None
    signature, prints = call_signature(x), fingerprints((fn,))
    key: Hashable | None = None
    if signature is not None and prints is not None:  # a function that cannot be seen through is traced each time
        key = (
            notation_key, signature, shape, out_dtype, prints, tuple(given.items()), workspace_limit, backend, tune,
            specialize, generation(),
        )  # fmt: skip
    known = _CALLS.get(key)
    if known is not None:
        found: PermutePlan = known.plan
        return found
    request = _resolve(notation_key, x, shape, fn, out_dtype, given, workspace_limit, backend)
    request = replace(request, tune=tune, specialize=specialize)
    # Two ways to write one request, or a retraced function that turns out the same, share one plan.
    plan = _PLANS.get((request, generation()))
    if plan is None:
        plan = PermutePlan(request)
        _PLANS.put((request, generation()), plan)
    if key is not None:
        _CALLS.put(key, KnownCall(plan))
    return plan


def _resolve(
    equation: str | Notation,
    x: torch.Tensor,
    out_shape: tuple[int, ...] | None,
    fn: Function | None,
    out_dtype: torch.dtype | None,
    extents: Mapping[Label, int],
    workspace_limit: int | None,
    backend: str,
) -> PermuteRequest:
    """Check everything that does not need the result but its shape."""
    notation = parse(equation, new_labels=True) if isinstance(equation, str) else equation
    if len(notation.inputs) != 1:
        raise NotationError(f"permute takes one operand, '{notation}' names {len(notation.inputs)}")
    notation = expand(notation, [x.dim()])
    found = permutation_extents(notation, x.shape, extents, out_shape)
    reject_gradient("x", x)
    traced = trace(fn, (x.dtype,), hook="fn") if fn is not None else None
    chosen = resolve_backend(backend, x.device)
    return PermuteRequest(
        notation=notation,
        text=str(equation),
        x=Layout.of(x),
        extents=tuple(found.items()),
        conjugate=x.is_conj(),
        d_dtype=_result_type(x.dtype, traced, out_dtype),
        fn=traced,
        backend=chosen,
        device=x.device,
        target=target_of(chosen, x.device),
        workspace_limit=workspace_limit,
        raw=fn,
    )


def _result_type(x: torch.dtype, fn: Pointwise | None, out_dtype: torch.dtype | None) -> torch.dtype:
    value = fn.result if fn is not None else x
    if isinstance(value, tuple):
        raise UnsupportedError(f"fn returns {len(value)} values: several outputs are not supported yet")
    if out_dtype is None:
        return value
    if not torch.can_cast(value, out_dtype):
        raise DTypeError(f"values of type {dtype_name(value)} cannot be stored as {dtype_name(out_dtype)}")
    return out_dtype


def _notation_key(equation: Equation) -> str | Notation:
    """Text as it is, sequences of labels as a `Notation`: either can be looked up."""
    if isinstance(equation, str):
        return equation
    if not isinstance(equation, Iterable):
        raise NotationError(f"an equation is text or two sequences of labels, not {type(equation).__name__}")
    terms = tuple(equation)
    if len(terms) != 2:
        raise NotationError(f"labels come as two sequences (modes of x, modes of the result), {len(terms)} are given")
    return from_sequences(*terms, new_labels=True)
