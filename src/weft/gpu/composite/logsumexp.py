"""The family that computes in the algebra `log` by products of exponentials, which matrix units make.

    log sum over k of exp(a[m, k] + b[n, k])  =  p[m] + q[n] + log sum over k of exp(a[m, k] - p[m]) exp(b[n, k] - q[n])

with p and q the largest values over k. All terms are positive, so nothing cancels: the sum is as exact, relative to
itself, as its factors. What limits the form is the range of the exponents: where the largest terms of a row of A meet
none of a row of B, factors vanish that the sum is made of. Both exponentials are scaled up as far as products cannot
overflow, and every sum that could have lost more than its rounding is marked. Blocks with a mark are computed again
by the direct kernel; so are infinities and NaN. The last step is made in float64.

It has no kernels of its own but that: each step is a contraction that the other families plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft import algebra as algebras
from weft.errors import UnsupportedError
from weft.fn import Pointwise, trace
from weft.fn.pointwise import RecordedFunction
from weft.planner.schedule import AuxTensors, Candidates, ExtendedLaunch, Launch, Scalar, Target
from weft.spec import Arithmetic, Aux, Contraction, Layout, Mode, Role, Strides, canonical

if TYPE_CHECKING:
    from weft.planner.planner import Choice
    from weft.planner.schedule import Schedule

NAME = "log"

A, B = range(2)
LEAST_FLOPS = 2**24  # of a product that is worth six launches
LONGEST = 2**18  # sums of factors that are scaled as below cannot overflow
# Logarithms, by accumulator: of what each factor is scaled by, exact in that type, so that products stay in range.
_SCALE = {torch.float32: 37.0, torch.float64: 332.0}


@dataclass(frozen=True, slots=True)
class LogSchedule:
    """A plan for each step: largest values, exponentials, their product, and what is computed again."""

    largest: tuple[Choice, Choice]  # of A and B
    factors: tuple[Choice, Choice]
    product: Choice
    direct: Schedule  # of the family `algebra`
    precision: str  # of the product
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        stored = [step.description.d for step in (*self.largest, *self.factors)]
        marks = math.prod(self.product.description.d.shape)
        own = sum(math.prod(layout.shape) * layout.dtype.itemsize for layout in stored) + marks
        steps = (*self.largest, *self.factors, self.product)
        return own + max(step.best.schedule.workspace_bytes for step in steps)

    def __str__(self) -> str:
        return (
            f"log by products of exponentials ({self.precision}): {self.product.best.schedule}; "
            f"blocks with sums out of range: {self.direct}"
        )


def supports(contraction: Contraction, target: Target) -> str | None:
    from weft.gpu.semiring import family as room

    accumulate = contraction.arithmetic.accumulate
    if contraction.algebra is None or accumulate not in _SCALE or contraction.algebra != _log(accumulate):
        return "only the algebra log is a product of exponentials"
    if contraction.c is not None:
        return "C is added by the direct form only"
    if contraction.a_args or contraction.b_args:
        return "operands of a_fn and b_fn are for the direct form only"
    functions = (contraction.a_fn, contraction.b_fn, contraction.epilogue)
    if any(function is not None and not isinstance(function, RecordedFunction) for function in functions):
        return "a Triton function cannot be composed with exponentials"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if contraction.k > LONGEST:
        return f"sums of {contraction.k} scaled products could overflow"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth six launches"
    return room.supports(contraction, target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.gpu.semiring import family as room
    from weft.planner.planner import choose

    again = _direct(contraction)
    whole = [each for each in room.schedules(again, target).schedules if not each.workspace_bytes]
    direct = min(whole, key=lambda each: room.predict(again, each, target))  # type: ignore[arg-type]
    found, excluded = [], []
    try:
        largest = tuple(choose(_largest(contraction, operand), "triton", target) for operand in (A, B))
        factors = tuple(choose(_factors(contraction, operand), "triton", target) for operand in (A, B))
        for precision in _precisions(contraction):
            described = _product(contraction, precision)
            product = _rounded(choose(described, "triton", target, without=("staged", "last", "pre_reduce", "boxes")))
            found.append(LogSchedule(largest, factors, product, direct, precision))  # type: ignore[arg-type]
    except UnsupportedError as error:
        excluded.append(str(error))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: LogSchedule, target: Target) -> float:
    """Seconds of all steps, nothing of it out of range."""
    steps = (*schedule.largest, *schedule.factors, schedule.product)
    return sum(step.best.seconds for step in steps) + 1e-5


def build(contraction: Contraction, schedule: LogSchedule, target: Target) -> Launch | ExtendedLaunch:
    from weft.gpu.semiring import family as room

    again = _direct(contraction)
    if target.device.type == "cpu" or torch.cuda.is_available():  # now, as a call may stand within a graph capture
        for value in (0, 1):
            for dtype in {contraction.a.dtype, contraction.b.dtype}:
                _scalars(value, dtype, target.device)
    guard = next(at for at, each in enumerate(again.aux) if each.name == _MARKS)
    direct = room.build(again, schedule.direct, target, guard=guard)  # type: ignore[arg-type]
    return LogLaunch(contraction, schedule, direct)


class LogLaunch:
    """Largest values, exponentials, their product, and blocks that are computed again."""

    def __init__(self, contraction: Contraction, schedule: LogSchedule, direct: Any) -> None:
        self._largest = [step.built_as_a_step() for step in schedule.largest]
        self._factors = [step.built_as_a_step() for step in schedule.factors]
        self._product = schedule.product.built_as_a_step()[1]
        self._direct = direct
        self._marks = _stored(contraction, torch.bool)
        self._named = sum(each.kind != "output" for each in contraction.aux)
        launches = [*(launch for _, launch in (*self._largest, *self._factors)), self._product, direct]
        self.kernels = tuple(kernel for launch in launches for kernel in getattr(launch, "kernels", (launch,)))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tops, factors = [], []
        for x, (plan, largest), (staged, factor) in zip((a, b), self._largest, self._factors, strict=True):
            top, scaled = (_empty(step.description.d, x.device) for step in (plan, staged))
            largest(x, _scalar(0, x), None, top, 1.0, 1.0)
            factor(x, _scalar(1, x), None, scaled, 1.0, 1.0, (top,))
            tops.append(top)
            factors.append(scaled)
        marks = _empty(self._marks, d.device)
        named, outputs = aux[: self._named], aux[self._named :]
        self._product(*factors, None, d, 1.0, 1.0, (*named, *tops, *outputs, marks))
        self._direct(a, b, None, d, 1.0, 1.0, (*named, marks, *outputs))


_MARKS = "sums out of range"


def _rounded(product: Choice) -> Choice:
    """Each step of tf32x3 added by a rounded sum: tensor cores cut off what they add, thousands of times one way."""
    if product.description.arithmetic.precision != "tf32x3":  # type: ignore[union-attr]
        return product
    ranked = tuple(replace(each, schedule=replace(each.schedule, apart=True)) for each in product.ranked)  # type: ignore[type-var]
    return replace(product, best=ranked[0], ranked=ranked)


def _precisions(contraction: Contraction) -> Iterator[str]:
    yield "ieee"
    if contraction.arithmetic.accumulate is torch.float32:
        yield "tf32x3"


def _own(contraction: Contraction, operand: int) -> list[Mode]:
    """The modes of A or B, as its factors are stored, outermost first: k innermost, in A's order for both."""
    other = Role.N if operand == A else Role.M
    own = [mode for mode in contraction.modes if mode.role is not other and mode.strides[operand]]
    lies = contraction.of_role(Role.K)
    order = {mode: max(mode.strides.a, 0) or max(mode.strides.b, 0) for mode in lies}
    return sorted(own, key=lambda mode: (mode.role is Role.K, -order.get(mode, mode.strides[operand])))


