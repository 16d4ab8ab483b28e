"""How far the result of a network may be off: the bound of every step, carried up the tree.

Each step rounds its sums, relative to the sum of magnitudes, by (K + 2) eps of its accumulator, and its result by half
an eps of the type that it is stored in (`weft.oracle.rounding`). Every product of the whole network goes through all
steps, so its relative error is at most the product of all (1 + step) less one; the bound is that times the same network
of magnitudes. Slices are one more sum. (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.networks.derivatives import Contractions, alone
from weft.networks.plan import NetworkPlan
from weft.networks.steps import StepOptions
from weft.oracle.rounding import FP8_LOSS, SHORTENED, epsilon, smallest
from weft.planner.options import Options
from weft.spec.dtypes import FP8, resolve


def error_bound(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """A float64 tensor in the result's shape. `UnsupportedError` for networks with functions or another algebra."""
    if network.whole_functions or network.settings.options.algebra is not None:
        raise UnsupportedError("the bound of a network is of sums of products without functions")
    relative, low = growth(network)
    return relative * _magnitudes(network, operands).reshape(network.graph.shape) + low


def growth(network: NetworkPlan) -> tuple[float, float]:
    """The error that all steps together may bring into a product: relative to its magnitude, and by underflow."""
    found, low = 1.0, 0.0
    for relative, least in _steps(network):
        found *= 1.0 + relative
        low += least
    return found - 1.0, low


def _steps(network: NetworkPlan) -> list[tuple[float, float]]:
    """The error that each step may bring into a product: relative to its magnitude, and by underflow."""
    tree, asked = network.tree, network.asked
    found = []
    for step in tree.steps:
        a, b = network.dtypes[step.left], network.dtypes[step.right]
        options = asked.of(a, b)
        arithmetic = resolve(a, b, options.precision, options.accumulate, None, options.promote)
        count = tree.graph.size(tree.reduced(step))
        parts = 4.0 if a.is_complex or b.is_complex else 1.0
        relative = parts * (count + 5) * (epsilon(arithmetic.accumulate) + epsilon(torch.float64))
        rounded = epsilon(arithmetic.product) / 2 if _rounds(a, b, arithmetic) else 0.0
        relative += 2.5 * max(SHORTENED.get(arithmetic.precision, 0.0), rounded)
        relative += FP8_LOSS if arithmetic.product in FP8 else 0.0
        stored = network.dtypes[step.node]
        found.append((relative + epsilon(stored) / 2, count * smallest(arithmetic.accumulate) + smallest(stored)))
    if not tree.steps:  # the sums of one operand
        (term,), dtype = tree.graph.terms, network.dtype
        count = tree.graph.size(set(term) - set(tree.graph.output))
        found.append(((count + 2) * (epsilon(dtype) + epsilon(torch.float64)), count * smallest(dtype)))
    if tree.slices > 1:
        stored = network.dtypes[tree.root]
        found.append(((tree.slices + 2) * epsilon(stored), tree.slices * smallest(stored)))
    return found


def _rounds(a: torch.dtype, b: torch.dtype, arithmetic: Any) -> bool:
    """Whether factors are rounded before they are multiplied."""
    return any(epsilon(each) < epsilon(arithmetic.product) for each in (a, b))


def _magnitudes(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The network of magnitudes, in float64."""
    found = [operand.resolve_conj().abs().double() for operand in operands]
    if not network.tree.steps:
        return alone(network, found[0])
    wide = replace(network, dtypes=dict.fromkeys(network.dtypes, torch.float64), asked=StepOptions())
    return Contractions(wide, network.tree.with_slices(()), Options(specialize="auto"))(*found)
