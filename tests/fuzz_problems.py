"""Random contractions for `fuzz_calls`, of two operands and of many: each with its truth in float64, and its bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import weft

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100)
EPSILON = {
    torch.float16: 2**-20, torch.bfloat16: 2**-20, torch.float32: 2**-23, torch.float64: 2**-52,
    torch.complex64: 2**-22,
}  # of sums  # fmt: skip
ROUGH = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 2**-19, torch.float64: 2**-46}  # of functions
HALVES = {torch.float16: 2**-9, torch.bfloat16: 2**-6}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.float64)
Function = Callable[..., Any]


def wide(value: Any) -> Any:
    """A tensor in double precision, or the type that a type is then."""
    if isinstance(value, torch.dtype):
        return torch.complex128 if value.is_complex else torch.float64
    return value.to(wide(value.dtype))


@dataclass
class Words:
    """What a call says besides its operands."""

    alpha: float = 1.0
    beta: float = 1.0
    c: Tensor | None = None
    out: Tensor | None = None

    def given(self) -> dict[str, Any]:
        said = {"alpha": self.alpha} if self.alpha != 1 else {}
        if self.c is not None:
            said |= {"c": self.out if self.out is not None else self.c, "beta": self.beta}
        return said | ({} if self.out is None else {"out": self.out})

    def __str__(self) -> str:
        return f"alpha={self.alpha} beta={self.beta} c={self.c is not None} out={self.out is not None}"


@dataclass
class Problem:
    """A call: `run` makes it, `truth` gives its results in double precision and how far they may be off."""

    name: str
    text: str
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]
    result: tuple[int, ...]
    run: Callable[[list[Tensor], Words], list[Tensor]]
    truth: Callable[[list[Tensor], Words], tuple[list[Tensor], list[Any]]]
    state: dict[str, float]
    takes: frozenset[str] = frozenset(("new",))
    has_gradients: bool = True
    plans: list[Any] = field(default_factory=list)  # the plan that calls go by, once it is made

    def renew(self) -> None:
        """Layouts are others: what was planned for them is planned anew."""
        self.plans.clear()


def as_list(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def kept(plans: list[Any], make: Callable[[], Any]) -> Any:
    if not plans:
        plans.append(make())
    return plans[0]


def functions_of(state: dict[str, float], smooth: bool) -> dict[str, Function]:
    """Functions of one value, some of them of what a closure holds."""
    found: dict[str, Function] = {
        "tanh": torch.tanh,
        "affine": lambda v: v * 0.5 + 1.0,
        "closure": lambda v: v * state["s"] + state["t"],
        "sigmoid": lambda v: torch.sigmoid(v) * state["s"],
        "detached": lambda v: v - v.detach() * 0.5,
    }
    if not smooth:  # their gradients jump, and halves are rounded to other sides
        found |= {
            "relu": torch.relu,
            "elu": torch.nn.functional.elu,
            "leaky": lambda v: torch.where(v > 0, v, 0.1 * v),
            "clamp": lambda v: v.clamp(-state["s"], 2.0),
        }
    return found


def drawn_extents(rng: random.Random, labels: Sequence[str], most: float) -> dict[str, int]:
    extents = {label: rng.choice(EXTENTS) for label in labels}
    while math.prod(extents.values()) > most:
        longest = max(extents, key=extents.__getitem__)
        extents[longest] //= 2
    return extents


def shape_of(term: str, extents: dict[str, int]) -> tuple[int, ...]:
    return tuple([extents[label] for label in term])


def mixed(rng: random.Random, labels: Sequence[str]) -> str:
    return "".join(rng.sample(list(labels), len(labels)))


def seen_as(function: Function | None, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A function of an operand, whose values are rounded to the operand's type; the gradient passes by that."""
    if function is None:
        return x
    value = wide(function(x if dtype in (torch.float32, torch.float64) else x.float()))
    return value + (wide(value.detach().to(dtype)) - value.detach()) if dtype in HALVES else value


