"""A device's ceilings: bandwidth, matrix rates and launch cost, measured once and kept on disk.

What was not measured may be read from a datasheet instead; `Ceilings.source` says which it is. Each is measured in two
rounds, some seconds apart, and the better one counts. Where the two differ by much, or other programs were seen to use
the processor (`weft.machine.identity`), there is a warning, and nothing is kept on disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import torch

from weft.base.figures import dtype_name
from weft.base.log import warn
from weft.errors import UnsupportedError
from weft.machine.datasheets import datasheet
from weft.machine.identity import Watch, machine_digest
from weft.machine.rotation import cache_bytes, memory_bytes
from weft.machine.stamp import device_stamp
from weft.machine.store import Store, fields_of
from weft.machine.timing import Timing, measure

_MATRIX_TYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
}
STEADY = 0.2  # by which rounds, or samples of one, may differ for ceilings that are kept; others may take half of that
ROUNDS = 2
_FORMAT = 5  # of what is kept on disk, and of how it is measured
_known: dict[str, Ceilings] = {}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most a device was seen to do, or, from a datasheet, is printed to do."""

    device: str
    source: Literal["measured", "datasheet"]
    read: float  # bytes/s, summing an array
    write: float  # bytes/s, filling an array
    copy: float  # bytes/s read and written together
    matrix: Mapping[str, float]  # FLOP/s of a matrix product by rate name; a multiply-add counts as two
    launch_eager: float  # seconds from one launch to the next of the smallest operation, called from Python
    launch_graph: float | None  # the same within a CUDA graph; None where there are no graphs
    date: str  # of the measurement, ISO 8601; "" for a datasheet
    stamp: Mapping[str, Any]  # device and software, see `weft.machine.stamp`
    spread: float = 0.0  # the largest relative difference between rounds, or relative robust spread within one
    shakiest: str = ""  # what it was of
    others: float = 0.0  # the share of a CPU's time that other programs took meanwhile

    @property
    def steady(self) -> bool:
        """Whether another measurement would find about the same."""
        return self.spread <= STEADY and self.others <= STEADY / 2

    @property
    def best_read(self) -> float:
        """Bytes/s that reads may reach; a copy shows some memories faster than a sum does."""
        return max(self.read, self.copy)

    @property
    def best_write(self) -> float:
        """Bytes/s that writes may reach; a copy may use stores that a fill does not."""
        return max(self.write, self.copy)

    def rate(self, name: str) -> float | None:
        """FLOP/s of matrix products by `rate_name`, or None where the device showed none.

        "tf32x3" makes each product of three in TF32, and "fp16x3" of three in float16, so it is a third of that.
        """
        of_terms = {"tf32x3": "tf32", "fp16x3": "float16"}.get(name)
        if of_terms is None:
            return self.matrix.get(name)
        rate = self.matrix.get(of_terms)
        return rate / 3 if rate is not None else None


