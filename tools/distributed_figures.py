"""Figures of contractions over ranks, and of one device that does not hold its operands; JSON, one line each.

    torchrun --nproc-per-node 2 tools/distributed_figures.py ranks --out FILE  # 16 GB of fp16, in three splits
    torchrun --nproc-per-node 2 tools/distributed_figures.py networks --out FILE  # by modes against slices
    torchrun --nproc-per-node 2 tools/distributed_figures.py ways --out FILE   # products by every way that may be best
    python tools/distributed_figures.py paper --device h200 --out FILE      # networks by the model, 2 to 1024 ranks
    python tools/distributed_figures.py products --device h200 --out FILE   # the suite's products by the model, 1 to 8
    python tools/distributed_figures.py blocks --gigabytes 200              # operands in pinned memory
    torchrun --nproc-per-node 2 tools/distributed_figures.py ranks --small  # on a CPU, to see that it runs

Beside weft's time stand: one device with the whole operands, as weft contracts them; torch, which gathers or sums
whole tensors before or after its product; and, where k is split, torch that gathers both operands and contracts a
rank's rows. Networks are circuits on six wires whose states take 1.5 times the limit of a rank: no mode lives from the
first layer to the last, so slices repeat most of the work. Times are medians of the slowest rank's, ranks meeting
before each call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft
from weft.api.describe import find_target
from weft.distributed.link import NVLINK
from weft.distributed.placement import Placed, RankProblem
from weft.distributed.prediction import KernelModel, ranked
from weft.machine.stamp import commit, device_stamp
from weft_bench.cases.networks import circuit, whole_networks
from weft_bench.cases.scaling import placed
from weft_bench.networks import ssa_tree

REPEATS = 7
PAPER = ("randreg_200_3", "rand_50_5", "peps_cluster_r2_D10")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("ranks", "networks", "ways", "paper", "products", "blocks"))
    parser.add_argument("--extent", type=int, default=32, help="of the wires of networks")
    parser.add_argument("--layers", type=int, default=16, help="of gates")
    parser.add_argument("--once", action="store_true", help="one call by slices is timed, after none")
    parser.add_argument("--device", default="h100", help="of networks on paper")
    parser.add_argument("--gigabytes", type=float, default=16.0)
    parser.add_argument("--limit", help="memory_limit of blocks, as 30GB; by default what is free")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, help="a JSON file, too")
    given = parser.parse_args()
    if given.what == "ranks":
        found = over_ranks(1e-3 if given.small else given.gigabytes)
    elif given.what == "networks":
        found = over_networks(3 if given.small else given.extent, given.layers, given.once)
    elif given.what == "ways":
        found = over_ways(256 if given.small else 65536)
    elif given.what == "products":
        found = products_on_paper(given.device)
    elif given.what == "paper":
        found = on_paper(given.device)
    else:
        found = in_blocks(1e-3 if given.small else given.gigabytes, "400 KB" if given.small else given.limit)
    if given.out is not None and int(os.environ.get("RANK", "0")) == 0:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        command = f"tools/distributed_figures.py {' '.join(sys.argv[1:])}"
        record = {"command": command, "commit": commit(), "found": found}
        given.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


def begun() -> torch.device:
    """The device of this rank, with a process group begun."""
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
    return device


def over_ranks(gigabytes: float) -> list[dict[str, Any]]:
    device = begun()
    rank, size = dist.get_rank(), dist.get_world_size()
    gpus = device.type == "cuda"
    dtype = torch.float16 if gpus else torch.float32
    m = n = multiple((gigabytes * 1e9 / dtype.itemsize / 8) ** 0.5, 256 * size)
    k = 4 * m
    link = str(weft.distributed.measure_link())
    found = [print_from(rank, {"machine": device_stamp(device), "gpus": size, "link": link})]
    a = torch.randn(m, k, dtype=dtype, device=device)
    b = torch.randn(k, n, dtype=dtype, device=device)
    said: dict[str, Any] = {"out_dtype": torch.float32}
    whole = weft.plan("mk,kn->mn", a, b, **said)
    alone = seconds(lambda: whole(a, b), device)
    for name, (pa, pb, pd) in {"k": ("k", "k", "m"), "m": ("m", None, "m"), "m, n gathered": ("m", "n", "m")}.items():
        x = a.chunk(size, 1 if pa == "k" else 0)[rank].contiguous()
        y = b if pb is None else b.chunk(size, 0 if pb == "k" else 1)[rank].contiguous()
        plan = weft.distributed.plan("mk,kn->mn", x, y, placements={"a": pa, "b": pb, "d": pd}, **said)
        ours = seconds(lambda plan=plan, x=x, y=y: plan(x, y), device)
        theirs = seconds(lambda x=x, y=y, pb=pb: by_torch(x, y, pb, n), device)
        timeline = plan.timeline(x, y)
        row = {
            "split": name, "mnk": [m, n, k], "ranks": size, "seconds": ours, "one device": alone,
            "speedup": alone / ours, "torch": theirs, "against torch": theirs / ours, "hidden": timeline.hidden,
            "predicted": plan.prediction.seconds, "timeline": str(timeline).splitlines(),
        }  # fmt: skip
        if pa == "k":
            row["torch gathers"] = seconds(lambda x=x, y=y: by_gathering(x, y), device)
            row["against torch gathering"] = row["torch gathers"] / ours
        found.append(print_from(rank, row))
        if rank == 0:
            print(plan.explain(), flush=True)
    dist.destroy_process_group()
    return found


def over_networks(extent: int, layers: int, once: bool) -> list[dict[str, Any]]:
    """A network of 1.5 times a rank's limit: by modes, and by its own slices."""
    device = begun()
    rank, size = dist.get_rank(), dist.get_world_size()
    link = str(weft.distributed.measure_link())
    terms, shapes = circuit(extent, layers).terms, circuit(extent, layers).shapes
    options: dict[str, Any] = {"output": (), "device": device, "dtype": torch.float32, "precision": "tf32"}
    whole = weft.network(terms, *shapes, **options)
    path, limit = said_by_first(list(whole.path)), int(whole.memory / 1.5)
    torch.manual_seed(0)
    tensors = [torch.randn(shape, device=device) / extent ** (len(shape) / 4) for shape in shapes]
    sliced = weft.network(terms, *shapes, memory_limit=limit, **options)
    sliced = weft.network(terms, *shapes, memory_limit=limit, optimize=said_by_first(list(sliced.path)), **options)
    modes = weft.network(terms, *shapes, memory_limit=limit, optimize=path, **options)
    group = dist.group.WORLD
    about = {"machine": device_stamp(device), "ranks": size, "link": link, "extent": extent, "layers": layers,
             "bytes of the whole": whole.memory, "limit": limit, "slices": sliced.tree.slices}  # fmt: skip
    found = [print_from(rank, about)]

    def by_modes() -> torch.Tensor:
        return modes(*tensors, group=group, distribute="modes")

    settle(by_modes)
    ours, value = seconds(by_modes, device), float(by_modes())
    held = torch.cuda.max_memory_allocated(device) - sum(x.nbytes for x in tensors) if device.type == "cuda" else 0
    plan = modes.explain(ranks=size, link=weft.distributed.measure_link(seconds=0.1))
    found.append(print_from(rank, {"by": "modes", "seconds": ours, "value": value, "bytes held": held,
                                   "plan": plan.splitlines()}))  # fmt: skip

    def by_slices() -> torch.Tensor:
        return sliced(*tensors, group=group)

    if not once:
        settle(by_slices)
    theirs, values = seconds(by_slices, device, repeats=1 if once else 3, warm=not once), []
    if not once:
        values.append(float(by_slices()))
    found.append(print_from(rank, {"by": "slices", "seconds": theirs, "values": values, "over modes": theirs / ours}))
    dist.destroy_process_group()
    return found


