"""Record a function of tensors as an FX graph of pointwise aten operations.

The function runs once on fake tensors (shapes and dtypes, no data) under a dispatch mode that writes down every aten
operation. `make_fx` does the same for programs of any kind; this recorder is for pointwise ones, and in return an
operation that cannot be fused is refused at the line of the user's file where it stands, in-place operations become
plain ones, shapes and devices leave no trace in the graph, and a recording takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.errors import FunctionError
from weft.fn.advice import instead_of, user_line

aten = torch.ops.aten

#: Operations that read a value into Python.
_READS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "is_same_size", "allclose"})
#: Operations that share memory with their argument and change nothing, as long as the shape stays.
_ALIASES = frozenset({"alias", "detach", "view", "_unsafe_view", "_reshape_alias", "expand", "lift_fresh", "lift"})
#: Operations that copy their argument and change nothing, as long as the dtype stays.
_COPIES = frozenset({"_to_copy", "clone", "resolve_conj", "resolve_neg", "lift_fresh_copy"})
#: Operations that fill a tensor with one number: position of that number among the arguments, or the number.
_FILLS: dict[str, tuple[int, float | None]] = {
    "full_like": (1, None),
    "ones_like": (-1, 1),
    "zeros_like": (-1, 0),
    "full": (1, None),
    "ones": (-1, 1),
    "zeros": (-1, 0),
    "new_full": (2, None),
    "new_ones": (-1, 1),
    "new_zeros": (-1, 0),
    "scalar_tensor": (0, None),
    "zero": (-1, 0),
    "empty_like": (-1, 0),  # what stands in fresh memory may as well be zero
    "new_empty": (-1, 0),
    "empty": (-1, 0),
}
#: Conjugates and negatives that torch leaves undone until somebody reads them: what they come to.
_LAZY = {"_conj": aten.conj_physical.default, "_neg_view": aten.neg.default}
_SHARING = _ALIASES | _COPIES | frozenset(_LAZY) | {"view_as_real"}
#: Keywords that say where and how a result lies: nothing that a value depends on.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"})


@dataclass(slots=True, eq=False)
class _Value:
    """What a tensor stands for. Tensors that share memory share one `_Value`, so an in-place change reaches all."""

    node: fx.Node
    constant: bool  # no input enters it
    parts: bool = False  # the two parts of a complex value, with a last axis of two
    viewed: bool = False  # a part of it is seen through another `_Value`


def record(
    function: Callable[..., Any],
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int],
    *,
    hook: str,
    fusible: Callable[[str], bool],
    decompositions: Mapping[str, Callable[..., torch.Tensor]] | None = None,
) -> fx.Graph:
    """Run `function` on fake tensors of that shape, one for each dtype, and return what it did.

    Placeholders are the tensors in order; the output is a node, or a tuple of nodes where the function returns a
    tuple. Every node carries `meta["dtype"]` and `meta["scalar"]` (true for 0-d values, which torch promotes like
    Python numbers of their kind). `fusible` says which aten operations (by name, without overload and without the
    underscore of in-place forms) may stand in the graph; those named in `decompositions` are replaced by what
    their function does. Raises `FunctionError`, beginning with `hook`, for anything that is not pointwise.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast(), FakeTensorMode():
        recorder = _Recorder(tuple(shape), hook, fusible, decompositions or {})
        inputs = [torch.empty(tuple(shape), dtype=dtype) for dtype in dtypes]
        for position, tensor in enumerate(inputs):
            recorder.placeholder(f"x{position}", tensor)
        with recorder:
            result = _call_user(function, inputs, recorder)
        recorder.finish(result)
    recorder.graph.eliminate_dead_code()
    return recorder.graph


def _call_user(function: Callable[..., Any], inputs: Sequence[torch.Tensor], recorder: _Recorder) -> Any:
    try:
        result = function(*inputs)
    except Exception as error:
        cause: FunctionError | None = recorder.refusal
        if cause is None:
            cause = _translated(error, recorder.hook)
            raise cause from error
    if recorder.refusal is not None:  # even where the function or torch swallowed the exception
        raise recorder.refusal
    return result


