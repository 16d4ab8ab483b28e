"""A stand-in for cuTensorNet on the CPU: the functions that the adapter calls, strict about their order.

Arguments are those of NVIDIA's headers, written down here once more so that a slip in the adapter shows.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch
from opt_einsum.paths import linear_to_ssa

from weft_bench.peers.cutensornet import Library

REFUSED = 15
COMPUTES = {4: "32F", 1 << 12: "TF32", 1 << 13: "3XTF32"}


class Function:
    """One C function, whose argument types may be set."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        found = self._call(*(getattr(argument, "_obj", argument) for argument in arguments))
        return 0 if found is None else found


class FakeCutensornet:
    """`library` is what the adapter takes; `refuses` names compute types that it does not have."""

    def __init__(self, refuses: frozenset[str] = frozenset()) -> None:
        self.refuses, self.alive, self.ran = refuses, {}, []
        self._numbers = itertools.count(0x100)
        made = {f"cutensornet{name}": Function(getattr(self, name)) for name in dir(self) if name[0].isupper()}
        self.library = Library(type("Shared", (), made))

    def GetVersion(self) -> int:
        return 21400

    def GetErrorString(self, status: int) -> bytes:
        return b"not supported" if status == REFUSED else b"?"

    def _new(self, out: Any, thing: Any) -> None:
        out.value = next(self._numbers)
        self.alive[out.value] = thing

    def Create(self, out: Any) -> None:
        self._new(out, "handle")

    def CreateNetwork(self, handle: Any, out: Any) -> None:
        self._new(out, {"operands": [], "path": None, "prepared": False, "tuned": False, "result": None})

    def NetworkAppendTensor(
        self, handle: Any, network: Any, rank: int, extents: Any, labels: Any, qualifiers: Any, kind: int, out: Any
    ) -> None:
        assert (qualifiers, kind) == (None, 0)
        operands = self._of(network)["operands"]
        operands.append({"extents": list(extents), "labels": list(labels), "place": None})
        assert len(extents) == len(labels) == rank
        out.value = 7 + len(operands) - 1

    def NetworkSetOutputTensor(self, handle: Any, network: Any, rank: int, labels: Any, kind: int) -> None:
        self._of(network)["output"] = list(labels)

    def NetworkSetAttribute(self, handle: Any, network: Any, what: int, value: Any, size: int) -> int | None:
        assert (what, size) == (30, 4)
        self._of(network)["compute"] = COMPUTES[value.value]
        return REFUSED if COMPUTES[value.value] in self.refuses else None

    def CreateContractionOptimizerInfo(self, handle: Any, network: Any, out: Any) -> None:
        self._new(out, {})

    def ContractionOptimizerInfoSetAttribute(self, handle: Any, info: Any, what: int, path: Any, size: int) -> None:
        assert (what, size) == (0, 16)
        steps = (ctypes.c_int32 * (2 * path.count)).from_address(path.pairs)
        self._of(info)["path"] = [*zip(steps[::2], steps[1::2], strict=True)]

    def NetworkSetOptimizerInfo(self, handle: Any, network: Any, info: Any) -> None:
        self._of(network)["path"] = self._of(info)["path"]

    def CreateWorkspaceDescriptor(self, handle: Any, out: Any) -> None:
        self._new(out, {"sizes": {0: 64, 1: 0}, "computed": False})

    def WorkspaceComputeContractionSizes(self, handle: Any, network: Any, info: Any, workspace: Any) -> None:
        assert self._of(network)["path"] is not None
        self._of(workspace)["computed"] = True

    def WorkspaceGetMemorySize(self, handle: Any, workspace: Any, how: int, where: int, kind: int, out: Any) -> None:
        assert self._of(workspace)["computed"]
        assert (how, where) == (1, 0)
        out.value = self._of(workspace)["sizes"][kind]

    def WorkspaceSetMemory(self, handle: Any, workspace: Any, where: int, kind: int, place: Any, size: int) -> None:
        assert size == self._of(workspace)["sizes"][kind]

    def NetworkPrepareContraction(self, handle: Any, network: Any, workspace: Any) -> None:
        self._of(network)["prepared"] = True

    def CreateNetworkAutotunePreference(self, handle: Any, out: Any) -> None:
        self._new(out, {})

    def NetworkAutotuneContraction(self, handle: Any, network: Any, workspace: Any, wanted: Any, stream: Any) -> None:
        found = self._of(network)
        assert found["prepared"]
        assert found["result"] is not None
        assert all(operand["place"] for operand in found["operands"])
        found["tuned"] = True

    def NetworkSetInputTensorMemory(self, handle: Any, network: Any, at: int, place: int, strides: Any) -> None:
        self._of(network)["operands"][at - 7] |= {"place": place, "strides": list(strides)}

    def NetworkSetOutputTensorMemory(self, handle: Any, network: Any, place: int, strides: Any) -> None:
        self._of(network)["result"] = place, list(strides)

    def NetworkContract(self, handle: Any, network: Any, adds: int, workspace: Any, slices: Any, stream: Any) -> None:
        found = self._of(network)
        assert (adds, slices) == (0, None)
        assert found["tuned"]
        nodes = [(operand["labels"], _read(**operand)) for operand in found["operands"]]
        for left, right in linear_to_ssa(found["path"]):
            kept = self._kept(nodes, (left, right), found["output"])
            here = {label: at for at, label in enumerate(dict.fromkeys([*nodes[left][0], *nodes[right][0]]))}
            (x, p), (y, q) = (([here[label] for label in nodes[at][0]], nodes[at][1]) for at in (left, right))
            value = torch.einsum(p, x, q, y, [here[label] for label in kept])
            nodes[left] = nodes[right] = ([], None)
            nodes.append((kept, value))
        labels, value = nodes[-1]
        value = value.permute([labels.index(label) for label in found["output"]])
        _read(list(value.shape), [], found["result"][0], found["result"][1]).copy_(value)
        self.ran.append(found["compute"])

    def _kept(self, nodes: Any, pair: tuple[int, int], output: list[int]) -> list[int]:
        others = {label for at, (labels, _) in enumerate(nodes) if at not in pair for label in labels} | {*output}
        both = [*nodes[pair[0]][0], *nodes[pair[1]][0]]
        return [label for label in dict.fromkeys(both) if label in others]

    def _of(self, number: Any) -> Any:
        return self.alive[number.value]

    def _destroy(self, number: Any) -> None:
        self.alive.pop(number.value)

    Destroy = DestroyNetwork = DestroyContractionOptimizerInfo = _destroy
    DestroyWorkspaceDescriptor = DestroyNetworkAutotunePreference = _destroy


def _read(extents: list[int], labels: list[int], place: int, strides: list[int]) -> torch.Tensor:
    """The float32 tensor at an address of host memory."""
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
    memory = (ctypes.c_float * reach).from_address(place)
    return torch.frombuffer(memory, dtype=torch.float32).as_strided(extents, strides)
