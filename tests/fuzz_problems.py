"""The kinds of calls that `fuzz_calls` plays: each draws a problem, with its truth in float64 and a bound of its error."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
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

    told = f"{equation} {extents} {dtype} {sorted(functions)} {algebra} {precision} bias={bias} {planned and specialize}"
    takes = frozenset(("new", "out") if algebra or dtype.is_complex else ("new", "out", "c", "alpha"))
    name = ("plan" if planned else "contract") + (f" {algebra}" if algebra else "") + (" of functions" if functions else "")
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
        sizes = iter(x.permute([term.index(label) for label in own]).shape)
        return x.permute([term.index(label) for label in own]).reshape([next(sizes) if label in term else 1 for label in order])

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
        return [want], [stored(size * EPSILON[dtype] * (8 * math.sqrt(longest) + 32), want, dtype)]

    shapes = [shape_of(term, extents) for term in terms]
    name = "network" if network else "einsum of many"
    told = f"{equation} {extents} {dtype} {name} reuse={reuse}"
    return Problem(
        name, told, dtype, shapes, shape_of(d, extents), run, truth, {}, frozenset(("new", "out")),
        dtype not in HALVES, plans,
    )  # fmt: skip


# -- cascades --------------------------------------------------------------------------------------------------------


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
        made = kept(plans, lambda: weft.plan_cascade(equation, *[each.detach() for each in x], between=function, **indices))
        return as_list(made(*x))

    def truth(x: list[Tensor], words: Words) -> tuple[list[Tensor], list[Any]]:
        scores = torch.einsum(f"{a},{b}->{s}", *x[:2])
        largest = torch.einsum(f"{a},{b}->{s}", *[each.detach().abs() for each in x[:2]]).amax() if scores.numel() else 0.0
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
    """`weft.permute` with a function, sums and broadcast modes, or a plan, or `transpose_`."""
    labels = rng.sample("abcdef", rng.randint(1, 5))
    extents = drawn_extents(rng, labels, 1e5)
    x_term, dtype = mixed(rng, labels), rng.choice((*TYPES, torch.complex64))
    summed = [label for label in labels if rng.random() < 0.15]
    d = mixed(rng, [label for label in labels if label not in summed])
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
        longest = math.prod(extents[label] for label in summed)
        rough = 0.0 if function is None else ROUGH[dtype]
        return [want], [stored(size * (EPSILON[dtype] * (4 * math.sqrt(longest) + 16) + rough), want, dtype)]

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
        found = compiled(*[jax.numpy.asarray(each.contiguous().numpy()) for each in x])
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
