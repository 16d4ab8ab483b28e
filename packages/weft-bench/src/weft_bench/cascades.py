"""Cascades as the runner sees them: each task in weft's words and in torch's, its tensors, and what is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.machine.ceilings import Ceilings
from weft.testing import random_operand
from weft_bench.cases.cascades import CascadeCase
from weft_bench.checking import WrongResult
from weft_bench.gradient_check import UNITS
from weft_bench.records import CaseRecord

if TYPE_CHECKING:
    from weft_bench.entry import Entry

CAP, WINDOW = 30.0, 1024
AT_ONCE = 1 << 28  # elements of S of a block of rows, where all of them would not fit
_CHECKED = 1 << 25  # the same in float64, with all that autograd keeps


class CascadeTensors(tuple[Tensor, ...]):
    """A, B, C where there is one, operands, and D's gradient in a case that goes back."""

    __slots__ = ()

    @classmethod
    def _make(cls, tensors: Iterable[Tensor]) -> CascadeTensors:
        return cls(tensors)


class Parts(NamedTuple):
    """The tensors of a case by what they are."""

    given: tuple[Tensor, ...]  # A, B, C
    operands: tuple[Tensor, ...]
    g: Tensor | None


class Task(NamedTuple):
    """A task: `between` and its operands for weft, and `plain`, the same on rows from the index `start` on."""

    between: Callable[[CascadeCase], Callable[..., Any]]
    plain: Callable[..., Tensor]  # (case, start, a, b, [c], *operands)
    operands: Mapping[str, str] = {}  # modes by name
    indices: Mapping[str, str] = {}


def _softmax(case: CascadeCase) -> Callable[..., Any]:
    return lambda s: weft.softmax(s, "k")


def _causal(case: CascadeCase) -> Callable[..., Any]:
    return lambda s, i, j: weft.softmax(torch.where(j <= i, s, -math.inf), "k")


def _window(case: CascadeCase) -> Callable[..., Any]:
    def between(s: Tensor, slope: Tensor, i: Tensor, j: Tensor) -> Any:
        s = CAP * torch.tanh(s / CAP) + slope * (j - i)
        return weft.softmax(torch.where((j <= i) & (j > i - WINDOW), s, -math.inf), "k")

    return between


def _gauss(case: CascadeCase) -> Callable[..., Any]:
    scale = 1.0 / dict(case.extents)["d"]
    return lambda s, p, q: torch.exp((2 * s - p - q) * scale)


def _sinkhorn(case: CascadeCase) -> Callable[..., Any]:
    return lambda s, p, q, g: -0.1 * weft.logsumexp((g - (p + q - 2 * s)) * 10.0, "j")


def _loss(case: CascadeCase) -> Callable[..., Any]:
    def between(s: Tensor, target: Tensor, w: Tensor) -> Any:
        return weft.mean(weft.logsumexp(s, "w") - weft.sum(torch.where(w == target, s, 0.0), "w"), "t")

    return between


def alpha(case: CascadeCase) -> float:
    """The factor of S."""
    return dict(case.extents)["d"] ** -0.5 if "bhqk" in case.equation else 1.0


def _attended(case: CascadeCase, start: int, a: Tensor, b: Tensor, c: Tensor, *slope: Tensor) -> Tensor:
    s = alpha(case) * (a @ b.mT)
    i = torch.arange(start, start + s.shape[-2], device=s.device)[:, None]
    j = torch.arange(s.shape[-1], device=s.device)
    if case.task == "window":
        s = CAP * torch.tanh(s / CAP) + slope[0][:, None, None] * (j - i)
        s = s.masked_fill((j > i) | (j <= i - WINDOW), -math.inf)
    elif case.task == "causal":
        s = s.masked_fill(j > i, -math.inf)
    return torch.softmax(s, -1).to(c.dtype) @ c


def _summed(case: CascadeCase, start: int, x: Tensor, y: Tensor, b: Tensor, p: Tensor, q: Tensor) -> Tensor:
    return torch.exp((2 * x @ y.T - p[:, None] - q) * (1.0 / x.shape[1])) @ b


def _stepped(case: CascadeCase, start: int, x: Tensor, y: Tensor, p: Tensor, q: Tensor, g: Tensor) -> Tensor:
    return -0.1 * ((g - (p[:, None] + q - 2 * x @ y.T)) * 10.0).logsumexp(1)


