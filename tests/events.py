"""What happens around a call of a program, before it or between two: the events of `test_doors_and_events.py`.

An event is given the scene, the call and its operands, and returns the call's result as the event would have it. It
leaves nothing behind but what it is about: `change` of an event stays until the end of a cell.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

import doors
import weft
from doors import Call, Scene
from weft.planner import tuned, validity, verdicts
from weft.planner.planner import choose
from weft.planner.target import target_of

Around = Callable[[Scene, Call, list[Tensor]], Any]


def _plainly(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return call(*tensors)


class Event(NamedTuple):
    """`around` makes the call; `change` is made before it, and stays. `only`, `without`: traits of doors that it is
    for, or not for, with `why`. `fine`: values are no whole numbers, as it is about how they are rounded.
    """

    around: Around = _plainly
    change: Callable[[Scene], object] | None = None
    only: str = ""
    without: str = ""
    why: str = ""
    fine: bool = False
    gpu: bool | None = None  # for a GPU alone, or for a CPU alone
    grads: bool = True  # also of operands that require gradients

    def reason(self, traits: frozenset[str], device: str) -> str:
        """Why a door has no such event; empty where it has."""
        if self.gpu is not None and self.gpu is not (device == "cuda"):
            return f"it is for a {'GPU' if self.gpu else 'CPU'} alone"
        if self.only and self.only not in traits:
            return f"nothing of this call is {self.only}"
        if met := traits & set(self.without.split()):
            return self.why or f"it is not for doors with {', '.join(sorted(met))}"
        if device == "cuda" and "jax" in traits:
            return "JAX is tested on a CPU here"
        return ""


def within(make: Callable[[Scene], AbstractContextManager[Any]]) -> Around:
    """A call in a `with` block."""

    def around(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
        with make(scene):
            return call(*tensors)

    return around


def with_operands(turn: Callable[[Tensor], Tensor]) -> Around:
    """A call with other operands in the place of each."""
    return lambda scene, call, tensors: call(*[turn(each) for each in tensors])


def setting(name: str, value: Any, read: Callable[[], Any], write: Callable[[Any], Any]) -> Around:
    """A call while torch has another setting."""

    def around(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
        before = read()
        write(value)
        try:
            return call(*tensors)
        finally:
            write(before)

    around.__name__ = name
    return around


class Listening(TorchDispatchMode):
    """A mode that hears all of torch's operations, and makes them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass without methods of its own."""


# -- derivatives -----------------------------------------------------------------------------------------------------


