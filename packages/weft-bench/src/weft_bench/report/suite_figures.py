"""The figures of suites that say something of their own: by suite, a function from a run to figures by name.

    permute.geomean_vs_copy            time of a copy of as many bytes over weft's, all sizes of elements together
    permute.worst_vs_copy              the smallest of those ratios
    permute.geomean_vs_torch           the peer's time over weft's; worst_vs_torch is the smallest
    permute.fused_over_plain           time for each byte with a function or a cast over that without, geometric mean
    permute.relu_over_plain, permute.cast_over_plain
    permute.fp32.geomean_vs_copy ...   of one group: a number type, a fused one, or `thesis`
    transpose_inplace.square_vs_copy   float32, squares from 4096 to 16384: geometric mean; square_worst_vs_copy
    transpose_inplace.rectangular_vs_copy   float32: the smallest ratio of the three; rectangular_geomean_vs_copy
    dense.geomean_vs_cublas            the peer's time over weft's, all number types together
    dense.worst_small_over_cublas      weft's time over the peer's, the largest of the small and thin products
    epilogue.bias_relu_vs_cublas       cuBLAS's time without bias and ReLU over weft's with both
    weights.int8_over_half             weft's time with int8 weights over the fastest one's in half precision; e4m3 too
    algebra.max_plus_fp32_tops         additions and maxima per second, 10^12, on matrices of 4096
    algebra.max_plus_vs_compile_min    the peer's time over weft's, the smallest of the TCCG cases
    algebra.log_vs_direct              weft's time term by term over its time for "log"
    complex64.ieee_vs_cutensor_min     the peer's time over weft's, the smallest; complex64.3m_vs_cutensor_min
    complex128.vs_cutensor_min         the same with "3m": of equal work, for cuTENSOR makes three real products unasked
    complex128.ieee_vs_cutensor_min    the same with weft's default, four products against the peer's three
    complex64.tf32_gm_cutensor         the same, geometric mean
    int8.vs_fp16                       the time of the float16 product, whoever is fastest, over weft's int8 product
    call.host_us                       host time of a plan's call, launches included: the largest of the cases
    call.contract_us, call.torch_us    the same of weft.contract and of torch.einsum
    call.launch_us                     one launch of the smallest operation of torch, called from Python
    cascade.CASE.vs_sdpa               the peer's time over weft's
    cascade.CASE.bytes_over_sdpa       bytes of memory that weft's call takes over those of the peer's
    kernelbench.fast_1_vs_torch        share of tasks that are right and more than once (fast_2: twice) as fast as the
                                       peer; fast_0 counts what is right; kernelbench.level_1... of one level
    kernelbench.gm1_torch              the peer's time over weft's, geometric mean of what is right
    scaling.CASE.speedup_on_P ...      see `weft_bench.report.scaling`

A figure over several number types is formed where the run has all that the suite usually measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.machine.statistics import Interval
from weft_bench.records import CONTRACT, PEAK, Run
from weft_bench.report.ratios import (
    Ratio,
    against_copy,
    geomean,
    largest,
    over_floor,
    part,
    per_byte,
    relative,
    smallest,
)
from weft_bench.report.scaling import scaling_figures
from weft_bench.suites import MOVED, SUITES

Figures = dict[str, Interval]


def permute(run: Run) -> Figures:
    """Permutations: plain ones of all types, and each group."""
    found: Figures = {}
    if _has_usual(run):
        found |= _moving("permute", part(run, MOVED))
    for what in ("", "relu", "cast"):
        chosen = ("fp32", f"fp32.{what}") if what else ("fp32", "fp32.relu", "fp32.cast")
        if ratios := per_byte(part(run, chosen), "fp32"):
            found[f"permute.{what or 'fused'}_over_plain"] = geomean(ratios)
    for group in run.groups:
        found |= _moving(f"permute.{group}", part(run, [group]))
    return found


def transpose(run: Run) -> Figures:
    """Matrices in place; float32 gives the names without a type."""
    found: Figures = {}
    for group in run.groups:
        types, _, shape = group.partition(".")
        prefix = "transpose_inplace" if types == "fp32" else f"transpose_inplace.{types}"
        chosen = part(run, [group])
        if ratios := against_copy(chosen):
            usual = geomean if shape == "square" else smallest
            found[f"{prefix}.{shape}_vs_copy"] = usual(ratios)
            other, name = (smallest, "worst") if shape == "square" else (geomean, "geomean")
            found[f"{prefix}.{shape}_{name}_vs_copy"] = other(ratios)
        for peer in run.peers:
            if ratios := relative(chosen, peer):
                found[f"{prefix}.{shape}_vs_{peer}"] = geomean(ratios)
    return found


def dense(run: Run) -> Figures:
    """Products of matrices, of all types and of each."""
    found: Figures = {}
    if _has_usual(run):
        found |= _products("dense", run)
    for types in dict.fromkeys(_type(group) for group in run.groups):
        found |= _products(f"dense.{types}", part(run, (types, f"{types}.small")))
    return found


def epilogue(run: Run) -> Figures:
    """A fused bias and ReLU against the bare product."""
    found: Figures = {}
    by_name = {case.name: case for case in run.cases}
    plain = by_name.get("plain")
    for name in ("relu", "bias-relu", "bias-relu-as-c"):
        mine = by_name[name].measured(run.ours) if name in by_name else None
        for contender in run.contenders:
            theirs = plain.measured(contender) if plain else None
            if mine and theirs:
                other = "plain" if contender == run.ours else contender
                found[f"epilogue.{name.replace('-', '_')}_vs_{other}"] = geomean([Ratio(theirs.samples, mine.samples)])
    return found


def weights(run: Run) -> Figures:
    """Weights of eight bits against the product in half precision, whoever is fastest there."""
    by_name = {case.name: case for case in run.cases}
    plain = by_name.get("half")
    known = [result for name in run.contenders if plain and (result := plain.measured(name)) is not None]
    found: Figures = {}
    for name in ("int8", "e4m3"):
        mine = by_name[name].measured(run.ours) if name in by_name else None
        if mine and known:
            fastest = min(known, key=lambda result: result.seconds.value)
            found[f"weights.{name}_over_half"] = geomean([Ratio(mine.samples, fastest.samples)])
    return found


def algebra(run: Run) -> Figures:
    """Rates on a square product, and peers on TCCG."""
    found: Figures = {}
    squares = {case.name: case for case in run.cases if not case.name.startswith("tccg")}
    for name, case in squares.items():
        if mine := case.measured(run.ours):
            rate = Ratio((case.work["flops"] / 1e12,), mine.samples)
            found[f"algebra.{name.replace('-', '_')}_fp32_tops"] = geomean([rate])
        for peer in run.peers:
            if ratios := relative(replace(run, cases=[case]), peer):
                found[f"algebra.{name.replace('-', '_')}_vs_{peer}"] = geomean(ratios)
    quick, direct = (squares[name].measured(run.ours) if name in squares else None for name in ("log", "log-direct"))
    if quick and direct:
        found["algebra.log_vs_direct"] = geomean([Ratio(direct.samples, quick.samples)])
    suite = replace(run, cases=[case for case in run.cases if case.name.startswith("tccg")])
    for peer in run.peers:
        if ratios := relative(suite, peer):
            found[f"algebra.max_plus_vs_{peer}_min"] = smallest(ratios)
            found[f"algebra.max_plus_vs_{peer}_geomean"] = geomean(ratios)
    return found


def kernelbench(run: Run) -> Figures:
    """Shares of tasks by how many times as fast they are, as that suite's community counts, and means."""
    found: Figures = {}
    for name, chosen in (("", run), *((f".{group.replace(' ', '_')}", part(run, [group])) for group in run.groups)):
        for peer in run.peers:
            ratios = [theirs.summary.median / mine.summary.median for _, theirs, mine in chosen.pairs(peer)]
            for level in (0, 1, 2):
                share = sum(ratio > level for ratio in ratios) / len(chosen.cases)
                found[f"kernelbench{name}.fast_{level}_vs_{peer}"] = Interval(share, share, share)
            if both := relative(chosen, peer):
                found[f"kernelbench{name}.gm1_{peer}"] = geomean(both)
    return found


