"""`torch.ops.weft`: the operations, what they do, and what torch is told of their results.

`contract(call, tensors, alpha, beta)` has A, B, C where there is one, and the operands of functions among its tensors;
`call` is the text of `weft.compiled.text`. It returns all results. `contract_out` writes them.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.compiled.moves import read_move
from weft.compiled.running import running
from weft.compiled.text import read
from weft.planner.schedule import Scalar

_TENSORS = "str call, Tensor[] tensors, Scalar alpha, Scalar beta"
_SCHEMAS = {
    "contract": f"({_TENSORS}) -> Tensor[]",
    "contract_out": f"({_TENSORS}, Tensor(a!)[] out) -> ()",
    "permute": f"({_TENSORS}, SymInt[] extents) -> Tensor",
    "permute_out": f"({_TENSORS}, SymInt[] extents, Tensor(a!) out) -> ()",
}
_TAGS = (torch.Tag.pt2_compliant_tag,)

library = torch.library.Library("weft", "DEF")


def _contract(call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar) -> list[torch.Tensor]:
    return running(call)(tensors, alpha, beta, None)


def _contract_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: list[torch.Tensor]
) -> None:
    running(call)(tensors, alpha, beta, tuple(out))


def _fake_contract(call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar) -> list[torch.Tensor]:
    return read(call).results(tensors)


def _fake_contract_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, out: list[torch.Tensor]
) -> None:
    read(call).check_out(tensors, out)


def _permute(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
) -> torch.Tensor:
    return read_move(call).run(tensors, alpha, beta, extents, None)


def _permute_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor
) -> None:
    read_move(call).run(tensors, alpha, beta, extents, out)


def _fake_permute(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int]
) -> torch.Tensor:
    return read_move(call).result(tensors, extents)


def _fake_permute_out(
    call: str, tensors: list[torch.Tensor], alpha: Scalar, beta: Scalar, extents: list[int], out: torch.Tensor
) -> None:
    read_move(call).check_out(tensors, extents, out)


_BODIES: dict[str, tuple[Any, Any]] = {
    "contract": (_contract, _fake_contract),
    "contract_out": (_contract_out, _fake_contract_out),
    "permute": (_permute, _fake_permute),
    "permute_out": (_permute_out, _fake_permute_out),
}

for _name, (_body, _fake) in _BODIES.items():
    library.define(_name + _SCHEMAS[_name], tags=_TAGS)
    library.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake, lib=library)

CONTRACT = torch.ops.weft.contract.default
CONTRACT_OUT = torch.ops.weft.contract_out.default
PERMUTE = torch.ops.weft.permute.default
PERMUTE_OUT = torch.ops.weft.permute_out.default
