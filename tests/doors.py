"""Every public call as a function of a few small tensors: the doors of `test_doors_and_events.py`.

Operands are whole numbers in float32 and functions exact on them, so that all ways to make a result agree in bits;
doors whose functions are not say so. A door is made anew for every cell, its plan with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import weft

N = 6
SQUARE = (N, N)
factor = 2.0  # read by a fused function: the tests change it


class Scene:
    """The device of a cell, and what its functions read: a closure's list, an attribute, a module."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.box = [0.5]
        self.held = SimpleNamespace(shift=1.0)
        self.module = torch.nn.LeakyReLU(0.5)
        self.algebra = product_sum(1.0)
        self.parameters: list[Tensor] = []
        self.stack = ExitStack()
        globals()["factor"] = 2.0

    def numbers(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(math.prod(shape) + 100 * seed)
        return torch.randint(-3, 4, shape, generator=generator).float().to(self.device)

    def pointwise(self) -> Callable[[Tensor], Tensor]:
        box, held, module = self.box, self.held, self.module
        return lambda value: module(value) * factor * box[0] + held.shift

    def with_row(self) -> Callable[[Tensor, Tensor], Tensor]:
        plain = self.pointwise()
        return lambda value, row: plain(value + row)

    def layer(self, layer: torch.nn.Module) -> torch.nn.Module:
        """A module whose parameters are whole numbers; of one that is made anew, those that the last one has by now."""
        layer = layer.to(self.device)
        made = list(layer.parameters())
        with torch.no_grad():
            for at, each in enumerate(made):
                each.copy_(self.parameters[at] if self.parameters else self.numbers(*each.shape, seed=at))
        self.parameters = made
        return layer


def change_global() -> None:
    globals()["factor"] = 4.0


def product_sum(scale: float) -> weft.Algebra:
    """Plus-times as an algebra of its own, whose gradient is `scale` times the right one."""

    def vjp(x: Tensor, y: Tensor, total: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        return scale * grad * y, scale * grad * x

    return weft.Algebra(lambda x, y: x * y, lambda x, y: x + y, 0, "product_sum", vjp=vjp)


Call = Callable[..., Any]


class Door(NamedTuple):
    """`make` gives the call, of operands of these shapes; `traits`: what events need of it."""

    operands: tuple[tuple[int, ...], ...]
    make: Callable[[Scene], Call]
    traits: frozenset[str] = frozenset()
    exact: bool = True


DOORS: dict[str, Door] = {}


def door(
    name: str, *operands: tuple[int, ...], traits: str = "", exact: bool = True
) -> Callable[[Callable[[Scene], Call]], Callable[[Scene], Call]]:
    def add(make: Callable[[Scene], Call]) -> Callable[[Scene], Call]:
        DOORS[name] = Door(operands or (SQUARE, SQUARE), make, frozenset(traits.split()), exact)
        return make

    return add


def simple(name: str, call: Call, *operands: tuple[int, ...], traits: str = "", exact: bool = True) -> None:
    """A door that needs nothing of its scene."""
    door(name, *operands, traits=traits, exact=exact)(lambda _: call)


E = "mk,kn->mn"
THREE, FOUR = (SQUARE,) * 3, (SQUARE,) * 4
IN_THREE, IN_FOUR = "ab,bc,cd->ad", "ab,bc,cd,de->ae"

simple("contract", lambda a, b, **k: weft.contract(E, a, b, **k), traits="out")
simple("contract into out", lambda a, b: weft.contract(E, a, b, out=torch.empty_like(a)))
simple(
    "contract plus C", lambda a, b, c, **k: weft.contract(E, a, b, c=c, alpha=2.0, beta=0.5, **k), *THREE, traits="out"
)
simple("a sum over rows", lambda a, b: weft.contract("mk,kn->n", a, b))
simple("a batch", lambda a, b: weft.contract("bmk,bkn->bmn", a, b), (3, 5, N), (3, N, 4))
simple("log", lambda a, b: weft.contract(E, a, b, algebra="log"), exact=False)
simple("return_arg", lambda a, b: weft.contract(E, a, b, algebra="max_plus", return_arg=True))
simple("reduce", lambda a, b: weft.contract(E, a, b, reduce={"rows": ("m", "plus_times")}))
simple("ragged", lambda a, b: weft.contract("bjd,bde->bje", a, b, ragged={"j": [0, 2, 3, N]}), SQUARE, (3, N, 4))
simple("einsum of two", lambda a, b, **k: weft.einsum(E, a, b, **k), traits="out")
simple("einsum of four", lambda *x, **k: weft.einsum(IN_FOUR, *x, **k), *FOUR, traits="out")
simple("matmul", lambda a, b, **k: weft.matmul(a, b, **k), traits="out")
simple("tensordot", lambda a, b, **k: weft.tensordot(a, b, axes=1, **k), traits="out")
simple("permute", lambda a, **k: weft.permute(a, "mn->nm", **k), SQUARE, traits="out")
simple("transpose_", lambda a: weft.transpose_(a.clone()), SQUARE, traits="copies")
simple("grouped", lambda a, b, c: weft.grouped(E, [(a, b), (c, b), (a, c)]), *THREE)
simple("grouped, unlike", lambda a, b, c: weft.grouped(E, [(a, b), (c, b)]), SQUARE, SQUARE, (4, N))
simple("grouped, larger", lambda a, b, c: weft.grouped(E, [(a, b), (c, b)]), *((64, 64),) * 3)
simple("chain", lambda a, b, c, **k: weft.chain("pq,qc,cr->pr", a, b, c, **k), *THREE, traits="out")


@door("contract with functions", SQUARE, SQUARE, (N,), traits="functions out")
def _(scene: Scene) -> Call:
    function = scene.with_row()
    return lambda a, b, row, **k: weft.contract(E, a, b, epilogue=function, operands={"row": ("n", row)}, **k)


@door("contract, functions of operands", traits="functions")
def _(scene: Scene) -> Call:
    function = scene.pointwise()
    return lambda a, b: weft.contract(E, a, b, a_fn=function, b_fn=torch.relu)


@door("contract of larger tensors", (48, 40), (40, 56), traits="functions")
def _(scene: Scene) -> Call:
    function = scene.pointwise()
    return lambda a, b: weft.contract("mk,kn->nm", a, b, epilogue=function)


@door("an algebra of one's own", traits="algebra")
def _(scene: Scene) -> Call:
    return lambda a, b: weft.contract(E, a, b, algebra=scene.algebra)


@door("einsum of three in an algebra", *THREE, traits="algebra")
def _(scene: Scene) -> Call:
    return lambda *x: weft.einsum(IN_THREE, *x, algebra=scene.algebra)


@door("permute with a function", SQUARE, traits="functions")
def _(scene: Scene) -> Call:
    function = scene.pointwise()
    return lambda a: weft.permute(a, "mn->nm", fn=function)


@door("a plan", traits="plan out")
def _(scene: Scene) -> Call:
    plan = weft.plan(E, scene.numbers(*SQUARE), scene.numbers(*SQUARE))
    return lambda a, b, **k: plan(a, b, **k)


@door("a plan with functions", traits="plan functions out")
def _(scene: Scene) -> Call:
    plan = weft.plan(E, scene.numbers(*SQUARE), scene.numbers(*SQUARE), epilogue=scene.pointwise())
    return lambda a, b, **k: plan(a, b, **k)


@door("a bound call", traits="plan bound")
def _(scene: Scene) -> Call:
    a, b = scene.numbers(*SQUARE), scene.numbers(*SQUARE)
    bound = weft.plan(E, a, b).bind(a, b)

    def call(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            a.copy_(x)
            b.copy_(y)
        return bound().clone()

    return call


@door("a plan of a permutation", SQUARE, traits="plan out")
def _(scene: Scene) -> Call:
    plan = weft.plan_permute(scene.numbers(*SQUARE), "mn->nm")
    return lambda a, **k: plan(a, **k)


@door("a network", *FOUR, traits="plan out")
def _(scene: Scene) -> Call:
    net = weft.network(IN_FOUR, *[scene.numbers(*SQUARE) for _ in range(4)])
    return lambda *x, **k: net(*x, **k)


@door("a network with functions", *THREE, traits="plan functions")
def _(scene: Scene) -> Call:
    function = scene.pointwise()
    net = weft.network(IN_THREE, *[scene.numbers(*SQUARE)] * 3, optimize=[(0, 1), (0, 1)], functions={"ac": function})
    return lambda *x: net(*x)


@door("a network that reuses", *THREE, traits="plan reuse")
def _(scene: Scene) -> Call:
    net = weft.network(IN_THREE, *[scene.numbers(*SQUARE)] * 3, reuse=True)
    return lambda *x: net(*x)


@door("a network with an exponent", *THREE, traits="plan exponent")
def _(scene: Scene) -> Call:
    net = weft.network(IN_THREE, *[scene.numbers(*SQUARE)] * 3, strip_exponent=True)
    return lambda *x: net(*x)


@door("a network of constants", SQUARE, traits="plan constants")
def _(scene: Scene) -> Call:
    a, b, c = (scene.numbers(*SQUARE, seed=at) for at in range(3))
    net = weft.network(IN_THREE, a, b, c, constants=(1, 2))
    return lambda x: net(x)


def _weights(s: Tensor) -> Tensor:
    return weft.softmax(s, "j")


@door("a cascade", *THREE, exact=False)
def _(scene: Scene) -> Call:
    return lambda a, b, c: weft.cascade("id,jd->ij, ij,je->ie", a, b, c, between=_weights)


@door("a cascade with functions", *THREE, traits="functions", exact=False)
def _(scene: Scene) -> Call:
    function = scene.pointwise()
    return lambda a, b, c: weft.cascade("id,jd->ij, ij,je->ie", a, b, c, between=lambda s: _weights(function(s)))


@door("a plan of a cascade", *THREE, traits="plan", exact=False)
def _(scene: Scene) -> Call:
    plan = weft.plan_cascade("id,jd->ij, ij,je->ie", *[scene.numbers(*SQUARE)] * 3, between=_weights)
    return lambda a, b, c: plan(a, b, c)


@door("a plan of a group", traits="plan")
def _(scene: Scene) -> Call:
    plan = weft.plan_grouped(E, [(scene.numbers(*SQUARE), scene.numbers(*SQUARE)) for _ in range(2)])
    return lambda a, b: plan([(a, b), (b, a)])


@door("blocks")
def _(scene: Scene) -> Call:
    def call(a: Tensor, b: Tensor) -> Any:
        x, y = (weft.blocks.BlockTensor({(0, 0): each[:2, :2], (1, 1): each[2:, 2:]}) for each in (a, b))
        return weft.blocks.contract("ij,jk->ik", x, y).buffer

    return call


@door("charged blocks", (8,), (8,))
def _(scene: Scene) -> Call:
    leg = weft.blocks.Leg(weft.blocks.U1, {0: 2, 1: 2})

    def call(a: Tensor, b: Tensor) -> Any:
        x, y = (weft.blocks.ChargedTensor([leg, leg.dual], each) for each in (a, b))
        return weft.blocks.contract("ij,jk->ik", x, y).buffer

    return call


@door("a sum of operators", (N, 2, N), traits="plan")
def _(scene: Scene) -> Call:
    site, left = scene.numbers(2, 2), scene.numbers(N, N)
    operator = weft.OperatorSum([(None, site, None), (left, None, left)])
    return lambda state: operator(state)


@door("Linear", SQUARE, traits="parameters functions")
def _(scene: Scene) -> Call:
    return scene.layer(weft.nn.Linear(N, N, activation=scene.pointwise()))


@door("GatedLinear", SQUARE, traits="parameters", exact=False)
def _(scene: Scene) -> Call:
    return scene.layer(weft.nn.GatedLinear(N, N))


@door("Attention", (2, N, 8), traits="parameters", exact=False)
def _(scene: Scene) -> Call:
    return scene.layer(weft.nn.Attention(8, 2, causal=True))


@door("Einsum", SQUARE, traits="parameters functions")
def _(scene: Scene) -> Call:
    return scene.layer(weft.nn.Einsum("mk,kn->mn", SQUARE, bias="n", activation=scene.pointwise()))


@door("contract_tree", *THREE)
def _(scene: Scene) -> Call:
    ctg = pytest.importorskip("cotengra")
    path = [(0, 1), (0, 1)]
    tree = ctg.ContractionTree.from_path(["ab", "bc", "cd"], "ad", dict.fromkeys("abcd", N), path=path)
    return lambda *x: weft.hooks.contract_tree(tree, x)


@door("over one rank", traits="ranks")
def _(scene: Scene) -> Call:
    dist, kind = torch.distributed, "gloo" if scene.device == "cpu" else "nccl"
    if not dist.is_initialized():
        dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)
        scene.stack.callback(dist.destroy_process_group)
    return lambda a, b: weft.distributed.contract(E, a, b, placements={"a": "k", "b": "k"})


@door("a sweep", (1, 2, 2), (2, 2, 2), (2, 2, 1), traits="alone copies", exact=False)
def _(scene: Scene) -> Call:
    chain = weft.tn.ising(3)

    def call(*tensors: Tensor) -> Any:
        found = weft.tn.dmrg(chain, weft.tn.MPS([each.double() for each in tensors]), max_bond=2, sweeps=1)
        return torch.tensor(found.energy, dtype=torch.float64)

    return call


@door("jax", traits="jax signals")
def _(scene: Scene) -> Call:
    jax = pytest.importorskip("jax")
    import weft.jax

    compiled = jax.jit(lambda a, b: weft.jax.contract(E, a, b, epilogue=lambda v: v * 2.0))
    return lambda a, b: torch.from_numpy(jax.numpy.array(compiled(a.numpy(), b.numpy())).__array__().copy())
