"""A program run by blocks: no more of S is in memory than a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from torch import Tensor, fx

from weft.cascades.between import Between
from weft.cascades.evaluate import Recipe
from weft.cascades.frame import Box, Frame
from weft.cascades.program import Program, Stage, Target
from weft.cascades.rows import Made, StageRows
from weft.cascades.states import PeakState, State
from weft.spec import Label

Values = dict[fx.Node, Tensor]
#: The boxes of a stage, in blocks of torch's operations or of compiled rows.
Cutting = Callable[..., Sequence[Box]]

#: What D stands under among values: the value that meets C may be a result itself. D is without the factor then.
PRODUCT = fx.Graph().placeholder("product")

#: D where a kernel has multiplied it with its factor and rounded it.
FINISHED = fx.Graph().placeholder("finished")


def run(
    program: Program, frame: Frame, a: Tensor, b: Tensor, c: Tensor | None, given: Values, cut: Cutting,
    compiled: Callable[[Stage], StageRows | None] = lambda stage: None,
) -> Values:  # fmt: skip
    """Every value that passes make whole, by its node; D, in sums not yet rounded, by `PRODUCT`.

    `given` has operands and coordinates along S; `compiled` the rows of a stage where those run it.
    """
    values = dict(given)
    run_tail(program, frame, program.prelude, values)
    for stage in program.stages:
        states = {target: State(target, program, frame) for target in stage.targets}
        peaks = {node: PeakState(node, program.between, frame) for node in stage.peaks}
        if (rows := compiled(stage)) is not None:
            rows.run(Made((a, b, c), values, states, peaks), cut(stage, in_rows=True))
            _take(values, states, peaks)
            run_tail(program, frame, stage.tail, values)
            continue
        for box in cut(stage):
            inputs = inputs_of(program, stage, frame, values, box)
            scores = frame.scores(a, b, box)
            scales = _grow(program, stage, frame, scores, inputs, peaks, box)
            found = run_block(program, stage, frame, scores, inputs)
            for target, state in states.items():
                state.add(found[target.node], c, box, None if target.scale is None else scales[target.scale])
        _take(values, states, peaks)
        run_tail(program, frame, stage.tail, values)
    return values


def _take(values: Values, states: Mapping[Target, State], peaks: Mapping[fx.Node, PeakState]) -> None:
    """Results of a pass among the whole values."""
    for target, state in states.items():
        values[target.gives if target.kind != "product" else PRODUCT] = state.result()
    for node, peak in peaks.items():
        values[node] = peak.result()


def run_tail(program: Program, frame: Frame, nodes: tuple[fx.Node, ...], values: Values) -> None:
    """Run small nodes, whole, and keep them."""
    if nodes:
        recipe_of(nodes, frozenset(nodes), program.between, frame).run(values)


def _grow(
    program: Program, stage: Stage, frame: Frame, scores: Tensor, inputs: Values, peaks: Mapping[fx.Node, PeakState],
    box: Box,
) -> dict[fx.Node, Tensor | None]:  # fmt: skip
    """Take a block into the peaks, which join its inputs; the factors that sums over them are rescaled by."""
    if not peaks:
        return {}
    found = {**inputs, program.between.inputs[0]: scores}
    sources = tuple(node.all_input_nodes[0] for node in stage.peaks)
    recipe_of(stage.first, frozenset(sources), program.between, frame).run(found)
    scales = {}
    for node, source in zip(stage.peaks, sources, strict=True):
        inputs[node], scales[node] = peaks[node].add(found[source], box)
        if source in stage.first:  # it is there for the block's own operations
            inputs[source] = found[source]
    return scales


def inputs_of(program: Program, stage: Stage, frame: Frame, values: Mapping[fx.Node, Tensor], box: Box) -> Values:
    """Blocks of operands, coordinates and known values that a stage reads; of peaks where they are known."""
    nodes = (*program.between.inputs[1:], *stage.known, *stage.peaks)
    return {node: frame.place(values[node], box) for node in nodes if node in values}


def run_block(program: Program, stage: Stage, frame: Frame, scores: Tensor, inputs: Values) -> Values:
    """The values of a block of the stage's targets, from a block of S."""
    found = {**inputs, program.between.inputs[0]: scores}
    nodes = tuple(node for node in stage.nodes if node not in inputs)
    targets = frozenset(target.node for target in stage.targets)
    recipe_of(nodes, targets, program.between, frame).run(found)
    return found


@lru_cache(maxsize=1024)
def recipe_of(nodes: tuple[fx.Node, ...], kept: frozenset[fx.Node], between: Between, frame: Frame) -> Recipe:
    """The recipe of operations, made once."""
    return Recipe(nodes, kept, between, frame)


def columns_of(between: Between, frame: Frame) -> frozenset[Label]:
    """Labels that a block is made along last: those that the second contraction or a reduction sums."""
    reduced = {label for node in between.reductions if between.large(node) for label in between.reduced(node)}
    return frame.columns | reduced
