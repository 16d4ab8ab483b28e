"""The shared library cuTENSOR through ctypes: the functions that contractions and permutations need.

NVIDIA's binding, `nvmath.bindings.cutensor`, would do, but it brings the packages of the whole nvmath-python family
and wants the library from a package of its own, while a machine for measurements often holds nothing but a driver,
torch, and a ``libcutensor.so.2`` carried there. This adapter needs that file alone. Names and values are those of the
headers of cuTENSOR 2 (``cutensor.h``, ``cutensor/types.h``; the API is stable within the major version).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from weft.errors import UnsupportedError

# cudaDataType_t, from CUDA's library_types.h.
DATA_TYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.complex64: 4,
    torch.complex128: 5,
    torch.uint8: 8,
    torch.int32: 10,
    torch.bfloat16: 14,
    torch.int16: 20,
    torch.int64: 24,
}

# cutensorOperator_t
IDENTITY, CONJUGATE = 1, 9
OPERATORS = {
    "relu": 8,
    "sigmoid": 11,
    "tanh": 12,
    "exp": 22,
    "abs": 24,
    "sin": 26,
    "cos": 27,
    "floor": 38,
    "mish": 39,
    "silu": 40,
    "softplus": 41,
}

# cutensorAlgo_t; values from 0 on name single kernels
ALGORITHMS = {"default": -1, "patient": -6, "gett": -4, "tgett": -3, "ttgt": -2}
NO_JIT, JIT = 0, 1  # cutensorJitMode_t
_WORKSPACE_MAX = 3  # cutensorWorksizePreference_t: so much that every algorithm is available
_SCALAR_TYPE = 1  # cutensorOperationDescriptorAttribute_t
_CACHE_MODE, _NO_CACHE = 1, 0  # cutensorPlanPreferenceAttribute_t, cutensorCacheMode_t
_REQUIRED_WORKSPACE = 0  # cutensorPlanAttribute_t
SUCCESS = 0

_out, _ints, _longs = POINTER(c_void_p), POINTER(c_int32), POINTER(c_int64)

#: Arguments of each function; all return a cutensorStatus_t.
SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cutensorCreate": (_out,),
    "cutensorDestroy": (c_void_p,),
    "cutensorCreateTensorDescriptor": (c_void_p, _out, c_uint32, _longs, _longs, c_int, c_uint32),
    "cutensorDestroyTensorDescriptor": (c_void_p,),
    "cutensorCreateContraction": (
        c_void_p, _out, c_void_p, _ints, c_int, c_void_p, _ints, c_int, c_void_p, _ints, c_int, c_void_p, _ints,
        c_void_p,
    ),
    "cutensorDestroyOperationDescriptor": (c_void_p,),
    "cutensorOperationDescriptorGetAttribute": (c_void_p, c_void_p, c_int, c_void_p, c_size_t),
    "cutensorCreatePlanPreference": (c_void_p, _out, c_int, c_int),
    "cutensorPlanPreferenceSetAttribute": (c_void_p, c_void_p, c_int, c_void_p, c_size_t),
    "cutensorDestroyPlanPreference": (c_void_p,),
    "cutensorEstimateWorkspaceSize": (c_void_p, c_void_p, c_void_p, c_int, POINTER(c_uint64)),
    "cutensorCreatePlan": (c_void_p, _out, c_void_p, c_void_p, c_uint64),
    "cutensorPlanGetAttribute": (c_void_p, c_void_p, c_int, c_void_p, c_size_t),
    "cutensorDestroyPlan": (c_void_p,),
    "cutensorContract": (
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p,
    ),
    "cutensorCreatePermutation": (c_void_p, _out, c_void_p, _ints, c_int, c_void_p, _ints, c_void_p),
    "cutensorWriteKernelCacheToFile": (c_void_p, c_char_p),
    "cutensorReadKernelCacheFromFile": (c_void_p, c_char_p),
    "cutensorPermute": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
}  # fmt: skip

#: Of versions since 2.3, and bound where they are there: see `cutensor_blocks`.
BLOCK_SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cutensorCreateBlockSparseTensorDescriptor": (
        c_void_p, _out, c_uint32, c_uint64, POINTER(c_uint32), _longs, _ints, _longs, c_int,
    ),
    "cutensorDestroyBlockSparseTensorDescriptor": (c_void_p,),
    "cutensorCreateBlockSparseContraction": (
        c_void_p, _out, c_void_p, _ints, c_int, c_void_p, _ints, c_int, c_void_p, _ints, c_int, c_void_p, _ints,
        c_void_p,
    ),
    "cutensorBlockSparseContract": (
        c_void_p, c_void_p, c_void_p, _out, _out, c_void_p, _out, _out, c_void_p, c_uint64, c_void_p,
    ),
}  # fmt: skip


class CutensorError(Exception):
    """A function of the library that did not return success."""


class Tensor:
    """A tensor as cuTENSOR describes it: modes named by numbers, strides in elements, alignment in bytes."""

    def __init__(
        self, modes: Sequence[int], extents: Sequence[int], strides: Sequence[int], dtype: torch.dtype, alignment: int
    ) -> None:
        self.modes, self.extents, self.strides = tuple(modes), tuple(extents), tuple(strides)
        self.dtype, self.alignment = dtype, alignment


class Library:
    """The loaded library with one handle. `functions` maps names to callables of `SIGNATURES`."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., int]],
        constant: Callable[[str], c_void_p],
        error_text: Callable[[int], bytes | None],
        version: int,
        wheel: str | None = None,
    ) -> None:
        self._functions, self._constant, self._error_text = functions, constant, error_text
        self.version = f"{version // 10000}.{version // 100 % 100}.{version % 100}"  # as the library says
        self.wheel = wheel  # that it came in, with the wheel's own version, which may be another
        self._handle = self._made("cutensorCreate", (), "cutensorDestroy", self)

    @property
    def text(self) -> str:
        """The library as records name it: ``"cuTENSOR 2.8.0 (wheel cutensor-cu13 2.8.1)"``."""
        return f"cuTENSOR {self.version}" + (f" (wheel {self.wheel})" if self.wheel else "")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise `CutensorError` with cuTENSOR's own words when it fails."""
        status = self._functions[name](*arguments)
        if status != SUCCESS:
            text = self._error_text(status)
            raise CutensorError(f"{name}: {text.decode() if text else f'status {status}'}")

    def contraction(
        self, a: Tensor, a_operator: int, b: Tensor, b_operator: int, d: Tensor, compute: str
    ) -> CutensorContraction:
        """Describe ``D = alpha op_a(A) op_b(B) + beta C``, C lying as D; `compute` ends a CUTENSOR_COMPUTE_DESC_*."""
        return CutensorContraction(self, a, a_operator, b, b_operator, d, compute)

    def permutation(self, a: Tensor, operator: int, d: Tensor, compute: str) -> Permutation:
        """Describe ``D = alpha op(A)``, A's modes in D's order; `compute` as for `contraction`."""
        return Permutation(self, a, operator, d, compute)

    def write_kernels(self, file: Path) -> None:
        """Write the kernels compiled just in time so far, of all handles of this process."""
        self.call("cutensorWriteKernelCacheToFile", self._handle, str(file).encode())

    def read_kernels(self, file: Path) -> None:
        """Add the kernels of a file that `write_kernels` wrote to those known."""
        self.call("cutensorReadKernelCacheFromFile", self._handle, str(file).encode())

    def _made(self, create: str, arguments: tuple[Any, ...], destroy: str, owner: object) -> c_void_p:
        """An object that the library makes, destroyed when `owner` goes."""
        made = c_void_p()
        first = (self._handle,) if create != "cutensorCreate" else ()
        self.call(create, *first, byref(made), *arguments)
        weakref.finalize(owner, self._functions[destroy], made)
        return made


