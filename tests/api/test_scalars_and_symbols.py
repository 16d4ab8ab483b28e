"""What equations are written with: any symbol, any hashable label, numbers among the operands."""

from __future__ import annotations

import numpy as np
import opt_einsum
import pytest
import torch

import weft


def test_every_symbol_that_opt_einsum_makes_is_a_label() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    for at in (*range(300), 8052, 8053, 12149, 55000, 55296, 60000):  # signs, spaces, past surrogates
        i, j = opt_einsum.get_symbol(at), opt_einsum.get_symbol(at + 1)
        assert weft.spec.parse(f"{i}{j} -> {j}{i}").output == (j, i)
    for at in (75, 247 - 140, 8052):
        i, j = opt_einsum.get_symbol(at), opt_einsum.get_symbol(at + 1)
        assert torch.equal(weft.einsum(f"{i}{j}->{j}{i}", x), x.T)


@pytest.mark.parametrize("text", ["a.b,b", "a-b,b", "a>,b", "1,2", "a*,b", "a\u00b7,b"])
def test_signs_of_ascii_and_latin_are_no_labels(text: str) -> None:
    with pytest.raises(weft.NotationError, match="is not a label"):
        weft.einsum(text, torch.ones(2, 2), torch.ones(2))


def test_spaces_mean_nothing() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(weft.einsum(" i\tj\u00a0->\n j i", x), x.T)


@pytest.mark.parametrize("number", [2, -1.5, True, np.float64(0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_is_an_operand_without_dimensions(number: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    if isinstance(number, np.generic) and dtype is torch.float32:
        with pytest.raises(weft.DTypeError):
            weft.einsum(",ab->ab", number, x)
        return
    wanted = float(number) * (x @ y)
    for found in (
        weft.einsum(",ab,bc->ac", number, x, y),
        weft.einsum("ab,bc,->ac", x, y, number),
        weft.einsum(number, (), x, (0, "left"), y, ("left", None), (0, None)),
        weft.einsum("ab,,bc->ac", [x, number, y]),
    ):
        assert found.dtype is dtype
        torch.testing.assert_close(found, wanted)


def test_numbers_alone_and_beside_numpy() -> None:
    assert weft.einsum(",->", 2.0, 3.0) == 6.0
    x = np.arange(3.0)
    found = weft.einsum(",i->i", np.float64(2), x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, 2 * x)
    total = weft.einsum("i,i,->", x, x, 0.5)
    assert type(total) is np.float64  # as np.einsum has it
    assert total == 2.5


def test_a_complex_number_takes_the_precision_beside_it() -> None:
    x = torch.randn(3)
    found = weft.einsum(",i->i", 2j, x)
    assert found.dtype is torch.complex64
    torch.testing.assert_close(found, 2j * x)


@pytest.mark.parametrize(("number", "dtype"), [(0.5, torch.int64), (300, torch.int8), (1j, torch.int32)])
def test_a_number_that_the_type_beside_it_does_not_hold(number: complex, dtype: torch.dtype) -> None:
    with pytest.raises(weft.DTypeError, match="operand 0 is the number"):
        weft.einsum(",i->i", number, torch.ones(3, dtype=dtype), out_dtype=dtype)


def test_labels_in_several_operands_and_twice_in_one() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y, z = (torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    for equation in ("ai,bi,ci->abc", "ai,bi,ci->i", "ii,ij,jj->j", "aa,bb,ab->", "ai,ai,ai->ia", "ab,cd,bc->ad"):
        torch.testing.assert_close(weft.einsum(equation, x, y, z), torch.einsum(equation, x, y, z))


def test_no_operands_at_all() -> None:
    with pytest.raises(weft.NotationError, match="needs an equation and operands"):
        weft.einsum("->")
