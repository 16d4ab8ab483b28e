"""Who is measured: weft and its peers, each an adapter with the same two doors.

`prepare` looks at one case and one set of tensors and answers with the ways to compute it, or with a sentence that
says why it cannot. A way's `run` computes it on any set of tensors that lie like those. Several ways (cuTENSOR's
algorithms) are all checked and tried; the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from weft.cases import Case
from weft.errors import UnsupportedError, WeftError

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]


class Tensors(NamedTuple):
    """What one call of a case works on; `d` is where the result may be written."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None
    d: torch.Tensor


@dataclass(frozen=True)
class Way:
    """One way to compute a case. `run(a, b, c, d)` returns D: `d` itself, or a tensor of its own."""

    label: str
    run: Call
    about: Mapping[str, Any] = field(default_factory=dict)  # JSON values worth recording: schedule, workspace


@dataclass(frozen=True)
class Prepared:
    """The ways a contender found for one case."""

    ways: Sequence[Way]
    refused: Mapping[str, str] = field(default_factory=dict)  # ways that cannot do it, with the reason
    stored: torch.dtype | None = None  # the sum is rounded to this type before more is done with it; None: it is not
    note: str = ""


class Contender(Protocol):
    """One side of a comparison."""

    name: str

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        """Ways to compute `case` on tensors that lie as these do, or a sentence that says why there is none."""

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        """What must be switched while `case` is prepared, checked and timed."""


class Weft:
    """weft itself, planned once for each case. `tune` goes to `weft.plan`."""

    name = "weft"

    def __init__(self, tune: str | None = None, backend: str = "auto") -> None:
        self._tune, self._backend = tune, backend

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        from weft.api import plan

        options = case.options()
        alpha, beta = options.pop("alpha"), options.pop("beta")
        a, b, c, d = tensors
        try:
            planned = plan(case.equation, a, b, c=c, out=d, backend=self._backend, tune=self._tune, **options)
        except UnsupportedError as error:
            return first_line(error)

        def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = planned(a, b, c=c, alpha=alpha, beta=beta, out=d)
            return result

        about = {"schedule": str(planned.schedule), "workspace bytes": planned.workspace_bytes}
        return Prepared([Way("", run, about)])

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return nullcontext()


def contender(name: str, **options: Any) -> Contender:
    """The contender called `name`: "weft" or one of `PEERS`; `options` go to it. `WeftError` for another name."""
    if name == "weft":
        return Weft(**options)
    if name not in PEERS:
        raise WeftError(f"no peer is called '{name}': there are {', '.join(PEERS)}")
    return PEERS[name](**options)


def default_peers(device: torch.device) -> tuple[str, ...]:
    """Who stands beside weft when nobody is named."""
    return ("cutensor", "torch") if device.type == "cuda" else ("torch", "ttgt", "numpy", "opt_einsum")


def first_line(error: BaseException) -> str:
    """An error as one sentence."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, WeftError) and text else f"{type(error).__name__}: {text}"


def _torch_peer(name: str) -> Callable[..., Contender]:
    def make(**options: Any) -> Contender:
        from weft.bench import torch_peers

        return getattr(torch_peers, name)(**options)

    return make


def _array_peer(name: str) -> Callable[..., Contender]:
    def make(**options: Any) -> Contender:
        from weft.bench import array_peers

        return getattr(array_peers, name)(**options)

    return make


def _cutensor(**options: Any) -> Contender:
    from weft.bench.cutensor import Cutensor

    return Cutensor(**options)


PEERS: dict[str, Callable[..., Contender]] = {
    "cutensor": _cutensor,
    "torch": _torch_peer("Einsum"),
    "compile": _torch_peer("CompiledEinsum"),
    "ttgt": _torch_peer("Ttgt"),
    "numpy": _array_peer("NumpyEinsum"),
    "opt_einsum": _array_peer("OptEinsum"),
}
