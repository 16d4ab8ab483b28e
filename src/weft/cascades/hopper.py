"""The texts of warp-specialised kernels for Hopper, in Gluon: one pass with a product with C, of 16-bit operands, and
its gradients; `backward_kernel` has what these compute.

    role          warps    does
    producer      1        loads the tile of A, then a tile of B and one of C for each tile of columns, by TMA
    consumer 0, 1 4 each   half of the tile's rows: both products by wgmma, the function between them

A consumer begins the scores of a tile, then the product of the tile before with C, and makes the function of the scores
while that product is added:

    t = q b[j]^T | acc += p c[j - 1] | wait: t | p' = REST(t) | wait: acc | acc *= scale, p = p'

The assembler moves a wait for products up as far as it can, over the function; it stops at a wait for a barrier. So the
one for the next tile of B stands before it. Weights go to the second product in registers.

For gradients tiles of B and C stay, tiles of A and dD pass by, the last ones first:

    dB += dS^T A        dC += (P factor)^T dD        dA += dS B

A producer loads tiles by TMA, and what is known of each row; each of two consumers has half of the columns. With x and
y a tile of A and of dD, and x' and y' the consumer's half of B and C:

    t = x' x^T,  dp = y' y^T | wait: t | exponentials | wait: dp | PULL | dC += P y | both | dA = dS^T x',  dB += dS x

P and dS go to their own products in registers, and dS in shared memory to that of both consumers: each makes half of a
tile of dA along k. These are added in memory in the order of the tiles of columns: results are the same from run to
run. A program waits for others only that began before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cascades import step
from weft.cascades.backward_kernel import BackwardForm, pull, weighed
from weft.cascades.kernel import PLACE, KernelForm, along, digest, indented
from weft.cascades.step import Words

GROUPS = 2  # of four warps, each with rows of its own
ROWS = 64  # of each
WARPS = 4  # that the first consumer has
STAGES = 2
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24

_WORDS = Words("gl", "ROWS", "BN", "S")
_SHARED = ("qs", "bs", "cs", "q_full", "b_full", "b_empty", "c_full", "c_empty")
_LAYOUTS = (
    "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])",
    "D: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BE, 16])",
    "P: gl.constexpr = gl.DotOperandLayout(0, D, 2)",
    f"ROWS: gl.constexpr = {ROWS}",
)


def roles(*others: tuple[str, str]) -> str:
    """The roles of warps: two consumers, and `others` of one warp each, by name and first argument."""
    every = (("consumer", "0, "), ("consumer", "1, "), *others)
    lines = "".join(f"        ({{name}}_{role}, ({first}{{arguments}})),\n" for role, first in every)
    registers = f"[{CONSUMER_REGISTERS}{len(others) * f', {PRODUCER_REGISTERS}'}]"
    return f"    gl.warp_specialize([\n{lines}    ], [{WARPS}{len(others) * ', 1'}], {registers})\n"


_PRODUCER = f"""\
@gluon.jit
def {{name}}_producer({{parameters}}):
    {{stretches}}
    mbarrier.expect(q_full.index(0), {GROUPS * ROWS} * BK * 2)
    for group in gl.static_range({GROUPS}):
        load(a, [{{of_a}}tile * {GROUPS * ROWS} + group * {ROWS}, 0], q_full.index(0), qs.index(group))
    for number in range(gl.cdiv(at3 - at0, BN)):
        n0 = at0 + number * BN
        stage = number % {STAGES}
        phase = number // {STAGES} & 1 ^ 1
        mbarrier.wait(b_empty.index(stage), phase)
        mbarrier.expect(b_full.index(stage), BN * BK * 2)
        load(b, [{{of_b}}n0, 0], b_full.index(stage), bs.index(stage))
        mbarrier.wait(c_empty.index(stage), phase)
        mbarrier.expect(c_full.index(stage), BN * BE * 2)
        load(c, [{{of_c}}n0, 0], c_full.index(stage), cs.index(stage))
