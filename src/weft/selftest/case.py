"""A case: one contraction, or one permutation, with everything that a call needs but the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from weft.algebra import NAMED, Algebra
from weft.errors import UnsupportedError
from weft.spec.contraction import mode_extents, output_shape
from weft.spec.dtypes import FP8
from weft.spec.notation import Label, Notation, expand, from_sequences, parse
from weft.testing import random_operand

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softplus": functional.softplus,
    "hardtanh": functional.hardtanh,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "exp": torch.exp,
    "log": lambda x: torch.log(1 + x * x),
    "sqrt": lambda x: torch.sqrt(torch.abs(x)),
    "rsqrt": lambda x: torch.rsqrt(1 + x * x),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "pow": lambda x: x**3,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "round": torch.round,
    "clamp": lambda x: torch.clamp(x, -1, 2),
    "where": lambda x: torch.where(x > 0, x, -0.5),
    "minmax": lambda x: torch.minimum(torch.maximum(x, -x), x + 2),
    "affine": lambda x: 2 * x + 1,  # not 0 at 0: masked lanes must not count
    "divide": lambda x: (x - 1) / (x * x + 2),
    "half": lambda x: x.to(torch.float16).to(torch.float32),
    "double_it": lambda x: x + x,
    "modulus": lambda x: (x * x.conj()).real,
}

#: What an operand of the epilogue does to the value, by its name.
WITH_C: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"bias": torch.add, "scale": torch.mul}

#: Algebras by name, as `weft.contract` takes them. "log_direct" is the logarithm's algebra as anybody would write it
#: down: weft does not recognise "log" in it, which has a way of its own through matrix products.
ALGEBRAS: dict[str, str | Algebra] = {
    **{name: name for name in NAMED},
    "log_direct": Algebra(lambda x, y: y + x, torch.logaddexp, "lowest", "log_direct"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One contraction with everything that a call needs but the values."""

    name: str
    equation: str | tuple[tuple[Label, ...], ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of A and B
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = (torch.float32, torch.float32, torch.float32)  # of A, B, D
    precision: str | torch.dtype | None = None
    accumulate: torch.dtype | None = None
    a_fn: str | None = None  # functions by their names in FUNCTIONS
    b_fn: str | None = None
    c_fn: str | None = None
    epilogue: str | None = None
    alpha: float | complex = 1.0
    beta: float | complex = 1.0
    add: bool = False  # whether there is a C, of D's type
    c_ones: tuple[int, ...] = ()  # dimensions along which C has extent 1
    c_as: str = ""  # an operand of the epilogue that C is there: "bias" is added, "scale" multiplies; empty: the addend
    algebra: str = "plus_times"  # by its name in ALGEBRAS
    conjugate: tuple[bool, bool] = (False, False)
    layouts: tuple[str, str, str, str] = ("contiguous",) * 4  # of A, B, C, D: weft.testing.LAYOUTS
    tags: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name

    @property
    def notation(self) -> Notation:
        """The equation with every ellipsis spelled out."""
        read = parse(self.equation) if isinstance(self.equation, str) else from_sequences(*self.equation)
        return expand(read, [len(shape) for shape in self.shapes])

    @property
    def extents(self) -> dict[Label, int]:
        """Extent of each label in D, or in the sum."""
        return mode_extents(self.notation, self.shapes)

    @property
    def d_shape(self) -> tuple[int, ...]:
        return output_shape(self.notation, self.extents)

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return math.prod(self.extents.values())

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `weft.contract` for this case, but for `c` and `out`; C is the addend."""
        options: dict[str, Any] = {"out_dtype": self.dtypes[2], "precision": self.precision}
        options["accumulate"] = self.accumulate
        options["alpha"], options["beta"] = self.alpha, self.beta if self.add else None
        for hook in ("a_fn", "b_fn", "c_fn", "epilogue"):
            name = getattr(self, hook)
            options[hook] = FUNCTIONS[name] if name else None
        if self.algebra != "plus_times":
            options["algebra"] = ALGEBRAS[self.algebra]
        a, b = self.dtypes[:2]
        if a != b and not (a.is_complex or b.is_complex or (a in FP8 and b in FP8)):
            options["promote"] = True
        return options

    def with_operand(self, c: torch.Tensor) -> dict[str, Any]:
        """The options, C an operand of the epilogue by the name `c_as`. `UnsupportedError` for another name."""
        if self.c_as not in WITH_C:
            raise UnsupportedError(f"the epilogue's operand is called 'bias' or 'scale', not '{self.c_as}'")
        options = self.options()
        options["epilogue"] = _joined(self.c_as, options["epilogue"])
        options["operands"] = {self.c_as: (self.notation.output, c)}
        return options


def _joined(name: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    """An epilogue that takes the operand called `name` before `function`."""

    def with_bias(value: Any, bias: Any) -> Any:
        return function(value + bias) if function else value + bias

    def with_scale(value: Any, scale: Any) -> Any:
        return function(value * scale) if function else value * scale

    return with_bias if name == "bias" else with_scale


class CaseOperands(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None


def operands(case: Case, *, device: torch.device | str = "cpu", seed: int = 0, integers: bool = False) -> CaseOperands:
    """Random tensors for `case`, laid out as it says; the same for the same `seed` and device."""
    tensors = [
        random_operand(shape, dtype, 3 * seed + at, integers=integers, layout=layout, device=device)
        for at, (shape, dtype, layout) in enumerate(
            zip((*case.shapes, _c_shape(case)), case.dtypes, case.layouts[:3], strict=True)
        )
    ]
    a, b = (x.conj() if flag else x for x, flag in zip(tensors, case.conjugate, strict=False))
    return CaseOperands(a, b, tensors[2] if case.add else None)


def from_letters(name: str, equation: str, tags: str = "", **given: Any) -> Case:
    """A case from the extents of its letters, e.g. ``m=5, k=3``; every longer keyword is a field of `Case`.

    `shapes`, where given, overrides what the extents say; `tags` are separated by spaces.
    """
    extents = {key: value for key, value in given.items() if len(key) == 1}
    fields = {key: value for key, value in given.items() if len(key) > 1}
    if "shapes" not in fields:
        a, b = (tuple(extents[str(label)] for label in term) for term in parse(equation).inputs)
        fields["shapes"] = (a, b)
    return Case(name, equation, tags=frozenset(tags.split()), **fields)


def _c_shape(case: Case) -> tuple[int, ...]:
    return tuple(1 if at in case.c_ones else extent for at, extent in enumerate(case.d_shape))


@dataclass(frozen=True, slots=True)
class PermuteCase:
    """One permutation of a contiguous tensor. In the suites nothing repeats and nothing is left out."""

    name: str
    equation: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    tags: frozenset[str] = frozenset()
    fn: str | None = None  # a function by its name in `FUNCTIONS`
    out_dtype: torch.dtype | None = None  # of the result; None: the operand's

    def __str__(self) -> str:
        return self.name

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions as `torch.permute` takes them."""
        term, output = self.equation.split("->")
        return tuple(term.index(label) for label in output)

    @property
    def d_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[at] for at in self.dims)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def d_dtype(self) -> torch.dtype:
        return self.out_dtype or self.dtype

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.elements * (self.dtype.itemsize + self.d_dtype.itemsize)

    def operand(self, *, device: torch.device | str = "cpu", seed: int = 0) -> torch.Tensor:
        return random_operand(self.shape, self.dtype, seed, device=device)

    def result(self, *, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.empty(self.d_shape, dtype=self.d_dtype, device=device)
