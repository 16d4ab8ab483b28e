"""Who is who: the identity of a graph, and the fingerprint that tells cheaply whether to trace again."""

from __future__ import annotations

import functools
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weft.fn import fingerprint, trace

ALPHA = 0.5
TABLE = {"alpha": 0.5}
LIST = [0.5]


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * ALPHA


def outer(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + 1


def recursive(x: torch.Tensor, depth: int = 2) -> torch.Tensor:
    return x if depth == 0 else recursive(x * 2, depth - 1)


class Settings:
    alpha = 0.5

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.alpha


SETTINGS, LEAKY = Settings(), torch.nn.LeakyReLU(0.5)


@pytest.fixture
def config() -> Iterator[types.ModuleType]:
    """A module with a constant and with a function that reads it."""
    module = types.ModuleType("some_config")
    exec("ALPHA = 0.5\ndef scaled(x):\n    return x * ALPHA\n", module.__dict__)
    module.inner = types.ModuleType("some_config.inner")  # type: ignore[attr-defined]
    module.inner.BETA = 2.0
    sys.modules["some_config"] = module
    yield module
    del sys.modules["some_config"]


def identity(fn: Callable[..., Any], dtype: torch.dtype = torch.float32) -> str:
    return trace(fn, (dtype,)).identity


def scaled_by(number: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * number


# -- identity ----------------------------------------------------------------------------------------------------------


def test_names_and_places_leave_no_trace() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    second = lambda value: torch.tanh(value) * 2  # noqa: E731
    assert identity(first) == identity(second)
    assert trace(first, (torch.float32,)) == trace(second, (torch.float32,))
    assert hash(trace(first, (torch.float32,))) == hash(trace(second, (torch.float32,)))


def test_identity_is_the_same_in_every_process() -> None:
    assert identity(lambda x: torch.where(x > 0.1, x, -0.0) * 3) == (
        "%0: float32\n"
        "%1 = aten.gt.Scalar(%0, 0x1.999999999999ap-4): bool\n"
        "%2 = aten.scalar_tensor.default(-0x0.0p+0, dtype=float32): float32\n"
        "%3 = aten.where.self(%1, %0, %2): float32\n"
        "%4 = aten.mul.Tensor(%3, 3): float32\n"
        "return %4"
    )


def test_dtypes_belong_to_the_identity() -> None:
    assert identity(torch.tanh, torch.float32) != identity(torch.tanh, torch.float16)


def test_the_shape_of_the_result_belongs_to_the_identity() -> None:
    assert identity(lambda x: x * 2) != identity(lambda x: (x * 2,))


@pytest.mark.parametrize(
    ("one", "other"), [(0.5, 0.25), (0.0, -0.0), (math.nan, math.inf), (1.0, math.nextafter(1, 2))]
)
def test_constants_belong_to_the_identity(one: float, other: float) -> None:
    """FIELD-BUGS 7: a cache that hands a similar call the wrong plan, here for one constant of a function."""
    assert identity(scaled_by(one)) != identity(scaled_by(other))
    assert trace(scaled_by(one), (torch.float64,)).source != trace(scaled_by(other), (torch.float64,)).source


# -- stale keys --------------------------------------------------------------------------------------------------------


def test_a_module_attribute_that_changes_makes_another_function(config: types.ModuleType) -> None:
    """FIELD-BUGS 7: vary one module attribute a function reads."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * config.ALPHA + config.inner.BETA

    before = identity(fn), fingerprint(fn)
    assert before[1] is not None
    config.ALPHA = 0.25
    assert identity(fn) != before[0]
    assert fingerprint(fn) != before[1]
    config.ALPHA = 0.5
    assert (identity(fn), fingerprint(fn)) == before
    config.inner.BETA = -2.0
    assert identity(fn) != before[0]


def test_a_function_of_a_module_that_reads_its_constant(config: types.ModuleType) -> None:
    """FIELD-BUGS 13: a stale key, here by a helper function's global."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return config.scaled(x)

    before = identity(fn)
    assert fingerprint(fn) is not None
    config.ALPHA = 0.25
    assert identity(fn) != before


def test_a_global_that_changes_makes_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """FIELD-BUGS 13: a stale key by a global constant, read here and in a function that is called."""
    before = identity(helper), identity(outer)
    monkeypatch.setitem(globals(), "ALPHA", 0.75)
    assert identity(helper) != before[0]
    assert identity(outer) != before[1]


def test_a_helper_that_is_replaced_makes_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """FIELD-BUGS 13: a stale key by a helper function."""
    before = identity(outer)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    assert identity(outer) != before


def test_a_closure_that_changes_makes_another_function() -> None:
    """FIELD-BUGS 7: one constant of a function, changed in the cell that it closes over."""
    alpha = 1.0

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * alpha

    before = identity(fn)
    alpha = 2.0
    assert identity(fn) != before


@pytest.mark.parametrize("make", [
    lambda: lambda x: x * globals()["ALPHA"],
    lambda: lambda x: x * getattr(SETTINGS, "alpha"),  # noqa: B009
    lambda: lambda x: x * torch.get_num_threads(),
    lambda: lambda x: x * torch.initial_seed(),
    lambda: lambda x, t=torch: x * t.get_num_threads(),
    lambda: lambda x: x * torch.backends.cuda.matmul.allow_tf32,
    lambda: functools.lru_cache(torch.tanh),
    lambda: functools.partial(lambda x, made: x * next(made), made=iter([1.0])),
    lambda: eval("lambda x: x * sys.modules['tests_some'].ALPHA", {"sys": sys}),
    lambda: lambda x: x * random.random(),
])  # fmt: skip
def test_what_cannot_be_seen_through_has_no_fingerprint(make: Callable[[], Any]) -> None:
    assert fingerprint(make()) is None


def test_what_cannot_be_seen_through_is_traced_anew() -> None:
    """FIELD-BUGS 7 and 13: no fingerprint, no stale plan."""

    def from_list(x: torch.Tensor) -> torch.Tensor:
        return x * LIST[0]

    before = identity(from_list), identity(SETTINGS.scale)
    LIST[0], Settings.alpha = 0.125, 0.125
    try:
        assert identity(from_list) != before[0]
        assert identity(SETTINGS.scale) != before[1]
    finally:
        LIST[0], Settings.alpha = 0.5, 0.5


def test_a_function_that_differs_from_call_to_call_is_refused() -> None:
    with pytest.raises(Exception, match="or from call to call"):
        trace(lambda x: x * random.random(), (torch.float32,))


# -- fingerprints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [
    torch.tanh,
    F.elu,
    F.silu,
    helper,
    outer,
    recursive,
    scaled_by(2.0),
    scaled_by(np.float32(0.5)),
    scaled_by((1, 2)),
    functools.partial(F.leaky_relu, negative_slope=0.2),
    lambda x: torch.where(x > 0, x, -torch.inf) * math.pi + np.sqrt(2.0) * np.pi,
    lambda x, alpha=0.1: x.to(torch.float32) * alpha,
    lambda x: sum(x * i for i in range(3)),
    torch.nn.Sequential(torch.nn.GELU()),
])  # fmt: skip
def test_plain_functions_have_a_fingerprint_that_holds_still(fn: Callable[..., Any]) -> None:
    first = fingerprint(fn)
    assert first is not None
    assert first == fingerprint(fn)
    assert hash(first) == hash(fingerprint(fn))


