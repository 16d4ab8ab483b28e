"""Checks of a call's tensors and scalars against a plan. They raise short; nothing has run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from weft.base.arrays import as_tensor, is_transformed
from weft.base.figures import counted
from weft.errors import DTypeError, FunctionError, ShapeError, UnsupportedError
from weft.planner.request import Results
from weft.planner.schedule import Scalar
from weft.spec import Layout
from weft.spec.contraction import AuxInput, read_modes
from weft.spec.dtypes import dtype_name
from weft.spec.memory import overlaps_itself, reach, same_memory, share_memory
from weft.spec.notation import term_text


def check_operand(name: str, tensor: torch.Tensor, planned: Layout, conjugate: bool, device: torch.device) -> None:
    """A or B has exactly the planned layout; of its alignment see `aligned_as`."""
    if tensor.dtype != planned.dtype:
        raise DTypeError(f"{name} is {dtype_name(tensor.dtype)}, planned was {dtype_name(planned.dtype)}")
    if tensor.shape != planned.shape or tensor.stride() != planned.strides:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, planned were "
            f"{planned.shape} and {planned.strides}"
        )
    if tensor.device != device:
        raise ShapeError(f"{name} is on {tensor.device}, planned was {device}")
    if tensor.is_conj() != conjugate or tensor.is_neg():
        raise DTypeError(f"{name} has another conjugate bit than planned, or a negative one: resolve it first")
    check_storage(name, tensor)
    reject_gradient(name, tensor)


def check_storage(name: str, tensor: torch.Tensor) -> None:
    """`ShapeError` where a tensor reaches past its storage, which was resized or freed behind it."""
    if not tensor.numel() or tensor.is_meta:
        return
    needed = int(tensor.storage_offset()) * tensor.element_size() + reach(tensor)
    try:
        held = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own, fake tensors
        return
    if held < needed:
        state = "its storage was freed" if held == 0 else f"its storage holds {held}"
        raise ShapeError(f"{name} of shape {tuple(tensor.shape)} needs {needed} bytes of memory, and {state}")


def aligned_as(tensors: Sequence[torch.Tensor], planned: Sequence[Layout | None]) -> tuple[int, ...]:
    """The bytes that each tensor's address is a multiple of, at most those planned; `()` where all are as planned.

    A tensor that is less aligned than planned needs a variant that loads fewer bytes at once.
    """
    given = [(tensor.data_ptr(), layout.alignment) for tensor, layout in zip(tensors, planned, strict=True) if layout]
    found = [alignment if address % alignment == 0 else address & -address for address, alignment in given]
    return () if found == [alignment for _, alignment in given] else tuple(found)


def check_devices(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, operands: Mapping[str, torch.Tensor]
) -> None:
    """All tensors of a call lie on one device."""
    if a.device != b.device:
        raise ShapeError(f"a is on {a.device}, b is on {b.device}")
    for name, tensor in {"c": c, **{f"operand '{name}'": tensor for name, tensor in operands.items()}}.items():
        if tensor is not None and tensor.device != a.device:
            raise ShapeError(f"{name} is on {tensor.device}, a and b are on {a.device}")


def check_addend(c: torch.Tensor, shape: tuple[int, ...], accumulate: torch.dtype, device: torch.device) -> None:
    """C has D's modes in D's order; an extent of 1 broadcasts."""
    if c.device != device:
        raise ShapeError(f"c is on {c.device}, a and b are on {device}")
    if not torch.can_cast(c.dtype, accumulate):
        raise DTypeError(f"c is {dtype_name(c.dtype)} and cannot be added in {dtype_name(accumulate)}")
    if c.dim() != len(shape) or any(have not in (want, 1) for have, want in zip(c.shape, shape, strict=True)):
        raise ShapeError(
            f"c has shape {tuple(c.shape)}, the result has {shape}: they must agree but for extents of 1 in c"
        )
    check_storage("c", c)
    reject_gradient("c", c)


def aux_tensors(operands: Mapping[str, Any], planned: Sequence[AuxInput]) -> dict[str, torch.Tensor]:
    """The operands of functions as tensors that a kernel sees as they are: conjugate and negative views resolved.

    Each comes alone, or with its modes, which are then those that were planned.
    """
    if not isinstance(operands, Mapping):
        raise FunctionError(f"operands come as a mapping from names to tensors, not {type(operands).__name__}")
    terms = {each.name: each.term for each in planned if each.layout is not None}
    found = {}
    for name, value in operands.items():
        if isinstance(value, (tuple, list)) and len(value) == 2 and not isinstance(value[0], Number):
            modes, value = value
            tensor = as_tensor(f"operand '{name}'", value)
            if name in terms and (term := read_modes(name, modes, tensor.dim())) != terms[name]:
                raise ShapeError(
                    f"operand '{name}' lies along '{term_text(term)}', planned was '{term_text(terms[name])}'"
                )
        found[name] = as_tensor(f"operand '{name}'", value).resolve_conj().resolve_neg()
    return found


def check_aux(operands: Mapping[str, torch.Tensor], planned: Sequence[AuxInput], device: torch.device) -> None:
    """Every operand of the plan is there with the planned layout, and there is no other."""
    wanted = {named.name: named.layout for named in planned if named.layout is not None}
    for name in operands:
        if name not in wanted:
            names = ", ".join(wanted) or "none"
            raise FunctionError(f"the plan has no operand '{name}': its operands are {names}")
    for name, layout in wanted.items():
        if name not in operands:
            raise FunctionError(f"operand '{name}' is missing: pass operands={{{name!r}: tensor}}")
        check_operand(f"operand '{name}'", operands[name], layout, False, device)


def check_outputs(
    out: Results,
    shape: tuple[int, ...],
    dtypes: Sequence[torch.dtype],
    several: bool,
    device: torch.device,
    inputs: Mapping[str, torch.Tensor],
    c: torch.Tensor | None,
) -> None:
    """`out` can take all results; it is a tuple where `several` says that the epilogue yields one."""
    if not isinstance(out, tuple):
        if several:
            raise ShapeError(f"the epilogue returns {counted(len(dtypes), 'value')}: out is a tuple of as many tensors")
        check_out(out, shape, dtypes[0], device, inputs, c)
        return
    if len(out) != len(dtypes) or not several:
        count = counted(len(dtypes), "value") if several else "no tuple"
        raise ShapeError(f"out has {counted(len(out), 'tensor')}, the epilogue returns {count}")
    for at, (tensor, dtype) in enumerate(zip(out, dtypes, strict=True)):
        taken = {**inputs, "c": c} if at and c is not None else inputs
        check_out(tensor, shape, dtype, device, taken, c, name=f"out[{at}]")
        for before in range(at):
            if share_memory(tensor, out[before]):
                raise ShapeError(f"out[{at}] overlaps out[{before}] in memory: one result would overwrite the other")


def check_out(
    out: torch.Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    inputs: Mapping[str, torch.Tensor],
    c: torch.Tensor | None,
    *,
    name: str = "out",
) -> None:
    """`out` can take a result: it fits, no element of it is written twice, and it is no input but C exactly."""
    if out.shape != shape:
        raise ShapeError(f"{name} has shape {tuple(out.shape)}, the result has {shape}")
    if out.dtype != dtype:
        raise DTypeError(f"{name} is {dtype_name(out.dtype)}, the result is {dtype_name(dtype)}")
    if out.device != device:
        raise ShapeError(f"{name} is on {out.device}, the operands are on {device}")
    if out.is_conj() or out.is_neg():
        raise UnsupportedError(f"{name} is a conjugate or negative view: pass the tensor it is a view of")
    check_storage(name, out)
    if overlaps_itself(out):
        raise ShapeError(f"{name} with strides {out.stride()} overlaps itself: its elements would be written twice")
    for other, tensor in inputs.items():
        if share_memory(out, tensor):
            raise ShapeError(f"{name} overlaps {other} in memory: the result would overwrite what is still to be read")
    if c is not None and not same_memory(out, c) and share_memory(out, c):
        raise ShapeError(f"{name} overlaps c in memory but is not exactly c")
    reject_gradient(name, out)


def check_unscaled(algebra: str, alpha: Scalar, beta: Scalar) -> None:
    """Other algebras than plus-times have no factors."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        if _number(name, value) != 1:
            raise DTypeError(f"{name}={value!r} scales sums of products: the algebra {algebra} has no such factor")


