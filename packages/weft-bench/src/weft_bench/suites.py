"""The suites: named lists of cases, taken from the one list in `weft_bench.cases`, in groups that are averaged apart.

    tccg          the 48 TCCG contractions, for pairs of number types
    tccg-fusion   the same with no function, ReLU, leaky ReLU and ELU on A, B and D
    beyond        what TCCG lacks
    dense         products of dense matrices: square, wide, tall, growing and thin, and the transposition states
    permute       permutations of ranks 2 to 8 and the reversal of 2^25, fused ones, the thesis's transpositions
    transpose     matrices transposed in place, square and rectangular
    epilogue      a bias and a ReLU behind a product
    weights       a half-precision product of 16 rows with weights of eight bits and a scale for each column
    algebra       max-plus and logarithms in the place of products and sums
    gradients     forward and backward passes: a layer, masked scores, TCCG with functions, algebras
    nn            a gated layer (SwiGLU), forward and backward
    numbers       complex numbers, integers and fp8
    small         many small products, two-site updates, sums of operators and blocks, in CUDA graphs
    small-call    the same with the host's own work, and a sweep of DMRG
    call          what the host does for one call, on tensors too small to matter
    networks      a slice of each of five public tensor networks
    scaling       sliced networks and placed products on 1, 2, 4, ... ranks: the same, and growing with the ranks
    cascade       attention, kernel sums, a step of Sinkhorn's iteration, a loss over a vocabulary
    kernelbench   KernelBench's products of level 1, and of level 2 with what follows them, each in a few lines
    pyscf         the equations of gpu4pyscf in float64, with the extents of three molecules
    demo          the fused example of the paper and TCCG in one pair of number types: what `weft demo` runs

A suite is data: what kind its cases are of, which number types it may be asked for, and a function that makes its
entries. `SUITES` knows them by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.base.figures import nearest
from weft.errors import WeftError
from weft.selftest.case import PermuteCase
from weft.spec.dtypes import find_dtype
from weft_bench import cases
from weft_bench.cases import Case, layout
from weft_bench.cases.cascades import CascadeCase, cascades
from weft_bench.cases.kernelbench import kernelbench
from weft_bench.cases.networks import NetworkCase, networks, shrunk_network
from weft_bench.cases.programs import ProgramCase
from weft_bench.cases.pyscf import MOLECULES, pyscf
from weft_bench.cases.scaling import PlacedCase, ScalingCase, placed, scaling
from weft_bench.cases.small import SmallCase, small
from weft_bench.entry import Entry
from weft_bench.records import CONTRACT


@dataclass(frozen=True)
class Suite:
    """The cases that are measured, and the contenders. `make` is given the names of number types."""

    about: str
    make: Callable[[Sequence[str]], list[Entry]]
    kind: str = "contraction"  # see weft_bench.problems
    types: Mapping[str, Any] = field(default_factory=dict)  # number types that may be asked for; none: no choice
    usual: tuple[str, ...] = ()  # those of them that are measured where none are asked for
    peers: tuple[str, ...] = ()  # where nobody is named; none: see weft_bench.peers.registry.default_peers
    sampling: Mapping[str, Any] = field(default_factory=dict)  # what differs from weft_bench.runner.Sampling
    work: int | None = None  # most multiply-adds of a case on a CPU; None: as for others


#: Number types of contractions by name: of A and B, of D, and how products are made.
PAIRS: dict[str, tuple[torch.dtype, torch.dtype, str | torch.dtype | None]] = {
    "fp16_fp32": (torch.float16, torch.float32, None),
    "fp16_fp16": (torch.float16, torch.float16, None),
    "bf16_fp32": (torch.bfloat16, torch.float32, None),
    "bf16_bf16": (torch.bfloat16, torch.bfloat16, None),
    "fp32": (torch.float32, torch.float32, None),
    "fp32_bound": (torch.float32, torch.float32, "ieee_bound"),
    "tf32": (torch.float32, torch.float32, "tf32"),
    "tf32x3": (torch.float32, torch.float32, "tf32x3"),
    "fp64": (torch.float64, torch.float64, None),
    "fp64_bound": (torch.float64, torch.float64, "ieee_bound"),
    "complex64_bound": (torch.complex64, torch.complex64, "ieee_bound"),
    "complex64": (torch.complex64, torch.complex64, None),
    "complex64_tf32": (torch.complex64, torch.complex64, "tf32"),
    "complex64_3m": (torch.complex64, torch.complex64, "3m"),
    "complex128": (torch.complex128, torch.complex128, None),
    "complex128_bound": (torch.complex128, torch.complex128, "ieee_bound"),
    "complex128_3m": (torch.complex128, torch.complex128, "3m"),
    "int8_int32": (torch.int8, torch.int32, None),
    "e4m3_fp16": (torch.float8_e4m3fn, torch.float16, None),
    "e4m3_fp16_as_stored": (torch.float8_e4m3fn, torch.float16, torch.float8_e4m3fn),
}
#: Number types of what is moved: one of each size.
MOVED = {
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "complex128": torch.complex128,
}
FUSED = (None, "relu", "leaky_relu", "elu")
PLAIN = "none"  # the group of the fusion suite without a function
SMALL = 1000  # the largest extent of a dense product that counts as small

# What a case of `beyond` is about: the first of these among its tags.
_TOPICS = (
    *("large", "fused", "strided", "odd", "small", "complex", "double", "tf32", "integer"),
    *("diagonal", "lone", "batch"),
)


def entries(name: str, types: Sequence[str] = (), only: Sequence[str] = (), work: int | None = None) -> list[Entry]:
    """The cases of suite `name`.

    `types` chooses number types by name (some suites have no choice), `only` the cases whose name matches one of
    these: a number (of TCCG), a name, or a pattern with ``*``. `work` shrinks every case to so many multiply-adds, or
    elements where nothing is multiplied. `WeftError` for names that do not exist, and when nothing is left.
    """
    found = suite(name)
    if types and not found.types:
        raise WeftError(f"the cases of '{name}' have number types of their own")
    made = found.make([_types_of(each, found.types) for each in types] or found.usual)
    if only:
        made = [entry for entry in made if any(_matches(entry.case.name, pattern) for pattern in only)]
        if not made:
            raise WeftError(f"no case of '{name}' is called {' or '.join(only)}")
    return made if work is None else [_shrunk(entry, work) for entry in made]


def _types_of(asked: str, known: Mapping[str, Any]) -> str:
    """The name of the number types that are asked for: theirs, or types by any of their names ("half_float32")."""
    if asked in known:
        return asked
    parts = asked.replace("->", "_").replace(":", "_").split("_")
    wanted = tuple(find_dtype(part) for part in parts)
    for name, types in known.items():
        if None not in wanted and wanted in _spelled(types):
            return name
    raise WeftError(f"no number types are called '{asked}': there are {', '.join(known)}{nearest(asked, known)}")


def _spelled(types: Any) -> tuple[tuple[torch.dtype, ...], ...]:
    """Ways to name types by dtypes alone: of operands and result, or of both where they are one."""
    if isinstance(types, torch.dtype):
        return ((types,),)
    operands, result, precision = types
    if precision is not None:
        return ()
    return ((operands, result), (operands,)) if operands == result else ((operands, result),)


def suite(name: str) -> Suite:
    """The suite called `name`; `WeftError` where there is none."""
    if name not in SUITES:
        raise WeftError(f"no suite is called '{name}': there are {', '.join(SUITES)}")
    return SUITES[name]


def _demo(types: Sequence[str]) -> list[Entry]:
    """The example has number types of its own."""
    example = cases.example()
    return [Entry(example, example.name, example.name), *_tccg(types)]


def _tccg(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, pair, case.name) for pair in types for case in cases.tccg(*PAIRS[pair])]


def _fusion(types: Sequence[str]) -> list[Entry]:
    """All functions of one case follow one another, so that they meet the same state of the machine."""
    found = []
    for pair in types:
        prefix = "" if pair == "fp16_fp32" and len(types) == 1 else f"{pair}."
        for case in cases.tccg(*PAIRS[pair]):
            for function in FUSED:
                fused = replace(case, a_fn=function, b_fn=function, epilogue=function)
                found.append(Entry(fused, f"{prefix}{function or PLAIN}", case.name))
    return found


def _beyond(types: Sequence[str]) -> list[Entry]:
    return [
        Entry(case, next((topic for topic in _TOPICS if topic in case.tags), "types"), case.name)
        for case in cases.beyond()
    ]


def _dense(types: Sequence[str]) -> list[Entry]:
    """Groups are the number types; small and thin products, where launches count, in groups of their own."""
    found = []
    for pair in types:
        dtype, out, precision = PAIRS[pair]
        for case in (*layout.dense(dtype), *layout.dense_states(dtype)):
            small = max(case.extents.values()) <= SMALL or any("thin" in tag for tag in case.tags)
            typed = replace(case, dtypes=(dtype, dtype, out), precision=precision)
            found.append(Entry(typed, f"{pair}.small" if small else pair, case.name))
    return found


def _permute(types: Sequence[str]) -> list[Entry]:
    """Each fused case after the plain one, so that both meet the same state of the machine."""
    fused: dict[str, list[Entry]] = {}
    for what, case in layout.fused():
        fused.setdefault(case.name, []).append(Entry(case, f"fp32.{what}", case.name))
    found = []
    for name in types:
        for case in layout.permutations(MOVED[name]):
            found += [Entry(case, name, case.name), *(fused.get(case.name, []) if name == "fp32" else [])]
    if "fp32" in types:
        found += [Entry(case, "thesis", case.name) for case in layout.transpositions()]
    return found


def _transpose(types: Sequence[str]) -> list[Entry]:
    found = []
    for name in types:
        for case in layout.in_place(MOVED[name]):
            shape = "square" if "square" in case.tags else "rectangular"
            found.append(Entry(case, f"{name}.{shape}", case.name))
    return found


def _epilogue(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, case.name, "plain") for case in cases.epilogues()]


def _weights(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, case.name, "half") for case in cases.weights()]


def _algebra(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, case.algebra, case.name) for case in cases.algebras()]


def _gradients(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, "tccg" if "tccg" in case.name else case.name, case.name) for case in cases.gradients()]


def _numbers(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, group, case.name) for group, case in cases.numbers()]


def _networks(types: Sequence[str]) -> list[Entry]:
    precisions = SUITES["networks"].types
    return [Entry(case, name, case.name) for name in types for case in networks(precisions[name])]


def _scaling(types: Sequence[str]) -> list[Entry]:
    precisions = SUITES["scaling"].types
    found = [Entry(case, case.kind, case.network.name) for name in types for case in scaling(precisions[name])]
    return [*found, *(Entry(case, case.kind, case.name.rpartition("-")[0]) for case in placed())]


def _call(types: Sequence[str]) -> list[Entry]:
    return [Entry(case, "call", case.name) for case in cases.tiny()]


def _small(host: bool) -> Callable[[Sequence[str]], list[Entry]]:
    return lambda types: [Entry(case, case.task, case.name) for case in small(host)]


SUITES: dict[str, Suite] = {
    "tccg": Suite(
        "the 48 contractions of the TCCG benchmark, for pairs of number types",
        _tccg,
        types=PAIRS,
        usual=("fp16_fp32", "fp16_fp16"),
    ),
    "tccg-fusion": Suite(
        "the same with no function, ReLU, leaky ReLU and ELU on A, B and D", _fusion, types=PAIRS, usual=("fp16_fp32",)
    ),
    "beyond": Suite(
        "batches, diagonals, lone modes, other number types, small, odd, strided, fused and large ones", _beyond
    ),
    "dense": Suite(
        "dense matrices: square from 100 to 10000, wide, tall, growing and thin ones, all transposition states",
        _dense,
        types=PAIRS,
        usual=("fp32", "fp64", "fp16_fp16"),
        peers=("cublas",),
    ),
    "permute": Suite(
        "30 permutations of ranks 2 to 8 and the reversal of 2^25, some with a function or a cast; transpositions",
        _permute,
        kind="permutation",
        types=MOVED,
        usual=tuple(MOVED),
    ),
    "transpose": Suite(
        "matrices transposed in place: square from 4096 to 16384, and rectangular",
        _transpose,
        kind="in place",
        types={name: MOVED[name] for name in ("fp16", "fp32", "fp64")},
        usual=("fp16", "fp32", "fp64"),
    ),
    "epilogue": Suite(
        "a half-precision product of 4096 with a bias and a ReLU, beside cuBLAS without", _epilogue, peers=("cublas",)
    ),
    "weights": Suite(
        "16 rows by weights of 4096 x 11008: in half precision, and of eight bits with a scale for each column",
        _weights,
        peers=("cublas", "torch"),
    ),
    "algebra": Suite(
        "max-plus and logarithms, beside torch.compile of all pairs reduced", _algebra, peers=("compile",)
    ),
    "gradients": Suite(
        "forward and backward passes: a layer, masked scores, TCCG with leaky ReLU on A, B and D, algebras",
        _gradients,
        kind="gradient",
        peers=("torch", "compile"),
    ),
    "nn": Suite(
        "a gated layer (SwiGLU) of weft.nn, forward and backward, plain and under torch.compile",
        lambda types: [Entry(case, case.name, case.name) for case in cases.layers()],
        kind="gated",
        peers=("weft-compiled", "torch", "compile"),
    ),
    "numbers": Suite("complex numbers on some of TCCG, integers and fp8 beside half precision", _numbers),
    "call": Suite(
        "what the host does for each call of a plan, of weft.contract and of torch.einsum, on tiny tensors",
        _call,
        kind="call",
        peers=(CONTRACT, "torch"),
        sampling={"mode": "hot", "capture": False},
    ),
    "small": Suite(
        "1000 small products, two-site updates, sums of operators and block-sparse tensors, in CUDA graphs",
        _small(host=False),
        kind="small",
        peers=("torch", "bmm", "operator"),
        sampling={"mode": "hot", "budget": 0.2},
    ),
    "small-call": Suite(
        "the same with the host's own work, and a sweep of DMRG",
        _small(host=True),
        kind="small",
        peers=("torch", "bmm"),
        sampling={"mode": "hot", "budget": 0.2, "capture": False},
    ),
    "networks": Suite(
        "a slice of each of 24 public tensor networks, along one path: many tiny steps, or some large ones",
        _networks,
        kind="network",
        types={"fp32": None, "fp32_bound": "ieee_bound", "tf32": "tf32"},
        usual=("fp32",),
        peers=("torch",),
        sampling={"mode": "hot", "capture": False},
        work=1 << 29,
    ),
    "scaling": Suite(
        "sliced networks and placed products on 1, 2, 4, ... ranks (--ranks): the same work, and so much for each",
        _scaling,
        kind="scaling",
        types={"fp32": None, "tf32": "tf32"},
        usual=("fp32",),
        work=1 << 20,
    ),
    "cascade": Suite(
        "attention, kernel sums, a step of Sinkhorn's iteration, a loss over a vocabulary, forward and backward",
        lambda types: [Entry(case, case.group, case.name) for case in cascades()],
        kind="cascade",
        peers=("sdpa", "flex", "compile", "blocks"),
        sampling={"mode": "hot", "capture": False, "budget": 0.1},
        work=1 << 29,
    ),
    "kernelbench": Suite(
        "KernelBench's 18 products of level 1, and its 37 of level 2 with what follows, each in a few lines of weft",
        lambda types: [Entry(case, case.group, case.name) for case in kernelbench()],
        kind="program",
        peers=("torch", "compile"),
        sampling={"capture": False, "budget": 0.1},
        work=1 << 24,
    ),
    "pyscf": Suite(
        "the 1207 equations of gpu4pyscf's einsums in float64, most called first, with the extents of three molecules",
        lambda molecules: [Entry(case, molecule, case.name) for molecule in molecules for case in pyscf(molecule)],
        kind="program",
        types=MOLECULES,
        usual=("medium",),
        peers=("torch", "cupy"),
        sampling={"capture": False, "budget": 0.05},
        work=1 << 24,
    ),
    "demo": Suite(
        "the fused example of the paper, and TCCG in one pair of number types",
        _demo,
        types=PAIRS,
        usual=("fp16_fp32",),
        peers=("torch",),
    ),
}


def _matches(name: str, pattern: str) -> bool:
    if pattern.isdecimal():
        pattern = f"tccg-{int(pattern):02}"
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def _shrunk(entry: Entry, work: int) -> Entry:
    case: Case | PermuteCase | SmallCase = entry.case
    if isinstance(entry.case, NetworkCase):
        sliced = shrunk_network(entry.case, work)
        return replace(entry, case=sliced, scaled=sliced.terms != entry.case.terms)
    if isinstance(entry.case, (ScalingCase, PlacedCase, CascadeCase, ProgramCase)):
        smaller = entry.case.shrunk(work)
        return replace(entry, case=smaller, scaled=smaller != entry.case)
    if isinstance(case, SmallCase):  # is small
        return entry
    if isinstance(case, Case):
        scaled = cases.scaled(case, work)
        return replace(entry, case=scaled, scaled=scaled.shapes != case.shapes)
    shrunk = layout.shrunk(case, work)
    return replace(entry, case=shrunk, scaled=shrunk.shape != case.shape)
