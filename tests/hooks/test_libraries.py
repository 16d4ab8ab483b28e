"""cotengra and opt_einsum contract by weft: their own calls, their own lists of equations."""

from __future__ import annotations

import importlib.util
from typing import Any

import cotengra as ctg
import numpy as np
import opt_einsum
import pytest
import torch
from cotengra.contract import get_default_implementation
from opt_einsum.testing import build_views

import weft
import weft.hooks


def opt_einsums_own() -> list[str]:
    """The equations of opt_einsum's tests, which are installed with it."""
    if importlib.util.find_spec("opt_einsum.tests") is None:
        return ["ea,fb,abcd,gc,hd->efgh", ",,->", "dd,fb,be,cdb->cef", "fff,fae,bef,def->abd", "bbd,bda,fc,db->acf"]
    from opt_einsum.tests.test_contract import tests

    return list(dict.fromkeys(tests))


@pytest.mark.parametrize("equation", opt_einsums_own())
def test_opt_einsum_contracts_its_own_equations(equation: str) -> None:
    views = [np.asarray(view) for view in build_views(equation)]
    wanted = np.einsum(equation, *views)
    for given in (views, [torch.from_numpy(view) for view in views]):
        found = opt_einsum.contract(equation, *given, backend="weft", optimize="greedy")
        bound = 1e-9 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=bound)


def test_an_expression_of_opt_einsum() -> None:
    x, y, z = (torch.randn(4, 4, dtype=torch.float64) for _ in range(3))
    expression = opt_einsum.contract_expression("ab,bc,cd->ad", x, (4, 4), (4, 4), constants=[0])
    torch.testing.assert_close(expression(y, z, backend="weft"), x @ y @ z)
    many = [torch.ones(1, 1, dtype=torch.float64)] * 120  # more labels than letters
    inputs = [value for at, one in enumerate(many) for value in (one, (at, at + 1))]
    assert opt_einsum.contract(*inputs, (0, 120), backend="weft", optimize="greedy").shape == (1, 1)


class Calls:
    """A pair for cotengra that counts what it is asked for."""

    def __init__(self, **options: Any) -> None:
        self.count = 0
        self.pair = tuple(map(self.counted, weft.hooks.cotengra(**options)))

    def counted(self, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            return function(*arguments, **keywords)

        return call


def network(seed: int = 0) -> tuple[Any, Any, dict[str, int], list[np.ndarray]]:
    """A random network with hyper-edges and an output."""
    inputs, output, shapes, sizes = ctg.utils.rand_equation(9, 3, n_out=2, n_hyper_in=2, d_min=2, d_max=3, seed=seed)
    rng = np.random.default_rng(seed)
    return inputs, output, sizes, [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cotengra_contracts_by_the_pair(seed: int) -> None:
    inputs, output, _, arrays = network(seed)
    wanted = ctg.array_contract(arrays, inputs, output, implementation="cotengra")
    calls = Calls()
    found = ctg.array_contract(arrays, inputs, output, implementation=calls.pair)
    assert calls.count >= len(arrays) - 1
    np.testing.assert_allclose(found, wanted, atol=1e-10 * np.abs(wanted).max())
    with weft.hooks.implementing():
        found = ctg.array_contract([torch.from_numpy(array) for array in arrays], inputs, output)
    assert get_default_implementation() == "auto"
    np.testing.assert_allclose(found, wanted, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_whole_tree_with_slices(kind: Any) -> None:
    inputs, output, sizes, arrays = network(3)
    tree = ctg.array_contract_tree(inputs, output, sizes, canonicalize=False)
    wanted = tree.contract(arrays, implementation="cotengra")
    inner = next(label for label in sizes if label not in output)
    for cut in (tree, tree.remove_ind(inner), tree.remove_ind(inner).remove_ind(output[0])):
        found = weft.hooks.contract_tree(cut, list(map(kind, arrays)))
        assert isinstance(found, type(kind(arrays[0])))
        np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-10 * np.abs(wanted).max())
        mantissa, exponent = weft.hooks.contract_tree(cut, list(map(kind, arrays)), strip_exponent=True)
        np.testing.assert_allclose(np.asarray(mantissa) * 10**exponent, wanted, atol=1e-10 * np.abs(wanted).max())


def test_a_tree_whose_value_leaves_the_type() -> None:
    chain = [torch.full((2, 2), 1e300, dtype=torch.float64) for _ in range(4)]
    inputs = [(at, at + 1) for at in range(4)]
    tree = ctg.array_contract_tree(inputs, (0, 4), dict.fromkeys(range(5), 2))
    mantissa, exponent = weft.hooks.contract_tree(tree, chain, strip_exponent=True)
    assert exponent + np.log10(float(mantissa.max())) == pytest.approx(1200 + np.log10(8), rel=1e-9)


def test_what_a_tree_does_not_fit() -> None:
    tree = ctg.array_contract_tree([("a", "b"), ("b", "c")], ("a", "c"), {"a": 2, "b": 3, "c": 4})
    with pytest.raises(weft.ShapeError, match="2 inputs, 1 arrays"):
        weft.hooks.contract_tree(tree, [torch.ones(2, 3)])
    with pytest.raises(weft.ShapeError, match=r"arrays\[1\] of shape \(4, 3\): the tree has \(3, 4\)"):
        weft.hooks.contract_tree(tree, [torch.ones(2, 3), torch.ones(4, 3)])
    with pytest.raises(weft.ArgumentError, match="not str"):
        weft.hooks.contract_tree("ab,bc->ac", [])
    with pytest.raises(weft.ArgumentError, match="did you mean 'precision'"):
        weft.hooks.cotengra(precison="tf32")


def test_autoray_finds_weft_by_name() -> None:
    inputs, output, _, arrays = network(4)
    wanted = ctg.array_contract(arrays, inputs, output)
    np.testing.assert_allclose(ctg.array_contract(arrays, inputs, output, backend="weft"), wanted, atol=1e-9)
    mantissa, exponent = ctg.array_contract(arrays, inputs, output, backend="weft", strip_exponent=True)
    np.testing.assert_allclose(np.asarray(mantissa) * 10 ** float(exponent), wanted, atol=1e-9)
