"""Wrong candidates of every kind are found out, right ones pass, and a wrong first one is revoked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tune_problems import choice_of, described, problem_of
from weft.oracle.problem import Problem, flat
from weft.tune.checker import Checker

EQUATION, SHAPES = "ecb,bd->dce", ((30, 20, 7), (7, 25))


@pytest.fixture
def problem() -> Problem:
    return problem_of(described(EQUATION, *SHAPES))


@pytest.fixture
def checker(problem: Problem) -> Checker:
    return Checker(problem, problem.operands(1))


def right(problem: Problem) -> Callable[..., None]:
    return choice_of(problem.description).build()


def spoilt(problem: Problem, spoil: Callable[[torch.Tensor], Any]) -> Callable[..., None]:
    launch = right(problem)

    def run(a: Any, b: Any, c: Any, d: torch.Tensor, alpha: Any, beta: Any, aux: Any = ()) -> None:
        launch(a, b, c, d, alpha, beta)
        spoil(d)

    return run


def test_every_schedule_of_the_cpu_passes(problem: Problem, checker: Checker) -> None:
    choice = choice_of(problem.description)
    for rank in choice.ranked:
        launch = rank.build(problem.description, choice.target)
        assert checker.verdict(launch, str(rank.schedule)) == (None, None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.mul_(1.001),
        lambda d: d.add_(1e-3),
        lambda d: d.copy_(d.flip(0)),
        lambda d: d.fill_(float("nan")),
        lambda d: d[-1, -1, -1].fill_(0.0),  # a corner alone
    ],
)
def test_what_is_wrong_in_many_places_or_a_corner_fails_at_once(problem: Problem, checker: Checker, spoil: Any) -> None:
    reason, revoked = checker.verdict(spoilt(problem, spoil), "wrong")
    assert reason is not None
    assert "it is wrong" in reason
    assert revoked is None


def test_leaving_the_result_unwritten_fails(problem: Problem, checker: Checker) -> None:
    """Guards against configurations that leave parts unwritten: triton#9230, #7181."""
    assert checker.verdict(right(problem), "right") == (None, None)
    reason, _ = checker.verdict(lambda *_: None, "idle")  # the last one's values are gone
    assert reason is not None
    assert "nan" in reason


def test_writing_past_the_ends_fails(problem: Problem, checker: Checker) -> None:
    def past(d: torch.Tensor) -> None:
        flat(d).as_strided((1,), (1,), d.storage_offset() + d.numel()).fill_(0.0)

    assert checker.verdict(spoilt(problem, past), "past") == ("it writes past the ends of the result", None)


def unsampled(problem: Problem, checker: Checker) -> tuple[int, ...]:
    """An index of D (modes d, c, e) that the first look leaves out."""
    order = [next(i for i, mode in enumerate(checker._modes) if mode.name == name) for name in "dce"]
    looked_at = {tuple(row[i] for i in order) for row in checker._samples.tolist()}
    return next(at for at in ((i, j, 4) for i in range(3, 20) for j in range(3, 15)) if at not in looked_at)


def test_one_wrong_element_that_no_sample_hits_is_found_by_comparing(problem: Problem, checker: Checker) -> None:
    at = unsampled(problem, checker)
    assert checker.verdict(right(problem), "right") == (None, None)
    reason, revoked = checker.verdict(spoilt(problem, lambda d: d[at].add_(1.0)), "one element")
    assert reason is not None
    assert all(f"{name}={index}" in reason for name, index in zip("dce", at, strict=True))
    assert revoked is None


def test_a_wrong_first_result_is_revoked_by_a_right_one(problem: Problem, checker: Checker) -> None:
    at = unsampled(problem, checker)
    assert checker.verdict(spoilt(problem, lambda d: d[at].add_(1.0)), "first") == (None, None)
    assert checker.verdict(right(problem), "second") == (None, "first")
    assert checker.verdict(right(problem), "third") == (None, None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float16], ids=str)
