"""Derivatives of contractions: reverse mode, forward mode and vmap, for all algebras that have any.

`weft.contract` and its kin come here by themselves where a gradient is requested (`weft.engine.ways`): `calls`
has what they call, and `rule` how one contraction is differentiated. Steps of a backward pass are contractions whose
options are read, differentiable themselves. A rule takes tensors in plain form: `Plain.of` makes these views.
"""
