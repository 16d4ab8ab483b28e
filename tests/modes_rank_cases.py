"""What the tests of networks distributed by modes run on each rank (`on_ranks`)."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import weft
from nets import Net, chain, net_of, random_net
from network_rank_cases import as_numbers, device, world
from rank_cases import said
from weft.distributed.group.link import Link

#: A link that costs nothing: then steps are shared out however small they are.
FREE = Link("free", 0.0, 1e18, "for tests")


def ladder(odd: bool = False, dtype: torch.dtype = torch.float64) -> Net:
    """Tensors whose modes are replaced one after the other: no mode lives from the first step to the last."""
    extents = dict(zip("abcdefghijkl", (5, 3, 7, 2, 3, 5, 9, 3, 2, 4, 3, 5) if odd else (4,) * 12, strict=True))
    return net_of("abc,def,cdg,bgh,ahi,eij,fjkl->kil", extents, seed=3, dtype=dtype)


def networks() -> dict[str, tuple[Any, list[torch.Tensor], torch.Tensor]]:
    """Networks by name, with their operands and what they should come to."""
    made: dict[str, tuple[Any, list[torch.Tensor], torch.Tensor]] = {}

    def add(name: str, net: Net, tensors: list[torch.Tensor] | None = None, expected: Any = None, **keywords: Any) -> None:
        placed = [x.to(device()) for x in tensors or net.tensors]
        expected = net.expected if expected is None else expected
        made[name] = weft.network(net.equation, *placed, **keywords), placed, expected

    add("ladder", ladder())
    add("odd", ladder(odd=True))
    add("complex", ladder(odd=True, dtype=torch.complex128))
    for dtype in (torch.float16, torch.float32):
        net = ladder(odd=True)
        tensors = [(x / 2).to(dtype) for x in net.tensors]
        add(str(dtype), net, tensors, torch.einsum(net.equation, *[x.double() for x in tensors]))
    add("sliced", ladder(), slices="gk")
    add("half and sliced", net, [x.half() for x in tensors], made["torch.float16"][2], slices="gk")
    four = chain(4, seed=2)
    add("matrices", chain(5, 17))
    add("scalar", net_of("ab,bc,cd,da->", dict.fromkeys("abcd", 9)))
    add("sliced in parts", four, slices="ac")
    add("short", net_of("ab,bc,cd->ad", {"a": 2, "b": 3, "c": 2, "d": 3}))
    add("empty", net_of("ab,bc,cd->ad", {"a": 0, "b": 3, "c": 3, "d": 2}))
    add("empty sum", net_of("ab,bc,cd->ad", {"a": 5, "b": 0, "c": 3, "d": 2}))
    add("function", four, functions={"ae": torch.tanh}, expected=four.expected.tanh())
    add("function of sums", four, functions={"ae": torch.tanh}, expected=four.expected.tanh(), slices="bc")
    two = four.tensors[0] @ four.tensors[1]
    between = torch.tanh(two) @ four.tensors[2] @ four.tensors[3]
    add("function between", four, functions={4: torch.tanh}, optimize=[(0, 1)] * 3, expected=between)
    plus = four.tensors[0][:, :, None] + four.tensors[1]
    plus = (plus.amax(1)[:, :, None] + four.tensors[2]).amax(1)
    add("max_plus", four, algebra="max_plus", expected=(plus[:, :, None] + four.tensors[3]).amax(1))
    placed = [x.to(device()) for x in four.tensors]
    constant = weft.network(four.equation, *placed, constants=[1])
    made["constants"] = constant, [placed[0], *placed[2:]], four.expected
    for seed in range(6):
        some = random_net(seed)
        add(f"random {seed}", some)
    return made


def results() -> dict[str, Any]:
    """Each network over all ranks, twice: what it came to, how far that is off, and how it was distributed."""
    found = {}
    for name, (net, tensors, expected) in networks().items():
        first, again = (net(*tensors, group=world(), distribute="modes", link=FREE) for _ in range(2))
        wide = torch.complex128 if first.dtype.is_complex else torch.float64
        off = (first.to(wide).cpu() - expected.to(wide)).abs()
        bound = net.error_bound(*tensors).cpu() if "max_plus" not in name and "function" not in name else 1e-9
        (run,) = [run for key, run in net._shared.items() if key.startswith("modes")]
        found[name] = {
            "first": as_numbers(first), "again": as_numbers(again), "right": bool((off <= bound + 1e-12).all()),
            "sent": run.plan.sent, "mesh": run.plan.mesh,
        }  # fmt: skip
    return found
