"""`GatedLinear`: two products of one input, one as the gate of the other (SwiGLU and its kin).

N. Shazeer, *GLU Variants Improve Transformer*, 2020, arXiv:2002.05202.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from weft.api.contract import contract
from weft.api.keywords import is_cast
from weft.errors import DTypeError
from weft.nn.fused import (
    Activation,
    Function,
    Fused,
    check_features,
    empty,
    finish,
    gate,
    gate_of_parts,
    parameter_type,
    uniform,
)
from weft.spec.arguments import reads
from weft.spec.dtypes import dtype_name
from weft.spec.type_names import DTypeLike

_PAIRS = (torch.float32, torch.float64)  # of which there are complex numbers


class GatedLinear(Fused):
    """``activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias)``: SwiGLU with "silu", GEGLU with "gelu", and so on.

    `x` is (..., in_features), the result (..., out_features). Parameters: `gate` and `up`, (out_features, in_features)
    each, and where `bias` asks for them `gate_bias` and `up_bias`; initial values as for `Linear`. Two kernels run: the
    product with `gate`, and the product with `up`, whose epilogue reads the first and applies activation and gate.

    `interleaved`: gate and up lie together, as real and imaginary parts of one weight, (out_features, in_features, 2),
    with `bias` (out_features, 2). One kernel then reads `x` once, multiplies it with complex numbers, and gates the
    parts of each sum. There are no complex numbers of half precision: of float16 and bfloat16 both products are one,
    which reads `x` once, and a pass over its sums gates them; so it is within `torch.autocast`.

    >>> import torch, weft
    >>> weft.nn.GatedLinear(16, 64)(torch.rand(2, 16)).shape
    torch.Size([2, 64])
    """

    @reads("nn.GatedLinear.__init__")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        activation: Activation = "silu",
        interleaved: bool = False,
    ) -> None:
        super().__init__(activation)
        self.in_features, self.out_features, self.interleaved = in_features, out_features, interleaved
        kind = parameter_type(dtype)
        if interleaved and kind not in (*_PAIRS, torch.float16, torch.bfloat16):
            raise DTypeError(f"interleaved weights are pairs of floating numbers, not of {dtype_name(kind)}")
        for name in ("weight",) if interleaved else ("gate", "up"):
            last = (2,) if interleaved else ()
            shape, of_bias = (out_features, in_features, *last), (out_features, *last)
            self.register_parameter(name, torch.nn.Parameter(empty(shape, device, kind)))
            beside = torch.nn.Parameter(empty(of_bias, device, kind)) if bias else None
            self.register_parameter("bias" if interleaved else f"{name}_bias", beside)
        self._biased = bias
        self.reset_parameters()
        self._fuse()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        for parameter in self.parameters():
            uniform(parameter, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.interleaved:
            return self.product(x, self.gate, self.up, self.gate_bias, self.up_bias)
        check_features("x", x, self.weight.shape[1])
        if self.weight.dtype not in _PAIRS or is_cast(x, self.weight):
            operands = {"bias": ("np", self.bias)} if self._biased else {}
            sums = contract("...k,nkp->...np", x, self.weight, epilogue=self._first, operands=operands)
            return contract("...n,...n->...n", sums[..., 0], sums[..., 1], a_fn=self._gate)
        beside = {"bias": ("n", torch.view_as_complex(self.bias))} if self._biased else {}
        weight = torch.view_as_complex(self.weight)
        return contract("...k,nk->...n", x, weight, epilogue=self._second, operands=beside, out_dtype=x.dtype)

    def product(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """The layer with these weights in the place of its own (not of an interleaved one).

        `options` are keywords of `weft.contract` for both products, `specialize` say.
        """
        if not options and self._is_torchs(x, gate.shape[-1], gate, up, gate_bias, up_bias):
            return self._activated(linear(x, gate, gate_bias)) * linear(x, up, up_bias)
        check_features("x", x, gate.shape[-1])
        beside = {} if gate_bias is None else {"bias": ("n", gate_bias)}
        first = contract("...k,nk->...n", x, gate, epilogue=self._first, operands=beside, **options)
        operands = {"gate": ("...n", first)}
        if up_bias is not None:
            operands["bias"] = ("n", up_bias)
        return contract("...k,nk->...n", x, up, epilogue=self._second, operands=operands, **options)

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self._biased}"
        return f"{text}{self._activation_text()}{', interleaved=True' if self.interleaved else ''}"

    gate: torch.Tensor
    up: torch.Tensor
    gate_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    weight: torch.Tensor
    bias: torch.Tensor
    _first: Function | None
    _second: Function | None
    _gate: Function | None

    def _functions(self, function: Function | None) -> dict[str, Function | None]:
        if self.interleaved:
            sums = finish(False, self._biased, None)
            return {"_first": sums, "_second": gate_of_parts(self._biased, function), "_gate": function}
        return {"_first": finish(False, self._biased, None), "_second": gate(self._biased, function)}
