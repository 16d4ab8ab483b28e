"""The plan of a network: all that reports, bounds and exponents look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.base.figures import counted
from weft.base.kept import Kept
from weft.networks.cost import Model, model, precision_word
from weft.networks.folding import Folded
from weft.networks.graph import Graph
from weft.networks.memory import ResultMemory
from weft.networks.program import NetworkProgram, NetworkScheme
from weft.networks.settings import Settings
from weft.networks.tree import Tree, TreeStep
from weft.plans.intermediates import WIDER

#: See `Network._begin`.
_OF_CALLS = ("_programs", "_changes", "_paused", "_calls", "_seen", "_shared", "latest", "backward")


class Planned:
    """The values that a `Network` consists of.

    `graph`: labels, extents and operands. `leaves`: the operands' types. `settings`: options and device. `source`:
    where the path comes from, in words. `dtypes`: the type of each node of the whole tree (operands first, then results
    in the order of the path). `functions`: those of nodes. `folded`: what is left where there are constants. `tree`:
    the steps of a call and its slices. `scheme`: the layouts of intermediates, and their places. `made`: operands of
    the tree after those of the caller.
    `latest`: the program that was made last; None before the first call. `backward`: the tree of derivatives, with
    slices of its own; None before the first of them.
    """

    graph: Graph
    leaves: tuple[torch.dtype, ...]
    settings: Settings
    source: str  # of the path
    dtypes: Mapping[int, torch.dtype]  # of all nodes
    functions: Mapping[int, Callable[..., Any]]  # by node
    folded: Folded  # what is left where there are constants
    tree: Tree  # of a call: without what is made of constants alone, sliced
    scheme: NetworkScheme
    made: Kept[list[torch.Tensor]]  # of constants
    latest: NetworkProgram | None  # the program that was made last
    backward: Tree | None  # of derivatives

    def __getstate__(self) -> dict[str, Any]:
        """Its plan and constants, nothing of its calls: a copy is a network of its own that was not called yet."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_CALLS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        """Know of no call."""
        raise NotImplementedError

    @property
    def constants(self) -> list[torch.Tensor]:
        """Operands of the tree after those of the caller."""
        return self.made.value

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The path, as `opt_einsum` has it: places in a list from which operands go and to whose end results come."""
        back = {ours: node for node, ours in self.folded.nodes.items()}
        live = [TreeStep(back[step.node], back[step.left], back[step.right]) for step in self.tree.steps]
        steps = sorted([*self.folded.steps, *live], key=lambda step: step.node)
        return Tree.of(self.graph, [(step.left, step.right) for step in steps]).path

    @property
    def slices(self) -> tuple[Any, ...]:
        """The labels that are sliced, as the caller named them; empty where nothing is."""
        return tuple(self.tree.graph.names[label] for label in self.tree.sliced)

    @property
    def memory(self) -> int:
        """Bytes that a call holds at once in addition to operands: intermediates, the result and what is needed for it,
        and on a GPU copies of operands where steps are replayed as a CUDA graph. `memory_limit` is held against it.
        Kernels pack operands in what the limit leaves, or in 4 MiB where that is less."""
        return self.scheme.arena.size + self.result_memory.bytes(self.tree) + self.gathered_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes of operands that may be copied to where a CUDA graph of the steps reads them; 0 without one."""
        program = self.latest
        return self.scheme.gathered if program is None or program.replay is not None else 0

    @property
    def result_memory(self) -> ResultMemory:
        """The memory that a call holds in addition to operands and intermediates."""
        return ResultMemory(self.dtype, WIDER.get(self.dtype), self.settings.strip_exponent)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the result."""
        return self.dtypes[max(self.dtypes)]

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.graph.size(self.graph.output) * self.dtype.itemsize

    @property
    def model(self) -> Model:
        """The rates that steps are priced with: seconds of a launch, FLOP/s and bytes/s of the device."""
        return model(self.settings.target, self.dtype, precision_word(self.settings.options.precision))

    def ours(self, of_whole: Mapping[int, Any]) -> dict[int, Any]:
        """Facts about the whole tree's nodes, restricted to the nodes that are left after folding."""
        return {ours: of_whole[node] for node, ours in self.folded.nodes.items() if node in of_whole}

    def __repr__(self) -> str:
        operands, steps = counted(len(self.graph.operands), "operand"), counted(len(self.tree.steps), "step")
        return f"Network({operands}, {steps}, {counted(self.tree.slices, 'slice')}, {self.source})"
