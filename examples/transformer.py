"""A transformer block that learns the letters of weft's own pages, in weft's layers and in torch's operations.

Both begin with the same parameters and see the same batches, so their losses agree up to rounding:

    python examples/transformer.py                                   # on the CPU, some seconds
    python examples/transformer.py --device cuda --width 256 --blocks 4 --steps 300 --compile --out curve.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import weft

TEXT = Path(__file__).parent.parent / "docs"
PAGES = ("getting_started.md", "contractions.md", "functions.md", "glossary.md")


def causal(score: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Nothing of what comes later is seen."""
    return torch.where(key <= query, score, -math.inf)


class Block(torch.nn.Module):
    """Attention and a gated layer. `fused` computes with weft, else the same formulas in torch's operations."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.fused, each = fused, width // heads
        self.scale = each**-0.5
        self.before_attention, self.before_gate = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project = weft.nn.Einsum("bse,thde->tbhsd", (3, heads, each, width), bias="thd")
        self.gather = weft.nn.Einsum("bshd,hde->bse", (heads, each, width), bias="e")
        self.gated = weft.nn.GatedLinear(width, 2 * width)
        self.narrow = weft.nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        if not self.fused:
            return self.plain(x)
        q, k, v = self.project(self.before_attention(x)).unbind()
        scores = weft.contract(
            "bhsd,bhtd->bhst", q, k, alpha=self.scale, epilogue=causal, indices={"query": "s", "key": "t"}
        )
        mixed = weft.contract("bhst,bhtd->bshd", torch.softmax(scores, -1), v)
        x = x + self.gather(mixed)
        return x + self.narrow(self.gated(self.before_gate(x)))

    def plain(self, x: Tensor) -> Tensor:
        project, gather, gated = self.project, self.gather, self.gated
        normed = self.before_attention(x)
        q, k, v = (torch.einsum("bse,thde->tbhsd", normed, project.weight) + project.bias[:, None, :, None]).unbind()
        scores = torch.einsum("bhsd,bhtd->bhst", q, k) * self.scale
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
        x = x + torch.einsum("bshd,hde->bse", torch.einsum("bhst,bhtd->bshd", weights, v), gather.weight) + gather.bias
        normed = self.before_gate(x)
        inner = functional.silu(functional.linear(normed, gated.gate)) * functional.linear(normed, gated.up)
        return x + functional.linear(inner, self.narrow.weight, self.narrow.bias)


class Model(torch.nn.Module):
    """Letters in, the logits of the next letter out."""

    def __init__(self, letters: int, width: int, heads: int, blocks: int, context: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.letters, self.places = torch.nn.Embedding(letters, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, fused) for _ in range(blocks))
        self.norm, self.out = torch.nn.LayerNorm(width), weft.nn.Linear(width, letters)

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.out(x) if self.fused else functional.linear(x, self.out.weight, self.out.bias)


def corpus() -> tuple[Tensor, int]:
    """The pages as numbers of letters, and how many letters there are."""
    text = "".join((TEXT / page).read_text() for page in PAGES)
    letters = {letter: at for at, letter in enumerate(sorted(set(text)))}
    return torch.tensor([letters[letter] for letter in text]), len(letters)


def batches(text: Tensor, batch: int, context: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the text and what follows each letter, drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(len(text) - context, (batch,), generator=generator)
        pieces = torch.stack([text[start : start + context + 1] for start in starts]).to(device)
        yield pieces[:, :-1], pieces[:, 1:]


def train(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    data: Iterator[tuple[Tensor, Tensor]],
    steps: int,
) -> list[float]:
    """The loss of each step, in nats a letter."""
    losses = []
    for _ in range(steps):
        text, following = next(data)
        loss = functional.cross_entropy(model(text).flatten(0, 1).float(), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def curves(
    device: str = "cpu", steps: int = 200, width: int = 32, heads: int = 4, blocks: int = 1, context: int = 32,
    batch: int = 8, rate: float = 0.1, dtype: torch.dtype = torch.float32, compiled: bool = False,
) -> dict[str, list[float]]:  # fmt: skip
    """Losses of both; "seconds" has the time that each took, after the first step."""
    text, letters = corpus()
    found: dict[str, list[float]] = {"seconds": []}
    for name in ("weft", "torch"):
        torch.manual_seed(0)
        model = Model(letters, width, heads, blocks, context, fused=name == "weft").to(device, dtype)
        call = torch.compile(model, fullgraph=True) if compiled else model
        data = batches(text, batch, context, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        first = train(call, optimizer, data, 1)
        start = time.perf_counter()
        found[name] = first + train(call, optimizer, data, steps - 1)
        found["seconds"].append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    for name, usual in (("steps", 200), ("width", 32), ("heads", 4), ("blocks", 1), ("context", 32), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="both under torch.compile")
    parser.add_argument("--out", type=Path, help="a file for both curves, as JSON")
    given = vars(parser.parse_args())
    out, compiled = given.pop("out"), given.pop("compile")
    given["dtype"] = getattr(torch, given["dtype"])
    found = curves(**given, compiled=compiled)
    print("step    weft   torch   difference")
    for step in sorted({*range(0, given["steps"], max(1, given["steps"] // 10)), given["steps"] - 1}):
        ours, theirs = found["weft"][step], found["torch"][step]
        print(f"{step:4}  {ours:.4f}  {theirs:.4f}   {ours - theirs:+.1e}")
    ours, theirs = found["seconds"]
    print(f"seconds: weft {ours:.2f}, torch {theirs:.2f}")
    if out is not None:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
