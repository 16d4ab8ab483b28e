"""Building blocks of tensor-network algorithms: matrix product states and operators, updates, DMRG, TEBD, PEPS norms.

They are thin: contractions are `weft.contract`'s, factorisations torch's. Tensors of a state are (left, site, right),
those of an operator (left, out, in, right); the outermost bonds have extent 1.
"""

from weft.tn.operator import MPO, heisenberg, heisenberg_bond, ising, ising_bonds
from weft.tn.peps import PepsNorm, peps_norm
from weft.tn.state import MPS
from weft.tn.sweeps import DmrgResult, TebdResult, dmrg, tebd
from weft.tn.update import Split, TwoSite, split, two_site_update

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