def numbers(run: Run) -> Figures:
    """Complex numbers against peers, integers against half precision."""
    found: Figures = {}
    names = {
        "complex64": "complex64.ieee_", "complex64_3m": "complex64.3m_", "complex64_tf32": "complex64.tf32_",
        "complex128": "complex128.ieee_", "complex128_3m": "complex128.",
    }  # fmt: skip
    for group, name in names.items():
        for peer in run.peers:
            if ratios := relative(run, peer, group):
                found[f"{name}vs_{peer}_min"] = smallest(ratios)
                found[f"{name}gm_{peer}"] = geomean(ratios)
    by_group = {case.group: case for case in run.cases}
    half, whole = by_group.get("fp16_fp16"), by_group.get("int8_int32")
    fastest = [result for name in run.contenders if half and (result := half.measured(name))]
    mine = whole.measured(run.ours) if whole else None
    if fastest and mine:
        best = min(fastest, key=lambda result: result.seconds.value)
        found["int8.vs_fp16"] = geomean([Ratio(best.samples, mine.samples)])
    return found


def call(run: Run) -> Figures:
    """Host time of calls. Nothing is subtracted; what a launch alone takes stands beside it."""
    found: Figures = {}
    for contender in run.contenders:
        times = [Ratio(result.samples, (1e-6,)) for case in run.cases if (result := case.measured(contender))]
        if times:
            name = {run.ours: "host", CONTRACT: "contract"}.get(contender, contender)
            found[f"call.{name}_us"] = largest(times)
            found[f"call.{name}_geomean_us"] = geomean(times)
    known = run.environment.get("platform", {}).get("ceilings") or {}
    if launch := known.get("launch_eager"):
        found["call.launch_us"] = Interval(*[1e6 * launch] * 3)
    return found


