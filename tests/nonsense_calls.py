"""A right call of every public name, for `nonsense` to spoil."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

import weft
from nonsense import Call, Make, tensor
from weft.spec import parse


def a() -> torch.Tensor:
    return tensor(2, 3)


def b() -> torch.Tensor:
    return tensor(3, 4)


def d() -> torch.Tensor:
    return tensor(2, 4)


def equation() -> str:
    return "mk,kn->mn"


def pairs() -> Any:
    return [(tensor(n, 3), tensor(3, 2)) for n in (1, 2)]


def leg() -> Any:
    return weft.blocks.Leg(weft.blocks.U1, {0: 2, 1: 1})


def charged() -> Any:
    return weft.blocks.ChargedTensor.random([leg(), leg().dual])


def blocks(*shape: int) -> Any:
    return weft.blocks.BlockTensor({(0, 0): tensor(*shape), (1, 1): tensor(*shape)})


def terms() -> Any:
    return [(None, tensor(2, 2), None), (tensor(3, 3), None, tensor(3, 3))]


TYPES: dict[str, Make] = {
    "out_dtype": lambda: "float32", "precision": lambda: "ieee", "accumulate": lambda: torch.float64,
}  # fmt: skip
CHOICES: dict[str, Make] = {
    "backend": lambda: "auto", "tune": lambda: "model", "specialize": lambda: "never", "promote": lambda: True,
}  # fmt: skip
FUNCTIONS: dict[str, Make] = {
    "a_fn": lambda: torch.relu, "b_fn": lambda: torch.relu, "epilogue": lambda: torch.relu,
}  # fmt: skip
PLANNED: dict[str, Make] = {
    **TYPES, **CHOICES, **FUNCTIONS, "c_fn": lambda: torch.relu, "operands": lambda: {"bias": ("n", tensor(4))},
    "indices": lambda: {"i": "m"}, "algebra": lambda: "plus_times", "deterministic": lambda: True,
    "workspace_limit": lambda: 1 << 20, "schedule": lambda: None, "kept_dtype": lambda: None,
}  # fmt: skip
FACTORS: dict[str, Make] = {"c": d, "alpha": lambda: 2.0, "beta": lambda: 1.0, "out": d}
WHOLE: dict[str, Make] = {**PLANNED, **FACTORS, "return_arg": lambda: False, "validate": lambda: False}
MOVED: dict[str, Make] = {
    "fn": lambda: torch.relu, "c": lambda: tensor(3, 2), "alpha": lambda: 2.0, "beta": lambda: 1.0,
    "out": lambda: tensor(3, 2), "extents": lambda: {"a": 2}, "out_dtype": lambda: torch.float32,
    "workspace_limit": lambda: 0, "schedule": lambda: None, **CHOICES,
}  # fmt: skip
GROUPED: dict[str, Make] = {
    **TYPES, **FUNCTIONS, "accumulate_into": lambda: False, "out": lambda: [tensor(1, 2), tensor(2, 2)],
    "backend": lambda: "cpu",
}  # fmt: skip
REFERENCE: dict[str, Make] = {
    name: make for name, make in {**WHOLE, **TYPES}.items()
    if name in ("c", "alpha", "beta", "a_fn", "b_fn", "c_fn", "epilogue", "operands", "indices", "algebra", *TYPES)
}  # fmt: skip
NETWORK: dict[str, Make] = {
    "output": lambda: None, "optimize": lambda: "greedy", "slices": lambda: ("b",), "constants": lambda: (0,),
    "functions": lambda: {4: torch.relu}, "dtype": lambda: torch.float32, "device": lambda: "cpu",
    "memory_limit": lambda: "1MB", "strip_exponent": lambda: False, "reuse": lambda: False,
    "check_finite": lambda: False, "progress": lambda: False, "cuda_graph": lambda: False, **TYPES, **CHOICES,
    "algebra": lambda: "plus_times", "deterministic": lambda: True,
}  # fmt: skip


CASCADED: dict[str, Make] = {
    **TYPES, "between": lambda: torch.tanh, "alpha": lambda: 2.0, "backend": lambda: "auto",
    "operands": lambda: None, "indices": lambda: None, "workspace_limit": lambda: 1 << 20,
}  # fmt: skip
WORDS = ("sum", "mean", "amax", "amin", "argmax", "argmin", "logsumexp", "softmax", "log_softmax")


def _within(word: str, modes: Any) -> Any:
    """A word of functions between contractions, in one."""
    return weft.cascade(equation(), a(), b(), between=lambda s: getattr(weft, word)(s, modes))


def _calls() -> list[Call]:
    three = (lambda: "ab,bc,cd->ad", a, b, lambda: tensor(4, 2))
    two = (equation, a, b)
    return [
        Call("contract", weft.contract, two, WHOLE),
        Call("contract, max_plus", partial(weft.contract, algebra="max_plus"), two, WHOLE),
        Call("plan", weft.plan, two, {**PLANNED, "c": d, "out": d}),
        Call("einsum of one", weft.einsum, (lambda: "ij->ji", a), WHOLE),
        Call("einsum of two", weft.einsum, two, WHOLE),
        Call("einsum of three", weft.einsum, three, {**WHOLE, "c": lambda: tensor(2, 2), "out": lambda: tensor(2, 2)}),
        Call("einsum, interleaved", weft.einsum, (a, lambda: (0, 1), b, lambda: (1, 2), lambda: (0, 2)), WHOLE),
        Call("matmul", weft.matmul, (a, b), {**WHOLE, "transpose_a": lambda: False, "transpose_b": lambda: False}),
        Call("tensordot", weft.tensordot, (a, b, lambda: 1), WHOLE),
        Call("inner", weft.inner, (a, a), WHOLE),
        Call("outer", weft.outer, (a, b), WHOLE),
        Call("trace", weft.trace, (lambda: tensor(3, 3), lambda: 0, lambda: 0, lambda: 1), WHOLE),
        Call("transpose", weft.transpose, (a,), {"axes": lambda: (1, 0)}),
        Call("transpose_", weft.transpose_, (a,), {"dims": lambda: (0, 1), "backend": lambda: "auto"}),
        Call("permute", weft.permute, (a, lambda: "ab->ba"), MOVED),
        Call("plan_permute", weft.plan_permute, (a, lambda: "ab->ba"), MOVED),
        Call("network", weft.network, three, NETWORK),
        Call("network, shapes", weft.network, (three[0], lambda: (2, 3), lambda: (3, 4), lambda: (4, 2)), NETWORK),
        Call("chain", weft.chain, three, {**TYPES, "out": lambda: tensor(2, 2), "backend": lambda: "auto"}),
        Call("cascade", weft.cascade, (lambda: "mk,kn->mn, mn,nd->md", a, b, lambda: tensor(4, 2)), CASCADED),
        Call("plan_cascade", weft.plan_cascade, (equation, a, b), CASCADED),
        *[Call(word, partial(_within, word), (lambda: "n",)) for word in WORDS],
        Call("grouped", weft.grouped, (equation, pairs), GROUPED),
        Call("plan_grouped", weft.plan_grouped, (equation, pairs), GROUPED),
        Call("operator_sum", weft.operator_sum, (terms, lambda: tensor(3, 2, 3)), {
            "out": lambda: tensor(3, 2, 3), "workspace_limit": lambda: 1 << 20, "precision": lambda: None,
            "accumulate": lambda: None, "deterministic": lambda: True,
            **{name: make for name, make in CHOICES.items() if name != "promote"},
        }),
        Call("OperatorSum", weft.OperatorSum, (terms,), {"workspace_limit": lambda: 0, "backend": lambda: "cpu"}),
        Call("error_bound", weft.error_bound, two, {**REFERENCE, "promote": lambda: True}),
        Call("warm", weft.warm, (), {
            "equations": lambda: [], "device": lambda: "cuda", "jobs": lambda: 1,
        }),
        Call("set_precision", weft.set_precision, (lambda: "ieee",), {}),
        Call("precision", weft.precision, (lambda: "ieee",), {}),
        Call("Algebra", weft.Algebra, (lambda: torch.add, lambda: torch.maximum, lambda: 0.0, lambda: "own"), {}),
        *_of_objects(), *_of_modules(), *_of_files(), *_later(),
    ]  # fmt: skip


def _of_objects() -> list[Call]:
    plan, plan_permute = partial(weft.plan, "mk,kn->mn", a(), b()), partial(weft.plan_permute, a(), "ab->ba")
    biased = partial(plan, epilogue=weft.functions.bias, operands={"bias": ("n", tensor(4))})
    network = partial(weft.network, "ab,bc,cd->ad", a(), b(), tensor(4, 2))
    group = partial(weft.plan_grouped, "mk,kn->mn", pairs())
    summed = partial(weft.OperatorSum, terms())
    block = partial(blocks, 2, 3)
    return [
        Call("Plan()", "__call__", (a, b), {**FACTORS, "operands": lambda: {}, "validate": lambda: False}, of=plan),
        Call("Plan() with operands", "__call__", (a, b), {**FACTORS, "operands": lambda: {"bias": tensor(4)}},
             frozenset(("operands",)), of=biased),
        Call("PermutePlan()", "__call__", (a,), {name: MOVED[name] for name in ("c", "alpha", "beta", "out")},
             of=plan_permute),
        Call("Network()", "__call__", (a, b, lambda: tensor(4, 2)), {
            "out": lambda: tensor(2, 2), "changed": lambda: (0,), "group": lambda: None, "checkpoint": lambda: None,
            "checkpoint_every": lambda: 1.0,
        }, of=network),
        Call("Network.tune", "tune", (a, b, lambda: tensor(4, 2)), {"budget": lambda: 0.0, "workers": lambda: 0},
             of=network),
        Call("Plan.bind", "bind", (a, b), {**FACTORS, "operands": lambda: {}}, of=plan),
        Call("PermutePlan.bind", "bind", (a,), {name: MOVED[name] for name in ("c", "alpha", "beta", "out")},
             of=plan_permute),
        Call("Network.bind", "bind", (a, b, lambda: tensor(4, 2)), {"out": lambda: tensor(2, 2)}, of=network),
        Call("CascadePlan()", "__call__", (a, b), {"operands": lambda: {}}, of=partial(
            weft.plan_cascade, "mk,kn->mn", a(), b()
        )),
        Call("GroupedPlan()", "__call__", (pairs,), {}, of=group),
        Call("OperatorSum()", "__call__", (lambda: tensor(3, 2, 3),), {"out": lambda: tensor(3, 2, 3)}, of=summed),
        Call("BlockTensor[]", "__getitem__", (lambda: (0, 0),), of=block),
        Call("BlockTensor in", "__contains__", (lambda: (0, 0),), of=block),
        Call("BlockTensor.to_dense", "to_dense", (), {"sectors": lambda: ({0: 2, 1: 2}, {0: 3, 1: 3})}, of=block),
        Call("Algebra.identity_in", "identity_in", (lambda: torch.float32,), of=lambda: weft.algebra.max_plus),
        Call("Algebra.traced", "traced", (lambda: torch.float32,), of=lambda: weft.algebra.max_plus),
    ]  # fmt: skip


def _of_modules() -> list[Call]:
    f, nn, testing = weft.functions, weft.nn, weft.testing
    two = (equation, a, b)
    layer: dict[str, Make] = {
        "bias": lambda: True, "device": lambda: "cpu", "dtype": lambda: torch.float32, "activation": lambda: "gelu",
    }  # fmt: skip
    three, four = (lambda: 3), (lambda: 4)
    linear = partial(nn.Linear, 3, 4)
    shaped = (lambda: (2, 3), lambda: torch.float32)
    asserts = (AssertionError,)
    return [
        Call("reference.contract", weft.reference.contract, two, {**REFERENCE, "out": d}),
        Call("reference.permute", weft.reference.permute, (lambda: "ab->ba", a), {
            name: MOVED[name] for name in ("extents", "fn", "alpha", "beta", "out", "out_dtype")
        }),
        Call("algebra.find", weft.algebra.find, (lambda: "max_plus",)),
        Call("algebra.find_named", weft.algebra.find_named, (lambda: "tropical",)),
        Call("algebra.plus_times_mod", weft.algebra.plus_times_mod, (lambda: 7,)),
        Call("blocks.contract", weft.blocks.contract, (lambda: "ab,bc->ac", lambda: blocks(2, 2), lambda: blocks(2, 2)),
             {**TYPES, **FUNCTIONS, "backend": lambda: "cpu",
              "like": lambda: blocks(2, 2)}),
        Call("blocks.BlockTensor", weft.blocks.BlockTensor, (lambda: {(0, 0): a(), (1, 1): a()},)),
        Call("blocks.Symmetry", weft.blocks.Symmetry, (lambda: (0, 2), lambda: (False, True))),
        Call("blocks.Leg", weft.blocks.Leg, (lambda: weft.blocks.U1, lambda: {0: 2, 1: 1}), {
            "sign": lambda: -1, "parts": lambda: (),
        }),
        Call("blocks.split", weft.blocks.split, (charged, lambda: 1), {
            "max_bond": lambda: 2, "cutoff": lambda: 0.0, "absorb": lambda: "left",
        }),
        Call("blocks.qr", weft.blocks.qr, (charged, lambda: 1), {"isometry": lambda: "left"}),
        Call("blocks.ChargedTensor.random", weft.blocks.ChargedTensor.random, (lambda: [leg(), leg().dual],), {
            "charge": lambda: None, "dtype": lambda: torch.float64, "device": lambda: "cpu", "seed": lambda: 0,
        }),
        Call("blocks.ChargedTensor.permute", "permute", (lambda: 1, lambda: 0), of=charged),
        Call("blocks.ChargedTensor.fuse", "fuse", (lambda: 0, lambda: 2), {"sign": lambda: 1}, of=charged),
        Call("blocks.triangles", weft.blocks.triangles, (lambda: tensor(3, 3), lambda: "ij", lambda: {"ji": 1}),
             {"tile": lambda: 2, "summed": lambda: True}),
        Call("blocks.meeting", weft.blocks.meeting, (
            lambda: parse("ab,bc->ac"), lambda: blocks(2, 2).structure, lambda: blocks(2, 2).structure,
        )),
        Call("blocks.Structure.of", weft.blocks.Structure.of, (lambda: [(0, 0)], lambda: [(2, 3)])),
        Call("functions.chain", f.chain, (lambda: f.bias, lambda: f.relu)),
        Call("functions.gelu", f.gelu, (), {"approximate": lambda: "tanh"}),
        Call("functions.causal", f.causal, (a, a, a), {"offset": lambda: 1, "fill": lambda: 0.0}),
        Call("functions.masked", f.masked, (a, lambda: tensor(2, 3, dtype=torch.bool)), {"fill": lambda: 0.0}),
        Call("functions.dropout", f.dropout, (lambda: 0.5, lambda: 7), {"coordinates": lambda: ("i", "j")}),
        Call("functions.quantize", f.quantize, (lambda: torch.int8,)),
        Call("functions.saturate", f.saturate, (lambda: torch.int8,)),
        Call("functions.uniform", f.uniform, (lambda: 7, lambda: torch.arange(3), lambda: torch.arange(3))),
        Call("functions.alibi_slopes", f.alibi_slopes, (lambda: 4,), {"device": lambda: "cpu"}),
        Call("nn.Attention", nn.Attention, (lambda: 4, lambda: 2), {
            "kv_heads": lambda: 1, "bias": lambda: True, "device": lambda: "cpu", "dtype": lambda: torch.float32,
            "score": lambda: torch.tanh, "causal": lambda: True,
        }),
        Call("nn.Attention()", "__call__", (lambda: tensor(2, 3, 4),), {"lengths": lambda: torch.tensor([3, 1])},
             of=partial(nn.Attention, 4, 2)),
        Call("nn.Attention.step", "step", (lambda: tensor(2, 3, 4),), of=partial(nn.Attention, 4, 2)),
        Call("nn.Linear", nn.Linear, (three, four), {**layer, "weight_dtype": lambda: None}),
        Call("nn.Bilinear", nn.Bilinear, (three, four, three), layer),
        Call("nn.GatedLinear", nn.GatedLinear, (three, four), layer),
        Call("nn.Einsum", nn.Einsum, (lambda: "bse,hde->bhsd", lambda: (2, 3, 4)), {**layer, "bias": lambda: "hd"}),
        Call("nn.tune", nn.tune, (linear, a), {"budget": lambda: 0.0, "workers": lambda: 0}, raises=(TypeError,)),
        Call("nn.Linear()", "__call__", (a,), of=linear),
        Call("nn.Linear.quantized", "quantized", (lambda: "int8",), of=linear),
        Call("nn.Linear.of", nn.Linear.of, (lambda: torch.nn.Linear(3, 4),), {"activation": lambda: "relu"}),
        Call("nn.Bilinear()", "__call__", (a, d), of=partial(nn.Bilinear, 3, 4, 5)),
        Call("nn.GatedLinear()", "__call__", (a,), of=partial(nn.GatedLinear, 3, 4)),
        Call("nn.Einsum()", "__call__", (a,), of=partial(nn.Einsum, "ab,bc->ac", (3, 4))),
        Call("testing.tolerance", testing.tolerance, two, {**REFERENCE, "promote": lambda: True}),
        Call("testing.expectation", testing.expectation, two, {**REFERENCE, "promote": lambda: True}),
        Call("testing.assert_close", testing.assert_close, (a, a, a), raises=asserts),
        Call("testing.max_error_over_bound", testing.max_error_over_bound, (a, a, a)),
        Call("testing.max_norm", testing.max_norm, (a, a)),
        Call("testing.l2_norm", testing.l2_norm, (a, a)),
        Call("testing.poisoned", testing.poisoned, shaped,
             {"layout": lambda: "padded", "strides": lambda: (3, 1), "device": lambda: "cpu"}),
        Call("testing.random_operand", testing.random_operand, (*shaped, lambda: 7),
             {"integers": lambda: True, "layout": lambda: "padded", "device": lambda: "cpu"}),
        Call("testing.layout_strides", testing.layout_strides, (lambda: (2, 3), lambda: "padded")),
        Call("testing.check_algebra", testing.check_algebra, (lambda: "max_plus",),
             {"dtype": lambda: torch.float32, "seed": lambda: 3}, raises=asserts),
    ]  # fmt: skip


def _of_files() -> list[Call]:
    cache = weft.cache
    document = cache.export()
    return [
        Call("cache.folder", cache.folder),
        Call("cache.info", cache.info),
        Call("cache.clear", cache.clear, (lambda: "probes",)),
        Call("cache.export", cache.export, (lambda: Path("exported.json"), lambda: "probes")),
        Call("cache.import_", cache.import_, (lambda: document,)),
    ]


def _later() -> list[Call]:
    """Of names that are imported when they are first named."""
    plan = partial(weft.plan, "mk,kn->mn", a(), b())
    measured: dict[str, Make] = {"c": d, "out": d, "operands": lambda: {}}
    return [
        Call("profile", weft.profile, (plan, a, b), {
            **measured, "counters": lambda: False, "energy": lambda: False, "budget": lambda: 1e-4,
        }, frozenset(("budget", "counters"))),
        Call("energy", weft.energy, (plan, a, b), {**measured, "seconds": lambda: 0.01}),
        *_of_hooks(), *_of_states(), *_of_ranks(),
    ]  # fmt: skip


def _of_hooks() -> list[Call]:
    hooks = weft.hooks
    import cotengra

    def tree() -> Any:
        return cotengra.array_contract_tree([("a", "b"), ("b", "c")], ("a", "c"), {"a": 2, "b": 3, "c": 4})

    def within(**options: Any) -> None:
        with hooks.implementing(**options):
            pass

    return [
        Call("hooks.to_backend", hooks.to_backend, (), {"device": lambda: "cpu", "dtype": lambda: "complex64"}),
        Call("hooks.to_backend()", hooks.to_backend("cpu"), (a,)),
        Call("hooks.cotengra", hooks.cotengra, (), {"precision": lambda: "ieee", "promote": lambda: True}),
        Call("hooks.implementing", within, (), {"precision": lambda: "ieee", "promote": lambda: True}),
        Call("hooks.contract_tree", hooks.contract_tree, (tree, lambda: [a(), b()]), {
            "strip_exponent": lambda: False, "precision": lambda: "ieee", "memory_limit": lambda: "1MB",
        }),
    ]  # fmt: skip


def _of_states() -> list[Call]:
    tn = weft.tn
    state = partial(tn.MPS.random, 4, 2, 3)
    operator = partial(tn.ising, 4)
    gate = partial(tn.heisenberg_bond)
    cut: dict[str, Make] = {"max_bond": lambda: 4, "cutoff": lambda: 1e-9}
    kind: dict[str, Make] = {"dtype": lambda: torch.float64}
    return [
        Call("tn.MPS", tn.MPS, (lambda: [tensor(1, 2, 3), tensor(3, 2, 1)],), {"center": lambda: 0}),
        Call("tn.MPS.random", tn.MPS.random, (lambda: 4, lambda: 2, lambda: 3),
             {**kind, "device": lambda: "cpu", "seed": lambda: 0}),
        Call("tn.MPS.product", tn.MPS.product, (lambda: (0, 1), lambda: 2), {**kind, "device": lambda: "cpu"}),
        Call("tn.MPS.canonicalize", "canonicalize", (lambda: 1,), of=state),
        Call("tn.MPS.inner", "inner", (state,), of=state),
        Call("tn.MPS.expectation", "expectation", (operator,), {"site": lambda: None}, of=state),
        Call("tn.MPS.correlations", "correlations", (lambda: torch.eye(2), lambda: torch.eye(2)), of=state),
        Call("tn.MPS.entropy", "entropy", (lambda: 1,), of=state),
        Call("tn.MPS.sample", "sample", (lambda: 3,), {"seed": lambda: 0}, of=state),
        Call("tn.MPO.from_terms", tn.MPO.from_terms, (lambda: 3, lambda: [(1.0, {0: torch.eye(2)})]),
             {**kind, "extent": lambda: 2, "device": lambda: "cpu"}),
        Call("tn.MPO", tn.MPO, (lambda: [tensor(1, 2, 2, 3), tensor(3, 2, 2, 1)],)),
        Call("tn.MPO.to", "to", (lambda: torch.complex128,), of=operator),
        Call("tn.heisenberg", tn.heisenberg, (lambda: 3,), {**kind, "device": lambda: "cpu"}),
        Call("tn.heisenberg_bond", tn.heisenberg_bond, (lambda: 1.0,), kind),
        Call("tn.ising", tn.ising, (lambda: 3,), {**kind, "device": lambda: "cpu"}),
        Call("tn.ising_bonds", tn.ising_bonds, (lambda: 3,), kind),
        Call("tn.dmrg", tn.dmrg, (operator, state), {**cut, "sweeps": lambda: 1, "krylov": lambda: 2,
                                                     "tolerance": lambda: 0.0}, frozenset(("max_bond", "sweeps")),
             lasts=True),
        Call("tn.tebd", tn.tebd, (state, gate), {**cut, "step": lambda: -0.1, "steps": lambda: 1,
                                                 "normalize": lambda: True}, frozenset(("max_bond", "step", "steps")),
             lasts=True),
        Call("tn.split", tn.split, (a,), cut),
        Call("tn.two_site_update", tn.two_site_update, (lambda: tensor(2, 2, 3), lambda: tensor(3, 2, 2)), {
            **cut, "gate": lambda: None, "absorb": lambda: "both", "normalize": lambda: True,
        }),
        Call("tn.peps_norm", tn.peps_norm, (lambda: [[tensor(1, 1, 1, 1, 2)]],), cut),
    ]  # fmt: skip


def _of_ranks() -> list[Call]:
    distributed = weft.distributed
    blocked: dict[str, Make] = {
        "device": lambda: "cpu", "memory_limit": lambda: "1MB", "link": lambda: None, **TYPES, **FUNCTIONS,
    }  # fmt: skip
    two = (equation, a, b)
    in_blocks = partial(distributed.plan, "mk,kn->mn", a(), b(), device="cpu")
    return [
        Call("distributed.contract", distributed.contract, two,
             {**blocked, **FACTORS, "placements": lambda: {"a": "k"}, "group": lambda: None, "mesh": lambda: None,
              "timeout": lambda: 1.0, "validate": lambda: False}, frozenset(("device",))),
        Call("distributed.plan", distributed.plan, two,
             {**blocked, "c": d, "placements": lambda: None, "group": lambda: None, "mesh": lambda: None,
              "agree": lambda: True, "timeout": lambda: 1.0}, frozenset(("device",))),
        Call("distributed.plan()", "__call__", (a, b),
             {**FACTORS, "validate": lambda: False, "operands": lambda: {}}, of=in_blocks),
        Call("distributed.Link", distributed.Link, (lambda: "own", lambda: 1e-6, lambda: 1e9, lambda: "hand")),
        Call("distributed.Placement", distributed.Placement, (lambda: "k",)),
        Call("distributed.find_ranks", distributed.find_ranks, (), {}),
        Call("distributed.measure_link", distributed.measure_link, (), {}),
    ]


CALLS = _calls()
