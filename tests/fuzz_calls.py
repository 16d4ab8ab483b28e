"""Random programs: each call of a problem comes many times while what users change changes, against float64.

Layouts, closures, factors, outputs, gradients, threads and modes change between calls; values are new in each, or the
same tensors come again, written meanwhile. The problems are in `fuzz_kinds`. A fault is told by the seed of its
problem, which draws the same again:

    python tests/fuzz_calls.py SECONDS PROCESSES SEED [cpu]
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import weft
from fuzz_kinds import KINDS, kinds_on
from fuzz_problems import Problem, Words, wide

CALLS = (3, 14, 14, 45)  # of a problem; from the tenth on some are written in torch's operations
GRADIENTS = {torch.float16: 0.05, torch.bfloat16: 0.3, torch.float32: 2e-3, torch.float64: 1e-9}


@dataclass
class Found:
    """What came of some seconds."""

    problems: int = 0
    calls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.problems += other.problems
        self.calls += other.calls
        self.kinds += other.kinds
        self.refused += other.refused
        self.faults += other.faults

    def __str__(self) -> str:
        lines = [f"FAULT {each}" for each in self.faults[:40]]
        lines.append(f"refused: {self.refused.most_common(8)}")
        lines.append(f"{len(self.faults)} faults in {self.calls} calls of {self.problems} problems: {dict(self.kinds)}")
        return "\n".join(lines)


class Layouts:
    """How tensors are placed: by turns in another order, with gaps, past the begin of their memory, or as a view."""

    def __init__(self, rng: random.Random, device: str) -> None:
        self._rng, self._device = rng, device
        self._known: dict[Any, tuple[list[int], list[int], int, str]] = {}

    def forget(self) -> None:
        self._known.clear()

    def tensor(self, key: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        rng, rank = self._rng, len(shape)
        if key not in self._known:
            order = list(range(rank))
            if rng.random() < 0.3:
                rng.shuffle(order)
            gaps = [rng.choice((1, 3, 8)) if rng.random() < 0.07 else 0 for _ in range(rank)]
            view = "" if isinstance(key, str) else rng.choice((*("",) * 8, "negated", "repeated"))  # of operands alone
            self._known[key] = order, gaps, rng.choice((0, 0, 1, 5)), view
        order, gaps, off, view = self._known[key]
        extents = [shape[at] for at in order]
        held = [extent + gap for extent, gap in zip(extents, gaps, strict=True)]
        flat = torch.randn(torch.Size(held).numel() + off, device=self._device, dtype=wide(dtype)).to(dtype)[off:]
        inner = flat.view(held)[tuple(slice(extent) for extent in extents)]
        found = inner.permute([order.index(at) for at in range(rank)])
        if view == "negated":
            return found.conj() if dtype.is_complex else torch._neg_view(found)
        return found[:1].expand(found.shape) if view == "repeated" and rank > 1 and shape[0] else found


def play(seed: int, device: str, until: float, found: Found) -> None:
    """The calls of one problem."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    problem, layouts = KINDS[rng.choice(kinds_on(device))](rng, device), Layouts(rng, device)
    found.problems += 1
    found.kinds[problem.name] += 1
    history: list[str] = []
    operands: list[Tensor] = []
    for number in range(rng.choice(CALLS)):
        if time.monotonic() > until:
            return
        if rng.random() < 0.2:
            problem.state.update(s=rng.uniform(0.2, 1.5), t=rng.uniform(-1, 1))
        if rng.random() < 0.04:
            layouts.forget()
            problem.renew()
            operands = []
        if operands and rng.random() < 0.2:
            written(operands)
        else:
            operands = [layouts.tensor(at, shape, problem.dtype) for at, shape in enumerate(problem.shapes)]
        words = drawn_words(rng, problem, layouts)
        grads = problem.has_gradients and words.out is None and rng.random() < 0.3
        operands = [each.requires_grad_(grads) for each in operands]
        history.append(f"{words}{' grads' if grads else ''}")
        try:
            with torch.inference_mode(not grads and rng.random() < 0.1):
                fault = checked(problem, operands, words, grads, threaded=rng.random() < 0.15)
        except weft.WeftError as error:
            found.refused[f"{problem.name}: {type(error).__name__}: {str(error)[:70]}"] += 1
            return
        except Exception as error:
            fault = repr(error)[:300]
        found.calls += 1
        if fault is not None:
            shapes = [(tuple(each.shape), each.stride()) for each in operands]
            found.faults.append(f"seed {seed}, call {number}: {fault}; {problem.text}; {shapes}; {history[-3:]}")
            return


