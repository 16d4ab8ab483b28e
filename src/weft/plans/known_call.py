"""The two short calls of a plan.

A known call is the launch that serves every call like one that was checked: only the addresses of tensors relative to
one another, and factors, are looked at in each. A bound call has its tensors: it launches, and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, NoReturn

from torch import Tensor, dtype, empty_strided

from weft.base.arrays import as_results, as_tensor, increment_version
from weft.base.memory import workspace_error
from weft.engine.ways import is_hidden
from weft.errors import UnsupportedError, is_out_of_memory
from weft.planner.schedule import Make, NewTensor
from weft.plans.checks import fits, reject_gradient
from weft.plans.promoting import PromotingLaunch

_new = empty_strided  # takes half as long as torch.empty


def said_operands(operands: Any) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """A key of the names and modes of a call's operands, and their tensors; None where the call must be read."""
    if type(operands) is not dict:
        return None, ()
    said: tuple[Any, ...] = ()
    tensors: tuple[Any, ...] = ()
    for name, value in operands.items():  # mostly one
        modes = None
        if type(value) is tuple and len(value) == 2:
            modes, value = value
            if type(modes) is not str:
                return None, ()
        said += ((name, modes),)
        tensors += (value,)
    return said, tensors


class KnownCall(NamedTuple):
    """The launch of calls on tensors that lie alike."""

    launch: Callable[..., None]
    number: type  # of alpha and beta
    new: NewTensor  # the result, where `out` is not given
    reaches: tuple[int, ...] = ()  # bytes from the first to past the last element of D, A, B, and operands
    scaled: bool = True  # whether there are an alpha and a beta: only plus-times has them, in a type with room for them
    addend: tuple[int, bool] | None = None  # of C: the same bytes, and whether its layout is `out`'s; None without C
    variant: Any = None  # of the plan, whose kernels may be exchanged: its workspace is read when it is reported
    others: tuple[dtype, ...] = ()  # of what the epilogue yields after D; then there is no `out`
    views: tuple[bool, ...] = ()  # of A and B: whether they are conjugate views; none where neither is
    #: Which operand each auxiliary tensor of the launch is, None for a coordinate; None where they are as they come.
    order: tuple[int | None, ...] | None = None
    make: Make | None = None  # the launch's own plain call, which makes the result

    def run(
        self, a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 1.0, out: Any = None,
        operands: Sequence[Any] = (),
    ) -> Any:  # fmt: skip
        """The result of a call, or None where it must be checked in full."""
        make, order = self.make, self.order
        aux = operands if order is None else [None if at is None else operands[at] for at in order]
        if make is not None and out is None and c is None and type(alpha) is type(beta) is float and alpha == 1 == beta:
            try:
                return make(a, b, *aux)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):  # the full way reports how much was requested
                    return None
                raise
        launch, number = self.launch, self.number
        if type(alpha) is not number and (alpha := _as(number, alpha)) is None:
            return None
        if type(beta) is not number and (beta := _as(number, beta)) is None:
            return None
        if c is None:
            if beta != 1 and (beta != 0 or not self.scaled):  # a factor of a C that is not there is a mistake
                return None
        elif beta == 0 or (beta != 1 and not self.scaled):  # without C it is another launch
            return None
        if (alpha != 1 and (alpha == 0 or not self.scaled)) or (number is int and not (fits(alpha) and fits(beta))):
            return None
        further: tuple[Tensor, ...] = ()
        given = out is not None
        if out is None:
            shape, strides, kind, device = self.new
            try:
                out = _new(shape, strides, dtype=kind, device=device)
                if self.others:
                    further = tuple([_new(shape, strides, dtype=other, device=device) for other in self.others])
            except RuntimeError:  # out of memory: the full way reports how much was requested
                return None
        elif self._overlaps(out, (a, b, *operands)) or (c is not None and self._overlaps_addend(out, c)):
            return None
        if self.views:  # a launch sees memory as it is stored
            a, b = (x.conj() if view else x for x, view in zip((a, b), self.views, strict=True))
        try:
            if aux or further:
                launch(a, b, c, out, alpha, beta, (*aux, *further))
            else:
                launch(a, b, c, out, alpha, beta)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise workspace_error(out.device, 0, self.variant.workspace_bytes) from error
            raise
        if given and not out.is_inference():
            increment_version((out,))  # as `weft.base.arrays.written`
        return (out, *further) if further else out

    def _overlaps(self, out: Any, inputs: Sequence[Any]) -> bool:
        """Whether the result may share memory with what is read."""
        start, reaches = out.data_ptr(), self.reaches
        end = start + reaches[0]
        for at, tensor in enumerate(inputs, 1):
            first = tensor.data_ptr()
            if start < first + reaches[at] and first < end:
                return True
        return False

    def _overlaps_addend(self, out: Any, c: Any) -> bool:
        """Whether the result may share memory with C other than as C itself."""
        assert self.addend is not None
        start, first, (size, alike) = out.data_ptr(), c.data_ptr(), self.addend
        return start < first + size and first < start + self.reaches[0] and not (alike and start == first)


