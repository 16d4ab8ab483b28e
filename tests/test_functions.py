"""Ready functions: as epilogues on every backend, and traced as a kernel would have them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from weft import functions as f
from weft.fn import fingerprint, trace
from weft.testing import random_operand

# Whole numbers: sums and what is added to them are exact.
A, B, BIAS, SCALE = (
    random_operand(shape, torch.float64, seed, integers=True) for seed, shape in enumerate(((6, 5), (5, 7), (7,), (6,)))
)
SUMS = A @ B


def fused(on: dict[str, Any], epilogue: Any, **options: Any) -> Any:
    return weft.contract("mk,kn->mn", A, B, epilogue=epilogue, **options, **on)


def test_operands(on: dict[str, Any]) -> None:
    assert torch.equal(fused(on, f.bias, operands={"bias": ("n", BIAS)}), SUMS + BIAS)
    assert torch.equal(fused(on, f.scale, operands={"scale": ("m", SCALE)}), SUMS * SCALE[:, None])


ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "relu": (f.relu, torch.relu),
    "silu": (f.silu, torch.nn.functional.silu),
    "sigmoid": (f.sigmoid, torch.sigmoid),
    "tanh": (f.tanh, torch.tanh),
    "leaky_relu": (f.leaky_relu(0.2), torch.nn.LeakyReLU(0.2)),
    "elu": (f.elu(2.0), torch.nn.ELU(2.0)),
    "gelu": (f.gelu(), torch.nn.GELU()),
    "gelu tanh": (f.gelu("tanh"), torch.nn.GELU(approximate="tanh")),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, on: dict[str, Any]) -> None:
    ours, theirs = ACTIVATIONS[name]
    assert torch.allclose(fused(on, ours), theirs(SUMS), rtol=1e-14, atol=1e-14)
    assert trace(ours, (torch.float16,)).result == torch.float16


class TestChain:
    def test_applies_from_left_to_right(self, on: dict[str, Any]) -> None:
        chained = f.chain(f.bias, f.leaky_relu(0.5), f.scale, torch.abs)
        d = fused(on, chained, operands={"bias": ("n", BIAS), "scale": ("m", SCALE)})
        assert torch.allclose(d, (torch.nn.functional.leaky_relu(SUMS + BIAS, 0.5) * SCALE[:, None]).abs())

    def test_one_name_is_one_operand(self, on: dict[str, Any]) -> None:
        chained = f.chain(f.bias, f.relu, f.bias)
        assert torch.equal(fused(on, chained, operands={"bias": ("n", BIAS)}), (SUMS + BIAS).relu() + BIAS)

    def test_defaults_stay(self, on: dict[str, Any]) -> None:
        def power(x: torch.Tensor, exponent: int = 2) -> torch.Tensor:
            return x**exponent

        assert torch.equal(fused(on, f.chain(power, f.relu)), SUMS**2)

    def test_tells_what_is_missing(self, on: dict[str, Any]) -> None:
        with pytest.raises(weft.FunctionError, match="'scale'"):
            fused(on, f.chain(f.bias, f.scale), operands={"bias": ("n", BIAS)})
        with pytest.raises(weft.FunctionError, match="epilogue takes bias, mask"):
            fused(on, f.chain(f.bias, f.masked()), operands={"tilt": ("n", BIAS)})

    def test_is_known_again(self) -> None:
        """So that a repeated call finds its plan."""
        makers = [lambda: f.chain(f.bias, f.elu(2.0)), lambda: f.dropout(0.5, 3), lambda: f.saturate(torch.int8)]
        for make in makers:
            assert fingerprint(make()) == fingerprint(make()) is not None
        assert fingerprint(f.dropout(0.5, 3)) != fingerprint(f.dropout(0.5, 4))


class TestMasks:
    def test_by_an_operand(self, on: dict[str, Any]) -> None:
        mask = SUMS > 0
        assert torch.equal(fused(on, f.masked(), operands={"mask": ("mn", mask)}), SUMS.masked_fill(~mask, -math.inf))

    def test_by_coordinates(self, on: dict[str, Any]) -> None:
        i, j = torch.arange(6)[:, None], torch.arange(7)
        places = {"i": "m", "j": "n"}
        assert torch.equal(fused(on, f.causal(fill=0.0), indices=places), SUMS.tril())
        assert torch.equal(fused(on, f.causal(1), indices=places), SUMS.masked_fill(j > i + 1, -math.inf))
        band = (j < i - 2) | (j > i + 1)
        assert torch.equal(fused(on, f.banded(2, 1, 0.0), indices=places), SUMS.masked_fill(band, 0.0))


class TestDropout:
    def test_share_and_scale(self, on: dict[str, Any]) -> None:
        if on["backend"] == "triton":
            pytest.skip("a million elements take the interpreter a minute")
        ones = torch.ones(1000, 1, dtype=torch.float64)
        d = weft.contract("mk,nk->mn", ones, ones, epilogue=f.dropout(0.25, 7), indices={"i": "m", "j": "n"}, **on)
        assert d.unique().tolist() == [0.0, 4 / 3]
        # 10^6 independent draws: the share's standard deviation is 0.00043. Rows and columns: 0.0137.
        dropped = (d == 0).double()
        assert abs(dropped.mean() - 0.25) < 0.002
        for dim in (0, 1):
            assert (dropped.mean(dim) - 0.25).abs().max() < 5.5 * 0.0137
            assert abs(float(dropped.mean(dim).std()) - 0.0137) < 0.0025
        neighbours = [(dropped[:, 1:] * dropped[:, :-1]).mean(), (dropped[1:] * dropped[:-1]).mean()]
        assert all(abs(both - 0.0625) < 0.002 for both in neighbours)

    def test_depends_on_seed_and_coordinates_alone(self, on: dict[str, Any]) -> None:
        def dropped(seed: int, rows: int, value: float = 1.0) -> torch.Tensor:
            a, b = torch.full((rows, 1), value), torch.ones(1, 40)
            places = {"i": "m", "j": "n"}
            return weft.contract("mk,kn->mn", a, b, epilogue=f.dropout(0.5, seed), indices=places, **on) == 0

        assert torch.equal(dropped(1, 9)[:4], dropped(1, 4, value=3.0))
        assert not torch.equal(dropped(1, 9), dropped(2, 9))
        assert not torch.equal(dropped(1, 9), dropped(1 + 2**40, 9))

    def test_hash_is_the_published_one(self) -> None:
        """lowbias32 in Python's integers."""

        def mixed(x: int) -> int:
            for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
                x = ((x ^ x >> shift) * multiplier) & 0xFFFFFFFF
            return x ^ x >> 16

        coordinates = torch.arange(50, dtype=torch.int32)
        expected = [(mixed((i * 0x9E3779B1 + 11) & 0xFFFFFFFF) >> 8) / 2**24 for i in range(50)]
        assert f.uniform(11, coordinates).tolist() == expected

    def test_long_coordinates(self) -> None:
        far = torch.tensor([5, 5 + 2**32, 5 + 2**33])
        assert len(set(f.uniform(1, far).tolist())) == 3

    def test_other_names_and_counts(self, on: dict[str, Any]) -> None:
        d = fused(on, f.chain(f.relu, f.dropout(0.5, 1, ("row",))), indices={"row": "m"})
        assert all(
            bool((row == 0).all()) or torch.equal(row, 2 * sums.relu()) for row, sums in zip(d, SUMS, strict=True)
        )

    @pytest.mark.parametrize("arguments", [(1.0, 1), (-0.1, 1), (0.5, 1, ())])
    def test_refused(self, arguments: Any) -> None:
        with pytest.raises(weft.FunctionError):
            f.dropout(*arguments)


