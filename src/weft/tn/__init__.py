"""Building blocks of tensor-network algorithms: matrix product states and operators, updates, DMRG, TEBD, PEPS norms.

They are thin: contractions are `weft.contract`'s, factorisations torch's. Tensors of a state are (left, site, right),
those of an operator (left, out, in, right); the outermost bonds have extent 1.
"""

from weft.tn.operator import MPO, heisenberg, heisenberg_bond, ising, ising_bonds
from weft.tn.state import MPS
from weft.tn.sweeps import DmrgResult, PepsNorm, TebdResult, dmrg, peps_norm, tebd
from weft.tn.tensors import Split, TwoSite, split, two_site_update

__all__ = [
    "MPO",
    "MPS",
    "DmrgResult",
    "PepsNorm",
    "Split",
    "TebdResult",
    "TwoSite",
    "dmrg",
    "heisenberg",
    "heisenberg_bond",
    "ising",
    "ising_bonds",
    "peps_norm",
    "split",
    "tebd",
    "two_site_update",
]
