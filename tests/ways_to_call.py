"""Ways to make a call of a program: in a thread, within transforms, with other memory, as plans depend on other things.

Each is given the scene, the call and its operands, and returns the call's result. It leaves nothing behind.
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
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import weft
from doors import Call, Scene
from weft.planner import tuned, validity, verdicts
from weft.planner.planner import choose
from weft.planner.target import target_of

Around = Callable[[Scene, Call, list[Tensor]], Any]


def plainly(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return call(*tensors)


def within(make: Callable[[Scene], AbstractContextManager[Any]]) -> Around:
    """A call in a `with` block."""

    def around(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
        with make(scene):
            return call(*tensors)

    return around


def with_operands(turn: Callable[[Tensor], Tensor]) -> Around:
    """A call with other operands in the place of each."""
    return lambda scene, call, tensors: call(*[turn(each) for each in tensors])


def setting(value: Any, read: Callable[[], Any], write: Callable[[Any], Any]) -> Around:
    """A call while torch has another setting."""

    def around(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
        before = read()
        write(value)
        try:
            return call(*tensors)
        finally:
            write(before)

    return around


class Listening(TorchDispatchMode):
    """A mode that hears all of torch's operations, and makes them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass without methods of its own."""


# -- derivatives -----------------------------------------------------------------------------------------------------


def tangent(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """The first operand gets a tangent in place, and keeps its identity."""
    first, rest = tensors[0], tensors[1:]
    with forward_ad.dual_level(), torch.no_grad():
        first.copy_(forward_ad.make_dual(first.detach().clone(), torch.ones_like(first)))
        found = call(first, *rest)
        parts: list[Tensor] = []
        for value, rate in map(forward_ad.unpack_dual, flat(found)):
            parts += [value.detach().clone(), torch.zeros_like(value) if rate is None else rate.detach().clone()]
    return parts


def vmap(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    many = [torch.stack([each, each + 1]) for each in tensors]
    return torch.func.vmap(call)(*many)


def grad(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return torch.func.grad(lambda *x: flat(call(*x))[0].sum())(*tensors)


def jvp(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return torch.func.jvp(call, tuple(tensors), tuple(torch.ones_like(each) for each in tensors))


def checkpoint(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return torch.utils.checkpoint.checkpoint(call, *tensors, use_reentrant=False)


def flip(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    for each in tensors:
        each.requires_grad_(not each.requires_grad)
    return call(*tensors)


def step(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
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


def in_a_thread(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
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


def forked(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """The values of a call in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            try:
                answer: Any = [each.detach().cpu() for each in flat(call(*tensors))]
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


def captured(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """The call within the capture of a graph. torch's own products cannot be captured before one has run."""
    torch.ones(2, 2, device="cuda").mm(torch.ones(2, 2, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = call(*tensors)
    graph.replay()
    torch.cuda.synchronize()
    return found


def interrupted(after: int) -> Around:
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


def fake(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
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


def transposed(tensor: Tensor) -> Tensor:
    """Other strides, in the opposite order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def spread(tensor: Tensor) -> Tensor:
    """Strides with gaps."""
    wide = tensor.new_full((*tensor.shape, 2), torch.nan)
    wide[..., 0] = tensor
    return wide[..., 0]


def freed(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """Memory of operands that are gone has others by now."""
    copies = [each.detach().clone() for each in tensors]
    call(*copies)
    kept = [(each + 1).tolist() for each in copies]
    copies.clear()
    return call(*[torch.tensor(values, device=scene.device) for values in kept])


def resized(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    tensors[0].untyped_storage().resize_(0)
    return call(*tensors)


def moved(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    """Operands keep their identity and get other memory."""
    for each in tensors:
        each.data = shifted(4)(each.detach()) + 1
    return call(*tensors)


def aliased(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    return call(*tensors, out=tensors[0])


def partly_aliased(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    first = tensors[0].detach()
    wide = torch.cat([first.reshape(-1), first.reshape(-1)])
    size = first.numel()
    given = wide[:size].view(first.shape), wide[size // 2 : size // 2 + size].view(first.shape)
    return call(given[0], *tensors[1:], out=given[1])


# -- what plans depend on --------------------------------------------------------------------------------------------


def store_a_schedule(scene: Scene) -> None:
    with torch.no_grad():
        plan = weft.plan("mk,kn->nm", torch.ones(6, 6), torch.ones(6, 6), backend="cpu", specialize="now")
    choice = choose(plan.contraction, "cpu", target_of("cpu", torch.device("cpu")))
    best = choice.best
    tuned.remember(choice, None, tuned.TunedSchedule(best.schedule, 1e-6, best.schedule, 1e-6, 1))
    validity.outdate()  # also where the same was stored before


def fail_families(scene: Scene) -> None:
    verdict = verdicts.Verdict("a value is wrong", "2026-01-01", 0.1)
    target = target_of("cpu", torch.device("cpu"))
    for family in ("gett", "stream"):
        verdicts.record(f"weft.cpu.{family}.family", "cpu", target, {"of this test": verdict})
    scene.stack.callback(verdicts.forget)


def clear_the_cache(scene: Scene) -> None:
    weft.cache.clear()


def write_parameters(scene: Scene) -> None:
    with torch.no_grad():
        for each in scene.parameters:
            each.mul_(2)


def other_threads(scene: Scene, call: Call, tensors: list[Tensor]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    try:
        return call(*tensors)
    finally:
        torch.set_num_threads(before)


def tf32(scene: Scene) -> AbstractContextManager[Any]:
    return settings(
        (torch.backends.cuda.matmul, "allow_tf32", True),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True),
        (torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    )


class settings:
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


def flat(found: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [each for one in found for each in flat(one)] if isinstance(found, Sequence) else []