def _steps(modes: Sequence[Mode]) -> tuple[Layout, dict[tuple[object, ...], int]]:
    """A row-major float layout of these modes and the stride of each."""
    layout = Layout.contiguous([mode.extent for mode in modes], torch.float32)
    return layout, {mode.labels: stride for mode, stride in zip(modes, layout.strides, strict=True)}


def _largest(contraction: Contraction, operand: int) -> Contraction:
    """The largest value of an operand over k."""
    accumulate = contraction.arithmetic.accumulate
    modes = _own(contraction, operand)
    layout, steps = _steps([mode for mode in modes if mode.role is not Role.K])
    return _alone(
        contraction, operand,
        [
            Mode(mode.labels, mode.extent, Role.K if mode.role is Role.K else Role.M,
                 Strides(mode.strides[operand], 0, 0, steps.get(mode.labels, 0)))
            for mode in modes
        ],
        layout._replace(dtype=accumulate), algebra=algebras.max_plus.traced(accumulate),
        a_fn=_function(contraction, operand),
    )  # fmt: skip


def _factors(contraction: Contraction, operand: int) -> Contraction:
    """The scaled exponentials of an operand's values under the largest."""
    accumulate, product = contraction.arithmetic.accumulate, contraction.arithmetic.product
    modes = _own(contraction, operand)
    layout, steps = _steps(modes)
    top, tops = _steps([mode for mode in modes if mode.role is not Role.K])
    fn = _function(contraction, operand)
    return _alone(
        contraction, operand,
        [
            Mode(mode.labels, mode.extent, Role.M,
                 Strides(mode.strides[operand], 0, 0, steps[mode.labels], tops.get(mode.labels, 0)))
            for mode in modes
        ],
        layout._replace(dtype=accumulate), algebra=None,
        epilogue=trace(_factor(_SCALE[accumulate]), (accumulate, accumulate), names=("top",), hook="factor"),
        epilogue_args=(0,), aux=(Aux("top", "operand", top._replace(dtype=accumulate), accumulate),),
        a_fn=fn, arithmetic=Arithmetic(product, accumulate),
    )  # fmt: skip


