"""Collectives of a group, and their cost: a start-up time and a time for each byte, for every collective, on each link.

A collective over p ranks on one link takes

    steps(p) * latency + bytes that a rank sends / bandwidth

where a rank sends (p - 1) / p of the whole tensor in an all-gather, a reduce-scatter or an all-to-all, and twice that
in an all-reduce, which is the two former (R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective
Communication Operations in MPICH, IJHPCA 19 (1), 2005). Where ranks are on several machines the two links work one
after the other on the two levels of a hierarchy, each on its share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from weft.algebra import Algebra
from weft.base.arrays import as_bytes, flat
from weft.base.figures import counted, duration, nearest, si
from weft.distributed.ranks import Ranks, find_ranks
from weft.errors import ArgumentError


def all_gather(ranks: Ranks, whole: torch.Tensor, part: torch.Tensor) -> Any:
    """`part` of every rank into `whole`, one after the other; both are contiguous."""
    return _named("all_gather_single", "all_gather_into_tensor")(
        as_bytes(whole), as_bytes(part), group=ranks.group, async_op=True
    )


def all_to_all(ranks: Ranks, received: torch.Tensor, sent: torch.Tensor) -> Any:
    """Piece i of `sent` to rank i; pieces are equally long."""
    return dist.all_to_all_single(as_bytes(received), as_bytes(sent), group=ranks.group, async_op=True)


def reduce_scatter(ranks: Ranks, part: torch.Tensor, whole: torch.Tensor, op: Any) -> Any:
    """Piece i of `whole`, reduced over all ranks, to rank i."""
    return _named("reduce_scatter_single", "reduce_scatter_tensor")(
        _numbers(part), _numbers(whole), op=op, group=ranks.group, async_op=True
    )


def all_reduce(ranks: Ranks, whole: torch.Tensor, op: Any) -> Any:
    return dist.all_reduce(_numbers(whole), op=op, group=ranks.group, async_op=True)


def broadcast(ranks: Ranks, tensor: torch.Tensor, source: int = 0) -> Any:
    """The `tensor` of one rank, which is contiguous, to all others."""
    first = dist.get_global_rank(ranks.group, source)
    return dist.broadcast(as_bytes(tensor), first, group=ranks.group, async_op=True)


def own_operation(algebra: Algebra | None, dtype: torch.dtype) -> Any | None:
    """The collectives' own operation for an algebra's reduction; None where they have none."""
    if algebra is None:
        return dist.ReduceOp.SUM
    if dtype.is_complex:
        return None
    ordered: dict[Any, Any] = {torch.maximum: dist.ReduceOp.MAX, torch.minimum: dist.ReduceOp.MIN}
    if dtype is torch.bool:  # travels as bytes of 0 and 1
        return ordered.get(algebra.reduce)
    known: dict[Any, Any] = {torch.add: dist.ReduceOp.SUM, torch.mul: dist.ReduceOp.PRODUCT}
    # Of floating types gloo and NCCL drop a NaN from a maximum (`<`, fmax); torch.maximum, and so weft, keeps it.
    return (known if dtype.is_floating_point else known | ordered).get(algebra.reduce)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return torch.view_as_real(flat(tensor)).view(-1)
    return as_bytes(tensor) if tensor.dtype is torch.bool else flat(tensor)


def _named(new: str, old: str) -> Callable[..., Any]:
    """A collective by the name that this torch has for it."""
    return getattr(dist, new, None) or getattr(dist, old)


@dataclass(frozen=True)
class Link:
    """One kind of connection between ranks.

    `latency`: seconds before a collective's step moves anything; `bandwidth`: bytes/s that one rank sends while it
    receives as much. `inside` is the link between ranks of one machine where this one is between machines, and
    `per_host` how many ranks share a machine then. `source` says where the figures are from.
    """

    name: str
    latency: float
    bandwidth: float
    source: str
    inside: Link | None = None
    per_host: int = 1

    def seconds(self, kind: str, size: float, ranks: int) -> float:
        """Seconds of a collective over `ranks` ranks; `size`: bytes of the whole tensor, gathered on one rank."""
        if ranks <= 1:
            return 0.0
        (near, hosts), inside = self._levels(ranks), self.inside or self
        within, between = self._shares(kind, ranks)
        seconds = within * size / inside.bandwidth + between * size / self.bandwidth
        if near > 1:
            seconds += inside.latency * _shape_of(kind, near)[0]
        return seconds + (self.latency * _shape_of(kind, hosts)[0] if hosts > 1 else 0.0)

    def loads(self, kind: str, size: float, ranks: int) -> dict[str, float]:
        """Bytes that one rank sends over each link."""
        if ranks <= 1:
            return {}
        names = (self.inside or self).name, self.name
        return {name: share * size for name, share in zip(names, self._shares(kind, ranks), strict=True) if share}

    def _levels(self, ranks: int) -> tuple[int, int]:
        """Ranks of one machine, and machines; each rank has one of its own where all are joined alike."""
        near = min(self.per_host, ranks) if self.inside is not None else 1
        return near, -(-ranks // near)

    def _shares(self, kind: str, ranks: int) -> tuple[float, float]:
        """Shares of the whole tensor that one rank sends inside its machine, and between machines.

        Every rank of a machine has a port of its own, so each carries its share of what goes between machines. In an
        all-to-all every pair of ranks has something of its own to exchange, wherever they are.
        """
        near, hosts = self._levels(ranks)
        if kind == "all-to-all":
            return (near - 1) / ranks**2, (ranks - near) / ranks**2
        return _shape_of(kind, near)[1], _shape_of(kind, hosts)[1] / near

    def __str__(self) -> str:
        text = f"{self.name}: {duration(self.latency)} a step, {si(self.bandwidth, 'B/s')} each way ({self.source})"
        if self.inside is not None:
            text += f"; {counted(self.per_host, 'rank')} a machine, inside it {self.inside}"
        return text


def _shape_of(kind: str, ranks: int) -> tuple[int, float]:
    """Steps that wait for one another, and the share of the whole that one rank sends."""
    share = (ranks - 1) / ranks
    if kind == "all-reduce":
        return 2 * math.ceil(math.log2(ranks)), 2 * share
    if kind == "all-to-all":  # each rank sends every other one a piece of its own 1 / ranks of the whole
        return ranks - 1, share / ranks
    if kind in ("all-gather", "reduce-scatter"):
        return math.ceil(math.log2(ranks)), share
    raise ArgumentError(f"no collective is called {kind!r}")


#: Measured, or from the makers' sheets, with 80% of the printed rate.
NVLINK = Link("nvlink", 60e-6, 248e9, "NVLink 4 through NCCL, as measured on two H200s")
IB = Link("ib", 20e-6, 40e9, "80% of 50 GB/s each way, InfiniBand NDR 400 Gbit/s for each GPU")
GLOO = Link("gloo", 300e-6, 1e9, "sockets of one machine, an order of magnitude")
PCIE = Link("pcie", 10e-6, 50e9, "80% of 63 GB/s each way, PCIe 5.0 x16 from pinned memory")
MEMORY = Link("memory", 5e-6, 5e9, "copies within a machine's memory, an order of magnitude")
PRESETS = {
    "nvlink": NVLINK, "ib": IB, "gloo": GLOO, "pcie": PCIE, "memory": MEMORY,
    "nvlink+ib": replace(IB, name="ib", inside=NVLINK, per_host=8),
}  # fmt: skip
_fitted: WeakKeyDictionary[Any, dict[str, Link]] = WeakKeyDictionary()  # by process group, then by device type


def read_link(link: Any, ranks: Ranks | None, device: torch.device) -> Link:
    """A `Link`, the name of a preset, or None: what was fitted in this process, else the preset of the backend."""
    if isinstance(link, Link):
        return link
    if isinstance(link, str):
        if link not in PRESETS:
            hint = nearest(link, PRESETS) or f": there are {', '.join(PRESETS)}"
            raise ArgumentError(f"no link is called {link!r}{hint}")
        return PRESETS[link]
    if link is not None:
        raise ArgumentError(f"a link is a weft.distributed.Link or one of {', '.join(PRESETS)}, not {link!r}")
    if ranks is None:
        return PCIE if device.type == "cuda" else MEMORY
    fitted = fitted_link(ranks, device)
    if fitted is not None:
        return fitted
    if device.type != "cuda":
        return GLOO
    return NVLINK if ranks.per_host() == ranks.size else replace(PRESETS["nvlink+ib"], per_host=ranks.per_host())


def fitted_link(ranks: Ranks, device: torch.device) -> Link | None:
    """The link that `measure_link` found in this process."""
    return _fitted.get(ranks.group, {}).get(device.type)


def measure_link(group: Any = None, device: Any = None, seconds: float = 1.0) -> Link:
    """Fit the link between the ranks of a group on this machine, and keep it for plans of this process.

    Times all-gathers of some sizes on every rank and fits latency and bandwidth by least squares of relative errors;
    the slowest rank counts. `device`: what moves, by default the current GPU where the group has NCCL, else the CPU.
    Every rank calls it. It takes about `seconds`. Raises what finding the group raises.
    """
    ranks = find_ranks(group)
    place = torch.device(device) if device is not None else _usual_device(ranks)
    backend = ranks.backend(place)
    sizes = [1 << 12, 1 << 18, 1 << 24, 1 << 28] if place.type == "cuda" else [1 << 10, 1 << 15, 1 << 20, 1 << 22]
    taken = [_timed(ranks, place, size, seconds / len(sizes)) for size in sizes]
    every = ranks.exchanged("the times of measure_link", taken)
    slowest = [max(times) for times in zip(*every, strict=True)]
    steps, share = _shape_of("all-gather", max(ranks.size, 2))
    latency, rate = _fit([share * size * ranks.size for size in sizes], slowest)
    # Least squares may differ in the last bit from rank to rank, and plans follow from them: the first rank's count.
    latency, rate = ranks.exchanged("the link of measure_link", [latency, rate])[0]
    found = Link(backend, latency / steps, rate, f"measured on {counted(ranks.size, 'rank')}")
    _fitted.setdefault(ranks.group, {})[place.type] = found
    return found


def _usual_device(ranks: Ranks) -> torch.device:
    if torch.cuda.is_available() and "nccl" in str(dist.get_backend(ranks.group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _timed(ranks: Ranks, device: torch.device, size: int, seconds: float) -> float:
    """Median seconds of an all-gather in which each rank brings `size` bytes."""
    part = torch.zeros(size, dtype=torch.uint8, device=device)
    whole = torch.empty(size * ranks.size, dtype=torch.uint8, device=device)

    def once() -> float:
        _finish(device)
        begun = time.perf_counter()
        ranks.wait(all_gather(ranks, whole, part), "an all-gather of measure_link")
        _finish(device)
        return time.perf_counter() - begun

    once()
    first = max(ranks.exchanged("measure_link", once()))
    count = max(3, min(50, int(seconds / max(first, 1e-6))))
    times = sorted(once() for _ in range(count))
    return times[count // 2]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fit(sizes: list[float], times: list[float]) -> tuple[float, float]:
    """Latency and bandwidth of ``time = latency + size / bandwidth``, least squares of relative errors."""
    rows = torch.tensor([[1 / t, s / t] for s, t in zip(sizes, times, strict=True)], dtype=torch.float64, device="cpu")
    found = torch.linalg.lstsq(rows, torch.ones(len(sizes), 1, dtype=torch.float64, device="cpu")).solution.flatten()
    latency, per_byte = (float(value) for value in found)
    if latency <= 0 or per_byte <= 0:  # too noisy for a line: the ends alone
        latency, per_byte = min(times), (times[-1] / sizes[-1])
    return latency, 1 / per_byte
