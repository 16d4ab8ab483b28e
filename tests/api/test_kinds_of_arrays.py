"""What comes in as an array of any kind: taken and given back in kind, or refused by what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft

EQUATION = "ij,jk->ik"
A = np.arange(12.0).reshape(3, 4)
B = np.ascontiguousarray(A.T)
EYE = np.eye(3)
PRODUCT = A @ B
THREE = "ij,jk,kl->il"


class Tagged(torch.Tensor):
    """A subclass that changes nothing."""


def of_torch(x: Any) -> torch.Tensor:
    return torch.from_numpy(x).clone()


def tagged(x: np.ndarray) -> torch.Tensor:
    return of_torch(x).as_subclass(Tagged)


def network(x: Any, y: Any) -> Any:
    return weft.network(THREE, (3, 4), (4, 3), (3, 3), dtype="float64")(x, y, EYE)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "contract": lambda x, y: weft.contract(EQUATION, x, y),
    "plan": lambda x, y: weft.plan(EQUATION, of_torch(A), of_torch(B))(x, y),
    "einsum": lambda x, y: weft.einsum(EQUATION, x, y),
    "einsum of three": lambda x, y: weft.einsum(THREE, x, y, EYE if isinstance(x, np.ndarray) else of_torch(EYE)),
    "network": network,
    "matmul": weft.matmul,
    "tensordot": lambda x, y: weft.tensordot(x, y, 1),
    "grouped": lambda x, y: weft.grouped(EQUATION, [(x, y)])[0],
}
PROMOTING = {
    "contract": lambda x, y: weft.contract(EQUATION, x, y, promote=True),
    "plan": lambda x, y: weft.plan(EQUATION, x, y, promote=True)(x, y),
    "einsum": lambda x, y: weft.einsum(EQUATION, x, y, promote=True),
    "einsum of three": lambda x, y: weft.einsum(THREE, x, y, EYE, promote=True),
    "matmul": lambda x, y: weft.matmul(x, y, promote=True),
    "permute": lambda x, y: weft.permute(x, "ij->ji", promote=True).T @ y,
}


@pytest.mark.parametrize("call", CALLS)
class TestMasked:
    def test_arrays(self, call: str) -> None:
        with pytest.raises(weft.UnsupportedError, match="masked array, whose masked elements would count"):
            CALLS[call](np.ma.masked_array(A, mask=A > 5), B)

    def test_tensors(self, call: str) -> None:
        from torch.masked import masked_tensor

        with pytest.raises(weft.UnsupportedError, match="masked tensor"):
            CALLS[call](masked_tensor(of_torch(A), of_torch(A) > 5), of_torch(B))


def test_masked_lists_scalars_and_addends() -> None:
    rows = [np.ma.masked_array(row, mask=row > 5) for row in A]
    for call in (
        lambda: weft.einsum(EQUATION, rows, B, promote=True),
        lambda: weft.einsum(",ij->ij", np.ma.masked, A),
        lambda: weft.contract(EQUATION, A, B, c=np.ma.masked_array(PRODUCT)),
        lambda: weft.contract(EQUATION, A, B, out=np.ma.masked_array(PRODUCT)),
    ):
        with pytest.raises(weft.UnsupportedError, match="masked array"):
            call()


@pytest.mark.parametrize("call", [name for name in CALLS if name != "grouped"])
class TestSubclasses:
    @pytest.mark.parametrize("which", [0, 1])
    def test_kept(self, call: str, which: int) -> None:
        for _ in range(2):  # the second call may be a known one
            operands = [tagged(x) if at == which else of_torch(x) for at, x in enumerate((A, B))]
            found = CALLS[call](*operands)
            assert type(found) is type(torch.einsum(EQUATION, *operands)) is Tagged
            assert np.array_equal(found.numpy(), PRODUCT)

    def test_with_a_gradient(self, call: str) -> None:
        for _ in range(2):
            x = tagged(A).requires_grad_()
            found = CALLS[call](x, of_torch(B))
            assert type(found) is Tagged
            found.sum().backward()
            assert x.grad is not None

    def test_parameters_are_plain(self, call: str) -> None:
        assert type(CALLS[call](torch.nn.Parameter(of_torch(A)), of_torch(B))) is torch.Tensor


class Standard:
    """An array as the array API standard has it, and its namespace."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> type[Standard]:
        return Standard

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.array

    asarray = classmethod(lambda cls, array: cls(array))
    from_dlpack = classmethod(lambda cls, array: cls(np.from_dlpack(array)))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("library", ["array_api_strict", "a stand-in"])
def test_array_api_in_kind(library: str, call: str) -> None:
    namespace: Any = Standard if library == "a stand-in" else pytest.importorskip(library)
    x, y = namespace.asarray(A), namespace.asarray(B)
    if call == "einsum of three":
        found = weft.einsum(THREE, x, y, namespace.asarray(EYE))
    else:
        found = CALLS[call](x, y)
    assert type(found) is type(x)
    assert np.array_equal(np.asarray(found), PRODUCT)


@pytest.mark.parametrize("call", CALLS)
def test_an_array_beside_a_gradient(call: str) -> None:
    y = of_torch(B).requires_grad_()
    found = weft.einsum(THREE, A, y, EYE) if call == "einsum of three" else CALLS[call](A, y)
    found.sum().backward()
    assert np.allclose(y.grad.numpy(), np.broadcast_to(A.sum(0)[:, None], (4, 3)))  # type: ignore[union-attr]


