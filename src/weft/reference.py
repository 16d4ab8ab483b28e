"""The oracle for users: what a contraction or permutation means, computed the plain way in wide types.

Tests of code that uses weft compare with it; it runs on any device and shares no kernel with the backends.
"""

from weft.oracle import reference as _oracle
from weft.spec.arguments import reads

contract = reads("reference.contract")(_oracle.contract)
permute = reads("reference.permute")(_oracle.permute)

__all__ = ["contract", "permute"]
