"""Each public call with each keyword: it takes the word, as the table of options says, or its refusal names both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.planner.options import OF_NAME, OPTIONS, TAKEN

PAGE = Path(__file__).parents[2] / "docs/contractions.md"
A, B, C = torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 6)
BIAS, STATE = torch.randn(6), torch.randn(6, 6, 6)


def biased(value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return value + bias


def placed(value: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return value * i


def largest(scores: torch.Tensor) -> Any:
    return weft.amax(scores, "n")


#: For each word the keywords of a contraction "mk,kn->mn" that say it.
WORDS: dict[str, dict[str, Any]] = {
    "c": {"c": C}, "alpha": {"alpha": 2.0}, "beta": {"beta": 0.5, "c": C}, "out": {"out": torch.zeros(6, 6)},
    "out_dtype": {"out_dtype": torch.float64}, "precision": {"precision": torch.bfloat16},
    "accumulate": {"accumulate": torch.float64}, "a_fn": {"a_fn": torch.relu}, "b_fn": {"b_fn": torch.relu},
    "c_fn": {"c_fn": torch.relu, "c": C}, "epilogue": {"epilogue": torch.relu},
    "operands": {"operands": {"bias": ("n", BIAS)}, "epilogue": biased},
    "indices": {"indices": {"i": "m"}, "epilogue": placed}, "algebra": {"algebra": "max_plus"},
    "invariant": {"invariant": "m"}, "deterministic": {"deterministic": False},
    "workspace_limit": {"workspace_limit": 1 << 24}, "backend": {"backend": "reference"}, "tune": {"tune": "model"},
    "specialize": {"specialize": "library"}, "schedule": {"schedule": None}, "promote": {"promote": True},
    "kept_dtype": {"kept_dtype": torch.float64}, "reduce": {"reduce": {"peak": ("m", "max")}},
    "ragged": {"ragged": {"k": [0, 2, 6]}}, "return_arg": {"return_arg": True, "algebra": "max_plus"},
    "validate": {"validate": True}, "fn": {"fn": torch.relu}, "extents": {"extents": {"n": 6}},
    "accumulate_into": {"accumulate_into": False}, "transpose_a": {"transpose_a": True},
    "transpose_b": {"transpose_b": True}, "axes": {"axes": 1}, "offset": {"offset": 1},
    "axis1": {"axis1": 1, "axis2": 0}, "axis2": {"axis2": 0, "axis1": 1}, "output": {"output": "mn"},
    "optimize": {"optimize": "auto"}, "slices": {"slices": "k"}, "functions": {"functions": {2: torch.relu}},
    "constants": {"constants": (0,)}, "dtype": {"dtype": torch.float32}, "device": {"device": "cpu"},
    "memory_limit": {"memory_limit": 1 << 24}, "strip_exponent": {"strip_exponent": True}, "reuse": {"reuse": True},
    "check_finite": {"check_finite": True}, "progress": {"progress": False}, "cuda_graph": {"cuda_graph": False},
    "between": {"between": largest},
}  # fmt: skip
#: What says the word to a call of another form.
SAID: dict[tuple[str, str], dict[str, Any]] = {
    ("grouped", "out"): {"out": [torch.zeros(6, 6)]}, ("plan_grouped", "out"): {"out": [torch.zeros(6, 6)]},
    ("trace", "c"): {"c": torch.ones(())}, ("trace", "beta"): {"beta": 0.5, "c": torch.ones(())},
    ("trace", "c_fn"): {"c_fn": torch.relu, "c": torch.ones(())}, ("trace", "out"): {"out": torch.ones(())},
    ("trace", "operands"): {"operands": {"bias": ("", torch.ones(()))}, "epilogue": biased},
    ("trace", "invariant"): {"invariant": ""}, ("trace", "indices"): {"indices": {"i": "i"}, "a_fn": placed},
    ("operator_sum", "out"): {"out": torch.zeros(6, 6, 6)}, ("chain", "out"): {"out": torch.zeros(6, 6, 6)},
    ("a plan's call", "operands"): {"operands": {}}, ("network", "output"): {"output": None},
    **{(call, "operands"): {"operands": {"bias": ("n", BIAS)}, "between": lambda s, bias: weft.amax(s + bias, "n")}
       for call in ("cascade", "plan_cascade")},
    **{(call, "indices"): {"indices": {"i": "m"}, "between": lambda s, i: weft.amax(s * i, "n")}
       for call in ("cascade", "plan_cascade")},
    **{(call, "algebra"): {"algebra": "log"} for call in ("cascade", "plan_cascade")},
    **{(call, "operands"): {"operands": {"bias": (label, BIAS)}, "epilogue": biased}
       for call, label in (("tensordot", "d"), ("inner", "c"))},
    **{(call, "indices"): {"indices": {"i": "a"}, "epilogue": placed} for call in ("tensordot", "inner")},
    **{(call, word): {word: dtype} for call in ("jax.contract", "jax.einsum")
       for word, dtype in (("out_dtype", torch.float16), ("accumulate", torch.float32))},
}  # fmt: skip
ALGEBRA_OF_TWO = "mk,nk->mn, mn,nk->mk"


def contracted(**said: Any) -> Any:
    if "ragged" in said:
        return weft.contract("bkd,bde->bke", A, B[None], ragged={"k": [0, 6]})
    return weft.contract("mk,kn->mn", A, B, **said)


def cascaded(call: Any) -> Callable[..., Any]:
    def made(**said: Any) -> Any:
        if "algebra" in said:
            return call(ALGEBRA_OF_TWO, A, B, A, between=lambda s: weft.log_softmax(s, "n"), **said)
        return call("mk,nk->mn", A, B, **({"between": largest} | said))

    return made


def planned(**said: Any) -> Any:
    plan = weft.plan("mk,kn->mn", A, B, **said)
    given = {name: said[name] for name in ("c", "out") if name in said}
    return plan(A, B, operands={"bias": BIAS} if "operands" in said else None, **given)


def summed(call: Any) -> Callable[..., Any]:
    return lambda **said: call([(A, B, None)], **said)


def along_a_tree(**said: Any) -> Any:
    ctg = pytest.importorskip("cotengra")
    sizes = dict.fromkeys("mkn", 6)
    tree = ctg.ContractionTree.from_path([*map(tuple, ("mk", "kn"))], tuple("mn"), sizes, path=[(0, 1)])
    return weft.hooks.contract_tree(tree, [A, B], **said)


def in_jax(name: str) -> Callable[..., Any]:
    def made(**said: Any) -> Any:
        jax = pytest.importorskip("jax")
        import weft.jax

        given = {word: value for word, value in said.items() if word not in ("epilogue", "a_fn", "b_fn", "operands")}
        if "operands" in said:
            given |= {"operands": {"bias": ("n", jax.numpy.asarray(BIAS.numpy()))}}
        for hook in {"epilogue", "a_fn", "b_fn"} & said.keys():
            given[hook] = said[hook] if said[hook] in (biased, placed) else jax.numpy.square
        arrays = [jax.numpy.asarray(each.numpy()) for each in (A, B)]
        return getattr(weft.jax, name)("mk,kn->mn", *arrays, **given)

    return made


CALLS: dict[str, Callable[..., Any]] = {
    "contract": contracted,
    "plan": planned,
    "einsum": lambda **said: weft.einsum("mk,kn->mn", A, B, **said),
    "matmul": lambda **said: weft.matmul(A, B, **said),
    "tensordot": lambda **said: weft.tensordot(A, B, **({"axes": 1} | said)),
    "inner": lambda **said: weft.inner(A, B.mT.contiguous(), **said),
    "outer": lambda **said: weft.outer(A[0], B[0], **said),
    "trace": lambda **said: weft.trace(A, **said),
    "permute": lambda **said: weft.permute("mn->nm", A, **said),
    "plan_permute": lambda **said: weft.plan_permute("mn->nm", A, **said)(A),
    "grouped": lambda **said: weft.grouped("mk,kn->mn", [(A, B)], **said),
    "plan_grouped": lambda **said: weft.plan_grouped("mk,kn->mn", [(A, B)], **said),
    "cascade": cascaded(weft.cascade),
    "plan_cascade": cascaded(weft.plan_cascade),
    "operator_sum": summed(lambda terms, **said: weft.operator_sum(terms, STATE, **said)),
    "OperatorSum": summed(weft.OperatorSum),
    "network": lambda **said: weft.network("mk,kn->mn", A, B, **said),
    "hooks.contract_tree": along_a_tree,
    "chain": lambda **said: weft.chain("pq,bqc,cr->bpr", A, STATE, B, **said),
    "blocks.contract": lambda **said: weft.blocks.contract("mk,kn->mn", BLOCKED, BLOCKED, **said),
    "jax.contract": in_jax("contract"),
    "jax.einsum": in_jax("einsum"),
    "a plan's call": lambda **said: weft.plan("mk,kn->mn", A, B)(A, B, **said),
    "a permutation plan's call": lambda **said: weft.plan_permute("mn->nm", A)(A, **said),
}
BLOCKED = weft.blocks.BlockTensor({(0, 0): torch.randn(2, 2), (1, 1): torch.randn(3, 3)})
CONTRACTIONS = ("contract", "einsum", "matmul", "tensordot", "inner", "outer", "trace")
#: Calls whose results are those of `contract` for these operands.
AS_CONTRACT = ("plan", "einsum", "matmul", "tensordot", "inner")


def said_of(call: str, word: str) -> dict[str, Any]:
    found = SAID.get((call, word), WORDS[word])
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def test_the_table_has_every_call_and_word() -> None:
    assert set(CALLS) == set(TAKEN)
    assert set(WORDS) == set(OF_NAME)


@pytest.mark.parametrize("call", CALLS)
def test_a_word_that_is_taken_works(call: str) -> None:
    for word in TAKEN[call]:
        CALLS[call](**said_of(call, word))


@pytest.mark.parametrize("call", AS_CONTRACT)
def test_a_word_means_what_it_means_to_contract(call: str) -> None:
    for word in set(TAKEN[call]) & set(TAKEN["contract"]):
        found, expected = CALLS[call](**said_of(call, word)), contracted(**said_of("contract", word))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("call", CALLS)
def test_a_word_that_is_not_taken_is_named_with_the_call(call: str) -> None:
    explicit = {"cascade": {"c"}, "plan_cascade": {"c"}}.get(call, set())  # places of their own
    for word in set(OF_NAME) - set(TAKEN[call]) - explicit:
        with pytest.raises((weft.ArgumentError, weft.UnsupportedError)) as caught:
            CALLS[call](**{word: WORDS[word][word]})
        assert f"{call} takes no keyword '{word}'" in str(caught.value), word


def test_a_refusal_says_which_calls_take_the_word() -> None:
    with pytest.raises(weft.ArgumentError, match="plan takes no keyword 'reduce': it is one of contract, einsum, perm"):
        weft.plan("mk,kn->mn", A, B, reduce={"peak": ("m", "max")})
    for layer in (weft.nn.Linear, weft.nn.GatedLinear):
        with pytest.raises(weft.ArgumentError, match=r"Linear.*'reduce'"):
            layer(6, 6, reduce={"peak": ("m", "max")})


def table() -> str:
    """The section of the page: words that the same calls take stand in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for option in OPTIONS:
        rows.setdefault(option.calls, []).append(f"`{option.name}`")
    lines = [f"| {', '.join(words)} | {', '.join(calls)} |" for calls, words in rows.items()]
    lines = [line.replace(", ".join(CONTRACTIONS), "contractions") for line in lines]
    return "\n".join(["| keyword | calls |", "|-|-|", *lines])


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(), f"docs/contractions.md has another table than weft.planner.options:\n{table()}"
