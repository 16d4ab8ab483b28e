"""The keywords of a call, read into `Options`; an unknown one is refused.

It gets the nearest right one, or what weft calls what other libraries name so. The table of options stands in
`weft.planner.options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from weft.errors import ArgumentError
from weft.planner.options import OF_NAME, TAKEN, Options
from weft.planner.request import HOOKS, Results
from weft.planner.schedule import Scalar
from weft.planner.validity import default_precision
from weft.spec.dtypes import result_types


class FactorKeywords(TypedDict, total=False):
    """Keywords of every call that adds and scales, as type checkers read them."""

    c: Any
    alpha: Scalar
    beta: Scalar | None
    out: Any


class CallKeywords(FactorKeywords, total=False):
    """Keywords of a call, of `contract` or of a plan, that hold for this call alone."""

    validate: bool


class PlanCallKeywords(CallKeywords, total=False):
    """Keywords of a plan's call."""

    operands: Mapping[str, Any] | None


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
#: What calls do without, and why.
_WITHOUT = {
    "optimize": "einsum finds the order by itself, and weft.network takes one",
    "path": "einsum finds the order by itself, and weft.network takes one as optimize=",
    "stream": "calls run on torch's current stream",
}


#: Of calls without keywords.
_BARE = {specialize: Options(specialize=specialize) for specialize in ("auto", "now")}


def read_options(call: str, keywords: Mapping[str, Any], target: Results | None = None) -> Options:
    """A call's keywords, checked and read; D's type is that of `target` where none is given.

    Keywords that belong to the call alone (`c`, `alpha`, ...) are not among them. Raises `ArgumentError` for one that
    the call does not take, else what the reading of each raises.
    """
    specialize = OF_NAME["specialize"].default_of(call)
    default = default_precision()
    if not keywords and target is None and default == "ieee":
        return _BARE[specialize]
    refuse_unknown(call, keywords)
    found: dict[str, Any] = {"specialize": specialize, "out_dtype": result_types(target)}
    for name, value in keywords.items():
        read = OF_NAME[name].read
        if read is not None and (value is not None or name != "out_dtype"):
            found[name] = read(name, value)
    if default != "ieee" and "precision" in TAKEN[call] and found.get("precision") is None:
        found["precision"] = default
    return Options(functions=tuple([keywords.get(hook) for hook in HOOKS]), **found)


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
        elif name in OF_NAME:
            hint = f": it is one of {', '.join(OF_NAME[name].calls)}"
        elif near := difflib.get_close_matches(name, taken, n=1, cutoff=0.6):
            hint = f": did you mean {near[0]!r}? ({OF_NAME[near[0]].says})"
        else:
            hint = f": it takes {', '.join(taken)}"
        raise ArgumentError(f"{what or call} takes no keyword {name!r}{hint}")


def _said(call: str, name: str) -> str | None:
    """How weft says what others call so, in a keyword that `call` takes."""
    if call == "network" and name in _OF_A_NETWORK:
        return _OF_A_NETWORK[name]
    said = _ELSEWHERE.get(name)
    return said if said is not None and ("=" not in said or said.partition("=")[0] in TAKEN[call]) else None
