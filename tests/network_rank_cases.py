"""What the tests of networks over ranks run on each rank (`on_ranks`)."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import weft
from nets import chain, net_of, random_net
from rank_cases import said
from weft.distributed.ranks import find_ranks
from weft_bench import scaling_rank
from weft_bench.suites import entries


def world() -> Any:
    return dist.group.WORLD


def device() -> torch.device:
    """Where tensors lie: a GPU for each rank where the group has NCCL, else (and without a group) the CPU."""
    if dist.is_initialized() and "nccl" in dist.get_backend_config():
        return torch.device("cuda", dist.get_rank())
    return torch.device("cpu")


#: What is run where every kernel is compiled first: each way that parts travel, a function, an algebra.
ON_GPUS = ("whole result", "many slices", "shared parts", "function", "max_plus", "exponents", "empty", "wide")


def networks() -> dict[str, tuple[Any, list[torch.Tensor]]]:
    """Networks by name, with their operands: the same on every rank."""
    four = chain(4, seed=2)
    made: dict[str, tuple[Any, list[torch.Tensor]]] = {}

    def add(name: str, tensors: list[torch.Tensor], equation: str = four.equation, **keywords: Any) -> None:
        placed = [x.to(device()) for x in tensors]
        made[name] = weft.network(equation, *placed, **keywords), placed

    add("whole result", four.tensors, slices="c")
    add("many slices", four.tensors, slices="bcd")
    add("in parts", four.tensors, slices="ae")
    add("shared parts", four.tensors, slices="ac")  # 4 parts of 4 slices
    add("odd parts", [x[:3] if at == 0 else x for at, x in enumerate(four.tensors)], slices="ac")
    add("one slice", four.tensors)
    for dtype in (torch.float16, torch.bfloat16, torch.complex128):
        add(str(dtype), [x.to(dtype) for x in four.tensors], slices="ac")
    add("function", [x.half() for x in four.tensors], slices="ac", functions={"ae": torch.tanh}, optimize="greedy")
    add("function between", four.tensors, slices="e", functions={4: torch.tanh}, optimize=[(0, 1), (0, 1), (0, 1)])
    add("max_plus", four.tensors, slices="bd", algebra="max_plus")
    add("log", four.tensors, slices="bd", algebra="log")
    placed = [x.to(device()) for x in four.tensors]
    made["constants"] = weft.network(four.equation, *placed, slices="bc", constants=[1]), [placed[0], *placed[2:]]
    add("exponents", [1e-200 * x for x in four.tensors], slices="ac", strip_exponent=True)
    add("exponents of halves", [x.bfloat16() for x in four.tensors], slices="ac", strip_exponent=True)
    none = net_of("ab,bc,cd->ad", {"a": 0, "b": 3, "c": 3, "d": 2})
    add("empty", none.tensors, none.equation, slices="b")
    some = random_net(5)
    add("random", some.tensors, some.equation, slices=some.equation[:1])
    wide = net_of("ab,bc,cd->ad", {"a": 301, "b": 5, "c": 4, "d": 7})
    add("wide", wide.tensors, wide.equation, slices="b")
    into = net_of("abc,cde,bdf->aef", {"a": 12, "b": 8, "c": 10, "d": 9, "e": 4, "f": 12}, seed=1)
    for name, dtype, limit, scaled in (
        ("stretches", torch.float64, 6451, False),
        ("half stretches", torch.float16, 1854, False),
        ("stretches with exponents", torch.float64, 7418, True),
    ):
        tensors = [(x / 4).to(dtype) for x in into.tensors]
        add(name, tensors, into.equation, memory_limit=limit, strip_exponent=scaled, optimize=[(0, 1), (0, 1)])
    return {name: made[name] for name in ON_GPUS} if device().type == "cuda" else made


def as_numbers(found: Any) -> Any:
    """A result as something that can be sent."""
    parts = found if isinstance(found, tuple) else (found,)
    return [part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().copy() for part in parts]


def results() -> dict[str, Any]:
    """Each network with a group, twice, and alone on rank 0."""
    found = {}
    for name, (net, tensors) in networks().items():
        alone = net(*tensors) if dist.get_rank() == 0 else None
        first, again = (net(*tensors, group=world()) for _ in range(2))
        found[name] = {"first": as_numbers(first), "again": as_numbers(again),
                       "alone": None if alone is None else as_numbers(alone)}  # fmt: skip
    net, tensors = networks()["many slices"]
    out = torch.full((4, 8), torch.nan, dtype=torch.float64, device=device())[:, ::2]
    assert net(*tensors, out=out, group=world()) is out
    found["out"] = {"first": as_numbers(out), "again": as_numbers(out), "alone": as_numbers(net(*tensors))}
    size = dist.get_world_size()
    for name, shape in (("mesh", (size,)), ("mesh of two dimensions", (2, size // 2) if size > 2 else (1, size))):
        mesh = dist.device_mesh.init_device_mesh(device().type, shape)
        first, again = (as_numbers(net(*tensors, group=mesh)) for _ in range(2))
        found[name] = {"first": first, "again": again, "alone": as_numbers(net(*tensors))}
    return found


def large(scale: int) -> dict[str, tuple[bool, bool]]:
    """A result in pieces, and one whose parts travel while others are computed: right, and the same again."""
    extents = {"x": 8, "b": 8, "m": 64 * scale, "c": 64, "n": 512 * scale}
    net = net_of("xbm,bc,cn->xmn", extents)
    tensors = [x.to(device(), torch.float32) for x in net.tensors]
    found = {}
    for slices in ("b", "xb"):
        planned = weft.network(net.equation, *tensors, slices=slices, optimize=[(0, 1), (0, 1)])
        first, again = (planned(*tensors, group=world()) for _ in range(2))
        right = torch.allclose(first.double(), net.expected.to(first.device), rtol=1e-4, atol=1e-3)
        found[slices] = right, torch.equal(first, again)
    half = [(x / 4).half() for x in tensors]  # sums are some tenths: tanh hides no error, nor do TF32's digits show
    planned = weft.network(net.equation, *half, slices="b", optimize=[(0, 1), (0, 1)], functions={4: torch.tanh})
    first, again = (planned(*half, group=world()) for _ in range(2))
    expected = torch.einsum(net.equation, *[x.double() for x in half]).tanh()
    right = torch.allclose(first.double(), expected, atol=5e-3)
    found["function"] = right, torch.equal(first, again)
    return found


def errors() -> dict[str, Any]:
    """What is wrong on some ranks is said on all; the group serves on afterwards."""
    rank = dist.get_rank()
    four = chain(4, seed=2)
    group = world()
    found: dict[str, Any] = {}

    def fresh(**keywords: Any) -> Any:
        return weft.network(four.equation, *four.tensors, **{"slices": "bd", "optimize": [(0, 1)] * 3, **keywords})

    net = fresh()
    shorter = [four.tensors[0][:3], *four.tensors[1:]] if rank == 1 else four.tensors
    found["operands"] = said(lambda: net(*shorter, group=group))
    net(*four.tensors, group=group)
    found["operands of a known call"] = said(lambda: net(*shorter, group=group))
    backwards = fresh(optimize=[(0, 1), (0, 1), (0, 1)] if rank else [(2, 3), (1, 2), (0, 1)])
    found["path"] = said(lambda: backwards(*four.tensors, group=group))
    found["slices"] = said(lambda: fresh(slices="bc" if rank else "bd")(*four.tensors, group=group))
    found["types"] = said(lambda: fresh(precision="tf32" if rank else None)(*four.tensors, group=group))
    grad = [x.clone().requires_grad_(rank == 1) for x in four.tensors]
    found["gradients"] = said(lambda: net(*grad, group=group))
    watched = fresh(check_finite=True)
    bad = [x.clone() for x in four.tensors]
    if rank == dist.get_world_size() - 1:
        bad[0][0, -1] = torch.nan  # the last slices are the last rank's
    found["not finite"] = said(lambda: watched(*bad, group=group))
    calls = net(*four.tensors, group=group)
    torch.testing.assert_close(calls, four.expected)
    found["no group"] = said(lambda: net(*four.tensors, group=7))
    return found


def another_network() -> tuple[str, str]:
    """Rank 1 calls another network that looks alike, both known to the group; which serves no longer afterwards."""
    four = chain(4)
    every = four.tensors, [four.tensors[0][:3], *four.tensors[1:]]
    made = [(weft.network(four.equation, *tensors, slices="bd"), tensors) for tensors in every]
    for net, tensors in made:
        net(*tensors, group=world())
    net, tensors = made[dist.get_rank() == 1]
    return said(lambda: net(*tensors, group=world()))


def everything(folder: str) -> dict[str, Any]:
    """All that needs no rank to end, in one go."""
    found = {"results": results(), "large": large(1), "errors": errors()}
    return found | {"checkpoints": checkpoints(folder), "resumed": resumed(), "another network": another_network()}


def example(file: str, folder: str) -> list[float]:
    """The program of `examples/`, with a checkpoint."""
    spec = importlib.util.spec_from_file_location("network_over_ranks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [module.contracted(world(), torch.device("cpu"), where) for where in (None, folder, folder)]
    return [one.item() for one in found]


def stopping(net: Any, after: int, then: Callable[[], None]) -> None:
    """Let `then` happen amid the slice that follows `after` others."""
    program = net.program(net.operands(_tensors_of(net)))
    finish, left = program._finish, iter(range(after))

    def finishing(*arguments: Any) -> None:
        if next(left, None) is None:
            program._finish = finish
            then()
        finish(*arguments)

    program._finish = finishing


def _tensors_of(net: Any) -> list[torch.Tensor]:
    return [torch.empty(operand.shape, dtype=torch.float64) for operand in net.plan.graph.operands]


def checkpoints(folder: str) -> dict[str, Any]:
    """Ctrl-C on one rank, and what is made of the files then."""
    rank, size = dist.get_rank(), dist.get_world_size()
    four = chain(4, seed=2)
    found: dict[str, Any] = {}
    for name, slices in (("sum", "bcd"), ("parts", "ac")):
        net = weft.network(four.equation, *four.tensors, slices=slices)
        path = os.path.join(folder, name)
        if rank == 1:
            stopping(net, 3 if name == "sum" else 1, lambda: signal.raise_signal(signal.SIGINT))
        try:
            net(*four.tensors, group=world(), checkpoint=path, checkpoint_every=0)
            found[name, "interrupted"] = "no"
        except KeyboardInterrupt as interrupt:
            found[name, "interrupted"] = str(interrupt)
        dist.barrier()
        found[name, "files"] = sorted(os.listdir(path))
        again = weft.network(four.equation, *four.tensors, slices=slices)
        found[name, "result"] = as_numbers(again(*four.tensors, group=world(), checkpoint=path))
        found[name, "right"] = torch.allclose(again(*four.tensors, group=world(), checkpoint=path), four.expected)
    net = weft.network(four.equation, *four.tensors, slices="bcd")
    others = [*four.tensors[:3], four.tensors[3] + rank]
    found["other values"] = said(lambda: net(*others, group=world(), checkpoint=os.path.join(folder, "values")))
    changed = [2 * four.tensors[0], *four.tensors[1:]]
    found["of another"] = said(lambda: net(*changed, group=world(), checkpoint=os.path.join(folder, "sum")))
    half = dist.new_group(list(range(size // 2)))
    net = weft.network(four.equation, *four.tensors, slices="bcd")
    if rank < size // 2:
        if rank == 0:
            stopping(net, 5, lambda: signal.raise_signal(signal.SIGINT))
        try:
            net(*four.tensors, group=half, checkpoint=os.path.join(folder, "half"))
        except KeyboardInterrupt:
            found["half"] = "interrupted"
    dist.barrier()
    result = weft.network(four.equation, *four.tensors, slices="bcd")(
        *four.tensors, group=world(), checkpoint=os.path.join(folder, "half")
    )  # fmt: skip
    found["more ranks"] = torch.allclose(result, four.expected)
    return found


def resumed() -> bool:
    """Ctrl-C on a rank without a checkpoint; all go on."""
    four = chain(4, seed=2)
    net = weft.network(four.equation, *four.tensors, slices="bcd")
    net(*four.tensors, group=world())
    if dist.get_rank() == 1:
        stopping(net, 3, lambda: signal.raise_signal(signal.SIGINT))
    try:
        net(*four.tensors, group=world())
    except KeyboardInterrupt:
        return torch.allclose(net.resume(), four.expected)
    return False


def one_ends() -> Any:
    """Rank 1 ends amid its slices."""
    four = chain(4, seed=2)
    net = weft.network(four.equation, *four.tensors, slices="bcd")
    net(*four.tensors, group=world())
    if dist.get_rank() == 1:
        stopping(net, 3, lambda: os._exit(3))
    return as_numbers(net(*four.tensors, group=world()))


def scaling(names: list[str]) -> list[dict[str, Any]]:
    """What a rank of `weft bench scaling` measures; the last two are wrong, and fail on a rank."""
    job = {"rrs": 0.5, "budget": 0.01, "threads": 1}
    ranks, found = find_ranks(timeout=60), []
    for entry in entries("scaling", (), names, 1 << 15):
        found.append(scaling_rank.measured(entry.case, torch.device("cpu"), ranks, job))
    entry = entries("scaling", (), names[:1], 1 << 15)[0]
    error = scaling_rank.NetworkTask.error
    scaling_rank.NetworkTask.error = lambda task, found: error(task, 1.1 * found)  # type: ignore[method-assign]
    found.append(scaling_rank.measured(entry.case, torch.device("cpu"), ranks, job))
    if ranks.rank == 1:
        scaling_rank.TASKS = {}
    found.append(scaling_rank.measured(entry.case, torch.device("cpu"), ranks, job))
    return found
