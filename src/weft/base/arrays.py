"""Arrays of other libraries in, arrays of the same kind out, through DLPack and without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch._subclasses.schema_check_mode  # which setting modes aside imports: with weft, not in a first call
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes
from typing_extensions import TypeVar

from weft.base.figures import dtype_name
from weft.errors import DTypeError, UnsupportedError

#: The kind of array that a result has, which is that of the first operand, as type checkers see it.
Array = TypeVar("Array", torch.Tensor, np.ndarray)
#: What calls of a plan return: one result, several of an epilogue, one and the places where it was selected, or a
#: mantissa and an exponent. Checkers alone read it: ``Plan[Several]``.
One: TypeAlias = Literal["one"]
Several: TypeAlias = Literal["several"]
Selected: TypeAlias = Literal["selected"]
Scaled: TypeAlias = Literal["scaled"]
Returned = TypeVar("Returned", bound=str, default=One)

#: Whether a tensor stands for another one inside vmap, grad, jvp or functionalize; torch has no public name for it.
is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
#: Whether a call is made inside of one; new tensors stand for others there, too.
is_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active


class grad_mode:
    """Gradients on or off, as a tracer of torch does not write down: a program that it exports keeps every change.

    No generator: one that a signal has cut off would set what it found when it is collected.
    """

    __slots__ = ("_before", "_enabled")

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before = enabled

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        _set_grad(self._enabled)

    def __exit__(self, *_: object) -> None:
        _set_grad(self._before)


def _set_grad(enabled: bool) -> None:
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(enabled)


@contextmanager
def outside_inference() -> Iterator[None]:
    """Whatever is made here may be kept: tensors of inference mode no later gradient could save, nor anything write to
    outside of it."""
    grad = torch.is_grad_enabled()  # which leaving inference mode would turn on
    with torch.inference_mode(False), grad_mode(grad):
        yield


def outside_transforms() -> AbstractContextManager[None]:
    """Whatever is made here is what it seems, and may be kept: transforms of torch.func and modes are set aside, and so
    is inference mode."""
    modes = dispatch_modes() + _len_torch_dispatch_stack_pre_dispatch()
    return _set_aside() if modes or is_transforming() or torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _set_aside() -> Iterator[None]:
    layers = []
    while torch._C._functorch.peek_interpreter_stack() is not None:
        layers.append(torch._C._functorch.pop_dynamic_layer_stack())
    try:
        with _disable_current_modes(), outside_inference():
            yield
    finally:
        while layers:
            torch._C._functorch.push_dynamic_layer_stack(layers.pop())


#: How many dispatch modes are on, which see every operation of torch: fake tensors', `FlopCounterMode`, those of
#: torch's tracers. torch has no public name for it.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
#: Whether autocast is on for any kind of device: it changes what torch's operations return, but not what they write.
#: torch's public question takes a device and costs five times as much.
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
#: torch's public function asks first whether it is one tensor. None of them is of inference mode, see `written`.
increment_version: Callable[[Sequence[torch.Tensor]], None] = torch._C._increment_version


def without_autocast() -> AbstractContextManager[Any]:
    """Within, torch's operations compute in the types of their operands."""
    return torch._C._DisableAutocast() if any_autocast() else nullcontext()


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TAKES_NO_PART = torch._C._disabled_torch_function_impl  # a subclass's `__torch_function__` whose results are tensors
_MASKED = "whose masked elements would count"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_array(value: object) -> bool:
    """Whether `value` is a tensor or an array of any library, as no equation is."""
    return isinstance(value, (torch.Tensor, np.ndarray)) or hasattr(value, "__dlpack__")


def is_foreign(value: object) -> bool:
    """Whether `value` is an array, and no tensor, whose type autocast leaves alone: such calls are those of tensors."""
    return not isinstance(value, torch.Tensor) and is_array(value) and not any_autocast()


def is_scalar(value: object) -> bool:
    """Whether `value` is a number of Python or a scalar of NumPy."""
    return isinstance(value, (bool, int, float, complex, np.number, np.bool_))


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Keep torch's tracing out of the block: neither operations nor changes of state are recorded."""
    with torch._C.DisableTorchFunction(), outside_transforms():
        yield


