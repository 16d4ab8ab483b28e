"""A contraction as a program: ordered steps, each planned on its own, over named tensors.

    A, B, C, D, auxiliary operands     of the call
    constants                          made when the program is built
    work                               intermediates, in one allocation a call, whose places are shared by lifetime

A family of programs is a rewrite: its `supports` and `schedules` say which programs compute a description; `predict`
and `build` are those of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from weft.base.kept import constant, prepare
from weft.base.lifetimes import Life, aligned, most_alive, place_by_size
from weft.planner.schedule import AuxTensors, Description, ResourceError, Scalar, Target
from weft.spec import Aux, Contraction, Label, Layout, Mode, Strides, canonical

if TYPE_CHECKING:
    from weft.planner.planner import Choice


class SlotKind(IntEnum):
    A, B, C, D, AUX, CONSTANT, WORK = range(7)


class Slot(NamedTuple):
    """A named tensor of a program."""

    kind: SlotKind
    at: int = 0  # number of an auxiliary operand or an intermediate; the value of a constant
    dtype: torch.dtype | None = None  # of a constant


SLOT_A, SLOT_B, SLOT_C, SLOT_D = (Slot(kind) for kind in (SlotKind.A, SlotKind.B, SlotKind.C, SlotKind.D))


def work(index: int) -> Slot:
    return Slot(SlotKind.WORK, index)


def aux_slots(places: Iterable[int]) -> tuple[Slot, ...]:
    return tuple(Slot(SlotKind.AUX, place) for place in places)


def number_slot(value: int, dtype: torch.dtype) -> Slot:
    return Slot(SlotKind.CONSTANT, value, dtype)


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One contraction or permutation of a program."""

    choice: Choice
    reads: tuple[Slot, ...]  # A and B of a contraction, X of a permutation
    writes: Slot
    adds: Slot | None = None
    aux: tuple[Slot, ...] = ()
    factors: tuple[int, int] | None = (1, 0)  # alpha and beta; None: those of the call
    paired: bool = False  # a permutation that one launch makes with that of the next step, where the device can hold it
    predicted: float | None = field(default=None, compare=False)  # seconds, where the choice's own are not all

    @property
    def seconds(self) -> float:
        return self.choice.best.seconds if self.predicted is None else self.predicted

    @property
    def slots(self) -> tuple[Slot, ...]:
        added = () if self.adds is None else (self.adds,)
        return (*self.reads, *added, self.writes, *self.aux)


def as_called(choice: Choice, *reads: Slot, factors: tuple[int, int] | None = None) -> ProgramStep:
    """A contraction that writes D as the call wants it: C, auxiliary operands and factors are those of the call."""
    aux = aux_slots(range(len(getattr(choice.description, "aux", ()))))
    return ProgramStep(choice, reads, SLOT_D, SLOT_C, aux, factors)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in the order in which they run: the schedule of a family of programs."""

    family: str
    steps: tuple[ProgramStep, ...]
    main: int  # the step whose choice stands for the program: its product
    form: str = field(compare=False)  # printed form; `{i}` stands for the schedule of step i
    work: tuple[Layout, ...] = ()  # intermediates, where not each is what a step writes
    spare: int = 0  # bytes that steps may take besides

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(step.choice for step in self.steps)

    @property
    def product(self) -> Choice:
        return self.steps[self.main].choice

    @property
    def seconds(self) -> float:
        """Predicted: the sum over all steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def intermediates(self) -> tuple[Layout, ...]:
        return self.work or tuple(step.choice.description.d for step in self.steps if step.writes.kind is SlotKind.WORK)

    @property
    def workspace_bytes(self) -> int:
        """Intermediates alive at once, but for the gaps that align them, and what the most demanding step takes."""
        sizes = {index: size_bytes(layout) for index, layout in enumerate(self.intermediates)}
        steps = max(each.best.schedule.workspace_bytes for each in self.choices)
        return most_alive(sizes, self.lives()) + steps + self.spare

    def lives(self) -> dict[int, Life]:
        """The first and the last step that use each intermediate."""
        found: dict[int, Life] = {}
        for at, step in enumerate(self.steps):
            for slot in step.slots:
                if slot.kind is SlotKind.WORK:
                    found[slot.at] = (found.get(slot.at, (at, at))[0], at)
        return found

    def __str__(self) -> str:
        return self.form.format(*(each.best.schedule for each in self.choices))


def predict(description: Description, program: Program, target: Target) -> float:
    return program.seconds


