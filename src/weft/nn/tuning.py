"""The contractions of a module measured, those of its backward pass as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from weft.errors import ArgumentError, call_context
from weft.planner.validity import outdate
from weft.plans.select import ServiceRequest
from weft.plans.tiers import Served, overheard
from weft.tune.many import BUDGET, TuningReport, TuningTask, read_effort, tune_many


def tune(
    module: Callable[..., Any], *inputs: Any, budget: float = BUDGET, workers: int | None = None, **keywords: Any
) -> TuningReport:
    """Measure what could serve each contraction and permutation of a module, and store the fastest.

    The module, or any other function, is called once with `inputs` and `keywords`; where results require gradients a
    backward pass follows, whose gradients are dropped. All that weft computes in these calls is measured then, equal
    contractions once, those that take longest by prediction first: the best schedules of each family by prediction,
    torch's own operations, and what serves now. Later calls of this process take the fastest at once, and later
    processes find them stored. What layers leave to torch (`Linear` and `GatedLinear` of float32 and float64 on a CPU)
    is not measured. `budget`: seconds of measuring. `workers`: processes that compile meanwhile, by default one for
    each core but one. Ctrl-C keeps what was found.

    Returns a report that prints itself. Raises what the module raises, and `ArgumentError` for a budget or workers
    below 0.

    >>> import torch, weft
    >>> report = weft.nn.tune(weft.nn.Linear(3, 5), torch.rand(2, 3), budget=0)
    >>> report.measured
    0
    """
    with call_context(lambda: "nn.tune"):
        seconds, compilers = read_effort(budget, workers)
        if not callable(module):
            raise ArgumentError(f"nn.tune takes a module or a function, not {type(module).__name__}")
    outdate()  # so that every call makes its plan, and is heard
    with overheard() as heard:
        _differentiate(module, module(*inputs, **keywords), inputs)
    report = TuningReport(type(module).__name__, seconds)
    tasks = {(*asked[:4],): _task(asked, by) for asked, by in heard.items() if asked.schedule is None}
    with call_context(lambda: "nn.tune"):
        tune_many(list(tasks.values()), report, compilers)
    return report


def _differentiate(module: Any, results: Any, inputs: Any) -> None:
    """A backward pass, where any result requires a gradient."""
    roots = [one for one in _pytree.tree_leaves(results) if isinstance(one, torch.Tensor) and one.requires_grad]
    leaves = [one for one in _pytree.tree_leaves(inputs) if isinstance(one, torch.Tensor) and one.requires_grad]
    if isinstance(module, torch.nn.Module):
        leaves += [one for one in module.parameters() if one.requires_grad]
    if roots and leaves:
        torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)


def _task(asked: ServiceRequest, by: Served) -> TuningTask:
    return TuningTask(asked.description, asked.backend, asked.target, asked.workspace_limit, by.choice)
