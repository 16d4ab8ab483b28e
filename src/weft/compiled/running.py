"""What an operation of a contraction does when it runs: the call that its text describes.

A call whose tensors lie as those of an earlier one goes straight to its launch, as in `weft.contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from weft.api.contract import contract
from weft.api.lookup import find_plan
from weft.base.describe import describe_call
from weft.compiled.text import Call, read
from weft.errors import call_context
from weft.planner.options import Options
from weft.planner.schedule import Scalar
from weft.plans.call_cache import call_signature
from weft.plans.keywords import read_options
from weft.plans.memo import CallCache

_KNOWN = 256  # calls of one text


class Running:
    """A call that is run again and again."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._calls = CallCache("compiled: calls", _KNOWN)
        self._full = call.places is not None or call.keywords.get("validate", False)  # to be made in full each time

    def __call__(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: tuple[torch.Tensor, ...] | None
    ) -> list[torch.Tensor]:
        """All results, D first; they are `out` where that is given."""
        call = self._call
        a, b, c, beside = call.split(tensors)
        if self._full:
            return self.made(tensors, alpha, beta, out)
        place = out[0] if out is not None and len(out) == 1 else None
        signature = call_signature(a, b, place, c, *beside) if out is None or place is not None else None
        known = self._calls.get(signature)
        if known is not None:
            found = known.run(a, b, c, alpha, beta, place, beside)
            if found is not None:
                return _listed(found)
        with call_context(lambda: describe_call("contract", call.equation, a=a, b=b, c=c, out=place)):
            operands = call.operands(tensors)
            options = self._options(operands)
            plan = find_plan(call.equation, a, b, options)
            results = plan.run(a, b, c, alpha, beta, out if place is None else place, options.tensors)
        if signature is not None and (c is None or beta != 0):
            self._calls.put(signature, plan.known_call(signature, a, b, c, place is not None, results, options.tensors))
        return _listed(results)

    def made(
        self, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: tuple[torch.Tensor, ...] | None
    ) -> list[torch.Tensor]:
        """The same by the public call."""
        call = self._call
        a, b, c, _ = call.split(tensors)
        target: Any = out if out is None or len(call.types) > 1 else out[0]
        found = contract(
            call.equation, a, b, c=c, alpha=alpha, beta=beta if c is not None else None, out=target,
            operands=call.operands(tensors),
            **call.keywords,
        )  # fmt: skip
        if call.places is None:
            return _listed(found)
        value, places = found
        return [value, *_listed(places)]

    def _options(self, operands: dict[str, tuple[str, torch.Tensor]]) -> Options:
        keywords = {name: value for name, value in self._call.keywords.items() if name != "validate"}
        return read_options("contract", {**keywords, "operands": operands})


@lru_cache(maxsize=4096)
def running(text: str) -> Running:
    """The call that a text describes, with what is known of its earlier runs."""
    return Running(read(text))


def _listed(found: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)
