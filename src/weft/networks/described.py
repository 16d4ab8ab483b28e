"""Descriptions of a network: as text, as data, and as pictures."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import ArgumentError
from weft.networks.arguments import read_tensors
from weft.networks.planned import Planned
from weft.tune.many import BUDGET, TuningReport


class DescribedNetwork(Planned):
    """A network that was planned, with the ways to look at its plan. Libraries that draw are imported on request."""

    def warm(self, *tensors: Any) -> Any:
        """Contract these tensors once, and have the best kernel for every step from then on; returns the network.

        `tensors` as in a call. It takes seconds where nothing is compiled yet; later processes find the kernels. Raises
        what a call raises.
        """
        from weft.networks.warming import warm

        warm(self, tensors)
        return self

    def tune(self, *tensors: Any, budget: float = BUDGET, workers: int | None = None) -> TuningReport:
        """Measure what could serve each step, and have the fastest from then on; returns a report that prints itself.

        `tensors` as in a call. Equal steps are measured once, those that take longest by prediction first. Candidates
        are the best schedules of each family by prediction, torch's own operations, and what serves now. `budget`:
        seconds, after which no further step is begun. `workers`: processes that compile meanwhile, by default one for
        each core but one. The fastest are stored, for all networks that have such a step and for later processes; a
        step whose schedule is stored is not measured again. On a terminal a bar shows on standard error. Ctrl-C keeps
        what was found.

        Raises what a call raises, `ArgumentError` for a budget or workers below 0, `UnsupportedError` while a CUDA
        graph is being captured.
        """
        from weft.networks.tuning import tune

        return tune(self, tensors, budget, workers)

    def error_bound(self, *tensors: Any) -> torch.Tensor:
        """The most by which each element of the result may differ from the exact one: a float64 tensor of its shape.

        `tensors` as in a call. It costs a contraction of the magnitudes in float64.
        """
        from weft.networks.bounds import error_bound

        return error_bound(self, read_tensors(self, tensors))

    def explain(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> str:
        """Path, slices, steps with their flops, bytes and predicted times, peak memory, and the tree as text.

        Figures have their units; those of a step are of one slice. With `ranks`: the intermediates distributed by modes
        over so many ranks, as calls with `distribute="modes"` have them: what ranks share out in each step, how its
        result is placed, the bytes that travel. `link` is a `weft.distributed.Link` or the name of a preset, by default
        NVLink within machines of eight GPUs, and InfiniBand between them; `target` another GPU ("h200", "sm_90").
        """
        if ranks is not None:
            from weft.networks.by_modes import report as by_modes

            return by_modes.explain(self, ranks, link, target)
        _refuse_paper(link, target)
        from weft.networks.report import explain

        return explain(self)

    def report(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> dict[str, Any]:
        """The plan as data: plain numbers, text and lists; times in seconds, sizes in bytes, work in flops.

        With `ranks` that of the intermediates distributed by modes, as for `explain`.
        """
        if ranks is not None:
            from weft.networks.by_modes import report as by_modes

            return by_modes.report(self, ranks, link, target)
        _refuse_paper(link, target)
        from weft.networks.report import report

        return report(self)

    def to_graph(self) -> Any:
        """The contraction tree as a `networkx.DiGraph`, an edge from each tensor to the step that takes it.

        Nodes have `kind` ("operand" or "step"), `labels`, `shape` (elements) and `bytes`; steps also `flops` and
        predicted `seconds` of one slice, and `equation`.
        """
        from weft.networks.picture import to_graph

        return to_graph(self)

    def draw(self, file: Any = None) -> Any:
        """The tree as a matplotlib figure, saved where `file` is a path: circles grow with the tensors' bytes, colours
        are predicted seconds."""
        from weft.networks.picture import draw

        return draw(self, file)

    def to_html(self, file: Any = None) -> str:
        """The report and the tree as one HTML page; saved where `file` is a path."""
        from weft.networks.picture import to_html

        return to_html(self, file)

    def _repr_html_(self) -> str:
        """HTML for a notebook: figures, the tree as a picture, and the text of `explain` behind a click."""
        from weft.networks.picture import shown

        return shown(self)


def _refuse_paper(link: Any, target: Any) -> None:
    for name, value in (("link", link), ("target", target)):
        if value is not None:
            raise ArgumentError(f"{name}={value!r} is of a call on paper: pass ranks=, too")
