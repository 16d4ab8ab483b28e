"""The text of a warp-specialised kernel for gradients on Hopper, in Gluon; `backward_kernel` has what it computes.

Tiles of B and C stay, tiles of A and dD pass by, the last ones first:

    dB += dS^T A        dC += (P factor)^T dD        dA += dS B

A producer loads tiles by TMA, and what is known of each row; each of two consumers has half of the columns. With x and
y a tile of A and of dD, and x' and y' the consumer's half of B and C:

    t = x' x^T,  dp = y' y^T | wait: t | exponentials | wait: dp | PULL | dC += P y | both | dA = dS^T x',  dB += dS x

P and dS go to their own products in registers, and dS in shared memory to that of both consumers: each makes half of a
tile of dA along k. These are added in memory in the order of the tiles of columns: results are the same from run to
run. A program waits for others only that began before it.
"""

from __future__ import annotations

from weft.cascades import step
from weft.cascades.backward_kernel import BackwardForm, pull, weighed
from weft.cascades.hopper import (
    CONSUMER_REGISTERS,
    GROUPS,
    PRODUCER_REGISTERS,
    ROWS,
    STAGES,
    STRETCHES,
    WARPS,
    assembled,
    of_batch,
)
from weft.cascades.kernel import indented
from weft.cascades.step import Words

HEADS = 8  # indices of the batch whose tiles take turns
CONSTANTS = ("MOVING", "SIDE", "FIRST", "FIRST_SETTLED", "PULL", "PULL_SETTLED", "SUMS", "PRODUCT")
_SHARED = (
    "xs", "ys", "moving_xs", "moving_ys", "known", "slopes", "stays", "full", "empty", "both", "turn", "added",
)  # fmt: skip
_WORDS = Words("gl", "MOVING", str(ROWS), "S", across=True)

_PRODUCER = f"""\
@gluon.jit
def {{name}}_producer({{parameters}}):
    {{stretches}}
    LANES: gl.constexpr = gl.BlockedLayout([MOVING // 32], [32], [1], [0])
    mbarrier.expect(stays.index(0), {GROUPS * ROWS * 4} * SIDE)
    for group in gl.static_range({GROUPS}):
        first = tile * {GROUPS * ROWS} + group * {ROWS}
        load(b, [{{of_b}}first, 0], stays.index(0), xs.index(group))
        load(c, [{{of_c}}first, 0], stays.index(0), ys.index(group))
    count = gl.cdiv(at3 - at0, MOVING)
    for number in range(count):
        first = at0 + (count - 1 - number) * MOVING
        stage = number % {STAGES}
        m = first + gl.arange(0, MOVING, layout=LANES)
        row = batch * M + m
        {{loaded}}
        mbarrier.wait(empty.index(stage), number // {STAGES} & 1 ^ 1)
        mbarrier.expect(full.index(stage), 4 * MOVING * SIDE)
        load(a, [{{of_a}}first, 0], full.index(stage), moving_xs.index(stage))
        load(d, [batch, first, 0], full.index(stage), moving_ys.index(stage))
        {{kept}}
        meet_and_arrive(full.index(stage))
"""

#: Roles of one warp each: nobody else waits for memory. Two give turns, one those of every other tile.
_TURNS = f"""\
@gluon.jit
def {{name}}_takes({{parameters}}):
    {{stretches}}
    count = gl.cdiv(at3 - at0, MOVING)
    last = at0 // MOVING + count - 1
    had = gl.to_tensor(0)
    for number in range(count):
        stage = number % {STAGES}
        if number == had:
            place = last - number
            had += take_turns(turns + batch * gl.cdiv(M, MOVING) + place, before + place, tile, count - number)
        mbarrier.wait(added.index(stage), number // {STAGES} & 1 ^ 1)
        meet_and_arrive(turn.index(stage))


@gluon.jit
def {{name}}_gives(STAGE: gl.constexpr, {{parameters}}):
    {{stretches}}
    count = gl.cdiv(at3 - at0, MOVING)
    for number in range(STAGE, count, {STAGES}):
        mbarrier.wait(added.index(STAGE), number // {STAGES} & 1)
        give_turn(turns + batch * gl.cdiv(M, MOVING) + at0 // MOVING + count - 1 - number)
"""

