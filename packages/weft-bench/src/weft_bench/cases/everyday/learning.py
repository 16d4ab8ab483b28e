"""Layers of neural networks: linear ones with bias and activation, attention, gates, norms, mixtures, embeddings.

Extents are those of public models: BERT, GPT-2, LLaMA 7B and 3 8B, ViT-B/16, DLRM, Mixtral, ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from weft_bench.cases.everyday.case import BRAIN, HALF, SINGLE, EverydayCase, Fused, case

Activation = Callable[[Any], Any]

ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}  # fmt: skip
CAUSAL = Fused(lambda s, i, j: torch.where(i >= j, s, -torch.inf), indices={"i": "q", "j": "k"})
MASKED = Fused(lambda s, mask: s + mask, operands={"mask": "qk"})
GATED = Fused(lambda s, gate: s * functional.silu(gate), operands={"gate": "mn"})
RESIDUAL = Fused(lambda s, x: s + x, operands={"x": "mn"})
HEAD = 64**-0.5


def learning() -> Iterator[EverydayCase]:
    """All of them."""
    yield from _linear()
    yield from _attention()
    yield from _gates()
    yield from _mixtures()


def layer(
    name: str, rows: int, inner: int, outer: int, act: str = "", dtype: torch.dtype = HALF, bias: bool = True,
    regret: bool = False,
) -> EverydayCase:  # fmt: skip
    """A linear layer: ``act(x @ w.T + bias)``."""
    activation = ACTIVATIONS.get(act)
    fused = _with_bias(activation) if bias else Fused(activation) if activation else None

    def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        value = functional.linear(x, w, b)
        return activation(value) if activation else value

    return case("linear", name, "mk,nk->mn", m=rows, k=inner, n=outer, dtype=dtype, fused=fused, plain=plain,
                regret=regret)  # fmt: skip


def _with_bias(activation: Activation | None) -> Fused:
    def biased(s: Any, bias: Any) -> Any:
        return activation(s + bias) if activation else s + bias

    return Fused(biased, operands={"bias": "n"})


def _linear() -> Iterator[EverydayCase]:
    yield layer("llama up, bias + GELU, 8192 rows", 8192, 4096, 11008, "gelu", regret=True)
    yield layer("llama up, bias + ReLU, 16 rows", 16, 4096, 11008, "relu", regret=True)
    yield layer("llama up, bias + SiLU, 512 rows", 512, 4096, 11008, "silu")
    yield layer("llama up, 1 row", 1, 4096, 11008, bias=False)
    yield layer("llama down, 2048 rows", 2048, 11008, 4096, dtype=BRAIN, bias=False)
    yield layer("llama down, 8 rows", 8, 11008, 4096, dtype=BRAIN, bias=False)
    yield layer("llama 3 keys, 1024 rows", 1024, 4096, 1024, dtype=BRAIN, bias=False)
    yield layer("llama 3 up + SiLU, 128 rows", 128, 4096, 14336, "silu", BRAIN, bias=False)
    yield layer("gpt2 attention in, 1024 rows", 1024, 768, 2304)
    yield layer("gpt2 up, bias + GELU, 4096 rows", 4096, 768, 3072, "gelu")
    yield layer("gpt2 down, bias, 4096 rows", 4096, 3072, 768)
    yield layer("gpt2 up, bias + GELU, 1 row, fp32", 1, 768, 3072, "gelu", SINGLE)
    yield layer("bert up, bias + GELU, 512 rows, fp32", 512, 768, 3072, "gelu", SINGLE)
    yield layer("bert pooler, bias + tanh, 32 rows, fp32", 32, 768, 768, "tanh", SINGLE)
    yield layer("vit up, bias + GELU, 64 images", 64 * 197, 768, 3072, "gelu")
    yield layer("classifier, bias, 256 rows", 256, 2048, 1000)
    yield layer("mnist hidden, bias + ReLU, 64 rows, fp32", 64, 784, 128, "relu", SINGLE)
    yield layer("mnist out, bias, 64 rows, fp32", 64, 128, 10, dtype=SINGLE)
    yield layer("dlrm top, bias + ReLU, 2048 rows, fp32", 2048, 479, 1024, "relu", SINGLE)
    yield layer("dlrm last, bias + sigmoid, 2048 rows, fp32", 2048, 256, 1, "sigmoid", SINGLE)
    yield case("linear", "down and residual, 2048 rows", "mk,nk->mn", m=2048, k=4096, n=4096, dtype=HALF,
               fused=RESIDUAL, plain=lambda x, w, r: functional.linear(x, w) + r)  # fmt: skip
    yield case("linear", "silu of a gate times up, 2048 rows", "mk,nk->mn", m=2048, k=4096, n=11008, dtype=HALF,
               fused=GATED, plain=lambda x, w, g: functional.linear(x, w) * functional.silu(g))  # fmt: skip
    yield case("linear", "weight gradient, 4096 rows", "mn,mk->nk", m=4096, n=3072, k=768, dtype=HALF)


_lower: dict[tuple[int, int, torch.device], torch.Tensor] = {}  # masks, which a model makes once


def _causal_plain(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * HEAD
    key = (q.shape[1], k.shape[1], q.device)
    if key not in _lower:
        _lower[key] = torch.ones(key[:2], device=q.device, dtype=torch.bool).tril()
    return torch.where(_lower[key], scores, -torch.inf)


def _attention() -> Iterator[EverydayCase]:
    here = "attention"
    heads = {"b": 4, "h": 16, "q": 1024, "k": 1024, "d": 64}
    yield case(here, "causal scores, heads inside", "bqhd,bkhd->bhqk", **heads | {"q": 2048, "k": 2048}, dtype=HALF,
               fused=CAUSAL, options={"alpha": HEAD}, plain=_causal_plain, regret=True)  # fmt: skip
    yield case(here, "scores, heads outside", "bhqd,bhkd->bhqk", **heads, dtype=HALF, options={"alpha": HEAD},
               plain=lambda q, k: torch.matmul(q, k.transpose(-1, -2)) * HEAD)  # fmt: skip
    yield case(here, "scores and a mask", "bhqd,bhkd->bhqk", **heads, dtype=BRAIN, options={"alpha": HEAD},
               fused=MASKED, plain=lambda q, k, mask: torch.matmul(q, k.transpose(-1, -2)) * HEAD + mask)  # fmt: skip
    yield case(here, "values", "bhqk,bhkd->bhqd", **heads, dtype=HALF, plain=torch.matmul)
    yield case(here, "values, heads merged", "bhqk,bkhd->bqhd", **heads, dtype=HALF)
    yield case(here, "decode scores, 1 query", "bhqd,bhkd->bhqk", **heads | {"b": 16, "q": 1, "k": 2048}, dtype=HALF)
    yield case(here, "decode values, 1 query", "bhqk,bhkd->bhqd", **heads | {"b": 16, "q": 1, "k": 2048}, dtype=HALF)
    grouped = {"b": 2, "g": 8, "h": 4, "q": 1024, "k": 1024, "d": 128}
    yield case(here, "grouped query scores", "bghqd,bgkd->bghqk", **grouped, dtype=BRAIN)
    yield case(here, "grouped query values", "bghqk,bgkd->bghqd", **grouped, dtype=BRAIN)
    yield case(here, "multi-query scores", "bhqd,bkd->bhqk", **heads, dtype=HALF)
    yield case(here, "relative positions", "bhqd,qkd->bhqk", **heads | {"q": 256, "k": 256}, dtype=HALF)
    yield case(here, "talking heads", "bhqk,hg->bgqk", b=4, h=16, g=16, q=512, k=512, dtype=HALF)
    yield case(here, "linear attention, keys and values", "bhkd,bhke->bhde", **heads, e=64)
    yield case(here, "bert scores, fp32", "bhqd,bhkd->bhqk", b=8, h=12, q=128, k=128, d=64)
    yield case(here, "projection of heads", "bqhd,ehd->bqe", b=4, q=1024, h=16, d=64, e=1024, dtype=HALF)
    yield case(here, "rotary angles", "i,j->ij", i=2048, j=64)


def _gates() -> Iterator[EverydayCase]:
    here = "norms and gates"
    hidden = {"b": 8, "s": 1024, "d": 1024}
    yield case(here, "sums of a layer norm", "bsd->bs", **hidden, plain=lambda x: x.sum(-1))
    yield case(here, "sums of squares of a layer norm", "bsd,bsd->bs", **hidden)
    yield case(here, "scale of a norm, half", "bsd,d->bsd", **hidden, dtype=HALF, plain=torch.mul)
    yield case(here, "gate, half", "bsd,bsd->bsd", **hidden, dtype=HALF,
               options={"a_fn": functional.silu}, plain=lambda x, y: functional.silu(x) * y)  # fmt: skip
    yield case(here, "squeeze and excite", "bchw,bc->bchw", b=32, c=256, h=56, w=56, dtype=HALF,
               plain=lambda x, s: x * s[:, :, None, None])  # fmt: skip
    yield case(here, "mean of a batch of images", "bchw->bc", b=64, c=256, h=56, w=56,
               plain=lambda x: x.sum((-1, -2)))  # fmt: skip
    yield case(here, "convolution 1x1, nchw", "bchw,oc->bohw", b=32, c=64, h=56, w=56, o=256, dtype=HALF,
               plain=lambda x, w: functional.conv2d(x, w[:, :, None, None]))  # fmt: skip
    yield case(here, "convolution 1x1, nhwc", "bhwc,oc->bhwo", b=32, c=256, h=28, w=28, o=128, dtype=HALF,
               plain=functional.linear)  # fmt: skip


def _mixtures() -> Iterator[EverydayCase]:
    here = "mixtures and embeddings"
    yield case(here, "experts up", "ecd,edf->ecf", e=8, c=512, d=1024, f=4096, dtype=BRAIN, plain=torch.bmm)
    yield case(here, "experts' dispatch", "sec,sd->ecd", s=1024, e=8, c=256, d=512, dtype=HALF)
    yield case(here, "low-rank down", "bsk,rk->bsr", b=4, s=1024, k=4096, r=16, dtype=HALF, plain=functional.linear)
    yield case(here, "low-rank up", "bsr,nr->bsn", b=4, s=1024, r=16, n=4096, dtype=HALF, plain=functional.linear)
    yield case(here, "dlrm interactions", "bfd,bgd->bfg", b=2048, f=27, g=27, d=128,
               plain=lambda x, y: torch.bmm(x, y.transpose(1, 2)))  # fmt: skip
    yield case(here, "outer products of embeddings", "bi,bj->bij", b=4096, i=64, j=64)
    yield case(here, "similarities of two towers", "id,jd->ij", i=4096, j=4096, d=256, dtype=HALF)
    yield case(here, "bilinear layer", "bi,oij,bj->bo", b=256, i=128, j=128, o=64,
               plain=lambda x, w, y: functional.bilinear(x, y, w))  # fmt: skip
    yield case(here, "grouped linear", "bgi,gio->bgo", b=4096, g=16, i=64, o=64, dtype=HALF)
