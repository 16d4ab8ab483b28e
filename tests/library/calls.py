"""Calls of torch's operations by the library's families, run on a device and held against the oracle."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import weft
from weft import reference
from weft.algebra import find
from weft.library import family, permutations, products
from weft.oracle.bounds import error_bound
from weft.oracle.judgement import judged
from weft.planner.options import Options, read_indices, read_operands
from weft.planner.planner import Choice
from weft.planner.request import HOOKS
from weft.planner.schedule import Target
from weft.planner.target import target_of
from weft.plans.resolving import resolved
from weft.spec import Contraction, Layout, parse
from weft.testing import poisoned, random_operand

DEVICES = [
    "cpu",
    "stand-in",
    pytest.param("cuda", marks=[
        pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    ]),
]  # fmt: skip
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, EIGHTH = torch.complex64, torch.float8_e4m3fn
SIZES = {"a": 3, "b": 2, "c": 5, "d": 4, "i": 6, "k": 33, "l": 3, "m": 17, "n": 9, "o": 2, "p": 1}

on_each = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def without_halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("device") == "stand-in":
        monkeypatch.setattr(products, "_HALVES", ())


def target_for(device: str) -> Target:
    if device == "stand-in":
        return Target("cuda", name="NVIDIA H100 80GB HBM3", capability=90, processors=132)
    return target_of("cpu" if device == "cpu" else "triton", torch.device(device))


def place_of(device: str) -> str:
    return "cuda" if device == "cuda" else "cpu"


class Call(NamedTuple):
    """A call of `weft.contract`, its operands on the CPU."""

    equation: str
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    alpha: Any = 1
    beta: Any = 1
    layout: str = "contiguous"  # of D
    options: Any = None


def case(equation: str, extents: dict[str, int], dtype: Any = SINGLE, dtype_b: Any = None, **given: Any) -> Call:
    """Random operands of the terms of an equation; `layouts` are those of A and B, `add` has C as well."""
    terms, output = equation.split("->")
    layouts = given.pop("layouts", ("contiguous", "contiguous"))
    types = dtype, dtype_b or dtype
    a, b = (
        random_operand([extents[label] for label in term], of, seed, layout=layout, integers=_whole(of))
        for seed, (term, of, layout) in enumerate(zip(terms.split(","), types, layouts, strict=True))
    )
    c = None
    if (of_c := given.pop("add", None)) is not None:
        c = random_operand([extents[label] for label in output], of_c, 7, integers=_whole(of_c))
    options = {name: value for name, value in given.items() if name not in Call._fields}
    return Call(equation, a, b, c, **{name: given[name] for name in given if name in Call._fields}, options=options)


def _whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def moved(value: Any, device: str) -> Any:
    """A tensor on a device, strides kept; a mapping of operands too."""
    if isinstance(value, torch.Tensor) and value.numel():
        reach = 1 + sum(step * (extent - 1) for step, extent in zip(value.stride(), value.shape, strict=True))
        memory = value.as_strided((reach,), (1,)).to(place_of(device), copy=True)  # elements may be one another
        return memory.as_strided(value.shape, value.stride())
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=place_of(device))
    if isinstance(value, dict):
        return {name: (modes, moved(tensor, device)) for name, (modes, tensor) in value.items()}
    return value


class Run(NamedTuple):
    """A call as this family serves it: its description, its choice, and tensors on a device."""

    contraction: Contraction
    choice: Choice
    results: list[torch.Tensor]


def run(call: Call, device: str, limit: int | None = None, times: int = 1) -> Run:
    """The call into poisoned memory, with guards around it."""
    given = dict(call.options or {})
    operands, indices = given.pop("operands", {}), given.pop("indices", {})
    a, b, c = (moved(each, device) for each in (call.a, call.b, call.c))
    beside = moved(operands, device)
    options = Options(
        functions=tuple(given.pop(hook, None) for hook in HOOKS), operands=read_operands(beside),
        indices=read_indices(indices), algebra=find(given.pop("algebra", "plus_times")), backend="reference", **given,
    )  # fmt: skip
    request = resolved(parse(call.equation), call.equation, a, b, options)
    extents = request.extents
    shape = [extents[label] for label in request.notation.output]
    dtypes = (request.d_dtype, *(request.outputs or ()))
    places = [poisoned(shape, dtype, layout=call.layout, device=place_of(device)) for dtype in dtypes]
    layouts = [Layout.of(place.tensor) for place in places]
    contraction = request.contraction(Layout.of(c) if c is not None else None, layouts[0], tuple(layouts[1:]))
    target = target_for(device)
    choice = family.choice(contraction, "cpu" if device == "cpu" else "triton", target, limit)
    assert not isinstance(choice, str), choice
    named = (each.name for each in contraction.aux if each.kind != "output")
    d, *others = (place.tensor for place in places)
    aux = (*(beside[name][1] if name in beside else None for name in named), *others)
    launch = choice.build()
    for _ in range(times):
        launch(a, b, c, d, call.alpha, call.beta, aux)
    for place in places:
        place.check_guards()
    return Run(contraction, choice, [d, *others])


def check(call: Call, device: str, limit: int | None = None, times: int = 1) -> Run:
    """The call, and further ones of the same launch, right within the oracle's bounds."""
    found = run(call, device, limit, times)
    options = {name: value for name, value in (call.options or {}).items() if name != "promote"}
    added = {} if call.c is None else {"c": call.c, "beta": call.beta}
    scaled = {} if call.alpha == 1 else {"alpha": call.alpha}
    exact = reference.contract(call.equation, call.a, call.b, **added, **scaled, **_wide(options))
    bounds = error_bound(call.equation, call.a, call.b, **added, **scaled, **(call.options or {}))
    exact, bounds = ([each] if isinstance(each, torch.Tensor) else list(each) for each in (exact, bounds))
    for result, wanted, bound in zip(found.results, exact, bounds, strict=True):
        if not result.dtype.is_floating_point and not result.dtype.is_complex:
            assert torch.equal(result.cpu(), wanted.to(result.dtype))
        else:
            verdict = judged(result.cpu(), wanted, bound)
            assert verdict.right, f"{verdict} {found.choice.best.schedule}"
    return found


def _wide(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "out_dtype"}


def check_permutation(
    x: torch.Tensor, equation: str, options: dict[str, Any], device: str, *, apart: bool = False
) -> None:
    """`apart`: what is added lies elsewhere than the result."""
    extents = {"d": 3} if "d" in equation else {}
    there = moved(x, device)
    old = reference.permute(equation, x, extents=extents)
    old = random_operand(old.shape, x.dtype, 4)
    added = {"out": moved(old, device)} if "beta" in options else {}
    plan = weft.plan_permute(there, equation, extents=extents, backend="reference", **options, **added)
    target = target_for(device)
    choice = permutations.choice(plan.permutation, "cpu", target)
    assert not isinstance(choice, str)
    added_to = added and not apart
    d = moved(old, device) if added_to else poisoned(old.shape, x.dtype, device=place_of(device)).tensor
    c = None if not added else d if added_to else moved(old, device)
    choice.build()(there, c, d, options.get("alpha", 1), options.get("beta", 0))
    wanted = reference.permute(equation, x, extents=extents, **options, **({"out": old.clone()} if added else {}))
    assert torch.allclose(d.cpu(), wanted.to(x.dtype), rtol=2e-3 if dtype_is_half(x) else 1e-6)


def dtype_is_half(x: torch.Tensor) -> bool:
    return x.dtype in (HALF, BRAIN)
