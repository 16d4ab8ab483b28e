"""cuTENSOR's permutation as a peer: ``D = op(A)`` with the modes of A in D's order, a cast and a function included.

The result is written into the memory that is given. A function that the library has no operator for becomes a kernel
of torch's before the permutation, and is part of the timed call.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.selftest.case import PermuteCase
from weft_bench.cases import FUNCTIONS
from weft_bench.peers import cutensor_library
from weft_bench.peers.cutensor import CutensorPeer, alignment, current_stream, described
from weft_bench.peers.cutensor_library import CutensorError, Library
from weft_bench.peers.registry import Prepared, Way
from weft_bench.peers.views import view
from weft_bench.problems import PermutationTensors

_COMPUTE = {torch.float64: "64F", torch.complex128: "64F"}


class CutensorPermute(CutensorPeer):
    """Permutations: the default algorithm, and compiled just in time where the library does that (not with `quick`)."""

    def _ways(self, case: PermuteCase, tensors: PermutationTensors, library: Library) -> Prepared | str:
        if not {case.dtype, case.d_dtype} <= cutensor_library.DATA_TYPES.keys():
            raise UnsupportedError(f"cuTENSOR does not know {case.dtype}, {case.d_dtype}")
        separate = case.fn if case.fn and case.fn not in cutensor_library.OPERATORS else None
        operation = _operation(case, tensors, library, separate)
        ways: list[Way] = []
        refused: dict[str, str] = {}
        modes = (("default", cutensor_library.NO_JIT), ("default+jit", cutensor_library.JIT))
        for label, jit in modes[: 1 if self.quick else 2]:
            try:
                plan = operation.plan(cutensor_library.ALGORITHMS["default"], jit, 0)
            except CutensorError as error:
                refused[label] = str(error)
            else:
                ways.append(_way(label, operation, plan, separate))
        if not ways:
            return "; ".join(dict.fromkeys(refused.values()))
        return Prepared(ways, refused, note=library.text)


def _operation(
    case: PermuteCase, tensors: PermutationTensors, library: Library, separate: str | None
) -> cutensor_library.Permutation:
    term, _, output = case.equation.partition("->")
    operator = cutensor_library.OPERATORS[case.fn] if case.fn and not separate else cutensor_library.IDENTITY
    numbers: dict[Any, int] = {}
    x, d = view(term, tensors.x), view(output, tensors.d)
    return library.permutation(
        described(x.labels, x.of(tensors.x), alignment(tensors.x), numbers), operator,
        described(d.labels, d.of(tensors.d), alignment(tensors.d), numbers), _COMPUTE.get(case.dtype, "32F"),
    )  # fmt: skip


def _way(label: str, operation: cutensor_library.Permutation, plan: cutensor_library.Plan, separate: str | None) -> Way:
    one = operation.scalar(1.0)
    function = FUNCTIONS[separate] if separate else None

    def run(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        value = function(x) if function else x
        plan.permute(one, value.data_ptr(), d.data_ptr(), current_stream(x.device))
        return d

    return Way(label, run, {"separate kernels": [f"{separate} of A"] if separate else []})
