"""A stand-in for cuTENSOR on the CPU: the same C functions, strict about what the real one forbids.

Numbers are those of NVIDIA's headers, written down here once more so that a slip in the adapter shows. Every object
must be destroyed once, the handle last.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from weft_bench.peers.cutensor_library import SIGNATURES, Library

SUCCESS, INVALID_VALUE, INTERNAL_ERROR, NOT_SUPPORTED = 0, 7, 14, 15
TYPES = {
    0: np.dtype("f4"),
    1: np.dtype("f8"),
    2: np.dtype("f2"),
    4: np.dtype("c8"),
    5: np.dtype("c16"),
}  # cudaDataType_t
OPERATORS: dict[int, Callable[[Any], Any]] = {
    1: lambda x: x,
    8: lambda x: np.maximum(x, 0),
    9: np.conj,
    12: np.tanh,
}  # cutensorOperator_t
SCALARS = {"32F": {"f": 0, "c": 4}, "TF32": {"f": 0, "c": 4}, "3XTF32": {"f": 0, "c": 4},
           "9X16BF": {"f": 0, "c": 4}, "64F": {"f": 1, "c": 5}, "8XINT8": {"f": 1, "c": 5}}  # fmt: skip
ALGORITHMS = {-6, -4, -3, -2, -1}
WORKSPACE = {-2: 4096}


class FakeCutensor:
    """`library` is what the adapter takes. `wrong` names algorithms that give a wrong result."""

    def __init__(self, kernels: int = 2, wrong: frozenset[int] = frozenset()) -> None:
        self.kernels, self.wrong = kernels, wrong
        self.alive: dict[int, Any] = {}
        self.contractions: list[tuple[int, int, dict[str, Any]]] = []  # algorithm, jit, operation
        self.kernels_known: set[str] = set()  # compiled just in time, here or elsewhere
        self.compiled = 0  # here
        self._numbers = itertools.count(0x1000, 0x10)
        self._computes: dict[int, str] = {}
        self._broken = ""
        functions = {name: CFUNCTYPE(c_int, *types)(self._checked(name)) for name, types in SIGNATURES.items()}
        self._functions = functions  # ctypes forgets callbacks that nobody holds
        self.library = Library(functions, self._compute, self._text, 20801)

    def _checked(self, name: str) -> Callable[..., int]:
        inner = getattr(self, name)

        def function(*arguments: Any) -> int:
            try:
                return int(inner(*arguments) or SUCCESS)
            except _Refused as refused:
                return refused.status
            except Exception as error:  # a callback cannot raise into C
                self._broken = repr(error)
                return INTERNAL_ERROR

        return function

    def _compute(self, name: str) -> c_void_p:
        number = next(self._numbers)
        self._computes[number] = name.removeprefix("CUTENSOR_COMPUTE_DESC_")
        return c_void_p(number)

    def _text(self, status: int) -> bytes:
        names = {INVALID_VALUE: "CUTENSOR_STATUS_INVALID_VALUE", NOT_SUPPORTED: "CUTENSOR_STATUS_NOT_SUPPORTED"}
        return names.get(status, self._broken).encode()

    def _new(self, out: Any, thing: Any) -> None:
        number = next(self._numbers)
        self.alive[number] = thing
        out[0] = number

    def cutensorCreate(self, out: Any) -> None:
        self._new(out, "handle")

    def cutensorDestroy(self, handle: int) -> None:
        assert self.alive.pop(handle) == "handle"
        assert not self.alive, "destroyed before what it made"

    def cutensorCreateTensorDescriptor(
        self, handle: int, out: Any, rank: int, extents: Any, strides: Any, kind: int, alignment: int
    ) -> None:
        self._handle(handle)
        sizes, steps = list(extents[:rank]), list(strides[:rank])
        _require(all(size > 0 for size in sizes) and all(step > 0 for step in steps))
        _require(alignment > 0 and alignment & (alignment - 1) == 0 and alignment >= TYPES[kind].itemsize)
        self._new(out, {"extents": sizes, "strides": steps, "type": TYPES[kind], "alignment": alignment})

    def cutensorCreateContraction(
        self, handle: int, out: Any, a: int, modes_a: Any, op_a: int, b: int, modes_b: Any, op_b: int,
        c: int, modes_c: Any, op_c: int, d: int, modes_d: Any, compute: int,
    ) -> None:  # fmt: skip
        self._handle(handle)
        tensors = {
            "a": self._with_modes(a, modes_a),
            "b": self._with_modes(b, modes_b),
            "d": self._with_modes(d, modes_d),
        }
        _require(c == d and list(modes_c[: len(tensors["d"]["modes"])]) == tensors["d"]["modes"] and op_c == 1)
        in_a, in_b, in_d = (set(tensor["modes"]) for tensor in tensors.values())
        for tensor in tensors.values():
            _require(len(set(tensor["modes"])) == len(tensor["modes"]))
        _require(in_d <= in_a | in_b and (in_a ^ in_b) <= in_d, NOT_SUPPORTED)
        _require(op_a in OPERATORS and op_b in OPERATORS, NOT_SUPPORTED)
        kind = tensors["d"]["type"].kind
        scalar = SCALARS[self._computes[compute]][kind]
        operation = {**tensors, "ops": (op_a, op_b), "compute": self._computes[compute], "scalar": scalar}
        self._new(out, operation)

    def cutensorCreatePermutation(
        self, handle: int, out: Any, a: int, modes_a: Any, op_a: int, d: int, modes_d: Any, compute: int
    ) -> None:
        self._handle(handle)
        tensors = {"a": self._with_modes(a, modes_a), "d": self._with_modes(d, modes_d)}
        for tensor in tensors.values():
            _require(len(set(tensor["modes"])) == len(tensor["modes"]))
        extents = [dict(zip(tensor["modes"], tensor["extents"], strict=True)) for tensor in tensors.values()]
        _require(extents[0] == extents[1] and op_a in OPERATORS, NOT_SUPPORTED)
        scalar = SCALARS[self._computes[compute]][tensors["d"]["type"].kind]
        self._new(out, {**tensors, "ops": (op_a,), "compute": self._computes[compute], "scalar": scalar})

    def cutensorOperationDescriptorGetAttribute(
        self, handle: int, operation: int, attribute: int, out: int, size: int
    ) -> None:
        self._handle(handle)
        _require(attribute == 1 and size == 4)
        ctypes.cast(out, ctypes.POINTER(c_int))[0] = self.alive[operation]["scalar"]

    def cutensorCreatePlanPreference(self, handle: int, out: Any, algorithm: int, jit: int) -> None:
        self._handle(handle)
        _require(jit in (0, 1))
        self._new(out, {"algorithm": algorithm, "jit": jit})

    def cutensorPlanPreferenceSetAttribute(
        self, handle: int, preference: int, attribute: int, value: int, size: int
    ) -> None:
        self._handle(handle)
        _require(attribute == 1 and size == 4)
        self.alive[preference]["cache"] = ctypes.cast(value, ctypes.POINTER(c_int))[0]

    def cutensorEstimateWorkspaceSize(self, handle: int, operation: int, preference: int, how: int, out: Any) -> None:
        self._handle(handle)
        _require(how == 3)
        out[0] = WORKSPACE.get(self.alive[preference]["algorithm"], 0)

    def cutensorCreatePlan(self, handle: int, out: Any, operation: int, preference: int, limit: int) -> None:
        self._handle(handle)
        chosen, what = self.alive[preference], self.alive[operation]
        contraction = "b" in what
        mixed = contraction and what["a"]["type"] != what["d"]["type"]
        _require(contraction or not chosen["jit"], NOT_SUPPORTED)
        _require(chosen["algorithm"] in ALGORITHMS or 0 <= chosen["algorithm"] < self.kernels, NOT_SUPPORTED)
        _require(not mixed or bool(chosen["jit"]), NOT_SUPPORTED)  # as on the real one: mixed types only just in time
        if chosen.get("cache") != 0:  # a plan once made answers every algorithm
            chosen = what.setdefault("cached", chosen)
        if chosen["jit"] and (kernel := repr(what)) not in self.kernels_known:
            self.kernels_known.add(kernel)
            self.compiled += 1
        needed = WORKSPACE.get(chosen["algorithm"], 0)
        _require(needed <= limit)
        self._new(out, {**chosen, "operation": what, "workspace": needed})

    def cutensorWriteKernelCacheToFile(self, handle: int, file: bytes) -> None:
        self._handle(handle)
        Path(file.decode()).write_text(json.dumps(sorted(self.kernels_known)))

    def cutensorReadKernelCacheFromFile(self, handle: int, file: bytes) -> None:
        self._handle(handle)
        self.kernels_known.update(json.loads(Path(file.decode()).read_text()))

    def cutensorPlanGetAttribute(self, handle: int, plan: int, attribute: int, out: int, size: int) -> None:
        self._handle(handle)
        _require(attribute == 0 and size == 8)
        ctypes.cast(out, ctypes.POINTER(ctypes.c_uint64))[0] = self.alive[plan]["workspace"]

    def cutensorContract(
        self, handle: int, plan: int, alpha: int, a: int, b: int, beta: int, c: int, d: int,
        workspace: int | None, size: int, stream: int | None,
    ) -> None:  # fmt: skip
        self._handle(handle)
        chosen = self.alive[plan]
        what = chosen["operation"]
        _require(size >= chosen["workspace"] and (size == 0 or workspace is not None))
        x, y, z, result = (_at(what[name], address) for name, address in zip("abdd", (a, b, c, d), strict=True))
        x, y = OPERATORS[what["ops"][0]](x), OPERATORS[what["ops"][1]](y)
        wide = np.result_type(x, y, np.float32 if what["scalar"] in (0, 4) else np.float64)
        small: dict[int, int] = {}  # numpy has names for 52 modes
        modes = [[small.setdefault(mode, len(small)) for mode in what[name]["modes"]] for name in "abd"]
        alpha, beta = (_scalar(TYPES[what["scalar"]], address) for address in (alpha, beta))
        value = alpha * np.einsum(x.astype(wide), modes[0], y.astype(wide), modes[1], modes[2])
        if beta != 0:
            value = value + beta * z
        result[...] = value * (2 if chosen["algorithm"] in self.wrong else 1)
        self.contractions.append((chosen["algorithm"], chosen["jit"], what))

    def cutensorPermute(self, handle: int, plan: int, alpha: int, a: int, d: int, stream: int | None) -> None:
        self._handle(handle)
        chosen = self.alive[plan]
        what = chosen["operation"]
        _require("b" not in what)
        x, result = _at(what["a"], a), _at(what["d"], d)
        order = [what["a"]["modes"].index(mode) for mode in what["d"]["modes"]]
        factor = _scalar(TYPES[what["scalar"]], alpha)
        result[...] = factor * OPERATORS[what["ops"][0]](x).transpose(order)
        self.contractions.append((chosen["algorithm"], chosen["jit"], what))

    def cutensorDestroyTensorDescriptor(self, number: int) -> None:
        self.alive.pop(number)

    cutensorDestroyOperationDescriptor = cutensorDestroyTensorDescriptor
    cutensorDestroyPlanPreference = cutensorDestroyTensorDescriptor
    cutensorDestroyPlan = cutensorDestroyTensorDescriptor

    def _handle(self, handle: int) -> None:
        assert self.alive[handle] == "handle"

    def _with_modes(self, descriptor: int, modes: Any) -> dict[str, Any]:
        tensor = self.alive[descriptor]
        return {**tensor, "modes": list(modes[: len(tensor["extents"])])}


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


def _require(condition: bool, status: int = INVALID_VALUE) -> None:
    if not condition:
        raise _Refused(status)


def _scalar(kind: np.dtype, address: int) -> Any:
    return np.frombuffer((ctypes.c_ubyte * kind.itemsize).from_address(address), kind)[0]


def _at(tensor: dict[str, Any], address: int) -> np.ndarray:
    """The tensor at an address of host memory."""
    assert address % tensor["alignment"] == 0
    reach = 1 + sum((e - 1) * s for e, s in zip(tensor["extents"], tensor["strides"], strict=True))
    memory = (ctypes.c_ubyte * (reach * tensor["type"].itemsize)).from_address(address)
    flat = np.frombuffer(memory, tensor["type"])
    steps = [stride * tensor["type"].itemsize for stride in tensor["strides"]]
    return np.lib.stride_tricks.as_strided(flat, tensor["extents"], steps)
