"""The keywords that calls share: their defaults, who takes which, and what to say of one that nobody takes.

An unknown keyword gets the nearest right one, or what weft calls what other libraries name so. The types of the
keywords stand in `weft.api.keywords`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from weft.errors import ArgumentError

#: Every keyword that calls share, with its default, in the order in which `help` shows them.
DEFAULTS: dict[str, Any] = {
    "c": None, "alpha": 1.0, "beta": None, "out": None, "out_dtype": None, "precision": None, "accumulate": None,
    "a_fn": None, "b_fn": None, "c_fn": None, "epilogue": None, "operands": None, "indices": None,
    "algebra": "plus_times", "deterministic": True, "workspace_limit": None, "backend": "auto", "tune": None,
    "specialize": "auto", "schedule": None, "promote": False, "kept_dtype": None, "return_arg": False,
    "validate": False,
}  # fmt: skip
_OF_EINSUM: dict[str, Any] = {"optimize": "auto"}
#: The same where a call makes a plan, which is for many calls.
_OF_PLANS: dict[str, Any] = {"specialize": "now"}
#: The keywords of each call.
TAKEN: dict[str, tuple[str, ...]] = {
    "contract": tuple(DEFAULTS),
    "plan": tuple(name for name in DEFAULTS if name not in ("alpha", "beta", "validate")),
    "einsum": (*DEFAULTS, "optimize"),
    "matmul": ("transpose_a", "transpose_b", *DEFAULTS),
    "permute": (
        "fn", "c", "alpha", "beta", "out", "out_dtype", "extents", "workspace_limit", "backend", "tune", "specialize",
        "schedule", "promote",
    ),
    "a plan's call": ("c", "alpha", "beta", "out", "operands", "validate"),
    "a permutation plan's call": ("c", "alpha", "beta", "out"),
}  # fmt: skip
TAKEN["plan_permute"] = TAKEN["permute"]
TAKEN["grouped"] = TAKEN["plan_grouped"] = (
    "accumulate_into", "out", "out_dtype", "precision", "accumulate", "a_fn", "b_fn", "epilogue", "backend",
)  # fmt: skip
TAKEN["blocks.contract"] = ("out_dtype", "precision", "accumulate", "a_fn", "b_fn", "epilogue", "backend")
TAKEN["operator_sum"] = ("precision", "accumulate", "backend", "tune", "specialize", "deterministic")
TAKEN["tensordot"] = ("axes", *DEFAULTS)
TAKEN["inner"] = TAKEN["outer"] = tuple(DEFAULTS)
TAKEN["trace"] = ("offset", "axis1", "axis2", *DEFAULTS)
TAKEN["network"] = (
    "output", "optimize", "slices", "functions", "constants", "dtype", "device", "memory_limit", "strip_exponent",
    "reuse", "check_finite", "progress", "cuda_graph", "out_dtype", "precision", "accumulate", "algebra", "backend",
    "specialize", "tune", "promote", "deterministic",
)  # fmt: skip
TAKEN["chain"] = ("out", "out_dtype", "precision", "accumulate", "backend")

_FUSED_BIAS = 'epilogue=weft.functions.bias with operands={"bias": ("n", tensor)}'
_ACTIVATION = "epilogue=, a function of each result: epilogue=torch.relu"
#: What other libraries call something, and how weft says it.
_ELSEWHERE = {
    "bias": _FUSED_BIAS,
    "activation": _ACTIVATION,
    "act": _ACTIVATION,
    "dtype": "out_dtype= (the result's type), precision= (the products') or accumulate= (the sums')",
    "preferred_element_type": "out_dtype= or accumulate=",
    "casting": "promote=True, which takes operands of different types",
    "allow_tf32": 'precision="tf32"',
    "memory_limit": "workspace_limit= (bytes); of several operands weft.network(..., memory_limit=)",
    "workspace": "workspace_limit= (bytes)",
    "semiring": "algebra=",
    "mask": 'epilogue=weft.functions.masked with operands={"mask": ("mn", tensor)}',
    "autotune": 'tune="measure"',
    "compute_type": "precision= (the products' type) or accumulate= (the sums')",
    "computetype": "precision= (the products' type) or accumulate= (the sums')",
    "scale": 'epilogue=weft.functions.scale with operands={"scale": ("n", tensor)}; a number is alpha=',
    "is_causal": 'epilogue=weft.functions.causal with indices={"i": "m", "j": "n"}',
    "order": "out=, a tensor with the strides that D is to have",
    "trans_a": "transpose_a=",
    "trans_b": "transpose_b=",
    "transa": "transpose_a=",
    "transb": "transpose_b=",
    "input": "a, the first operand",
    "other": "b, the second operand",
    "dims": "axes=",
    "dim1": "axis1=",
    "dim2": "axis2=",
    "fn": "epilogue= (of the result), a_fn= or b_fn= (of an operand)",
    "epilogue": "fn=, a function of each element",
    "a_fn": "fn=, a function of each element",
}


_PATH = "optimize=, which takes a path, a word or an optimizer"
_LIMIT = "memory_limit=, in bytes or as text such as '8GB'"
_NODES = "functions={node: fn}, functions of intermediates and of the result"
_OPERANDS = "the operands in a row after the equation: tensors or shapes"
#: The same of a network, whose words come before these.
_OF_A_NETWORK = {
    **dict.fromkeys(("path", "contraction_path", "ssa_path", "tree", "optimizer", "order"), _PATH),
    **dict.fromkeys(
        ("max_memory", "memory", "max_bytes", "memory_budget", "target_size", "workspace", "workspace_limit"), _LIMIT
    ),
    **dict.fromkeys(("slice", "sliced", "sliced_inds", "slicing"), "slices=, labels"),
    **dict.fromkeys(("epilogue", "fn", "activation", "act", "a_fn", "b_fn"), _NODES),
    **dict.fromkeys(("inputs", "shapes", "size_dict", "extents"), _OPERANDS),
    "verbose": "progress=True",
    "graph": "cuda_graph=",
}
_ON_CALLS = ("out", "changed", "group", "checkpoint", "checkpoint_every")
_OF_NETWORKS = "it is an option of weft.network"
#: What calls do without, and why.
_WITHOUT = {
    "optimize": "einsum finds the order by itself, and weft.network takes one",
    "path": "einsum finds the order by itself, and weft.network takes one as optimize=",
    "constants": _OF_NETWORKS,
    "slices": _OF_NETWORKS,
    "strip_exponent": _OF_NETWORKS,
    "stream": "calls run on torch's current stream",
}


def default_of(call: str, name: str) -> Any:
    """The default of a keyword that calls share."""
    if call.startswith("plan") and name in _OF_PLANS:
        return _OF_PLANS[name]
    return DEFAULTS[name] if name in DEFAULTS else _OF_EINSUM[name]


def refuse_unknown(call: str, unknown: Collection[str], what: str = "") -> None:
    """`ArgumentError` for the first keyword that `call` does not take, with the nearest that it does."""
    for name in unknown:
        taken = TAKEN[call]
        if name in taken:
            continue
        said = _said(call, name.lower())
        if said is not None:
            hint = f": weft says {said}"
        elif call == "network" and name in _ON_CALLS:
            hint = f": the network's own call takes it, net(*tensors, {name}=...)"
        elif name.lower() in _WITHOUT:
            hint = f": {_WITHOUT[name.lower()]}"
        elif near := difflib.get_close_matches(name, taken, n=1, cutoff=0.6):
            hint = f": did you mean {near[0]!r}?"
        else:
            hint = f": it takes {', '.join(taken)}"
        raise ArgumentError(f"{what or call} takes no keyword {name!r}{hint}")


def _said(call: str, name: str) -> str | None:
    """How weft says what others call so, in a keyword that `call` takes."""
    if call == "network" and name in _OF_A_NETWORK:
        return _OF_A_NETWORK[name]
    said = _ELSEWHERE.get(name)
    return said if said is not None and ("=" not in said or said.partition("=")[0] in TAKEN[call]) else None
