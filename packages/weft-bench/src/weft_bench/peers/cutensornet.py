"""cuTensorNet as a peer: a network along a given path, every step autotuned, by the C functions of the library.

The library is `libcutensornet.so.2` (at ``WEFT_CUTENSORNET``, else where the loader finds it), which asks for cuTENSOR
beside it. Names and values are those of ``cutensornet.h`` and ``cutensornet/types.h`` of version 2.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any

import torch
from opt_einsum.paths import ssa_to_linear

from weft.errors import UnsupportedError
from weft_bench.cases.networks import NetworkCase
from weft_bench.peers.cutensor import current_stream
from weft_bench.peers.cutensor_library import DATA_TYPES, SUCCESS, load_companions
from weft_bench.peers.registry import Prepared, Way

if TYPE_CHECKING:
    from weft_bench.networks import NetworkTensors

COMPUTE = {"32F": 1 << 2, "64F": 1 << 4, "TF32": 1 << 12, "3XTF32": 1 << 13}  # cutensornetComputeType_t
_COMPUTES = {None: ("32F",), "tf32": ("TF32",), "ieee_bound": ("32F", "3XTF32")}
_COMPUTE_TYPE, _PATH = 30, 0  # cutensornetNetworkAttributes_t, cutensornetContractionOptimizerInfoAttributes_t
_RECOMMENDED = 1  # cutensornetWorksizePref_t
_DEVICE, _SCRATCH, _CACHE = 0, 0, 1  # cutensornetMemspace_t, cutensornetWorkspaceKind_t
_out, _ints, _longs = POINTER(c_void_p), POINTER(c_int32), POINTER(c_int64)

#: Arguments of each function; all return a cutensornetStatus_t.
SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "Create": (_out,),
    "Destroy": (c_void_p,),
    "CreateNetwork": (c_void_p, _out),
    "DestroyNetwork": (c_void_p,),
    "NetworkAppendTensor": (c_void_p, c_void_p, c_int32, _longs, _ints, c_void_p, c_int, _longs),
    "NetworkSetOutputTensor": (c_void_p, c_void_p, c_int32, _ints, c_int),
    "NetworkSetAttribute": (c_void_p, c_void_p, c_int, c_void_p, c_size_t),
    "CreateContractionOptimizerInfo": (c_void_p, c_void_p, _out),
    "DestroyContractionOptimizerInfo": (c_void_p,),
    "ContractionOptimizerInfoSetAttribute": (c_void_p, c_void_p, c_int, c_void_p, c_size_t),
    "NetworkSetOptimizerInfo": (c_void_p, c_void_p, c_void_p),
    "CreateWorkspaceDescriptor": (c_void_p, _out),
    "DestroyWorkspaceDescriptor": (c_void_p,),
    "WorkspaceComputeContractionSizes": (c_void_p, c_void_p, c_void_p, c_void_p),
    "WorkspaceGetMemorySize": (c_void_p, c_void_p, c_int, c_int, c_int, _longs),
    "WorkspaceSetMemory": (c_void_p, c_void_p, c_int, c_int, c_void_p, c_int64),
    "NetworkPrepareContraction": (c_void_p, c_void_p, c_void_p),
    "CreateNetworkAutotunePreference": (c_void_p, _out),
    "DestroyNetworkAutotunePreference": (c_void_p,),
    "NetworkAutotuneContraction": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "NetworkSetInputTensorMemory": (c_void_p, c_void_p, c_int64, c_void_p, _longs),
    "NetworkSetOutputTensorMemory": (c_void_p, c_void_p, c_void_p, _longs),
    "NetworkContract": (c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_void_p),
}


class CutensornetError(Exception):
    """A function of the library that did not return success."""


class Library:
    """The loaded library with one handle."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared
        for name, arguments in SIGNATURES.items():
            function = getattr(shared, f"cutensornet{name}")
            function.argtypes, function.restype = arguments, c_int
        shared.cutensornetGetErrorString.argtypes, shared.cutensornetGetErrorString.restype = (c_int,), c_char_p
        shared.cutensornetGetVersion.restype = c_size_t
        number = int(shared.cutensornetGetVersion())
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        self.handle = self.made("Create", (), "Destroy", self)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._shared, f"cutensornet{name}")(*arguments)
        if status != SUCCESS:
            raise CutensornetError(f"cutensornet{name}: {self._shared.cutensornetGetErrorString(status).decode()}")

    def made(self, create: str, arguments: tuple[Any, ...], destroy: str, owner: object) -> c_void_p:
        """An object that the library makes, destroyed when `owner` goes."""
        found = c_void_p()
        self.call(create, *arguments, byref(found))
        weakref.finalize(owner, getattr(self._shared, f"cutensornet{destroy}"), found)
        return found


