"""Layers of one weight: `Linear`, `Bilinear` and `Einsum`, with product, scale, bias and activation in one kernel.

`GatedLinear` is two products of one input, one as the gate of the other (SwiGLU and its kin): N. Shazeer, *GLU Variants
Improve Transformer*, 2020, arXiv:2002.05202.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch.nn.functional import linear

from weft import functions
from weft.api.contract import contract
from weft.api.keywords import is_cast
from weft.base.arrays import is_transforming
from weft.base.batched import each_of_batch
from weft.base.dispatch import is_dynamo_compiling
from weft.errors import DTypeError, NotationError, ShapeError
from weft.nn.fused import Activation, Function, Fused, Weighted, check_features, empty, finish, parameter_type, uniform
from weft.spec import parse
from weft.spec.arguments import reads
from weft.spec.dtypes import FP8, DTypeLike, dtype_name, read_dtype
from weft.spec.notation import term_text

_PAIRS = (torch.float32, torch.float64)  # of which there are complex numbers


class Linear(Weighted):
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
        self.register_buffer("scale", None)
        self.scale: torch.Tensor | None
        self._hold((out_features, in_features), (out_features,) if bias else None, in_features, device, dtype)
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, scale = self.weight, self.bias, self.scale
        if scale is None and self._is_torchs(x, weight.shape[-1], weight, bias):
            return self._activated(linear(x, weight, bias))
        check_features("x", x, weight.shape[-1])
        if scale is not None and self._is_by_blocks(x):
            sums = _by_blocks(x.reshape(-1, weight.shape[1]), weight).view(*x.shape[:-1], weight.shape[0])
            return self._activated(sums * scale if bias is None else torch.addcmul(bias, sums, scale))
        operands: dict[str, tuple[str, torch.Tensor]] = {}
        if self.bias is not None:
            operands["bias"] = ("n", self.bias)
        options: dict[str, Any] = {}
        if self.scale is not None:
            operands["scale"] = ("n", self.scale)
            options = {"promote": True, "out_dtype": x.dtype}
        return contract("...k,nk->...n", x, self.weight, epilogue=self._epilogue, operands=operands, **options)

    def _is_by_blocks(self, x: torch.Tensor) -> bool:
        """Whether a weight of eight bits is multiplied by blocks: in float32 on a CPU, outside of compiled code."""
        weight = self.weight
        if is_dynamo_compiling() or is_transforming() or not weight.is_cpu or not weight.numel():
            return False
        return self._is_torchs(x, weight.shape[1], self.scale, self.bias)  # the scale is of float32

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        kind = f", weight_dtype={dtype_name(self.weight.dtype)}" if self.scale is not None else ""
        return f"{text}{self._activation_text()}{kind}"

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


BLOCK = 1 << 20  # bytes of converted weights that stay in the caches while they are multiplied


class _ByBlocks(torch.autograd.Function):
    """``x @ weight.T`` of a weight in eight bits, which is converted a block of rows at a time. It has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        found = x.new_empty(x.shape[0], weight.shape[0])
        for rows, block in _blocks(weight, x.dtype):
            torch.mm(x, block.t(), out=found[:, rows])
        return found

    @staticmethod
    @each_of_batch
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated in its turn
            return torch.mm(grad, weight.to(grad.dtype)), None
        found = grad.new_zeros(grad.shape[0], weight.shape[1])
        for rows, block in _blocks(weight, grad.dtype):
            found.addmm_(grad[:, rows], block)
        return found, None


_by_blocks: Any = super(torch.autograd.Function, _ByBlocks).apply


def _blocks(weight: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of rows, converted in one place after the other."""
    rows, columns = weight.shape
    step = max(32, BLOCK // (columns * dtype.itemsize))
    place = torch.empty(min(step, rows), columns, dtype=dtype, device="cpu")
    for start in range(0, rows, step):
        block = place[: min(step, rows - start)]
        block.copy_(weight[start : start + step])
        yield slice(start, start + step), block


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
        return contract(last, between, other, epilogue=self._epilogue, operands=operands)

    def extra_repr(self) -> str:
        features = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        text = f"{features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{text}{self._activation_text()}"


class Einsum(Weighted):
    """``activation(einsum(equation, x, weight) + bias)``: a linear layer over any modes.

    `equation` is einsum text of two operands, the second of which is the weight, of shape `shape`: attention's
    projection onto heads is ``Einsum("bse,hde->bhsd", (heads, width, embedding), bias="hd")``. `bias`: the modes of the
    bias, some of the result's that the weight has, or None. Initial values are uniform within ``1 / sqrt(fan_in)``;
    `fan_in` is the product of the weight's extents that are summed. `activation`, `device` and `dtype` as for `Linear`.

    Raises `NotationError` for an equation of another number of operands, or a bias along a mode that the result or the
    weight lacks, `ShapeError` for a shape of another rank than the weight's modes.

    >>> import torch, weft
    >>> layer = weft.nn.Einsum("bse,hde->bhsd", (4, 8, 32), bias="hd")
    >>> layer(torch.rand(2, 5, 32)).shape
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
        return contract(self.equation, x, self.weight, epilogue=self._epilogue, operands=operands)

    def extra_repr(self) -> str:
        bias = f", bias={self.bias_modes!r}" if self.bias is not None else ""
        return f"{self.equation!r}, {tuple(self.weight.shape)}{bias}{self._activation_text()}"


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
            return {"_first": sums, "_second": _gate_of_parts(self._biased, function), "_gate": function}
        return {"_first": finish(False, self._biased, None), "_second": _gate(self._biased, function)}


def _gate(biased: bool, function: Function | None) -> Function:
    """The sum, its bias added, times the activation of `gate`, which is converted to the type of sums first."""

    def gated(total: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        gate = gate.to(total.dtype)
        return total * (function(gate) if function is not None else gate)

    return functions.chain(functions.bias, gated) if biased else gated


def _gate_of_parts(biased: bool, function: Function | None) -> Function:
    """The function of a complex sum whose real part is the gate."""

    def gated(total: torch.Tensor) -> torch.Tensor:
        return total.imag * (function(total.real) if function is not None else total.real)

    return functions.chain(functions.bias, gated) if biased else gated