NUMBERS = [1, 1.0, True, 0, 0.0, -0.0, False, math.nan, math.inf, 1j, None, "1", np.float32(1), np.float64(1)]


def test_fingerprints_tell_numbers_apart_by_kind_and_bits() -> None:
    keys = [fingerprint(scaled_by(number)) for number in NUMBERS]
    assert None not in keys
    assert len(set(keys)) == len(NUMBERS)


@pytest.mark.parametrize("change", ["constant", "default", "keyword default", "partial", "name read"])
def test_fingerprints_see(change: str) -> None:
    one, other = {
        "constant": (lambda x: x * 1, lambda x: x * 1.0),
        "default": (lambda x, a=1: x * a, lambda x, a=1.0: x * a),
        "keyword default": (lambda x, *, a=1: x * a, lambda x, *, a=2: x * a),
        "partial": (functools.partial(F.elu, alpha=0.0), functools.partial(F.elu, alpha=-0.0)),
        "name read": (lambda x: torch.exp(x), lambda x: torch.exp2(x)),
    }[change]
    assert fingerprint(one) is not None
    assert fingerprint(one) != fingerprint(other)


def test_the_same_lambda_made_twice_has_one_fingerprint() -> None:
    made = [fingerprint(scaled_by(3.0)) for _ in range(2)]
    assert made[0] == made[1]


def test_a_wrapper_is_not_taken_for_what_it_wraps() -> None:
    """functools.wraps copies `__module__`: a function dressed as torch's own is looked into all the same."""

    def dressed(alpha: float) -> Callable[[torch.Tensor], torch.Tensor]:
        @functools.wraps(F.elu)
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return F.elu(x, alpha)

        return wrapper

    assert fingerprint(dressed(1.0)) != fingerprint(dressed(2.0))


#: Functions that read what lists and dictionaries hold and attributes of objects.
CONTENTS: dict[str, Callable[..., Any]] = {
    "item of a list": lambda x: x * LIST[0],
    "a list as a whole": lambda x: x * sum(LIST),
    "value of a dictionary": lambda x: x * TABLE["alpha"],
    "attribute of a class": lambda x: x * SETTINGS.alpha,
    "method": SETTINGS.scale,
    "object that is called": SETTINGS,
    "argument of a partial": functools.partial(lambda x, table: x * table["alpha"], table=TABLE),
    "default": lambda x, table=TABLE: x * table["alpha"],
    "default of a keyword": lambda x, *, numbers=LIST: x * numbers[0],
    "module's number": LEAKY,
    "function within": lambda x: (lambda y: y * LIST[0])(x),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_fingerprints_see_what_things_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = CONTENTS[name]
    first = fingerprint(fn)
    assert first is not None
    assert fingerprint(fn) == first
    assert hash(fingerprint(fn)) == hash(first)
    monkeypatch.setitem(TABLE, "alpha", 0.125)
    monkeypatch.setattr(Settings, "alpha", 0.125)
    monkeypatch.setattr(LEAKY, "negative_slope", 0.125)
    LIST[0] = 0.125
    try:
        assert fingerprint(fn) != first
    finally:
        LIST[0] = 0.5


@pytest.mark.parametrize("fn", [lambda x: F.silu(x), lambda x: torch.relu(x), lambda x: x.tanh()])
def test_fingerprints_see_what_is_replaced_in_torch(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(fn)
    assert first is not None
    for place, name in ((F, "silu"), (torch, "relu"), (torch.Tensor, "tanh")):
        monkeypatch.setattr(place, name, lambda x: x * 2)
    assert fingerprint(fn) != first


def test_a_known_function_is_not_traced_again() -> None:
    def noted(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    first = trace(noted, (torch.float32,))
    assert trace(noted, (torch.float32,)) is first
    assert trace(noted, (torch.float64,)) is not first