"""

_KERNEL = f"""\
    batch = batch.to(gl.int32)
    N_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], PRODUCT)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, BK], PRODUCT)
    C_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BE], PRODUCT)
    qs = gl.allocate_shared_memory(PRODUCT, [{GROUPS}, {ROWS}, BK], Q_LAYOUT)
    bs = gl.allocate_shared_memory(PRODUCT, [{STAGES}, BN, BK], N_LAYOUT)
    cs = gl.allocate_shared_memory(PRODUCT, [{STAGES}, BN, BE], C_LAYOUT)
    q_full = barriers(1, 1)
    b_full = barriers({STAGES}, 1)
    c_full = barriers({STAGES}, 1)
    b_empty = barriers({STAGES}, {GROUPS})
    c_empty = barriers({STAGES}, {GROUPS})
{roles(("producer", ""))}"""


def hopper_text(form: KernelForm, given: Sequence[str], constants: Sequence[str]) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    parts = of_batch(_PRODUCER, form.outer), _KERNEL, [*_LAYOUTS, *STRETCHES, *_consumer(form)]
    return assembled(given, constants, _SHARED, PLACE, parts)


#: Where the columns of a tile of rows begin, conditions hold from and until, and where they end.
STRETCHES = tuple(f"at{at} = gl.load(stretches + tile * 4 + {at})" for at in range(4))


def assembled(
    given: Sequence[str], constants: Sequence[str], shared: Sequence[str], at: Sequence[str],
    parts: tuple[str, str, Sequence[str]],
) -> str:  # fmt: skip
    """A kernel and its roles of the texts of the producer, of what begins them, and of a consumer's lines.

    `at` are the lines that say which tile of which index of the batch a program has.
    """
    producer, beginning, consumer = parts
    own = [*shared, "batch", "tile"]
    typed = [*given, *(f"{name}: gl.constexpr" for name in constants)]
    kernel = "\n".join(indented([line.replace("tl.", "gl.").replace("BM", str(GROUPS * ROWS)) for line in at]))
    lines = "\n".join(indented(consumer))
    text = "\n\n".join((
        f"@gluon.jit\ndef {{name}}({', '.join(typed)}):\n{kernel}\n{beginning}",
        f"@gluon.jit\ndef {{name}}_consumer(CONSUMER: gl.constexpr, {', '.join([*own, *typed])}):\n{lines}\n",
        producer.replace("{parameters}", ", ".join([*own, *typed])).replace("{stretches}", "\n    ".join(STRETCHES)),
    ))  # fmt: skip
    text = text.replace("{arguments}", ", ".join([*own, *given, *constants]))
    return text.replace("{name}", digest(text))


def of_batch(producer: str, outer: Sequence[int]) -> str:
    """A producer with the coordinates of tiles along the batch."""
    for name, count in zip("abc", outer, strict=True):
        along = "".join(f"batch // {name}_div{at} % {name}_ext{at}, " for at in range(count))
        producer = producer.replace(f"{{of_{name}}}", along)
    return producer


def _consumer(form: KernelForm) -> list[str]:
    lines = [
        f"m = tile * {GROUPS * ROWS} + CONSUMER * ROWS + {_WORDS.along('m')}",
        "m_in = m < M",
        *step.beginning(form.step, _WORDS),
        *step.states(form.step, _WORDS),
        "acc = gl.full([ROWS, BE], 0.0, SUMS, D)",
        "end = gl.cdiv(at3 - at0, BN)",
        "number = gl.to_tensor(0)",
        "mbarrier.wait(q_full.index(0), 0)",
        "mbarrier.wait(b_full.index(0), 0)",
        "q = qs.index(CONSUMER)",
        # The first tile of all: whether conditions hold in it is not known.
        "n0 = at0",
        "t = scores(q, bs.index(0), S)",
        "t = warpgroup_mma_wait(0, deps=(t,))",
        "meet_and_arrive(b_empty.index(0))",
        *_weigh(form, form.stretches == (False, True, False)),
        "p = w",
    ]
    loop = "for n0 in range(gl.maximum({}, at0 + BN), {}, BN):"
    lines += along(form.stretches, loop, lambda inside: _tile(form, inside))
    lines += [
        f"stage = number % {STAGES}",
        f"mbarrier.wait(c_full.index(stage), number // {STAGES} & 1)",
        "acc = warpgroup_mma(p, cs.index(stage), acc, is_async=True)",
        "acc = warpgroup_mma_wait(0, deps=(acc,))",
    ]
    return [*lines, *_stores(form)]


def _weigh(form: KernelForm, inside: bool) -> list[str]:
    """The function of scores `t`, and the wait for the next tile of B behind it."""
    return [
        *step.weighed(form.step, _WORDS, inside),
        f"w = as_it_is(gl.convert_layout({step.weight(form.step, _WORDS, inside)}.to(PRODUCT), P))",
        f"mbarrier.wait(b_full.index((number + 1) % {STAGES}), (number + 1) // {STAGES} & 1, pred=number + 1 < end)",
    ]


def _tile(form: KernelForm, inside: bool) -> list[str]:
    scaled = f"acc = acc * gl.convert_layout(scale{form.product}, gl.SliceLayout(1, D))[:, None]"
    return [
        f"before = number % {STAGES}",
        f"before_phase = number // {STAGES} & 1",
        "number += 1",
        f"stage = number % {STAGES}",
        "t = scores(q, bs.index(stage), S)",
        "mbarrier.wait(c_full.index(before), before_phase)",
        "acc = warpgroup_mma(p, cs.index(before), acc, is_async=True)",
        "t = warpgroup_mma_wait(1, deps=(t,))",
        "meet_and_arrive(b_empty.index(stage))",
        *_weigh(form, inside),
        "acc = warpgroup_mma_wait(0, deps=(acc,))",
        "meet_and_arrive(c_empty.index(before))",
        *([scaled] if form.product >= 0 else []),
        "p = w",
    ]


def _stores(form: KernelForm) -> list[str]:
    lines = [*step.ending(form.step, _WORDS, "(batch.to(gl.int64) * M + m)", False)]
    if form.fused:
        lines.append(f"factor = gl.broadcast({step.factor(form.step)}, gl.full([ROWS, 1], 0.0, SUMS, S))[0]")
        lines.append("acc = acc * gl.convert_layout(factor, D)")
    return [*lines, *stored("d", "acc", "BE", "M", "E")]


def stored(to: str, value: str, side: str, extent: str, columns: str) -> list[str]:
    """A consumer's tile of lines of so many columns stored, each lane several neighbours of one line."""
    return [
        f"OUT_{to}: gl.constexpr = stored_layout({side})",
        f"value = gl.convert_layout(({value}).to({to}.dtype.element_ty), OUT_{to})",
        f"line = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + gl.arange(0, {ROWS}, layout=gl.SliceLayout(1, OUT_{to}))",
        f"at = gl.arange(0, {side}, layout=gl.SliceLayout(0, OUT_{to}))",
        f"place = {to} + (batch.to(gl.int64) * {extent} + line)[:, None] * {columns} + at[None, :]",
        f"gl.store(place, value, mask=(line < {extent})[:, None] & (at < {columns})[None, :])",
    ]


