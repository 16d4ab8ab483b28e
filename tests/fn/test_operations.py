"""The table of operations: every row has code in every language, or stands here with the languages that lack it."""

from __future__ import annotations

from fn.function_cases import CASES
from weft.fn.graphs import name_of
from weft.fn.operations import OPERATIONS
from weft.fn.pointwise import RecordedFunction

LACKS = {
    "numba": {"erfinv", "nextafter"},  # on the CPU torch runs them
    "triton": {"real", "imag", "conj_physical"},  # complex values are pairs of real ones there
    "cuda": {"real", "imag", "conj_physical"},
}
#: Other names of what a case runs, operations of complex values, and what graphs of primitive operations do without.
UNTRIED = {"bitwise_left_shift", "bitwise_right_shift", *LACKS["triton"], "copy", "detach"}


def test_every_language_has_every_operation() -> None:
    for language, lacks in LACKS.items():
        assert {name for name, row in OPERATIONS.items() if getattr(row, language) is None} == lacks


def test_every_operation_is_run_by_a_case() -> None:
    functions = [case.trace(dtype) for case in CASES for dtype in case.dtypes]
    graphs = [each.primitive for each in functions if isinstance(each, RecordedFunction)]
    run = {name_of(node) for graph in graphs for node in graph.nodes if node.op == "call_function"}
    assert set(OPERATIONS) - run == UNTRIED