class Operation:
    """An operation descriptor, from which plans are made."""

    def __init__(
        self, library: Library, create: str, tensors: Sequence[Tensor], operators: Sequence[int], compute: str
    ) -> None:
        """`create` takes the descriptor, modes and, as far as `operators` reach, the operator of each tensor."""
        self.library = library
        arguments: list[Any] = []
        described = {id(tensor): self._describe(tensor) for tensor in tensors}
        for at, tensor in enumerate(tensors):
            arguments += [described[id(tensor)], _array(c_int32, tensor.modes), *operators[at : at + 1]]
        self.descriptor = library._made(
            create,
            (*arguments, library._constant(f"CUTENSOR_COMPUTE_DESC_{compute}")),
            "cutensorDestroyOperationDescriptor",
            self,
        )
        kind = c_int()
        library.call(
            "cutensorOperationDescriptorGetAttribute",
            library._handle, self.descriptor, _SCALAR_TYPE, byref(kind), ctypes.sizeof(kind),
        )  # fmt: skip
        self._scalar_type = next(dtype for dtype, value in DATA_TYPES.items() if value == kind.value)

    def plan(self, algorithm: int, jit: int, workspace_limit: int) -> Plan:
        """A plan by one algorithm with at most `workspace_limit` bytes, or `CutensorError` where it has none."""
        return Plan(self, algorithm, jit, workspace_limit)

    def scalar(self, value: complex) -> Any:
        """`value` as the library wants its factors."""
        value = complex(value)
        if self._scalar_type is torch.complex64:
            return (ctypes.c_float * 2)(value.real, value.imag)
        if self._scalar_type is torch.complex128:
            return (ctypes.c_double * 2)(value.real, value.imag)
        return ctypes.c_double(value.real) if self._scalar_type is torch.float64 else ctypes.c_float(value.real)

    def _describe(self, tensor: Tensor) -> c_void_p:
        return self.library._made(
            "cutensorCreateTensorDescriptor",
            (
                len(tensor.modes), _array(c_int64, tensor.extents), _array(c_int64, tensor.strides),
                DATA_TYPES[tensor.dtype], tensor.alignment,
            ),
            "cutensorDestroyTensorDescriptor",
            self,
        )  # fmt: skip


