"""`log` and its kin as products of exponentials on the CPU, by kernels and by torch, held against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from weft.library import family as library
from weft.library.exponentials import family
from weft.planner.exponentials import exponent_of
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.testing import poisoned

CPU = Target("cpu", name="CPU", processors=1)
KINDS: dict[str, tuple[Any, float]] = {
    "log": ("log", 1.0),
    "log2": (weft.Algebra(torch.add, torch.logaddexp2, "lowest", "log2"), math.log(2)),
    "soft minimum": (weft.Algebra(torch.add, lambda p, q: -torch.logaddexp(-p, -q), "highest", "soft"), -1.0),
}
EQUATIONS = {
    "mk,kn->mn": ((33, 70), (70, 29)),
    "km,nk->nm": ((41, 9), (300, 41)),
    "bmk,bkn->nbm": ((3, 20, 37), (3, 37, 18)),
    "amkl,lkbn->nbma": ((2, 9, 5, 7), (7, 5, 3, 11)),
}


def contraction_of(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Contraction:
    contraction = weft.plan(equation, a, b, backend="reference", **options).contraction
    assert isinstance(contraction, Contraction)
    return contraction


def computed(
    by: Any, equation: str, a: torch.Tensor, b: torch.Tensor, threads: int = 1, **options: Any
) -> torch.Tensor:
    """D by the first schedule of a family, in guarded memory."""
    contraction, target = contraction_of(equation, a, b, **options), Target("cpu", name="CPU", processors=threads)
    assert by.supports(contraction, target) is None
    schedule = by.schedules(contraction, target).schedules[0]
    assert "exponentials" in str(schedule)
    d = poisoned(tuple(contraction.d.shape), contraction.d.dtype)
    aux = (None,) * len(contraction.aux)  # coordinates
    by.build(contraction, schedule, target)(a, b, None, d.tensor, 1, 0, aux)
    d.check_guards()
    return d.tensor


def exact(equation: str, a: torch.Tensor, b: torch.Tensor, rate: float) -> torch.Tensor:
    terms, output = equation.split("->")
    first, second = terms.split(",")
    order = output + "".join(sorted(set(first + second) - set(output)))
    one, other = (
        x.double().permute([term.index(at) for at in order if at in term])[
            tuple(slice(None) if at in term else None for at in order)
        ]
        for x, term in ((a, first), (b, second))
    )
    return torch.logsumexp((one + other) * rate, list(range(len(output), len(order)))) / rate


def check(found: torch.Tensor, wanted: torch.Tensor, count: int) -> None:
    """A few units of each of `count` steps, as `weft.oracle.bounds` has it; infinities and NaN are equal."""
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    assert torch.equal(found.double()[wanted.isinf()], wanted[wanted.isinf()])
    bound = 4 * count * torch.finfo(found.dtype).eps * (wanted[finite].abs() + 1)
    assert ((found.double() - wanted)[finite].abs() <= bound).all()


@pytest.mark.parametrize("by", [family, library], ids=["kernels", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_values(equation: str, kind: str, dtype: torch.dtype, by: Any) -> None:
    algebra, rate = KINDS[kind]
    a, b = (torch.randn(shape, dtype=dtype) for shape in EQUATIONS[equation])
    wanted = exact(equation, a, b, rate)
    check(computed(by, equation, a, b, algebra=algebra), wanted, 8)
    check(computed(by, equation, a - 900, b + 700, algebra=algebra), exact(equation, a - 900, b + 700, rate), 8)


@pytest.mark.one_of(5)
@pytest.mark.parametrize("by", [family, library], ids=["kernels", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [1.0, 40.0, 3000.0])
def test_what_products_do_not_tell(spread: float, kind: str, dtype: torch.dtype, by: Any) -> None:
    """Rows of nothing, infinities of the other sign, NaN, and sums whose products all vanish."""
    algebra, rate = KINDS[kind]
    nothing = -math.copysign(math.inf, rate)
    a, b = torch.randn(33, 70, dtype=dtype) * spread, torch.randn(70, 29, dtype=dtype) * spread
    check(computed(by, "mk,kn->mn", a, b, algebra=algebra), exact("mk,kn->mn", a, b, rate), 8)
    a[3], b[:, 4] = nothing, nothing
    a[5, ::2], b[1::2, 7] = nothing, nothing  # which meet nowhere
    check(computed(by, "mk,kn->mn", a, b, algebra=algebra), exact("mk,kn->mn", a, b, rate), 8)
    a[9, 3], a[11, 1], b[2, 2] = -nothing, math.nan, -nothing
    check(computed(by, "mk,kn->mn", a, b, algebra=algebra), exact("mk,kn->mn", a, b, rate), 8)


def test_largest_pairs_far_apart() -> None:
    """Every pair that counts has a factor that is lost: the largest of A meet the smallest of B."""
    a = torch.tensor([[0.0, -500.0]]).repeat(8, 40)
    b = torch.tensor([[-500.0], [0.0]]).repeat(40, 8)
    check(computed(family, "mk,kn->mn", a, b, algebra="log"), exact("mk,kn->mn", a, b, 1.0), 8)


@pytest.mark.parametrize("threads", [1, 2])
def test_functions_types_and_further_results(threads: int) -> None:
    a, b, bias = torch.randn(37, 65).half(), torch.randn(65, 50).half(), torch.randn(50)
    options: dict[str, Any] = {
        "algebra": "log", "a_fn": torch.relu, "out_dtype": torch.float32, "precision": torch.float32,
        "epilogue": lambda x, m: x - m, "indices": {"m": "m"},
    }  # fmt: skip
    wanted = exact("mk,kn->mn", torch.relu(a), b, 1.0) - torch.arange(37)[:, None]
    check(computed(family, "mk,kn->mn", a, b, threads, **options), wanted, 32)
    both = weft.contract("mk,kn->nm", a.float(), b.float(), algebra="log", epilogue=lambda x, bias: (x + bias, 2 * x),
                         operands={"bias": ("n", bias)})  # fmt: skip
    total = exact("mk,kn->nm", a, b, 1.0)
    check(both[0], total + bias[:, None], 32)
    check(both[1], 2 * total, 32)


def test_what_is_left_to_others() -> None:
    a, b = torch.randn(9, 12), torch.randn(12, 7)
    assert "only log" in str(family.supports(contraction_of("mk,kn->mn", a, b, algebra="max_plus"), CPU))
    assert "C is added" in str(
        family.supports(contraction_of("mk,kn->mn", a, b, c=torch.randn(9, 7), algebra="log"), CPU)
    )
    assert "no product" in str(family.supports(contraction_of("mk,k->m", a, b[:, 0].clone(), algebra="log"), CPU))
    assert exponent_of(weft.algebra.log.traced(torch.float16), torch.float16) is None


@pytest.mark.parametrize("special", [False, True], ids=["in range", "out of range"])
def test_gradients(special: bool) -> None:
    """Of weights of either sign; rows of nothing have none."""
    a, b = torch.randn(13, 21, dtype=torch.float64), torch.randn(21, 17, dtype=torch.float64)
    a[2], b[:, 3] = -math.inf, -math.inf
    if special:
        a[4] = torch.linspace(0, -2000, 21)
        b[:, 5] = torch.linspace(-2000, 0, 21)
    weights = torch.randn(13, 17, dtype=torch.float64)
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    total = weft.contract("mk,kn->mn", x, y, algebra="log")
    found = torch.autograd.grad((total.masked_fill(total == -math.inf, 0) * weights).sum(), (x, y))
    pairs, total = a[:, :, None] + b, exact("mk,kn->mn", a, b, 1.0)
    shares = torch.where(total[:, None] == -math.inf, 0, torch.exp(pairs - total[:, None])) * weights[:, None]
    for one, other in zip(found, (shares.sum(2), shares.sum(0)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
