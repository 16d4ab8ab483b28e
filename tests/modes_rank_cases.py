"""What the tests of networks distributed by modes run on each rank (`on_ranks`)."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import weft
from nets import Net, chain, circuit, net_of, random_net
from network_rank_cases import as_numbers, device, world
from rank_cases import said
from weft.distributed import moves
from weft.distributed.link import Link
from weft.networks.modes_call import ModesRun

#: A link that costs nothing: then steps are shared out however small they are.
FREE = Link("free", 0.0, 1e18, "for tests")


def ladder(odd: bool = False, dtype: torch.dtype = torch.float64) -> Net:
    """Tensors whose modes are replaced one after the other: no mode lives from the first step to the last."""
    extents = dict(zip("abcdefghijkl", (5, 3, 7, 2, 3, 5, 9, 3, 2, 4, 3, 5) if odd else (4,) * 12, strict=True))
    return net_of("abc,def,cdg,bgh,ahi,eij,fjkl->kil", extents, seed=3, dtype=dtype)


def networks() -> dict[str, tuple[Any, list[torch.Tensor], torch.Tensor]]:
    """Networks by name, with their operands and what they should come to."""
    made: dict[str, tuple[Any, list[torch.Tensor], torch.Tensor]] = {}

    def add(name: str, net: Net, tensors: Any = None, expected: Any = None, **keywords: Any) -> None:
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


def bound_of(net: Any, tensors: list[torch.Tensor], expected: torch.Tensor) -> Any:
    """The most by which a result may be off: a rounding for each step and each sum, of the magnitudes' own result."""
    plan = net.plan
    exact = plan.settings.options.algebra is not None or plan.functions or len(tensors) != len(plan.graph.operands)
    if exact or not expected.numel():
        return 1e-9
    terms = [list(operand.term) for operand in net.plan.graph.operands]
    views = [operand.view(x).abs().double() for operand, x in zip(net.plan.graph.operands, tensors, strict=True)]
    pairs = [one for x, term in zip(views, terms, strict=True) for one in (x, term)]
    summed = sum(net.plan.graph.extents) + 2 * len(terms)
    return summed * torch.finfo(net.plan.dtype).eps * torch.einsum(*pairs, list(net.plan.graph.output)).cpu()


def results() -> dict[str, Any]:
    """Each network over all ranks, twice: what it came to, whether that is right, and how it was distributed."""
    found = {}
    moves.PIECE = 1 << 9  # so that tensors travel whole, and in pieces
    for name, (net, tensors, expected) in networks().items():
        first, again = (net(*tensors, group=world(), distribute="modes", link=FREE) for _ in range(2))
        wide = torch.complex128 if first.dtype.is_complex else torch.float64
        off = (first.to(wide).cpu() - expected.to(wide)).abs()
        found[name] = {
            "first": as_numbers(first), "again": as_numbers(again),
            "right": bool((off <= bound_of(net, tensors, expected)).all()), "sent": plan_of(net).sent,
        }  # fmt: skip
    return found


def plan_of(net: Any) -> Any:
    """The plan of a network's only call by modes."""
    (run,) = [run for key, run in net._shared.items() if key.startswith("modes")]
    return run.plan


def within_a_limit() -> dict[str, Any]:
    """A network of more memory than a rank may take: by modes with fewer slices than alone, and what is held."""
    net = circuit(4, 8, 8)
    whole, limited = limited_circuit(net)
    out = torch.full((), torch.nan, dtype=torch.float64)
    found = limited(*net.tensors, group=world(), distribute="modes", link=FREE, out=out)
    plan = plan_of(limited)
    return {
        "out": found is out, "right": torch.allclose(out, net.expected), "whole": whole.memory,
        "limit": limited.plan.settings.memory_limit, "memory": plan.memory, "slices": plan.tree.slices,
        "alone": limited.plan.tree.slices,
    }  # fmt: skip


def limited_circuit(net: Net) -> tuple[Any, Any]:
    """A network as it is, and within less memory than it needs alone."""
    whole = weft.network(net.equation, *net.tensors)
    path, limit = list(whole.path), whole.memory * 3 // 10
    return whole, weft.network(net.equation, *net.tensors, memory_limit=limit, optimize=path)


def on_a_mesh(shape: tuple[int, ...]) -> dict[str, Any]:
    """A DeviceMesh of several dimensions, each of which splits a mode."""
    mesh = dist.device_mesh.init_device_mesh(device().type, shape)
    net = ladder(odd=True)
    planned = weft.network(net.equation, *net.tensors)
    found = planned(*net.tensors, group=mesh, distribute="modes", link=FREE)
    return {"right": torch.allclose(found, net.expected), "mesh": plan_of(planned).mesh, "bits": as_numbers(found)}