def without_memory(tensor: torch.Tensor) -> bool:
    """Whether a kernel cannot read a tensor: it is a meta tensor, or of a kind that sees every operation on it itself.

    Fake tensors are, and what torch's tracers make of tensors.
    """
    return tensor.is_meta or (
        type(tensor) not in _PLAIN and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


def as_tensor(name: str, value: Any, promote: bool | None = None) -> torch.Tensor:
    """`value` as a torch tensor over the same memory: torch as it is, NumPy, CuPy, JAX and others by DLPack.

    With `promote` also what NumPy makes an array of, which is copied: lists, numbers, datasets of files, arrays of
    foreign byte order or with strides that torch cannot hold. It is None where no promote=True of the caller copies.
    """
    if isinstance(value, torch.Tensor):
        _refuse_foreign(name, value)
        if torch._C._get_tracing_state() is not None:
            raise UnsupportedError("torch.jit.trace cannot record weft's calls: use torch.compile or torch.export")
        if value.layout is not torch.strided or value.is_nested:
            kind = "nested" if value.is_nested else value.layout
            hint = ", and jagged ones with ragged=" if value.is_nested else ""
            raise UnsupportedError(f"{name} is {kind}: only strided tensors can be contracted{hint}")
        if value.is_quantized:
            raise UnsupportedError(f"{name} is quantized ({dtype_name(value.dtype)}): dequantize it")
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value, promote)
    if isinstance(value, np.generic):  # what NumPy makes of a 0-d result
        return _from_numpy(name, np.asarray(value))
    if hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except Exception as error:  # whatever an object of somebody else raises
            given = type(value)
            hint = "; under transformations of JAX call weft.jax" if given.__module__.startswith("jax.") else ""
            raise UnsupportedError(
                f"{name} of type {given.__name__} does not come through DLPack: {error}{hint}"
            ) from None
    if promote:
        return _from_numpy(name, _converted(name, value), promote)
    hint = "" if promote is None else " (promote=True takes what numpy.asarray makes an array of)"
    raise DTypeError(f"{name} is {type(value).__name__}: a torch tensor or an array that speaks DLPack is needed{hint}")


def source_of(*values: Any) -> Any:
    """The operand that says what kind of array a result is: a plain subclass of tensors, as torch has it, else the
    first that is no number.
    """
    for value in values:
        if is_subclass(value):
            return value
    return next((value for value in values if not is_scalar(value)), values[0])


def is_subclass(value: object) -> bool:
    """Whether `value` is of a subclass of tensors whose operations have results of that class: all but those that see
    every operation themselves, and those that take no part in it, as parameters and buffers do."""
    kind = type(value)
    if kind in _PLAIN or not issubclass(kind, torch.Tensor) or kind.__torch_function__ is _TAKES_NO_PART:
        return False
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def as_tensors(values: Sequence[Any], promote: bool = False) -> tuple[list[torch.Tensor], Any]:
    """Operands as tensors, scalars as 0-d ones; and the operand that says what kind of array a result is.

    A scalar of NumPy keeps its type, as an array of NumPy does. A number of Python takes the type of the operands
    beside it, and goes where they are: a complex one the complex type of their precision. Raises `DTypeError` for one
    that their type does not hold.
    """
    arrays = {
        at: as_tensor(f"operand {at}", value, promote)
        for at, value in enumerate(values)
        if isinstance(value, np.generic) or not is_scalar(value)
    }
    beside = [tensor for at, tensor in arrays.items() if not isinstance(values[at], np.generic)] or [*arrays.values()]
    device = beside[0].device if beside else torch.device("cpu")
    dtype = beside[0].dtype if beside else None
    tensors = []
    for at, value in enumerate(values):
        tensor = arrays[at] if at in arrays else number_tensor(f"operand {at}", value, dtype, promote)
        tensors.append(tensor.to(device) if is_scalar(value) and tensor.device != device else tensor)
    return tensors, source_of(*values)


