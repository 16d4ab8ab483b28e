"""Record a function of tensors as an FX graph of pointwise aten operations.

The function runs once on `Element` tensors, which have a shape, a dtype and no data, under a dispatch mode that
writes down every aten operation. `make_fx` does the same for programs of any kind; this recorder is for pointwise
ones, and in return an operation that cannot be fused is refused at the line of the user's file where it stands,
in-place operations become plain ones, shapes and devices leave no trace in the graph, and a recording is several times
faster. torch's own fake tensors would do but for their first use, which imports its compiler and Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from weft.base.arrays import grad_mode
from weft.base.figures import dtype_name
from weft.errors import FunctionError
from weft.fn.advice import READS_ADVICE, instead_of, translated, user_line
from weft.fn.element import Element, Value, fixed, run_plainly, tensors_among
from weft.fn.surroundings import set_aside, steers_torch

aten = torch.ops.aten

#: An unremarkable number: half of it, its remainders and it less a few are not zero, and it fits 8 bits.
_SAMPLE = 103
#: Operations that read a value into Python.
_READS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"})
#: Operations that share memory with their argument and change nothing, as long as the shape stays.
_ALIASES = frozenset({
    "alias", "detach", "detach_copy", "view", "_unsafe_view", "_reshape_alias", "expand",
    "lift_fresh", "lift",
})  # fmt: skip
#: Operations that copy their argument and change nothing, as long as the dtype stays.
_COPIES = frozenset({"_to_copy", "clone", "resolve_conj", "resolve_neg", "lift_fresh_copy"})
#: Operations that fill a tensor with one number: position of that number among the arguments, or the number.
_FILLS: dict[str, tuple[int, float | None]] = {
    **dict.fromkeys(("full_like", "full"), (1, None)), "new_full": (2, None), "scalar_tensor": (0, None),
    **dict.fromkeys(("ones_like", "ones", "new_ones"), (-1, 1)),
    # What stands in fresh memory may as well be zero; autograd takes the last one for a gradient that is zero.
    **dict.fromkeys((
        "zeros_like", "zeros", "new_zeros", "zero", "empty_like", "new_empty", "empty", "_efficientzerotensor",
    ), (-1, 0)),
}  # fmt: skip
#: Conjugates and negatives that torch leaves undone until somebody reads them: what they come to.
_LAZY = {"_conj": aten.conj_physical.default, "_neg_view": aten.neg.default}
_SHARING = _ALIASES | _COPIES | frozenset(_LAZY) | {"view_as_real"}
#: Types of which one may be seen as the other, `x.view(torch.int32)`: both are held as they are.
_REINTERPRETED = ({torch.float32, torch.int32}, {torch.float64, torch.int64})
#: Keywords that say where and how a result lies: nothing that a value depends on.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"})


def record(
    function: Callable[..., Any],
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int],
    *,
    hook: str,
    fusible: Callable[[str], bool],
    decompositions: Mapping[str, Callable[..., Any]] | None = None,
    detaches: bool = False,
) -> fx.Graph:
    """Run `function` on elements of that shape, one for each dtype, and return what it did.

    Placeholders are the tensors in order; the output is a node, or a tuple of nodes where the function returns a
    tuple. Every node carries `meta["dtype"]` and `meta["scalar"]` (true for 0-d values, which torch promotes like
    Python numbers of their kind). `fusible` says which aten operations (by name, without overload and without the
    underscore of in-place forms) may stand in the graph; those named in `decompositions` are replaced by what
    their function does. With `detaches` what is detached, or made where gradients are off, is written down as that;
    always so by `aten.detach_copy`, which torch's own code does not use. Raises `FunctionError`, beginning with
    `hook`, for anything that is not pointwise.
    """

    def recorded() -> fx.Graph:
        recorder = _Recorder(tuple(shape), hook, fusible, decompositions or {}, detaches)
        inputs = [recorder.placeholder(f"x{position}", dtype) for position, dtype in enumerate(dtypes)]
        with recorder, grad_mode(detaches):
            result = _call_user(function, inputs, recorder)
        recorder.finish(result)
        return recorder.graph

    graph = set_aside(recorded)
    graph.eliminate_dead_code()
    return graph


def _call_user(function: Callable[..., Any], inputs: Sequence[torch.Tensor], recorder: _Recorder) -> Any:
    try:
        result = function(*inputs)
    except Exception as error:
        if steers_torch(error):
            raise
        if recorder.refusal is None:
            raise translated(error, recorder.hook, _call_user.__name__) from error
    if recorder.refusal is not None:  # even where the function or torch swallowed the exception
        raise recorder.refusal
    return result


class _Refused(Exception):
    """Leaves the user's function. Not a `TypeError` as `FunctionError` is: torch's operators swallow those."""


class _Recorder(TorchDispatchMode):
    def __init__(
        self,
        shape: tuple[int, ...],
        hook: str,
        fusible: Callable[[str], bool],
        decompositions: Mapping[str, Callable[..., Any]],
        detaches: bool,
    ) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.hook = hook
        self.refusal: FunctionError | None = None
        self._shape = shape
        self._fusible = fusible
        self._decompositions = decompositions
        self._detaches = detaches
        self._first: fx.Node | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping `__torch_dispatch__` for its compiler, whose import takes seconds."""
        return False

    def placeholder(self, name: str, dtype: torch.dtype) -> Element:
        node = self.graph.placeholder(name)
        self._first = self._first or node
        sample = torch.full(self._shape, _SAMPLE, device="cpu").to(dtype)
        return Element(Value(_describe(node, sample), sample))

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
        args = tuple([fixed(each) for each in args])
        kwargs = {key: fixed(each) for key, each in kwargs.items()} if kwargs else {}
        in_place = func._schema.is_mutable
        name = func._schema.name.partition("::")[2]
        name = name.removesuffix("_") if in_place else name
        if func.namespace != "aten":
            if not self._fusible(str(func)):
                raise self._cannot(str(func), instead_of(name))
            return self._add(func, args, kwargs)
        if "out" in kwargs:
            raise self._cannot(f"aten.{name} with out=", "return the result")
        if name in _READS:
            return self._read(func, args, kwargs)
        if name == "lift_fresh" and not isinstance(args[0], Element):
            return self._literal(args[0])
        if name in _FILLS or name == "fill":
            return self._fill(func, name, in_place, args, kwargs)
        if name in self._decompositions and not in_place:
            with self:
                return self._decompositions[name](*args, **kwargs)
        return self._pointwise(func, name, in_place, args, kwargs)

    def _pointwise(self, func: Any, name: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        as_real = bool(args) and isinstance(args[0], Element) and args[0].value.as_real
        if not (as_real or name in _SHARING or self._fusible(name)):
            with self:  # composite operations come in whole while a decomposition runs
                result = func.decompose(*args, **kwargs)
            if result is NotImplemented:
                raise self._cannot(f"aten.{name}", instead_of(name))
            return result
        values = [self._value(tensor) for tensor in tensors_among(args, kwargs)]
        if not values:  # the conjugate of a number, which autograd takes where it differentiates a product with it
            return self._literal(func(*[torch.tensor(each, device="cpu") for each in args], **kwargs).resolve_conj())
        first = values[0]
        if as_real:
            return self._part(name, args, first)
        if name in _LAZY:
            first.viewed = True
            return self._add(_LAZY[name], args, kwargs, viewed=True)
        if name == "view_as_real":
            first.viewed = True
            return Element(Value(first.node, self._ask(func, args, kwargs), as_real=True))
        if func is aten.view.dtype and args[1] != first.sample.dtype:
            return self._reinterpret(func, args, kwargs)
        if in_place:
            return self._change(name, func, args, kwargs)
        if name == "log_sigmoid_forward":  # hands out a buffer for its backward as well
            return self._add(aten.log_sigmoid.default, args, kwargs), args[0]
        if name in _ALIASES or name in _COPIES:
            return self._same(func, name, args, kwargs)
        return self._add(func, args, kwargs)

    def _add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], viewed: bool = False) -> Element:
        """Write the operation down as it is."""
        sample = self._ask(func, args, kwargs)
        self._check_shape(func, sample)
        constant = all(tensor.value.constant for tensor in tensors_among(args, kwargs))
        cut = self._detaches and not torch.is_grad_enabled()
        return Element(Value(self._call(func, args, kwargs, sample), sample, constant, viewed=viewed), cut)

    def _reinterpret(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Element:
        """The bits of a value as another type."""
        value, dtype = args[0].value, args[1]
        held = value.sample.dtype
        if {held, dtype} not in _REINTERPRETED:
            raise self._cannot(f"aten.view of {held} as {dtype}", "float32 is seen as int32, float64 as int64, or back")
        value.viewed = True
        return self._add(func, args, kwargs, viewed=True)

    def _same(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Element:
        """An operation that may change nothing: a view of the same shape, a cast to the same dtype, a copy."""
        value, sample = args[0].value, self._ask(func, args, kwargs)
        cut = args[0].detached or name == "detach_copy" or (name == "detach" and self._detaches)
        self._check_shape(func, sample)
        if sample.dtype != value.sample.dtype:
            return self._add(func, args, {"dtype": sample.dtype})
        if name in _COPIES:
            return Element(Value(value.node, value.sample, value.constant), cut)
        if sample.dim() > value.sample.dim():
            value.viewed = True
            return Element(Value(self._spread(value.node, sample), sample, viewed=True), cut)
        return Element(value, cut)

    def _change(self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Element:
        """Write an in-place operation down as the plain one, cast back to the dtype that the memory has."""
        target = args[0]
        self._ask(func, args, kwargs)  # refuses what torch refuses to do in place
        self._check_unviewed(name, target.value)
        with self:
            out = getattr(getattr(aten, name), func._overloadname)(*args, **kwargs)
            if out.dtype != target.dtype:
                out = out.to(target.dtype)
        target.value.node, target.value.sample = out.value.node, out.value.sample
        target.value.constant = out.value.constant
        return target

    def _part(self, name: str, args: Sequence[Any], value: Value) -> Element:
        if name == "_neg_view":  # of both parts: of the value
            whole = torch.view_as_complex(value.sample)
            return Element(Value(self._call(aten.neg.default, (value.node,), {}, whole), value.sample, as_real=True))
        if name != "select" or args[1] not in (-1, len(self._shape)):
            raise self._cannot(f"aten.{name} on the two parts of a complex value", "use .real and .imag")
        operation = aten.imag.default if args[2] in (1, -1) else aten.real.default
        sample = value.sample.select(-1, 0)
        return Element(Value(self._call(operation, (value.node,), {}, sample), sample, viewed=True))

    def _fill(self, func: Any, name: str, in_place: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Element:
        position, number = (1, None) if name == "fill" else _FILLS[name]
        number = args[position] if number is None else number
        sample = self._ask(func, args, kwargs)
        self._check_shape(func, sample)
        if sample._is_zerotensor():
            sample = torch.zeros(sample.shape, dtype=sample.dtype, device="cpu")
        if isinstance(number, torch.Tensor):  # fill_ with a 0-d tensor
            value = Value(self._spread(self._value(number).node, sample), sample)
        else:
            value = self._constant(number, sample)
        if not in_place:
            return Element(value)
        target = self._value(args[0])
        self._check_unviewed(name, target)
        target.node, target.sample, target.constant = value.node, value.sample, value.constant
        return args[0]

    def _literal(self, tensor: torch.Tensor) -> Element:
        """`torch.tensor(2.0)` inside the function: a constant."""
        if tensor.dim() != 0:
            raise self._refuse(
                f"a tensor made inside the function must be 0-d, this one has shape {tuple(tensor.shape)}"
                f"{self._line()}; pass it by operands="
            )
        return Element(self._constant(tensor.item(), tensor))

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not all(self._value(tensor).constant for tensor in tensors_among(args, kwargs)):
            raise self._refuse(f"{READS_ADVICE}{self._line()}")
        return run_plainly(func, args, kwargs)  # a constant of the function's own

    # -- the graph -----------------------------------------------------------------------------------------------

    def _ask(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Shape and dtype of what torch would return."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            raise self._cannot(f"moving a value to {device}", "a function runs where its operands are")
        for tensor in tensors_among(args, kwargs):
            self._value(tensor)
        try:
            # Samples are shared by copies of a value: what an operation writes to is a copy for it alone.
            return run_plainly(func, args, kwargs, torch.clone if func._schema.is_mutable else None)
        except RuntimeError as error:
            if "ZeroDivisionError" not in str(error):
                raise
            return run_plainly(func, args, kwargs, torch.ones_like)

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], sample: torch.Tensor) -> fx.Node:
        plain = [self._node(argument) if isinstance(argument, Element) else argument for argument in args]
        named = {
            key: self._node(value) if isinstance(value, Element) else value
            for key, value in kwargs.items()
            if key not in _PLACEMENT
        }
        return _describe(self.graph.call_function(func, tuple(plain), named), sample)

    def _node(self, element: Element) -> fx.Node:
        """The value as an argument, or as a result."""
        value = element.value
        smooth = value.sample.dtype.is_floating_point or value.sample.dtype.is_complex
        if not element.detached or value.constant or not smooth:
            return value.node
        return _describe(self.graph.call_function(aten.detach.default, (value.node,)), value.sample)

    def _constant(self, number: Any, sample: torch.Tensor) -> Value:
        dtype = {"dtype": sample.dtype}
        if sample.dim() > 0:
            return Value(self._call(aten.full_like.default, (self._first, number), dtype, sample), sample)
        node = self._call(aten.scalar_tensor.default, (number,), dtype, sample)
        return Value(node, sample.new_full((), number), constant=True)

    def _spread(self, node: fx.Node, sample: torch.Tensor) -> fx.Node:
        """A 0-d value as a block of `sample`'s dtype, which promotes other values as a block does."""
        if node.meta["dtype"] != sample.dtype:
            node = self._call(aten._to_copy.default, (node,), {"dtype": sample.dtype}, sample)
        if sample.dim() == 0:
            return node
        always = self._constant(True, sample.bool())
        return self._call(aten.where.self, (always.node, node, node), {}, sample)

    def _result(self, result: Any) -> fx.Node:
        if isinstance(result, torch.Tensor):
            value = self._value(result)
            if value.as_real or tuple(result.shape) not in ((), self._shape):
                raise self._misshapen("the function returns", result)
            return self._node(result)  # type: ignore[arg-type]
        if isinstance(result, (bool, int, float, complex)):
            assert self._first is not None
            like = torch.empty(self._shape, dtype=self._first.meta["dtype"], device="cpu")
            try:
                kind = torch.result_type(like, result)
                return self._constant(result, torch.empty((), dtype=kind, device="cpu")).node
            except (RuntimeError, OverflowError):
                held = dtype_name(like.dtype)
                raise self._refuse(f"the function returns a number that {held} does not hold") from None
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

    def _value(self, tensor: torch.Tensor) -> Value:
        if isinstance(tensor, Element) and tensor.value.node.graph is self.graph:
            return tensor.value
        raise self._refuse(
            f"the function closes over a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}{self._line()}; "
            "make it a parameter and pass it by operands= (Python numbers may be closed over)"
        )

    def _check_unviewed(self, name: str, value: Value) -> None:
        if value.viewed:
            raise self._cannot(f"aten.{name}_ on memory that is seen through a conjugate or part as well")

    def _check_shape(self, func: Any, sample: torch.Tensor) -> None:
        if tuple(sample.shape) not in ((), self._shape):
            raise self._misshapen(f"aten.{func._schema.name.partition('::')[2]} makes", sample)

    def _line(self) -> str:
        return user_line(entry=_call_user.__name__)


def _describe(node: fx.Node, tensor: torch.Tensor) -> fx.Node:
    node.meta["dtype"] = tensor.dtype
    node.meta["scalar"] = tensor.dim() == 0
    return node