class TestSaturate:
    @pytest.mark.parametrize("value", [torch.float32, torch.float64, torch.float16])
    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
    def test_floats_to_integers(self, value: torch.dtype, dtype: torch.dtype) -> None:
        numbers = [
            -math.inf, -1e20, -129.0, -128.4, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 127.4, 128.0, 254.5, 1e20, math.inf,
        ]  # fmt: skip
        values = torch.tensor([*numbers, math.nan]).to(value)
        limits = torch.iinfo(dtype)

        def expected(number: float) -> int:
            if math.isnan(number):
                return 0
            return limits.max if number == math.inf else limits.min if number == -math.inf else clamped(round(number))

        def clamped(number: int) -> int:
            return min(max(number, limits.min), limits.max)

        assert f.saturate(dtype)(values).tolist() == [expected(number) for number in values.tolist()]

    def test_integers(self) -> None:
        values = torch.tensor([-(2**31), -129, -1, 0, 127, 128, 2**31 - 1], dtype=torch.int32)
        assert f.saturate(torch.int8)(values).tolist() == [-128, -128, -1, 0, 127, 127, 127]
        assert f.saturate(torch.uint8)(values).tolist() == [0, 0, 0, 0, 127, 128, 255]
        assert torch.equal(f.saturate(torch.int64)(values), values.long())

    def test_floats(self) -> None:
        values = torch.tensor([-math.inf, -1e6, 3.0, 1e6, math.inf, math.nan])
        found = f.saturate(torch.float16)(values)
        assert found[:5].tolist() == [-65504, -65504, 3, 65504, 65504]
        assert found[5].isnan()
        assert f.saturate(torch.float8_e4m3fn)(values)[:5].float().tolist() == [-448, -448, 3, 448, 448]

    def test_as_an_epilogue(self, on: dict[str, Any]) -> None:
        a, b = (torch.full(shape, 11, dtype=torch.int8) for shape in ((2, 3), (3, 2)))
        d = weft.contract("mk,kn->mn", a, b, epilogue=f.saturate(torch.int8), out_dtype=torch.int8, **on)
        assert d.unique().tolist() == [127]

    def test_refused(self) -> None:
        with pytest.raises(weft.DTypeError):
            f.saturate(torch.complex64)

    def test_the_maker_of_a_function_is_no_function(self) -> None:
        """An error about a value that is no type does not print what the value holds."""
        for maker in (f.saturate, f.quantize):
            with pytest.raises(weft.FunctionError, match=r"dtype is a number type .*, not Element"):
                weft.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 2), epilogue=maker)
        with pytest.raises(weft.DTypeError, match=r"out_dtype is a number type .*, not Tensor\n"):
            weft.contract("mk,kn->mn", torch.ones(2, 3), torch.ones(3, 2), out_dtype=torch.ones(9))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("function", "names", "dtypes"),
    [
        (f.chain(f.bias, f.gelu()), ("bias",), (torch.float16,)),
        (f.causal(), ("i", "j"), (torch.int32, torch.int32)),
        (f.dropout(0.1, 3), ("i", "j"), (torch.int32, torch.int64)),
        (f.masked(), ("mask",), (torch.bool,)),
        (f.saturate(torch.int8), (), ()),
    ],
)
def test_have_triton_code(function: Any, names: tuple[str, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    traced = trace(function, (torch.float32, *dtypes), names=names)
    assert traced.source.startswith("@triton.jit")
    assert traced.flops > 0
    values = [torch.ones(3, 4, dtype=dtype) for dtype in traced.dtypes]
    assert torch.equal(traced(*values), function(values[0], **dict(zip(names, values[1:], strict=True))))
