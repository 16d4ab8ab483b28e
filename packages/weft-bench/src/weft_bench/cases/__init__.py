"""The one list of cases that tests, benchmarks and the tuner share.

    example()  a contraction with a fused function, from the paper on fused contractions
    tccg()     the 48 contractions of the TCCG suite
    general()  small ones, odd and empty extents first: every class of modes, number type, function, layout
    beyond()   what TCCG lacks, at sizes worth timing
    epilogues(), algebras(), numbers(), weights()
               functions with operands, algebras, complex numbers and integers, at sizes worth timing
    tiny()     a few so small that only the call itself takes time

`weft_bench.cases.everyday` has calls as users write them, with torch's way beside weft's.
`scaled` makes a small case of a large one, `operands` makes its tensors.
"""

from weft.selftest.case import ALGEBRAS, FUNCTIONS, Case, CaseOperands, from_letters, operands
from weft_bench.cases.beyond import beyond
from weft_bench.cases.fused import algebras, epilogues, gradients, layers, numbers, weights
from weft_bench.cases.general import general
from weft_bench.cases.scaled import scaled
from weft_bench.cases.suite import example, tccg, tiny

__all__ = [
    "ALGEBRAS",
    "FUNCTIONS",
    "Case",
    "CaseOperands",
    "algebras",
    "beyond",
    "epilogues",
    "every",
    "example",
    "from_letters",
    "general",
    "gradients",
    "layers",
    "numbers",
    "operands",
    "scaled",
    "tccg",
    "tiny",
    "weights",
]


def every() -> tuple[Case, ...]:
    """All of them."""
    return (*general(), *tccg(), *beyond())
