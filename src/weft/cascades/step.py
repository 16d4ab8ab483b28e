"""The lines of a kernel of cascades for one tile of S: the function, its peaks and its sums.

    new = max(peak, max_n FIRST(s))          (rows,)
    w = exp(FIRST(s) - new)                  (rows, columns)       scale = exp(peak - new)     (rows,)
    v, ..., p = REST(s, new, w)              (rows, columns)       sum = sum * scale + sum_n v

The function comes as Triton functions that weft writes of its graph: `FIRST` makes the values whose peaks are needed,
`REST` those that are summed and multiplied; where every condition on coordinates holds `FIRST_SETTLED` and `SETTLED`
do. Exponentials are powers of two: log2(e) joins the factor of S where the peak is one of S itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_NOTHING = "float('-inf')"


class LabelText(NamedTuple):
    """A label of an input: in the index along "batch", "m" or "n", to be divided by labels within it, and in others."""

    group: str
    divides: bool
    wraps: bool

    def coordinate(self, shown: str, name: str) -> str:
        """The coordinate, of an index that is `shown`; `name` ends its parameters."""
        divided = f"{shown} // {name}_div" if self.divides else shown
        return f"({divided} % {name}_ext)" if self.wraps else f"({divided})"


class InputText(NamedTuple):
    """An operand or coordinate by its labels, in order; the offsets of a `wide` one take 64 bits.

    `small`: it lacks columns, and D's factor takes it. One that is the same along them need not lack them.
    """

    labels: tuple[LabelText, ...]
    coordinate: bool
    wide: bool = False
    small: bool = False

    @property
    def groups(self) -> set[str]:
        return {label.group for label in self.labels}


class PeakText(NamedTuple):
    """A peak: whether it is one of S before its factor, and whether `REST` takes the exponential over it."""

    plain: bool
    weighs: bool


class SumText(NamedTuple):
    """A reduction: "sum", "amax" or "amin", and the number of the peak that a sum is over, or -1."""

    kind: str
    scale: int

    @property
    def start(self) -> str:
        return {"sum": "0.0", "amax": "float('-inf')", "amin": "float('inf')"}[self.kind]


class Words(NamedTuple):
    """How a dialect of Triton writes tiles of S: its library, their extents, and their layout where it has one.

    A program moves along the columns n; `across`, along the rows m, with tiles of (columns, rows). `spread`: each place
    of a tile has peaks and sums of its own, which are joined at the end: nothing goes from lane to lane before.
    """

    library: str
    rows: str
    columns: str
    layout: str
    across: bool = False
    spread: bool = False

    @property
    def moving(self) -> str:
        """The axis that a program moves along."""
        return "m" if self.across else "n"

    @property
    def inside(self) -> str:
        """Whether an element is there, along the axis that a program moves along."""
        return f"{self.moving}_in[None, :]"

    def state(self, name: str) -> str:
        """A peak or a sum of each row, along a tile."""
        return name if self.spread else self.row(name)

    def reduced(self, kind: str, value: str) -> str:
        """A tile's "sum", "max" or "min" along the rows; itself where places have states of their own."""
        return value if self.spread else f"{self.library}.{kind}({value}, 1)"

    def row(self, name: str) -> str:
        """A value of each row, along a tile."""
        return f"{name}[None, :]" if self.across else f"{name}[:, None]"

    def column(self, name: str) -> str:
        """A value of each column, along a tile."""
        return f"{name}[:, None]" if self.across else f"{name}[None, :]"

    def along(self, axis: str) -> str:
        """The indices of a tile's rows or columns."""
        extent = self.rows if axis == "m" else self.columns
        return f"{self.library}.arange(0, {extent}{self.slice(int((axis == 'm') != self.across))})"

    def slice(self, axis: int) -> str:
        """The layout of a tile without one of its axes, as a further argument."""
        return f", {self.library}.SliceLayout({axis}, {self.layout})" if self.layout else ""

    def full(self, shape: Sequence[str], value: str, kind: str) -> str:
        """A tile of one value."""
        layout = f", {self.layout}" if self.layout and len(shape) == 2 else self.slice(1)
        return f"{self.library}.full([{', '.join(shape)}], {value}, {kind}{layout})"


TRITON = Words("tl", "BM", "BN", "")


class StepForm(NamedTuple):
    """All that the lines of a step depend on; `wide`: values are float64; `scaled`: S has a factor."""

    inputs: tuple[InputText, ...]
    peaks: tuple[PeakText, ...]
    sums: tuple[SumText, ...]
    meets: bool
    wide: bool
    scaled: bool = True


def kept(form: Any) -> list[str]:
    """The names of `peaks` and `sums`."""
    return [*(f"peak{at}" for at in range(len(form.peaks))), *(f"sum{at}" for at in range(len(form.sums)))]


