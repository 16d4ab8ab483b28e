"""Every case of the list, on every backend, against the oracle: exactly where sums are exact."""

from __future__ import annotations

import math
import re

import pytest
import torch

import weft
from support import Backend, check, run_poisoned
from weft import reference
from weft_bench import cases
from weft_bench.cases import Case

# What sums of small integers pass through without rounding.
EXACT = [
    case
    for case in cases.every()
    if not any((case.a_fn, case.b_fn, case.c_fn, case.epilogue))
    and all(complex(4 * factor).real % 1 == 0 for factor in (case.alpha, case.beta))
    and "large" not in case.tags
]
ORDINARY = [case for case in cases.every() if "large" not in case.tags]
# The interpreter is slow. What sums exactly is compared exactly there, and within its bound only for its types.
FUNCTIONS = ("relu", "where", "half", "minmax")  # of those that are alike, in the interpreter
FEWER = [
    case
    for case in ORDINARY
    if (not case.name.startswith("tccg-") or int(case.name[5:7]) % 8 == 1)
    and (case.tags != {"function"} or case.name.split("-")[1] in FUNCTIONS)
]
# Layouts of one tensor: in a quick run those of all at once stand for them. Two kinds are not of D.
ONE_BY_ONE = re.compile(r"layout-(permuted|padded|strided|offset)-[abcd]")
AT_HAND = [pytest.param(case, marks=pytest.mark.slow if ONE_BY_ONE.match(case.name) else ()) for case in FEWER]
ROUNDED = [case for case in ORDINARY if case not in EXACT or "type" in case.tags]


@pytest.mark.parametrize("case", ORDINARY, ids=str)
def test_case_within_its_bound(case: Case, quick_backend: Backend) -> None:
    check(quick_backend.fitted(case), quick_backend)


@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_interpreted_case_within_its_bound(case: Case) -> None:
    backend = Backend("triton", "cpu")
    check(backend.fitted(case), backend)


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_integers_are_exact(case: Case, backend: Backend) -> None:
    """Small integers sum exactly in any order: one lost or doubled product shows."""
    case = backend.fitted(case)
    given = cases.operands(case, device=backend.device, seed=1, integers=True)
    result = run_poisoned(case, backend, given)
    assert torch.equal(result, reference.contract(case.equation, given.a, given.b, c=given.c, **case.options()))


@pytest.mark.gpu
@pytest.mark.parametrize("case", ORDINARY, ids=str)
def test_at_hand_every_case_is_right_as_well(case: Case) -> None:
    """The same by kernels that are compiled for no shape: exactly, or within the same bound."""
    check_at_hand(case, Backend("triton", "cuda"))


@pytest.mark.parametrize("case", AT_HAND, ids=str)
def test_at_hand_cases_are_right_in_the_interpreter(case: Case) -> None:
    """Of TCCG, whose kernels at hand are the same few, every eighth; of functions one of a kind."""
    check_at_hand(case, Backend("triton", "cpu"))


def few_programs(case: Case) -> Case:
    """At a size of few elements of D: in the interpreter kernels at hand run a program for each."""
    work = case.work
    while math.prod(case.d_shape) > 16 and work > 8:
        work //= 2
        case = cases.scaled(case, work)
    return case


def check_at_hand(case: Case, backend: Backend) -> None:
    exact, case = case in EXACT, backend.fitted(case)
    if backend.interpreted:
        case = few_programs(case)
    if not exact:
        check(case, backend, specialize="never")
        return
    given = cases.operands(case, device=backend.device, seed=1, integers=True)
    result = run_poisoned(case, backend, given, "never")
    assert torch.equal(result, reference.contract(case.equation, given.a, given.b, c=given.c, **case.options()))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("case", [case for case in cases.every() if "large" in case.tags], ids=str)
def test_more_than_2_to_31_elements(case: Case) -> None:
    """Offsets need 64 bits here; where they had 32, elements past the middle would come from its start."""
    given = cases.operands(case, device="cuda", integers=True)
    result = weft.contract(case.equation, given.a, given.b, backend="triton", **case.options())
    assert torch.equal(result, reference.contract(case.equation, given.a, given.b, **case.options()))
