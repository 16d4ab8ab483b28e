"""`Attention`: heads of queries, keys and values, and any function of their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from weft.base.arrays import as_tensor, is_transforming
from weft.base.dispatch import is_dynamo_compiling
from weft.base.figures import counted
from weft.cascades.public import cascade
from weft.errors import ArgumentError, FunctionError, ShapeError
from weft.fn.binding import naming, parameters
from weft.fn.reductions import softmax
from weft.machine.exactness import shortened
from weft.nn.linear import Linear
from weft.planner.options import read_operands
from weft.spec.arguments import reads
from weft.spec.dtypes import DTypeLike

_EQUATION = "bqhgd,bkhd->bqhgk, bqhgk,bkhe->bqhge"
_COORDINATES = ("i", "j", "h")
_OWN = ("heads_of_keys", "member", "lengths")  # names that the function between has beside the score's


class Attention(torch.nn.Module):
    """Attention of several heads, with any function of a score and of where it stands.

    `x` is (..., length, features), and so is the result. Queries, keys and values are `Linear` layers of x, or keys and
    values of `context` (..., other length, features). `kv_heads` of them are shared by ``heads // kv_heads`` heads of
    queries each; by default each head has its own.

    `score` is a function of a score, already divided by the root of a head's width: torch operations, traced once. Of
    its further parameters `i` and `j` are the positions of query and key, `h` is the head, and others are named by a
    call's `operands`, whose modes are of ``b h q k``. What it returns goes into a softmax over keys. `causal` masks
    keys behind the query. `weft.functions` has soft caps, windows and ALiBi.

    Nothing of the size of all scores is in memory, neither forward nor backward. Without a `score`, `operands` and
    `lengths` it is torch's `scaled_dot_product_attention`, of halves on a GPU and of float32 and float64 on a CPU. That
    has no second derivatives; with ``score=lambda s: s`` it is weft's own.

    Raises `ArgumentError` for heads that do not divide the features, `FunctionError` for a score that is no function.

    >>> import torch, weft
    >>> layer = weft.nn.Attention(32, 4, kv_heads=2, causal=True,
    ...                           score=weft.functions.softcap)
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    @reads("nn.Attention.__init__")
    def __init__(
        self,
        features: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        score: Callable[..., Any] | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or features % heads or heads % kv_heads:
            raise ArgumentError(
                f"{features} features, {heads} heads and {kv_heads} heads of keys: each divides the one before"
            )
        self.features, self.heads, self.kv_heads = features, heads, kv_heads
        self.width, self.causal, self.score = features // heads, causal, score
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.query = Linear(features, features, **options)
        self.key = Linear(features, kv_heads * self.width, **options)
        self.value = Linear(features, kv_heads * self.width, **options)
        self.out = Linear(features, features, **options)

    def forward(
        self, x: Tensor, context: Tensor | None = None, *, lengths: Tensor | None = None,
        operands: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention of x to itself, or to `context`; of each sequence the first of `lengths` (...) keys are there."""
        source = x if context is None else context
        keys, values = self.key(source), self.value(source)
        return self._attended(x, keys, values, 0, lengths, operands)

    def step(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None = None, *,
        operands: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """Attention of the next positions to all so far, whose keys and values are `past`; and the new past."""
        keys, values = self.key(x), self.value(x)
        before = 0
        if past is not None:
            if not (isinstance(past, tuple) and len(past) == 2 and all(isinstance(each, Tensor) for each in past)):
                raise ArgumentError(f"past is a pair of keys and values, as step returns it, not {type(past).__name__}")
            for old, new in zip(past, (keys, values), strict=True):
                if old.dim() != new.dim() or (*old.shape[:-2], old.shape[-1]) != (*new.shape[:-2], new.shape[-1]):
                    raise ShapeError(f"past of shape {tuple(old.shape)} does not go before {tuple(new.shape)}")
            before = past[0].shape[-2]
            keys, values = (torch.cat([old, new], -2) for old, new in zip(past, (keys, values), strict=True))
        return self._attended(x, keys, values, before, None, operands), (keys, values)

    def _attended(
        self, x: Tensor, keys: Tensor, values: Tensor, before: int, lengths: Tensor | None,
        operands: Mapping[str, tuple[Any, Any]] | None,
    ) -> Tensor:  # fmt: skip
        groups = self.heads // self.kv_heads
        batch = x.shape[:-2]
        for name, each in (("x", x), ("context", keys)):
            if each.dim() < 2:
                raise ShapeError(f"{name} has {counted(each.dim(), 'dimension')}: it is (..., length, features)")
        if keys.shape[:-2] != batch:
            raise ShapeError(f"context has sequences of shape {tuple(keys.shape[:-2])}, x of {tuple(batch)}")
        q = self.query(x)
        if self.score is None and lengths is None and not operands and _is_plain(q, keys, values):
            return self.out(self._plain(q, keys, values, before))
        count = math.prod(batch)  # which torch does not find where a length is 0
        q = q.reshape(count, x.shape[-2], self.kv_heads, groups, self.width)
        k, v = (each.reshape(count, each.shape[-2], self.kv_heads, self.width) for each in (keys, values))
        given = {name: self._operand(name, *pair) for name, pair in read_operands(operands).items()}
        if lengths is not None:
            given["lengths"] = ("b", as_tensor("lengths", lengths).reshape(-1))
        takes = (parameters(self.score) or ()) if self.score is not None else ()
        names = self._names(given, takes)
        indices = {"i": "q", "j": "k", "heads_of_keys": "h", "member": "g"}
        between = _between(self.score, takes, names, self.causal, groups, before, lengths is not None)
        found = cascade(
            _EQUATION, q, k, v, between=between, alpha=self.width**-0.5, operands=given or None,
            indices={name: label for name, label in indices.items() if name in names},
        )  # fmt: skip
        return self.out(found.reshape(*batch, x.shape[-2], self.features))

    def _plain(self, q: Tensor, keys: Tensor, values: Tensor, before: int) -> Tensor:
        """Attention without a function of scores, by torch."""
        length, context = q.shape[-2], keys.shape[-2]
        queries, k, v = (
            each.reshape(-1, each.shape[-2], count, self.width).transpose(1, 2)
            for each, count in ((q, self.heads), (keys, self.kv_heads), (values, self.kv_heads))
        )
        seen = None
        if self.causal and before and length > 1:
            seen = torch.ones(length, context, dtype=torch.bool, device=q.device).tril(before)
        found = scaled_dot_product_attention(
            queries, k, v, attn_mask=seen, is_causal=self.causal and not before, enable_gqa=self.kv_heads < self.heads
        )
        return found.transpose(1, 2).reshape(q.shape)

    def _names(self, given: Mapping[str, Any], takes: tuple[str, ...]) -> tuple[str, ...]:
        """The parameters that the function between has: those that the score takes, and those of masks."""
        wanted = {name for name in takes if name in ("i", "j") or name in given}
        wanted |= {"i", "j"} if self.causal else set()
        wanted |= {"j", "lengths"} if "lengths" in given else set()
        wanted |= {"heads_of_keys", "member"} if "h" in takes else set()
        return tuple(sorted(wanted))

    def _operand(self, name: str, modes: Any, tensor: Tensor) -> tuple[str, Tensor]:
        """An operand along b, h, q and k, its heads as heads of keys and members."""
        if name in (*_COORDINATES, *_OWN):
            raise ArgumentError(f"an operand of Attention is not called '{name}', which is a coordinate or a mask")
        text = "".join(modes) if isinstance(modes, (tuple, list)) else str(modes)
        if not set(text) <= set("bhqk") or len(text) != tensor.dim():
            raise ArgumentError(f"operand '{name}' of Attention lies along modes of b, h, q and k, not '{text}'")
        if "h" not in text:
            return text, tensor
        at = text.index("h")
        if tensor.shape[at] != self.heads:
            raise ShapeError(f"operand '{name}' has {tensor.shape[at]} heads, the layer {self.heads}")
        return text.replace("h", "hg"), tensor.unflatten(at, (self.kv_heads, self.heads // self.kv_heads))

    def extra_repr(self) -> str:
        """Sizes, as `print` shows them."""
        return f"features={self.features}, heads={self.heads}, kv_heads={self.kv_heads}, causal={self.causal}"


def _is_plain(*tensors: Tensor) -> bool:
    """Whether torch has the kernel: of halves on a GPU, on a CPU of float32 whose products are not rounded."""
    first = tensors[0]
    if any(each.dtype is not first.dtype or not each.numel() for each in tensors):
        return False
    if not is_dynamo_compiling() and (is_transforming() or (first.is_cpu and shortened())):
        return False
    if first.is_cuda:
        return first.dtype in (torch.float16, torch.bfloat16)
    return first.is_cpu and first.dtype in (torch.float32, torch.float64)


def _between(
    score: Callable[..., Any] | None, takes: tuple[str, ...], names: tuple[str, ...], causal: bool, groups: int,
    before: int, ragged: bool,
) -> Callable[..., Any]:  # fmt: skip
    """The function of a score with these parameters; queries begin at position `before`."""
    if score is not None and not callable(score):
        raise FunctionError(f"score is a function, not {type(score).__name__}")

    def attended(value: Tensor, **places: Tensor) -> Tensor:
        if before and "i" in places:
            places["i"] = places["i"] + before
        if "member" in places:
            places["h"] = places["heads_of_keys"] * groups + places["member"]
        if score is not None:
            value = score(value, **{name: places[name] for name in takes if name in places})
        if causal:
            value = torch.where(places["j"] <= places["i"], value, -math.inf)
        if ragged:
            value = torch.where(places["j"] < places["lengths"], value, -math.inf)
        return softmax(value, "k")

    return naming(("value", *names), attended)