def over_ways(extent: int) -> list[dict[str, Any]]:
    """The products of the suite scaling, strong, by the ways that are predicted to take a tenth more than the best."""
    device = begun()
    rank, size = dist.get_rank(), dist.get_world_size()
    link = str(weft.distributed.measure_link())
    found = [print_from(rank, {"machine": device_stamp(device), "ranks": size, "link": link, "extent": extent})]
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    for a, b, d in (("k", "k", "m"), ("m", "k", "m")):
        x, y = (
            torch.randn(extent // (size if at == place else 1), extent // (size if then == place else 1), dtype=dtype,
                        device=device)
            for (at, then), place in (("mk", a), ("kn", b))
        )  # fmt: skip
        plan = weft.distributed.plan(
            "mk,kn->mn", x, y, placements={"a": a, "b": b, "d": d}, out_dtype=torch.float32
        )  # fmt: skip
        near = [each for each in plan.candidates if each.seconds < 1.1 * plan.candidates[0].seconds]
        for each in (way for way in near if way.strategy.loop != "n"):  # along n as along m
            forced, strategy = plan.forced(each), each.strategy
            taken = seconds(lambda forced=forced, x=x, y=y: forced(x, y), device, repeats=3)
            found.append(print_from(rank, {
                "placed": [a, b, d], "split": strategy.split, "loop": strategy.loop, "parts": strategy.parts,
                "predicted": each.seconds, "seconds": taken, "hidden": forced.timeline(x, y).hidden,
            }))  # fmt: skip
    dist.destroy_process_group()
    return found


