"""`RealFormSchedule`: how a complex contraction is made of steps and one product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from weft.gpu.complex.interleaved.model import Transfer
from weft.spec import Contraction, Layout

if TYPE_CHECKING:
    from weft.gpu.permute.schedule import PermuteSchedule
    from weft.planner.planner import Choice

NAME = "complex"
FINISH = 2  # place of the step that writes D

# Families that pack, sum or take parts apart on their own.
OTHERS = ("complex", "complex_direct", "pre_reduce", "ttgt")

#: What is multiplied. interleaved: complex matrices, by the vendor's library. All others are products of real numbers.
#: real_2x2: one operand as 2x2 real matrices. planar: parts with parts, four products. three_m: three products.
#: mixed_domain: one operand is real, the other's (re, im) is one more mode of m or n. real: both are.
Form = Literal["interleaved", "real_2x2", "planar", "three_m", "mixed_domain", "real"]


class RealFormStep(NamedTuple):
    """One pass over a tensor, and how it is to run."""

    transfer: Transfer
    schedule: PermuteSchedule
    seconds: float


@dataclass(frozen=True, slots=True)
class RealFormSchedule:
    """A step for each operand that is packed, one for D where a pass of its own writes it, and the product's plan."""

    form: Form
    steps: tuple[RealFormStep | None, RealFormStep | None, RealFormStep | None]  # for A, B and D
    product: Choice
    aux_args: tuple[int, ...] = ()  # positions of the auxiliary operands that the product takes
    family: str = NAME

    @property
    def of_reals(self) -> bool:
        """Whether the product is one of real numbers."""
        return self.form != "interleaved"

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.product,)

    @property
    def workspace_bytes(self) -> int:
        own = sum(step.transfer.workspace_bytes for step in self.steps[:FINISH] if step is not None)
        finish = self.steps[FINISH]
        if finish is not None:
            layout = finish.transfer.permutation.x
            own += layout.shape[0] * layout.dtype.itemsize
        left = self.product.description
        if self.of_reals and isinstance(left, Contraction) and left.c is not None and not self.packs_alpha:
            own += max(_span(left.c), _span(left.d))  # for a complex alpha: C where it is D, or zeros in its place
        return own + self.product.best.schedule.workspace_bytes

    @property
    def packs_alpha(self) -> bool:
        """Whether a complex alpha is multiplied into a packed operand's parts."""
        left = self.product.description
        exact = isinstance(left, Contraction) and left.arithmetic.product == left.arithmetic.accumulate
        return exact and any(step.transfer.form != "plain" for step in self.steps if step is not None)

    def __str__(self) -> str:
        packed = [
            f"{name} {_WORDS.get(step.transfer.form, 'as')} {step.transfer.permutation.text}"
            for name, step in zip("AB", self.steps, strict=False)
            if step is not None
        ]
        head = " ".join((f"{NAME}.{self.form}", ", ".join(packed))).rstrip()
        finish = self.steps[FINISH]
        last = "" if finish is None else "; combine D" if self.form in ("planar", "three_m") else "; scatter D"
        return f"{head}; {self.product.best.schedule}{last}"


def _span(layout: Layout) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not all(layout.shape):
        return 0
    steps = zip(layout.shape, layout.strides, strict=True)
    return (1 + sum((extent - 1) * stride for extent, stride in steps)) * layout.dtype.itemsize


_WORDS = {"along_k": "along", "across_k": "across"}  # of an operand as 2x2 matrices: their rows run along k, or across