# -- two operands ----------------------------------------------------------------------------------------------------


def contraction(rng: random.Random, device: str) -> Problem:
    """`weft.contract` or a plan: roles of modes, functions, a bias, an algebra, a precision."""
    labels = rng.sample("abcdefgh", rng.randint(2, 6))
    role = {label: rng.choice("mmnnkkkb") for label in labels}
    extents = drawn_extents(rng, labels, rng.choice((3e3, 3e4, 1e5) if device == "cpu" else (3e3, 3e4, 3e5, 3e6)))
    a, b, d = (mixed(rng, [label for label in labels if role[label] in roles]) for roles in ("mkb", "nkb", "mnb"))
    equation = f"{a},{b}->{d}"
    dtype = rng.choice((*TYPES, torch.complex64) if rng.random() < 0.3 else TYPES)
    state = {"s": 0.7, "t": 0.3}
    functions = {} if dtype.is_complex else drawn_functions(rng, state, dtype in HALVES)
    bias = rng.choice(d) if d and not dtype.is_complex and "epilogue" not in functions and rng.random() < 0.25 else None
    algebra = None
    if dtype in (torch.float32, torch.float64) and bias is None and rng.random() < 0.12:
        algebra = rng.choice(("max_plus", "min_plus", "log"))
    precision = rng.choice((None, None, "ieee_bound", "tf32x3")) if dtype is torch.float32 and not algebra else None
    options: dict[str, Any] = dict(functions)
    options |= {} if algebra is None else {"algebra": algebra}
    options |= {} if precision is None else {"precision": precision}
    options |= {} if bias is None else {"epilogue": lambda v, w: v + w}
    planned, specialize = rng.random() < 0.3, rng.choice(("auto", "now", "never", "library"))
    vector = None if bias is None else torch.randn(extents[bias], device=device).to(dtype)
    beside = {} if bias is None else {"operands": {"w": (bias, vector)}}
    plans: list[Any] = []

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        if not planned:
            return as_list(weft.contract(equation, *x, **options, **beside, **words.given()))
        with torch.no_grad():
            made = kept(plans, lambda: weft.plan(
                equation, *[each.detach() for each in x], **options, **beside, specialize=specialize
            ))  # fmt: skip
        named = {name: tensor for name, (_, tensor) in beside.get("operands", {}).items()}
        return as_list(made(*x, **words.given(), operands=named or None))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        seen = [seen_as(functions.get(name), each, dtype) for name, each in zip(("a_fn", "b_fn"), x, strict=True)]
        sizes = [each.detach().abs() for each in seen]
        if algebra is None:
            want = torch.einsum(equation, *seen) * words.alpha
            size = torch.einsum(equation, *sizes) * abs(words.alpha)
        else:
            want = in_algebra(algebra, equation, *seen)
            size = want.detach().abs() + 10
        if words.c is not None:
            want, size = want + words.beta * wide(words.c), size + words.c.abs().double()
        longest = math.prod(extents[label] for label in labels if label not in d)
        bound = size * EPSILON[dtype] * (4 * math.sqrt(longest) + 16)
        if algebra is not None:
            bound = bound + size * ROUGH[dtype]
        elif functions.keys() & {"a_fn", "b_fn"}:
            both = [each + other.detach().abs() + 1 for each, other in zip(sizes, x, strict=True)]
            bound = bound + torch.einsum(equation, *both) * abs(words.alpha) * ROUGH[dtype]
        if bias is not None and vector is not None:
            want = want + wide(vector).reshape([-1 if label == bias else 1 for label in d])
            bound = bound + EPSILON[dtype] * (8 + 8 * vector.abs().max().double())
        if (epilogue := functions.get("epilogue")) is not None:
            want = epilogue(want)
            bound = 2 * bound + (want.detach().abs() + 1) * (2**-46 if dtype is torch.float64 else 2**-20)
        return [want], [stored(bound, want, dtype)]

    told = f"{equation} {extents} {dtype} {sorted(functions)} {algebra} {precision} {bias} {planned and specialize}"
    takes = frozenset(("new", "out") if algebra or dtype.is_complex else ("new", "out", "c", "alpha"))
    parts = ("plan" if planned else "contract", algebra, functions and "of functions")
    name = " ".join(each for each in parts if each)
    shapes = [shape_of(a, extents), shape_of(b, extents)]
    gradients = not dtype.is_complex and algebra is None and not planned
    return Problem(name, told, dtype, shapes, shape_of(d, extents), run, truth, state, takes, gradients, plans)


