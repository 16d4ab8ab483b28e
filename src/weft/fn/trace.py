"""From a user's function to a `Pointwise`, again where the function may have changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch

from weft.base.caches import BoundedCache
from weft.errors import FunctionError
from weft.fn import binding
from weft.fn.decompositions import DECOMPOSITIONS
from weft.fn.fingerprint import fingerprint, fingerprints
from weft.fn.graphs import canonical
from weft.fn.operations import FUSED
from weft.fn.pointwise import Pointwise, RecordedFunction
from weft.fn.record import record
from weft.fn.reductions import REDUCE, SHAPES
from weft.fn.triton_function import is_triton_function, triton_function

#: Operations on complex values that real ones do not need; the CPU runs them.
_COMPLEX = frozenset({"conj_physical", "real", "imag", "complex", "polar", "angle", "log_sigmoid"})

_traces = BoundedCache(1024)


def trace(
    fn: Callable[..., Any], dtypes: Sequence[torch.dtype], *, names: Sequence[str] = (), hook: str = "function",
    reduces: bool = False,
) -> Pointwise:  # fmt: skip
    """Record `fn` for elements of those dtypes.

    `fn` is ordinary Python on torch operations: a function, a built-in, a `functools.partial`, an `nn.Module` without
    parameters, any callable; or a `@triton.jit` function, which is taken as it is. Its first parameter is the value;
    `names` are further parameters that tensors are passed to. `dtypes` are the value's and then theirs. Python numbers
    that it closes over, reads from globals or gets by default are baked in. It runs twice on fake tensors, unless an
    earlier trace is known to hold still (`fingerprint`). It may change its argument in place: the copy it is given.

    A `Pointwise` for elements of these dtypes is returned as it is.

    `hook` names the argument in messages (`"a_fn"`). `reduces` lets it reduce over modes (`weft.fn.reductions`).
    Raises `FunctionError` for what is not pointwise, closes over tensors, reads values into Python or depends on its
    argument's shape.
    """
    dtypes, names = tuple(dtypes), tuple(names)
    if len(dtypes) != 1 + len(names):
        parameters = ", ".join(("value", *names))
        raise FunctionError(f"{hook}: parameters {parameters} need as many dtypes, not {len(dtypes)}")
    if not callable(fn):
        raise FunctionError(f"{hook}: {type(fn).__name__} is not a function")
    if isinstance(fn, Pointwise) and fn.dtypes == dtypes and fn.inputs[1:] == names:
        return fn
    print_of_fn = fingerprint(fn)
    if print_of_fn is None:
        return _trace(fn, dtypes, names, hook, reduces)
    key = (print_of_fn, dtypes, names, reduces)
    traced: Pointwise | None = _traces.get(key)
    if traced is None:
        traced = _trace(fn, dtypes, names, hook, reduces)
        _traces.put(key, traced)
    return traced


def _trace(
    fn: Callable[..., Any], dtypes: tuple[torch.dtype, ...], names: tuple[str, ...], hook: str, reduces: bool
) -> Pointwise:
    first = _check_parameters(fn, names, hook)
    if is_triton_function(fn):
        return triton_function(fn, first, names, dtypes)
    if isinstance(fn, torch.nn.Module):
        _check_module(fn, hook)

    def call(value: torch.Tensor, *others: torch.Tensor) -> Any:
        return fn(value, **dict(zip(names, others, strict=True)))

    allowed = fusible_or_reduction if reduces else fusible
    graph, other = (record(call, dtypes, shape, hook=hook, fusible=allowed, detaches=True) for shape in SHAPES)
    function = RecordedFunction(graph, (first, *names))
    if function.identity != canonical(other):
        raise FunctionError(
            f"{hook}: the function does different things for different shapes of its argument (or from call to call); "
            "it is given blocks of elements, whose shape means nothing"
        )
    return function


def fusible(name: str) -> bool:
    """Whether an aten operation of that name may stand in a recorded function."""
    return name in FUSED or name in DECOMPOSITIONS or name in _COMPLEX


def fusible_or_reduction(name: str) -> bool:
    """Whether an operation of that name may stand in a recorded function that reduces over modes."""
    return name == str(REDUCE) or fusible(name)


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """The signature without its types, for messages."""
    empty = inspect.Signature.empty
    parameters = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)


def _check_parameters(fn: Callable[..., Any], names: tuple[str, ...], hook: str) -> str:
    """Name of the first parameter; refuses names that the function does not have and parameters left without value."""
    signature = binding.signature(fn)
    if signature is None:
        return "value"
    takes = f"the function takes {_bare(signature)}"
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        for name in names:
            if name not in signature.parameters:
                raise FunctionError(f"{hook}: no parameter is called '{name}'; {takes}")
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        given = f" and then {', '.join(names)} by name" if names else " alone (more comes by operands= and indices=)"
        raise FunctionError(f"{hook}: {error}; {takes}, and is given the value{given}") from None
    parameter = next(iter(signature.parameters.values()))
    return "value" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name


def _check_module(module: torch.nn.Module, hook: str) -> None:
    held = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    if held:
        raise FunctionError(
            f"{hook}: the module {type(module).__name__} closes over tensors ({', '.join(held)}); "
            "write it as a function and pass them by operands="
        )


Traced = TypeVar("Traced", bound=Hashable)
_REMEMBERED = 64


class Watched(Generic[Traced]):
    """`now()` is what `trace` makes of the functions as they are, found again where they are known to be as before."""

    def __init__(self, functions: tuple[Callable[..., Any] | None, ...], trace: Callable[[], Traced]) -> None:
        self._functions, self._trace = functions, trace
        self._known = BoundedCache(_REMEMBERED)
        self._latest: tuple[Hashable, Traced] | None = None  # mostly they are as they were
        self._last: Traced | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Watched, (self._functions, self._trace)

    def changed(self) -> bool:
        """Whether that is something else than when this was last asked; True at first."""
        last, self._last = self._last, self.now()
        return self._last != last

    def now(self) -> Traced:
        prints, latest = fingerprints(self._functions), self._latest
        if latest is not None and latest[0] == prints:
            return latest[1]
        if prints is None:
            return self._trace()
        found: Traced | None = self._known.get(prints)
        if found is None:
            found = self._trace()
            self._known.put(prints, found)
        self._latest = prints, found
        return found