def _alone(contraction: Contraction, operand: int, modes: Sequence[Mode], d: Layout, **others: Any) -> Contraction:
    """A contraction of one operand with a 0-d one."""
    layout = (contraction.a, contraction.b)[operand]
    plain: dict[str, Any] = {
        "modes": tuple(modes), "a": layout, "b": Layout((), (), layout.dtype), "c": None, "d": d, "b_fn": None,
        "c_fn": None, "epilogue": None, "aux": (), "a_args": (), "b_args": (), "c_args": (), "epilogue_args": (),
    }  # fmt: skip
    return canonical(replace(contraction, **plain | others))


def _product(contraction: Contraction, precision: str) -> Contraction:
    """The product of the exponentials, brought back to logarithms, and the marks."""
    accumulate = contraction.arithmetic.accumulate
    own = [_own(contraction, operand) for operand in (A, B)]
    stored = [_steps(modes) for modes in own]
    tops = [_steps([mode for mode in modes if mode.role is not Role.K]) for modes in own]
    marks = _stored(contraction, torch.bool)
    marked = _mark_strides(contraction)
    named = sum(each.kind != "output" for each in contraction.aux)
    modes = [
        replace(mode, strides=Strides(
            *(steps.get(mode.labels, 0) for _, steps in stored), 0, mode.strides.d, *mode.strides.aux[:named],
            *(steps.get(mode.labels, 0) for _, steps in tops), *mode.strides.aux[named:], marked.get(mode.labels, 0),
        ))
        for mode in contraction.modes
    ]  # fmt: skip
    aux = (
        *contraction.aux[:named],
        *(Aux(f"top {n}", "operand", top._replace(dtype=accumulate), accumulate) for n, (top, _) in enumerate(tops)),
        *contraction.aux[named:],
        Aux(_MARKS, "output", marks, torch.bool),
    )
    return canonical(
        replace(
            contraction, modes=tuple(modes), aux=aux, algebra=None,
            a=stored[A][0]._replace(dtype=accumulate), b=stored[B][0]._replace(dtype=accumulate),
            arithmetic=Arithmetic(accumulate, accumulate, precision), a_fn=None, b_fn=None,
            epilogue=_epilogue(contraction), epilogue_args=(named, named + 1, *contraction.epilogue_args),
        )
    )  # fmt: skip


