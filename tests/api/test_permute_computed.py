"""`weft.permute` with a function, a cast, scaling and accumulation, fused or not the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from permuting import permuted, ready, same_bits
from support import Backend
from weft import reference
from weft.testing import poisoned, random_operand
from weft_bench.cases import FUNCTIONS

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, COMPLEX_DOUBLE = torch.complex64, torch.complex128

# What rounds the same wherever it runs.
EXACT = ("relu", "abs", "sign", "floor", "round", "clamp", "where", "minmax")
ROUNDED = ("tanh", "elu", "gelu", "exp", "sigmoid")
CASTS = [
    *((HALF, SINGLE), (SINGLE, HALF), (SINGLE, DOUBLE), (DOUBLE, SINGLE), (BRAIN, SINGLE), (SINGLE, BRAIN)),
    *((torch.int8, torch.int32), (torch.int64, torch.int16), (torch.int32, SINGLE), (torch.uint8, DOUBLE)),
    *((torch.bool, SINGLE), (torch.bool, torch.int64)),
]


def values(shape: tuple[int, ...], dtype: torch.dtype, backend: Backend, *, integers: bool = False) -> torch.Tensor:
    return random_operand(shape, dtype, 1, integers=integers, device=backend.device)


class TestFunction:
    @pytest.mark.parametrize(
        ("name", "dtype"), [*((name, SINGLE) for name in EXACT), ("relu", HALF), ("where", DOUBLE)], ids=str
    )
    def test_exact(self, name: str, dtype: torch.dtype, backend: Backend) -> None:
        ready(backend)
        x, fn = values((9, 17, 5), dtype, backend), FUNCTIONS[name]
        assert torch.equal(permuted(x, "abc->cab", backend, (5, 9, 17), fn=fn), fn(x).permute(2, 0, 1))

    @pytest.mark.parametrize("name", ROUNDED)
    def test_rounded(self, name: str, backend: Backend) -> None:
        """Within eight units in the last place of the function in float64."""
        ready(backend)
        x, fn = values((9, 17, 5), SINGLE, backend), FUNCTIONS[name]
        result = permuted(x, "abc->cab", backend, (5, 9, 17), fn=fn)
        expected = reference.permute("abc->cab", x, fn=fn)
        bound = 8 * torch.finfo(SINGLE).eps * expected.abs() + 8 * torch.finfo(SINGLE).eps
        assert bool(((result - expected).abs() <= bound).all())

    def test_sees_values_of_the_operands_type(self, backend: Backend) -> None:
        ready(backend)
        seen = []

        def note(value: torch.Tensor) -> torch.Tensor:
            seen.append((backend.name, value.dtype))  # a function that computes the same is not traced again
            return value + 1

        x = values((3, 4), HALF, backend, integers=True)
        assert torch.equal(
            weft.permute(x, "ab->ba", fn=note, out_dtype=SINGLE, backend=backend.name), (x.T + 1).float()
        )
        assert set(seen) == {(backend.name, HALF)}

    @pytest.mark.parametrize(
        ("fn", "dtype", "result"),
        [
            (torch.relu, HALF, HALF),
            (lambda v: v.to(torch.float32) / 2, torch.int32, SINGLE),
            (lambda v: v > 0, SINGLE, torch.bool),
        ],
    )  # fmt: skip
    def test_result_has_the_functions_type(
        self, fn: Callable[..., torch.Tensor], dtype: torch.dtype, result: torch.dtype, backend: Backend
    ) -> None:
        ready(backend)
        x = values((6, 7), dtype, backend, integers=True)
        found = weft.permute(x, "ab->ba", fn=fn, backend=backend.name)
        assert found.dtype == result
        assert torch.equal(found, fn(x).T)

    def test_of_new_modes_and_diagonals(self, backend: Backend) -> None:
        ready(backend)
        x = values((5, 5), SINGLE, backend)
        result = permuted(x, "aa->ba", backend, (3, 5), fn=torch.relu)
        assert torch.equal(result, torch.relu(x.diagonal()).expand(3, 5))

    def test_constant(self, backend: Backend) -> None:
        """A function that ignores its argument; scaling its value must not change what it returns next time."""
        ready(backend)
        x = values((4, 1), SINGLE, backend)
        for _ in range(2):
            result = weft.permute(x, "ab->ba", fn=lambda v: torch.full_like(v, 3.0), alpha=2, backend=backend.name)
            assert torch.equal(result, torch.full((1, 4), 6.0, device=x.device))

    def test_complex(self, backend: Backend) -> None:
        ready(backend)
        z = values((5, 6), COMPLEX, backend)
        moved = weft.permute(z.conj(), "ab->ba", fn=lambda v: v + 1j, backend=backend.name)
        assert torch.equal(moved, z.conj().T + 1j)
        modulus = weft.permute(z, "ab->ba", fn=torch.abs, backend=backend.name)
        assert modulus.dtype == SINGLE
        assert torch.allclose(modulus, z.T.abs())


class TestCast:
    @pytest.mark.parametrize(("dtype", "result"), CASTS, ids=str)
    def test_cast(self, dtype: torch.dtype, result: torch.dtype, backend: Backend) -> None:
        """Whole numbers: Triton's interpreter cuts off where a GPU rounds to bfloat16."""
        ready(backend)
        x = values((9, 17, 5), dtype, backend, integers=True)
        expected = x.permute(2, 1, 0).to(result)
        assert same_bits(permuted(x, "abc->cba", backend, (5, 17, 9), dtype=result), expected)
        assert same_bits(weft.permute(x, "abc->cba", out_dtype=result, backend=backend.name), expected)

    @pytest.mark.parametrize("result", [HALF, DOUBLE], ids=str)
    def test_cast_rounds_to_nearest(self, result: torch.dtype, backend: Backend) -> None:
        ready(backend)
        x = values((33, 40), SINGLE, backend)
        assert same_bits(weft.permute(x, "ab->ba", out_dtype=result, backend=backend.name), x.T.to(result))

    def test_real_to_complex(self, backend: Backend) -> None:
        ready(backend)
        x = values((5, 6), SINGLE, backend)
        moved = weft.permute(x, "ab->ba", out_dtype=COMPLEX_DOUBLE, backend=backend.name)
        assert torch.equal(moved, x.T.to(COMPLEX_DOUBLE))

    @pytest.mark.parametrize("dtype", [COMPLEX, COMPLEX_DOUBLE], ids=str)
    def test_conjugate(self, dtype: torch.dtype, backend: Backend) -> None:
        """Read without a copy: the view's memory is not touched, the values are conjugated on the way."""
        ready(backend)
        z = values((5, 6, 7), dtype, backend)
        assert torch.equal(permuted(z.conj(), "abc->cab", backend, (7, 5, 6)), z.permute(2, 0, 1).conj())