class CutensorContraction(Operation):
    """See `Library.contraction`."""

    def __init__(
        self, library: Library, a: Tensor, a_operator: int, b: Tensor, b_operator: int, d: Tensor, compute: str
    ) -> None:
        operators = (a_operator, b_operator, IDENTITY)
        super().__init__(library, "cutensorCreateContraction", (a, b, d, d), operators, compute)


class Permutation(Operation):
    """See `Library.permutation`."""

    def __init__(self, library: Library, a: Tensor, operator: int, d: Tensor, compute: str) -> None:
        super().__init__(library, "cutensorCreatePermutation", (a, d), (operator,), compute)


class Plan:
    """One kernel, or several, that the library chose for an operation."""

    def __init__(self, operation: Operation, algorithm: int, jit: int, workspace_limit: int) -> None:
        library = operation.library
        self._operation = operation
        preference = library._made(
            "cutensorCreatePlanPreference", (algorithm, jit), "cutensorDestroyPlanPreference", self
        )
        # The library's own cache of plans could answer one algorithm with the plan of another.
        mode = c_int(_NO_CACHE)
        library.call(
            "cutensorPlanPreferenceSetAttribute",
            library._handle, preference, _CACHE_MODE, byref(mode), ctypes.sizeof(mode),
        )  # fmt: skip
        wanted = c_uint64()
        library.call(
            "cutensorEstimateWorkspaceSize",
            library._handle, operation.descriptor, preference, _WORKSPACE_MAX, byref(wanted),
        )  # fmt: skip
        limit = min(wanted.value, workspace_limit)
        self._plan = library._made(
            "cutensorCreatePlan", (operation.descriptor, preference, limit), "cutensorDestroyPlan", self
        )
        needed = c_uint64()
        library.call(
            "cutensorPlanGetAttribute",
            library._handle, self._plan, _REQUIRED_WORKSPACE, byref(needed), ctypes.sizeof(needed),
        )  # fmt: skip
        self.workspace_bytes = needed.value

    def run(self, alpha: Any, a: int, b: int, beta: Any, c: int, d: int, workspace: int, stream: int) -> None:
        """Launch a contraction on addresses; `alpha` and `beta` as `Operation.scalar` makes them."""
        library = self._operation.library
        library.call(
            "cutensorContract",
            library._handle, self._plan, byref(alpha), a, b, byref(beta), c, d,
            workspace, self.workspace_bytes, stream,
        )  # fmt: skip

    def permute(self, alpha: Any, a: int, d: int, stream: int) -> None:
        """Launch a permutation on addresses."""
        library = self._operation.library
        library.call("cutensorPermute", library._handle, self._plan, byref(alpha), a, d, stream)


