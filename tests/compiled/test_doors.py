"""Each kind of call in compiled code: an operation of the graph, or made between graphs; under transforms, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import grad, jacrev, jvp, vmap

import weft

X, W, V = torch.randn(3, 5, 6), torch.randn(6, 7), torch.randn(7, 3)
KEYS, VALUES = torch.randn(9, 6), torch.randn(9, 4)
CASCADE = "id,jd->ij, ij,je->ie"
PLAN, MOVE = weft.plan("mk,kn->mn", X[0], W), weft.plan_permute("ab->ba", X[0])
CASCADE_PLAN = weft.plan_cascade(CASCADE, X[0], KEYS, VALUES, between=torch.relu)
NETWORK = weft.network("ab,bc,cd->ad", X[0], W, V)

#: Calls that are operations of one graph.
WITHIN: dict[str, Callable[[torch.Tensor], Any]] = {
    "contract": lambda x: weft.contract("mk,kn->mn", x, W, epilogue=torch.tanh),
    "algebra": lambda x: weft.contract("mk,kn->mn", x, W, algebra="max_plus"),
    "einsum": lambda x: weft.einsum("mk,kn,np->mp", x, W, V),
    "einsum of one": lambda x: weft.einsum("mk->k", x),
    "matmul": lambda x: weft.matmul(x, W, epilogue=torch.tanh),
    "tensordot": lambda x: weft.tensordot(x, W, ((-1,), (0,)), epilogue=torch.tanh),
    "inner": lambda x: weft.inner(x, W.mT),
    "outer": lambda x: weft.outer(x, W),
    "trace": lambda x: weft.trace(x),
    "transpose": lambda x: weft.transpose(x) * 2,
    "permute": lambda x: weft.permute("ab->ba", x, fn=torch.exp),
    "plan": lambda x: PLAN(x, W),
    "permutation plan": lambda x: MOVE(x),
    "cascade": lambda x: weft.cascade(CASCADE, x, KEYS, VALUES, between=torch.relu),
}
#: Calls between graphs.
BETWEEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "reduce": lambda x: weft.contract("mk,kn->mn", x, W, reduce={"peak": ("m", "max")})[1]["peak"],
    "ragged": lambda x: weft.contract("bjd,bde->bje", x, W.expand(2, 6, 7), ragged={"j": [0, 2, 5]}),
    "kept network": lambda x: NETWORK(x, W, V),
    "network": lambda x: weft.network("ab,bc,cd->ad", x, W, V)(x, W, V),
    "kept plan of a cascade": lambda x: CASCADE_PLAN(x, KEYS, VALUES),
    "grouped": lambda x: weft.grouped("ab,bc->ac", [(x, W), (x, W)])[0],
    "chain": lambda x: weft.chain("pq,bqc,cr->bpr", x, W[None], V),
}  # fmt: skip
TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], Any]], Callable[[torch.Tensor], Any]]] = {
    "vmap": vmap,
    "grad": lambda call: lambda x: grad(lambda one: call(one).sum())(x[0]),
    "vmap of grad": lambda call: vmap(grad(lambda one: call(one).sum())),
    "jvp": lambda call: lambda x: jvp(call, (x[0],), (x[1],)),
    "jacrev": lambda call: lambda x: jacrev(call)(x[0]),
}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def compiled(call: Callable[..., Any], whole: bool) -> Callable[..., Any]:
    return torch.compile(call, backend="aot_eager", fullgraph=whole)


@pytest.mark.parametrize("name", [*WITHIN, *BETWEEN])
def test_a_call_means_the_same(name: str) -> None:
    call = WITHIN.get(name) or BETWEEN[name]
    made, expected = compiled(call, name in WITHIN), call(X[0])
    for _ in range(3):
        torch.testing.assert_close(made(X[0]), expected)


@pytest.mark.parametrize("name", BETWEEN)
def test_one_graph_is_refused_in_words_of_weft(name: str) -> None:
    with pytest.raises(Exception, match="weft: outside of compiled code plans are made"):
        compiled(BETWEEN[name], True)(X[0])


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("name", [name for name in WITHIN if name not in ("transpose", "outer", "trace")])
@pytest.mark.one_of(3)
def test_a_transform_within_is_that_outside(name: str, kind: str) -> None:
    call = TRANSFORMS[kind](WITHIN[name])
    if (name, kind) == ("cascade", "jvp"):
        with pytest.raises(Exception, match="a cascade has no forward mode"):
            compiled(call, True)(X)
        return
    made, expected = compiled(call, True), call(X)
    for _ in range(2):
        torch.testing.assert_close(made(X), expected)
