"""A user function as the rest of weft sees it: recorded from torch operations, or written in Triton."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import fx

from weft.base.caches import cached_property
from weft.errors import DTypeError, UnsupportedError
from weft.fn.complex_pairs import split_complex
from weft.fn.decompositions import DECOMPOSITIONS
from weft.fn.graphs import canonical, name_of, output_of, results_of, write, written
from weft.fn.operations import ELEMENTARY, FUSED
from weft.fn.record import record
from weft.fn.triton.device_code import jit_function
from weft.fn.triton.emit import emit, issue_cost
from weft.fn.writer import HALF_TYPES, BodyWriter, Held

#: Operations of a graph that move or make values and compute nothing.
_FREE = frozenset({"_to_copy", "copy", "detach", "full_like", "scalar_tensor", "conj_physical", "real", "imag", "view"})
_FUSIBLE = frozenset((*FUSED, *DECOMPOSITIONS))
_serial = itertools.count()
_interpreted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Pointwise(ABC):
    """A function of one element: of its value, and of auxiliary operands and coordinates.

    `identity` tells functions apart: two with the same identity compute the same thing, which depends on nothing else.
    `inputs` names the parameters, the value first, and `dtypes` their element types in that order; `result` is the
    dtype of what the function yields, a tuple of dtypes where it yields a tuple. `flops` counts arithmetic operations
    for each element.
    """

    identity: str
    inputs: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    result: torch.dtype | tuple[torch.dtype, ...]

    @property
    @abstractmethod
    def flops(self) -> int:
        """Operations for each element: every arithmetic operation, comparison, choice and elementary function is one.

        Casts and constants are none. Counted apart from the flops of the contraction.
        """

    @property
    @abstractmethod
    def elementary(self) -> int:
        """How many of `flops` are elementary functions (exponentials, roots, ...), which cost many instructions."""

    @property
    def results(self) -> tuple[torch.dtype, ...]:
        """The dtypes of all results."""
        return self.result if isinstance(self.result, tuple) else (self.result,)

    @property
    def __signature__(self) -> inspect.Signature:
        """As a function of users has one: by it operands find their parameters."""
        return signature_of(self.inputs)

    @property
    def issue_slots(self) -> float:
        """Issue slots of a GPU for each element: instructions, conversions included. An estimate for cost models."""
        return 2.0 * self.flops + 20.0 * self.elementary

    @property
    def is_complex(self) -> bool:
        """Whether complex values take part, if only on the way."""
        return any(dtype.is_complex for dtype in self.dtypes)

    @property
    def at_zero(self) -> float | None:
        """The value at zero; None where it takes more than an element to know it, or depends on when it is rounded."""
        return None

    @property
    @abstractmethod
    def source(self) -> str:
        """Text of one `@triton.jit` function of the inputs in order. Needs no Triton."""

    @property
    @abstractmethod
    def jit(self) -> Any:
        """The `@triton.jit` function itself; the same object for the same identity. Imports Triton."""

    @property
    def split_complex(self) -> Pointwise:
        """This function with every complex value split into real and imaginary part: Triton has no complex types.

        A complex input becomes two inputs, one after the other, and a complex result becomes two results. Raises
        `UnsupportedError` where an operation has no such form.
        """
        raise UnsupportedError("a function of complex values is written with torch operations to run on the GPU")

    def renamed(self, inputs: Sequence[str]) -> Self:
        """This function with other names for its inputs."""
        found = copy(self)
        found.inputs = tuple(inputs)
        found.__dict__.pop("split_complex", None)  # whose names come of these
        return found

    @abstractmethod
    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the function on tensors (in the order of `inputs`) of any shapes that broadcast together."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointwise) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


class RecordedFunction(Pointwise):
    """A torch function, recorded as a `graph`.

    Called on tensors it runs torch's own kernels, each step rounded to its own dtype. As Triton code it computes half
    precision in float32 and rounds at explicit casts and at the end; see `weft.fn.triton.emit`.
    """

    def __init__(self, graph: fx.Graph, inputs: Sequence[str]) -> None:
        self.graph = graph
        self.identity = canonical(graph)
        self.inputs = tuple(inputs)
        self.dtypes = tuple(node.meta["dtype"] for node in graph.nodes if node.op == "placeholder")
        found = tuple([node.meta["dtype"] for node in results_of(graph)])
        self.result = found if isinstance(output_of(graph), tuple) else found[0]

    def __repr__(self) -> str:
        return f"Pointwise({', '.join(self.inputs)}):\n{self.identity}"

    @cached_property
    def flops(self) -> int:
        return sum(name not in _FREE for name in self._calls)

    @cached_property
    def elementary(self) -> int:
        return sum(name in ELEMENTARY for name in self._calls)

    @cached_property
    def issue_slots(self) -> float:
        return super().issue_slots if self.is_complex else issue_cost(self.primitive)

    @cached_property
    def at_zero(self) -> float | None:
        if len(self.dtypes) > 1 or self.is_complex or isinstance(self.result, tuple):
            return None
        zero = torch.zeros(1, dtype=self.dtypes[0], device="cpu")
        value = self(zero)
        if not isinstance(value, torch.Tensor):
            return None
        steps = [node for node in self.primitive.nodes if node.op == "call_function"]
        if any(_rounds_on_the_way(node) for node in steps):
            return None
        if zero.dtype not in HALF_TYPES:
            return float(value)
        with suppress(RuntimeError):  # as Triton code its steps are not rounded one by one
            return float(value) if bool(self._module.forward(zero.float()).to(value.dtype) == value) else None
        return None

    @cached_property
    def _calls(self) -> tuple[str, ...]:
        """Names of the operations, in order."""
        graph = self.graph if self.is_complex else self.primitive
        return tuple([name_of(node) for node in graph.nodes if node.op == "call_function"])

    @cached_property
    def source(self) -> str:
        return emit(self.graph if self.is_complex else self.primitive)

    @cached_property
    def jit(self) -> Any:
        return jit_function(self.source)

    @cached_property
    def split_complex(self) -> Pointwise:
        dtypes: list[torch.dtype] = []
        names: list[str] = []
        for dtype, name in zip(self.dtypes, self.inputs, strict=True):
            of_parts = [dtype.to_real()] * 2 if dtype.is_complex else [dtype]
            dtypes += of_parts
            names += [f"{name}_re", f"{name}_im"] if dtype.is_complex else [name]
        graph = record(split_complex(self.graph), dtypes, (2, 3), hook="function", fusible=_FUSIBLE.__contains__)
        return RecordedFunction(graph, names)

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the recorded graph, not the user's Python again.

        Returns tensors of the inputs' common shape. A result may be a view of an input (the identity function) or of
        one element (a constant): read it, do not write to it. Raises `DTypeError` for dtypes other than `dtypes`.
        """
        dtypes = tuple(tensor.dtype for tensor in tensors)
        if dtypes != self.dtypes:
            raise DTypeError(f"the function was traced for {self.dtypes} ({', '.join(self.inputs)}), not for {dtypes}")
        shapes = [tensor.shape for tensor in tensors]
        # NumPy's, because the first use of torch.broadcast_shapes imports SymPy.
        shape = shapes[0] if all(each == shapes[0] for each in shapes) else np.broadcast_shapes(*shapes)
        # A 0-d tensor would promote the others as a Python number does, and not as it did when recorded.
        blocks = [tensor if tensor.dim() else tensor.reshape(1) for tensor in tensors]
        with torch._C._DisableAutocast():
            results = self._module.forward(*blocks)
        if isinstance(results, tuple):
            return tuple(_shaped(result, shape) for result in results)
        return _shaped(results, shape)

    @cached_property
    def _module(self) -> fx.GraphModule:
        return fx.GraphModule(torch.nn.Module(), self.graph)

    @property
    def is_complex(self) -> bool:
        return any(node.meta["dtype"].is_complex for node in self.graph.nodes if node.op != "output")

    @cached_property
    def primitive(self) -> fx.Graph:
        """This function in primitive operations only."""
        return record(
            self._module.forward,
            self.dtypes,
            (2, 3),
            hook="function",
            fusible=FUSED.__contains__,
            decompositions=DECOMPOSITIONS,
        )


