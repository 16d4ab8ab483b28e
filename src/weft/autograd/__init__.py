"""Derivatives of contractions: reverse mode, forward mode and vmap, for all algebras that have any.

`weft.contract` and its kin come here by themselves where a gradient is requested (`weft.plans.derivatives`). Whoever
registers an operation of their own with torch uses the parts:

    found = rule(request, tensors, needs)           # of a `Request`, as a plan is made of; kept by what it depends on
    results = found.forward(alpha, beta, tensors)   # D, further results, and last what is kept for backward
    saved = found.saved(tensors, results)           # what backward reads of all these; None for the rest
    grads = found.backward(alpha, beta, saved, grads_of_results, needs)

`tensors` are A, B, C (or None), and the operands in the order of `names`; `needs` and what `backward` returns have an
entry for each. Steps of `backward` are public calls of weft, differentiable themselves. The tensors must be in plain
form (`Plain.of`): `plain_rule` makes the views.
"""

from __future__ import annotations

from weft.autograd.algebras import Composed, plain_rule, rule
from weft.autograd.function import Differentiated, apply
from weft.autograd.product import Product
from weft.autograd.rule import Rule
from weft.autograd.spec import Plain, Spec, plain

__all__ = ["Composed", "Differentiated", "Plain", "Product", "Rule", "Spec", "apply", "plain", "plain_rule", "rule"]