def beginning(form: StepForm, words: Words) -> list[str]:
    """Inputs that stay while a program moves, and factors of exponents."""
    lines = []
    for at, each in enumerate(form.inputs):
        if words.moving not in each.groups:
            lines += input_lines(at, each, words)
    unit = unit_of(form)
    return [*lines, *(f"unit{at} = {f'alpha * {unit}' if peak.plain else unit}" for at, peak in enumerate(form.peaks))]


def unit_of(form: StepForm) -> str:
    """The factor of exponents."""
    return "1.0" if form.wide else "1.4426950408889634"


def states(form: StepForm, words: Words) -> list[str]:
    """Peaks and sums of nothing."""
    shape = [words.rows, words.columns] if words.spread else [words.rows]
    lines = [f"peak{at} = {words.full(shape, _NOTHING, 'SUMS')}" for at in range(len(form.peaks))]
    return lines + [f"sum{at} = {words.full(shape, each.start, 'SUMS')}" for at, each in enumerate(form.sums)]


def joined(form: StepForm, product: int) -> list[str]:
    """States of rows, of those that are spread over places; `acc` sums products over peak number `product`."""
    lines = []
    for at in range(len(form.peaks)):
        lines += [
            f"best{at} = tl.max(peak{at}, 1)",
            f"safe{at} = tl.where(tl.abs(best{at}) == float('inf'), 0.0, best{at})",
            f"scale{at} = {power(form.wide)}((peak{at} - safe{at}[:, None]) * unit{at})",
            f"peak{at} = best{at}",
        ]
    for at, each in enumerate(form.sums):
        scaled = f"sum{at} * scale{each.scale}" if each.scale >= 0 else f"sum{at}"
        lines.append(f"sum{at} = tl.{'sum' if each.kind == 'sum' else each.kind[1:]}({scaled}, 1)")
    if product != -2:
        lines.append(f"acc = tl.sum({f'acc * scale{product}' if product >= 0 else 'acc'}, 1)[:, None]")
    return lines


def moving(form: StepForm, words: Words, inside: bool = False) -> list[str]:
    """Inputs that are others in each tile."""
    pairs = enumerate(form.inputs)
    return [line for at, each in pairs if words.moving in each.groups for line in input_lines(at, each, words, inside)]


def input_lines(at: int, each: InputText, words: Words, inside: bool = False) -> list[str]:
    """A value along a tile, of extent 1 where it lacks rows or columns. `inside`: all that a program moves along is."""
    shown = {"batch": "batch", "m": words.row("m"), "n": words.column("n")}
    places = []
    for place, label in enumerate(each.labels):
        index = label.coordinate(shown[label.group], f"x{at}l{place}")
        if each.wide:
            index = f"{index}.to({words.library}.int64)"
        places.append(index if each.coordinate else f"{index} * x{at}l{place}_step")
    index = " + ".join(places) or "0"
    if each.coordinate:
        value = f"({index}).to({words.library}.int32)"
    else:
        there = {"m": words.row("m_in"), "n": words.column("n_in")}
        masks = [mask for group, mask in there.items() if group in each.groups - ({words.moving} if inside else set())]
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        value = f"{words.library}.load(x{at} + ({index}){mask})"
    if each.groups & {"m", "n"}:
        return [f"v{at} = {value}"]
    return [f"v{at} = {value}", f"v{at} = {words.full(['1', '1'], f'v{at}', f'v{at}.dtype')}"]


def weighed(form: StepForm, words: Words, inside: bool) -> list[str]:
    """The function of a tile of S before its factor, `t`: values w0, w1, ... to sum and to multiply.

    `inside`: all columns are there, and conditions on coordinates hold. `n0` is the first column: a multiple of a
    tile's, which the compiler is told where it loads operands along the columns.
    """
    loads = any(words.moving in each.groups and not each.coordinate for each in form.inputs)
    first = f"n0 // {words.columns} * {words.columns}" if loads else "n0"
    lines = [f"n = {first} + {words.along('n')}", "n_in = n < N", of_scores(form), *moving(form, words, inside)]
    lines += exponents(form, words, inside)
    for at, peak in enumerate(form.peaks):
        lines += _grown(at, peak, form, words)
    results = [f"w{at}" for at in range(len(form.sums) + form.meets)]
    lines.append(f"{targets(results)} = {'SETTLED' if inside else 'REST'}({', '.join(given(form, words))})")
    for at, each in enumerate(form.sums):
        lines += _summed(at, each, words, inside)
    return lines


def of_scores(form: StepForm) -> str:
    """S of a tile of products, `t`."""
    return "s = t * alpha" if form.scaled else "s = t"


