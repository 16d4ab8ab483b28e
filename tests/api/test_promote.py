"""`promote=True`, `torch.autocast`, and weights of eight bits under half-precision activations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.testing import assert_close, random_operand

TYPES = (torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
MIXED = [(a, b) for a, b in itertools.permutations(TYPES, 2)]


def interpreted_badly(on: dict[str, str], *dtypes: torch.dtype) -> bool:
    """Triton's interpreter, which the tests of that backend run in, cannot make bfloat16 of an integer."""
    whole = any(not (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes)
    return on["backend"] == "triton" and whole and torch.bfloat16 in dtypes


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.one_of(5)
@pytest.mark.parametrize(("first", "second"), MIXED, ids=lambda dtype: name(dtype))
def test_operands_of_different_types_as_torch_promotes_them(
    first: torch.dtype, second: torch.dtype, on: dict[str, str]
) -> None:
    if interpreted_badly(on, first, second):
        pytest.skip("no conversion in the interpreter")
    a, b = random_operand((6, 9), first, 1, integers=True), random_operand((9, 5), second, 2, integers=True)
    common = torch.promote_types(first, second)
    wide = torch.complex128 if common.is_complex else torch.float64
    found = weft.contract("mk,kn->mn", a, b, promote=True, **on)
    assert found.dtype == common
    assert torch.equal(found.to(wide), a.to(wide) @ b.to(wide))


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_weights_of_eight_bits_with_scales_by_column(
    stored: torch.dtype, half: torch.dtype, on: dict[str, str]
) -> None:
    """The recipe of docs/numbers.md."""
    if interpreted_badly(on, stored, half):
        pytest.skip("no conversion in the interpreter")
    x = random_operand((6, 16), half, 1, integers=True)
    w = random_operand((16, 10), torch.int8, 2, integers=True).abs().to(stored)
    scale = torch.tensor([0.5, 1, 2, 4, 0.25] * 2, dtype=half)
    y = weft.contract(
        "mk,kn->mn", x, w, promote=True, epilogue=weft.functions.scale, operands={"scale": ("n", scale)}, **on
    )
    assert y.dtype == half
    assert torch.equal(y, ((x.double() @ w.double()) * scale.double()).to(half))


def test_weights_with_scales_by_group(on: dict[str, str]) -> None:
    x = random_operand((6, 4, 8), torch.float16, 1, integers=True)  # k in 4 groups of 8
    w = random_operand((4, 8, 10), torch.int8, 2, integers=True)
    scale = (2.0 ** torch.randint(-2, 3, (4, 10), generator=torch.Generator().manual_seed(3))).half()
    zero = torch.ones(4, 10, dtype=torch.float16)
    y = weft.contract(
        "mgk,gkn->mn", x, w, promote=True, b_fn=weft.functions.dequantize, out_dtype="fp32",
        operands={"scale": ("gn", scale), "zero": ("gn", zero)}, **on,
    )  # fmt: skip
    full = (w.double() - 1) * scale.double()[:, None]
    assert torch.equal(y.double(), torch.einsum("mgk,gkn->mn", x.double(), full))


def test_nothing_is_promoted_unless_asked() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)
    with pytest.raises(weft.DTypeError, match=r"nothing is promoted, convert one of them or say promote=True"):
        weft.contract("mk,kn->mn", a, b)
    with pytest.raises(weft.ArgumentError, match="promote is True or False, not 'yes'"):
        weft.contract("mk,kn->mn", a, b, promote="yes")


def test_arrays_lists_and_numbers_as_numpy_reads_them() -> None:
    assert weft.matmul([[1, 2]], [[0.5], [1]], promote=True).tolist() == [[2.5]]
    a, b = np.ones((2, 3), np.int32), np.full((3, 2), 0.5, np.float32)
    found = weft.contract("mk,kn->mn", a, b, promote=True)
    assert found.dtype == (a @ b).dtype == np.float64
    assert (found == a @ b).all()
    mixed = weft.contract("mk,kn->mn", torch.from_numpy(a), torch.from_numpy(b), promote=True)
    assert mixed.dtype == torch.float32
    assert weft.permute([[1, 2], [3, 4]], "ab->ba", promote=True).tolist() == [[1, 3], [2, 4]]
    assert weft.einsum("ab->b", [[1.0, 2.0], [3.0, 4.0]], promote=True).tolist() == [4, 6]
    with pytest.raises(weft.DTypeError, match=r"a is list.*promote=True"):
        weft.matmul([[1.0]], torch.ones(1, 1))
    with pytest.raises(weft.DTypeError, match="makes an array of <U1"):
        weft.matmul([["x"]], torch.ones(1, 1), promote=True)


