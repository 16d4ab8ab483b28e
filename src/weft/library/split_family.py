"""float32 products of "ieee_bound" made of shorter terms, see `weft.planner.split_schemes`.

In memory: operands are packed, passed through their functions and split; one kernel multiplies terms
(`weft.gpu.terms`), and what follows on the sums is one more pass. The steps around a product are the library's.

In registers: the product of another family that splits tiles as it multiplies them, and adds each step along k in
float32. Nothing is packed for it, and functions before and after are fused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.errors import UnsupportedError
from weft.library import family as library
from weft.library import model
from weft.library.part import LibraryPart
from weft.library.scheme import LibraryScheme, scheme_of
from weft.library.views import Frame
from weft.planner import program
from weft.planner.program import SLOT_A, SLOT_B, Program, as_called
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.planner.split_schemes import BF16X6, STEPS, refusal
from weft.spec import Contraction, Layout

if TYPE_CHECKING:
    from weft.planner.planner import Choice

NAME = "split"
KEPT = 4  # schedules of a product in registers that are proposed
OF_REAL = ("complex", "interleaved")  # families of complex products that consist of real ones, which are split
AROUND = ("pre_reduce", "ttgt")  # families whose products are split themselves


@dataclass(frozen=True, slots=True)
class TermsSchedule:
    """Matrices of terms in memory, multiplied by one kernel."""

    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        workspace = f"workspace {self.workspace_bytes / 1024:.0f} KiB"
        return f"{self.family}: matrix products of shorter terms in one kernel; {workspace}"


def supports(contraction: Contraction, target: Target) -> str | None:
    if not contraction.arithmetic.split:
        return 'products are made of shorter terms where precision is "ieee_bound"'
    return refusal(target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[TermsSchedule | Program] = []
    excluded: list[str] = []
    if (reason := library.supports(contraction, target)) is not None:
        excluded.append(reason)
    elif (scheme := _in_memory(contraction)) is not None:
        found.append(TermsSchedule(_part(scheme).workspace_bytes))
    if not BF16X6.admitted(_products(contraction), STEPS):
        excluded.append(f"sums of {contraction.k} products are too short for a bound as that of IEEE sums")
    else:
        try:
            found += [_program(each, _products(contraction)) for each in _in_registers(contraction, target)]
        except UnsupportedError as error:
            excluded.append(str(error))
    return Candidates(tuple(found), tuple(excluded))


def _in_memory(contraction: Contraction) -> LibraryScheme | None:
    """The steps around a product of matrices of terms; None where terms in memory are not for the contraction."""
    scheme = scheme_of(contraction, "cuda", terms=True)
    long = library.is_long(scheme, Frame.whole(contraction))
    return scheme if scheme.types.way == "split" and not long else None


def _part(scheme: LibraryScheme) -> LibraryPart:
    return LibraryPart(scheme, Frame.whole(scheme.contraction))


def _products(contraction: Contraction) -> int:
    """How many real products a real number is the sum of."""
    return contraction.k * (2 if contraction.arithmetic.product.is_complex else 1)


def _in_registers(contraction: Contraction, target: Target) -> list[Choice]:
    from weft.planner.planner import choose

    arithmetic = replace(contraction.arithmetic, precision=BF16X6.name, split=False)
    others = (NAME, *AROUND, *OF_REAL)
    product = choose(replace(contraction, arithmetic=arithmetic), "triton", target, without=others)
    return list(product.led_by_each(product.ranked[:KEPT]))


def _program(product: Choice, k: int) -> Program:
    share = BF16X6.loss(k, STEPS) / k
    form = f"{NAME} {BF16X6.name} in registers, {share:.2f} of an IEEE sum's bound; {{0}}"
    return Program(NAME, (as_called(product, SLOT_A, SLOT_B),), 0, form)


def predict(contraction: Contraction, schedule: TermsSchedule | Program, target: Target) -> float:
    if isinstance(schedule, Program):
        return schedule.seconds
    return max(model.contraction_seconds(_part(scheme_of(contraction, "cuda", terms=True)), 1, target))


def build(contraction: Contraction, schedule: TermsSchedule | Program, target: Target) -> Launch:
    """`ResourceError` where the kernel does not take the matrices."""
    if isinstance(schedule, Program):
        return program.build(contraction, schedule, target)
    part = _part(scheme_of(contraction, "cuda", terms=True))
    part.prepare(target)
    return TermsLaunch(contraction, part)


class TermsLaunch:
    """Products of terms in memory on tensors of a call, or of a step, whose intermediates are rows of elements."""

    def __init__(self, contraction: Contraction, part: LibraryPart) -> None:
        self._part = part
        self._layouts = contraction.a, contraction.b, contraction.c, contraction.d
        self.kernels = part.kernels

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        a, b, c, d = (_in_layout(*pair) for pair in zip((a, b, c, d), self._layouts, strict=True))
        self._part(a, b, c, d, alpha, beta, aux)

    @property
    def state(self) -> str | None:
        return self._part.state


def _in_layout(tensor: Any, layout: Layout | None) -> Any:
    if tensor is None or layout is None or tensor.shape == layout.shape:
        return tensor
    return tensor.as_strided(layout.shape, layout.strides)
