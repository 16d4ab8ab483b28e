"""Transformers whose layers are weft's, trained as they are: beside the same with torch's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rank_cases
from on_ranks import on_ranks
from weft import nn

TOKENS, WIDTH, LENGTH, STEPS = 31, 32, 12, 6


class Block(torch.nn.Module):
    """Causal attention and a feed-forward layer, each after a norm and beside what it reads."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Gpt(torch.nn.Module):
    """Two blocks between an embedding and logits; `again` computes each block a second time in the backward pass."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


def with_layers_of_weft(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with `weft.nn.Linear` in the place of every linear layer, over parameters of its own."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(parent, name, nn.Linear.of(child))
    assert not any(type(each) is torch.nn.Linear for each in model.modules())
    return model


def losses(model: torch.nn.Module, run: Callable[..., Any], precise: bool) -> list[float]:
    """Of each step of learning one batch by heart; `run` computes logits of tokens."""
    tokens = torch.randint(TOKENS, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(STEPS):
        with nullcontext() if precise else torch.autocast("cpu", torch.bfloat16):
            logits = run(tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=SLOW)], ids=["eager", "compiled"])
@pytest.mark.parametrize("precise", [pytest.param(True, marks=SLOW), False], ids=["float32", "autocast"])
@pytest.mark.parametrize("again", [pytest.param(False, marks=SLOW), True], ids=["kept", "checkpoint"])
def test_a_gpt_is_trained_alike(again: bool, precise: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    theirs = Gpt(again)
    ours = with_layers_of_weft(theirs)
    run = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours
    wanted, found = losses(theirs, theirs, precise), losses(ours, run, precise)
    assert wanted[-1] < wanted[0]
    # Six steps of AdamW in bfloat16 carry its roundings (2^-9) on; those of float32 stay below 1e-4.
    assert found == pytest.approx(wanted, abs=1e-4 if precise else 0.03)


@pytest.mark.slow
def test_layers_learn_in_parallel_what_they_learn_alone() -> None:
    outcomes = on_ranks(2, rank_cases.learned_together)
    assert [outcome.message for outcome in outcomes] == ["", ""]
    for ranks, alone in zip(
        zip(*[outcome.value for outcome in outcomes], strict=True),
        rank_cases.learned(rank_cases.small_transformer(), slice(None)), strict=True,
    ):  # fmt: skip
        assert torch.equal(*ranks)
        torch.testing.assert_close(ranks[0], alone)


@pytest.mark.slow
@pytest.mark.parametrize("precise", [True, False], ids=["float32", "autocast"])
def test_a_decoder_of_x_transformers_is_trained_alike(precise: bool) -> None:
    library = pytest.importorskip("x_transformers", reason="x-transformers is not installed")
    torch.manual_seed(0)
    layers = library.Decoder(dim=WIDTH, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True)
    theirs = library.TransformerWrapper(num_tokens=TOKENS, max_seq_len=LENGTH, attn_layers=layers)
    ours = with_layers_of_weft(theirs)
    wanted, found = losses(theirs, theirs, precise), losses(ours, ours, precise)
    assert wanted[-1] < wanted[0]
    assert found == pytest.approx(wanted, abs=1e-4 if precise else 0.03)
