"""A plan's call that has its tensors: it launches, and does nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, NoReturn

import torch

from weft.base.arrays import as_results, as_tensor, increment_version, is_transforming
from weft.base.dispatch import is_traced
from weft.errors import UnsupportedError
from weft.plans.checks import reject_gradient
from weft.plans.promoting import PromotingLaunch


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
        self._counted = [one for one in each if isinstance(one, torch.Tensor) and not one.is_inference()]
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


def held(name: str, array: Any, *, conjugate: bool = False) -> torch.Tensor:
    """An array as a tensor over its own memory, which a bound call keeps; `conjugate`: a conjugate view will do.

    Raises `UnsupportedError` where nothing could be bound.
    """
    tensor = as_tensor(name, array)
    if is_transforming() or is_traced((tensor,)):
        raise UnsupportedError(f"{name} is seen by a transform or a tracer of torch, and has no address to bind")
    if tensor.is_neg() or (tensor.is_conj() and not conjugate):
        raise UnsupportedError(f"{name} is a negative or conjugate view, of which calls read a copy: bind a copy of it")
    reject_gradient(name, tensor)
    return tensor.detach()


def held_places(out: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """`out` of a call, one array or several, as `held` has it."""
    places = as_results(out)
    if isinstance(places, tuple):
        return tuple(held(f"out[{at}]", place) for at, place in enumerate(places))
    return held("out", places)
