"""The kinds of calls that `fuzz_calls` plays: beside contractions cascades, groups, permutations and JAX."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import weft
from fuzz_problems import (
    EPSILON,
    HALVES,
    ROUGH,
    TYPES,
    Function,
    Problem,
    Words,
    as_list,
    contraction,
    drawn_extents,
    functions_of,
    kept,
    many,
    mixed,
    shape_of,
    stored,
    wide,
)


def cascade(rng: random.Random, device: str) -> Problem:
    """Attention of many kinds, or rows of one contraction, by a call or a plan."""
    batch = "bh"[: rng.randint(0, 2)]
    extents = drawn_extents(rng, [*batch, *"qkde"], 3e4)
    dtype = rng.choice((torch.float16, torch.bfloat16, torch.float32, torch.float32, torch.float64))
    a, b, s, c, d = (mixed(rng, batch + own) for own in ("qd", "kd", "qk", "ke", "qe"))
    state = {"s": 0.7, "t": 0.3}
    meets, causal, planned = rng.random() < 0.7, rng.random() < 0.4, rng.random() < 0.3
    softly = rng.random() < 0.6
    pointwise = rng.choice(list(functions_of(state, True).values()))
    indices = {"indices": {"i": "q", "j": "k"}} if causal else {}
    at = s.index("k")

    def between(value: Tensor, i: Any = None, j: Any = None) -> Any:
        value = pointwise(value)
        if causal:
            value = torch.where(j <= i, value, -math.inf if softly or not meets else 0.0)
        if not meets:
            return weft.logsumexp(value, "k")
        return weft.softmax(value, "k") if softly else value

    def same(value: Tensor) -> Tensor:
        value = pointwise(value)
        if causal:
            q, k = (torch.arange(extents[label], device=device).reshape([-1 if label == own else 1 for own in s])
                    for label in "qk")  # fmt: skip
            value = torch.where(k <= q, value, -math.inf if softly or not meets else 0.0)
        if not meets:
            return torch.logsumexp(value, at)
        return torch.softmax(value, at) if softly else value

    plans: list[Any] = []
    equation = f"{a},{b}->{s}, {s},{c}->{d}" if meets else f"{a},{b}->{s}"
    if causal:
        function: Function = between
    else:
        function = lambda value: between(value)  # noqa: E731

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        if not planned:
            return as_list(weft.cascade(equation, *x, between=function, **indices))
        given = [each.detach() for each in x]
        return as_list(kept(plans, lambda: weft.plan_cascade(equation, *given, between=function, **indices))(*x))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        scores = torch.einsum(f"{a},{b}->{s}", *x[:2])
        largest = torch.einsum(f"{a},{b}->{s}", *[each.detach().abs() for each in x[:2]]).amax()
        off = EPSILON[dtype] * (4 * math.sqrt(extents["d"]) + 32) * (largest + 1) + ROUGH[dtype] * 8
        weights = same(scores)
        if not meets:
            return [weights], [(weights.detach().abs() + 2) * off]
        want = torch.einsum(f"{s},{c}->{d}", weights, x[2])
        sizes = weights.detach().abs() + (0.0 if softly else 1.0)
        size = torch.einsum(f"{s},{c}->{d}", sizes, x[2].detach().abs())
        return [want], [stored(size * off * 2, want, dtype)]

    terms = (a, b, c) if meets else (a, b)
    told = f"{equation} {extents} {dtype} causal={causal} softmax={softly} plan={planned}"
    return Problem(
        "plan of a cascade" if planned else "cascade", told, dtype, [shape_of(term, extents) for term in terms],
        shape_of(d, extents), run, truth, state, has_gradients=dtype not in HALVES, plans=plans,
    )  # fmt: skip


# -- groups, permutations --------------------------------------------------------------------------------------------


def group(rng: random.Random, device: str) -> Problem:
    """Pairs of several extents, by a call or a plan."""
    count = rng.choice((1, 2, 3, 5, 9, 20, 40))
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    k, alike = rng.choice((1, 3, 8, 17)), rng.random() < 0.3
    m, n = rng.choice((1, 4, 9, 32)), rng.choice((1, 5, 16))
    rows = [m if alike else rng.choice((1, 2, 5, 8, 33)) for _ in range(count)]
    columns = [n if alike else rng.choice((1, 3, 7, 16)) for _ in range(count)]
    a, b, d = rng.choice(("mk", "km")), rng.choice(("kn", "nk")), rng.choice(("mn", "nm"))
    equation, planned, plans = f"{a},{b}->{d}", rng.random() < 0.3, []
    shapes = []
    for m, n in zip(rows, columns, strict=True):
        extents = {"m": m, "n": n, "k": k}
        shapes += [shape_of(a, extents), shape_of(b, extents)]

    def pairs(x: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(x[::2], x[1::2], strict=True))

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        if not planned:
            return as_list(weft.grouped(equation, pairs(x)))
        made = kept(plans, lambda: weft.plan_grouped(equation, pairs([each.detach() for each in x])))
        return list(made(pairs(x)))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        wanted = [torch.einsum(equation, *pair) for pair in pairs(x)]
        sizes = [torch.einsum(equation, left.detach().abs(), right.detach().abs()) for left, right in pairs(x)]
        room = EPSILON[dtype] * (4 * math.sqrt(k) + 16)
        return wanted, [stored(size * room, want, dtype) for size, want in zip(sizes, wanted, strict=True)]

    name = "plan of a group" if planned else "group"
    told = f"{equation} {count} pairs {dtype} alike={alike} {name}"
    gradients = not planned and dtype not in HALVES
    return Problem(name, told, dtype, shapes, (), run, truth, {}, has_gradients=gradients, plans=plans)


def permutation(rng: random.Random, device: str) -> Problem:
    """`weft.permute` with a function, or a plan of it."""
    labels = rng.sample("abcdef", rng.randint(1, 5))
    extents = drawn_extents(rng, labels, 1e5)
    x_term, d, dtype = mixed(rng, labels), mixed(rng, labels), rng.choice((*TYPES, torch.complex64))
    equation, state, plans = f"{x_term}->{d}", {"s": 0.7, "t": 0.3}, []
    known = [] if dtype.is_complex else list(functions_of(state, dtype in HALVES).values())
    function = rng.choice(known) if known and rng.random() < 0.5 else None
    options = {} if function is None else {"fn": function}
    planned = rng.random() < 0.3

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        if not planned:
            return as_list(weft.permute(x[0], equation, **options, **words.given()))
        made = kept(plans, lambda: weft.plan_permute(x[0].detach(), equation, **options))
        return as_list(made(*x, **words.given()))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        seen = x[0] if function is None else wide(function(x[0] if dtype not in HALVES else x[0].float()))
        want = torch.einsum(equation, seen) * words.alpha
        size = torch.einsum(equation, seen.detach().abs() + (function is not None)) * abs(words.alpha)
        if words.c is not None:
            want, size = want + words.beta * wide(words.c), size + words.c.abs().double()
        rough = 0.0 if function is None else ROUGH[dtype]
        return [want], [stored(size * (EPSILON[dtype] * 16 + rough), want, dtype)]

    name = "plan of a permutation" if planned else "permutation"
    told = f"{equation} {extents} {dtype} function={function is not None} {name}"
    takes = frozenset(("new", "out") if dtype.is_complex else ("new", "out", "c", "alpha"))
    gradients = not planned and not dtype.is_complex
    shapes, result = [shape_of(x_term, extents)], shape_of(d, extents)
    return Problem(name, told, dtype, shapes, result, run, truth, state, takes, gradients, plans)


# -- JAX -------------------------------------------------------------------------------------------------------------


def in_jax(rng: random.Random, device: str) -> Problem:
    """A compiled function of arrays of JAX, which is kept: a contraction, or an einsum or a network of three."""
    import jax
    import weft.jax

    way = rng.choice(("contract", "einsum", "network"))
    extents = {label: rng.choice((1, 3, 4, 8, 17)) for label in "abcd"}
    terms = [mixed(rng, term) for term in (("ab", "bc") if way == "contract" else ("ab", "bc", "cd"))]
    d = mixed(rng, "ac" if way == "contract" else "ad")
    equation = f"{','.join(terms)}->{d}"
    if way == "contract":
        compiled = jax.jit(lambda *x: weft.jax.contract(equation, *x, epilogue=lambda v: v * 0.5 + 1.0))
    else:
        compiled = jax.jit(lambda *x: getattr(weft.jax, way)(equation, *x))

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        found = compiled(*[jax.numpy.asarray(each.resolve_neg().contiguous().numpy()) for each in x])
        return [torch.from_numpy(jax.numpy.array(found).__array__().copy())]

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        want, size = torch.einsum(equation, *x), torch.einsum(equation, *[each.abs() for each in x])
        return [want * 0.5 + 1.0 if way == "contract" else want], [size * 2**-17 + 2**-20]

    told = f"{equation} {extents} {way}"
    shapes = [shape_of(term, extents) for term in terms]
    name = f"jax.{way}"
    return Problem(name, told, torch.float32, shapes, shape_of(d, extents), run, truth, {}, has_gradients=False)


KINDS: dict[str, Callable[[random.Random, str], Problem]] = {
    "contraction": contraction, "contraction again": contraction, "many": many, "cascade": cascade, "group": group,
    "permutation": permutation, "jax": in_jax,
}  # fmt: skip


def kinds_on(device: str) -> list[str]:
    """The kinds that are played on a device: JAX is where it is installed, on the CPU."""
    with_jax = device == "cpu" and find_spec("jax") is not None
    return [kind for kind in KINDS if kind != "jax" or with_jax]