class PreparedNetwork:
    """One network of the library along the case's path, autotuned on tensors."""

    def __init__(self, library: Library, case: NetworkCase, tensors: Sequence[torch.Tensor], compute: str) -> None:
        self._library, self._device = library, tensors[0].device
        self._network = library.made("CreateNetwork", (library.handle,), "DestroyNetwork", self)
        kind = DATA_TYPES[case.dtype]
        self._places = [self._append(term, tensor, kind) for term, tensor in zip(case.terms, tensors, strict=True)]
        library.call("NetworkSetOutputTensor", *self._of(), len(case.output), _many(c_int32, case.output), kind)
        kind_of_sums = c_int(COMPUTE[compute])
        library.call("NetworkSetAttribute", *self._of(), _COMPUTE_TYPE, byref(kind_of_sums), ctypes.sizeof(c_int))
        self._result = torch.empty(case.shape, dtype=case.dtype, device=self._device)
        self._given: tuple[int, ...] = ()
        path = self._along(ssa_to_linear(case.path))
        self.workspace_bytes = self._prepare(path)
        self._tune(tensors)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        self._set(tensors)
        stream = current_stream(self._device)
        self._library.call("NetworkContract", *self._of(), 0, self._workspace, None, stream)
        return self._result

    def _of(self) -> tuple[c_void_p, c_void_p]:
        return self._library.handle, self._network

    def _append(self, term: Sequence[int], tensor: torch.Tensor, kind: int) -> int:
        place = c_int64()
        extents, labels = _many(c_int64, tensor.shape), _many(c_int32, term)
        self._library.call("NetworkAppendTensor", *self._of(), len(term), extents, labels, None, kind, byref(place))
        return place.value

    def _along(self, path: Iterable[Sequence[int]]) -> c_void_p:
        """The library's word for a path, as numpy.einsum_path writes one."""
        library = self._library
        info = library.made("CreateContractionOptimizerInfo", self._of(), "DestroyContractionOptimizerInfo", self)
        pairs = [at for pair in path for at in pair]
        steps = _many(c_int32, pairs)
        said = _Path(len(pairs) // 2, ctypes.cast(steps, c_void_p))
        size = ctypes.sizeof(said)
        library.call("ContractionOptimizerInfoSetAttribute", library.handle, info, _PATH, byref(said), size)
        library.call("NetworkSetOptimizerInfo", *self._of(), info)
        return info

    def _prepare(self, info: c_void_p) -> int:
        """Memory for intermediates, of the recommended size; and the steps planned in it."""
        library = self._library
        self._workspace = library.made(
            "CreateWorkspaceDescriptor", (library.handle,), "DestroyWorkspaceDescriptor", self
        )
        library.call("WorkspaceComputeContractionSizes", *self._of(), info, self._workspace)
        self._memory = [self._give(kind) for kind in (_SCRATCH, _CACHE)]
        library.call("NetworkPrepareContraction", *self._of(), self._workspace)
        return sum(memory.numel() for memory in self._memory)

    def _give(self, kind: int) -> torch.Tensor:
        size, library = c_int64(), self._library
        where = library.handle, self._workspace
        library.call("WorkspaceGetMemorySize", *where, _RECOMMENDED, _DEVICE, kind, byref(size))
        memory = torch.empty(max(size.value, 0), dtype=torch.uint8, device=self._device)
        library.call("WorkspaceSetMemory", *where, _DEVICE, kind, memory.data_ptr() or None, memory.numel())
        return memory

    def _tune(self, tensors: Sequence[torch.Tensor]) -> None:
        library = self._library
        self._set(tensors)
        strides = _many(c_int64, self._result.stride())
        library.call("NetworkSetOutputTensorMemory", *self._of(), self._result.data_ptr(), strides)
        wanted = library.made(
            "CreateNetworkAutotunePreference", (library.handle,), "DestroyNetworkAutotunePreference", self
        )
        stream = current_stream(self._device)
        library.call("NetworkAutotuneContraction", *self._of(), self._workspace, wanted, stream)

    def _set(self, tensors: Sequence[torch.Tensor]) -> None:
        """Tell the library where operands lie, where they are others than at the last call."""
        given = tuple(tensor.data_ptr() for tensor in tensors)
        if given == self._given:
            return
        for place, tensor in zip(self._places, tensors, strict=True):
            strides = _many(c_int64, tensor.stride())
            self._library.call("NetworkSetInputTensorMemory", *self._of(), place, tensor.data_ptr(), strides)
        self._given = given


class CutensornetPeer:
    """The library, opened at its first use; every compute type as exact as the case asks, each autotuned."""

    name = "cutensornet"

    def __init__(self, library: Library | None = None) -> None:
        self._library = library

    def prepare(self, case: NetworkCase, tensors: NetworkTensors) -> Prepared | str:
        if self._library is None and not tensors[0].is_cuda:
            return "cuTensorNet runs on NVIDIA GPUs"
        self._library = self._library or load()
        ways, refused, computes = [], {}, _COMPUTES[case.precision]
        for compute in computes:
            try:
                made = PreparedNetwork(self._library, case, tensors, compute)
                ways.append(Way(compute, made, {"workspace bytes": made.workspace_bytes}))
            except (CutensornetError, torch.OutOfMemoryError) as error:
                refused[compute] = str(error)
        if not ways:
            return "; ".join(refused.values())
        note = f"cuTensorNet {self._library.version}, autotuned"
        return Prepared(ways, refused, note=note, yardstick=frozenset(computes[:1]))

    def settings(self, case: NetworkCase) -> AbstractContextManager[Any]:
        return nullcontext()


class _Path(ctypes.Structure):
    """cutensornetContractionPath_t"""

    _fields_ = (("count", c_int32), ("pairs", c_void_p))


def load() -> Library:
    """The library; `UnsupportedError` says why it cannot be had."""
    load_companions()
    torch.cuda.init()  # the library finds the device through torch's context
    try:
        return Library(ctypes.CDLL(os.environ.get("WEFT_CUTENSORNET", "libcutensornet.so.2")))
    except (OSError, AttributeError, CutensornetError) as error:
        raise UnsupportedError(f"cuTensorNet cannot be used: {error}") from error


def _many(kind: type[Any], values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
