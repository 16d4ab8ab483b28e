"""From a schedule to a running kernel: constants, argument types, device; and what no direct kernel can do.

Triton is imported where a kernel is compiled, and nowhere before: see `cubins`.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch

from weft.gpu.common.constants import TRITON_TYPES, DeviceFunction, TensorMap, meant, whole
from weft.gpu.common.cubins import Loaded, by_triton, on_device
from weft.gpu.common.direct import DirectLaunch, note
from weft.gpu.common.driver import can_pdl, prefer_carveout
from weft.gpu.common.release import FUSION, PDL_OPTION, launches_are_hooked
from weft.planner.registry import triton_fault
from weft.planner.schedule import AuxTensors, Launched, Make, NewTensor, ResourceError, Scalar, Target
from weft.planner.target import interpreting
from weft.spec import Contraction, Layout
from weft.spec.contraction import Arithmetic
from weft.spec.dtypes import FP8, dtype_name

if interpreting():
    from weft.gpu.common.release import correct

    correct(import_module("triton.runtime.interpreter"))

_DOUBLES, _WORDS = struct.Struct("=2d"), struct.Struct("=2q")
_collected: ContextVar[list[KernelLaunch] | None] = ContextVar("launches made for compiling ahead", default=None)

_ORDINARY = 3  # a number that Triton sees nothing special in
MOST_PROGRAMS = 2**31 - 1  # grid x; y and z are not used, they stop at 65535


def too_many(programs: int) -> str | None:
    """Why no grid has so many programs, in one sentence."""
    return "a grid holds at most 2^31 - 1 blocks" if programs > MOST_PROGRAMS else None


def common_reasons(contraction: Contraction, target: Target) -> str | None:
    """Why no Triton kernel of weft can compute this, in one sentence; None where nothing stands against it."""
    arithmetic = contraction.arithmetic
    layouts = [layout for layout in (contraction.a, contraction.b, contraction.c, contraction.d) if layout]
    stored = (*(layout.dtype for layout in layouts), *(each.dtype for each in contraction.aux))
    for dtype in (*stored, arithmetic.product, arithmetic.accumulate):
        if dtype.is_complex:
            return f"Triton has no {dtype_name(dtype)}: it is computed with as pairs of reals, by the family complex"
        if (reason := type_reason(dtype, target)) is not None:
            return reason
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    if any(function is not None and function.is_complex for function in functions):
        return "functions with complex values in them are for the family complex"
    return None


def missing_type(dtype: torch.dtype) -> str | None:
    """Why no kernel can take elements of that type, or their parts, whatever the device."""
    known = dtype.to_real() in TRITON_TYPES and dtype is not torch.complex32
    return None if known else f"{dtype_name(dtype)} has no Triton type here"


def type_reason(dtype: torch.dtype, target: Target) -> str | None:
    """Why no kernel can compute with elements of that type, or with their parts."""
    if (reason := missing_type(dtype)) is not None:
        return reason
    if dtype in FP8 and not (target.kind == "interpreter" or (target.kind == "cuda" and target.capability >= 89)):
        return f"{dtype_name(dtype)} needs a CUDA device of compute capability 8.9 or more"
    return None


def precision_reason(arithmetic: Arithmetic, target: Target) -> str | None:
    """Why the device's matrix instructions do not make such products. Triton's AMD backend splits no float32 in three
    parts, and knows of TF32 on gfx942 alone."""
    if target.kind != "hip" or arithmetic.precision == "ieee":
        return None
    if arithmetic.precision == "tf32" and target.capability == 94:
        return None
    return f"{arithmetic.precision} products have no matrix instruction on {target.name}"


class _Pointer:
    """Stands for a tensor where Triton only asks for type and alignment."""

    def __init__(self, dtype: torch.dtype, alignment: int) -> None:
        self.dtype = dtype
        self._alignment = alignment

    def data_ptr(self) -> int:
        return self._alignment


def _stand_in(layout: Layout | TensorMap | None) -> Any:
    if isinstance(layout, TensorMap):
        return layout.descriptor(_stand_in(layout.layout))
    return _Pointer(layout.dtype, layout.alignment) if layout is not None else None


class HeldKernel:
    """A kernel with its parameters; what it does on another device, or where somebody has hooked Triton's launches."""

    def __init__(self, direct: DirectLaunch, words: Sequence[int], otherwise: Callable[[], None]) -> None:
        self._direct, self._words, self._otherwise = direct, words, otherwise

    def __call__(self) -> None:
        if torch._C._cuda_getDevice() != self._direct.device or launches_are_hooked():
            self._otherwise()
        else:
            self._direct(self._words)

    def launched(self) -> Launched | None:
        """The kernel with its parameters; None where launches are hooked."""
        return None if launches_are_hooked() else self._direct.launched(self._words)


