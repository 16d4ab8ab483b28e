"""Cases for more and more ranks: sliced networks and placed products, of one size or growing with the ranks.

    own       a public network with the slices that it has
    strong    the sum of so many networks of one graph, a slice each: the same on any number of ranks
    weak      so many for each rank
    modes     a network whose intermediates are distributed by modes: the same on any number of ranks
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft_bench.cases.networks import NetworkCase, circuit, shrunk_network, whole_networks

STRONG = 24  # networks in all: 1, 2, 3, 4, 6 and 8 ranks have equal shares of them
WEAK = 12  # for each rank


@dataclass(frozen=True)
class ScalingCase:
    """A network in slices, on any number of ranks."""

    name: str
    kind: str  # own, strong, weak or modes
    network: NetworkCase  # of kinds own and modes: the whole one; else one of those that are summed
    labels: tuple[int, ...] = ()  # of kind own: those that are sliced

    def on(self, ranks: int) -> tuple[NetworkCase, tuple[int, ...]]:
        """The network for so many ranks, and its sliced labels."""
        if self.kind in ("own", "modes"):
            return self.network, self.labels
        case, label = self.network.batch(STRONG if self.kind == "strong" else WEAK * ranks)
        return case, (label,)

    def slices(self, ranks: int) -> int:
        """How many slices there are."""
        case, labels = self.on(ranks)
        count = 1
        for label in labels:
            count *= case.extents[label]
        return count

    @property
    def slice(self) -> NetworkCase:
        """One slice."""
        return self.network.slice(self.labels)

    def shrunk(self, work: int) -> ScalingCase:
        """The case with slices of at most so many multiply-adds: more labels are sliced, to one index each."""
        small = shrunk_network(self.slice, work)
        fixed = tuple(label for label in small.sliced if label not in self.slice.sliced)
        return replace(self, network=self.network.slice(fixed)) if fixed else self


def scaling(precision: str | None = None, most: int = 64) -> tuple[ScalingCase, ...]:
    """Networks with up to `most` slices of their own; then all of them, strong and weak; then one by modes."""
    whole = whole_networks(precision)
    end = f"-{precision}" if precision else ""
    own = [ScalingCase(f"{case.name}-own{end}", "own", case, sliced) for case, sliced in whole if sliced]
    sums = [
        ScalingCase(f"{case.name}-{kind}{end}", kind, case.slice(sliced))
        for kind in ("strong", "weak")
        for case, sliced in whole
    ]
    modes = ScalingCase(f"circuit-modes{end}", "modes", circuit(32, 16, precision=precision))
    return (*(each for each in own if each.slices(1) <= most), *sums, modes)


@dataclass(frozen=True)
class PlacedCase:
    """A matrix product of half precision whose operands lie on the ranks in parts; of kind weak one mode grows."""

    name: str
    kind: str  # strong or weak
    placements: tuple[str, str, str]  # the label along which A, B and D are split
    extent: int  # of every mode, but for the one that grows
    equation: str = "mk,kn->mn"

    def extents(self, ranks: int) -> dict[str, int]:
        """Extents of m, k and n in all; in cases of kind weak that of A's label is so many times as long."""
        found = dict.fromkeys("mkn", self.extent)
        if self.kind == "weak":
            found[self.placements[0]] *= ranks
        return found

    @property
    def work(self) -> int:
        """Multiply-adds on one rank."""
        return self.extent**3

    def shrunk(self, work: int) -> PlacedCase:
        """With at most so many multiply-adds, or the fewest that there are."""
        extent = max(int(work ** (1 / 3)) // STRONG, 1) * STRONG  # 2, 3, 4, 6, 8 and 12 ranks have equal parts
        return replace(self, extent=extent) if extent < self.extent else self


def placed(extent: int = 65536) -> tuple[PlacedCase, ...]:
    """Operands of 8 GB each, split along k, where sums travel, and A along m, where B travels."""
    splits = {"k": ("k", "k", "m"), "m": ("m", "k", "m")}
    return tuple(
        PlacedCase(f"product-{name}-{kind}", kind, placements, extent)
        for kind in ("strong", "weak")
        for name, placements in splits.items()
    )