def cascade(run: Run) -> Figures:
    """Each case against each peer: times, and memory where it was measured."""
    found: Figures = {}
    for peer in run.peers:
        for case, theirs, mine in run.pairs(peer):
            found[f"cascade.{case.name}.vs_{peer}"] = geomean([Ratio(theirs.samples, mine.samples)])
            taken = [float(result.about.get(PEAK, 0)) for result in (mine, theirs)]
            if all(taken):
                found[f"cascade.{case.name}.bytes_over_{peer}"] = Interval(*[taken[0] / taken[1]] * 3)
    return found


def _moving(name: str, run: Run) -> Figures:
    found: Figures = {}
    if ratios := against_copy(run):
        found[f"{name}.geomean_vs_copy"] = geomean(ratios)
        found[f"{name}.worst_vs_copy"] = smallest(ratios)
    return found | _against_peers(name, run)


def _products(name: str, run: Run) -> Figures:
    found = _against_peers(name, run)
    small = part(run, [group for group in run.groups if group.endswith(".small")])
    for peer in run.peers:
        if ratios := relative(small, peer):
            found[f"{name}.worst_small_over_{peer}"] = largest([Ratio(mine, theirs) for theirs, mine in ratios])
    if above := over_floor(run, run.ours):
        found[f"{name}.time_over_floor"] = geomean(above)
    return found


def _against_peers(name: str, run: Run) -> Figures:
    found: Figures = {}
    for peer in run.peers:
        if ratios := relative(run, peer):
            found[f"{name}.geomean_vs_{peer}"] = geomean(ratios)
            found[f"{name}.worst_vs_{peer}"] = smallest(ratios)
    return found


def _has_usual(run: Run) -> bool:
    """Whether all number types are there that the suite measures where none are asked for."""
    return set(SUITES[run.suite].usual) <= {_type(group) for group in run.groups}


def _type(group: str) -> str:
    return group.partition(".")[0]


SUITE_FIGURES: Mapping[str, Callable[[Run], Figures]] = {
    "permute": permute,
    "transpose": transpose,
    "dense": dense,
    "epilogue": epilogue,
    "weights": weights,
    "algebra": algebra,
    "numbers": numbers,
    "call": call,
    "cascade": cascade,
    "kernelbench": kernelbench,
    "scaling": scaling_figures,
}
