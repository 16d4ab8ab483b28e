"""Figures of cascades on a GPU beside what else computes the same: JSON, and a table.

    python tools/cascade_figures.py --out FILE            # all cases
    python tools/cascade_figures.py decode "sums d 3"     # those that have one of these words in their name

A time is the median of calls in a loop, the host's work included. Peers: `sdpa` is the fastest backend of torch's
attention, `flex` FlexAttention compiled, `compile` the plain way compiled, `blocks` the same by blocks of rows. Each
result is held against a peer's; `error` is the largest difference over the largest value.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import weft
from weft.machine.stamp import device_stamp
from weft.machine.timing import measure

ATTENTION = "bhqd,bhkd->bhqk, bhqk,bhke->bhqe"
PLACES = {"i": "q", "j": "k"}
POINTS = 100_000
INF = float("inf")
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
torch._dynamo.config.recompile_limit = 64  # each case has functions of its own
flex = torch.compile(flex_attention, dynamic=False)

Call = Callable[[], Any]


class Case(NamedTuple):
    """A call of weft, and calls of peers by name; the first one's result is compared."""

    name: str
    ours: Call
    peers: dict[str, Call]


def softmax(s: Tensor) -> Tensor:
    return weft.softmax(s, "k")


def causal(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return weft.softmax(torch.where(j <= i, s, -INF), "k")


def capped(s: Tensor, i: Tensor, j: Tensor, slope: Tensor) -> Tensor:
    s = 30 * torch.tanh(s / 30) + slope * (j - i)
    return weft.softmax(torch.where((j <= i) & (j > i - 1024), s, -INF), "k")


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def fastest(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, **more: Any) -> Call:
    """torch's attention by the fastest of its backends."""
    times = {}
    for backend in BACKENDS:
        with suppress(RuntimeError), sdpa_kernel(backend):
            times[seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **more))] = backend

    def call() -> Tensor:
        with sdpa_kernel(times[min(times)]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **more)

    return call


def both(call: Call, inputs: tuple[Tensor, ...], grad: Tensor) -> Call:
    """A forward and a backward pass."""
    return lambda: torch.autograd.grad(call(), inputs, grad)


def attention(n: int, heads: int, masked: bool) -> Iterator[Case]:
    q, k, v = (drawn(1, heads, n, 128) for _ in range(3))
    said: dict[str, Any] = {"between": causal if masked else softmax, "alpha": 128**-0.5, "backend": "triton"}
    plan = weft.plan_cascade(ATTENTION, q, k, v, **said, **({"indices": PLACES} if masked else {}))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, "cuda") if masked else None
    calls = lambda: plan(q, k, v), fastest(q, k, v, masked), lambda: flex(q, k, v, block_mask=mask)
    name = f"attention {n} {'causal' if masked else 'full'}"
    yield Case(f"{name} forward", calls[0], {"sdpa": calls[1], "flex": calls[2]})
    x = tuple(each.requires_grad_() for each in (q, k, v))
    grad = drawn(1, heads, n, 128)
    ours, sdpa, other = (both(call, x, grad) for call in calls)
    yield Case(f"{name} both", ours, {"sdpa": sdpa, "flex": other})


def scored() -> Iterator[Case]:
    n, heads = 8192, 8
    q, k, v = (drawn(1, heads, n, 128) for _ in range(3))
    slope = weft.functions.alibi_slopes(heads, "cuda")
    said = {"between": capped, "alpha": 128**-0.5, "indices": PLACES, "operands": {"slope": ("h", slope)}}
    plan = weft.plan_cascade(ATTENTION, q, k, v, backend="triton", **said)
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (j > i - 1024), None, None, n, n, "cuda")

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 30 * torch.tanh(s / 30) + slope[h] * (j - i)

    calls = (
        lambda: plan(q, k, v, operands={"slope": slope}),
        lambda: flex(q, k, v, score_mod=score, block_mask=mask),
    )
    yield Case("soft cap, ALiBi, window of 1024, 8192 forward", calls[0], {"flex": calls[1]})
    x = tuple(each.requires_grad_() for each in (q, k, v))
    grad = drawn(1, heads, n, 128)
    ours, theirs = (both(call, x, grad) for call in calls)
    yield Case("soft cap, ALiBi, window of 1024, 8192 both", ours, {"flex": theirs})


def decode(n: int) -> Iterator[Case]:
    q, k, v = drawn(1, 8, 8, 128), drawn(1, 8, n, 128), drawn(1, 8, n, 128)
    plan = weft.plan_cascade(ATTENTION, q, k, v, between=softmax, alpha=128**-0.5, backend="triton")
    sdpa = fastest(q.reshape(1, 64, 1, 128), k, v, False, enable_gqa=True)
    name = f"decode, 8 heads of queries to each of 8, {n} keys"
    yield Case(name, lambda: plan(q, k, v), {"sdpa": lambda: sdpa().reshape(q.shape)})


