"""Programs drawn at random: functions made by factories, decorators, partials, classes, methods and compositions.

A program is a tree of `LEAVES`, each with a number of its own that is held somewhere, and `JOINTS`, which make one
function of two. `build` makes the function, and lists the events by which a number changes where it is held.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from weft import functions as f

Fn: TypeAlias = Callable[[Any], Any]
Event: TypeAlias = Callable[[float], None]
Spec: TypeAlias = tuple[Any, ...]  # (name,) of a leaf, (name, first, second) of a joint


class Box:
    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, x: Any) -> Any:
        return x * self.number

    def scaled(self, x: Any) -> Any:
        return self(x) + self.twice

    @property
    def twice(self) -> float:
        return self.number * 2

    def __float__(self) -> float:
        return self.number

    def __iter__(self) -> Iterator[float]:
        yield 1.0
        yield self.number

    def __getitem__(self, key: str) -> float:
        return self.number


class Slots:
    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number


class Kept(torch.nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Any) -> Any:
        return x * self.number


def number_of(thing: Any) -> float:
    return float(thing.number)


def add_up(x: Any, numbers: Any) -> Any:
    for number in numbers:
        x = x * 0.5 + number
    return x


def power(x: Any, *, by: float) -> Any:
    return x * by - by


def sets(thing: Any, name: str = "number") -> Event:
    return lambda number: setattr(thing, name, number)


# -- leaves: a function and an event, where its number can change ----------------------------------------------------


def _closure(number: float) -> tuple[Fn, Event]:
    def change(other: float) -> None:
        nonlocal number
        number = other

    return lambda x: x * number, change


def _global(number: float) -> tuple[Fn, Event]:
    space: dict[str, Any] = {"NUMBER": number}
    exec("def helper(x):\n    return x * NUMBER\ndef fn(x):\n    return helper(x) + NUMBER", space)
    return space["fn"], lambda other: space.update(NUMBER=other)


def _module(number: float) -> tuple[Fn, Event]:
    module = types.ModuleType("numbers_of_tests")
    module.NUMBER = number  # type: ignore[attr-defined]
    return lambda x: x - module.NUMBER, sets(module, "NUMBER")


def _constant(number: float) -> tuple[Fn, None]:
    return eval(f"lambda x: x * {number!r}"), None


def _order(number: float) -> tuple[Fn, None]:
    order = "{0, 8}" if number > 0 else "{8, 0}"
    space: dict[str, Any] = {}
    exec(f"def fn(x):\n    for each in {order}:\n        x = x * {number!r} + each\n    return x", space)
    return space["fn"], None


def _class(number: float) -> tuple[Fn, Event]:
    class Made:
        held = number

        @classmethod
        def of_class(cls, x: Any) -> Any:
            return x * cls.held

        @staticmethod
        def of_none(x: Any) -> Any:
            return x + number

    return lambda x: Made.of_none(Made.of_class(x)), sets(Made, "held")


def _instance(number: float) -> tuple[Fn, Event]:
    class Made:
        held = number

        def __call__(self, x: Any) -> Any:
            return x * self.held

    return Made(), sets(Made, "held")


def _dispatch(number: float) -> tuple[Fn, Event]:
    @functools.singledispatch
    def fn(x: Any) -> Any:
        return x

    def change(other: float) -> None:
        fn.register(torch.Tensor, lambda x: x * other)

    change(number)
    return fn, change


def _attribute(number: float) -> tuple[Fn, Event]:
    def held() -> None: ...

    held.number = number  # type: ignore[attr-defined]
    return lambda x: x * number_of(held), sets(held)


def _table(number: float) -> tuple[Fn, Event]:
    table = {"a": [number]}
    return lambda x: x * table["a"][0], lambda other: table.update(a=[other])


def _list(number: float) -> tuple[Fn, Event]:
    numbers = [1.0, number]
    return lambda x: add_up(x, numbers), lambda other: numbers.__setitem__(1, other)


def _cached(number: float) -> tuple[Fn, Event]:
    box = Box(number)

    @functools.lru_cache(maxsize=1)
    def scale() -> float:
        return box.number

    def change(other: float) -> None:
        box.number = other
        scale.cache_clear()

    return lambda x: x * scale(), change


def of_box(make: Callable[[Any], Fn], kind: type = Box) -> Callable[[float], tuple[Fn, Event]]:
    def leaf(number: float) -> tuple[Fn, Event]:
        box = kind(number)
        return make(box), sets(box)

    return leaf


def still(make: Callable[[float], Fn]) -> Callable[[float], tuple[Fn, None]]:
    return lambda number: (make(number), None)


LEAVES: dict[str, Callable[[float], tuple[Fn, Event | None]]] = {
    "closure": _closure,
    "global": _global,
    "module": _module,
    "constant": _constant,
    "order of a set": _order,
    "class": _class,
    "attribute of a class": _instance,
    "singledispatch": _dispatch,
    "attribute of a function": _attribute,
    "table": _table,
    "list": _list,
    "cached": _cached,
    "default": still(lambda number: lambda x, by=number: x * by),
    "keyword default": still(lambda number: lambda x, *, by=number: x * by),
    "partial": still(lambda number: functools.partial(power, by=number)),
    "option of a ready function": still(lambda number: f.leaky_relu(slope=number)),
    "numpy": still(lambda number: (lambda by: lambda x: x * by)(np.float64(number))),
    "nested": still(lambda number: lambda x: (lambda y: (lambda z: z * number)(y))(x)),
    "leaky": of_box(lambda module: module, Kept),
    "activation": lambda number: ((m := torch.nn.LeakyReLU(number)), sets(m, "negative_slope")),
    "object": of_box(lambda box: box),
    "method": of_box(lambda box: box.scaled),
    "attribute": of_box(lambda box: lambda x: x + box.number),
    "property": of_box(lambda box: lambda x: x * box.twice),
    "to a helper": of_box(lambda box: lambda x: x * number_of(box)),
    "slot": of_box(lambda box: lambda x: x * box.number, Slots),
    "slot to a helper": of_box(lambda box: lambda x: x * number_of(box), Slots),
    "float": of_box(lambda box: lambda x: x * float(box)),
    "iterated": of_box(lambda box: lambda x: add_up(x, box)),
    "item": of_box(lambda box: lambda x: x * box["any"]),
    "getattr": of_box(lambda box: lambda x: x * getattr(box, "number")),  # noqa: B009
    "default of an object": of_box(lambda box: lambda x, held=box: x * held.number),
    "namespace": of_box(lambda box: lambda x: x * box.number, lambda number: types.SimpleNamespace(number=number)),  # type: ignore[arg-type]
}  # fmt: skip


# -- joints ------------------------------------------------------------------------------------------------------------


def wrapped(of: Any) -> Callable[[Fn], Fn]:
    def decorate(fn: Fn) -> Fn:
        @functools.wraps(of)
        def inner(x: Any) -> Any:
            return fn(x)

        return inner

    return decorate


def decorated(fn: Fn) -> Fn:
    return wrapped(fn)(fn)


def then(first: Fn, second: Fn, x: Any) -> Any:
    return second(first(x))


class Pair:
    def __init__(self, first: Fn, second: Any) -> None:
        self.first, self.second = first, second

    def __call__(self, x: Any) -> Any:
        return self.run(self.first, x)

    def run(self, fn: Fn, x: Any) -> Any:
        return self.after(fn(x))

    def after(self, x: Any) -> Any:
        return self.second(x)


class Derived(Pair):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) + 1


class Linked:
    """One of a list whose end is a function."""

    def __init__(self, fn: Fn, after: Any) -> None:
        self.fn, self.after = fn, after

    def __call__(self, x: Any) -> Any:
        return self.after(self.fn(x))


class Both(torch.nn.Module):
    def __init__(self, first: Fn, second: Fn) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def _looped(first: Fn, second: Fn) -> Fn:
    steps = [first, second]

    def fn(x: Any, at: int = 0) -> Any:
        return x if at == len(steps) else fn(steps[at](x), at + 1)

    return fn


def _cycle(first: Fn, second: Fn) -> Fn:
    one, other = types.SimpleNamespace(fn=first), types.SimpleNamespace(fn=second)
    one.other, other.other = other, one
    return lambda x: one.other.other.other.fn(one.fn(x))


JOINTS: dict[str, Callable[[Fn, Fn], Fn]] = {
    "chain": lambda a, b: f.chain(a, b),
    "composition": lambda a, b: lambda x: b(a(x)),
    "reduce": lambda a, b: lambda x, fns=(a, b): functools.reduce(lambda y, fn: fn(y), fns, x),
    "partial": lambda a, b: functools.partial(then, a, b),
    "partial of a partial": lambda a, b: functools.partial(functools.partial(then, a), b),
    "decorator": lambda a, b: decorated(lambda x: b(a(x))),
    "decorated twice": lambda a, b: decorated(decorated(f.chain(decorated(a), b))),
    "dressed as a ready function": lambda a, b: wrapped(f.relu)(lambda x: b(a(x))),
    "dressed as torch's": lambda a, b: wrapped(F.gelu)(lambda x: b(a(x))),
    "object": Pair,
    "method": lambda a, b: functools.partial(Pair(a, b).run, a),
    "super": Derived,
    "links": lambda a, b: Linked(a, Linked(b, b)),
    "module": Both,
    "modules in a row": lambda a, b: torch.nn.Sequential(Both(a, b), torch.nn.Hardtanh(-100, 100)),
    "loop": _looped,
    "cycle": _cycle,
    "table": lambda a, b: (lambda table: lambda x: table["b"](table["a"](x)))({"a": a, "b": b}),
    "itself": lambda a, b: lambda x: a(b(a(x))),
}

specs = st.recursive(
    st.sampled_from(sorted(LEAVES)).map(lambda name: (name,)),
    lambda inner: st.tuples(st.sampled_from(sorted(JOINTS)), inner, inner),
    max_leaves=6,
).filter(lambda spec: depth(spec) <= 4)


def depth(spec: Spec) -> int:
    return 0 if len(spec) == 1 else 1 + max(map(depth, spec[1:]))


def leaves(spec: Spec) -> int:
    return 1 if len(spec) == 1 else sum(map(leaves, spec[1:]))


def build(spec: Spec, numbers: list[float], events: list[Event]) -> Fn:
    """The program with those numbers in its leaves, from left to right; its events are added to `events`."""
    return _build(spec, iter(numbers), events)


def _build(spec: Spec, numbers: Iterator[float], events: list[Event]) -> Fn:
    if len(spec) > 1:
        first, second = (_build(each, numbers, events) for each in spec[1:])
        return JOINTS[spec[0]](first, second)
    fn, event = LEAVES[spec[0]](next(numbers))
    events += [] if event is None else [event]
    return fn
