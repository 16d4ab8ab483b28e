"""`Einsum`: any contraction with a weight, its bias and activation fused."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from weft.api.contract import contract
from weft.errors import NotationError, ShapeError
from weft.nn.activations import Activation
from weft.nn.fused import Weighted
from weft.spec import parse
from weft.spec.arguments import reads
from weft.spec.notation import term_text
from weft.spec.type_names import DTypeLike


class Einsum(Weighted):
    """``activation(einsum(equation, x, weight) + bias)``: a linear layer over any modes.

    `equation` is einsum text of two operands, the second of which is the weight, of shape `shape`: attention's
    projection onto heads is ``Einsum("bse,hde->bhsd", (heads, width, embedding), bias="hd")``. `bias`: the modes of the
    bias, some of the result's that the weight has, or None. Initial values are uniform within ``1 / sqrt(fan_in)``;
    `fan_in` is the product of the weight's extents that are summed. `activation`, `device` and `dtype` as for `Linear`.

    Raises `NotationError` for an equation of another number of operands, or a bias along a mode that the result or the
    weight lacks, `ShapeError` for a shape of another rank than the weight's modes.

    >>> import torch, weft
    >>> weft.nn.Einsum("bse,hde->bhsd", (4, 8, 32), bias="hd")(torch.rand(2, 5, 32)).shape
    torch.Size([2, 4, 5, 8])
    """

    @reads("nn.Einsum.__init__")
    def __init__(
        self,
        equation: str,
        shape: Sequence[int],
        bias: str | None = None,
        device: torch.device | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        activation: Activation = None,
    ) -> None:
        super().__init__(activation)
        self.equation, self.bias_modes = equation, bias
        notation = parse(equation)
        if len(notation.inputs) != 2:
            count = len(notation.inputs)
            raise NotationError(f"the equation of x and a weight names two operands, '{equation}' {count}")
        term = notation.inputs[1]
        if Ellipsis in term or len(term) != len(shape):
            raise ShapeError(f"the weight of shape {tuple(shape)} has not the modes '{term_text(term)}'")
        extents = dict(zip(term, shape, strict=True))
        for label in bias or "":
            if label not in extents or label not in notation.output:
                raise NotationError(f"the bias along '{bias}' needs '{label}' in the weight and in the result")
        fan_in = math.prod(extent for label, extent in extents.items() if label not in notation.output)
        self._hold(shape, None if bias is None else [extents[label] for label in bias], fan_in, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operands = {} if self.bias is None else {"bias": (self.bias_modes, self.bias)}
        found: torch.Tensor = contract(self.equation, x, self.weight, epilogue=self._epilogue, operands=operands)
        return found

    def extra_repr(self) -> str:
        bias = f", bias={self.bias_modes!r}" if self.bias is not None else ""
        return f"{self.equation!r}, {tuple(self.weight.shape)}{bias}{self._activation_text()}"
