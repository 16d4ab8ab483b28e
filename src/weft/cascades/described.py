"""The equation of a cascade, the tensors that its plan takes, the results that it gives, and its text for `explain`.

The equation is that of one contraction, or of two of which the second begins where the first ends.

    bqhd,bkhd->bqhk, bqhk,bkhe->bqhe
    A    B     S     S    C     D
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.base.figures import share, si
from weft.errors import DTypeError, NotationError, ShapeError, UnsupportedError
from weft.fn.binding import bind
from weft.planner.options import Options
from weft.spec import Label, Layout, Notation, parse
from weft.spec.contraction import check_reach, coordinate, mode_extents, operand, read_modes
from weft.spec.dtypes import dtype_name
from weft.spec.notation import expand, from_sequences, label_text, term_text, terms_of

Labels = tuple[Label, ...]
Terms = tuple[tuple[str, Labels], ...]

_FORM = "'ab,cb->ac', or 'ab,cb->ac, ac,cd->ad' where the second contraction takes the result of the first"


@dataclass(frozen=True, slots=True)
class CascadeNotation:
    """Labels of A, B, S, C and D; C and D are None where there is no second contraction."""

    a: tuple[Label, ...]
    b: tuple[Label, ...]
    s: tuple[Label, ...]
    c: tuple[Label, ...] | None = None
    d: tuple[Label, ...] | None = None

    @property
    def terms(self) -> tuple[tuple[Label, ...], ...]:
        """The labels of A, B and, where there is one, C."""
        return (self.a, self.b) if self.c is None else (self.a, self.b, self.c)

    def __str__(self) -> str:
        text = f"{term_text(self.a)},{term_text(self.b)}->{term_text(self.s)}"
        if self.c is None or self.d is None:
            return text
        return f"{text}, {term_text(self.s)},{term_text(self.c)}->{term_text(self.d)}"


def read(equation: Any, ranks: Sequence[int]) -> CascadeNotation:
    """An equation, as text or as sequences of labels (A, B, S) or (A, B, S, C, D), for operands of those ranks."""
    first, second = _parts(equation)
    wanted = 2 if second is None else 3
    if len(ranks) != wanted:
        raise NotationError(f"the equation names {wanted} operands, {len(ranks)} were given")
    one = expand(first, ranks[:2])
    if second is None:
        return CascadeNotation(one.inputs[0], one.inputs[1], one.output)
    at = _place_of(first, second)
    order = [len(one.output), ranks[2]] if at == 0 else [ranks[2], len(one.output)]
    two = expand(second, order)
    if sorted(map(str, two.inputs[at])) != sorted(map(str, one.output)):
        raise NotationError(f"the first contraction ends in '{term_text(one.output)}': {_SECOND}")
    return CascadeNotation(one.inputs[0], one.inputs[1], one.output, two.inputs[1 - at], two.output)


_SECOND = "the second begins with the same labels"


def _parts(equation: Any) -> tuple[Notation, Notation | None]:
    if not isinstance(equation, str):
        terms = terms_of(equation)
        if len(terms) not in (3, 5):
            raise NotationError(f"sequences of labels are (A, B, S) or (A, B, S, C, D), not {len(terms)}")
        first = from_sequences(*terms[:3])
        return first, None if len(terms) == 3 else from_sequences(terms[2], terms[3], terms[4])
    parts = equation.split("->")
    if len(parts) == 2:
        return _of_two(parse(equation)), None
    middle = parts[1].split(",") if len(parts) == 3 else []
    if len(middle) != 3:
        raise NotationError(f"a cascade is {_FORM}; not '{equation}'")
    return _of_two(parse(f"{parts[0]}->{middle[0]}")), parse(f"{middle[1]},{middle[2]}->{parts[2]}")


def _of_two(notation: Notation) -> Notation:
    if len(notation.inputs) != 2:
        raise NotationError(f"the first contraction of a cascade has two operands: {_FORM}")
    return notation


def _place_of(first: Notation, second: Notation) -> int:
    """The operand of the second contraction that the first one ends in."""
    for at, term in enumerate(second.inputs):
        if set(term) == set(first.output) and len(term) == len(first.output):
            return at
    raise NotationError(f"the first contraction ends in '{term_text(first.output)}': {_SECOND}")


def extents_of(notation: CascadeNotation, shapes: Sequence[Sequence[int]]) -> dict[Label, int]:
    """The extent of each label, extent 1 broadcasting; `ShapeError` names the label that clashes."""
    names = [str(label) for label in notation.s]
    for label, name in zip(notation.s, names, strict=True):
        if names.count(name) > 1:  # a function could not tell them apart
            raise NotationError(f"two labels of '{term_text(notation.s)}' read '{label_text(label)}'")
    return mode_extents(Notation(notation.terms, ()), shapes)


def labels_of(modes: Iterable[str], notation: CascadeNotation) -> tuple[Label, ...]:
    """The labels of S that a function names."""
    known = {str(label): label for label in notation.s}
    for mode in modes:
        if mode not in known:
            raise NotationError(
                f"between: the function reduces over '{mode}', which '{term_text(notation.s)}' does not have"
            )
    return tuple(known[mode] for mode in modes)


@dataclass(frozen=True, slots=True)
class Described:
    """The tensors that a plan is for: shapes, types and labels of A, B, C and of operands by name, and coordinates."""

    notation: CascadeNotation
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device
    operands: Mapping[str, tuple[tuple[Label, ...], tuple[int, ...], torch.dtype]]
    indices: Mapping[str, Label]
    extents: Mapping[Label, int]

    @property
    def terms(self) -> Terms:
        """Names and labels of operands."""
        return tuple((name, labels) for name, (labels, _, _) in self.operands.items())

    def place_type(self, label: Label) -> torch.dtype:
        """The type of a coordinate along a label."""
        return torch.int32 if self.extents[label] < 2**31 else torch.int64

    @property
    def given(self) -> dict[str, tuple[torch.dtype, frozenset[Label]]]:
        """The type and the labels of what the function takes beside its value, by name."""
        found = {name: (dtype, frozenset(terms)) for name, (terms, _, dtype) in self.operands.items()}
        return found | {name: (self.place_type(label), frozenset((label,))) for name, label in self.indices.items()}

    def own(self, term: Sequence[Label], shape: Sequence[int]) -> tuple[Label, ...]:
        """The labels of an operand along which it does not broadcast."""
        pairs = zip(term, shape, strict=True)
        return tuple(dict.fromkeys(label for label, extent in pairs if extent == self.extents[label]))

    def check(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> None:
        """`ShapeError` or `DTypeError` for tensors of a call that are others than planned."""
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes != self.shapes:
            raise ShapeError(f"the plan is for operands of shapes {self.shapes}, not {shapes}")
        if set(operands) != set(self.operands):
            raise ShapeError(f"the plan is for operands named {sorted(self.operands)}, not {sorted(operands)}")
        for name, (_, shape, dtype) in self.operands.items():
            if tuple(operands[name].shape) != shape or operands[name].dtype != dtype:
                raise ShapeError(f"operand '{name}' was planned with shape {shape} and type {dtype_name(dtype)}")
        for tensor in tensors:
            if tensor.dtype != self.dtype or tensor.device != self.device:
                raise DTypeError(f"the plan is for {dtype_name(self.dtype)} tensors on {self.device}")


def described(equation: Any, tensors: Sequence[torch.Tensor], options: Options, function: Any) -> Described:
    """The tensors that a plan is for, checked."""
    notation = read(equation, [tensor.dim() for tensor in tensors])
    extents = extents_of(notation, [tensor.shape for tensor in tensors])
    of_s = {label: extents[label] for label in notation.s}
    operands: dict[str, tuple[tuple[Label, ...], tuple[int, ...], torch.dtype]] = {}
    for name, (modes, tensor) in options.operands.items():
        terms = read_modes(name, modes, tensor.dim())
        layout = Layout.contiguous(tuple(tensor.shape), tensor.dtype)
        check_reach(operand(name, terms, layout, of_s), "between", "S", notation.s)
        if tensor.device != tensors[0].device:
            raise UnsupportedError(f"operand '{name}' is on {tensor.device}, the tensors on {tensors[0].device}")
        operands[name] = (terms, tuple(tensor.shape), tensor.dtype)
    for name, label in options.indices.items():
        check_reach(coordinate(name, label, of_s), "between", "S", notation.s)
    bind({"between": function}, [*operands, *options.indices])
    return Described(
        notation, tuple(tuple(each.shape) for each in tensors), tensors[0].dtype, tensors[0].device, operands,
        options.indices, extents,
    )  # fmt: skip


class Results:
    """The labels of a plan's results in both orders: D with those that were asked for, others with theirs in S's.

    `described` are the labels and types that the caller has.
    """

    def __init__(self, plan: Any) -> None:
        frame, between = plan.frame, plan.between
        own: list[Labels] = [frame.second.result] if plan.meets else []
        self.described: list[tuple[Labels, torch.dtype]] = [(plan.notation.d, plan.result_type)] if plan.meets else []
        for node in between.outputs[plan.meets :]:
            own.append(_kept(frame.order, between.modes[node]))
            self.described.append((_kept(plan.notation.s, between.modes[node]), frame.stored_type(node, between)))
        self._laid = []  # shapes and orders of dimensions, there and back
        for at, (labels, (asked, _)) in enumerate(zip(own, self.described, strict=True)):
            shape = [frame.extents[label] for label in labels]
            along_s = shape if plan.meets and at == 0 else frame.shape(frozenset(labels))
            there, back = ([x.index(label) for label in y] for x, y in ((labels, asked), (asked, labels)))
            self._laid.append((shape, there, back, along_s))

    def laid_out(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Results as the caller has them."""
        pairs = zip(found, self._laid, strict=True)
        return [value.reshape(shape).permute(there) for value, (shape, there, _, _) in pairs]

    def along_s(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of results, or the first results, as `laid_out` was given them."""
        pairs = zip(grads, self._laid, strict=False)
        return [None if grad is None else grad.permute(back).reshape(along) for grad, (_, _, back, along) in pairs]


def _kept(order: Labels, modes: frozenset[Label]) -> Labels:
    return tuple(label for label in order if label in modes)


def explained(plan: Any) -> str:
    """Several lines of text on a `CascadePlan`."""
    elements = math.prod(plan.extents[label] for label in plan.notation.s)
    block = math.prod(max(plan.blocks.extents[label], 1) for label in plan.frame.order)
    size = plan.types.accumulate.itemsize
    cut = ", ".join(f"{label}={plan.blocks.extents[label]}" for label in plan.frame.order)
    every = math.prod(-(-plan.extents[label] // max(plan.blocks.extents[label], 1)) or 1 for label in plan.frame.order)
    lines = [
        f"cascade     {plan.notation}",
        "modes       " + ", ".join(f"{label}={extent}" for label, extent in plan.extents.items()),
        f"types       {dtype_name(plan.said.dtype)}, sums in {dtype_name(plan.types.accumulate)}",
        f"form        {plan.program.form}: {plan.program.why}",
        f"passes      {len(plan.program.stages)}",
        f"blocks      {cut}: {block} elements, {every} blocks",
    ]
    for at, stage in enumerate(plan.program.stages):
        left = sum(math.prod(extent for _, extent in box.values()) for box in plan.blocks.cut(stage, {}))
        if left < elements:
            lines.append(f"masks       pass {at + 1} computes {share(left / elements)} of S")
    if plan.attention is not None:
        alone = "" if plan.attention.serves(False) else ", for calls with gradients"
        lines.append(f"serves      torch's scaled_dot_product_attention{alone}")
    elif plan.few is not None:
        lines.append("serves      torch's operations, on all of S at once: it has few elements")
    elif plan.said.device.type == "cpu":
        why = dict.fromkeys(each for each in plan.loops.rows.values() if isinstance(each, str))
        how = f"in torch's operations: {', '.join(why)}" if why else "in loops that are compiled for this function"
        lines.append(f"loops       {how}")
    held, all_of_it = si(block * size, "B"), si(elements * size, "B")
    if plan.kernel is None:
        lines.append(f"memory      {held} of S at a time; all of it would be {all_of_it}")
    else:
        waits = plan.arriving is not None and not plan.arriving.serves
        since = f", from call {plan.arriving.due} on" if waits else ""
        lines.append(f"kernel      {plan.kernel.tile}{since}")
        lines.append(f"memory      S stays on the chip; all of it would be {all_of_it}")
    return "\n".join(lines)