class TritonFunction(Pointwise):
    """A `@triton.jit` function, taken as it is: no result dtype but the value's, flops unknown and given as 0."""

    flops = elementary = 0

    def __init__(self, function: Any, identity: str, inputs: Sequence[str], dtypes: Sequence[torch.dtype]) -> None:
        self.identity = identity
        self.inputs = tuple(inputs)
        self.dtypes = tuple(dtypes)
        self.result = self.dtypes[0]
        self._function = function

    def __repr__(self) -> str:
        return f"Pointwise({', '.join(self.inputs)}): @triton.jit {self._function.__name__}"

    @cached_property
    def source(self) -> str:
        return inspect.getsource(self._function.fn)

    @property
    def jit(self) -> Any:
        return self._function

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        raise UnsupportedError(
            f"{self._function.__name__} is a Triton function and runs on the Triton backend only; "
            "the CPU needs the same function written with torch operations"
        )


def signature_of(names: Iterable[str]) -> inspect.Signature:
    """The signature of a function of values with these names."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def is_triton_function(fn: Any) -> bool:
    """Whether `fn` was made by `@triton.jit`, compiled or interpreted. Imports no Triton: it is there if so."""
    return type(fn).__module__ in ("triton.runtime.jit", "triton.runtime.interpreter") and hasattr(fn, "fn")


def triton_function(fn: Any, first: str, names: tuple[str, ...], dtypes: tuple[torch.dtype, ...]) -> TritonFunction:
    """A Triton function as a `Pointwise`; its inputs stand in the order of its own parameters."""
    given = dict(zip((first, *names), dtypes, strict=True))
    inputs = [name for name in inspect.signature(fn.fn).parameters if name in given]
    fn, key = _current(fn)
    text = ", ".join(f"{name}: {given[name]}".replace("torch.", "") for name in inputs)
    return TritonFunction(fn, f"triton {key}({text})", inputs, [given[name] for name in inputs])


def _current(fn: Any) -> tuple[Callable[..., Any], str]:
    """The function and a key of its source, of what it calls and of the globals it reads, as they are now.

    Triton computes a function's key once. Where a helper or a global constant changed since, a new function is made of
    the same Python, so that kernels compiled for the old one are not found under the new key.
    """
    jit = sys.modules["triton.runtime.jit"]
    if not isinstance(fn, jit.JITFunction):  # interpreted: nothing is compiled, the object itself is the key
        if fn not in _interpreted:
            _interpreted[fn] = next(_serial)
        return fn, f"interpreted {_interpreted[fn]} {hashlib.sha256(inspect.getsource(fn.fn).encode()).hexdigest()}"
    fresh = jit.JITFunction(fn.fn)
    return (fn if fresh.cache_key == fn.cache_key else fresh), fresh.cache_key


def _rounds_on_the_way(node: fx.Node) -> bool:
    """Whether an operation takes other floating-point values to half precision, with which more is computed."""
    if node.meta["dtype"] not in HALF_TYPES or all(user.op == "output" for user in node.users):
        return False
    given = [each.meta["dtype"] for each in node.all_input_nodes]
    return any(dtype.is_floating_point and dtype != node.meta["dtype"] for dtype in given)


def _shaped(result: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    result = result.resolve_conj()
    if result.shape == shape:
        return result
    return result.reshape(shape) if result.numel() == 1 and not shape else result.expand(shape)


_LARGEST = torch.finfo(torch.float8_e4m3fn).max  # of the narrowest type of products


def padding_adds_nothing(a_fn: Pointwise | None, b_fn: Pointwise | None) -> bool:
    """Whether products of what the functions make of zeros are zero, so that nothing has to be masked.

    Operands that are read past the end of a sum are zeros there. If one of them still is behind its function, and the
    other is finite, their product is zero.
    """
    return not any(masked_operands(a_fn, b_fn))


def masked_operands(a_fn: Pointwise | None, b_fn: Pointwise | None) -> tuple[bool, bool]:
    """Which operands, A and B, must be masked behind their functions. Zeros of one suffice where the other is finite:
    those of B, which takes the shorter way to the matrix units."""
    a = 0.0 if a_fn is None else a_fn.at_zero
    b = 0.0 if b_fn is None else b_fn.at_zero
    mask_a, mask_b = not _is_finite(a), not _is_finite(b)
    return mask_a, mask_b or (not mask_a and a != 0 and b != 0)


def _is_finite(value: float | None) -> bool:
    """Whether the value is known, and stays finite in any type that products are made in."""
    return value is not None and abs(value) <= _LARGEST


def inlined(w: BodyWriter, function: Pointwise, arguments: Sequence[Held], *, quick: bool = False) -> list[Held]:
    """Write the function's operations on these values; its results, of its own types: in C++ not rounded to them yet.

    `quick`: exponentials within two units in the last place, 0 where they are below the normal numbers, but for those
    that a condition is on. Raises `UnsupportedError` for what has no code there, naming it.
    """
    if not isinstance(function, RecordedFunction) or (function.is_complex and not w.of_complex):
        kind = "of complex values" if isinstance(function, RecordedFunction) else "written in Triton"
        raise UnsupportedError(f"a function {kind} has no code {w.where}")
    graph = function.graph if function.is_complex else function.primitive
    write(w, graph, arguments, quick=quick)
    found = zip([written(w, node) for node in results_of(graph)], function.results, strict=True)
    return [Held(w.cast(value.name, value.dtype, dtype) if w.rounds else value.name, dtype) for value, dtype in found]
