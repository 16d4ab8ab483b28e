"""A process that compiles kernels ahead, so that the one that uses them finds them in weft's store.

Started by `weft.tune.compile_pool`. It imports torch and Triton once, never touches a GPU, and forks a child for each
schedule, which it chooses itself on request. Standard input is a socket: it brings a header and then tasks, each with
its number, and takes the number of each back with None, what went wrong, or the schedule that was chosen; 0 comes back
once all is imported.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn

SECONDS = 60.0  # that compiling one schedule may take
_LOOK = 1.0  # seconds between looks at the parent and the clock


class Task(NamedTuple):
    """One schedule to be compiled. Pickled by `weft.tune.compile_pool`."""

    description: Any
    rank: Any  # a `Ranked`; None: the one that the planner chooses
    workspace_limit: int | None = None  # of that


class _Child(NamedTuple):
    number: int
    process: int
    deadline: float


def main(parent: int) -> NoReturn:
    """`parent`: the process whose end is this one's, though one that it has forked may hold the socket open."""
    link = Connection(os.dup(0))
    while not link.poll(_LOOK):
        _check(parent)
    target, backend, jobs, idle = link.recv()
    _prepare(target, backend)
    try:
        link.send((0, None))
        _serve(target, jobs, idle, link, parent)
    except (EOFError, OSError):  # nobody listens any more
        os.killpg(0, signal.SIGKILL)
    os._exit(0)  # at its end Python would have Triton list what it has leaked


def _serve(target: Any, jobs: int, idle: float, link: Connection, parent: int) -> None:
    """Keep `jobs` children busy, until nothing was to be done for `idle` seconds. Raises where the link is gone."""
    waiting: deque[tuple[int, bytes]] = deque()
    children: dict[Any, _Child] = {}  # by the pipes that they answer through
    last = time.monotonic()
    while children or time.monotonic() < last + idle:
        for source in wait([link, *children], _LOOK):
            last = time.monotonic()
            if source is link:
                waiting.append(link.recv())
            else:
                link.send(_answer(source, children.pop(source)))
        _check(parent)
        for child in children.values():
            if time.monotonic() > child.deadline:
                os.kill(child.process, signal.SIGKILL)
        while waiting and len(children) < jobs:
            number, frame = waiting.popleft()
            ours, theirs = os.pipe()
            process = os.fork()
            if process == 0:
                _compile_and_leave(frame, target, Connection(theirs, readable=False))
            os.close(theirs)
            children[Connection(ours, writable=False)] = _Child(number, process, time.monotonic() + SECONDS)


def _answer(source: Any, child: _Child) -> tuple[int, Any]:
    """The answer of a child that has one, or has ended."""
    with source:
        try:
            found = source.recv()
        except EOFError:
            found = None
    status = os.waitpid(child.process, 0)[1]
    if status != 0:
        late = time.monotonic() > child.deadline
        code = os.waitstatus_to_exitcode(status)
        found = f"compiling takes more than {SECONDS:.0f} s" if late else f"the compiler died of signal {code}"
    return child.number, found


def _compile_and_leave(frame: bytes, target: Any, link: Connection) -> NoReturn:
    """Compile all kernels of one schedule in a child, answer, end without cleaning up after its parent.

    A task that does not arrive whole is not the schedule's fault: it is compiled where it is built.
    """
    try:
        task = pickle.loads(frame)
    except BaseException:
        os._exit(0)
    try:
        found = compile_schedule(task, target) if task.rank is not None else _planned(task, target)
    except BaseException as error:
        found = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    link.send(found)
    os._exit(0)


def compile_schedule(task: Task, target: Any) -> str | None:
    """Compile one schedule; None, or why the device could not run it."""
    from weft.gpu.common.cubins import excess
    from weft.gpu.common.launch import collected

    with collected() as launches:
        task.rank.build(task.description, target)
    for launch in launches:
        cubin = compile_launch(launch)
        reason = excess(cubin.shared, cubin.tensor_memory, target)
        if reason is not None:
            return reason
    return None


def _planned(task: Task, target: Any) -> dict[str, Any]:
    """Choose a schedule and compile it: its family, and the schedule as it is stored."""
    from weft.planner.keys import serialize_schedule
    from weft.planner.planner import choose

    best = choose(task.description, "triton", target, task.workspace_limit).best
    compile_schedule(task._replace(rank=best), target)
    return {"family": best.family.__name__, "serialized": serialize_schedule(best.schedule, task.description)}


def compile_launch(launch: Any) -> Any:
    """Compile a kernel into weft's store, or where only Triton can launch it into Triton's cache, and its launcher.

    Nothing is compiled that the pack or the store has.
    """
    from weft.gpu.common.cubins import code_of
    from weft.gpu.common.triton_versions import build_launcher

    cubin = code_of(launch)
    if cubin.sizes is None:
        with contextlib.suppress(Exception):  # without a compiler for C: the process that loads the kernel will say so
            build_launcher(launch.compile())
    return cubin


def _prepare(target: Any, backend: str) -> None:
    """Import what every child needs, and put a driver in Triton's place of one that would ask a GPU."""
    import torch

    from weft.gpu.common.triton_versions import hash_compiler
    from weft.gpu.gett.kernel import gett_kernel  # noqa: F401  the largest of them, with all that it imports
    from weft.gpu.simt.kernel import simt_kernel  # noqa: F401
    from weft.planner.registry import FAMILIES, PERMUTATION_FAMILIES, imported

    for name in (*FAMILIES[backend], *PERMUTATION_FAMILIES[backend]):
        imported(name)
    torch.set_num_threads(1)
    in_place_of_the_driver(target)
    hash_compiler()
    gc.freeze()  # what is here is the children's too: collecting it would copy it


def in_place_of_the_driver(target: Any) -> None:
    """Make this process one that compiles for a target and can run nothing: no GPU is queried any more."""
    import torch
    from triton.runtime import driver

    torch.cuda.is_available = lambda: False
    driver.set_active(AbsentDriver(target.capability))


class AbsentDriver:
    """Triton's driver of a GPU that is not there: it says for what to compile, and can load nothing."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


def _check(parent: int) -> None:
    """Without its parent this process ends, and its children with it."""
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
