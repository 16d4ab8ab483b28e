"""`TtgtSchedule`: what is packed, how the library multiplies, and the pieces that D is made in."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.cpu.blas import CpuBlasSchedule
from weft.cpu.ttgt.ways import Way, name_of

NAME = "ttgt"


@dataclass(frozen=True, slots=True)
class TtgtSchedule:
    way: Way
    packed: tuple[str, ...] = field(compare=False)  # for people, by label: "A as m·k"
    product: CpuBlasSchedule
    threads: int
    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        count, side = self.way.cut.count(self.way.order), self.way.order.side(self.way.cut.operand)
        pieces = f", in {count} pieces along {name_of(side)}" if count > 1 else ""
        last = f"; {self.way.last}" if self.way.last else ""
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        return (
            f"ttgt {', '.join(self.packed) or 'nothing packed'}; blas {self.product.call}{last}{pieces}; {threads}; "
            f"workspace {self.workspace_bytes / 1024:.0f} KiB"
        )
