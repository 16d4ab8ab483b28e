"""The texts of two warp-specialised kernels for gradients on Hopper, in Gluon; `backward_kernel` has what they compute.

    rows       tiles of A and dD stay, tiles of B and C pass by     dA += dS B
    columns    tiles of B and C stay, tiles of A and dD pass by     dB += dS^T A,   dC += (P factor)^T dD

A producer loads tiles by TMA; each of two consumers has half of what stays. For what passes by, x and y:

    t = x' x^T,  dp = y' y^T | wait: t | exponentials | wait: dp | PULL | found += dS x,  of_c += P y | wait

with x' and y' the consumer's half. P and dS go to their products in registers.
"""

from __future__ import annotations

from weft.cascades import step
from weft.cascades.backward_kernel import BackwardForm, vectors
from weft.cascades.hopper import CONSUMER_REGISTERS, GROUPS, PRODUCER_REGISTERS, ROWS, STAGES, WARPS, outer_place
from weft.cascades.kernel import digest, indented, outer_parameters
from weft.cascades.step import Words

CONSTANTS = ("MOVING", "BK", "BE", "FIRST", "FIRST_SETTLED", "PULL", "PULL_SETTLED", "SUMS", "PRODUCT")
_SHARED = ("xs", "ys", "moving_xs", "moving_ys", "stays", "full", "empty", "batch", "tile")

_PRODUCER = f"""\
@gluon.jit
def {{name}}_producer({{parameters}}):
    {{stretches}}
    mbarrier.expect(stays.index(0), {GROUPS * ROWS} * (BK + BE) * 2)
    for group in gl.static_range({GROUPS}):
        first = tile * {GROUPS * ROWS} + group * {ROWS}
        load({{x}}, [{{of_x}}first, 0], stays.index(0), xs.index(group))
        load({{y}}, [{{of_y}}first, 0], stays.index(0), ys.index(group))
    for number in range(gl.cdiv(at3 - at0, MOVING)):
        first = at0 + number * MOVING
        stage = number % {STAGES}
        mbarrier.wait(empty.index(stage), number // {STAGES} & 1 ^ 1)
        mbarrier.expect(full.index(stage), MOVING * (BK + BE) * 2)
        load({{moving_x}}, [{{of_moving_x}}first, 0], full.index(stage), moving_xs.index(stage))
        load({{moving_y}}, [{{of_moving_y}}first, 0], full.index(stage), moving_ys.index(stage))
"""

_KERNEL = f"""\
    tiles = gl.cdiv({{extent}}, {GROUPS * ROWS})
    tile = {{tile}}
    batch = gl.program_id(0) // tiles
    X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, BK], PRODUCT)
    Y: gl.constexpr = gl.NVMMASharedLayout.get_default_for([{ROWS}, BE], PRODUCT)
    MOVING_X: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MOVING, BK], PRODUCT)
    MOVING_Y: gl.constexpr = gl.NVMMASharedLayout.get_default_for([MOVING, BE], PRODUCT)
    xs = gl.allocate_shared_memory(PRODUCT, [{GROUPS}, {ROWS}, BK], X)
    ys = gl.allocate_shared_memory(PRODUCT, [{GROUPS}, {ROWS}, BE], Y)
    moving_xs = gl.allocate_shared_memory(PRODUCT, [{STAGES}, MOVING, BK], MOVING_X)
    moving_ys = gl.allocate_shared_memory(PRODUCT, [{STAGES}, MOVING, BE], MOVING_Y)
    stays = barriers(1, 1)
    full = barriers({STAGES}, 1)
    empty = barriers({STAGES}, {GROUPS})
    gl.warp_specialize([
        ({{name}}_consumer, (0, {{arguments}})),
        ({{name}}_consumer, (1, {{arguments}})),
        ({{name}}_producer, ({{arguments}})),
    ], [{WARPS}, 1], [{CONSUMER_REGISTERS}, {PRODUCER_REGISTERS}])
"""


def hopper_backward_text(form: BackwardForm) -> str:
    """The source of a `@gluon.jit` kernel and of its roles; the kernel's name is a digest of them."""
    given = _parameters(form)
    constants = [f"{name}: gl.constexpr" for name in CONSTANTS]
    stretches = [f"at{at} = gl.load(stretches + tile * 4 + {at})" for at in range(4)]
    parameters = ", ".join([*_SHARED, *given, *constants])
    places = {name: outer_place(name, count) for name, count in zip("abc", form.outer, strict=True)} | {"d": "batch, "}
    names = dict(zip(("x", "y", "moving_x", "moving_y"), "bcad" if form.columns else "adbc", strict=True))
    producer = _PRODUCER.format(
        name="{name}", parameters=parameters, stretches="\n    ".join(stretches), **names,
        **{f"of_{role}": places[name] for role, name in names.items()},
    )  # fmt: skip
    kernel = _KERNEL.format(
        name="{name}", arguments=", ".join([*_SHARED, *given, *CONSTANTS]), extent="N" if form.columns else "M",
        tile="gl.program_id(0) % tiles" if form.columns else "tiles - 1 - gl.program_id(0) % tiles",
    )  # fmt: skip
    consumer = "\n".join(indented([*stretches, *_consumer(form)]))
    text = "\n\n".join((
        f"@gluon.jit\ndef {{name}}({', '.join([*given, *constants])}):\n{kernel}",
        f"@gluon.jit\ndef {{name}}_consumer(CONSUMER: gl.constexpr, {parameters}):\n{consumer}\n", producer,
    ))  # fmt: skip
    return text.replace("{name}", digest(text))