def _translated(error: Exception, hook: str) -> FunctionError:
    text = str(error)
    line = user_line(_call_user.__name__, error)
    if "Boolean value of Tensor" in text or "converted to Scalar" in text or "converted to Python scalar" in text:
        return FunctionError(f"{hook}: {_READS_ADVICE}{line}")
    if ".numpy()" in text or "__array__" in text:
        return FunctionError(f"{hook}: the function hands its value to NumPy{line}; use torch's functions")
    return FunctionError(f"{hook}: the function raised {type(error).__name__}: {text}{line}")


_READS_ADVICE = (
    "the function reads a value into Python (if, while, bool(), item(), float(), ...); it is recorded once, not run "
    "for each element: choose by torch.where"
)


class _Refused(Exception):
    """Leaves the user's function. Not a `TypeError` as `FunctionError` is: torch's operators swallow those."""


class _Recorder(TorchDispatchMode):
    def __init__(
        self,
        shape: tuple[int, ...],
        hook: str,
        fusible: Callable[[str], bool],
        decompositions: Mapping[str, Callable[..., torch.Tensor]],
    ) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.refusal: FunctionError | None = None
        self._shape = shape
        self.hook = hook
        self._fusible = fusible
        self._decompositions = decompositions
        self._values: dict[int, _Value] = {}
        self._alive: list[torch.Tensor] = []  # keeps the ids in _values from being used again
        self._first: fx.Node | None = None

    def placeholder(self, name: str, tensor: torch.Tensor) -> None:
        node = self.graph.placeholder(name)
        self._first = self._first or node
        self._bind(tensor, _Value(self._describe(node, tensor), constant=False))

    def finish(self, result: Any) -> None:
        several = isinstance(result, (tuple, list))
        try:
            nodes = tuple([self._result(item) for item in (result if several else [result])])
            if not nodes:
                raise self._refuse("the function returns nothing")
        except _Refused:
            assert self.refusal is not None
            raise self.refusal from None
        self.graph.output(nodes if several else nodes[0])

    # -- one operation -------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks for a device or layout and computes nothing
            return func(*args, **kwargs)
        schema_name = func._schema.name.removeprefix("aten::")
        in_place = func._schema.is_mutable
        name = schema_name.removesuffix("_") if in_place else schema_name
        if func.namespace != "aten":
            raise self._cannot(str(func), instead_of(name))
        if "out" in kwargs:
            raise self._cannot(f"aten.{name} with out=", "return the result")
        if name in _READS:
            return self._read(func, args, kwargs)
        if name in _ALIASES and isinstance(args[0], torch.Tensor) and id(args[0]) not in self._values:
            return self._literal(func, args, kwargs)
        if name in _FILLS or name == "fill":
            return self._fill(func, name, in_place, args, kwargs)
        if name in self._decompositions and not in_place:
            with self:
                return self._decompositions[name](*args, **kwargs)
        return self._pointwise(func, name, in_place, args, kwargs)

    def _pointwise(
        self, func: Any, name: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        of_parts = bool(args) and isinstance(args[0], torch.Tensor) and self._is_parts(args[0])
        if not (of_parts or name in _SHARING or self._fusible(name)):
            with self:  # composite operations come in whole while a decomposition runs
                parts = func.decompose(*args, **kwargs)
            if parts is NotImplemented:
                raise self._cannot(f"aten.{name}", instead_of(name))
            return parts
        known = [self._known(tensor) for tensor in _tensors(args, kwargs)]
        self._check_device(kwargs.get("device"))
        out = func(*args, **kwargs)
        if of_parts:
            return self._part(name, args, known[0], out)
        if name == "view_as_real":
            known[0].viewed = True
            return self._bind(out, _Value(known[0].node, known[0].constant, parts=True))
        if name in _LAZY:
            known[0].viewed = True
            node = self._call(_LAZY[name], args, {}, out)
            return self._bind(out, _Value(node, known[0].constant, viewed=True))
        if name == "log_sigmoid_forward":  # hands out a buffer for its backward as well
            node = self._call(aten.log_sigmoid.default, args, {}, out[0])
            self._bind(out[0], _Value(node, known[0].constant))
            return out
        self._check_shape(name, out)
        if name in _ALIASES and out.dtype == args[0].dtype:
            if out.dim() > 0 and args[0].dim() == 0:
                return self._bind(out, _Value(self._spread(known[0].node, out), constant=False, viewed=True))
            return self._bind(out, known[0])
        if name in _COPIES and out.dtype == args[0].dtype:
            return self._bind(out, _Value(known[0].node, known[0].constant))
        if in_place:
            return self._change(func, name, args, kwargs, known[0])
        if name == "_to_copy":
            kwargs = {"dtype": out.dtype}
        node = self._call(func, args, kwargs, out)
        return self._bind(out, _Value(node, all(value.constant for value in known)))

    def _change(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], value: _Value
    ) -> torch.Tensor:
        """Write an in-place operation down as the plain one, cast back to the dtype that the memory has."""
        target = args[0]
        self._check_unviewed(name, value)
        plain = getattr(getattr(aten, name), func._overloadname)
        if name in self._decompositions:
            with self:
                out = self._decompositions[name](*args, **kwargs)
            node = self._values[id(out)].node
        else:
            out = plain(*args, **kwargs)
            node = self._call(plain, args, kwargs, out)
        if out.dtype != target.dtype:
            node = self._call(aten._to_copy.default, (node,), {"dtype": target.dtype}, target)
        value.node = node
        value.constant = value.constant and all(self._known(t).constant for t in _tensors(args[1:], kwargs))
        return target

    def _part(self, name: str, args: Sequence[Any], value: _Value, out: torch.Tensor) -> torch.Tensor:
        if name == "_neg_view":  # of both parts: of the value
            node = self.graph.call_function(aten.neg.default, (value.node,))
            node.meta.update(value.node.meta)
            return self._bind(out, _Value(node, value.constant, parts=True))
        if name != "select" or args[1] not in (-1, len(self._shape)):
            raise self._cannot(f"aten.{name} on the two parts of a complex value", "use .real and .imag")
        operation = aten.imag.default if args[2] in (1, -1) else aten.real.default
        node = self._call(operation, (value.node,), {}, out)
        return self._bind(out, _Value(node, value.constant, viewed=True))

    def _fill(
        self, func: Any, name: str, in_place: bool, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        position, number = (1, None) if name == "fill" else _FILLS[name]
        number = args[position] if number is None else number
        like = self._known(args[0]) if isinstance(args[0], torch.Tensor) else None
        out = func(*args, **kwargs)
        self._check_shape(name, out)
        if isinstance(number, torch.Tensor):  # fill_ with a 0-d tensor
            node = self._spread(self._known(number).node, out)
        else:
            node = self._full(number, out)
        if in_place and like is not None:
            self._check_unviewed(name, like)
            like.node = node
            return args[0]
        return self._bind(out, _Value(node, constant=out.dim() == 0))

    def _full(self, number: Any, out: torch.Tensor) -> fx.Node:
        if out.dim() == 0:
            return self._call(aten.scalar_tensor.default, (number,), {"dtype": out.dtype}, out)
        return self._call(aten.full_like.default, (self._first, number), {"dtype": out.dtype}, out)

    def _spread(self, node: fx.Node, out: torch.Tensor) -> fx.Node:
        """A 0-d value as a block of `out`'s dtype, which promotes other values as a block does."""
        if node.meta["dtype"] != out.dtype:
            node = self._call(aten._to_copy.default, (node,), {"dtype": out.dtype}, out)
        if out.dim() == 0:
            return node
        return self._call(aten.where.self, (self._full(True, out.bool()), node, node), {}, out)

    def _literal(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """`torch.tensor(2.0)` inside the function: a constant. Any other tensor from outside is refused."""
        (tensor,) = args[:1]
        if func._schema.name != "aten::lift_fresh":
            self._known(tensor)
        if tensor.dim() != 0:
            raise self._refuse(
                f"a tensor made inside the function must be 0-d, this one has shape {tuple(tensor.shape)}"
                f"{self._line()}; pass it by operands="
            )
        with _disable_current_modes():
            number = tensor.item()
        out = func(*args, **kwargs)
        return self._bind(out, _Value(self._full(number, out), constant=True))

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if all(self._known(tensor).constant for tensor in _tensors(args, kwargs)):
            return func(*args, **kwargs)  # a constant of the function itself
        raise self._refuse(f"{_READS_ADVICE}{self._line()}")

    # -- the graph -----------------------------------------------------------------------------------------------

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: torch.Tensor) -> fx.Node:
        named = {key: self._node(value) for key, value in kwargs.items() if key not in _PLACEMENT}
        node = self.graph.call_function(func, tuple(map(self._node, args)), named)
        return self._describe(node, out)

    def _describe(self, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
        node.meta["dtype"] = tensor.dtype
        node.meta["scalar"] = tensor.dim() == 0
        return node

    def _node(self, argument: Any) -> Any:
        return self._known(argument).node if isinstance(argument, torch.Tensor) else argument

    def _bind(self, tensor: torch.Tensor, value: _Value) -> torch.Tensor:
        self._alive.append(tensor)
        self._values[id(tensor)] = value
        return tensor

    def _result(self, result: Any) -> fx.Node:
        if isinstance(result, torch.Tensor):
            value = self._known(result)
            if value.parts or tuple(result.shape) not in ((), self._shape):
                raise self._misshapen("the function returns", result)
            return value.node
        if isinstance(result, (bool, int, float, complex)):
            assert self._first is not None
            like = torch.empty(self._shape, dtype=self._first.meta["dtype"])
            return self._full(result, torch.empty((), dtype=torch.result_type(like, result)))
        what = "nothing" if result is None else type(result).__name__
        raise self._refuse(f"the function returns {what}, not a tensor, a number or a tuple of them")

    # -- refusals ------------------------------------------------------------------------------------------------

    def _refuse(self, message: str) -> _Refused:
        self.refusal = self.refusal or FunctionError(f"{self.hook}: {message}")
        return _Refused(message)

    def _cannot(self, what: str, instead: str = "") -> _Refused:
        return self._refuse(f"{what} cannot be fused{self._line()}{'; ' if instead else ''}{instead}")

    def _misshapen(self, what: str, tensor: torch.Tensor) -> _Refused:
        return self._refuse(
            f"{what} a tensor of shape {tuple(tensor.shape)} from elements of shape {self._shape}"
            f"{self._line()}; a function works on one element at a time"
        )

    def _known(self, tensor: torch.Tensor) -> _Value:
        value = self._values.get(id(tensor))
        if value is None:
            raise self._refuse(
                f"the function closes over a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}{self._line()}; "
                "make it a parameter and pass it by operands= (Python numbers may be closed over)"
            )
        return value

    def _is_parts(self, tensor: torch.Tensor) -> bool:
        value = self._values.get(id(tensor))
        return value is not None and value.parts

    def _check_unviewed(self, name: str, value: _Value) -> None:
        if value.viewed:
            raise self._cannot(f"aten.{name}_ on memory that is seen through a conjugate or part as well")

    def _check_device(self, device: Any) -> None:
        if device is not None and torch.device(device).type not in ("cpu", "meta"):
            raise self._cannot(f"moving a value to {device}", "a function runs where its operands are")

    def _check_shape(self, name: str, out: torch.Tensor) -> None:
        if tuple(out.shape) not in ((), self._shape):
            raise self._misshapen(f"aten.{name} makes", out)

    def _line(self) -> str:
        return user_line(entry=_call_user.__name__)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (tuple, list)):
            found += [item for item in argument if isinstance(item, torch.Tensor)]
    return found