def sums(d: int, precision: str) -> Iterator[Case]:
    x, y = drawn(POINTS, d, dtype=torch.float32), drawn(POINTS, d, dtype=torch.float32)
    b, g = drawn(POINTS, 1, dtype=torch.float32), torch.zeros(POINTS, device="cuda")
    p, q = x.square().sum(1), y.square().sum(1)
    given = {"p": ("i", p), "q": ("j", q)}

    def gauss(s: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return torch.exp((2 * s - p - q) * (1.0 / d))

    def step(s: Tensor, p: Tensor, q: Tensor, g: Tensor) -> Tensor:
        return -0.1 * weft.logsumexp((g - (p + q - 2 * s)) * 10.0, "j")

    @torch.compile(dynamic=False)
    def sum_of(x: Tensor, p: Tensor) -> Tensor:
        return torch.exp((2 * x @ y.T - p[:, None] - q) * (1.0 / d)) @ b

    @torch.compile(dynamic=False)
    def step_of(x: Tensor, p: Tensor) -> Tensor:
        return -0.1 * ((g - (p[:, None] + q - 2 * x @ y.T)) * 10.0).logsumexp(1)

    said: dict[str, Any] = {"backend": "triton", "precision": precision}
    plan = weft.plan_cascade("id,jd->ij, ij,je->ie", x, y, b, between=gauss, operands=given, **said)
    sink = weft.plan_cascade("id,jd->ij", x, y, between=step, operands={**given, "g": ("j", g)}, **said)
    name = f"{POINTS} points, d {d}, {precision}"
    ours = lambda: plan(x, y, b, operands={"p": p, "q": q})  # noqa: E731
    yield Case(f"kernel sum, {name}", ours, {"blocks": lambda: by_rows(sum_of, x, p)})
    ours = lambda: sink(x, y, operands={"p": p, "q": q, "g": g})  # noqa: E731
    yield Case(f"Sinkhorn step, {name}", ours, {"blocks": lambda: by_rows(step_of, x, p)})


def by_rows(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, p: Tensor, rows: int = 2500) -> Tensor:
    return torch.cat([function(*each) for each in zip(x.split(rows), p.split(rows), strict=True)])


def loss() -> Iterator[Case]:
    tokens, words, width = 8192, 128_000, 4096
    x, w = drawn(tokens, width, dtype=torch.bfloat16) / 64, drawn(words, width, dtype=torch.bfloat16)
    target = torch.randint(0, words, (tokens,), device="cuda")

    def cross(s: Tensor, w: Tensor, target: Tensor) -> Tensor:
        return weft.mean(weft.logsumexp(s, "w") - weft.sum(torch.where(w == target, s, 0.0), "w"), "t")

    plan = weft.plan_cascade(
        "td,wd->tw", x, w, between=cross, operands={"target": ("t", target)}, indices={"w": "w"}, backend="triton"
    )
    plain = torch.compile(lambda: F.cross_entropy((x @ w.T).float(), target))
    yield Case(f"linear and cross-entropy, {tokens} tokens, {words} words",
               lambda: plan(x, w, operands={"target": target}), {"compile": plain})  # fmt: skip


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "attention 4096 full": lambda: attention(4096, 16, False),
    "attention 4096 causal": lambda: attention(4096, 16, True),
    "attention 16384 full": lambda: attention(16384, 4, False),
    "attention 16384 causal": lambda: attention(16384, 4, True),
    "score function": scored,
    "decode 8192": lambda: decode(8192),
    "decode 65536": lambda: decode(65536),
    "sums d 3 ieee": lambda: sums(3, "ieee"),
    "sums d 64 ieee": lambda: sums(64, "ieee"),
    "sums d 64 tf32x3": lambda: sums(64, "tf32x3"),
    "loss": loss,
}


def seconds(call: Call) -> float:
    return measure(call, [()], device="cuda", mode="hot", budget=0.1, capture=False, quick=True).seconds


def measured(case: Case) -> dict[str, Any]:
    """Times, memory and errors of a case."""
    found: dict[str, Any] = {"case": case.name, "weft": seconds(case.ours), "weft bytes": memory(case.ours)}
    mine = case.ours()
    for at, (name, call) in enumerate(case.peers.items()):
        try:
            found[name], found[f"{name} bytes"] = seconds(call), memory(call)
            if at == 0:
                found["error"] = difference(mine, call())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return found


def memory(call: Call) -> int:
    """Bytes of device memory that a call takes at most, its results among them."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def difference(mine: Any, theirs: Any) -> float:
    if isinstance(mine, tuple):
        return max(map(difference, mine, theirs))
    return float((mine.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help=", ".join(CASES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    command = f"tools/cascade_figures.py {' '.join(sys.argv[1:])}"
    record: dict[str, Any] = {"command": command, "machine": device_stamp(torch.device("cuda")), "found": []}
    for name, cases in CASES.items():
        if given.words and not any(word in name for word in given.words):
            continue
        for case in cases():
            record["found"].append(measured(case))
            print(row(record["found"][-1]), flush=True)
            torch.cuda.empty_cache()
            if given.out is not None:  # what there is, however this ends
                given.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


def row(found: dict[str, Any]) -> str:
    ours = found["weft"]
    peers = [(name, found.get(name)) for name in ("sdpa", "flex", "compile", "blocks")]
    ratios = [f"{name} {time * 1e3:.3f} ({time / ours:.2f})" for name, time in peers if isinstance(time, float)]
    return f"{found['case']:55s} {ours * 1e3:9.3f} ms, error {found.get('error', math.nan):.1e}: {', '.join(ratios)}"


if __name__ == "__main__":
    main()