def _parameters(form: BackwardForm) -> list[str]:
    found = ["a", "b", "c", "d", "da", "db", "dc", "factor_of", *(f"{each}_of" for each in vectors(form.step))]
    found += [f"x{at}" for at, each in enumerate(form.step.inputs) if not each.coordinate]
    outer = [name for name in outer_parameters(form.outer) if "_step" not in name]
    return [*found, "stretches", "alpha", "B", "M", "N", "K", "E", *outer, *step.parameters(form.step)]


def _words(form: BackwardForm) -> Words:
    stays = str(ROWS)
    rows, columns = ("MOVING", stays) if form.columns else (stays, "MOVING")
    return Words("gl", rows, columns, "S", across=form.columns)


def _consumer(form: BackwardForm) -> list[str]:
    words = _words(form)
    axis, extent, moves, last = ("n", "N", "m", "M") if form.columns else ("m", "M", "n", "N")
    lines = [
        "S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MOVING, 16])",
        "X: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])",
        "Y: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BE, 16])",
        f"{axis} = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + {words.along(axis)}",
        f"{axis}_in = {axis} < {extent}",
        *step.beginning(form.step, words),
        *([] if form.columns else [*_peaks_of_rows(form), *_grads_of_rows(form)]),
        f"found = gl.full([{ROWS}, BK], 0.0, SUMS, X)",
        *([f"of_c = gl.full([{ROWS}, BE], 0.0, SUMS, Y)"] if form.columns else []),
        "number = gl.to_tensor(0)",
        "mbarrier.wait(stays.index(0), 0)",
    ]
    for at, inside in enumerate((False, True, False)):
        if form.stretches[at]:
            lines.append(f"for first in range(at{at}, at{at + 1}, MOVING):")
            head = [f"{moves} = first + {words.along(moves)}", f"{moves}_in = {moves} < {last}"]
            lines += indented([*head, *(_peaks_of_rows(form) if form.columns else []), *_tile(form, words, inside)])
    if form.columns:
        return [*lines, *_stored("db", "N", "found * alpha", "BK", "K"), *_stored("dc", "N", "of_c", "BE", "E")]
    return [*lines, *_stored("da", "M", "found * alpha", "BK", "K")]


def _peaks_of_rows(form: BackwardForm) -> list[str]:
    """Peaks of each row."""
    count = range(len(form.step.peaks))
    loads = [_loaded(f"shift{at}") for at in count]
    return ["row = batch * M + m", *loads, *(f"base{at} = shift{at} * {step.unit_of(form.step)}" for at in count)]


def _grads_of_rows(form: BackwardForm) -> list[str]:
    """Gradients of sums and the factor of D of each row; registers hold them while they are needed."""
    names = [name for name in vectors(form.step) if name.startswith("grad")]
    return [_loaded(name) for name in (*names, *(["factor"] if form.factor else []))]


def _loaded(name: str) -> str:
    return f"{name} = gl.load({name}_of + row, mask=m_in, other=0.0)"


def _tile(form: BackwardForm, words: Words, inside: bool) -> list[str]:
    weights = [step.exponential(form.step, at, words) for at, peak in enumerate(form.step.peaks) if peak.weighs]
    factor = f" * {words.row('factor')}" if form.factor else ""
    given = [*step.given(form.step, words), "dp", *(words.row(f"grad{at}") for at in range(len(form.step.sums)))]
    lines = [
        f"stage = number % {STAGES}",
        f"mbarrier.wait(full.index(stage), number // {STAGES} & 1)",
        "t = scores(xs.index(CONSUMER), moving_xs.index(stage), S)",
        "dp = scores(ys.index(CONSUMER), moving_ys.index(stage), S)",
        "t = warpgroup_mma_wait(1, deps=(t,))",
        step.of_scores(form.step),
        *step.moving(form.step, words),
        *step.exponents(form.step, words, inside),
        *weights,
        *(_grads_of_rows(form) if form.columns else []),
        "dp = warpgroup_mma_wait(0, deps=(dp,))",
        f"dp = dp{factor}",
        f"p, ds = {'PULL_SETTLED' if inside else 'PULL'}({', '.join(given)})",
    ]
    products = [("ds", "X", "found", "moving_xs", "")]
    if form.columns:
        products.append(("p", "Y", "of_c", "moving_ys", factor))
    for value, layout, into, of, times in products:
        lines.append(f"{value} = {step.tile(value, words)}{times}")
        if not inside:
            lines.append(f"{value} = gl.where({words.inside}, {value}, 0.0)")
        operand = f"gl.convert_layout({value}.to(PRODUCT), gl.DotOperandLayout(0, {layout}, 2))"
        lines.append(f"{into} = warpgroup_mma({operand}, {of}.index(stage), {into}, is_async=True)")
    if form.columns:
        lines.append("found, of_c = warpgroup_mma_wait(0, deps=(found, of_c))")
    else:
        lines.append("found = warpgroup_mma_wait(0, deps=(found,))")
    return [*lines, "meet_and_arrive(empty.index(stage))", "number += 1"]


def _stored(to: str, extent: str, value: str, tile: str, side: str) -> list[str]:
    return [
        f"OUT_{to}: gl.constexpr = stored_layout({tile})",
        f"value = gl.convert_layout(({value}).to({to}.dtype.element_ty), OUT_{to})",
        f"line = tile * {GROUPS * ROWS} + CONSUMER * {ROWS} + gl.arange(0, {ROWS}, layout=gl.SliceLayout(1, OUT_{to}))",
        f"at = gl.arange(0, {tile}, layout=gl.SliceLayout(0, OUT_{to}))",
        f"place = {to} + (batch.to(gl.int64) * {extent} + line)[:, None] * {side} + at[None, :]",
        f"gl.store(place, value, mask=(line < {extent})[:, None] & (at < {side})[None, :])",
    ]