def build(description: Description, program: Program, target: Target) -> ProgramLaunch:
    return ProgramLaunch(program, target)


class RewrittenTensor(NamedTuple):
    """A tensor in a rewritten contraction: how it lies, and its strides by the labels of modes."""

    layout: Layout
    strides: dict[tuple[Label, ...], int]

    @classmethod
    def row_major(cls, modes: Sequence[Mode], dtype: torch.dtype) -> RewrittenTensor:
        layout = Layout.contiguous([mode.extent for mode in modes], dtype)
        return cls(layout, dict(zip([mode.labels for mode in modes], layout.strides, strict=True)))

    def stride(self, mode: Mode) -> int:
        return self.strides.get(mode.labels, 0)


def alone(contraction: Contraction, operand: int, modes: Sequence[Mode], d: Layout, **others: Any) -> Contraction:
    """A contraction of A or B, its function applied, with a number: a 0-d operand."""
    layout = (contraction.a, contraction.b)[operand]
    plain: dict[str, Any] = {
        "modes": tuple(modes), "a": layout, "b": Layout((), (), layout.dtype), "c": None, "d": d,
        "a_fn": (contraction.a_fn, contraction.b_fn)[operand], "b_fn": None, "c_fn": None, "epilogue": None, "aux": (),
        "conjugate_a": (contraction.conjugate_a, contraction.conjugate_b)[operand], "conjugate_b": False,
        "a_args": (), "b_args": (), "c_args": (), "epilogue_args": (),
    }  # fmt: skip
    return canonical(replace(contraction, **plain | others))


def of_placed(contraction: Contraction, *operands: RewrittenTensor | None, **others: Any) -> Contraction:
    """The contraction of A and B that lie elsewhere, all that is applied to them done; None for one that is not."""
    modes, changed = list(contraction.modes), others
    for at, operand in enumerate(operands):
        if operand is not None:
            name = "ab"[at]
            changed |= {name: operand.layout, f"{name}_fn": None, f"conjugate_{name}": False}
            for place, mode in enumerate(modes):
                strides = Strides(*mode.strides[:at], operand.stride(mode), *mode.strides[at + 1 :])
                modes[place] = mode._replace(strides=strides)
    return replace(contraction, **{"modes": tuple(modes)} | changed)


def with_aux(contraction: Contraction, at: int, *added: tuple[Aux, RewrittenTensor]) -> Contraction:
    """The contraction with further auxiliary operands, or results, before its own of this number."""
    modes = [
        mode._replace(strides=Strides(
            *mode.strides[: 4 + at], *(place.stride(mode) for _, place in added), *mode.strides[4 + at :]
        ))
        for mode in contraction.modes
    ]  # fmt: skip
    aux = (*contraction.aux[:at], *(each for each, _ in added), *contraction.aux[at:])
    return replace(contraction, modes=tuple(modes), aux=aux)


def literal(text: str) -> str:
    """A text that has no places for schedules, as a part of a printed form."""
    return text.replace("{", "{{").replace("}", "}}")


def elements(layout: Layout) -> int:
    """Elements of an intermediate, the gaps between its rows included; its outermost mode stands first."""
    return layout.shape[0] * layout.strides[0] if layout.shape else 1


def size_bytes(layout: Layout) -> int:
    return elements(layout) * layout.dtype.itemsize