@dataclass(frozen=True, slots=True)
class Probe:
    """How large and how long the measurements are."""

    array_bytes: int
    matrix_extents: tuple[int, ...]  # square products; the fastest counts
    budget: float  # seconds for each measurement

    @classmethod
    def of(cls, device: torch.device) -> Probe:
        if device.type == "cuda":
            return cls(min(1 << 30, memory_bytes(device) // 4), (4096, 8192), 0.5)
        return cls(max(64 << 20, 2 * cache_bytes(device)), (1024,), 0.2)


def rate_name(product: torch.dtype, accumulate: torch.dtype, precision: str = "ieee") -> str:
    """Which matrix rate bounds products of one type summed in another: a name that `Ceilings.rate` takes.

    Complex products go by their real type, each multiply-add counting as four real ones; sums in float64 go at the
    rate of float64.
    """
    product, accumulate = product.to_real(), accumulate.to_real()
    if accumulate is torch.float64:
        return "float64"
    if product is torch.float32 and precision != "ieee":
        return precision
    return dtype_name(product)


def ceilings(
    device: torch.device | str,
    *,
    refresh: bool = False,
    may_measure: bool = True,
    progress: Progress | None = None,
) -> Ceilings:
    """The ceilings of `device`: from memory, from disk, or measured now (some seconds) and kept.

    `refresh` measures in any case. Without `may_measure` nothing is timed; the datasheet of a known GPU then stands in,
    and `UnsupportedError` says that there is none. `progress` hears the name of each measurement before it is made.
    """
    stamp = device_stamp(device)
    key = {"what": "ceilings", "format": _FORMAT, **stamp}
    if stamp["kind"] == "cpu":
        key["machine"] = machine_digest()
    store, place = Store("ceilings"), repr(key)
    if not refresh:
        found = _known.get(place) or _from_disk(store.load(key))
        if found is not None:
            _known[place] = found
            return found
        if not may_measure:
            return from_datasheet(stamp["name"])
    measured = measure_ceilings(device, progress=progress)
    if measured.steady:
        store.save(key, asdict(measured))
    else:
        warn(
            f"the ceilings of {measured.device} are not repeatable ({_unsteady(measured)}): other programs use the "
            "machine. Floors may be too high; these figures are not kept, `weft info --refresh` measures them on a "
            "quiet machine"
        )
    _known[place] = measured
    return measured


def _unsteady(measured: Ceilings) -> str:
    if measured.spread > STEADY:
        return f"{measured.shakiest} differs by {100 * measured.spread:.0f} % from one measurement to the next"
    return f"others took {100 * measured.others:.0f} % of the processor's time meanwhile"


def from_datasheet(name: str) -> Ceilings:
    """Printed peaks of the GPU that torch calls `name`. Launches cost nothing there: no datasheet prints them."""
    sheet = datasheet(name)
    if sheet is None:
        raise UnsupportedError(f"no ceilings are known for '{name}': measure them with `weft info`")
    return Ceilings(
        device=sheet.name,
        source="datasheet",
        read=sheet.bandwidth,
        write=sheet.bandwidth,
        copy=sheet.bandwidth,
        matrix=dict(sheet.matrix),
        launch_eager=0.0,
        launch_graph=0.0,
        date="",
        stamp={},
    )


def measure_ceilings(
    device: torch.device | str, probe: Probe | None = None, progress: Progress | None = None
) -> Ceilings:
    """Measure every ceiling of `device` by the timing protocol; nothing is read from or kept on disk."""
    device = torch.device(device)
    probe = probe or Probe.of(device)
    progress = progress or (lambda name: None)
    stamp = device_stamp(device)
    watch = Watch() if device.type == "cpu" else None
    launch_eager, launch_graph = _launches(device, probe, progress)
    rounds = [(_bandwidths(device, probe, progress), _matrix_rates(device, probe, progress)) for _ in range(ROUNDS)]
    bandwidths = _better([found for found, _ in rounds])
    matrix = _better([found for _, found in rounds])
    for half in ("float16", "bfloat16"):  # values of half precision may always be multiplied in single
        matrix[half] = max(matrix.get(half, _NOTHING), matrix["float32"])
    rates = {**bandwidths, **{f"{name} products": rate for name, rate in matrix.items()}}
    shakiest = max(rates, key=lambda name: rates[name].spread)
    return Ceilings(
        device=stamp["name"],
        source="measured",
        **{name: rate.value for name, rate in bandwidths.items()},
        matrix={name: rate.value for name, rate in matrix.items()},
        launch_eager=launch_eager,
        launch_graph=launch_graph,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        stamp=stamp,
        spread=rates[shakiest].spread,
        shakiest=shakiest,
        others=round(watch.others(), 3) if watch is not None else 0.0,
    )


@dataclass(frozen=True, slots=True, order=True)
class _Rate:
    """A measured rate per second, and how far other samples or rounds are from it."""

    value: float
    spread: float = 0.0


_NOTHING = _Rate(0.0)


def _better(rounds: Sequence[Mapping[str, _Rate]]) -> dict[str, _Rate]:
    """The best round of each rate; its spread is how far the worst falls short of it, or its own if that is more."""
    found = {}
    for name in rounds[0]:
        best = max(each[name] for each in rounds)
        worst = min(each[name].value for each in rounds)
        found[name] = _Rate(best.value, max(best.spread, 1 - worst / best.value))
    return found


def _bandwidths(device: torch.device, probe: Probe, progress: Progress) -> dict[str, _Rate]:
    elements = max(1, probe.array_bytes // 4)

    def one() -> tuple[torch.Tensor]:
        return (torch.ones(elements, device=device),)

    def two() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(elements, device=device), torch.empty(elements, device=device)

    def rate(call: Callable[..., Any], make: Callable[[], Any], passes: int) -> _Rate:
        return _rate(passes * 4 * elements, measure(call, make, device=device, budget=probe.budget))

    def copy() -> _Rate:
        """By the driver's copy, or by a kernel that moves as much, which some GPUs do faster."""
        return max(rate(lambda x, y: y.copy_(x), two, 2), rate(lambda x, y: torch.neg(x, out=y), two, 2))

    found = {}
    for name, measured in (
        ("read", lambda: rate(torch.sum, one, 1)),
        ("write", lambda: rate(lambda x: x.fill_(1.0), one, 1)),
        ("copy", copy),
    ):
        progress(name)
        found[name] = measured()
    return found


def _rate(work: float, timing: Timing) -> _Rate:
    summary = timing.summary
    return _Rate(work / summary.median, summary.rrs)


def _matrix_rates(device: torch.device, probe: Probe, progress: Progress) -> dict[str, _Rate]:
    rates = {}
    for name, dtype in _MATRIX_TYPES.items():
        if name == "tf32" and device.type != "cuda":
            continue
        progress(f"{name} products")
        with float32_products(tf32=name == "tf32"):
            found = [_matrix_rate(device, dtype, extent, probe.budget) for extent in probe.matrix_extents]
        if (best := max(found)) > _NOTHING:
            rates[name] = best
    return rates


def _matrix_rate(device: torch.device, dtype: torch.dtype, extent: int, budget: float) -> _Rate:
    """FLOP/s of a square product; 0 where torch has none for this type and device."""
    product = torch._int_mm if dtype is torch.int8 else torch.mm

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return _random(extent, dtype, device), _random(extent, dtype, device).t()

    try:
        product(*make())
    except (RuntimeError, NotImplementedError):
        return _NOTHING
    return _rate(2 * extent**3, measure(product, make, device=device, mode="hot", budget=budget))


def _random(extent: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random values: a GPU at its power limit multiplies constants faster than data."""
    if dtype.is_floating_point:
        return torch.randn(extent, extent, device=device).to(dtype)
    return torch.randint(-8, 8, (extent, extent), device=device).to(dtype)


def _launches(device: torch.device, probe: Probe, progress: Progress) -> tuple[float, float | None]:
    x = torch.zeros(1, device=device)

    def smallest() -> None:
        x.add_(1.0)

    progress("launches")
    eager = measure(smallest, [()], device=device, mode="hot", budget=probe.budget, capture=False)
    if device.type != "cuda":
        return eager.seconds, None
    graph = measure(smallest, [()], device=device, mode="hot", budget=probe.budget)
    return eager.seconds, graph.seconds if graph.captured else None


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Let torch's fp32 matrix products on the GPU use TF32 or not, and put its setting back.

    torch has an old and a new switch that must agree; the old one sets both.
    """
    matmul = torch.backends.cuda.matmul
    new = matmul.fp32_precision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old switch is deprecated
        try:
            old = matmul.allow_tf32
        except RuntimeError:  # only the new one was set
            old = new == "tf32"
        matmul.allow_tf32 = tf32
        try:
            yield
        finally:
            matmul.allow_tf32 = old
            matmul.fp32_precision = new


def _from_disk(saved: Any) -> Ceilings | None:
    """The stored ceilings, or None when they are absent or not what this version writes."""
    try:
        found = fields_of(Ceilings, saved)
    except ValueError:
        return None
    rates = (found.read, found.write, found.copy, found.launch_eager, *found.matrix.values())
    return found if all(rates) else None