class KernelLaunch:
    """A kernel bound to one schedule: call it with tensors, alpha and beta, and
    auxiliary operands where it knows of `pointers`.

    For a GPU that is there, and a grid that is not empty, the kernel is found or compiled and loaded when this is made,
    so that a call, perhaps within a graph capture, only launches. In the interpreter it runs as Python. For any other
    target, and where launches are `collected`, it carries what `inspect.compiled` and `compile` need, and a call does
    nothing.
    """

    def __init__(
        self,
        kernel: Any,  # a `DeviceFunction`, or what `triton.jit` has made
        layouts: Sequence[Layout | TensorMap | None],  # of the tensor parameters; None where one is left out
        constants: dict[str, Any],  # in the order of the kernel's parameters, see `constants`
        real: bool,  # alpha and beta are real numbers, else integers
        target: Target,
        programs: int,
        warps: int,
        stages: int,
        pointers: Sequence[Layout] | None = None,  # of auxiliary operands; None where there are none
        carveout: int | None = None,  # per cent, see `prefer_carveout`; None: as the driver likes
        pdl: bool = True,  # its programs may come while the last ones of the launch before still run
        numbers: tuple[int, ...] | None = None,  # of tiles or extents, which it takes at run time
    ) -> None:
        self.function = DeviceFunction.of(kernel)
        self.carveout = carveout if target.kind == "cuda" else None
        self.layouts = tuple(layouts)
        self._given = [at for at, layout in enumerate(self.layouts) if layout is not None]
        self.pointers = tuple(pointers or ())
        self.numbers = numbers
        self.programs = programs
        self.constants = constants
        self.capability = target.capability
        self.options: dict[str, Any] = {"num_warps": warps, "num_stages": stages}
        self._compiles = target.kind in ("cuda", "hip")  # and is not interpreted
        if self._compiles:
            self.options |= FUSION
        if target.kind == "cuda":
            self.options["enable_reflect_ftz"] = False  # functions keep subnormal numbers, as torch does
            self.options[PDL_OPTION] = pdl and can_pdl(target)
        self._real = real
        self._device = target.device if self._compiles else None
        self._numbers = (numbers,) if numbers is not None else ()
        self._run: Callable[..., Any] | None = None  # by Triton's launcher; made when it is first needed
        self.loaded: Loaded | None = None  # the kernel, where it is on an NVIDIA GPU
        self._compiled: Any = None  # Triton's, where that is on a GPU
        self._direct: DirectLaunch | None = None
        made = _collected.get()
        if made is not None:
            self._run, self._device = _nothing, None
            if programs:
                made.append(self)
        elif programs and self._device is not None and torch.cuda.is_available():
            with torch.cuda.device(self._device):
                self._load(target)

    @property
    def kernel(self) -> Any:
        """The kernel as `triton.jit` has made it."""
        return self.function.jit

    @property
    def is_direct(self) -> bool:
        """Whether it is launched past Triton."""
        return self._direct is not None

    @property
    def digest(self) -> str | None:
        """A digest of the machine code that is loaded; None where none is."""
        return self.loaded.cubin.digest if self.loaded is not None else None

    def __call__(self, tensors: Sequence[Any], alpha: Scalar, beta: Scalar, aux: AuxTensors = ()) -> None:
        """Launch on `tensors`, the kernel's tensor parameters in order; `aux` may hold None for coordinates."""
        direct = self._direct
        if direct is not None and not launches_are_hooked():
            words = self._words_of(tensors, alpha, beta, aux)
            if direct.device == torch._C._cuda_getDevice():
                direct(words)
            else:
                with torch.cuda.device(direct.device):
                    direct(words)
            return
        note(None)
        if self._device is None or self._device.index == torch.cuda.current_device():
            self._run_by_triton(tensors, alpha, beta, aux)
        else:
            with torch.cuda.device(self._device):
                self._run_by_triton(tensors, alpha, beta, aux)

    def bound(self, tensors: Sequence[Any], alpha: Scalar, beta: Scalar, aux: AuxTensors = ()) -> Callable[[], None]:
        """The launch on these tensors, whose addresses are taken now."""
        again, direct = partial(self, tensors, alpha, beta, aux), self._direct
        if direct is None:
            return again
        own = direct.at(self.programs, self.numbers or ())
        return HeldKernel(own, self._words_of(tensors, alpha, beta, aux), again)

    def maker(self, new: NewTensor, in_order: Callable[[Any], Sequence[torch.Tensor | None]]) -> Make | None:
        """The plain call. `in_order` gives the kernel's tensors, of A, B, no C, a new D and None."""
        direct, (shape, strides, dtype, device), beside = self._direct, new, bool(self.pointers)
        if direct is None:
            return None
        given, ones, allocate, current = self._given, self._factors(1, 1), torch.empty_strided, torch._C._cuda_getDevice

        def make(a: torch.Tensor, b: torch.Tensor, *aux: torch.Tensor | None) -> torch.Tensor:
            d = allocate(shape, strides, dtype=dtype, device=device)
            tensors = in_order((a, b, None, d, None))
            if current() != direct.device or launches_are_hooked():
                self(tensors, 1, 1, aux)
                return d
            words = [tensors[at].data_ptr() for at in given]  # type: ignore[union-attr]
            words += ones
            if beside:
                words += [x.data_ptr() for x in aux if x is not None]
            direct(words)
            return d

        return make

    def _words_of(self, tensors: Sequence[Any], alpha: Scalar, beta: Scalar, aux: AuxTensors) -> list[int]:
        """The parameters that change from call to call, as the driver takes them."""
        words = [tensors[at].data_ptr() for at in self._given]
        words += self._factors(alpha, beta)
        if self.pointers:
            words += [x.data_ptr() for x in aux if x is not None]
        return words

    def at(self, programs: int, numbers: tuple[int, ...]) -> KernelLaunch:
        """A launch of this kernel with other numbers, and so many programs; nothing is compiled or loaded for it."""
        other = copy.copy(self)
        other.programs, other.numbers, other._numbers = programs, numbers, (numbers,)
        other._direct = self._direct.at(programs, numbers) if self._direct is not None else None
        if self._run is not _nothing:
            other._run = None
        return other

    def triton_constants(self) -> dict[str, Any]:
        """The constants as Triton takes them."""
        found = {name: meant(value) for name, value in self.constants.items()}
        return {name: whole(value) for name, value in found.items()} if self._compiles else found

    def compile(self) -> Any:
        """The kernel as Triton's driver wants it compiled; from Triton's own cache where it was compiled before.

        `ResourceError` where Triton cannot be imported.
        """
        if (fault := triton_fault()) is not None:
            raise ResourceError(fault)
        from weft.gpu.common.triton_versions import settle_keys

        constants = self.triton_constants()
        settle_keys((self.kernel, *map(meant, self.constants.values())))
        arguments = [_stand_in(layout) for layout in self.layouts]
        aux_args = (tuple(_stand_in(layout) for layout in self.pointers),) if self.pointers else self._absent()
        given = {**constants, **self.options}
        # Triton would compile numbers in that are 1, and take note of those that are multiples of 16.
        numbers = tuple((_ORDINARY,) * len(each) for each in self._numbers)
        return self.kernel.warmup(*arguments, *self._factors(0, 0), *aux_args, *numbers, grid=(1,), **given)

    def _load(self, target: Target) -> None:
        """Have the kernel on the current GPU: by weft's own loader, or by Triton where only that can load it."""
        self.loaded = on_device(self, target) if target.kind == "cuda" else None
        if self.loaded is None:
            self._compiled = self._initialised()
            if target.kind == "cuda":
                self.loaded = by_triton(self._compiled, torch.cuda.current_device())
        if self.loaded is None:
            return
        loaded, maps = self.loaded, [layout.layout for layout in self.layouts if isinstance(layout, TensorMap)]
        self._direct = DirectLaunch.of(
            loaded.cubin, loaded.function, self.programs, loaded.device, self.numbers or (), maps
        )
        if self._direct is None and self._compiled is None:  # Triton launches what Triton loads
            self._compiled = self._initialised()
            self.loaded = by_triton(self._compiled, loaded.device)
        if self.carveout is not None:
            prefer_carveout(self.loaded.function, self.carveout)

    def _initialised(self) -> Any:
        """The kernel compiled and loaded by Triton on the current GPU."""
        compiled = self.compile()
        from triton.runtime.errors import OutOfResources

        try:
            compiled._init_handles()
        except OutOfResources as error:
            raise ResourceError(f"it needs {error.required} of {error.name}, the device has {error.limit}") from None
        return compiled

    def _run_by_triton(self, tensors: Sequence[Any], alpha: Scalar, beta: Scalar, aux: AuxTensors) -> None:
        if self._run is _nothing or not self.programs:
            return
        if self._run is None:
            self._run = self._bound()
        given = map(_as_triton_takes_it, tensors, self.layouts)
        beside = tuple(map(_as_triton_takes_it, [x for x in aux if x is not None], self.pointers))
        pointers = (beside,) if self.pointers else self._absent()
        self._run(*given, *self._factors(alpha, beta), *pointers, *self._numbers)

    def _bound(self) -> Callable[..., Any]:
        """Triton's launcher of the kernel, the constants bound."""
        constants = self.triton_constants()
        if self.loaded is None and self._compiled is None:
            return partial(self.kernel[(self.programs,)], **constants, **self.options)
        if self._compiled is None:
            self._compiled = self._initialised()
        run, trailing = self._compiled[(self.programs, 1, 1)], tuple(constants.values())
        return lambda *given: run(*given, *trailing)

    def _absent(self) -> tuple[None, ...]:
        """A place holder for `pointers` where the kernel takes such and none are given."""
        return (None,) if "pointers" in self.kernel.arg_names and not self.pointers else ()

    def _factors(self, alpha: Scalar, beta: Scalar) -> tuple[int, ...]:
        if self._real:
            return words_of(alpha, beta)
        return int(alpha), int(beta)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def words_of(first: Scalar, second: Scalar) -> tuple[int, ...]:
    """Real numbers as the 64 bits that they travel in: Triton would pass a Python float in single precision."""
    return _WORDS.unpack(_DOUBLES.pack(first, second))


