"""Nonsense for every public name: right calls of each, in which one or two things are replaced by what is wrong."""

from __future__ import annotations

import datetime
import decimal
import fractions
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch

import weft

Make = Callable[[], Any]


class Unwilling:
    """It says that it speaks DLPack, and fails."""

    shape = "no shape"
    dtype = None

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("no")

    def __dlpack_device__(self) -> Any:
        raise ZeroDivisionError("no")


class Unasked:
    """An object that fails wherever it is asked anything."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise LookupError("do not ask")

    __len__ = __iter__ = __getitem__ = __int__ = __float__ = __index__ = __bool__ = __array__ = _fail


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def raises(*_: Any, **__: Any) -> Any:
    raise KeyError("the function's own")


def masked() -> Any:
    return np.ma.masked_array(np.ones((3, 3), np.float32), np.eye(3, dtype=bool))


#: What stands in the place of something right. Of 2**50 elements no system grants the bytes, also where it grants more
#: than there are.
VALUES: tuple[Make, ...] = (
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: 1, lambda: -1, lambda: 3, lambda: 7,
    lambda: 2**31, lambda: 2**63, lambda: -(2**70), lambda: 10**400, lambda: 0.5, lambda: -0.0, lambda: 1e308,
    lambda: float("nan"), lambda: float("inf"), lambda: 1j, lambda: complex("nan"),
    lambda: "", lambda: "a", lambda: "abc", lambda: "mk,kn->mn", lambda: "ab->ba", lambda: "...", lambda: "->",
    lambda: "a,,b->", lambda: ",", lambda: "\ud800", lambda: "ä,β->", lambda: "mk,kn,np->mp", lambda: "float32",
    lambda: "cuda:99", lambda: "nope", lambda: "x" * 5000, lambda: b"mk,kn->mn", lambda: bytearray(b"ab"),
    lambda: (), lambda: (1,), lambda: (1, 2), lambda: (2, 3, 4), lambda: (-1, 2), lambda: ((), ()), lambda: ("m", "n"),
    lambda: (("m", "k"), ("k", "n"), ("m", "n")), lambda: (0, (1, (2,))), lambda: (None, None), lambda: (2**62, 2**62),
    lambda: [], lambda: [1, 2], lambda: [[1.0, 2.0], [3.0]], lambda: [[]], lambda: ["a", 1], lambda: [None],
    lambda: {}, lambda: {"a": 1}, lambda: {1: 2}, lambda: {"m": -1}, lambda: {"m": "x"}, lambda: {None: None},
    lambda: {"bias": ("n", tensor(4))}, lambda: {"bias": tensor(4)}, lambda: {"i": "m"}, lambda: {"m": 2**62},
    lambda: {(0,): tensor(3)}, lambda: {(0, 1): 3}, lambda: set(), lambda: {1, "a"}, lambda: frozenset((1,)),
    lambda: object(), object, lambda: int, lambda: type, lambda: len, lambda: print, lambda: Ellipsis,
    lambda: NotImplemented, lambda: slice(1, 2), lambda: range(3), lambda: iter(()), lambda: iter([1, 2]),
    lambda: (x for x in [(tensor(2, 3), tensor(3, 4))]), lambda: zip([1], [2], strict=True),
    lambda: lambda: None, lambda: lambda x: x, lambda: lambda x, y: x, lambda: raises, lambda: torch.relu,
    lambda: torch.nn.ReLU(), lambda: torch.nn.Linear(3, 3), lambda: partial(torch.add, 1), lambda: weft.functions.bias,
    lambda: torch, lambda: types.SimpleNamespace(shape=(2, 3), dtype="x"), Unwilling, Unasked,
    lambda: decimal.Decimal("1.5"), lambda: fractions.Fraction(1, 3), lambda: datetime.date(2020, 1, 1),
    lambda: Path("nowhere"), lambda: Path("/proc/none/x"), lambda: RuntimeError("a value"),
    lambda: torch.float32, lambda: torch.float16, lambda: torch.int8, lambda: torch.bool, lambda: torch.quint8,
    lambda: torch.device("cpu"), lambda: torch.device("meta"), lambda: torch.strided, lambda: torch.Size([2, 3]),
    lambda: np.dtype("float32"), lambda: np.dtype("U3"), lambda: np.float64, lambda: np.dtype([("a", "f4")]),
    lambda: tensor(), lambda: tensor(3), lambda: tensor(2, 3), lambda: tensor(3, 4), lambda: tensor(2, 4),
    lambda: tensor(3, 3), lambda: tensor(2, 3, 4), lambda: tensor(0), lambda: tensor(2, 0), lambda: tensor(1, 1),
    lambda: tensor(3, 3, dtype=torch.float64), lambda: tensor(3, 4, dtype=torch.int64),
    lambda: tensor(2, 3, dtype=torch.bool), lambda: tensor(2, 3, dtype=torch.complex64),
    lambda: tensor(3, 3, dtype=torch.float16), lambda: tensor(3, 4, dtype=torch.int8),
    lambda: torch.zeros(3, 3, dtype=torch.uint16), lambda: torch.zeros(3, 3, dtype=torch.float8_e4m3fn),
    lambda: torch.full((3, 3), float("nan")), lambda: tensor(3, 3).to_sparse(), lambda: tensor(3, 3).to_sparse_csr(),
    lambda: torch.nested.nested_tensor([tensor(2), tensor(3)]), lambda: tensor(3, 3).to("meta"),
    lambda: torch.quantize_per_tensor(tensor(3, 3), 0.1, 0, torch.quint8), lambda: tensor(1).expand(2**50),
    lambda: tensor(1, 1).expand(3, 2**50), lambda: tensor(3, 3).requires_grad_(), lambda: tensor(3, 4).T,
    lambda: torch.ones(3, 3, dtype=torch.complex64).conj(), lambda: torch.nn.Parameter(tensor(3, 3)),
    lambda: tensor(2, 2).as_strided((2, 2), (1, 1)), lambda: tensor(1, *[1] * 40), lambda: torch.empty(0, 2**40),
    lambda: np.ones((3, 3), np.float32), lambda: np.ones((3, 3), np.float32)[::-1], lambda: np.float32(2), masked,
    lambda: np.array(["a"]), lambda: np.array([object()]), lambda: np.ones(3, [("a", "f4")]), lambda: np.array(3),
    lambda: np.ones(3, "M8[s]"), lambda: np.ones((3, 3), ">f4"), lambda: np.ones((3, 3), np.longdouble),
    lambda: [tensor(2, 3), tensor(3, 4)], lambda: (tensor(2, 3), tensor(3, 4)), lambda: [(tensor(2, 3), tensor(3, 4))],
    lambda: [(tensor(2, 3),)], lambda: (tensor(2, 4), tensor(2, 4)), lambda: [(None, tensor(2, 2), 3)],
    lambda: weft.Algebra(torch.add, torch.maximum, 0.0, "own"), lambda: weft.algebra.max_plus,
    lambda: weft.plan("mk,kn->mn", tensor(2, 3), tensor(3, 4)), lambda: weft.network("ab,bc->ac", (2, 3), (3, 4)),
    lambda: weft.blocks.BlockTensor({(0, 0): tensor(2, 3)}), lambda: weft.WeftError, lambda: weft,
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A right call of a public name: places and keywords, each made anew for every call."""

    name: str
    function: Any  # or the name of a method
    places: tuple[Make, ...] = ()
    keywords: dict[str, Make] = field(default_factory=dict)
    usual: frozenset[str] = frozenset()  # the keywords without which a call is not right
    raises: tuple[type[BaseException], ...] = ()  # what it documents besides errors of weft
    lasts: bool = False  # it may be asked for any number of steps
    of: Make | None = None  # makes the object whose method of that name is called


