"""Sequences of random calls of one contraction, as users make them: each is held against torch in double precision.

Between calls values, strides, kinds of views, types, factors, what functions read, `out` and requests for gradients
change; tensors come again, some written meanwhile; calls are made in threads, under autocast and in inference mode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch

import weft
from weft.planner import validity

CALLS = 16
EQUATIONS = (
    "mk,kn->mn", "km,nk->nm", "bmk,bkn->bmn", "abk,kn->bna", "k,k->", "m,n->nm", "mk,k->m", "mn,mn->nm", "mkl,lkn->mn",
    "mk,kn->n", "m,mn->mn",
)  # fmt: skip
SINGLE, DOUBLE, BRAIN = torch.float32, torch.float64, torch.bfloat16
TYPES: dict[str, tuple[torch.dtype, ...]] = {
    "real": (SINGLE, DOUBLE, torch.float16),
    "complex": (torch.complex64, torch.complex128),
    "whole": (torch.int64, torch.int32),
}
#: Rounding of the type that results have, in a sum of at most 64 terms, and of its functions' slopes.
BOUNDS = {SINGLE: 1e-4, DOUBLE: 1e-11, torch.float16: 2e-2, BRAIN: 0.1, torch.complex64: 1e-4, torch.complex128: 1e-11}
FACTOR = [1.0]


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR[0]


def closed_over(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor


def compared(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.where(x > s, x, x / 2), s - 1


FUNCTIONS: dict[str, Callable[[float], Any]] = {
    "none": lambda factor: None, "tanh": lambda factor: torch.tanh, "closed over": closed_over,
    "global": lambda factor: by_global, "operand": lambda factor: lambda x, s: torch.sigmoid(x) + s,
    "compared": lambda factor: compared, "constant": lambda factor: torch.ones_like,
}  # fmt: skip
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x,
    "padded": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() else x,
    "stepped": lambda x: torch.stack([x, x], -1)[..., 0],
    "shifted": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
    "repeated": lambda x: x[:1].expand(x.shape) if x.dim() > 1 else x,
    "negative": lambda x: torch._neg_view(-x),
    "conjugate": lambda x: x.conj_physical().conj(),
}


class Given(NamedTuple):
    """The tensors of a call by name: A, B, and C and an operand where there are any."""

    tensors: dict[str, torch.Tensor]
    dtype: torch.dtype
    repeated: bool


class Contracted:
    """One contraction, and what changes from call to call."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.draw = draw = random.Random(seed)
        self.equation, self.kind = draw.choice(EQUATIONS), draw.choice(("real", "real", "complex", "whole"))
        a, _, rest = self.equation.partition(",")
        b, _, self.output = rest.partition("->")
        longest = draw.choice((5, 5, 40))
        self.extents = {label: draw.randint(1, longest) for label in sorted({*a, *b})}
        self.terms = {"a": a, "b": b}
        if draw.random() < 0.4:
            self.terms["c"] = self.output
        names = ["none"] if self.kind == "whole" else ["none", "closed over", "global"]
        names += ["tanh", "operand", "compared", "constant"] if self.kind == "real" and self.output else []
        self.a_fn, self.epilogue = draw.choice(names[:4]), draw.choice(names)
        if self.epilogue in ("operand", "compared"):
            self.terms["s"] = self.output[:1]
        self.last: Given | None = None

    def given(self) -> Given:
        """Tensors of the call before, some written, or new ones."""
        draw = self.draw
        if self.last is not None and draw.random() < 0.5:
            if draw.random() < 0.5 and not self.last.repeated:
                for tensor in self.last.tensors.values():
                    tensor.mul_(-1)
            return self.last
        dtype = draw.choice(TYPES[self.kind])
        tensors, views = {}, [draw.choice(list(VIEWS)) for _ in self.terms]
        for view, (name, term) in zip(views, self.terms.items(), strict=True):
            shape = [self.extents[label] for label in term]
            whole = self.kind == "whole"
            made = (
                torch.randint(-4, 5, shape, dtype=dtype) if whole else torch.randn(shape, dtype=_wide(dtype)).to(dtype)
            )
            tensors[name] = VIEWS["as it is" if whole and view in ("negative", "conjugate") else view](made)
        self.last = Given(tensors, dtype, "repeated" in views)
        return self.last

    def words(
        self, tensors: dict[str, torch.Tensor], functions: dict[str, Any], factors: dict[str, Any]
    ) -> dict[str, Any]:
        words = {**factors, **{name: each for name, each in functions.items() if each is not None}}
        words |= {"c": tensors["c"]} if "c" in tensors else {}
        return words | ({"operands": {"s": (self.terms["s"], tensors["s"])}} if "s" in tensors else {})

    def expected(
        self, tensors: dict[str, torch.Tensor], functions: dict[str, Any], factors: dict[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        a, b = tensors["a"], tensors["b"]
        found = torch.einsum(self.equation, a if functions["a_fn"] is None else functions["a_fn"](a), b)
        found = found * factors.get("alpha", 1) + (factors.get("beta", 1) * tensors["c"] if "c" in tensors else 0)
        if functions["epilogue"] is None:
            return (found,)
        beside = [tensors["s"].reshape([-1] + [1] * (found.dim() - 1))] if "s" in tensors else []
        results = functions["epilogue"](found, *beside)
        return tuple(each.expand(found.shape) for each in (results if isinstance(results, tuple) else (results,)))

    def call(self) -> None:
        draw, (tensors, dtype, _) = self.draw, self.given()
        FACTOR[0] = draw.choice((1.0, 2.0, -0.5))
        functions = {"a_fn": FUNCTIONS[self.a_fn](FACTOR[0]), "epilogue": FUNCTIONS[self.epilogue](FACTOR[0])}
        factors: dict[str, Any] = {"alpha": draw.choice((2, 0, -1))} if draw.random() < 0.3 else {}
        factors |= {"beta": draw.choice((2, 0))} if "c" in tensors and draw.random() < 0.3 else {}
        around = draw.choice(("nothing", "nothing", "nothing", "threads", "autocast", "inference"))
        needed = [name for name in tensors if draw.random() < 0.5] if around in ("nothing", "threads") else []
        needed = [] if self.kind == "whole" else needed
        asked = {name: each.detach().requires_grad_(name in needed) for name, each in tensors.items()}
        wide = {name: each.detach().to(_wide(dtype)).requires_grad_(name in needed) for name, each in tensors.items()}
        wanted = self.expected(wide, functions, factors)
        words = self.words(asked, functions, factors)
        if not needed and self.epilogue == "none" and around in ("nothing", "inference") and draw.random() < 0.3:
            words["out"] = VIEWS[draw.choice(("as it is", "turned", "padded"))](
                torch.zeros(wanted[0].shape, dtype=dtype)
            )
        found = _made(around, lambda: weft.contract(self.equation, asked["a"], asked["b"], **words))
        rounded = BRAIN if around == "autocast" and dtype in (SINGLE, torch.float16) else dtype
        for results in found:
            _check(results, wanted, rounded)
        if needed:
            grads = [torch.randn(each.shape, dtype=_wide(dtype)) for each in wanted]
            self._check_gradients(
                found[-1], wanted, grads, [[of[name] for name in needed] for of in (asked, wide)], dtype
            )

    def _check_gradients(self, found: Any, wanted: Any, grads: Any, leaves: Any, dtype: torch.dtype) -> None:
        of_found = torch.autograd.grad(
            found, leaves[0], [g.to(each.dtype) for g, each in zip(grads, found, strict=True)]
        )
        pairs = [(each, grad.to(each.dtype)) for each, grad in zip(wanted, grads, strict=True) if each.requires_grad]
        of_wanted = torch.autograd.grad(
            [each for each, _ in pairs], leaves[1], [g for _, g in pairs], allow_unused=True, materialize_grads=True
        ) if pairs else [torch.zeros_like(leaf) for leaf in leaves[1]]  # fmt: skip
        _check(of_found, of_wanted, dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else DOUBLE if dtype.is_floating_point else torch.int64


def _made(around: str, call: Callable[[], Any]) -> list[tuple[torch.Tensor, ...]]:
    """The results of a call, or of one in each of three threads."""
    found: list[Any] = []
    context: AbstractContextManager[Any] = nullcontext()
    if around == "autocast":
        context = torch.autocast("cpu", BRAIN)
    if around == "inference":
        context = torch.inference_mode()
    with context:
        threads = [Thread(target=lambda: found.append(call())) for _ in range(2 * (around == "threads"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(call())
    assert len(found) == len(threads) + 1
    return [each if isinstance(each, tuple) else (each,) for each in found]


def _check(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    for one, exact in zip(found, wanted, strict=True):
        if dtype not in BOUNDS:
            assert torch.equal(one.to(exact.dtype), exact)
            continue
        scale = 1 + exact.detach().abs().amax() if exact.numel() else 1
        error = (one.detach().to(exact.dtype) - exact.detach()).abs()
        assert (error <= BOUNDS[dtype] * scale).all()


@pytest.fixture(autouse=True, scope="module")
def planned_anew() -> Iterator[None]:
    """Later tests of this process find no plans that began so."""
    yield
    validity.outdate()


@pytest.mark.parametrize("seed", range(48))
def test_every_call_gives_what_its_tensors_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TIERS", "1")
    sequence = Contracted(seed)
    for _ in range(CALLS):
        sequence.call()