def number_tensor(name: str, number: complex, dtype: torch.dtype | None, promote: bool) -> torch.Tensor:
    """A number of Python as a tensor of the type of the operands beside it; of its own where there are none."""
    long = isinstance(number, int) and not -(2**63) <= number < 2**63
    if dtype is None and not long:
        return torch.from_numpy(np.asarray(number))
    dtype = torch.int64 if dtype is None else dtype
    # torch's rule for numbers beside tensors, of which a long integer has the kind and not the value
    fitting = torch.result_type(torch.empty(1, dtype=dtype, device="cpu"), 1 if long else number)
    whole = torch.iinfo(dtype) if fitting == dtype and dtype in _INTEGERS else None
    past = whole is not None and not whole.min <= number.real <= whole.max
    if past or (fitting != dtype and not (promote or (dtype.is_floating_point and fitting == dtype.to_complex()))):
        kind = dtype_name(dtype)
        raise DTypeError(
            f"{name} is the number {number!r}, which {kind} does not hold: the operand beside it has that type "
            "(promote=True multiplies in a common type)"
        )
    try:
        return torch.tensor(number, dtype=fitting, device="cpu")
    except (OverflowError, RuntimeError):
        kind = dtype_name(dtype)
        raise DTypeError(f"{name} is a number of {len(str(number))} digits, which {kind} does not hold") from None


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a contiguous tensor, side by side: torch lets the stride of a single one be anything."""
    return tensor.as_strided((tensor.numel(),), (1,))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor."""
    return flat(tensor).view(torch.uint8)


def written(places: Iterable[torch.Tensor]) -> None:
    """Tell torch that places hold other values: autograd goes not back through what it saved there, and `reuse` of a
    network sees that they changed. Kernels write without torch; its own operations tell it themselves."""
    increment_version([each for each in places if not each.is_inference()])


def without_neg(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, negated in memory where it is a negative view: no kernel can see that bit."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _refuse_foreign(name: str, tensor: torch.Tensor) -> None:
    """`UnsupportedError` for kinds of tensors that are told by their names: their modules are not imported for it."""
    if type(tensor) in _PLAIN:
        return
    kinds = {kind.__name__ for kind in type(tensor).__mro__}
    if "DTensor" in kinds:
        raise UnsupportedError(
            f"{name} is a DTensor, spread over several processes: pass {name}.full_tensor(), or the parts by to_local()"
        )
    if "UninitializedTensorMixin" in kinds:
        raise UnsupportedError(f"{name} belongs to a lazy layer and has no shape yet: call the layer once before")
    if "MaskedTensor" in kinds:
        raise UnsupportedError(f"{name} is a masked tensor, {_MASKED}: pass its to_tensor(0) or get_data()")


def _refuse_masked(name: str, value: Any) -> None:
    """`UnsupportedError` for a masked array of NumPy, or a list of them."""
    if isinstance(value, np.ma.MaskedArray):
        raise UnsupportedError(f"{name} is a masked array, {_MASKED}: pass its filled(0) or its data")
    if isinstance(value, (list, tuple)):
        for each in value:
            _refuse_masked(name, each)


def _converted(name: str, value: Any) -> np.ndarray:
    _refuse_masked(name, value)
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object of somebody else raises where it is asked for its elements
        raise DTypeError(f"{name} is {type(value).__name__}, of which numpy.asarray makes no array: {error}") from None
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"{name} is {type(value).__name__}, of which numpy.asarray makes an array of {array.dtype}")
    return array


def as_result(out: Any, name: str = "out") -> torch.Tensor:
    """`out` as a torch tensor over the same memory; `UnsupportedError` for arrays that are not to be written."""
    library = type(out).__module__.partition(".")[0]
    if library in ("jax", "jaxlib") or (isinstance(out, np.ndarray) and not out.flags.writeable):
        raise UnsupportedError(f"{name} is a read-only {type(out).__name__}: pass an array that can be written")
    return as_tensor(name, out)


def as_results(out: Any) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
    """`out` of a call: None, one array, or a tuple of them for an epilogue that yields several values."""
    if isinstance(out, (tuple, list)):
        return tuple(as_result(one, f"out[{at}]") for at, one in enumerate(out))
    return as_result(out) if out is not None else None