def drawn_functions(rng: random.Random, state: dict[str, float], smooth: bool) -> dict[str, Function]:
    known = list(functions_of(state, smooth).values())
    return {name: rng.choice(known) for name in ("a_fn", "b_fn", "epilogue") if rng.random() < 0.6}


def stored(bound: Tensor, want: Tensor, dtype: torch.dtype) -> Tensor:
    """A bound, with the rounding of what is stored."""
    rounding = want.detach().abs() * HALVES[dtype] + 1e-5 if dtype in HALVES else 0.0
    return bound + rounding + 1e-30


def in_algebra(name: str, equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Sums of A and B, reduced: all of them at once."""
    terms, d = equation.split("->")
    of_a, of_b = terms.split(",")
    summed = [label for label in dict.fromkeys(of_a + of_b) if label not in d]
    order = [*d, *summed]

    def spread(x: Tensor, term: str) -> Tensor:
        own = [label for label in order if label in term]
        turned = x.permute([term.index(label) for label in own])
        sizes = iter(turned.shape)
        return turned.reshape([next(sizes) if label in term else 1 for label in order])

    pairs = spread(a, of_a) + spread(b, of_b)
    if not summed:
        return pairs
    dims = list(range(len(d), len(order)))
    reduce: dict[str, Function] = {"max_plus": torch.amax, "min_plus": torch.amin, "log": torch.logsumexp}
    return reduce[name](pairs, dims)


# -- many operands ---------------------------------------------------------------------------------------------------


def many(rng: random.Random, device: str) -> Problem:
    """`weft.einsum` of three to five operands, or a network that is kept."""
    count = rng.randint(3, 5)
    labels = "abcdefghij"[: count + rng.randint(1, 3)]
    extents = {label: rng.choice((1, 2, 3, 4, 5, 8)) for label in labels}
    terms = ["".join(rng.sample(labels, rng.randint(1, 3))) for _ in range(count)]
    used = [label for label in labels if any(label in term for term in terms)]
    d = "".join(rng.sample(used, min(len(used), rng.randint(0, 3))))
    equation, dtype = f"{','.join(terms)}->{d}", rng.choice(TYPES)
    network, reuse = rng.random() < 0.5, rng.random() < 0.2
    plans: list[Any] = []

    def run(x: list[Tensor], words: Words) -> list[Tensor]:
        if not network:
            return as_list(weft.einsum(equation, *x, **words.given()))
        net = kept(plans, lambda: weft.network(equation, *[each.detach() for each in x], reuse=reuse))
        return as_list(net(*x, **words.given()))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        want = torch.einsum(equation, *x)
        size = torch.einsum(equation, *[each.detach().abs() for each in x])
        longest = math.prod(extents[label] for label in used)
        room = EPSILON[dtype] * (8 * math.sqrt(longest) + 32)
        if dtype is torch.bfloat16:  # intermediates are of the operands' type
            room += HALVES[dtype] * count
        return [want], [stored(size * room, want, dtype)]

    shapes = [shape_of(term, extents) for term in terms]
    name = "network" if network else "einsum of many"
    told = f"{equation} {extents} {dtype} {name} reuse={reuse}"
    return Problem(
        name, told, dtype, shapes, shape_of(d, extents), run, truth, {}, frozenset(("new", "out")),
        dtype not in HALVES, plans,
    )  # fmt: skip