def _direct(contraction: Contraction) -> Contraction:
    """The contraction itself, with the marks beside it."""
    named = sum(each.kind != "output" for each in contraction.aux)
    marked = _mark_strides(contraction)
    modes = [
        replace(mode, strides=Strides(
            *mode.strides[:4], *mode.strides.aux[:named], marked.get(mode.labels, 0), *mode.strides.aux[named:]
        ))
        for mode in contraction.modes
    ]  # fmt: skip
    marks = Aux(_MARKS, "operand", _stored(contraction, torch.bool), torch.bool)
    aux = (*contraction.aux[:named], marks, *contraction.aux[named:])
    return replace(contraction, modes=tuple(modes), aux=aux)


def _result(contraction: Contraction) -> list[Mode]:
    """D's modes, outermost first."""
    own = contraction.of_role(Role.BATCH, Role.M, Role.N)
    return sorted(own, key=lambda mode: -mode.strides.d)


def _stored(contraction: Contraction, dtype: torch.dtype) -> Layout:
    return Layout.contiguous([mode.extent for mode in _result(contraction)], dtype)


def _mark_strides(contraction: Contraction) -> dict[tuple[object, ...], int]:
    return _steps(_result(contraction))[1]


def _function(contraction: Contraction, operand: int) -> Pointwise | None:
    return (contraction.a_fn, contraction.b_fn)[operand]


def _factor(scale: float) -> Any:
    """exp(value - top + scale), the rounding of both sums made good. A top of -inf is of a row without terms."""

    def factor(value: Tensor, top: Tensor) -> Tensor:
        top = torch.where(top == -math.inf, 0.0, top)
        off, first = _sum(value, -top)
        power, second = _sum(off, scale)
        lost = torch.where(torch.abs(power) < math.inf, first + second, 0.0)
        return torch.exp(power) * (1 + lost)

    return factor


def _sum(x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """A rounded sum and what rounding took (Knuth, The Art of Computer Programming 2, 4.2.2, theorem B)."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def _epilogue(contraction: Contraction) -> Pointwise:
    """From a sum of products to the logarithm and on through the contraction's own epilogue; then the mark."""
    accumulate = contraction.arithmetic.accumulate
    scale, numbers = _SCALE[accumulate], torch.finfo(accumulate)
    # Factors under the least normal number are lost: each takes at most that times the largest factor from a sum.
    bound = 2 * contraction.k * numbers.tiny * math.exp(scale) / (numbers.eps / 2)
    down = math.exp(-2 * scale)  # which float64 must be able to take as well
    bound = max(bound, 2 * torch.finfo(torch.float64).tiny / down)
    own = contraction.epilogue
    names = [f"beside{at}" for at in range(len(contraction.epilogue_args))]

    def epilogue(total: Tensor, p: Tensor, q: Tensor, **aux_args: Tensor) -> tuple[Tensor, ...]:
        empty = ((p == -math.inf) & (q < math.inf)) | ((q == -math.inf) & (p < math.inf))
        value = (p.double() + q.double()) + torch.log(total.double() * down)
        value = torch.where(empty, -math.inf, value).to(accumulate)
        mark = ~((total >= bound) & (total < math.inf)) & ~empty
        results = value if own is None else own._module.forward(value, *aux_args.values())  # type: ignore[attr-defined]
        return (*results, mark) if isinstance(results, tuple) else (results, mark)

    aux_args = own.dtypes[1:] if own is not None else ()
    return trace(epilogue, (accumulate, accumulate, accumulate, *aux_args), names=("p", "q", *names), hook="epilogue")


@lru_cache
def _log(accumulate: torch.dtype) -> Any:
    return algebras.log.traced(accumulate)


def _scalar(value: int, like: Tensor) -> Tensor:
    return _scalars(value, like.dtype, like.device)


@lru_cache(maxsize=64)
def _scalars(value: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty(layout.shape, dtype=layout.dtype, device=device)
