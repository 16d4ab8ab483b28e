"""KernelBench's products: level 1's eighteen, and level 2's thirty-seven with what follows them, in float32.

Names, shapes and what is computed are those of github.com/ScalingIntelligence/KernelBench (MIT licence), commit
423217d9. The text here is this project's: `weft` of each case has at most six lines, and `plain` has the operations of
the task in torch. Three things differ. Task 66 is without its dropout, as nobody's random numbers can be compared.
Norms over the batch take the batch's own mean and variance, as in training, and keep no running ones. Factors and
shifts of norms that torch starts with 1 and 0 are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import weft
from weft_bench.cases.programs import Program, ProgramCase

ONE, TWO = "level 1", "level 2"
LINEAR = {"x": "mk", "w": "nk", "b": "n"}
USUAL = {"m": 1024, "k": 8192, "n": 8192}
Then = Callable[[Any], Any]


def kernelbench() -> tuple[ProgramCase, ...]:
    """The cases."""
    return (*_products(), *_pointwise(), *_reduced(), *_normed())


def _product(name: str, equation: str, plain: Program, **extents: int) -> ProgramCase:
    a, b = equation.partition("->")[0].split(",")

    def run(a: Tensor, b: Tensor, **how: Any) -> Tensor:
        return weft.contract(equation, a, b, **how)

    return ProgramCase(name, ONE, equation, run, plain, {"a": a, "b": b}, extents)


def _products() -> Iterator[ProgramCase]:
    """Level 1: tasks 1 to 18."""
    wide = {"m": 2048, "k": 8192, "n": 4096}
    square = {"m": 4096, "k": 4096, "n": 4096}
    yield _product("1-square", "mk,kn->mn", torch.matmul, **square)
    yield _product("2-standard", "mk,kn->mn", torch.matmul, **wide)
    yield _product("3-batched", "bmk,bkn->bmn", torch.bmm, b=128, m=512, k=1024, n=2048)
    yield _product("4-vector", "mk,kn->mn", torch.matmul, m=2048, k=1048576, n=1)
    yield ProgramCase("5-scalar", ONE, "mn->mn", lambda a, **how: weft.permute(a, "mn->mn", fn=_scaled, **how), _scaled,
                      {"a": "mn"}, {"m": 65536, "n": 16384})  # fmt: skip
    yield _product("6-large-k", "mk,kn->mn", torch.matmul, m=256, k=524288, n=256)
    yield _product("7-small-k", "mk,kn->mn", torch.matmul, m=32768, k=64, n=32768)
    yield _product("8-irregular", "mk,kn->mn", torch.matmul, m=8205, k=2949, n=5921)
    yield _product("9-tall", "mk,kn->mn", torch.matmul, m=32768, k=32, n=32768)
    yield _product("10-3d", "bmk,kn->bmn", torch.matmul, b=16, m=1024, k=2048, n=768)
    yield _product("11-4d", "bijk,kn->bijn", torch.matmul, b=8, i=256, j=512, k=256, n=768)
    yield _product("12-diagonal", "m,mn->mn", lambda a, b: a[:, None] * b, m=4096, n=4096)
    yield _shaped("13-symmetric", torch.matmul, lambda x: (x + x.T) / 2)
    yield _shaped("14-upper", lambda a, b: torch.triu(a @ b), torch.triu, _upper)
    yield _shaped("15-lower", lambda a, b: torch.tril(a @ b), torch.tril, _lower)
    yield _product("16-transposed-a", "km,kn->mn", lambda a, b: a.T @ b, **wide)
    yield _product("17-transposed-b", "mk,nk->mn", lambda a, b: a @ b.T, **wide)
    yield _product("18-transposed-both", "km,nk->mn", lambda a, b: a.T @ b.T, **wide)


def _scaled(x: Tensor) -> Tensor:
    return x * 3.14


def _upper(s: Any, i: Any, j: Any) -> Any:
    return torch.where(i <= j, s, 0.0)


def _lower(s: Any, i: Any, j: Any) -> Any:
    return torch.where(i >= j, s, 0.0)


def _shaped(name: str, plain: Program, made: Callable[[Tensor], Tensor], kept: Any = None) -> ProgramCase:
    """A product of square matrices of one shape; only elements that `kept` keeps are stored."""
    options = {"epilogue": kept, "indices": {"i": "m", "j": "n"}} if kept else {}

    def run(a: Tensor, b: Tensor, **how: Any) -> Tensor:
        return weft.contract("mk,kn->mn", a, b, **options, **how)

    square = {"m": 4096, "k": 4096, "n": 4096}
    return ProgramCase(name, ONE, "mk,kn->mn", run, plain, {"a": "mk", "b": "kn"}, square, made=made)


def _layer(then: Then) -> Program:
    """A linear layer and a function of each element, in one call."""

    def run(x: Tensor, w: Tensor, b: Tensor, **how: Any) -> Tensor:
        return weft.contract("mk,nk->mn", x, w, epilogue=lambda s, b: then(s + b), operands={"b": ("n", b)}, **how)

    return run


def _task(name: str, run: Program, plain: Program, **given: Any) -> ProgramCase:
    """A task of level 2 on the tensors of a linear layer, and on others that are named besides."""
    extents = USUAL | given.pop("extents", {})
    more = given.pop("more", {})
    drawn = {"w": "layer", "b": "layer"} | given.pop("drawn", {})
    return ProgramCase(name, TWO, "mk,nk->mn", run, plain, LINEAR | more, extents, drawn, **given)


def _pointwise() -> Iterator[ProgramCase]:
    """Level 2: functions of each element."""
    large, thin, long = ({"m": m, "k": k, "n": k} for m, k in ((16384, 4096), (128, 32768), (2048, 8192)))
    tasks: tuple[tuple[str, Then, dict[str, int]], ...] = (
        ("9-subtract-multiply-relu", lambda s: torch.relu((s - 2.0) * 1.5), {}),
        ("12-multiply-leaky-relu", lambda s: F.leaky_relu(s * 2.0, 0.1), {}),
        ("29-mish-mish", lambda s: F.mish(F.mish(s)), {}),
        ("40-scaling-residual", lambda s: s * 0.5 + s, large),
        ("53-scaling-hardtanh-gelu", lambda s: F.gelu(F.hardtanh(s * 0.5, -2.0, 2.0)), long),
        ("59-swish-scaling", lambda s: s * torch.sigmoid(s) * 2.0, thin),
        ("63-relu-divide", lambda s: torch.relu(s) / 2.0, {}),
        ("68-min-subtract", lambda s: torch.clamp(s, max=2.0) - 2.0, thin | {"k": 16384, "n": 16384}),
        ("70-sigmoid-scaling-residual", lambda s: torch.sigmoid(s) * 2.0 + s, {}),
        ("76-add-relu", torch.relu, {}),
        ("81-swish-divide-clamp-tanh-clamp",
         lambda s: torch.clamp(torch.tanh(torch.clamp(s * torch.sigmoid(s) / 2.0, -1.0, 1.0)), -1.0, 1.0), {}),
        ("86-divide-gelu", lambda s: F.gelu(s / 10.0), {}),
    )  # fmt: skip
    for name, then, extents in tasks:
        yield _task(name, _layer(then), _after(then), extents=extents)

    def activated(s: Any) -> Any:
        return F.hardtanh(F.gelu(torch.tanh(torch.sigmoid(s) * s)), -1.0, 1.0)

    def added(x: Tensor, w: Tensor, b: Tensor, add: Tensor, **how: Any) -> Tensor:
        return weft.contract("mk,nk->mn", x, w, epilogue=lambda s, b, add: activated(s + b + add),
                             operands={"b": ("n", b), "add": ("n", add)}, **how)  # fmt: skip

    yield _task("95-add-swish-tanh-gelu-hardtanh", added, lambda x, w, b, add: activated(F.linear(x, w, b) + add),
                more={"add": "n"}, drawn={"add": "randn"})  # fmt: skip


def _after(then: Then) -> Program:
    """A linear layer of torch, then one operation after the other."""
    return lambda x, w, b: then(F.linear(x, w, b))


def _rows(between: Then, after: Then = lambda rows: rows) -> Program:
    """A linear layer reduced over n without being stored, and what follows on the few values that are left."""

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        found = weft.cascade("mk,nk->mn", x, w, between=lambda s, b: between(s + b), operands={"b": ("n", b)})
        return after(found)

    return run


def _reduced() -> Iterator[ProgramCase]:
    """Level 2: reductions over the columns of the product."""
    yield ProgramCase(
        "14-divide-sum-scaling", TWO, "mk,nk->mn",
        lambda x, weight, **how: weft.contract("mk,nk->m", x, weight, alpha=0.75, **how)[:, None],
        lambda x, weight: torch.sum(x @ weight.T / 2, 1, keepdim=True) * 1.5,
        {"x": "mk", "weight": "nk"}, USUAL, {"weight": "randn"},
    )  # fmt: skip

    def summed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        s = F.linear(x, w, b).sum(1, keepdim=True).amax(1, keepdim=True).mean(1, keepdim=True)
        return s.logsumexp(1, keepdim=True).logsumexp(1, keepdim=True)

    yield _task("18-sum-max-average-logsumexp", _rows(lambda s: weft.sum(s, "n"), _column), summed, tiers=False)

    def doubled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        s = F.linear(x, w, b) * 2.0
        s = torch.clamp(s + s, -10.0, 10.0).logsumexp(1, keepdim=True)
        return s * F.mish(s)

    def clamped(s: Any) -> Any:
        return weft.logsumexp(torch.clamp(4.0 * s, -10.0, 10.0), "n")

    yield _task("22-scale-residual-clamp-logsumexp-mish", _rows(clamped, lambda r: _column(r * F.mish(r))), doubled,
                tiers=False)  # fmt: skip
    yield _two_layers()

    def averaged(x: Tensor, w: Tensor, b: Tensor, sub: Tensor) -> Tensor:
        s = (F.linear(x, w, b) - sub).mean(1, keepdim=True).logsumexp(1, keepdim=True)
        return F.gelu(s) + x

    def mean(x: Tensor, w: Tensor, b: Tensor, sub: Tensor) -> Tensor:
        rows = weft.cascade("mk,nk->mn", x, w, between=lambda s, b, sub: weft.mean(s + b - sub, "n"),
                            operands={"b": ("n", b), "sub": ("n", sub)})  # fmt: skip
        return F.gelu(_column(rows)) + x

    yield _task("51-subtract-average-logsumexp-gelu-residual", mean, averaged, more={"sub": "n"},
                drawn={"sub": "randn"}, extents={"m": 2048}, tiers=False)  # fmt: skip
    yield _task("55-max-pool-sum-scale", _pooled(2, lambda s: 0.5 * weft.sum(weft.amax(s, "q"), "p")),
                lambda x, w, b: F.max_pool1d(F.linear(x, w, b)[:, None], 2)[:, 0].sum(1) * 0.5,
                extents={"m": 128, "k": 32768, "n": 32768}, multiple=2, tiers=False)  # fmt: skip
    yield _task("56-sigmoid-sum", _rows(lambda s: weft.sum(torch.sigmoid(s), "n"), _column),
                lambda x, w, b: torch.sigmoid(F.linear(x, w, b)).sum(1, keepdim=True),
                extents={"m": 128, "k": 32768, "n": 32768}, tiers=False)  # fmt: skip

    def activated(s: Tensor) -> Tensor:
        return F.gelu(F.gelu(F.leaky_relu(F.leaky_relu(s, 0.01), 0.01)))

    yield _task("64-logsumexp-leaky-relu-gelu",
                _rows(lambda s: weft.logsumexp(s, "n"), lambda r: activated(_column(r))),
                lambda x, w, b: activated(F.linear(x, w, b).logsumexp(1, keepdim=True)), tiers=False)  # fmt: skip

    def centred(rows: Tensor) -> Tensor:
        return F.gelu(rows - rows.mean(1, keepdim=True))

    yield _task("80-max-subtract-gelu", _rows(lambda s: weft.amax(s, "n"), lambda r: centred(_column(r))),
                lambda x, w, b: centred(F.linear(x, w, b).amax(1, keepdim=True)), tiers=False)  # fmt: skip
    yield _task("98-average-pool-gelu-scale-max",
                _pooled(16, lambda s: weft.amax(F.gelu(weft.mean(s, "q")) * 2.0, "p")),
                lambda x, w, b: (F.gelu(F.avg_pool1d(F.linear(x, w, b)[:, None], 16)[:, 0]) * 2.0).amax(1),
                multiple=16, tiers=False)  # fmt: skip


def _column(rows: Tensor) -> Tensor:
    return rows[:, None]


def _pooled(count: int, between: Then) -> Program:
    """A linear layer whose columns are pooled by so many, and reduced."""

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        w, b = w.unflatten(0, (-1, count)), b.unflatten(0, (-1, count))
        return weft.cascade("mk,pqk->mpq", x, w, between=lambda s, b: between(s + b), operands={"b": ("pq", b)})

    return run


def _two_layers() -> ProgramCase:
    def run(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        hidden = _layer(torch.sigmoid)(x, w, b)
        return _rows(lambda s: weft.logsumexp(s, "n"))(hidden, v, c)

    def plain(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return F.linear(torch.sigmoid(F.linear(x, w, b)), v, c).logsumexp(1)

    return _task("45-sigmoid-logsumexp", run, plain, more={"v": "on", "c": "o"}, drawn={"v": "layer", "c": "layer"},
                 extents={"m": 16384, "k": 2048, "n": 4096, "o": 1024}, tiers=False)  # fmt: skip


def _normed() -> Iterator[ProgramCase]:
    """Level 2: norms and softmax of rows, between functions of each element."""
    yield _norm("30-group-norm-hardtanh", _groups(16), lambda s: F.hardtanh(s, -2.0, 2.0), multiple=4 * 16)
    yield _norm("41-batch-norm-gelu-relu", _batch, lambda s: torch.relu(F.gelu(s)),
                extents={"m": 16384, "k": 4096, "n": 4096})  # fmt: skip
    yield _norm("62-group-norm-leaky-relu-sum", _groups(512), lambda s: 2.0 * F.leaky_relu(s, 0.01), multiple=4 * 512,
                plainly=lambda s: F.leaky_relu(s, 0.01) + F.leaky_relu(s, 0.01))  # fmt: skip
    yield _norm("66-softmax", lambda s: torch.softmax(s, 1), extents={"m": 128, "k": 16384, "n": 16384})
    yield _norm("84-batch-norm-softmax", lambda s: torch.softmax(_batch(s), 1))
    yield _norm("99-gelu-softmax", lambda s: torch.softmax(s, 1), before=F.gelu)
    for number, extents in ((33, {}), (39, {"m": 16384, "k": 4096, "n": 4096})):
        yield _with_vector(f"{number}-scale-batch-norm", lambda s, v: s * v, _batch, extents=extents)
    yield _with_vector("37-swish-sum-group-norm", lambda s, v: torch.sigmoid(s) * s + v, _groups(64), multiple=4 * 64,
                       extents={"m": 32768, "k": 1024, "n": 4096})  # fmt: skip
    yield _with_vector("94-bias-hardtanh-mish-group-norm", lambda s, v: F.mish(F.hardtanh(s + v)), _groups(256),
                       multiple=4 * 256)  # fmt: skip
    yield _biased_norm()
    yield _row_norm()
    yield _minimum()
    yield _gated()


def _same(s: Any) -> Any:
    return s


def _swish(s: Any) -> Any:
    return s * torch.sigmoid(s)


def _groups(count: int) -> Then:
    return lambda s: F.group_norm(s, count)


def _batch(s: Tensor) -> Tensor:
    return F.batch_norm(s, None, None, training=True)


def _norm(name: str, norm: Then, after: Then | None = None, before: Then = _same, plainly: Then | None = None,
          **given: Any) -> ProgramCase:  # fmt: skip
    """A layer with a function, a norm by torch, and a function of each element in one pass."""

    def run(x: Tensor, w: Tensor, b: Tensor, **how: Any) -> Tensor:
        s = norm(_layer(before)(x, w, b, **how))
        return weft.permute(s, "mn->mn", fn=after, **how) if after else s

    last = plainly or after or _same
    return _task(name, run, lambda x, w, b: last(norm(before(F.linear(x, w, b)))), **given)


def _with_vector(name: str, then: Callable[..., Any], norm: Then, **given: Any) -> ProgramCase:
    """A layer with a function that takes a value of each column, then a norm by torch."""

    def run(x: Tensor, w: Tensor, b: Tensor, v: Tensor, **how: Any) -> Tensor:
        s = weft.contract("mk,nk->mn", x, w, epilogue=lambda s, b, v: then(s + b, v),
                          operands={"b": ("n", b), "v": ("n", v)}, **how)  # fmt: skip
        return norm(s)

    return _task(name, run, lambda x, w, b, v: norm(then(F.linear(x, w, b), v)), more={"v": "n"},
                 drawn={"v": "randn"}, **given)  # fmt: skip


def _biased_norm() -> ProgramCase:
    """Task 97, whose one bias is that of the norm."""

    def run(x: Tensor, w: Tensor, b: Tensor, one: Tensor, **how: Any) -> Tensor:
        s = F.batch_norm(_layer(_same)(x, w, b, **how), None, None, bias=one.expand(len(w)), training=True)
        return weft.permute(s, "mn->mn", fn=_swish, **how)

    def plain(x: Tensor, w: Tensor, b: Tensor, one: Tensor) -> Tensor:
        return _swish((_batch(F.linear(x, w, b)) + one) / 1.0)

    return _task("97-batch-norm-bias-divide-swish", run, plain, more={"one": "u"}, drawn={"one": "randn"},
                 extents={"u": 1})  # fmt: skip


def _row_norm() -> ProgramCase:
    """Task 28, whose norm of one channel is a norm of each row."""

    def run(x: Tensor, w: Tensor, b: Tensor, y: Tensor, **how: Any) -> Tensor:
        s = F.layer_norm(_layer(_same)(x, w, b, **how), w.shape[:1])
        return weft.contract("mn,mn->mn", s, y, epilogue=lambda p, y: p + y * y, operands={"y": ("mn", y)}, **how)

    def plain(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        s = F.instance_norm(F.linear(x, w, b)[:, None, None])[:, 0, 0]
        return (s + y) * y

    return _task("28-instance-norm-sum-residual-multiply", run, plain, more={"y": "mn"})


def _minimum() -> ProgramCase:
    """Task 75, whose bias meets the least element of each row in a table of its own."""

    def run(x: Tensor, w: Tensor, b: Tensor, v: Tensor, **how: Any) -> Tensor:
        s = F.group_norm(_layer(_same)(x, w, b, **how), 512)
        return (s.amin(1) + v[:, None])[None, :, :, None]

    def plain(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return F.group_norm(F.linear(x, w, b), 512).amin(1, keepdim=True) + v[None, :, None, None]

    return _task("75-group-norm-min-bias", run, plain, more={"v": "n"}, drawn={"v": "randn"}, multiple=4 * 512)


def _gated() -> ProgramCase:
    """Task 88: a norm between two gates."""

    def run(x: Tensor, w: Tensor, b: Tensor, v: Tensor, **how: Any) -> Tensor:
        s = F.group_norm(_layer(_same)(x, w, b, **how), 256)
        return weft.contract("mn,n->mn", s, v, a_fn=_swish, epilogue=_swish, **how)

    def plain(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return _swish(_swish(F.group_norm(F.linear(x, w, b), 256)) * v)

    return _task("88-group-norm-swish-multiply-swish", run, plain, more={"v": "n"}, drawn={"v": "randn"},
                 multiple=4 * 256)  # fmt: skip