def written(operands: list[Tensor]) -> None:
    """Other values in the same tensors."""
    with torch.no_grad():
        for each in operands:
            if 0 not in each.stride():
                each.neg_()


def drawn_words(rng: random.Random, problem: Problem, layouts: Layouts) -> Words:
    """The factors, C and the place of the result of a call."""
    takes, words = problem.takes, Words()
    if "alpha" in takes:
        words.alpha = rng.choice((1.0, 1.0, 1.0, 0.5, -2.0))
    ways = [way for way in ("new", "new", "out", "out", "c") if way in takes]
    way = rng.choice([*ways, "sum"] if {"out", "c"} <= takes else ways)
    if way in ("c", "sum"):
        words.beta = rng.choice((1.0, 0.5))
        words.c = layouts.tensor("c", problem.result, problem.dtype)
    if way in ("out", "sum"):
        words.out = layouts.tensor("out", problem.result, problem.dtype)
        if words.c is not None:
            words.out.copy_(words.c)
        else:
            words.out.fill_(float("nan"))
    return words


def checked(problem: Problem, operands: list[Tensor], words: Words, grads: bool, threaded: bool) -> str | None:
    """What is wrong with a call; None where nothing is."""
    results = called(lambda: problem.run(operands, words), threaded)
    truth = [wide(each.detach()).requires_grad_(grads) for each in operands]
    wanted, bounds = problem.truth(truth, words)
    if words.out is not None and (len(results) > 1 or results[0].data_ptr() != words.out.data_ptr()):
        return "the result is not in out"
    for at, (result, want, bound) in enumerate(zip(results, wanted, bounds, strict=True)):
        if result.shape != want.shape:
            return f"result {at} has shape {tuple(result.shape)}, not {tuple(want.shape)}"
        if fault := beyond(wide(result), want.detach(), bound):
            return f"result {at}: {fault}"
    if not grads:
        return None
    given = [torch.randn_like(each) for each in results]
    pairs = [(own, want, grad) for own, want, grad in zip(results, wanted, given, strict=True) if own.requires_grad]
    own = torch.autograd.grad([each[0] for each in pairs], operands, [each[2] for each in pairs])
    right = torch.autograd.grad([each[1] for each in pairs], truth, [wide(each[2]) for each in pairs])
    for at, (one, other) in enumerate(zip(own, right, strict=True)):
        room = GRADIENTS[problem.dtype] * (1 + (other.abs().max() if other.numel() else 0.0))
        if fault := beyond(wide(one), other, room):
            return f"gradient {at}: {fault}"
    return None


def beyond(found: Tensor, want: Tensor, bound: Any) -> str | None:
    error = (found - want).abs()
    if bool((error <= bound).all()):
        return None
    return f"off by {float(error.nan_to_num(1e9).max()):.3g}, allowed {float(torch.as_tensor(bound).max()):.3g}"


def called(run: Callable[[], list[Tensor]], threaded: bool) -> list[Tensor]:
    """The results of a call, in this thread or another."""
    if not threaded:
        return run()
    answers: list[Any] = []

    def go() -> None:
        try:
            answers.append(run())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return list(answers[0])


def fuzz(seconds: float, seed: int, device: str) -> Found:
    """Problems of consecutive seeds, for so many seconds."""
    found, until = Found(), time.monotonic() + seconds
    while time.monotonic() < until:
        play(seed, device, until, found)
        seed += 1
    return found


def _work(seconds: float, seed: int, device: str, answers: Any) -> None:
    torch.set_num_threads(1)
    answers.put(fuzz(seconds, seed, device))


def main() -> int:
    seconds, processes, seed = map(int, sys.argv[1:4])
    device = "cpu" if "cpu" in sys.argv or not torch.cuda.is_available() else "cuda"
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    workers = [
        context.Process(target=_work, args=(seconds, seed + 1_000_000 * at, device, answers)) for at in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = Found()
    for _ in workers:
        try:
            found.add(answers.get(timeout=seconds + 120))
        except Exception:
            found.faults.append("a process ended, or is silent")
    for worker in workers:
        worker.join(5)
        worker.kill()
    print(found)
    return bool(found.faults)


if __name__ == "__main__":
    sys.exit(main())
