"""Programs with parameters: exported, with and without dynamo, saved, loaded and run."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import weft

X, W, BIAS = torch.randn(5, 6), torch.randn(6, 7), torch.randn(7)
OFFSETS, LISTS = torch.tensor([0, 2, 5]), torch.randn(2, 6, 7)


def without_gradient(value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = value.abs()
    return value * scale


#: Calls of the page on compiled code, and each other kind of call: of x, and of the module, which has `w` and `bias`.
CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "contract": lambda own, x: weft.contract(
        "mk,kn->mn", x, own.w, operands={"bias": ("n", own.bias)}, epilogue=lambda s, bias: torch.relu(s + bias)
    ),
    "a function without gradients": lambda own, x: weft.contract("mk,kn->mn", x, own.w, epilogue=without_gradient),
    "c": lambda own, x: weft.contract("mk,kn->mn", x, own.w, c=own.bias.expand(5, 7), beta=2.0),
    "several": lambda own, x: weft.contract("mk,kn->mn", x, own.w, epilogue=lambda s: (s, s.exp())),
    "algebra": lambda own, x: weft.contract("mk,kn->mn", x, own.w, algebra="max_plus", return_arg=True),
    "matmul": lambda own, x: weft.matmul(x, own.w, epilogue=torch.tanh),
    "its own transpose": lambda own, x: weft.matmul(own.w, own.w.mT, epilogue=torch.tanh) + x.sum(),
    "einsum": lambda own, x: weft.einsum("mk,kn,n->m", x, own.w, own.bias),
    "tensordot": lambda own, x: weft.tensordot(x, own.w, 1),
    "permute": lambda own, x: weft.permute("kn->nk", own.w, fn=torch.exp) @ x.mT,
    "cascade": lambda own, x: weft.cascade("id,jd->ij, ij,je->ie", x, own.w.mT, own.w.mT, between=torch.relu),
}  # fmt: skip
#: Calls that are made between the graphs of dynamo, and so exported without it.
BETWEEN: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "reduce": lambda own, x: weft.contract("mk,kn->mn", x, own.w, reduce={"peak": ("m", "max")}),
    "ragged": lambda own, x: weft.contract("bjd,bde->bje", x, own.w.expand(2, 6, 7), ragged={"j": [0, 2, 5]}),
    "network": lambda own, x: weft.network("ab,bc,c->a", x, own.w, own.bias)(x, own.w, own.bias),
    "factor": lambda own, x: weft.contract("mk,kn->mn", x, own.w, alpha=own.bias[0]),
}
LAYERS = {
    "Linear": lambda: weft.nn.Linear(6, 7, activation="relu"),
    "GatedLinear": lambda: weft.nn.GatedLinear(6, 7),
    "Einsum": lambda: weft.nn.Einsum("bi,oi->bo", (7, 6), "o", activation="gelu"),
    "Attention": lambda: torch.nn.Sequential(torch.nn.Unflatten(0, (1, 5)), weft.nn.Attention(6, 2)),
}


class Module(torch.nn.Module):
    def __init__(self, call: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.call, self.w, self.bias = call, torch.nn.Parameter(W.clone()), torch.nn.Parameter(BIAS.clone())

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self, x)


def loaded(module: torch.nn.Module, strict: bool) -> torch.nn.Module:
    program, file = torch.export.export(module, (X,), strict=strict), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_parameters_is_loaded_as_it_was_saved(name: str, strict: bool) -> None:
    module = Module(CALLS[name])
    found = loaded(module, strict)
    torch.testing.assert_close(found(X), module(X))
    with torch.no_grad():  # a parameter stays one
        module.w.mul_(2)
        found.w.mul_(2)
    torch.testing.assert_close(found(X), module(X))


@pytest.mark.parametrize("name", BETWEEN)
def test_a_call_between_graphs_is_exported_without_dynamo(name: str) -> None:
    module = Module(BETWEEN[name])
    torch.testing.assert_close(loaded(module, False)(X), module(X))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_loaded_as_it_was_saved(name: str, strict: bool) -> None:
    module = LAYERS[name]()
    torch.testing.assert_close(loaded(module, strict)(X), module(X))


def test_changes_of_torchs_gradient_mode_are_not_written_down() -> None:
    """Within the source only `grad_mode` changes it: torch's own words are recorded by its tracers."""
    words = re.compile(r"with .*torch\.(no_grad|enable_grad|set_grad_enabled|inference_mode)\(")
    found = {path.name for path in Path(weft.__file__).parent.rglob("*.py") if words.search(path.read_text())}
    assert found == {"arrays.py"}  # inference mode, which is not


def test_offsets_without_values_are_named() -> None:
    class Lists(torch.nn.Module):
        def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return weft.contract("bjd,bde->bje", x, LISTS, ragged={"j": offsets})

    with pytest.raises(weft.UnsupportedError, match="offsets of 'j' have no values while torch traces"):
        torch.export.export(Lists(), (X, OFFSETS), strict=False)
    with pytest.raises(weft.UnsupportedError, match="pass them as a list of numbers"):
        torch.func.vmap(Lists(), (None, 0))(X, OFFSETS[None])