def _as_triton_takes_it(tensor: Any, layout: Layout | TensorMap | None) -> Any:
    """A tensor by its descriptor where the kernel takes one, and of the type that the kernel sees."""
    if tensor is None or layout is None:
        return tensor
    if isinstance(layout, TensorMap):
        return layout.descriptor(tensor)
    if tensor.dtype == layout.dtype:
        return tensor
    if tensor.dtype.is_complex and layout.dtype.itemsize < tensor.dtype.itemsize:
        tensor = torch.view_as_real(tensor)
    return tensor.view(layout.dtype)


def _nothing(*_: Any) -> None:
    """The run of a launch that is only to be compiled."""


def collecting() -> bool:
    """Whether launches are made for compiling alone, see `collected`."""
    return _collected.get() is not None


@contextmanager
def collected() -> Iterator[list[KernelLaunch]]:
    """A list of the launches that are made within, for compiling them ahead of their use; calls of them do nothing."""
    made: list[KernelLaunch] = []
    token = _collected.set(made)
    try:
        yield made
    finally:
        _collected.reset(token)


def pointer_layouts(contraction: Contraction) -> tuple[Layout, ...] | None:
    """The layouts of auxiliary operands and further results, in that order; None where there are none."""
    if not contraction.aux:
        return None
    return tuple([each.layout for each in contraction.aux if each.layout is not None])