def settle(call: Callable[[], Any]) -> None:
    """Calls until better kernels have been compiled and taken."""
    for pause in (4, 4, 0):
        call()
        time.sleep(pause)


def said_by_first(value: Any) -> Any:
    """A value of the first rank, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def on_paper(device: str) -> list[dict[str, Any]]:
    """Networks by modes on 2 to 1024 ranks by the model: the circuit in 1.5 times a rank's limit, and public ones along
    their paths. Slices are those of the path that is found for them."""
    found = []
    public = [(case, ssa_tree(case), "40 GB") for case, _ in whole_networks() if case.name in PAPER]
    for case, path, limit in ((circuit(32, 16), "auto", "5.7 GB"), *public):
        options: dict[str, Any] = {"output": case.output, "dtype": torch.float32, "precision": "tf32"}
        whole = weft.network(case.terms, *case.shapes, optimize=path, **options)
        options["memory_limit"] = limit
        modes = weft.network(case.terms, *case.shapes, optimize=list(whole.path), **options)
        sliced = weft.network(case.terms, *case.shapes, optimize=path, **options)
        for ranks in (2, 8, 32, 128, 1024):
            said, by_slices = (net.report(ranks=ranks, target=device) for net in (modes, sliced))
            alone = by_slices["one_seconds"]
            found.append(print_from(0, {
                "network": case.name, "limit": limit, "device": device, "ranks": ranks, "link": said["link"],
                "mesh": said["mesh"], "slices": said["slices"], "seconds": said["seconds"],
                "memory_bytes": said["memory_bytes"], "sent_bytes": said["sent_bytes"],
                "one rank": {"slices": sliced.tree.slices, "seconds": alone},
                "by slices": by_slices["slices_seconds"], "speedup": alone / said["seconds"],
                "speedup by slices": alone / by_slices["slices_seconds"],
            }))  # fmt: skip
    return found


def products_on_paper(device: str) -> list[dict[str, Any]]:
    """The products of the suite scaling by the model, over NVLink."""
    terms = {"a": ("m", "k"), "b": ("k", "n"), "d": ("m", "n")}
    link = NVLINK
    kernel = KernelModel(tuple(terms.values()), (torch.float16, torch.float16, torch.float32), find_target(device))
    found = []
    for case in placed():
        alone = 0.0
        for ranks in (1, 2, 4, 8):
            extents = case.extents(ranks)
            shapes = {name: tuple(extents[label] for label in term) for name, term in terms.items()}
            tensors = [Placed(name, terms[name], (at,)) for name, at in zip("abd", case.placements, strict=True)]
            items = {"a": 2, "b": 2, "d": 4, "sum": 4}
            chosen = ranked(RankProblem(*tensors, shapes, extents, (ranks,), items), kernel, link)[0]
            alone = alone or chosen.seconds
            found.append(print_from(0, {
                "case": case.name, "ranks": ranks, "device": device, "link": str(link), "seconds": chosen.seconds,
                "speedup": (ranks if case.kind == "weak" else 1) * alone / chosen.seconds,
                "hidden": chosen.timeline.hidden, "loop": chosen.strategy.loop, "parts": chosen.strategy.parts,
            }))  # fmt: skip
    return found


def by_gathering(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Operands split along k are gathered, and a rank contracts its own rows of D."""
    size, rank = dist.get_world_size(), dist.get_rank()
    rows = x.new_empty(size * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(rows, x)
    mine = torch.cat([part.chunk(size)[rank] for part in rows.chunk(size)], 1)
    columns = y.new_empty(size * y.shape[0], y.shape[1])
    dist.all_gather_into_tensor(columns, y)
    if x.device.type == "cpu":
        return mine.float() @ columns.float()
    return torch.mm(mine, columns, out_dtype=torch.float32)


def by_torch(x: torch.Tensor, y: torch.Tensor, placed: str | None, n: int) -> torch.Tensor:
    """The product by whole collectives: sums reduced after it, or an operand gathered before it."""
    size = dist.get_world_size()
    if placed == "k":
        sums = x.float() @ y.float() if x.device.type == "cpu" else torch.mm(x, y, out_dtype=torch.float32)
        if x.device.type == "cpu":
            dist.all_reduce(sums)
            return sums.chunk(size)[dist.get_rank()]
        mine = sums.new_empty(sums.shape[0] // size, n)
        dist.reduce_scatter_tensor(mine, sums)
        return mine
    if placed == "n":
        every = [torch.empty_like(y) for _ in range(size)]
        dist.all_gather(every, y)
        y = torch.cat(every, 1)
    return x.float() @ y.float() if x.device.type == "cpu" else torch.mm(x, y, out_dtype=torch.float32)


def in_blocks(gigabytes: float, limit: str | None) -> list[dict[str, Any]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    dtype = torch.float16 if gpu else torch.float32
    side = multiple((gigabytes * 1e9 / 2 / dtype.itemsize) ** 0.5, 64)
    a, b, out = (registered(side, dtype, gpu) for _ in range(3))
    for tensor in (a, b):
        for rows in tensor.split(4096):
            rows.copy_(torch.randn(rows.shape, device=device, dtype=dtype))
    plan = weft.distributed.plan("mk,kn->mn", a, b, device=device, memory_limit=limit)
    timeline = plan.timeline(a, b, out=out)
    rows = out[:: max(1, side // 7)][:7].to(device).double()
    some = a[:: max(1, side // 7)][:7].to(device).double()
    right = some @ b[:, :256].to(device).double()
    error = float((rows[:, :256] - right).abs().max() / right.abs().max())
    larger = max(timeline.compute, timeline.transfer)
    found = print_from(0, {
        "machine": device_stamp(device), "side": side, "bytes of operands": a.nbytes + b.nbytes,
        "seconds": timeline.seconds, "compute": timeline.compute, "transfer": timeline.transfer,
        "over the larger": timeline.seconds / larger, "predicted": plan.predict().seconds, "error": error,
        "timeline": str(timeline).splitlines(),
    })  # fmt: skip
    print(plan.explain())
    return [found]


def registered(side: int, dtype: torch.dtype, gpu: bool) -> torch.Tensor:
    """A square in pinned memory of its own size: what torch pins it rounds up to a power of two."""
    found = torch.empty(side, side, dtype=dtype)
    if gpu:
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(found.data_ptr(), found.nbytes, 0)))
    return found


def seconds(call: Callable[[], Any], device: torch.device, repeats: int = REPEATS, warm: bool = True) -> float:
    """The median of the slowest rank's. Ranks call equally often and meet before each, so nothing here adapts."""
    if warm:
        call()
    taken = []
    for _ in range(repeats):
        finish(device)
        dist.barrier()
        begun = time.perf_counter()
        call()
        finish(device)
        mine = torch.tensor(time.perf_counter() - begun, dtype=torch.float64, device=device)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        taken.append(float(mine))
    return statistics.median(taken)


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def multiple(value: float, of: int) -> int:
    return max(of, round(value / of) * of)


def print_from(rank: int, found: dict[str, Any]) -> dict[str, Any]:
    if rank == 0:
        print(json.dumps(found, default=str), flush=True)
    return found


if __name__ == "__main__":
    main()
