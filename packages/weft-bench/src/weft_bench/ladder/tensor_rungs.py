"""The rungs of tensor contractions: one contraction by every method, functions, long sums, the update of two sites."""

from __future__ import annotations

from dataclasses import replace

import torch

from weft.errors import DTypeError
from weft_bench.cases import Case, tccg
from weft_bench.ladder.problems import LadderContraction, TwoSite
from weft_bench.ladder.published import GETT, NETWORKS
from weft_bench.ladder.rung import Flight, Ladder, Prediction, Published, Rung, Size

METHODS = (
    Rung("loops", "tensor.loops", Prediction(90, "two loads a multiply-add by ordinary units: 7.4 of 680 TFLOP/s"),
         (Published("loop nests suit small contractions that caches hold", GETT),), tool="Triton"),
    Rung("loops over products", "tensor.loops_over_products",
         Prediction(50, "two launches for each of 72 x 72 pairs (e, b), 2 us each"), tool="torch"),
    Rung("TTGT", "tensor.ttgt",
         Prediction(2.0, "the product at full rate, and three copies by torch at about 1 TB/s"),
         (Published("launches and memory besides one product of matrices", GETT),), tool="torch"),
    Rung("GETT", "tensor.gett",
         Prediction(6.0, "elements one by one: 1024 loads and stores in 256 cycles of products"), tool="Triton"),
    Rung("runs stated", "tensor.stated_runs", Prediction(2.0, "copies by threads keep tensor cores half busy"),
         tool="Triton"),
    Rung("weft's GETT", "tensor.weft_gett", Prediction(1.5, "the cost model's time for its best schedule over 410 us"),
         tool="weft family"),
    Rung("warp specialization", "tensor.weft_specialized",
         Prediction(1.08, "the cost model's time, including two packing copies"), tool="weft family"),
    Rung("weft", "tensor.weft_call", Prediction(1.06, "the cost model's best"), tool="weft"),
)  # fmt: skip

FUNCTIONS = (
    Rung("separate functions", "tensor.separate_functions",
         Prediction(3.9, "334 MB more to move than the 146 MB of the product alone"), tool="torch and weft"),
    Rung("fused functions", "tensor.fused_functions", Prediction(1.7, "the time of the product without functions"),
         (Published("fused functions hardly slow a contraction down, separate ones do; figures 2 to 4", GETT),),
         tool="weft"),
)  # fmt: skip

SUMS = (
    Rung("whole sums", "tensor.whole_sums", Prediction(14, "nine programs for 132 SMs"), tool="weft family"),
    Rung("split sums", "tensor.split_sums", Prediction(3.5, "some hundred programs; partial tiles written and read"),
         (Published("cuTENSOR takes a second kernel that adds up for this contraction (TC13)", GETT),),
         tool="weft family"),
    Rung("split, specialized", "tensor.split_specialized", Prediction(2.3, "TMA feeds the same parts"),
         tool="weft family"),
)  # fmt: skip

TWO_SITE = (
    Rung("0 direct", "two_site.direct", Prediction(155, "B d^2 chi^2 terms, three transactions each")),
    Rung("1 order", "two_site.ordered",
         Prediction(58, "15.06 times fewer terms, but 17 transactions each: lanes are in different rows"),
         (Published("15.06 times fewer terms for d = 16, chi = 256", f"{NETWORKS}, table 3.1", 15.06),)),
    Rung("2 coalesced", "two_site.coalesced", Prediction(6.9, "two transactions a term")),
    Rung("3 on the chip", "two_site.on_chip",
         Prediction(6.9, "two loads a term, from shared memory now: the L1 had served as many")),
    Rung("4 independent sums", "two_site.independent_sums", Prediction(2.0, "eight loads for 16 terms")),
    Rung("5 balance", "two_site.balanced", Prediction(1.5, "twelve loads for 32 terms; 24 warps an SM")),
    Rung("two batched products", "two_site.batched_library", Prediction(1.4, "full rate, two launches, T in memory"),
         tool="torch"),
    Rung("6 one launch", "two_site.one_launch",
         Prediction(1.5, "twelve loads for 32 terms, one launch, T on the chip"), over="5 balance"),
    Rung("7 sizes for the shape", "two_site.weft_chain", Prediction(1.3, "tiles that suit"), tool="weft"),
)  # fmt: skip

PHYSICAL, BOND, BATCH = 16, 256, 256
_TCCG = {"methods": 20, "functions": 15, "sums": 13}


def _methods(size: Size, kind: str) -> LadderContraction:
    return LadderContraction(_case("methods", size))


def _functions(size: Size, kind: str) -> LadderContraction:
    name = "leaky_relu"
    return LadderContraction(replace(_case("functions", size), a_fn=name, b_fn=name, epilogue=name))


def _sums(size: Size, kind: str) -> LadderContraction:
    return LadderContraction(_case("sums", size))


def _two_site(size: Size, kind: str) -> TwoSite:
    if size.dtype not in (None, torch.float32):
        raise DTypeError(f"flight 'two-site' is of float32, not of {str(size.dtype).removeprefix('torch.')}")
    if size.extent is None:
        return TwoSite(BATCH, PHYSICAL, BOND)
    return TwoSite(2, max(2, size.extent // 4), size.extent)


def _case(flight: str, size: Size) -> Case:
    """A case of TCCG, half precision with results in single; every extent `size.extent` where that is given."""
    if size.dtype not in (None, torch.float16, torch.bfloat16):
        name = str(size.dtype).removeprefix("torch.")
        raise DTypeError(f"flight '{flight}' is of float16 or bfloat16, not of {name}")
    found = tccg(size.dtype or torch.float16, torch.float32)[_TCCG[flight] - 1]
    if size.extent is None:
        return found
    shapes = tuple(tuple(size.extent for _ in shape) for shape in found.shapes)
    return replace(found, shapes=shapes)  # type: ignore[arg-type]


LADDER = Ladder(
    "tensor",
    "Tensor contractions by every method, with fused functions and split sums, and a two-site update in stages.",
    (
        Flight("methods", "TCCG 20, fbea,ecfd->dcba, by every method.", _methods, METHODS),
        Flight("functions", "TCCG 15 with a leaky ReLU of A, B and D.", _functions, FUNCTIONS),
        Flight("sums", "TCCG 13: few results, long sums.", _sums, SUMS),
        Flight("two-site", "Y = G X M, stage by stage.", _two_site, TWO_SITE),
    ),
    tiny=8,
)
