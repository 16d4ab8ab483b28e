"""Every case of the list, on every backend, against the oracle: exactly where sums are exact."""

from __future__ import annotations

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
FUNCTIONS = [case for case in ORDINARY if case.tags == {"function"}]
OTHERS = [case for case in ORDINARY if case not in FUNCTIONS]
ROUNDED = [case for case in OTHERS if case not in EXACT or "type" in case.tags]


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_case_within_its_bound(case: Case, quick_backend: Backend) -> None:
    check(quick_backend.fitted(case), quick_backend)


@pytest.mark.one_of(5)
@pytest.mark.parametrize("case", FUNCTIONS, ids=str)
def test_function_within_its_bound(case: Case, backend: Backend) -> None:
    check(backend.fitted(case), backend)


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
def test_every_case_is_right_by_torchs_operations(case: Case) -> None:
    """The library tier on a GPU, which default calls begin with."""
    check(case, Backend("triton", "cuda"), specialize="never")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("case", [case for case in cases.every() if "large" in case.tags], ids=str)
def test_more_than_2_to_31_elements(case: Case) -> None:
    """Offsets need 64 bits here; where they had 32, elements past the middle would come from its start."""
    given = cases.operands(case, device="cuda", integers=True)
    result = weft.contract(case.equation, given.a, given.b, backend="triton", **case.options())
    assert torch.equal(result, reference.contract(case.equation, given.a, given.b, **case.options()))