def _as(number: type, value: Any) -> Any:
    """A Python number as another kind that has it exactly; None where it is none, or is to be looked at."""
    if type(value) is int:
        return number(value) if -(2**53) <= value <= 2**53 else None
    if type(value) is float:
        return value if number is float else complex(value) if number is complex else _whole(value)
    return None


def _whole(value: float) -> int | None:
    return int(value) if value.is_integer() else None


class BoundCall:
    """One call of a plan on the tensors that it was bound to; `bound()` runs it and returns its result.

    Made by `bind` of a plan. The tensors are kept, and their addresses were taken when they were bound: each run reads
    the values that they hold then, and writes the same result, `out`. Their shapes, strides and storage stay as they
    are; whoever resizes or frees a storage binds anew. Nothing is checked, traced or counted but the result's version:
    functions, factors and constants are those of the moment of binding, no derivative is recorded, and no run is one of
    the calls after which a better kernel takes over. Where other calls of the plan, or `warm`, change its kernel, the
    next run changes to it.

    Runs go to torch's current stream, may be captured in a CUDA graph, and may be made in forked processes and
    in several threads, where they take turns. They write one result: who reads it while another thread runs sees
    it half made. A bound call is neither copied nor pickled, as its copy would have other tensors.
    """

    def __init__(self, text: str, launch: Any, arguments: tuple[Any, ...], result: Any) -> None:
        """`launch` of a plan's variant, or what has a method `bound` as launches do; its `arguments`; what a run
        returns."""
        self.text, self.result, self._arguments = text, result, arguments
        each = result if isinstance(result, tuple) else (result,)
        self._counted = [one for one in each if isinstance(one, Tensor) and not one.is_inference()]
        self._turn = Lock()  # what adds up in the result's memory, as products of torch do, would add what another adds
        self._promoting = launch if isinstance(launch, PromotingLaunch) else None
        self._take(launch if self._promoting is None else self._promoting.now)

    def __call__(self) -> Any:
        """Run it; returns the result, or `out` when that was given."""
        promoting = self._promoting
        if promoting is not None and promoting.now is not self._launch:
            self._take(promoting.now)
        with self._turn:
            self._run()
        increment_version(self._counted)  # as `weft.base.arrays.written`
        return self.result

    @property
    def held(self) -> Any:
        """The launch of each run, where it is one with words of its own, and stays the same; else None."""
        return self._run if self._promoting is None and hasattr(self._run, "launched") else None

    # What torch.compiler.disable sets, without its import of dynamo.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]
    __call__._torchdynamo_disable_msg = "a bound call runs on addresses, outside of compiled code"  # type: ignore[attr-defined]

    def _take(self, launch: Any) -> None:
        """Run by this launch from now on."""
        bound: Callable[..., Callable[[], Any]] = getattr(launch, "bound", partial(partial, launch))
        self._run, self._launch = bound(*self._arguments), launch

    def __reduce__(self) -> NoReturn:
        raise TypeError("a bound call has its tensors' addresses: bind the plan to the other tensors")

    def __repr__(self) -> str:
        return f"BoundCall({self.text!r})"


def held(name: str, array: Any, *, conjugate: bool = False) -> Tensor:
    """An array as a tensor over its own memory, which a bound call keeps; `conjugate`: a conjugate view will do.

    Raises `UnsupportedError` where nothing could be bound.
    """
    tensor = as_tensor(name, array)
    if is_hidden((tensor,)):
        raise UnsupportedError(f"{name} is seen by a transform or a tracer of torch, and has no address to bind")
    if tensor.is_neg() or (tensor.is_conj() and not conjugate):
        raise UnsupportedError(f"{name} is a negative or conjugate view, of which calls read a copy: bind a copy of it")
    reject_gradient(name, tensor)
    return tensor.detach()


def held_places(out: Any) -> Tensor | tuple[Tensor, ...]:
    """`out` of a call, one array or several, as `held` has it."""
    places = as_results(out)
    if isinstance(places, tuple):
        return tuple(held(f"out[{at}]", place) for at, place in enumerate(places))
    return held("out", places)