class Arrangement:
    """The intermediates of a program in one allocation: one behind the other, or by lifetime where that is shorter."""

    def __init__(self, program: Program) -> None:
        self._dtypes = [layout.dtype for layout in program.intermediates]
        one = len(set(self._dtypes)) == 1
        self._dtype = self._dtypes[0] if one else torch.uint8
        unit = self._dtype.itemsize
        sizes = {index: aligned(size_bytes(layout)) for index, layout in enumerate(program.intermediates)}
        places: dict[int, int] = {}
        total = place_by_size(sizes, program.lives(), [], places)
        self._lengths = [size // unit for size in sizes.values()]
        self._places = [places[index] // unit for index in sizes] if total < sum(sizes.values()) else None
        self._total = total // unit

    def tensors(self, device: torch.device) -> Sequence[Tensor]:
        """The intermediates of one call, each as one row of elements."""
        if not self._dtypes:
            return ()
        base = torch.empty(self._total, dtype=self._dtype, device=device)
        if len(self._dtypes) == 1:
            return (base,)
        parts: Sequence[Tensor]
        if self._places is None:
            parts = base.split_with_sizes(self._lengths)
        else:
            parts = [base[at : at + length] for at, length in zip(self._places, self._lengths, strict=True)]
        if self._dtype is not torch.uint8:
            return parts
        return [part.view(dtype) for part, dtype in zip(parts, self._dtypes, strict=True)]


Values = Sequence[Tensor | None]
StepCall = Callable[[Values, Scalar, Scalar], None]
_FIRST_WORK = 5  # place of the first intermediate among the values of a call: A, B, C, D and None stand before it


class ProgramLaunch:
    """A built program."""

    def __init__(self, program: Program, target: Target) -> None:
        self._work = Arrangement(program)
        slots = [slot for step in program.steps for slot in step.slots]
        self._constants = list(dict.fromkeys(slot for slot in slots if slot.kind is SlotKind.CONSTANT))
        for slot in self._constants:
            prepare(slot.at, slot.dtype, target.device)  # type: ignore[arg-type]
        self._first_aux = _FIRST_WORK + len(program.intermediates) + len(self._constants)
        built = list(self._built(program, target))
        self._steps = [call for _, call in built]
        self.kernels = tuple(kernel for launch, _ in built for kernel in _kernels(launch))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        device = d.device
        constants = [constant(slot.at, slot.dtype, device) for slot in self._constants]  # type: ignore[arg-type]
        values = (a, b, c, d, None, *self._work.tensors(device), *constants, *aux)
        for step in self._steps:
            step(values, alpha, beta)

    def _built(self, program: Program, target: Target) -> Iterator[tuple[Any, StepCall]]:
        """The launch of each step, and what runs it; two steps that one launch makes come as one."""
        at, steps = 0, program.steps
        while at < len(steps):
            step = steps[at]
            both = _built_together(step, steps[at + 1], target) if step.paired else None
            if both is None:
                launch = step.choice.built_as_a_step()[1]
                yield launch, self._call(launch, step)
                at += 1
            else:
                yield both, self._pair_call(both, step, steps[at + 1])
                at += 2

    def _call(self, launch: Any, step: ProgramStep) -> StepCall:
        places = [self._place(slot) for slot in (*step.reads, step.adds, step.writes)]
        aux, description, given = [self._place(slot) for slot in step.aux], step.choice.description, step.factors
        factors: tuple[Scalar, Scalar] | None = given
        if given is not None and isinstance(description, Contraction):
            accumulate = description.arithmetic.accumulate
            factors = number(given[0], accumulate), number(given[1], accumulate)
        tensors = itemgetter(*places)

        def call(values: Values, alpha: Scalar, beta: Scalar) -> None:
            scalars = (alpha, beta) if factors is None else factors
            if aux:
                launch(*tensors(values), *scalars, tuple([values[place] for place in aux]))
            else:
                launch(*tensors(values), *scalars)

        return call

    def _pair_call(self, launch: Any, *pair: ProgramStep) -> StepCall:
        tensors = itemgetter(*[self._place(slot) for step in pair for slot in (*step.reads, step.writes)])

        def call(values: Values, alpha: Scalar, beta: Scalar) -> None:
            launch(*tensors(values))

        return call

    def _place(self, slot: Slot | None) -> int:
        """Where a slot's tensor stands among the values of a call."""
        if slot is None:
            return _FIRST_WORK - 1
        if slot.kind is SlotKind.AUX:
            return self._first_aux + slot.at
        if slot.kind is SlotKind.CONSTANT:
            return self._first_aux - len(self._constants) + self._constants.index(slot)
        return _FIRST_WORK + slot.at if slot.kind is SlotKind.WORK else int(slot.kind)


def number(value: int, dtype: torch.dtype) -> Scalar:
    """A factor as the launch of a contraction with sums of this type takes it."""
    return complex(value) if dtype.is_complex else float(value) if dtype.is_floating_point else value


def _kernels(launch: Any) -> Sequence[Any]:
    """Kernel launches within a step's launch: its `kernels`, or its one `launch`."""
    one = getattr(launch, "launch", None)
    return getattr(launch, "kernels", () if one is None else (one,))


def _built_together(first: ProgramStep, second: ProgramStep, target: Target) -> Any | None:
    """One launch for two permutations, by the family of both; None where the device cannot hold it."""
    moves = [(step.choice.description, step.choice.best.schedule) for step in (first, second)]
    try:
        return first.choice.best.family.build_pair(*moves, target)  # type: ignore[attr-defined]
    except ResourceError:
        return None