STRANGE = {
    "foreign bytes": A.astype(">f8"),
    "columns backwards": np.ascontiguousarray(A[:, ::-1])[:, ::-1],
    "rows backwards": np.ascontiguousarray(A[::-1])[::-1],
    "between bytes": np.ndarray(A.shape, "f8", np.zeros(400, "i1"), 0, (33, 8)),
    "foreign and backwards": np.ascontiguousarray(A[::-1]).astype(">f8")[::-1],
}
STRANGE["between bytes"][:] = A


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("call", PROMOTING)
def test_promote_copies_what_torch_cannot_hold(call: str, kind: str) -> None:
    assert np.array_equal(PROMOTING[call](STRANGE[kind], B), PRODUCT)


@pytest.mark.parametrize("kind", STRANGE)
def test_without_promote_they_are_refused(kind: str) -> None:
    with pytest.raises(weft.WeftError, match="promote=True"):
        weft.einsum(EQUATION, STRANGE[kind], B)


@pytest.mark.parametrize("kind", [*STRANGE, "a list"])
def test_promote_is_not_named_where_it_does_not_copy(kind: str) -> None:
    strange = [[1.0] * 3] * 2 if kind == "a list" else STRANGE[kind]
    pairs, terms = [(strange, B)], [(None, None, strange)]
    for call in (
        lambda: weft.einsum(EQUATION, A, B, out=strange, promote=True),
        lambda: weft.contract(EQUATION, A, B, operands={"x": ("ik", strange)}, epilogue=torch.add, promote=True),
        lambda: weft.grouped(EQUATION, pairs),
        lambda: weft.operator_sum(terms, np.ones((2, 2, 2))),
        lambda: weft.blocks.BlockTensor({(0, 0): strange}),
    ):
        with pytest.raises(weft.WeftError, match=r"torch cannot hold|torch does not take|speaks DLPack") as caught:
            call()
        assert "promote" not in str(caught.value)


def test_steps_that_are_never_made() -> None:
    """A negative stride along an extent of 1 or 0 means nothing."""
    for x in (A[:1][::-1], np.ascontiguousarray(A[:1][::-1]), A[:0][::-1], A[:, :1][:, ::-1], A[:1, :1][::-1, ::-1]):
        assert np.array_equal(weft.einsum("ij,kj->ik", x, x), x @ x.T)
    out = np.zeros((1, 3))[::-1]
    assert weft.einsum(EQUATION, A[:1], B, out=out) is out
    assert np.array_equal(out, PRODUCT[:1])


def test_long_integers() -> None:
    assert np.array_equal(weft.einsum(",ij->ij", 2**70, A), 2.0**70 * A)
    assert weft.einsum(",ij->ij", -(2**70), A.astype("f4")).dtype == np.float32
    assert np.array_equal(weft.contract(EQUATION, A, B, alpha=2**70), 2.0**70 * PRODUCT)
    with pytest.raises(weft.DTypeError, match="401 digits, which float64 does not hold"):
        weft.einsum(",ij->ij", 10**400, A)
    for call in (lambda: weft.einsum(",i->i", 2**70, np.arange(3)), lambda: weft.einsum(",->", 2**70, 3)):
        with pytest.raises(weft.DTypeError, match="which int64 does not hold"):
            call()


@pytest.mark.parametrize(
    "optimize", [True, False, None, "optimal", "greedy", ["einsum_path", (0, 1), (0, 1)], [[1, 2], [0, 1]],
                 ("greedy", 1000), [(0, 1, 2)]], ids=str
)  # fmt: skip
def test_orders_as_others_type_them(optimize: Any) -> None:
    for _ in range(2):  # the second call is a known one
        assert np.allclose(weft.einsum(THREE, A, B, EYE, optimize=optimize), PRODUCT)
    assert np.allclose(weft.einsum(EQUATION, A, B, optimize=optimize), PRODUCT)
    assert np.allclose(weft.einsum("ij->ji", A, optimize=optimize), A.T)


@pytest.mark.parametrize(
    ("optimize", "said"), [(3, "is no word"), ("no such", "known to neither"), ([3], "is no word")]
)
def test_orders_that_are_none(optimize: Any, said: str) -> None:
    with pytest.raises(weft.ArgumentError, match=said):
        weft.einsum(THREE, A, B, EYE, optimize=optimize)


class Logged(torch.Tensor):
    """A subclass with a `__torch_function__` of its own, as torch's manual writes it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_that_hear_of_operations_are_kept() -> None:
    x, y = torch.randn(3, 4).as_subclass(Logged), torch.randn(4, 5)
    for _ in range(12):
        assert type(weft.einsum("ab,bc->ac", x, y)) is type(torch.einsum("ab,bc->ac", x, y)) is Logged


def test_results_without_modes_are_numpys_scalars() -> None:
    found = kept = weft.einsum("ij,ij->", np.ones((2, 3)), np.ones((2, 3)))
    assert type(found) is np.float64
    found += 1
    assert (kept, found) == (6, 7)


def test_what_weft_does_not_take_is_said() -> None:
    with pytest.raises(weft.UnsupportedError, match="lazy layer"):
        weft.einsum("ab,cb->ac", torch.randn(3, 4), torch.nn.LazyLinear(3).weight)
    with pytest.raises(weft.UnsupportedError, match="functionalize"):
        torch.func.functionalize(lambda x: weft.contract("ab,bc->ac", x, torch.ones(4, 5)))(torch.ones(3, 4))