# -- gradients ---------------------------------------------------------------------------------------------------------

HEADS = 8  # indices of the batch whose tiles take turns
_BACKWARD_SHARED = (
    "xs", "ys", "moving_xs", "moving_ys", "known", "slopes", "stays", "full", "empty", "both", "turn", "added",
)  # fmt: skip
_ACROSS = Words("gl", "MOVING", str(ROWS), "S", across=True)

_BACKWARD_PRODUCER = f"""\
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
_BACKWARD_KERNEL = f"""\
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
{roles(("producer", ""), ("takes", ""), ("gives", "0, "), ("gives", "1, "))}"""


def hopper_backward_text(form: BackwardForm, given: Sequence[str], constants: Sequence[str]) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    names = form.known
    loaded = [f"{name} = gl.load({name}_of + row, mask=m < M, other=0.0)" for name in names]
    producer = of_batch(_BACKWARD_PRODUCER, form.outer)
    kept = [f"{_kept(form, name)}.store({name})" for name in names]
    producer = producer.replace("{loaded}", "\n        ".join(loaded)).replace("{kept}", "\n        ".join(kept))
    kernel = _BACKWARD_KERNEL.replace("{known}", str(STAGES * max(len(names), 1)))
    parts = f"{producer}\n\n{_TURNS}", kernel, [*STRETCHES, *_backward_consumer(form)]
    return assembled(given, constants, _BACKWARD_SHARED, _PLACE, parts)


def _kept(form: BackwardForm, name: str) -> str:
    """Where shared memory has what is known of the rows of a stage."""
    names = form.known
    return f"known.index(stage * {len(names)} + {names.index(name)})"


def _backward_consumer(form: BackwardForm) -> list[str]:
    lines = [
        "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MOVING, 16])",
        "X: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])",
        f"n = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + {_ACROSS.along('n')}",
        "n_in = n < N",
        *step.beginning(form.step, _ACROSS),
        f"found = gl.full([{ROWS}, SIDE], 0.0, SUMS, X)",
        f"of_c = gl.full([{ROWS}, SIDE], 0.0, SUMS, X)",
        "number = gl.to_tensor(0)",
        "mbarrier.wait(stays.index(0), 0)",
    ]
    for at in (2, 1, 0):
        if form.stretches[at]:
            lines.append(f"for behind in range(0, at{at + 1} - at{at}, MOVING):")
            head = [f"first = at{at} + (gl.cdiv(at{at + 1} - at{at}, MOVING) - 1) * MOVING - behind"]
            head += [f"m = first + {_ACROSS.along('m')}", "m_in = m < M"]
            lines += indented([*head, *_backward_tile(form, at == 1)])
    return [*lines, *stored("db", "found * alpha", "SIDE", "N", "K"), *stored("dc", "of_c", "SIDE", "N", "E")]


def _backward_tile(form: BackwardForm, inside: bool) -> list[str]:
    words, peaks, factor = _ACROSS, range(len(form.step.peaks)), form.by_factor
    read = {name: f"{name} = {_kept(form, name)}.load(gl.SliceLayout(0, S))" for name in form.known}
    lines = [
        f"stage = number % {STAGES}",
        f"mbarrier.wait(full.index(stage), number // {STAGES} & 1)",
        "t = scores(xs.index(CONSUMER), moving_xs.index(stage), S)",
        "dp = scores(ys.index(CONSUMER), moving_ys.index(stage), S)",
        *(read[f"shift{at}"] for at in peaks),
        *(f"base{at} = shift{at} * {step.unit_of(form.step)}" for at in peaks),
        "t = warpgroup_mma_wait(1, deps=(t,))",
        *weighed(form, words, inside),
        *(line for name, line in read.items() if not name.startswith("shift")),
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