@dataclass(frozen=True)
class Outcome:
    """How a call ended: "result", "refused" (an error of weft), "signature" (Python's own check), or "internal"."""

    kind: str
    error: BaseException | None = None

    @property
    def where(self) -> str:
        """The name of an internal error, and the last line of this project that it passed."""
        found, at = "", self.error.__traceback__ if self.error is not None else None
        while at is not None:
            code = at.tb_frame.f_code
            if "/src/weft/" in code.co_filename:
                found = f"{code.co_filename.rpartition('/src/weft/')[2]}:{at.tb_lineno} {code.co_name}"
            at = at.tb_next
        return f"{type(self.error).__name__} at {found}: {str(self.error)[:100]}"


def outcome(call: Call, places: tuple[Any, ...], keywords: dict[str, Any]) -> Outcome:
    """Make a call, and say how it ended."""
    function = call.function if call.of is None else getattr(call.of(), call.function)
    try:
        function(*places, **keywords)
    except (weft.WeftError, *call.raises) as error:
        return Outcome("refused", error)
    except TypeError as error:
        modules = (frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__))
        # A call made outside of dynamo's graphs has a wrapper, whose frame is there where Python refuses its arguments.
        ours = any(name.split(".")[0] == "weft" and name != "weft.base.dispatch" for name in modules)
        return Outcome("internal" if ours else "signature", error)
    except Exception as error:
        return Outcome("internal", error)
    return Outcome("result")


def variants(call: Call, count: int, seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """`count` nonsense versions of a right call, the same ones for a seed."""
    for number in range(count):
        rng = random.Random(f"{seed} {call.name} {number}")
        places: list[Any] = [make() for make in call.places]
        options = [name for name in call.keywords if name not in call.usual]
        chosen = [*call.usual, *rng.sample(options, min(len(options), rng.choice((0, 0, 0, 1, 2))))]
        keywords = {name: call.keywords[name]() for name in sorted(chosen)}
        for _ in range(rng.choice((1, 1, 1, 2))):
            _spoil(call, rng, places, keywords)
        yield tuple(places), keywords


def _spoil(call: Call, rng: random.Random, places: list[Any], keywords: dict[str, Any]) -> None:
    """One thing of a call replaced, left out or added."""
    wrong, way = rng.choice(VALUES), rng.random()
    if way < 0.5 and places:
        places[rng.randrange(len(places))] = wrong()
    elif way < 0.9 and call.keywords:
        keywords[rng.choice(sorted(call.keywords))] = wrong()
    elif way < 0.93 and places:
        del places[rng.randrange(len(places))]
    elif way < 0.96:
        places.append(wrong())
    elif places and way < 0.98:
        places[:] = [rng.choice(VALUES)() for _ in places]
    else:
        keywords[rng.choice(("bias", "x", "outt", "axis", "self", "fn", "call"))] = wrong()