def test_other_types_and_an_addend(dtype: torch.dtype) -> None:
    contraction = weft.plan(
        "ik,jk->ij", torch.ones(9, 8, dtype=dtype), torch.ones(7, 8, dtype=dtype), c=torch.ones(9, 7, dtype=dtype),
        backend="reference",
    ).contraction  # fmt: skip
    problem = problem_of(contraction)
    checker = Checker(problem, problem.operands(1))
    assert checker.verdict(right(problem), "right") == (None, None)
    reason, _ = checker.verdict(spoilt(problem, lambda d: d[3, 3].add_(1)), "wrong")
    assert reason is not None


@pytest.mark.parametrize(("equation", "shapes"), [("ik,ik->", ((9, 8), (9, 8))), ("ik,k->i", ((9, 8), (8,)))])
def test_results_of_few_modes_or_none(equation: str, shapes: tuple) -> None:
    problem = problem_of(described(equation, *shapes))
    checker = Checker(problem, problem.operands(1))
    launch = right(problem)
    assert checker.verdict(launch, "right") == (None, None)
    assert checker.verdict(launch, "again") == (None, None)
    reason, _ = checker.verdict(spoilt(problem, lambda d: d.mul_(2)), "wrong")
    assert reason is not None


def test_results_that_are_added_to_are_put_back_before_each_run() -> None:
    x, out = torch.zeros(6, 5), torch.zeros(5, 6)
    permutation = weft.plan_permute(x, "ab->ba", c=out, out=out, beta=1.0, backend="reference").permutation
    problem = problem_of(permutation)
    checker = Checker(problem, problem.operands(1))
    launch = choice_of(permutation).build()
    assert checker.verdict(launch, "once") == (None, None)
    assert checker.verdict(launch, "again") == (None, None)

    def twice(*arguments: Any) -> None:
        launch(*arguments)
        launch(*arguments)

    reason, _ = checker.verdict(twice, "twice")
    assert reason is not None


def sums_of_a_short_accumulator(a: torch.Tensor, b: torch.Tensor, kept: int, together: int = 32) -> torch.Tensor:
    """A @ B^T as matrix units add fp8 products up: `together` of them are aligned with the sum so far to the largest,
    and what lies further than `kept` bits below it is cut off."""
    products = a.double()[:, None] * b.double()[None]
    total = torch.zeros(products.shape[:2], dtype=torch.float64)
    for part in products.split(together, dim=2):
        terms = torch.cat([total[..., None], part], dim=2)
        unit = 2.0 ** (terms.abs().amax(2, keepdim=True).clamp(min=1e-30).log2().floor() - kept)
        total = ((terms / unit).trunc() * unit).sum(2)
    return total


def test_fp8_products_may_lose_what_their_accumulator_cuts_off() -> None:
    """Sums of fp8 products keep some 13 bits: right in the oracle's bound, and so they are right for the tuner."""
    options = {"dtype": torch.float8_e4m3fn, "precision": torch.float8_e4m3fn, "out_dtype": torch.float32}
    problem = problem_of(described("ik,jk->ij", (9, 256), (7, 256), **options))

    def short(a: Any, b: Any, c: Any, d: torch.Tensor, alpha: Any, beta: Any, aux: Any = ()) -> None:
        # In float32, four instructions at a time.
        found = sum(
            sums_of_a_short_accumulator(x, y, kept=13).float()
            for x, y in zip(a.float().split(128, 1), b.float().split(128, 1), strict=True)
        )
        d.copy_(alpha * found)

    def far(a: Any, b: Any, c: Any, d: torch.Tensor, alpha: Any, beta: Any, aux: Any = ()) -> None:
        d.copy_(alpha * sums_of_a_short_accumulator(a.float(), b.float(), kept=3))

    checker = Checker(problem, problem.operands(1))
    assert checker.verdict(short, "short") == (None, None)
    reason, _ = checker.verdict(far, "far")
    assert reason is not None

    ordinary = problem_of(described("ik,jk->ij", (9, 256), (7, 256), dtype=torch.float16, out_dtype=torch.float32))
    reason, _ = Checker(ordinary, ordinary.operands(1)).verdict(short, "short")
    assert reason is not None, "float16 products have no such loss"