#: The tile of columns and the index of the batch of a program.
_PLACE = (
    f"tiles = gl.cdiv(N, {GROUPS * ROWS})",
    f"group = gl.program_id(0) // ({HEADS} * tiles)",
    f"heads = gl.minimum(B - group * {HEADS}, {HEADS})",
    f"place = gl.program_id(0) - group * {HEADS} * tiles",
    "tile = place // heads",
    f"batch = group * {HEADS} + place % heads",
)
_KERNEL = f"""\
    HALVES: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=SIDE, element_bitwidth=16, rank=2)
    STAYS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, SIDE], PRODUCT)
    MOVES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MOVING, SIDE], PRODUCT)
    SLOPES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, MOVING], PRODUCT)
    xs = gl.allocate_shared_memory(PRODUCT, [{GROUPS}, {ROWS}, SIDE], HALVES)
    ys = gl.allocate_shared_memory(PRODUCT, [{GROUPS}, {ROWS}, SIDE], STAYS)
    moving_xs = gl.allocate_shared_memory(PRODUCT, [{STAGES}, MOVING, SIDE], MOVES)
    moving_ys = gl.allocate_shared_memory(PRODUCT, [{STAGES}, MOVING, SIDE], MOVES)
    slopes = gl.allocate_shared_memory(PRODUCT, [{2 * GROUPS}, {ROWS}, MOVING], SLOPES)
    known = gl.allocate_shared_memory(SUMS, [{{known}}, MOVING], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    stays = barriers(1, 1)
    full = barriers({STAGES}, 2)
    empty = barriers({STAGES}, {GROUPS})
    both = barriers(1, {GROUPS})
    turn = barriers({STAGES}, 1)
    added = barriers({STAGES}, {GROUPS})
    gl.warp_specialize([
        ({{name}}_consumer, (0, {{arguments}})),
        ({{name}}_consumer, (1, {{arguments}})),
        ({{name}}_producer, ({{arguments}})),
        ({{name}}_takes, ({{arguments}})),
        ({{name}}_gives, (0, {{arguments}})),
        ({{name}}_gives, (1, {{arguments}})),
    ], [{WARPS}, 1, 1, 1, 1], [{CONSUMER_REGISTERS}{4 * f", {PRODUCER_REGISTERS}"}])
"""


def hopper_backward_text(form: BackwardForm) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    names = form.known
    loaded = [f"{name} = gl.load({name}_of + row, mask=m < M, other=0.0)" for name in names]
    producer, outer = of_batch(_PRODUCER, form.outer)
    producer = producer.replace("{loaded}", "\n        ".join(loaded))
    producer = producer.replace("{kept}", "\n        ".join(f"{_kept(form, name)}.store({name})" for name in names))
    kernel = _KERNEL.replace("{known}", str(STAGES * max(len(names), 1)))
    parts = f"{producer}\n\n{_TURNS}", kernel, [*STRETCHES, *_consumer(form)]
    given = [*form.parameters("turns"), "before", "stretches", "alpha"]
    given += ["B", "M", "N", "K", "E", *outer, *step.parameters(form.step)]
    return assembled(given, CONSTANTS, _SHARED, _PLACE, parts)


def _kept(form: BackwardForm, name: str) -> str:
    """Where shared memory has what is known of the rows of a stage."""
    names = form.known
    return f"known.index(stage * {len(names)} + {names.index(name)})"


def _read(form: BackwardForm, name: str) -> str:
    return f"{name} = {_kept(form, name)}.load(gl.SliceLayout(0, S))"