def like(source: Any, tensor: torch.Tensor) -> Any:
    """`tensor` as an array of the library that `source` belongs to."""
    if isinstance(source, torch.Tensor):
        return tensor.as_subclass(type(source)) if is_subclass(source) else tensor
    if tensor.requires_grad:  # of an operand beside it: no other kind of array holds a gradient
        return tensor
    if not hasattr(source, "__dlpack__") or isinstance(source, np.ndarray):  # NumPy's, or what it made an array of
        return tensor.numpy()[()]  # a scalar where it has no dimension, as NumPy's own operations return
    library = type(source).__module__.partition(".")[0]
    if library == "cupy":
        import cupy

        return cupy.from_dlpack(tensor)
    if library in ("jax", "jaxlib"):
        return _as_jax(tensor)
    namespace = getattr(source, "__array_namespace__", None)
    return tensor if namespace is None else namespace().from_dlpack(tensor)


def _as_jax(tensor: torch.Tensor) -> Any:
    """An array of JAX, whose programs have no types of 64 bits unless told so: `DTypeError` for values that would be
    others in 32."""
    import jax

    narrow = jax.dtypes.canonicalize_dtype(np.int64) != np.int64
    if narrow and tensor.dtype == torch.int64:  # indices, mostly, which 32 bits hold
        narrow = tensor.numel() > 0 and (int(tensor.min()) < -(2**31) or int(tensor.max()) >= 2**31)
    if narrow and tensor.dtype in (torch.int64, torch.float64, torch.complex128):
        name = dtype_name(tensor.dtype)
        raise DTypeError(f'a result of {name} is for programs with jax.config.update("jax_enable_x64", True)')
    return jax.dlpack.from_dlpack(tensor)


def like_each(source: Any, results: torch.Tensor | tuple[torch.Tensor, ...]) -> Any:
    """A result, or each of a tuple, as the kind of array that `source` is."""
    return tuple(like(source, one) for one in results) if isinstance(results, tuple) else like(source, results)


def returned(source: Any, out: Any, result: Any, places: bool) -> Any:
    """The result of a call as the kind of array that `source` is; `out` itself where that was given.

    `places`: the result is a pair, whose second part stays what it is.
    """
    if places:
        value, where = result
        return returned(source, out, value, False), like_each(source, where)
    if out is None:
        return like_each(source, result)
    _let_wait(out, result)
    return out


def _let_wait(out: Any, result: Any) -> None:
    """Make the current stream of the library that places belong to wait for torch's, where their kernels are: handing
    a tensor over does."""
    for place, tensor in zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (out, result)), strict=True):
        if not isinstance(place, torch.Tensor) and tensor.is_cuda:
            like(place, tensor)


def _from_numpy(name: str, array: np.ndarray, promote: bool | None = None) -> torch.Tensor:
    _refuse_masked(name, array)
    if strange := _is_strange(array):
        # A step along an extent of 1 is never made, and means nothing.
        steps = zip(array.shape, array.strides, strict=True)
        taken = [stride if extent > 1 else array.itemsize for extent, stride in steps]
        array = np.lib.stride_tricks.as_strided(array, strides=taken, writeable=array.flags.writeable)
        strange = _is_strange(array)
    if promote and (strange or not array.dtype.isnative):
        array, strange = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")), False
    if strange:
        falls = any(stride < 0 for stride in array.strides)
        kind = "negative strides" if falls else "strides that are no multiple of its element size"
        hint = "" if promote is None else ", and so does promote=True"
        raise UnsupportedError(
            f"{name} has {kind}, which torch cannot hold: np.ascontiguousarray makes a copy that it can{hint}"
        )
    try:
        if array.flags.writeable:
            return torch.from_numpy(array)
        # Inputs are only read, so a read-only array may be looked at through a writeable view of its memory.
        interface = array.__array_interface__
        interface["data"] = (interface["data"][0], False)
        return torch.from_numpy(np.asarray(_Interface(interface, array)))
    except (TypeError, ValueError):  # the latter for bytes in foreign order
        copies = promote is not None and not array.dtype.isnative
        order = " (promote=True copies it into the order of this machine)" if copies else ""
        raise DTypeError(f"{name} has dtype {array.dtype}, which torch does not take from NumPy{order}") from None


def _is_strange(array: np.ndarray) -> bool:
    """Whether torch cannot hold an array's strides."""
    return any(stride < 0 or stride % max(array.itemsize, 1) for stride in array.strides)


class _Interface:
    """An array interface with the array that keeps its memory alive."""

    def __init__(self, interface: dict[str, Any], owner: np.ndarray) -> None:
        self.__array_interface__ = interface
        self.owner = owner