class TestScaling:
    @pytest.mark.parametrize(
        ("dtype", "alpha", "beta"),
        [
            *((dtype, 3, -2) for dtype in (HALF, BRAIN, SINGLE, DOUBLE, torch.int8, torch.int32, torch.int64)),
            *((SINGLE, alpha, beta) for alpha, beta in ((2, 0), (1, 1), (-1, 2), (0, 1))),
        ],
        ids=str,
    )
    def test_small_integers_are_exact(self, dtype: torch.dtype, alpha: int, beta: int, backend: Backend) -> None:
        ready(backend)
        x = values((9, 7, 5), dtype, backend, integers=True)
        out = random_operand((5, 9, 7), dtype, 2, integers=True, device=backend.device)
        expected = alpha * x.permute(2, 0, 1) + beta * out
        assert weft.permute(x, "abc->cab", c=out, out=out, alpha=alpha, beta=beta, backend=backend.name) is out
        assert torch.equal(out, expected)

    @pytest.mark.parametrize("layout", ["permuted", "padded", "strided"])
    def test_into_a_strided_result(self, layout: str, backend: Backend) -> None:
        ready(backend)
        x = values((6, 7), SINGLE, backend, integers=True)
        guarded = poisoned((7, 6), SINGLE, layout=layout, device=backend.device)
        guarded.tensor.fill_(5)
        out = guarded.tensor
        weft.permute(x, "ab->ba", fn=torch.relu, c=out, out=out, alpha=2, beta=-1, backend=backend.name)
        guarded.check_guards()
        assert torch.equal(guarded.tensor, 2 * torch.relu(x).T - 5)

    @pytest.mark.one_of(5)
    @pytest.mark.parametrize("layout", ["contiguous", "permuted", "offset", "broadcast"])
    @pytest.mark.parametrize("dtype", [HALF, SINGLE, torch.complex64], ids=str)
    def test_an_addend_elsewhere_is_read_where_it_lies(self, dtype: torch.dtype, layout: str, backend: Backend) -> None:
        """And stays as it was."""
        ready(backend)
        x = values((40, 33), dtype, backend, integers=True)
        if layout == "broadcast":
            c = random_operand((33, 1), dtype, 3, integers=True, device=backend.device)
        else:
            c = random_operand((33, 40), dtype, 3, layout=layout, integers=True, device=backend.device)
        before, guarded = c.clone(), poisoned((33, 40), dtype, device=backend.device)
        expected = 2 * x.T - 3 * c
        weft.permute(x, "ab->ba", c=c, out=guarded.tensor, alpha=2, beta=-3, backend=backend.name)
        guarded.check_guards()
        assert torch.equal(guarded.tensor, expected)
        assert torch.equal(weft.permute(x, "ab->ba", c=c, alpha=2, beta=-3, backend=backend.name), expected)
        assert torch.equal(c, before)

    def test_half_goes_by_single(self, backend: Backend) -> None:
        """0.1 x + y rounded once: rounding 0.1 to half first, or the product, would show."""
        ready(backend)
        x, y = values((40, 33), HALF, backend), random_operand((33, 40), HALF, 3, device=backend.device)
        out = y.clone()
        weft.permute(x, "ab->ba", c=out, out=out, alpha=0.1, beta=1, backend=backend.name)
        exact = 0.1 * x.T.double() + y.double()
        assert bool(((out.double() - exact).abs() <= 0.501 * torch.finfo(HALF).eps * exact.abs() + 2.0**-24).all())

    def test_wide_results_keep_their_digits(self, backend: Backend) -> None:
        """A float32 tensor added into float64: neither alpha nor what stands there is shortened."""
        ready(backend)
        x = values((6, 7), SINGLE, backend, integers=True)
        out = torch.full((7, 6), 1 + 2.0**-40, dtype=DOUBLE, device=backend.device)
        weft.permute(x, "ab->ba", c=out, out=out, beta=1, backend=backend.name)
        assert torch.equal(out, x.T.double() + (1 + 2.0**-40))

    def test_integers_scaled_by_what_a_function_makes_of_them(self, backend: Backend) -> None:
        ready(backend)
        x = values((6, 7), torch.int32, backend)
        result = weft.permute(x, "ab->ba", fn=lambda v: v.to(torch.float32) / 2, alpha=0.5, backend=backend.name)
        assert torch.equal(result, x.T / 4)

    @pytest.mark.parametrize("poison", [float("nan"), float("inf")])
    def test_beta_zero_reads_nothing(self, poison: float, backend: Backend) -> None:
        """pytorch#96037, #194442: NaN and infinity in C spread."""
        ready(backend)
        x = values((6, 7), SINGLE, backend)
        out = torch.full((7, 6), poison, device=backend.device)
        weft.permute(x, "ab->ba", c=out, out=out, alpha=2, beta=0, backend=backend.name)
        assert torch.equal(out, 2 * x.T)

    def test_alpha_zero_does_not_read_x(self, backend: Backend) -> None:
        ready(backend)
        x = torch.tensor([[1.0, float("nan")]], device=backend.device)
        assert torch.equal(weft.permute(x, "ab->ba", alpha=0, backend=backend.name), torch.zeros_like(x).T)
        added = weft.permute(x, "ab->ba", alpha=0, c=torch.ones_like(x).T, beta=3, backend=backend.name)
        assert torch.equal(added, 3 * torch.ones_like(x).T)

    def test_new_modes_accumulate_each(self, backend: Backend) -> None:
        ready(backend)
        x = values((6,), SINGLE, backend, integers=True)
        out = values((4, 6), SINGLE, backend, integers=True)
        expected = x + 2 * out
        weft.permute(x, "a->ba", c=out, out=out, beta=2, backend=backend.name)
        assert torch.equal(out, expected)

    def test_complex_scalars(self, backend: Backend) -> None:
        ready(backend)
        z, out = (values((3, 4), COMPLEX, backend, integers=True) for _ in range(2))
        expected = 1j * z.T + (1 - 2j) * out.T
        out = out.T.contiguous()
        weft.permute(z, "ab->ba", c=out, out=out, alpha=1j, beta=1 - 2j, backend=backend.name)
        assert torch.equal(out, expected)

    def test_complex_by_real_numbers(self, backend: Backend) -> None:
        ready(backend)
        z = values((3, 4), COMPLEX, backend, integers=True)
        out = values((4, 3), COMPLEX, backend, integers=True)
        expected = 2 * z.T.conj() + 3 * out
        weft.permute(z.conj(), "ab->ba", c=out, out=out, alpha=2, beta=3, backend=backend.name)
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "options",
    [{"fn": torch.relu}, {"out_dtype": DOUBLE}, {"alpha": 2}, {"fn": torch.tanh, "alpha": 0.5, "out_dtype": HALF}],
)
def test_the_reference_backend(options: dict[str, object]) -> None:
    """Its values are those of the oracle, computed in float64 and rounded once."""
    x = random_operand((5, 6, 7), SINGLE, 4)
    result = weft.permute(x, "abc->cba", backend="reference", **options)
    expected = reference.permute("abc->cba", x, **{"out_dtype": SINGLE, **options})
    assert same_bits(result, expected)


def test_c_is_a_conjugate_or_negative_view_of_the_result() -> None:
    z, o = (torch.randn(4, 4, dtype=torch.complex64) for _ in range(2))
    expected = z.T + o.conj()
    weft.permute(z, "ab->ba", c=o.conj(), out=o)
    torch.testing.assert_close(o, expected)
    x, place = torch.randn(4, 4), torch.randn(4, 4, dtype=torch.complex64)
    out = place.imag
    expected = x.T + place.conj().imag
    weft.permute(x, "ab->ba", c=place.conj().imag, out=out)
    torch.testing.assert_close(out, expected)