def _consumer(form: BackwardForm) -> list[str]:
    lines = [
        "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MOVING, 16])",
        "X: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])",
        f"n = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + {_WORDS.along('n')}",
        "n_in = n < N",
        *step.beginning(form.step, _WORDS),
        f"found = gl.full([{ROWS}, SIDE], 0.0, SUMS, X)",
        f"of_c = gl.full([{ROWS}, SIDE], 0.0, SUMS, X)",
        "number = gl.to_tensor(0)",
        "mbarrier.wait(stays.index(0), 0)",
    ]
    for at in (2, 1, 0):
        if form.stretches[at]:
            lines.append(f"for behind in range(0, at{at + 1} - at{at}, MOVING):")
            head = [f"first = at{at} + (gl.cdiv(at{at + 1} - at{at}, MOVING) - 1) * MOVING - behind"]
            head += [f"m = first + {_WORDS.along('m')}", "m_in = m < M"]
            lines += indented([*head, *_tile(form, at == 1)])
    return [*lines, *_stored("db", "found * alpha", "K"), *_stored("dc", "of_c", "E")]


def _tile(form: BackwardForm, inside: bool) -> list[str]:
    words, peaks, factor = _WORDS, range(len(form.step.peaks)), form.by_factor
    lines = [
        f"stage = number % {STAGES}",
        f"mbarrier.wait(full.index(stage), number // {STAGES} & 1)",
        "t = scores(xs.index(CONSUMER), moving_xs.index(stage), S)",
        "dp = scores(ys.index(CONSUMER), moving_ys.index(stage), S)",
        *(_read(form, f"shift{at}") for at in peaks),
        *(f"base{at} = shift{at} * {step.unit_of(form.step)}" for at in peaks),
        "t = warpgroup_mma_wait(1, deps=(t,))",
        *weighed(form, words, inside),
        *(_read(form, name) for name in form.known if not name.startswith("shift")),
        "dp = warpgroup_mma_wait(0, deps=(dp,))",
        f"dp = dp{factor}",
        pull(form, words, inside)[0],
        f"p = {step.tile('p', words)}{factor}",
        f"ds = {step.tile('ds', words)}",
    ]
    if not inside:
        lines += [f"{value} = gl.where({words.inside}, {value}, 0.0)" for value in ("p", "ds")]
    return [
        *lines,
        "p = gl.convert_layout(p.to(PRODUCT), gl.DotOperandLayout(0, X, 2))",
        "ds = ds.to(PRODUCT)",
        "of_c = warpgroup_mma(p, moving_ys.index(stage), of_c, is_async=True)",
        f"of_both = number % 2 * {GROUPS}",
        "slopes.index(of_both + CONSUMER).store(ds)",
        "fence_async_shared()",
        "meet_and_arrive(both.index(0))",
        "ds = gl.convert_layout(ds, gl.DotOperandLayout(0, X, 2))",
        "mbarrier.wait(both.index(0), number & 1)",
        "rows = rows_of_both(slopes.index(of_both), slopes.index(of_both + 1), xs, CONSUMER)",
        "found = warpgroup_mma(ds, moving_xs.index(stage), found, is_async=True)",
        f"mbarrier.wait(turn.index(stage), number // {STAGES} & 1)",
        "rows, of_c = warpgroup_mma_wait(1, deps=(rows, of_c))",
        "place = (batch.to(gl.int64) * gl.cdiv(M, MOVING) + first // MOVING) * 2 + CONSUMER",
        "add_rows(da + place * (MOVING * SIDE // 2), rows)",
        "meet_and_arrive(added.index(stage))",
        "found = warpgroup_mma_wait(0, deps=(found,))",
        "meet_and_arrive(empty.index(stage))",
        "number += 1",
    ]


def _stored(to: str, value: str, side: str) -> list[str]:
    return [
        f"OUT_{to}: gl.constexpr = stored_layout(SIDE)",
        f"value = gl.convert_layout(({value}).to({to}.dtype.element_ty), OUT_{to})",
        f"line = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + gl.arange(0, {ROWS}, layout=gl.SliceLayout(1, OUT_{to}))",
        f"at = gl.arange(0, SIDE, layout=gl.SliceLayout(0, OUT_{to}))",
        f"place = {to} + (batch.to(gl.int64) * N + line)[:, None] * {side} + at[None, :]",
        f"gl.store(place, value, mask=(line < N)[:, None] & (at < {side})[None, :])",
    ]
