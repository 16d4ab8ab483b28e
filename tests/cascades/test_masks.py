"""Blocks that masks leave out: what bounds claim of random conditions, by torch in every block, and whole cascades."""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx

import weft
from weft.cascades.between import recorded
from weft.cascades.bounds import Bounds, bounds_of
from weft.cascades.masks import Cuts

INF = torch.inf
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ROWS, COLUMNS, BLOCK = 40, 56, 16
Arguments = dict[str, Tensor]
Expression = Callable[[Arguments], Tensor]

CONSTANTS = (-3, -1, 0, 1, 2, 4, 7, 16, 100, 255, 300, 2**15, 2**24 + 1, 2**53 + 1)
SCALES = (-2.5, -0.04, 0.0, 0.003, 0.1, 1 / 3, 1.0, 2.5, 1e4, 1e30, INF)
COMPARE = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


class Draw:
    """Random expressions of coordinates and operands, as functions of those by name."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def arguments(self) -> Arguments:
        """Coordinates, whole numbers and conditions of rows and columns, and floating values, which bounds know not."""
        place = self.random.choice((torch.int32, torch.int64))
        found = {"i": torch.arange(ROWS, dtype=place)[:, None], "j": torch.arange(COLUMNS, dtype=place)[None]}
        for name in "abcd":
            shape, dtype = self.random.choice(((ROWS, 1), (1, COLUMNS), (ROWS, COLUMNS))), self.random.choice(WHOLE)
            kind = torch.iinfo(dtype)
            ends = self.random.choice(((0, 3), (-2, 2), (kind.min, kind.max), (kind.max - 2, kind.max), (0, 1)))
            values = [self.random.randint(max(ends[0], kind.min), ends[1]) for _ in range(9)]
            long = np.random.default_rng(self.random.randrange(2**31)).integers(0, 9, shape)
            if self.random.random() < 0.7:  # runs, as documents have
                long = np.arange(np.prod(shape)).reshape(shape) // self.random.choice((5, 16, 32)) % 9
            found[name] = torch.tensor(values, dtype=dtype)[torch.from_numpy(long)]
            if self.random.random() < 0.2:
                found[name] = found[name] % 2 == 0
        for name in "xy":
            found[name] = torch.randn(self.random.choice(((ROWS, 1), (1, COLUMNS)))).to(self.random.choice(FLOATS))
            found[name][0, 0] = self.random.choice((0.0, INF, -INF, torch.nan, 1.0))
        return found

    def condition(self, depth: int) -> Expression:
        """A truth value."""
        kind = self.random.randrange(9 if depth else 6)
        if kind < 4:
            draw = self.floating if self.random.random() < 0.35 else self.whole
            return self.two(self.random.choice(COMPARE), draw(depth - 1), self.second(draw, depth))
        if kind == 4:
            return self.one(lambda x: x.bool(), self.whole(depth - 1))
        if kind == 5:
            words = self.random.choice((torch.logical_and, torch.logical_or))
            return self.two(words, self.whole(depth - 1), self.whole(depth - 1))
        if kind == 6:
            return self.one(operator.invert, self.condition(depth - 1))
        joins = (operator.and_, operator.or_, operator.xor, operator.eq, operator.mul)
        return self.two(self.random.choice(joins), self.condition(depth - 1), self.condition(depth - 1))

    def whole(self, depth: int) -> Expression:
        """A whole number."""
        if depth <= 0 or self.random.random() < 0.15:
            name = self.random.choice("iijjabcd")
            return lambda given: given[name]
        kind = self.random.randrange(8)
        if kind < 3:
            joins = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor, torch.maximum)
            join = self.random.choice(joins)
            return self.two(join, self.whole(depth - 1), self.second(self.whole, depth))
        if kind == 3:
            words = (operator.neg, operator.invert, torch.abs, lambda x: x.clamp(min=1), lambda x: 5 - x, torch.relu)
            return self.one(self.random.choice(words), self.whole(depth - 1))
        if kind == 4:
            by, word = self.random.choice((1, 2, 3, 16, 200)), self.random.choice((operator.floordiv, operator.mod))
            return self.one(lambda x: word(x, by), self.whole(depth - 1))
        if kind == 5:
            condition, x, y = self.condition(depth - 1), self.whole(depth - 1), self.whole(depth - 1)
            return lambda given: torch.where(condition(given), x(given), y(given))
        dtype, draw = self.random.choice(WHOLE), self.floating if kind == 6 else self.whole
        return self.one(lambda x: x.to(dtype), draw(depth - 1))

    def floating(self, depth: int) -> Expression:
        """A floating value."""
        if depth <= 0 or self.random.random() < 0.15:
            if self.random.random() < 0.15:
                name = self.random.choice("xy")
                return lambda given: given[name]
            by, dtype = self.random.choice(SCALES), self.random.choice(FLOATS)
            word = self.random.choice((lambda x: x * by, lambda x: x / 3, lambda x: x.to(dtype)))
            return self.one(word, self.whole(depth - 1))
        kind = self.random.randrange(6)
        if kind < 2:
            joins = (operator.add, operator.sub, operator.mul, operator.truediv, torch.maximum, torch.minimum)
            return self.two(self.random.choice(joins), self.floating(depth - 1), self.second(self.floating, depth))
        if kind == 2:
            condition, x = self.condition(depth - 1), self.floating(depth - 1)
            other = self.random.choice(SCALES)
            return lambda given: torch.where(condition(given), x(given), other)
        if kind == 3:
            dtype = self.random.choice(FLOATS)
            return self.one(lambda x: x.to(dtype), self.floating(depth - 1))
        words = (torch.exp, torch.tanh, torch.sigmoid, torch.floor, torch.round, torch.abs, torch.relu, operator.neg)
        return self.one(self.random.choice(words), self.floating(depth - 1))

    def second(self, draw: Callable[[int], Expression], depth: int) -> Expression:
        """Another operand, a number often."""
        if self.random.random() < 0.5:
            return draw(depth - 1)
        number: Any = self.random.choice(CONSTANTS if draw == self.whole else SCALES)
        return lambda given: number

    def one(self, word: Callable[..., Any], x: Expression) -> Expression:
        return lambda given: word(x(given))

    def two(self, word: Callable[..., Any], x: Expression, y: Expression) -> Expression:
        return lambda given: word(x(given), y(given))


def runs(condition: Expression, given: Arguments) -> bool:
    """Whether torch takes a condition at all: `~` of a float, 300 as uint8."""
    try:
        return condition(given).dtype == torch.bool
    except (RuntimeError, TypeError, AttributeError):
        return False


def bounds_in(graph: fx.Graph, given: Arguments) -> dict[fx.Node, Bounds | None]:
    """The bounds of every value of a graph in blocks of rows and columns."""
    starts = tuple(np.arange(0, extent, BLOCK) for extent in (ROWS, COLUMNS))
    cuts = Cuts(starts, tuple(np.diff(each, append=end) for each, end in zip(starts, (ROWS, COLUMNS), strict=True)))
    values: dict[fx.Node, Bounds | None] = {}
    for node, (name, each) in zip(list(graph.nodes)[1:], given.items(), strict=False):
        if not each.is_floating_point():
            ends = cuts.interval("ij".index(name)) if name in "ij" else cuts.ranges(each.numpy())
            values[node] = Bounds(*(torch.from_numpy(end).to(each.dtype) for end in ends))
    for node in graph.nodes:
        if node.op == "call_function":
            values[node] = bounds_of(node, values)
    return values


def in_full(end: object) -> Tensor:
    """A value of each block at all of its elements."""
    found = torch.as_tensor(end).expand(-(-ROWS // BLOCK), -(-COLUMNS // BLOCK))
    return found.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:ROWS, :COLUMNS]


def holds(bounds: Bounds, value: Tensor) -> bool:
    """Whether values are between their bounds, and NaN where they may be."""
    low, high, nan = map(in_full, bounds)
    between = (low <= value) & (value <= high)
    return bool((between | (value.isnan() & nan)).all())


def check(seed: int, count: int, depth: int = 4) -> int:
    """Hold random conditions to their bounds; the number of blocks that these decide."""
    draw, decided = Draw(seed), 0
    given = draw.arguments()
    conditions: list[Expression] = []
    while len(conditions) < count:
        condition = draw.condition(depth)
        if runs(condition, given):
            conditions.append(condition)
    types = {name: (each.dtype, frozenset(name)) for name, each in given.items()}
    graph = recorded(lambda s, **given: tuple(each(given) for each in conditions), torch.float32, types).graph
    bounds, values = bounds_in(graph, given), dict(zip(graph.nodes, (torch.zeros(1, 1), *given.values()), strict=False))
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        values[node] = node.target(*fx.map_arg(node.args, values.get), **node.kwargs)  # type: ignore[operator]
        assert (known := bounds[node]) is None or holds(known, values[node]), (seed, node, node.args, graph)
    (results,) = next(node for node in graph.nodes if node.op == "output").args
    for condition, node in zip(conditions, results, strict=True):
        found, known = condition(given).expand(ROWS, COLUMNS), bounds[node]
        if known is not None:
            assert not (in_full(known.low) & ~found).any(), (seed, node, graph)
            assert not (~in_full(known.high) & found).any(), (seed, node, graph)
            decided += int((known.low == known.high).sum())
    return decided


@pytest.mark.parametrize("part", range(4))
def test_bounds_of_random_conditions(part: int) -> None:
    """No condition is claimed in a block where it fails, and many are decided."""
    decided = sum(check(seed, 50) for seed in range(10 * part, 10 * part + 10))
    assert decided > 600


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_bounds_of_a_hundred_thousand_conditions(part: int) -> None:
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        check(seed, 100)


# -- whole cascades ----------------------------------------------------------------------------------------------------

EQUATION = "id,jd->ij, ij,je->ie"
FRAMES = torch.arange(300) // 70
NAMED: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[str, Tensor]]]] = {
    "every other key": (lambda i, j: (j & 1) == 0, {}),
    "not a key": (lambda i, j: ~j < -7, {}),
    "bits of roles": (lambda i, j, a: (a & 4) == 0, {"a": ("j", torch.arange(300, dtype=torch.int32) % 16)}),
    "a group of bits": (lambda i, j, a, b: a == (b & 3), {"a": ("i", FRAMES), "b": ("j", FRAMES * 5)}),
    "truth of two": (lambda i, j, a: a.bool() == (j >= 0), {"a": ("j", torch.full((300,), 2, dtype=torch.uint8))}),
    "or of numbers": (lambda i, j, a: torch.logical_or(a, i - i), {"a": ("j", FRAMES - 1)}),
    "bytes wrap": (
        lambda i, j, a, b: (a - b) > 100, {"a": ("i", (FRAMES * 9).to(torch.uint8)), "b": ("j", FRAMES.to(torch.uint8))}
    ),
    "sums of bytes wrap": (lambda i, j, a: a + a < 0, {"a": ("j", (FRAMES * 30).to(torch.int8))}),
    "short places wrap": (lambda i, j: (j * 400).to(torch.int16) < 0, {}),
    "long numbers": (
        lambda i, j, a, b: a == b, {"a": ("i", torch.full((300,), 2**53)), "b": ("j", 2**53 + torch.arange(300) % 2)}
    ),
    "frames": (lambda i, j: (i * 0.04).int() == (j * 0.04).int(), {}),
    "places in bfloat16": (lambda i, j: (j + 900).to(torch.bfloat16) == 1024, {}),
    "places in float16": (lambda i, j: (j + 2000).to(torch.float16) <= (i + 2000).to(torch.float16), {}),
    "a decay that underflows": (lambda i, j: torch.exp(-0.6 * j.float()) > 0, {}),
    "a window": (lambda i, j: ((j <= i) & (i - j < 40)) | (j < 4), {}),
    "documents": (lambda i, j, a, b: (a == b) & (j <= i), {"a": ("i", FRAMES), "b": ("j", FRAMES)}),
    "uniform": (lambda i, j: weft.functions.uniform(7, i, j) > 0.3, {}),
    "nothing": (lambda i, j: j < i - 1000, {}),
}


def plainly(seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = (q.double() @ k.double().T).masked_fill(~seen, -INF)
    return torch.softmax(s, -1).nan_to_num(0) @ v.double(), s.logsumexp(-1)


def compare(name: str, rows: int, specialize: str, calls: tuple[int, ...], bar: float) -> None:
    """Calls of one mask, values and gradients; those of `calls` are held to torch."""
    condition, operands = NAMED[name]
    operands = {key: (modes, each[:rows] if modes == "i" else each) for key, (modes, each) in operands.items()}
    i, j = torch.arange(rows, dtype=torch.int32)[:, None], torch.arange(300, dtype=torch.int32)[None]
    along = {key: each[:, None] if modes == "i" else each[None] for key, (modes, each) in operands.items()}
    seen = condition(i, j, **along).expand(rows, 300)

    def between(s: Tensor, i: Tensor, j: Tensor, **given: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.where(condition(i, j, **given), s, -INF)
        return weft.softmax(s, "j"), weft.logsumexp(s, "j")

    taken = inspect.Signature([inspect.Parameter(each, 1) for each in ("s", "i", "j", *operands)])
    between.__signature__ = taken  # type: ignore[attr-defined]
    for call in range(1, max(calls) + 1):
        given = [torch.randn(extent, width).requires_grad_() for extent, width in ((rows, 8), (300, 8), (300, 5))]
        d, peak = weft.cascade(
            EQUATION, *given, between=between, indices={"i": "i", "j": "j"}, operands=operands or None,
            specialize=specialize,
        )  # fmt: skip
        if call not in calls:
            continue
        right, row = plainly(seen, *given)
        torch.testing.assert_close((d.double(), peak.double()), (right, row), atol=bar, rtol=bar)
        found, wanted = (torch.autograd.grad((each.double() ** 2).sum(), given) for each in (d, right))
        torch.testing.assert_close(found, wanted, atol=10 * bar, rtol=10 * bar)


@pytest.mark.parametrize("specialize", ["auto", "never", pytest.param("now", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMED)
def test_masked_attention(name: str, specialize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("WEFT_TIERS", "WEFT_SELFTEST", "WEFT_GUARD", "WEFT_KERNELS"):
        monkeypatch.delenv(word, raising=False)
    compare(name, 300, specialize, (1, 2, 12) if specialize == "auto" else (1, 2), 1e-4)


@pytest.mark.parametrize("specialize", ["auto", "now", "never"])
def test_one_row_that_sees_nothing(specialize: str) -> None:
    """Softmax 0, logsumexp -inf and argmax 0, in loops too."""
    plan = weft.plan_cascade(
        "id,jd->ij", torch.randn(1, 8), torch.randn(9, 8), indices={"i": "i", "j": "j"}, specialize=specialize,
        between=lambda s, i, j: (
            weft.argmax(torch.where(j < i, s, -INF), "j"), weft.amax(torch.where(j < i, s, -INF), "j"),
            weft.logsumexp(torch.where(j < i, s, -INF), "j"),
        ),
    )  # fmt: skip
    compare("nothing", 1, specialize, (1, 2, 12), 1e-4)
    for call in range(12):
        best, most, row = plan(torch.randn(1, 8), torch.randn(9, 8))
        assert (best.item(), most.item(), row.item()) == (0, -INF, -INF), call


@pytest.mark.parametrize("drops", ["softmax", "sigmoid"])
def test_dropout_between_the_contractions(drops: str) -> None:
    drop = weft.functions.dropout(0.3, seed=7)
    i, j = (each.expand(50, 70) for each in (torch.arange(50).int()[:, None], torch.arange(70).int()[None]))
    kept = torch.where(weft.functions.uniform(7, i, j) >= 0.3, 1 / 0.7, 0.0).double()
    word = (lambda s: weft.softmax(s, "j")) if drops == "softmax" else torch.sigmoid
    for _ in range(12):
        q, k, v = torch.randn(50, 8), torch.randn(70, 8), torch.randn(70, 5)
        found = weft.cascade(
            EQUATION, q, k, v, between=lambda s, i, j: drop(word(s), i=i, j=j), indices={"i": "i", "j": "j"}
        )
        s = q.double() @ k.double().T
        right = ((torch.softmax(s, -1) if drops == "softmax" else torch.sigmoid(s)) * kept) @ v.double()
        torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=1e-4)
