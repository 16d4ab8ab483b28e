"""Who contracts networks: weft, and torch driven by cotengra along the same path."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from weft.base.figures import duration
from weft.errors import UnsupportedError
from weft_bench.cases.networks import NetworkCase
from weft_bench.peers.pytorch import exact_products
from weft_bench.peers.registry import Prepared, Way, first_line

if TYPE_CHECKING:
    from weft_bench.networks import NetworkTensors


TUNING_SECONDS = 15.0  # for the steps of one network


class WeftNetwork:
    """``weft.network``, planned once. What is told beside: the first call, planning and compiling included.

    With `tune` "measure" there is one more way on a GPU, whose steps were tuned.
    """

    name = "weft"

    def __init__(self, tune: str | None = None) -> None:
        self._tunes = tune == "measure"

    def prepare(self, case: NetworkCase, tensors: NetworkTensors) -> Prepared | str:
        from weft_bench.networks import planned_network

        begun = perf_counter()
        try:
            net = planned_network(case, tensors)
            net(*tensors)
            if tensors[0].is_cuda:
                torch.cuda.synchronize()
        except UnsupportedError as error:
            return first_line(error)
        about = {
            "first call seconds": round(perf_counter() - begun, 4),
            "predicted seconds": float(f"{net.report()['seconds']:.4g}"),
            "memory bytes": net.memory,
        }
        ways = [Way("", net, about)]
        if tensors[0].is_cuda:
            net = planned_network(case, tensors, specialize="now")
            ways = [Way("default", ways[0].run, about), Way("specialised", net, about)]
            if self._tunes:
                net = planned_network(case, tensors, specialize="now")
                net.tune(*tensors, budget=TUNING_SECONDS)
                ways.append(Way("tuned", net, about))
        return Prepared(ways, note=_said(case, about))

    def settings(self, case: NetworkCase) -> AbstractContextManager[Any]:
        return nullcontext()


class TorchNetwork:
    """torch by cotengra's own contraction of a tree."""

    name = "torch"

    def prepare(self, case: NetworkCase, tensors: NetworkTensors) -> Prepared | str:
        from weft_bench.networks import ssa_tree

        tree = ssa_tree(case)
        return Prepared([Way("", lambda *operands: tree.contract(operands))])

    def settings(self, case: NetworkCase) -> AbstractContextManager[Any]:
        return exact_products(tf32=case.precision == "tf32")


def _said(case: NetworkCase, about: dict[str, Any]) -> str:
    """The first call, and what cuTensorNet took of the same slice on another day."""
    said = f"first call {duration(about['first call seconds'])}, predicted {duration(about['predicted seconds'])}"
    known = case.measured.get("cutensornet_autotuned")
    if known is not None:
        said += f"; cuTensorNet took {duration(known['seconds'])} of the whole slice on an H200"
    return said