def _lost(case: CascadeCase, start: int, x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    scores = x @ w.T
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    return F.cross_entropy(scores, target, reduction="sum") / dict(case.extents)["t"]


TASKS: dict[str, Task] = {
    "attention": Task(_softmax, _attended),
    "causal": Task(_causal, _attended, indices={"i": "q", "j": "k"}),
    "window": Task(_window, _attended, {"slope": "h"}, {"i": "q", "j": "k"}),
    "gauss": Task(_gauss, _summed, {"p": "i", "q": "j"}),
    "sinkhorn": Task(_sinkhorn, _stepped, {"p": "i", "q": "j", "g": "j"}),
    "loss": Task(_loss, _lost, {"target": "t"}, {"w": "w"}),
}


def parted(case: CascadeCase, tensors: Sequence[Tensor]) -> Parts:
    """The tensors of a set by what they are."""
    count = len(case.shapes)
    last = len(tensors) - case.backward
    return Parts(tuple(tensors[:count]), tuple(tensors[count:last]), tensors[last] if case.backward else None)


def by_rows(case: CascadeCase, parts: Parts, plain: Callable[..., Tensor], most: int) -> list[Tensor]:
    """`plain` on blocks of rows of at most `most` elements of S."""
    rows, _ = case.long
    a, *others = parts.given
    count = a.shape[-2]
    step = math.ceil(count / math.ceil(case.elements / most))
    found = []
    for start in range(0, count, step):
        own = a.narrow(-2, start, min(step, count - start))
        named = zip(TASKS[case.task].operands.values(), parts.operands, strict=True)
        operands = [each[start : start + step] if modes == rows else each for modes, each in named]
        found.append(plain(case, start, own, *others, *operands))
    return found


def joined(case: CascadeCase, blocks: Sequence[Tensor]) -> Tensor:
    """The whole result of those of blocks of rows."""
    if not blocks[0].dim():
        return torch.stack(list(blocks)).sum()
    return torch.cat(list(blocks), -2 if blocks[0].dim() > 1 else -1)


@dataclass(frozen=True)
class CascadeProblem:
    """One cascade. Ways are called as run(*tensors): the result, or the gradients of A, B and C."""

    case: CascadeCase

    @property
    def memory(self) -> int:
        inputs = sum(map(math.prod, self.case.shapes))
        return 48 * inputs + 64 * min(self.case.elements, _CHECKED)

    def inputs(self, device: torch.device, seed: int = 0) -> CascadeTensors:
        case, sizes = self.case, dict(self.case.extents)
        shapes = list(case.shapes)
        if case.backward:
            shapes.append((*case.shapes[0][:-1], case.shapes[2][-1]))
        drawn = [random_operand(shape, case.dtype, 8 * seed + at, device=device) for at, shape in enumerate(shapes)]
        a, b = drawn[:2]
        operands: tuple[Tensor, ...] = ()
        if case.task == "window":
            operands = (weft.functions.alibi_slopes(sizes["h"], device),)
        elif case.task == "loss":
            a.div_(64)  # scores of a layer that has learned little
            random = torch.Generator().manual_seed(seed)
            operands = (torch.randint(0, sizes["w"], (sizes["t"],), generator=random).to(device),)
        elif case.task in ("gauss", "sinkhorn"):
            operands = (a.square().sum(1), b.square().sum(1))
            if case.task == "sinkhorn":
                operands += (random_operand((sizes["j"],), case.dtype, 8 * seed + 7, device=device),)
        count = len(case.shapes)
        return CascadeTensors((*drawn[:count], *operands, *drawn[count:]))

    def check(self, tensors: CascadeTensors) -> CascadeCheck:
        return CascadeCheck(self.case, tensors)

    def record(self, entry: Entry, tensors: CascadeTensors, ceilings: Ceilings | None) -> CaseRecord:
        case, dtype = self.case, str(self.case.dtype).removeprefix("torch.")
        functions = {"between": case.task} | ({"passes": "forward, backward"} if case.backward else {})
        return CaseRecord(
            name=case.name, group=entry.group, base=entry.base, equation=case.equation, extents=list(case.extents),
            dtypes=(dtype,) * len(case.shapes), precision=case.precision or "", functions=functions,
            layouts=("contiguous",) * len(case.shapes), scaled=entry.scaled, modes={},
            work={
                "flops": 2 * case.work, "function_flops": 0,
                "bytes": sum(each.numel() * each.element_size() for each in tensors),
            },
            floor={},
        )  # fmt: skip


class CascadeCheck:
    """Results against torch's in float64, by blocks of rows, in units of the last place of the largest element."""

    def __init__(self, case: CascadeCase, tensors: CascadeTensors) -> None:
        self._case, self._tensors = case, tensors
        parts = parted(case, [_wide(each) for each in tensors])
        if parts.g is not None:
            self._expected = self._gradients(parts, parts.g)
        else:
            self._expected = [joined(case, by_rows(case, parts, TASKS[case.task].plain, _CHECKED))]

    def error(self, run: Callable[..., Any], stored: torch.dtype | None = None) -> float:
        """The largest error over its bound; `WrongResult` where that is over 1."""
        found, worst = run(*self._tensors), 0.0
        for mine, exact in zip(found if self._case.backward else [found], self._expected, strict=True):
            if mine.shape != exact.shape:
                raise WrongResult(math.inf, f"the shape is {tuple(mine.shape)}, not {tuple(exact.shape)}")
            bound = UNITS * torch.finfo(stored or mine.dtype).eps * float(exact.abs().max())
            worst = max(worst, float((mine - exact).abs().max().nan_to_num(math.inf)) / bound)
        if not worst <= 1:
            raise WrongResult(worst, f"of {self._case.name}")
        return worst

    def _gradients(self, wide: Parts, g: Tensor) -> list[Tensor]:
        case, of_rows, others = self._case, [], wide.given[1:]
        sums = [torch.zeros_like(each) for each in others]
        leaves = [each.requires_grad_() for each in others]

        def block(case: CascadeCase, start: int, a: Tensor, *given: Tensor) -> Tensor:
            a = a.detach().requires_grad_()
            value = TASKS[case.task].plain(case, start, a, *given)
            own, *found = torch.autograd.grad(value, [a, *leaves], g.narrow(-2, start, a.shape[-2]))
            of_rows.append(own)
            for total, each in zip(sums, found, strict=True):
                total += each
            return own

        by_rows(case, wide._replace(given=(wide.given[0], *leaves)), block, _CHECKED)
        return [joined(case, of_rows), *sums]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