def given(form: StepForm, words: Words) -> list[str]:
    """Arguments of the function: S, inputs, peaks and exponentials over them."""
    peaks = [words.state(f"shift{at}") for at in range(len(form.peaks))]
    weights = [f"weight{at}" for at, peak in enumerate(form.peaks) if peak.weighs]
    return ["s", *(f"v{at}" for at in range(len(form.inputs))), *peaks, *weights]


def exponents(form: StepForm, words: Words, inside: bool) -> list[str]:
    """The values that have peaks, -inf past the end."""
    if not form.peaks:
        return []
    name = "FIRST_SETTLED" if inside else "FIRST"
    lines = []
    for value, plain in (("t", True), ("s", False)):
        wanted = [f"e{at}" if peak.plain == plain else "_" for at, peak in enumerate(form.peaks)]
        if any(each != "_" for each in wanted):
            arguments = ", ".join([value, *(f"v{at}" for at in range(len(form.inputs)))])
            lines.append(f"{targets(wanted)} = {name}({arguments})")
    if not inside:
        lines += [
            f"e{at} = {words.library}.where({words.inside}, e{at}, float('-inf'))" for at in range(len(form.peaks))
        ]
    return lines


def exponential(form: StepForm, at: int, words: Words) -> str:
    """The exponential over a peak."""
    return f"weight{at} = {power(form.wide)}(e{at} * unit{at} - {words.state(f'base{at}')})"


def power(wide: bool) -> str:
    return "libdevice.exp" if wide else "device_math.exp2"


def _grown(at: int, peak: PeakText, form: StepForm, words: Words) -> list[str]:
    """A peak that takes a tile in, what is subtracted for it, and the factor of sums over it."""
    lib = words.library
    lines = [
        f"new{at} = {lib}.maximum(peak{at}, {words.reduced('max', f'e{at}')})",
        f"safe{at} = {lib}.where({lib}.abs(new{at}) == float('inf'), 0.0, new{at})",
        f"scale{at} = {power(form.wide)}((peak{at} - safe{at}) * unit{at})",
        f"peak{at} = new{at}",
        f"shift{at} = {f'safe{at} * alpha' if peak.plain else f'safe{at}'}",
    ]
    if peak.weighs:
        lines += [f"base{at} = safe{at} * unit{at}", exponential(form, at, words)]
    return lines


def targets(names: Sequence[str]) -> str:
    """The targets of an assignment, of a tuple also where they are one."""
    return f"{', '.join(names)}{',' if len(names) == 1 else ''}"


def _summed(at: int, each: SumText, words: Words, inside: bool) -> list[str]:
    lib = words.library
    value = tile(f"w{at}", words)
    if not inside:
        value = f"{lib}.where({words.inside}, {value}, {each.start})"
    if each.kind == "sum":
        scaled = f"sum{at} * scale{each.scale}" if each.scale >= 0 else f"sum{at}"
        return [f"sum{at} = {scaled} + {words.reduced('sum', value)}"]
    best, most = ("maximum", "max") if each.kind == "amax" else ("minimum", "min")
    return [f"sum{at} = {lib}.{best}(sum{at}, {words.reduced(most, value)})"]


def tile(value: str, words: Words) -> str:
    """A value as a whole tile of S, in the type of sums."""
    return f"{words.library}.broadcast({value}, t)[0].to(SUMS)"


def weight(form: StepForm, words: Words, inside: bool) -> str:
    """The value that meets C as a whole tile, 0 where no element is there."""
    found = tile(f"w{len(form.sums)}", words)
    return found if inside else f"{words.library}.where({words.inside}, {found}, 0.0)"


def ending(form: StepForm, words: Words, row: str, splits: bool) -> list[str]:
    """Peaks and sums stored, `row` being the place of each; of shares of the columns peaks stay as they are."""
    lib = words.library
    lines = []
    for at, peak in enumerate(form.peaks):
        if peak.plain:
            lines.append(f"peak{at} = peak{at} * alpha")
        if not splits:
            lines.append(f"peak{at} = {lib}.where({lib}.abs(peak{at}) == float('inf'), 0.0, peak{at})")
        lines.append(f"{lib}.store(peak{at}_out + {row}, peak{at}, mask=m_in)")
    lines += [f"{lib}.store(sum{at}_out + {row}, sum{at}, mask=m_in)" for at in range(len(form.sums))]
    return lines


def factor(form: StepForm) -> str:
    """The factor of D, of small inputs and states."""
    small = [f"v{at}" for at, each in enumerate(form.inputs) if each.small]
    return f"FACTOR({', '.join([*small, *(f'{name}[:, None]' for name in kept(form))])})"