def test_a_plan_promotes_too() -> None:
    a, b = torch.ones(2, 3, dtype=torch.int8), torch.ones(3, 4)
    plan = weft.plan("mk,kn->mn", a, b, promote=True)
    assert torch.equal(plan(a, b), torch.full((2, 4), 3.0))
    assert plan.report().types["A"] == "int8"
    assert torch.equal(weft.contract("mk,kn->mn", a, b, promote=True, validate=True), torch.full((2, 4), 3.0))


def test_rounding_of_promoted_values_is_bounded() -> None:
    a, b = random_operand((9, 65), torch.float16, 1), random_operand((65, 7), torch.float32, 2)
    found = weft.contract("mk,kn->mn", a, b, promote=True)
    exact = a.double() @ b.double()
    assert_close(found, exact, 65 * 2.0**-23 * (a.double().abs() @ b.double().abs()))


class TestAutocast:
    """weft within `torch.autocast` beside `torch.einsum` there."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("second", [torch.float32, torch.bfloat16, torch.float16])
    def test_types_are_those_of_torch(self, dtype: torch.dtype, second: torch.dtype) -> None:
        a, b = random_operand((4, 8), torch.float32, 1, integers=True), random_operand((8, 3), second, 2, integers=True)
        with torch.autocast("cpu", dtype=dtype):
            theirs = torch.einsum("ik,kj->ij", a, b)
            ours = weft.einsum("ik,kj->ij", a, b)
            products = weft.matmul(a, b), weft.contract("ik,kj->ij", a, b), weft.plan("ik,kj->ij", a, b)(a, b)
        for found in (ours, *products):
            assert found.dtype == theirs.dtype == dtype
            assert torch.equal(found, theirs)
        assert weft.einsum("ik,kj->ij", a, a.T).dtype == torch.float32

    def test_one_operand_keeps_its_type(self) -> None:
        x = torch.rand(7, 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = weft.einsum("ij->i", x)
            assert found.dtype is torch.einsum("ij->i", x).dtype is torch.float32
        torch.testing.assert_close(found, x.sum(1))

    @pytest.mark.parametrize("name", ["grouped", "plan_grouped", "ragged", "blocks", "chain", "operator_sum"])
    def test_calls_of_many_products(self, name: str) -> None:
        x, w = torch.randn(6, 4), torch.randn(4, 4)
        a, b = (weft.blocks.BlockTensor({(0, 0): each}) for each in (x, w))
        calls: dict[str, Any] = {
            "grouped": lambda **words: weft.grouped("mk,kn->mn", [(x, w)] * 2, **words)[1],
            "plan_grouped": lambda **words: weft.plan_grouped("mk,kn->mn", [(x, w)] * 2, **words)()[1],
            "ragged": lambda **words: weft.contract(
                "bjd,bde->bje", x, torch.stack([w, w]), ragged={"j": [0, 2, 6]}, **words
            ),
            "blocks": lambda **words: weft.blocks.contract("ab,bc->ac", a, b, **words)[0, 0],
            "chain": lambda **words: weft.chain("pq,qc,cr->pr", x, torch.eye(4), w, **words),
            "operator_sum": lambda **words: weft.operator_sum([(x, None, None)], w[..., None], **words)[..., 0],
        }
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found, precise = calls[name](), calls[name](precision="ieee")
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), (x.bfloat16() @ w.bfloat16()).float(), rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(precise, x @ w)
            torch.testing.assert_close(calls[name](), x @ w)

    def test_what_autocast_leaves_alone(self) -> None:
        double, whole = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.int32)
        single = torch.ones(3, 3)
        with torch.autocast("cpu"):
            assert weft.matmul(double, double).dtype == torch.einsum("ik,kj->ij", double, double).dtype
            assert weft.matmul(whole, whole).dtype == torch.int32
            assert weft.matmul(single, single, precision="ieee").dtype == torch.float32
            assert weft.matmul(single, single, algebra="max_plus").dtype == torch.float32
            assert weft.matmul(single, single, out_dtype="fp32").dtype == torch.float32
            assert weft.permute(single, "ab->ba").dtype == torch.float32
            out = torch.empty(3, 3)
            assert weft.matmul(single, single, out=out) is out
        with torch.autocast("cpu", enabled=False):
            assert weft.matmul(single, single).dtype == torch.float32
