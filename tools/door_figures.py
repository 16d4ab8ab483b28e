"""Figures of the ways into weft beside what their users would write else: JSON, and a line for each.

    python tools/door_figures.py jax --out FILE        # contractions with functions under jax.jit, over jnp.einsum
    python tools/door_figures.py ragged --out FILE     # lists of different lengths, over torch's nested tensors
    python tools/door_figures.py triangles --out FILE  # the ladder of coupled cluster, over whole tensors
    python tools/door_figures.py jax --small --device cpu    # to see that it runs

`error` is the largest difference from a float64 reference, over its largest value. `jax` times programs of ten
contractions of different operands, so that neither side shares work between them; `host` is the same of matrices so
small that only the calls take time. `ragged` takes the fastest of torch's ways, compiled where torch compiles them;
`refused` says why others are not among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import weft
from weft.machine.stamp import command, commit, device_stamp
from weft.machine.timing import measure

Row = dict[str, Any]
CALLS = 10  # of a JAX program
CASES = (1, 7, 13, 20, 25, 31, 36, 40, 43, 46)  # of TCCG
HOST = ("mk,kn->mn", {"m": 64, "n": 64, "k": 64})


def by_jax(small: bool, device: str) -> Iterator[Row]:
    import jax
    from weft_bench.cases import tccg

    cases = [tccg()[number - 1] for number in CASES]
    chosen = [(str(case.equation), {name: 4 if small else extent for name, extent in case.extents.items()})
              for case in cases]  # fmt: skip
    square = [] if small else [(HOST[0], dict.fromkeys("mnk", 2048))]
    for equation, extents in [*chosen, *square, HOST]:
        yield {"equation": equation, "extents": extents, **_programs(jax, equation, extents)}


def _programs(jax: Any, equation: str, extents: dict[str, int]) -> Row:
    """Ten contractions in float16 with a leaky ReLU on A and on D, as one program each."""
    import weft.jax

    jnp = jax.numpy
    keys = iter(jax.random.split(jax.random.PRNGKey(0), CALLS + 1))
    first, second = equation.split("->")[0].split(",")

    def drawn(term: str) -> Any:
        return jax.random.normal(next(keys), tuple(extents[label] for label in term)).astype(jnp.float16)

    def bent(x: Any) -> Any:
        return jnp.where(x > 0, x, 0.01 * x)

    def ours(many: list[Any], b: Any) -> list[Any]:
        return [weft.jax.contract(equation, a, b, a_fn=bent, epilogue=bent) for a in many]

    def theirs(many: list[Any], b: Any) -> list[Any]:
        return [bent(jnp.einsum(equation, bent(a), b)) for a in many]

    many, b = [drawn(first) for _ in range(CALLS)], drawn(second)
    programs = {"weft": jax.jit(ours), "jnp.einsum": jax.jit(theirs)}
    wide = torch.nn.functional.leaky_relu(torch.from_dlpack(many[0]).double())
    exact = torch.nn.functional.leaky_relu(torch.einsum(equation, wide, torch.from_dlpack(b).double()))
    errors = {}
    for name, program in programs.items():
        for _ in range(4):  # weft binds what comes again
            found = program(many, b)
        errors[name] = _error(torch.from_dlpack(found[0]), exact)
    times = {name: _seconds(jax, partial(program, many, b)) / CALLS for name, program in programs.items()}
    return {"seconds": times, "error": errors, "over": times["jnp.einsum"] / times["weft"]}


def _seconds(jax: Any, call: Callable[[], Any]) -> float:
    """The time of one program, many in a row: the median of some rows."""
    rows = []
    begun = time.perf_counter()
    jax.block_until_ready(call())
    count = max(3, min(50, round(0.05 / max(time.perf_counter() - begun, 1e-6))))
    for _ in range(9):
        begun = time.perf_counter()
        for _ in range(count):
            found = call()
        jax.block_until_ready(found)
        rows.append((time.perf_counter() - begun) / count)
    return median(rows)


def by_lists(small: bool, device: str) -> Iterator[Row]:
    draw = random.Random(3)
    lists, longest, features = (5, 9, 8) if small else (256, 128, 128)
    for spread in ("lists of 1 to the longest", "most of them short"):
        power = 1 if spread.startswith("lists") else 4
        lengths = [max(1, round(longest * draw.random() ** power)) for _ in range(lists)]
        x, y = (_jagged(lengths, features, seed, device) for seed in (0, 1))
        own = torch.randn(lists, features, features, dtype=x.dtype, device=device) / features**0.5
        one = own[0].contiguous()
        about = {"lengths": spread, "rows": sum(lengths), "lists": lists, "features": features}
        yield {**about, "case": "linear", **_raced(*_linear(x, one), device)}
        yield {**about, "case": "a matrix for each list", **_raced(*_own_matrices(x, own), device)}
        yield {**about, "case": "attention scores", **_raced(*_scores(x, y), device)}


Ways = dict[str, Callable[[], torch.Tensor]]


def _jagged(lengths: list[int], features: int, seed: int, device: str) -> torch.Tensor:
    torch.manual_seed(seed)
    rows = [torch.randn(each, features, dtype=torch.bfloat16, device=device) for each in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device=device)


def _linear(x: torch.Tensor, w: torch.Tensor) -> tuple[Ways, torch.Tensor]:
    """One matrix and a ReLU for all lists; the values of the result."""
    compiled = torch.compile(lambda x, w: torch.relu(x @ w))
    offsets, rows = x.offsets(), x.values()
    return {
        "weft": lambda: weft.contract("bjd,de->bje", rows, w, ragged={"j": offsets}, epilogue=torch.relu),
        "jagged, compiled": lambda: compiled(x, w),
    }, torch.relu(rows.double() @ w.double())


def _own_matrices(x: torch.Tensor, w: torch.Tensor) -> tuple[Ways, torch.Tensor]:
    """A matrix and a ReLU for each list."""
    compiled = torch.compile(lambda x, w: torch.relu(torch.bmm(x, w)))
    offsets, rows, mask = x.offsets(), x.values(), _mask(x)
    strided, matrices = _strided(x.unbind()), _strided(w)
    exact = torch.cat([torch.relu(a.double() @ b.double()) for a, b in zip(x.unbind(), w, strict=True)])
    return {
        "weft": lambda: weft.contract("bjd,bde->bje", rows, w, ragged={"j": offsets}, epilogue=torch.relu),
        "jagged, compiled": lambda: compiled(x, w),
        "padded, compiled": lambda: compiled(torch.nested.to_padded_tensor(x, 0.0), w)[mask],
        "strided": lambda: torch.relu(torch.bmm(strided, matrices)),
    }, exact


def _scores(q: torch.Tensor, k: torch.Tensor) -> tuple[Ways, torch.Tensor]:
    """Products of all rows with all rows of each list, scaled."""
    scale = q.shape[-1] ** -0.5
    offsets, there = q.offsets(), _mask(q)
    left, right = q.values(), k.values()
    mask = there[:, :, None] & there[:, None, :]
    whole = torch.compile(lambda q, k: torch.bmm(q, k.transpose(1, 2)) * scale)
    both = _strided(q.unbind()), _strided(k.unbind())
    jagged = torch.compile(lambda q, k: (q @ k.transpose(1, 2)) * scale)
    exact = torch.cat([
        (a.double() @ b.double().T * scale).flatten() for a, b in zip(q.unbind(), k.unbind(), strict=True)
    ])  # fmt: skip

    def padded() -> torch.Tensor:
        return whole(torch.nested.to_padded_tensor(q, 0.0), torch.nested.to_padded_tensor(k, 0.0))[mask]

    return {
        "weft": lambda: weft.contract(
            "bqd,bkd->bqk", left, right, ragged={"q": offsets, "k": offsets},
            epilogue=lambda sum: sum * scale,
        ),
        "jagged, compiled": lambda: jagged(q, k),
        "padded, compiled": padded,
        "strided": lambda: torch.matmul(both[0], both[1].transpose(1, 2)) * scale,
    }, exact


def _mask(x: torch.Tensor) -> torch.Tensor:
    """Which rows of the padded tensor are there."""
    lengths = x.offsets().diff()
    return torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]


def _strided(matrices: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(list(matrices), layout=torch.strided)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """All elements, list by list."""
    return torch.cat([each.flatten() for each in x.unbind()]) if x.is_nested else x.flatten()


def _raced(ways: Ways, exact: torch.Tensor, device: str) -> Row:
    """Time of each way, host included, and what torch refused."""
    seconds, errors, refused = {}, {}, {}
    for name, way in ways.items():
        try:
            for _ in range(3):
                found = way()
            errors[name] = _error(_flat(found), exact.flatten())
            seconds[name] = measure(way, [()], device=device, mode="hot", capture=False, budget=0.3).seconds
        except Exception as error:
            if name == "weft":
                raise
            refused[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    others = [value for name, value in seconds.items() if name != "weft"]
    over = min(others) / seconds["weft"] if others else None
    return {"seconds": seconds, "error": errors, "refused": refused, "over": over}


def by_triangles(small: bool, device: str) -> Iterator[Row]:
    for dtype, exchanged in itertools.product((torch.float64, torch.float32), (False, True)):
        yield _ladder(*((6, 8, 2) if small else (32, 96, 16)), dtype, device, exchanged)


def _ladder(occupied: int, virtual: int, tile: int, dtype: torch.dtype, device: str, exchanged: bool) -> Row:
    t, v = _amplitudes(occupied, virtual, dtype, device, exchanged)
    signs = {"baef": -1, "abfe": -1, **({"efab": 1} if exchanged else {})}
    packed_t = weft.blocks.triangles(t, "ijab", {"jiab": -1, "ijba": -1}, tile=tile)
    packed_v = weft.blocks.triangles(v, "abef", signs, tile=tile)
    equation = "ijef,abef->ijab"
    ways: dict[str, Callable[[], Any]] = {
        "weft, triangles": lambda: weft.blocks.contract(equation, packed_t, packed_v, like=packed_t),
        "weft, whole": lambda: weft.contract(equation, t, v),
        "torch.einsum": lambda: torch.einsum(equation, t, v),
    }
    exact = torch.einsum(equation, t.double(), v.double())
    times, errors = {}, {}
    for name, way in ways.items():
        found = way()
        errors[name] = _error(found.to_dense() if name == "weft, triangles" else found, exact)
        times[name] = measure(way, [()], device=device, mode="hot", capture=False, budget=0.5).seconds
    return {
        "type": str(dtype).removeprefix("torch."), "occupied": occupied, "virtual": virtual, "tile": tile,
        "pairs of V exchange": exchanged,
        "bytes": (2 * packed_t.buffer.numel() + packed_v.buffer.numel()) / (2 * t.numel() + v.numel()),
        "seconds": times, "error": errors,
        "time over whole": times["weft, triangles"] / min(times["weft, whole"], times["torch.einsum"]),
    }  # fmt: skip


def _amplitudes(
    occupied: int, virtual: int, dtype: torch.dtype, device: str, exchanged: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    t = torch.randn(occupied, occupied, virtual, virtual, dtype=dtype, device=device)
    v = torch.randn(virtual, virtual, virtual, virtual, dtype=dtype, device=device)
    for first, second in ((0, 1), (2, 3)):
        t, v = t - t.transpose(first, second), v - v.transpose(first, second)
    return t, v + v.permute(2, 3, 0, 1) if exchanged else v


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


WHAT: dict[str, Callable[[bool, str], Iterator[Row]]] = {"jax": by_jax, "ragged": by_lists, "triangles": by_triangles}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, help="a JSON file, too")
    given = parser.parse_args()
    found: Row = {"command": command(), "commit": commit(), "machine": device_stamp(given.device), "found": []}
    for row in WHAT[given.what](given.small, given.device):
        found["found"].append(row)
        print(line(row), flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")


def line(row: Row) -> str:
    names = [str(row[key]) for key in ("case", "equation", "type", "lengths", "pairs of V exchange") if key in row]
    times = ", ".join(f"{name} {1e6 * seconds:.1f} us" for name, seconds in row["seconds"].items())
    ratio = next(f"{key} {row[key]}" for key in ("over", "time over whole") if key in row)
    worst = max(value for value in row["error"].values() if not math.isnan(value))
    return f"{'; '.join(names)}: {times}; {ratio}; error {worst:.0e} {row.get('refused') or ''}"


if __name__ == "__main__":
    main()
