"""Who computes cascades: weft, torch's attention and FlexAttention, and the plain way, whole or by blocks of rows.

Ways are called on the tensors of a set; of a case that goes back the result is the gradients of A, B and C. On a GPU
peak memory, beyond the tensors given, is measured once where the way is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import weft
from weft_bench.cascades import AT_ONCE, CAP, TASKS, WINDOW, Parts, alpha, by_rows, joined, parted
from weft_bench.cases.cascades import CascadeCase
from weft_bench.peers.pytorch import exact_products, peak_bytes
from weft_bench.peers.registry import Call, Prepared, Way, first_line

Forward = Callable[[Parts], Tensor]
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)


class _Cascade:
    """A contender by the forward pass of each way that it has."""

    name: str
    tasks = frozenset(TASKS)

    def prepare(self, case: CascadeCase, tensors: tuple[Tensor, ...]) -> Prepared | str:
        if case.task not in self.tasks:
            return f"it has no way for {case.task}"
        ways, refused = [], {}
        for label, forward in self.forwards(case, parted(case, tensors)).items():
            run = _passes(case, forward)
            try:
                about = self.about(case) | peak_bytes(run, tensors)
            except Exception as error:  # of compilers, which know no one class of them
                refused[label] = first_line(error)
            else:
                ways.append(Way(label, run, about))
        return Prepared(ways, refused, self.stored(case)) if ways else "; ".join(refused.values())

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        raise NotImplementedError

    def about(self, case: CascadeCase) -> dict[str, Any]:
        return {}

    def stored(self, case: CascadeCase) -> torch.dtype | None:
        return None

    def settings(self, case: CascadeCase) -> AbstractContextManager[Any]:
        return exact_products(tf32=False)


def _passes(case: CascadeCase, forward: Forward) -> Call:
    """The forward pass on the tensors of a set, or both passes."""

    def run(*tensors: Tensor) -> Tensor:
        return forward(parted(case, tensors))

    def both(*tensors: Tensor) -> Any:
        parts = parted(case, tensors)
        leaves = tuple(each.detach().requires_grad_() for each in parts.given)
        return torch.autograd.grad(forward(parts._replace(given=leaves)), leaves, parts.g)

    return both if case.backward else run


class WeftCascade(_Cascade):
    """`weft.plan_cascade`; on a GPU its kernels, whatever the size."""

    name = "weft"

    def __init__(self) -> None:
        self._said = ""

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        task = TASKS[case.task]
        named = zip(task.operands.items(), parts.operands, strict=True)
        plan = weft.plan_cascade(
            case.equation, *parts.given, between=task.between(case), alpha=alpha(case), precision=case.precision,
            operands={name: (modes, tensor) for (name, modes), tensor in named}, indices=dict(task.indices),
            backend="triton" if parts.given[0].is_cuda else "auto",
        )  # fmt: skip
        self._said = plan.explain()

        def forward(parts: Parts) -> Tensor:
            found: Tensor = plan(*parts.given, operands=dict(zip(task.operands, parts.operands, strict=True)))
            return found

        return {"": forward}

    def about(self, case: CascadeCase) -> dict[str, Any]:
        return {"explain": self._said}

    def settings(self, case: CascadeCase) -> AbstractContextManager[Any]:
        return nullcontext()


class TorchCascade(_Cascade):
    """torch's operations on all of S."""

    name = "torch"

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        plain = self.compiled(partial(TASKS[case.task].plain, case, 0))
        return {"": lambda parts: plain(*parts.given, *parts.operands)}

    def compiled(self, plain: Call) -> Call:
        return plain

    def stored(self, case: CascadeCase) -> torch.dtype | None:
        return case.dtype


class CompiledCascade(TorchCascade):
    """All of S through `torch.compile`: of a loss, which the compiler fuses."""

    name = "compile"
    tasks = frozenset({"loss"})

    def compiled(self, plain: Call) -> Call:
        torch.compiler.reset()
        found: Call = torch.compile(plain, dynamic=False)
        return found


class BlocksCascade(_Cascade):
    """Rows of points a block at a time, through `torch.compile`."""

    name = "blocks"
    tasks = frozenset({"gauss", "sinkhorn"})

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        torch.compiler.reset()
        compiled = torch.compile(partial(TASKS[case.task].plain, case, 0), dynamic=False)
        return {"": lambda parts: joined(case, by_rows(case, parts, lambda _, __, *given: compiled(*given), AT_ONCE))}


class TorchAttention(_Cascade):
    """`scaled_dot_product_attention`: on a GPU by each of two backends; few queries are grouped heads."""

    name = "sdpa"
    tasks = frozenset({"attention", "causal"})

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        if not parts.given[0].is_cuda:
            return {"": partial(self._attended, case)}
        return {backend.name.lower(): partial(self._by, backend, case) for backend in BACKENDS}

    def _by(self, backend: SDPBackend, case: CascadeCase, parts: Parts) -> Tensor:
        with sdpa_kernel(backend):
            return self._attended(case, parts)

    def _attended(self, case: CascadeCase, parts: Parts) -> Tensor:
        q, k, v = parts.given
        if q.shape[2] == k.shape[2]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.task == "causal")
        found = F.scaled_dot_product_attention(q.reshape(q.shape[0], -1, 1, q.shape[3]), k, v, enable_gqa=True)
        return found.reshape(q.shape)


class FlexCascade(_Cascade):
    """FlexAttention, compiled."""

    name = "flex"
    tasks = frozenset({"attention", "causal", "window"})

    def forwards(self, case: CascadeCase, parts: Parts) -> dict[str, Forward]:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch.compiler.reset()
        q, k, _ = parts.given
        masks = {"causal": _is_before, "window": _is_within}
        mask = None
        if case.task in masks:
            mask = create_block_mask(masks[case.task], None, None, q.shape[2], k.shape[2], str(q.device))
        score = _scored(*parts.operands) if case.task == "window" else None
        compiled: Call = torch.compile(flex_attention, dynamic=False)
        return {"": lambda parts: compiled(*parts.given, score_mod=score, block_mask=mask)}


def _is_before(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def _is_within(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (j > i - WINDOW)


def _scored(slope: Tensor) -> Callable[..., Tensor]:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return CAP * torch.tanh(s / CAP) + slope[h] * (j - i)

    return score
