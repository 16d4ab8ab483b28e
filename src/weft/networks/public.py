"""`network` and `einsum`: what users call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

import torch

from weft.api.einsum import einsum_of_few, einsum_words
from weft.api.keywords import EinsumKeywords, Function, NetworkKeywords, signed
from weft.base.arrays import Array, Scaled, as_tensors, is_array, outside_inference
from weft.base.describe import describe_many
from weft.base.devices import read_device
from weft.base.dispatch import as_operation, is_dynamo_compiling, outside_graphs
from weft.engine.calls import CALLS
from weft.errors import ArgumentError, call_context
from weft.networks.checks import check_signs
from weft.networks.graph import read_equation
from weft.networks.many import einsum_of_many
from weft.networks.network import Network
from weft.networks.plan import plan_network
from weft.networks.settings import read_settings
from weft.spec import Label
from weft.spec.arguments import read_flag, read_sequence
from weft.spec.type_names import read_dtype


@overload
def network(
    equation: Any, *operands: Any, reduce: Mapping[str, Any], **keywords: Unpack[NetworkKeywords]
) -> Network[Any]: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: Literal[True], **keywords: Unpack[NetworkKeywords]
) -> Network[Scaled]: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: Literal[False] = False, **keywords: Unpack[NetworkKeywords]
) -> Network: ...
@overload
def network(
    equation: Any, *operands: Any, strip_exponent: bool, **keywords: Unpack[NetworkKeywords]
) -> Network[Any]: ...
@outside_graphs
def network(
    equation: Any,
    *operands: Any,
    output: Any = None,
    optimize: Any = "auto",
    slices: Any = (),
    functions: Mapping[Any, Any] | None = None,
    constants: Sequence[int] = (),
    reduce: Mapping[str, Any] | None = None,
    dtype: Any = None,
    device: Any = None,
    **keywords: Any,
) -> Network[Any]:
    """A network of any number of tensors, planned once: ``net = weft.network("ab,bc,cd->ad", A, B, C); net(A, B, C)``.

    `equation` is einsum text, any character being a label, or one sequence of hashable labels for each operand, with
    the result's labels in `output` (by default those that stand once). A label may stand in any number of operands, and
    twice in one. `operands` are tensors, or shapes with a `dtype` (default: torch's) and a `device` (default: the CPU).

    `optimize`: ``"auto"`` compares paths of opt_einsum and cotengra by weft's own count of bytes, flops and launches;
    ``"greedy"``, ``"optimal"``, ``"auto-hq"`` and the other words of both libraries; a path, as `opt_einsum` writes it;
    a tree or an optimizer of cotengra.
    `memory_limit`: most bytes, or text such as ``"8GB"``, that a call may hold beyond its operands; slices are found
    for it, as few as fit, or `WorkspaceError` says the least that would do. Kernels pack operands in what is left of
    it, or in 4 MiB where less is. `slices`: labels whose indices are taken one at a time; with a `memory_limit` only as
    many labels as it needs, and as many indices at a time as fit.

    `functions`: ``{node: fn}``, functions of intermediates, fused into the step that makes them. A node is its number
    (operands come first, then results in the order of the path), or the labels of one intermediate.
    `reduce`: further results that keep some of the result's modes, by name, as for `weft.contract`: ``{"peak": ("a",
    "max"), "norm": ("a", "sum", torch.square)}``; calls then return ``(result, found)``. They are of the last step's
    result, which is read once more; for one of an intermediate make the steps behind it a network of their own.
    `constants`: places of operands that stay. They are given here, left out of calls, and contracted once for as long
    as nobody writes them.
    `strip_exponent`: each intermediate is scaled by a power of two, and calls return ``(mantissa, exponent)``, two
    tensors, the value being ``mantissa * 10**exponent``.
    `reuse`: every intermediate is kept, and a call repeats only the steps above operands that changed.
    What fused optimizers, ``tensor.data``, NumPy or kernels of other libraries write into either is not seen:
    ``net.refresh()`` says it.
    `check_finite`: `AccuracyError` names the step that makes NaN or Inf; it waits for the device after each.
    `progress`: a bar while there are many slices. `cuda_graph`: whether calls on a GPU are replayed as a CUDA graph;
    by default where launches may take longer than their kernels: those of up to some 30 us a step.
    `out_dtype`, `precision`, `accumulate`, `algebra`, `backend`, `specialize`, `tune`, `promote`, `deterministic`: of
    every step, as for `weft.contract`; `out_dtype` of the last one.

    Raises `NotationError`, `ShapeError`, `DTypeError`, `ArgumentError`, `UnsupportedError` or `WorkspaceError`; nothing
    is allocated then.

    >>> import torch, weft
    >>> A, B, C = torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5)
    >>> net = weft.network("ab,bc,cd->ad", A, B, C)
    >>> net(A, B, C)[0, 0]
    tensor(12.)
    """
    with call_context(lambda: describe_many("network", equation, operands)):
        promote = read_flag("promote", keywords.get("promote", False))
        shapes, types, given = _read_operands(operands, dtype, device, promote)
        place = _device_of(given, device)
        settings = read_settings(place, keywords)
        fixed = _constants(constants, given)
        plan = plan_network(
            read_equation(equation, output), shapes, types, settings, optimize, slices, functions, fixed
        )
        check_signs(plan.graph, fixed)
        return Network(plan, fixed, reduce)


def _read_operands(
    operands: Sequence[Any], dtype: Any, device: Any, promote: bool
) -> tuple[list[tuple[int, ...]], list[torch.dtype], list[torch.Tensor | None]]:
    """Shapes, types, and the tensors among the operands."""
    if not operands:
        raise ArgumentError("network needs operands after the equation: tensors or shapes")
    plain = read_dtype("dtype", dtype) if dtype is not None else torch.get_default_dtype()
    is_shape = [isinstance(one, (tuple, list)) and not is_array(one) for one in operands]
    for at, one in enumerate(operands):
        if is_shape[at] and not all(isinstance(extent, int) and extent >= 0 for extent in one):
            raise ArgumentError(f"operand {at} is a tensor or a shape, not {one!r}")
    tensors: Iterator[torch.Tensor] = iter(())
    if not all(is_shape):
        arrays = [one for one, shape in zip(operands, is_shape, strict=True) if not shape]
        with outside_inference():  # constants are kept
            tensors = iter(as_tensors(arrays, promote)[0])
    given = [None if shape else next(tensors) for shape in is_shape]
    shapes = [tuple(one if tensor is None else tensor.shape) for one, tensor in zip(operands, given, strict=True)]
    types = [plain if tensor is None else tensor.dtype for tensor in given]
    return shapes, types, given


def _device_of(given: Sequence[torch.Tensor | None], device: Any) -> torch.device:
    found = [tensor.device for tensor in given if tensor is not None]
    asked = read_device(device) if device is not None else (found[0] if found else torch.device("cpu"))
    for at, tensor in enumerate(given):
        if tensor is not None and tensor.device != asked:
            raise ArgumentError(f"operand {at} is on {tensor.device}, the network is on {asked}")
    return asked


def _constants(constants: Sequence[int], given: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
    found = {}
    for at in read_sequence("constants", constants):
        if not isinstance(at, int) or not 0 <= at < len(given):
            raise ArgumentError(f"constants are places of operands, 0 to {len(given) - 1}, not {at!r}")
        tensor = given[at]
        if tensor is None:
            raise ArgumentError(f"operand {at} is a constant: its tensor is needed, not only its shape")
        found[at] = tensor
    return found


@overload
def einsum(
    equation: str, first: Array, /, *others: Any, return_arg: Literal[True], epilogue: Function | None = None,
    **keywords: Unpack[EinsumKeywords],
) -> tuple[Array, Array | tuple[Array, ...]]: ...
@overload
def einsum(
    equation: str, first: Array, /, *others: Any, epilogue: Callable[..., tuple[Any, ...]],
    **keywords: Unpack[EinsumKeywords],
) -> tuple[Array, ...]: ...
@overload
def einsum(
    equation: str, first: Array, /, *others: Any, epilogue: Callable[..., torch.Tensor] | None = None,
    return_arg: Literal[False] = False, **keywords: Unpack[EinsumKeywords],
) -> Array: ...
@overload
def einsum(
    first: Array, labels: Sequence[Label], /, *others: Any, epilogue: Callable[..., torch.Tensor] | None = None,
    return_arg: Literal[False] = False, **keywords: Unpack[EinsumKeywords],
) -> Array: ...
@overload
def einsum(
    *arguments: Any, epilogue: Function | None = None, return_arg: bool = False, **keywords: Unpack[EinsumKeywords]
) -> Any: ...
@signed("einsum", ("arguments",))
def einsum(*arguments: Any, **keywords: Any) -> Any:
    """Einstein summation over any number of operands: ``einsum("ab,bc,cd->ad", A, B, C)``.

    Also takes the interleaved form ``einsum(A, (0, 1), B, (1, 2), (0, 2))`` with any hashable labels. One operand is
    permuted, reduced or its diagonal taken. Three and more are contracted in pairs along a path that `weft.network`
    finds by predicted time, or that `optimize` says as for `weft.network` and as for `numpy.einsum` (True and False
    leave it to weft); the plan is kept, and an equal call replays it. Intermediate results of float16 are kept in
    float32, others in the operands' type. Of an algebra that is not one of weft's own, operands meet from left to
    right. The result is always a tensor of its own, never a view.

    Keywords as for `contract`. `c`, `alpha`, `beta`, `out`, `out_dtype`, `c_fn`, `epilogue`, `operands`, `indices` and
    `reduce` apply to the last step, all others to each; `a_fn`, `b_fn` and `return_arg` are for at most two operands.

    >>> import torch, weft
    >>> weft.einsum("ii->i", torch.arange(4.).reshape(2, 2))
    tensor([0., 3.])
    """
    if (reduce := keywords.pop("reduce", None)) is not None:
        return as_operation("reduced sum")(einsum, reduce, *arguments, **keywords)
    if is_dynamo_compiling():
        return as_operation("einsum")(arguments, keywords)
    words, given = einsum_words(arguments, keywords)
    known, place = (None, None) if words is None else CALLS.find(words, given)
    if known is not None and (found := known(*given)) is not None:
        return found
    few = len(arguments) < 4 and not (len(arguments) == 2 and isinstance(arguments[1], (list, tuple)))
    return (einsum_of_few if few else einsum_of_many)(arguments, keywords, given, place)