def checked_scalar(name: str, value: Scalar, accumulate: torch.dtype) -> Scalar:
    """`value` as the plain Python number that fits the accumulator; `DTypeError` when it does not."""
    wanted: type = complex if accumulate.is_complex else float if accumulate.is_floating_point else int
    if type(value) is wanted and fits(value):
        return value
    value = _number(name, value)
    try:
        number = complex(value)
    except OverflowError:
        raise DTypeError(f"{name} is larger than any {dtype_name(accumulate)}") from None
    if wanted is not complex and number.imag:
        raise DTypeError(f"{name}={value!r} is complex, the sum is {dtype_name(accumulate)}")
    if wanted is int and not number.real.is_integer():
        raise DTypeError(f"{name}={value!r} is no integer, the sum is {dtype_name(accumulate)}")
    plain: Scalar = wanted(value) if wanted is not float else number.real
    if not fits(plain):
        raise DTypeError(f"{name}={value!r} is beyond the integers of 64 bits that sums of integers are scaled in")
    return plain


def checked_factors(alpha: Scalar, beta: Scalar, kind: torch.dtype, added: bool) -> tuple[Scalar, Scalar]:
    """Both factors as `checked_scalar` has them; `ShapeError` for a beta of nothing, where no C is `added`."""
    alpha, beta = checked_scalar("alpha", alpha, kind), checked_scalar("beta", beta, kind)
    if not added and beta not in (0, 1):
        raise ShapeError(f"beta={beta!r} has no c to multiply: pass c, or c=out to add to out")
    return alpha, beta


def _number(name: str, value: Any) -> Any:
    """A factor as a number: one of Python or NumPy, or what an array of no dimensions holds."""
    if isinstance(value, Number):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biufc":
        return value.item()
    raise DTypeError(f"{name} is a Python number, not {type(value).__name__}")


def fits(number: object) -> bool:
    """Whether a launch can take a number: an integer has 64 bits."""
    return type(number) is not int or -(2**63) <= number < 2**63


def reject_gradient(name: str, tensor: torch.Tensor) -> None:
    """`UnsupportedError` where a derivative is requested of a call that has none."""
    instead = "which this call does not compute; contract, einsum, matmul, permute and plans do"
    if is_transformed(tensor):
        raise UnsupportedError(f"{name} is inside a transform of torch.func, {instead}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(f"{name} requires a gradient, {instead}: detach it or use torch.no_grad()")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise UnsupportedError(f"{name} has a tangent, {instead}: pass the primal of unpack_dual")
