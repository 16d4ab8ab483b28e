"""`Linear`: product, scale, bias and activation in one kernel."""

from __future__ import annotations

from typing import Any, Self

import torch

from weft.api.contract import contract
from weft.errors import DTypeError
from weft.nn.activations import Activation, Function, finish
from weft.nn.fused import Fused, empty, parameter_type, uniform
from weft.spec.arguments import reads
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.type_names import DTypeLike, read_dtype


class Linear(Fused):
    """``activation(x @ weight.T + bias)``: `torch.nn.Linear` with an activation that costs no pass over memory.

    `x` is (..., in_features), the result (..., out_features). `weight` is (out_features, in_features), `bias`
    (out_features,): as in torch, with torch's initial values (uniform within ``1 / sqrt(in_features)``). `activation`
    is a name (``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"tanh"``, ...), a function of torch operations, or
    None.

    `weight_dtype`: ``"int8"`` or an fp8 type keeps the weight in 8 bits, as a buffer, with a factor for each row,
    `scale` (float32); both are converted as they are read. Such a weight is not trained. `quantized` makes such a layer
    of another one. `device` and `dtype` are those of the parameters.

    Raises `ArgumentError` for an activation that nobody knows, `DTypeError` for another `weight_dtype`.

    >>> import torch, weft
    >>> weft.nn.Linear(3, 5, activation="silu")
    Linear(in_features=3, out_features=5, bias=True, activation='silu')
    """

    @reads("nn.Linear.__init__")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: DTypeLike | None = None,
        *,
        activation: Activation = None,
        weight_dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(activation)
        self.in_features, self.out_features = in_features, out_features
        kind = parameter_type(dtype)
        weight = empty((out_features, in_features), device, kind)
        self.weight: torch.Tensor = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(empty((out_features,), device, kind)) if bias else None
        self.register_buffer("scale", None)
        self.scale: torch.Tensor | None
        self.reset_parameters()
        if weight_dtype is not None:
            self._quantize(read_dtype("weight_dtype", weight_dtype))
        self._fuse()

    @classmethod
    @reads("nn.Linear.of")
    def of(cls, layer: torch.nn.Linear, activation: Activation = None) -> Self:
        """The layer over the parameters of one of torch's: they are shared, and trained together."""
        found = cls(layer.in_features, layer.out_features, layer.bias is not None, "meta", activation=activation)
        found.weight, found.bias = layer.weight, layer.bias
        return found

    @reads("nn.Linear.quantized")
    def quantized(self, dtype: DTypeLike = torch.int8) -> Self:
        """A layer of its own with this one's weight in 8 bits, each row scaled to use them all."""
        found = type(self)(self.in_features, self.out_features, False, "meta", activation=self.activation)
        found.weight = torch.nn.Parameter(self.weight.detach())
        found.bias = None if self.bias is None else torch.nn.Parameter(self.bias.detach().clone())
        found._quantize(read_dtype("dtype", dtype))
        found._fuse()
        return found.train(self.training)

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        uniform(self.weight, self.in_features)
        uniform(self.bias, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operands: dict[str, tuple[str, torch.Tensor]] = {}
        if self.bias is not None:
            operands["bias"] = ("n", self.bias)
        options: dict[str, Any] = {}
        if self.scale is not None:
            operands["scale"] = ("n", self.scale)
            options = {"promote": True, "out_dtype": x.dtype}
        found: torch.Tensor = contract(
            "...k,nk->...n", x, self.weight, epilogue=self._epilogue, operands=operands, **options
        )
        return found

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        kind = f", weight_dtype={dtype_name(self.weight.dtype)}" if self.scale is not None else ""
        return f"{text}{self._activation_text()}{kind}"

    _epilogue: Function | None

    def _functions(self, function: Function | None) -> dict[str, Function | None]:
        return {"_epilogue": finish(self.scale is not None, self.bias is not None, function)}

    def _quantize(self, dtype: torch.dtype) -> None:
        if dtype is not torch.int8 and dtype not in FP8:
            raise DTypeError(f"a weight is kept in int8 or an 8-bit floating type, not in {dtype_name(dtype)}")
        weight = self.weight.detach().float()
        largest = torch.finfo(dtype).max if dtype in FP8 else torch.iinfo(dtype).max
        scale = weight.abs().amax(1) / largest
        scaled = weight / torch.where(scale == 0, 1, scale)[:, None]
        del self.weight
        self.register_buffer("weight", (scaled if dtype in FP8 else scaled.round()).to(dtype))
        self.scale = scale
