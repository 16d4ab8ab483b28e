"""The text of a warp-specialised kernel for Hopper, in Gluon: one pass with a product with C, of 16-bit operands.

    role          warps    does
    producer      1        loads the tile of A, then a tile of B and one of C for each tile of columns, by TMA
    consumer 0, 1 4 each   half of the tile's rows: both products by wgmma, the function between them

A consumer begins the scores of a tile, then the product of the tile before with C, and makes the function of the scores
while that product is added:

    t = q b[j]^T | acc += p c[j - 1] | wait: t | p' = REST(t) | wait: acc | acc *= scale, p = p'

The assembler moves a wait for products up as far as it can, over the function; it stops at a wait for a barrier. So the
one for the next tile of B stands before it. Weights go to the second product in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.cascades import step
from weft.cascades.kernel import PLACE, KernelForm, along, digest, indented, outer_parameters
from weft.cascades.step import Words

GROUPS = 2  # of four warps, each with rows of its own
ROWS = 64  # of each
WARPS = 4  # that the first consumer has
STAGES = 2
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24

_WORDS = Words("gl", "ROWS", "BN", "S")
CONSTANTS = ("BN", "BK", "BE", "FIRST", "FIRST_SETTLED", "REST", "SETTLED", "FACTOR", "SUMS", "PRODUCT")
_SHARED = ("qs", "bs", "cs", "q_full", "b_full", "b_empty", "c_full", "c_empty")
_LAYOUTS = (
    "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])",
    "D: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BE, 16])",
    "P: gl.constexpr = gl.DotOperandLayout(0, D, 2)",
    f"ROWS: gl.constexpr = {ROWS}",
)

#: What each warp does.
ROLES = f"""\
    gl.warp_specialize([
        ({{name}}_consumer, (0, {{arguments}})),
        ({{name}}_consumer, (1, {{arguments}})),
        ({{name}}_producer, ({{arguments}})),
    ], [{WARPS}, 1], [{CONSUMER_REGISTERS}, {PRODUCER_REGISTERS}])
"""
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
{ROLES}"""


def hopper_text(form: KernelForm) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    producer, outer = of_batch(_PRODUCER, form.outer)
    given = ["a", "b", "c", "d", *step.pointers(form.step), "stretches", "alpha", "B", "M", "N", "E"]
    given += [*outer, *step.parameters(form.step)]
    parts = producer, _KERNEL, [*_LAYOUTS, *STRETCHES, *_consumer(form)]
    return assembled(given, CONSTANTS, _SHARED, PLACE, parts)


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


def of_batch(producer: str, outer: Sequence[int]) -> tuple[str, list[str]]:
    """A producer with the coordinates of tiles along the batch, and the parameters that these are of."""
    for name, count in zip("abc", outer, strict=True):
        along = "".join(f"batch // {name}_div{at} % {name}_ext{at}, " for at in range(count))
        producer = producer.replace(f"{{of_{name}}}", along)
    return producer, [name for name in outer_parameters(outer) if "_step" not in name]


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
    scaled = []
    if form.product >= 0:
        scaled = [f"acc = acc * gl.convert_layout(scale{form.product}, gl.SliceLayout(1, D))[:, None]"]
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
        *scaled,
        "p = w",
    ]


def _stores(form: KernelForm) -> list[str]:
    lines = [*step.ending(form.step, _WORDS, "(batch.to(gl.int64) * M + m)", False)]
    if form.fused:
        lines.append(f"factor = gl.broadcast({step.factor(form.step)}, gl.full([ROWS, 1], 0.0, SUMS, S))[0]")
        lines.append("acc = acc * gl.convert_layout(factor, D)")
    return [
        *lines,
        "OUT: gl.constexpr = stored_layout(BE)",
        "found = gl.convert_layout(acc.to(d.dtype.element_ty), OUT)",
        f"row = tile * {GROUPS * ROWS} + CONSUMER * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, OUT))",
        "e = gl.arange(0, BE, layout=gl.SliceLayout(0, OUT))",
        "to = d + (batch.to(gl.int64) * M + row)[:, None] * E + e[None, :]",
        "gl.store(to, found, mask=(row < M)[:, None] & (e < E)[None, :])",
    ]


def namespace() -> dict[str, Any]:
    """The names in the text of a kernel."""
    from weft.cascades.hopper_functions import NAMES

    return NAMES
