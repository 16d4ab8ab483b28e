"""weft inside other libraries: cotengra, opt_einsum, quimb, PySCF, and what reaches arrays through autoray.

* `cotengra` gives the pair of functions that cotengra takes as `implementation=`.
* `contract_tree` contracts a whole `cotengra.ContractionTree`.
* `implementing` makes weft cotengra's default for a while, and so quimb's.
* `pyscf` makes weft contract for PySCF for a while.
* `to_backend` makes arrays into tensors of a device, as quimb's circuits take it.

opt_einsum needs nothing of this: ``backend="weft"`` finds `weft.tensordot`, `weft.transpose` and `weft.einsum`. The
same word works wherever autoray looks for functions of a backend by name.
"""

from weft.hooks.libraries import contract_tree, cotengra, implementing, pyscf, register, to_backend

register()

__all__ = ["contract_tree", "cotengra", "implementing", "pyscf", "to_backend"]
