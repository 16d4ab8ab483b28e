"""`Bilinear`: a form of two inputs for each feature of the result, as two contractions."""

from __future__ import annotations

import torch

from weft.api.contract import contract
from weft.nn.activations import Activation
from weft.nn.fused import Weighted, check_features
from weft.spec.arguments import reads
from weft.spec.type_names import DTypeLike


class Bilinear(Weighted):
    """``activation(x1 @ weight[o] @ x2 + bias[o])`` for each feature o: `torch.nn.Bilinear` with an activation.

    `x1` is (..., in1_features), `x2` (..., in2_features), the result (..., out_features); `weight` is (out_features,
    in1_features, in2_features), with torch's initial values. The longer of the two inputs is summed first, so that what
    lies between the two contractions, (..., out_features, the shorter), is small. `activation`, `device` and `dtype` as
    for `Linear`.

    >>> import torch, weft
    >>> weft.nn.Bilinear(3, 4, 5)(torch.rand(2, 3), torch.rand(2, 4)).shape
    torch.Size([2, 5])
    """

    @reads("nn.Bilinear.__init__")
    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        activation: Activation = None,
    ) -> None:
        super().__init__(activation)
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        shape = (out_features, in1_features, in2_features)
        self._hold(shape, shape[:1] if bias else None, in1_features, device, dtype)

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        for name, x, features in (("x1", x1, self.in1_features), ("x2", x2, self.in2_features)):
            check_features(name, x, features)
        operands = {} if self.bias is None else {"bias": ("o", self.bias)}
        if self.in1_features >= self.in2_features:
            between, last, other = contract("...i,oij->...oj", x1, self.weight), "...oj,...j->...o", x2
        else:
            between, last, other = contract("...j,oij->...oi", x2, self.weight), "...oi,...i->...o", x1
        found: torch.Tensor = contract(last, between, other, epilogue=self._epilogue, operands=operands)
        return found

    def extra_repr(self) -> str:
        features = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        text = f"{features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{text}{self._activation_text()}"