def load() -> Library:
    """The library at ``WEFT_CUTENSOR`` (a path), else where the loader finds it, else of an installed package.

    `UnsupportedError` says what was tried.
    """
    load_companions()
    tried: list[str] = []
    for place in _places():
        try:
            return bind(ctypes.CDLL(str(place)), wheel_of(_loaded_from(str(place))))
        except (OSError, AttributeError, CutensorError) as error:
            tried.append(f"{error}")
    raise UnsupportedError(f"cuTENSOR cannot be used: {'; '.join(tried)}")


def wheel_of(file: Path) -> str | None:
    """The name and version of the wheel of cuTENSOR that a file was installed from; None for any other file."""
    file = file.resolve()
    for folder in list(file.parents)[1:5]:
        for wheel in metadata.distributions(path=[str(folder)]):
            files = wheel.files or [] if (wheel.name or "").startswith("cutensor") else []
            if any(Path(str(wheel.locate_file(each))).resolve() == file for each in files):
                return f"{wheel.name} {wheel.version}"
    return None


def _loaded_from(place: str) -> Path:
    """The file that was opened: where the loader found a bare name, as the system maps it."""
    if "/" not in place and (maps := Path("/proc/self/maps")).exists():
        found = [line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if place in line]
        place = next((name for name in found if name.startswith("/")), place)
    return Path(place)


def bind(shared: ctypes.CDLL, wheel: str | None = None) -> Library:
    """A `Library` of an opened shared object. `AttributeError` where that lacks a function."""
    functions = {}
    found = [name for name in BLOCK_SIGNATURES if hasattr(shared, name)]
    for name, arguments in {**SIGNATURES, **{name: BLOCK_SIGNATURES[name] for name in found}}.items():
        function = getattr(shared, name)
        function.argtypes, function.restype = arguments, c_int
        functions[name] = function
    shared.cutensorGetErrorString.argtypes, shared.cutensorGetErrorString.restype = (c_int,), ctypes.c_char_p
    shared.cutensorGetVersion.restype = c_size_t
    return Library(
        functions,
        lambda name: c_void_p.in_dll(shared, name),
        shared.cutensorGetErrorString,
        int(shared.cutensorGetVersion()),
        wheel,
    )


def _places() -> list[Path | str]:
    if named := os.environ.get("WEFT_CUTENSOR"):
        return [named]  # what is asked for by name is not replaced by another
    spec = find_spec("cutensor")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return ["libcutensor.so.2", *(folder / "lib" / "libcutensor.so.2" for folder in packages)]


def load_companions() -> None:
    """Open cuBLASLt and NVRTC of NVIDIA's wheels: the loader then finds them by name, wherever they lie."""
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        for pattern in ("libnvrtc.so.*", "libcublasLt.so.*"):
            for file in Path(root).glob(f"*/lib/{pattern}"):
                try:
                    ctypes.CDLL(str(file))
                except OSError:
                    continue  # a missing one is missed, and named, when cuTENSOR itself is opened


def _array(kind: type[Any], values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