def _tangent(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """The first operand gets a tangent in place, and keeps its identity."""
    first, rest = tensors[0], tensors[1:]
    with forward_ad.dual_level(), torch.no_grad():
        first.copy_(forward_ad.make_dual(first.detach().clone(), torch.ones_like(first)))
        found = call(first, *rest)
        results = _flat(found)
        pairs = [forward_ad.unpack_dual(each) for each in results]
        found = [part.detach().clone() for pair in pairs for part in pair if part is not None]
    return found


def _vmap(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    many = [torch.stack([each, each + 1]) for each in tensors]
    return torch.func.vmap(call)(*many)


def _grad(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return torch.func.grad(lambda *x: _flat(call(*x))[0].sum())(*tensors)


def _jvp(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return torch.func.jvp(call, tuple(tensors), tuple(torch.ones_like(each) for each in tensors))


def _checkpoint(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return checkpoint(call, *tensors, use_reentrant=False)


def _flip(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    for each in tensors:
        each.requires_grad_(not each.requires_grad)
    return call(*tensors)


def _step(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """A fused optimizer writes the operands, and the parameters of a layer, in place."""
    given = [each.detach().requires_grad_(each.requires_grad) for each in tensors]  # the same memory
    written = [*given, *scene.parameters]
    kept = [each.requires_grad for each in written]
    for each in written:
        each.requires_grad_()
        each.grad = torch.ones_like(each)
    torch.optim.SGD(written, lr=1.0, fused=True).step()
    for each, required in zip(written, kept, strict=True):
        each.grad = None
        each.requires_grad_(required)
    return call(*tensors)


# -- where a call runs -----------------------------------------------------------------------------------------------


def _in_a_thread(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    found: list[Any] = []
    grad = torch.is_grad_enabled()

    def go() -> None:
        try:
            with torch.set_grad_enabled(grad):
                found.append(call(*tensors))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _forked(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """The values of a call in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            try:
                answer: Any = [each.detach().cpu() for each in _flat(call(*tensors))]
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            buffer = io.BytesIO()
            torch.save(answer, buffer)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(buffer.getvalue())
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert select.select([read], [], [], 60)[0], "the child is silent"
        with os.fdopen(read, "rb") as pipe:
            answer = torch.load(io.BytesIO(pipe.read()))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _captured(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = call(*tensors)
    graph.replay()
    torch.cuda.synchronize()
    return found


def _interrupted(after: int) -> Around:
    """Ctrl-C at one of the first calls of functions of weft within the call, which is then made again."""

    def around(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
        left = after

        def heard(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event == "call" and "/weft/" in frame.f_code.co_filename:
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        sys.setprofile(heard)
        try:
            call(*tensors)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return call(*tensors)

    return around


def _fake(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = call(*[mode.from_tensor(each) for each in tensors])
    return tree_map_only(Tensor, lambda each: torch.empty_like(each, device="meta"), found)


# -- memory ----------------------------------------------------------------------------------------------------------


def shifted(bytes_off: int) -> Callable[[Tensor], Tensor]:
    """The same values at an address that is so far past an aligned one."""

    def turn(tensor: Tensor) -> Tensor:
        if bytes_off < tensor.element_size():
            tensor = tensor.to(torch.bfloat16)
        off = bytes_off // tensor.element_size()
        return torch.cat([tensor.new_zeros(off), tensor.reshape(-1)])[off:].view(tensor.shape)

    return turn


def _transposed(tensor: Tensor) -> Tensor:
    """Other strides, in the opposite order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def _spread(tensor: Tensor) -> Tensor:
    """Strides with gaps."""
    wide = tensor.new_full((*tensor.shape, 2), torch.nan)
    wide[..., 0] = tensor
    return wide[..., 0]


def _freed(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """Memory of operands that are gone has others by now."""
    copies = [each.detach().clone() for each in tensors]
    call(*copies)
    kept = [(each + 1).tolist() for each in copies]
    copies.clear()
    return call(*[torch.tensor(values, device=scene.device) for values in kept])


def _resized(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    tensors[0].untyped_storage().resize_(0)
    return call(*tensors)


def _moved(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """Operands keep their identity and get other memory."""
    for each in tensors:
        each.data = shifted(4)(each.detach()) + 1
    return call(*tensors)


def _aliased(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return call(*tensors, out=tensors[0])


def _partly_aliased(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    first = tensors[0].detach()
    wide = torch.cat([first.reshape(-1), first.reshape(-1)])
    size = first.numel()
    given = wide[:size].view(first.shape), wide[size // 2 : size // 2 + size].view(first.shape)
    return call(given[0], *tensors[1:], out=given[1])


# -- what plans depend on --------------------------------------------------------------------------------------------


def _store_a_schedule(scene: Scene) -> None:
    with torch.no_grad():
        plan = weft.plan("mk,kn->nm", scene.numbers(6, 6), scene.numbers(6, 6), backend="cpu", specialize="now")
    choice = choose(plan.contraction, "cpu", target_of("cpu", torch.device("cpu")))
    best = choice.best
    tuned.remember(choice, None, tuned.TunedSchedule(best.schedule, 1e-6, best.schedule, 1e-6, 1))
    validity.outdate()  # also where the same was stored before


def _fail_families(scene: Scene) -> None:
    verdict = verdicts.Verdict("a value is wrong", "2026-01-01", 0.1)
    target = target_of("cpu", torch.device("cpu"))
    for family in ("gett", "stream", "ttgt"):
        verdicts.record(f"weft.cpu.{family}.family", "cpu", target, {"of this test": verdict})
    scene.stack.callback(verdicts.forget)


def _clear_the_cache(scene: Scene) -> None:
    weft.cache.clear()


def _write_parameters(scene: Scene) -> None:
    with torch.no_grad():
        for each in scene.parameters:
            each.mul_(2)


def _other_threads(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    try:
        return call(*tensors)
    finally:
        torch.set_num_threads(before)


def _tf32(scene: Scene) -> AbstractContextManager[Any]:
    return _settings(
        (torch.backends.cuda.matmul, "allow_tf32", True),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True),
        (torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    )


class _settings:
    """Attributes of objects, within a block."""

    def __init__(self, *attributes: tuple[Any, str, Any]) -> None:
        self._attributes = attributes

    def __enter__(self) -> None:
        self._before = [getattr(each, name) for each, name, _ in self._attributes]
        for each, name, value in self._attributes:
            setattr(each, name, value)

    def __exit__(self, *error: object) -> None:
        for (each, name, _), value in zip(self._attributes, self._before, strict=True):
            setattr(each, name, value)


def _flat(found: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [each for one in found for each in _flat(one)] if isinstance(found, Sequence) else []


flat = _flat
_NUMPY = "jax takes no tensors: those of the test go through NumPy"

EVENTS: dict[str, Event] = {
    "nothing": Event(),
    "autocast": Event(within(lambda scene: torch.autocast(scene.device, torch.bfloat16)), fine=True),
    "precision": Event(within(lambda _: weft.precision("ieee_bound")), fine=True),
    "no_grad": Event(within(lambda _: torch.no_grad())),
    "inference mode": Event(within(lambda _: torch.inference_mode())),
    "a tangent in place": Event(_tangent, without="jax bound", why=_NUMPY, grads=False),
    "vmap": Event(_vmap, without="jax bound alone", why=_NUMPY, grads=False),
    "grad": Event(_grad, without="jax bound alone", why=_NUMPY, grads=False),
    "jvp": Event(_jvp, without="jax bound alone", why=_NUMPY, grads=False),
    "a dispatch mode": Event(within(lambda _: Listening())),
    "fake tensors": Event(_fake, without="jax bound alone ranks", why="values are read", grads=False),
    "meta tensors": Event(with_operands(lambda x: x.to("meta")), without="jax bound alone", why="values are read", grads=False),
    "capture": Event(_captured, gpu=True, without="alone jax ranks", why="values are read", grads=False),
    "fork": Event(_forked, gpu=False, without="jax ranks", why="neither JAX nor process groups outlive a fork", grads=False),
    "another thread": Event(_in_a_thread),
    "number of threads": Event(_other_threads),
    "a schedule is stored": Event(change=_store_a_schedule),
    "families fail": Event(change=_fail_families),
    "a global": Event(change=lambda _: doors.change_global(), only="functions"),
    "a closure's list": Event(change=lambda scene: scene.box.__setitem__(0, 0.25), only="functions"),
    "an attribute": Event(change=lambda scene: setattr(scene.held, "shift", 3.0), only="functions"),
    "a module's number": Event(change=lambda scene: setattr(scene.module, "negative_slope", 0.25), only="functions"),
    "parameters": Event(change=_write_parameters, only="parameters"),
    "another vjp": Event(change=lambda scene: setattr(scene, "algebra", doors.product_sum(2.0)), only="algebra"),
    "out is an operand": Event(_aliased, only="out"),
    "out overlaps an operand": Event(_partly_aliased, only="out"),
    **{f"{off} bytes off": Event(with_operands(shifted(off)), without="jax bound", why=_NUMPY) for off in (2, 4, 8, 16, 32, 64)},
    "a conjugate": Event(with_operands(lambda x: torch.complex(x, x).conj()), without="jax bound alone", why=_NUMPY),
    "a negative view": Event(with_operands(lambda x: torch.complex(x, x).conj().imag), without="jax", why=_NUMPY),
    "other strides": Event(with_operands(_transposed), without="jax", why=_NUMPY),
    "strides with gaps": Event(with_operands(_spread), without="jax", why=_NUMPY),
    "memory used again": Event(_freed),
    "storage resized": Event(_resized, without="jax bound copies", why="copies of freed memory are torch's", grads=False),
    "other memory": Event(_moved),
    "a subclass": Event(with_operands(lambda x: x.as_subclass(Own)), without="jax", why=_NUMPY),
    "a parameter": Event(with_operands(lambda x: torch.nn.Parameter(x.detach())), without="jax", why=_NUMPY, grads=False),
    "shortened sums": Event(within(_tf32), fine=True),
    "deterministic": Event(setting("deterministic", True, torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms)),
    "default type": Event(setting("type", torch.float64, torch.get_default_dtype, torch.set_default_dtype)),
    "default device": Event(within(lambda _: torch.device("meta"))),
    "requires_grad flipped": Event(_flip, without="jax", why=_NUMPY),
    "an optimizer's step": Event(_step, without="jax", why=_NUMPY),
    "the cache cleared": Event(change=_clear_the_cache),
    **{f"Ctrl-C after {at}": Event(_interrupted(at)) for at in (1, 4, 16, 64)},
    "checkpoint": Event(_checkpoint, without="jax", why=_NUMPY),
    "anomalies": Event(within(lambda _: torch.autograd.detect_anomaly(check_nan=False))),
}  # fmt: skip