def refused() -> dict[str, Any]:
    """What is wrong on some ranks, or anywhere; the group serves on afterwards."""
    rank, four = dist.get_rank(), chain(4, seed=2)
    net = weft.network(four.equation, *four.tensors)
    shorter = [four.tensors[0][:3], *four.tensors[1:]] if rank == 1 else four.tensors
    found = {"operands": said(lambda: net(*shorter, group=world(), distribute="modes"))}
    net(*four.tensors, group=world(), distribute="modes")
    found["operands of a known call"] = said(lambda: net(*shorter, group=world(), distribute="modes"))
    found["way"] = said(lambda: net(*four.tensors, group=world(), distribute="rows"))
    found["no group"] = said(lambda: net(*four.tensors, distribute="modes"))
    found["checkpoint"] = said(lambda: net(*four.tensors, group=world(), distribute="modes", checkpoint="/tmp/none"))
    other = weft.network(four.equation, *four.tensors, optimize=[(0, 1)] * 3 if rank else [(2, 3), (1, 2), (0, 1)])
    found["path"] = said(lambda: other(*four.tensors, group=world(), distribute="modes"))
    scaled = weft.network(four.equation, *four.tensors, strip_exponent=True)
    found["exponents"] = said(lambda: scaled(*four.tensors, group=world(), distribute="modes"))
    mantissa, exponent = scaled(*four.tensors, group=world(), distribute="auto")
    torch.testing.assert_close(mantissa * 10**exponent, four.expected)
    return found


def by_prediction() -> dict[str, str]:
    """What "auto" takes where messages cost nothing, and where bytes are dear; all are right."""
    found, net = {}, circuit(4, 8, 8)
    for name, link in (("free", FREE), ("slow", Link("slow", 1e-6, 1e5, "for tests"))):
        planned = limited_circuit(net)[1]
        result = planned(*net.tensors, group=world(), distribute="auto", link=link)
        torch.testing.assert_close(result, net.expected)
        ways = [way for key, way in planned._shared.items() if key.startswith("auto")]
        found[name] = "slices" if ways == ["slices"] else "modes"
    return found


def everything() -> dict[str, Any]:
    """All that four ranks try and survive."""
    return {
        "results": results(), "limit": within_a_limit(), "mesh": on_a_mesh((2, 2)), "refused": refused(),
        "auto": by_prediction(),
    }  # fmt: skip


def on_eight() -> dict[str, Any]:
    return {"results": results(), "mesh": on_a_mesh((2, 4)), "product": product_on_a_mesh()}


def product_on_a_mesh() -> bool:
    """A matrix product over 2 x 4 ranks: rows along one dimension, sums scattered along the other."""
    m, k, n, rank = 7, 13, 11, dist.get_rank()
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((m, k), (k, n)))
    rows, columns = divmod(rank, 4)

    def part(tensor: torch.Tensor, dim: int, parts: int, at: int) -> torch.Tensor:
        length = -(-tensor.shape[dim] // parts)
        begin = min(at * length, tensor.shape[dim])
        return tensor.narrow(dim, begin, min(length, tensor.shape[dim] - begin))

    places = {"a": ("m", "k"), "b": (None, "k"), "d": ("m", "n")}
    found = weft.distributed.contract(
        "mk,kn->mn", part(part(a, 0, 2, rows), 1, 4, columns), part(b, 0, 4, columns), mesh=(2, 4), placements=places
    )
    return torch.allclose(found, part(part(a @ b, 0, 2, rows), 1, 4, columns))


def amid_a_call(what: str) -> Any:
    """Rank 1 fails, ends or is slow amid a call; what the ranks get."""
    net = ladder()
    planned = weft.network(net.equation, *net.tensors)
    planned(*net.tensors, group=world(), distribute="modes", link=FREE)
    contract, left = ModesRun._contract, iter(range(3))

    def contracting(*arguments: Any) -> None:
        if next(left, None) is None:
            if what == "ends":
                os._exit(3)
            if what == "fails":
                raise ValueError("something on rank 1")
            time.sleep(0.5)
        contract(*arguments)

    if dist.get_rank() == 1:
        ModesRun._contract = contracting  # type: ignore[method-assign]
    found = planned(*net.tensors, group=world(), distribute="modes", link=FREE)
    return torch.allclose(found, net.expected)
