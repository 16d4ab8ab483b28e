"""A process that compiles kernels ahead, so that the one that uses them finds them in weft's store.

Started by `weft.tune.compile_pool`. It imports torch and Triton once, never touches a GPU, and forks a child for each
schedule, which it chooses itself on request. Standard input brings a header and then frames, each a length of
eight bytes and so many bytes; standard output takes a line of JSON for each frame: its number, and null, what went
wrong, or the schedule that was chosen.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import os
import pickle
import select
import signal
import struct
import time
import zlib
from collections import deque
from typing import Any, NamedTuple, NoReturn

LENGTH = struct.Struct("<Q")
SECONDS = 60.0  # that compiling one schedule may take
_LONGEST_ANSWER = 2000  # bytes: lines up to 4096 are written whole
_CHOSEN = "chosen:"
_LONGEST_WAIT = 0.01  # seconds between looks at the children
_LONGEST_IDLE = 1.0  # and at the parent


class Task(NamedTuple):
    """One schedule to be compiled. Pickled by `weft.tune.compile_pool`."""

    number: int
    description: Any
    rank: Any  # a `Ranked`; None: the one that the planner chooses
    workspace_limit: int | None = None  # of that


class _Child(NamedTuple):
    number: int
    deadline: float


def main(parent: int) -> NoReturn:
    """`parent`: the process whose end is this one's, though one that it has forked may hold the pipes open."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    header = pickle.loads(_exactly(LENGTH.unpack(_exactly(LENGTH.size, parent))[0], parent))
    _prepare(header["target"], header["backend"])
    _serve(header["target"], header["jobs"], answers, parent)
    os._exit(0)  # at its end Python would have Triton list what it has leaked


def _serve(target: Any, jobs: int, answers: int, parent: int) -> None:
    """Read tasks, keep `jobs` children busy, and end when input has ended and all is done."""
    waiting: deque[bytes] = deque()
    children: dict[int, _Child] = {}
    buffer, open_ = bytearray(), True
    while open_ or waiting or children:
        busy = bool(children)
        if open_:
            wait = 0.0 if waiting and len(children) < jobs else _LONGEST_WAIT if busy else _LONGEST_IDLE
            if _is_readable(wait, parent):
                piece = os.read(0, 1 << 20)
                open_ = bool(piece)
                buffer += piece
                waiting.extend(_frames(buffer))
        elif busy:
            time.sleep(_LONGEST_WAIT)
        if not open_:
            waiting.clear()  # nobody listens any more
        while waiting and len(children) < jobs:
            frame = waiting.popleft()
            (number,) = LENGTH.unpack_from(frame)
            child = os.fork()
            if child == 0:
                _compile_and_leave(number, frame[LENGTH.size :], target, answers)
            children[child] = _Child(number, time.monotonic() + SECONDS)
        _reap(children, answers)


def _frames(buffer: bytearray) -> list[bytes]:
    """Whole frames, taken off the front of what was read."""
    found = []
    while len(buffer) >= LENGTH.size:
        (size,) = LENGTH.unpack_from(buffer)
        if len(buffer) < LENGTH.size + size:
            break
        found.append(bytes(buffer[LENGTH.size : LENGTH.size + size]))
        del buffer[: LENGTH.size + size]
    return found


def _reap(children: dict[int, _Child], answers: int) -> None:
    """Take leave of children that have ended, and of those whose time is up."""
    for process, child in list(children.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended and time.monotonic() > child.deadline:
            os.kill(process, 9)
            os.waitpid(process, 0)
            _answer(answers, child.number, f"compiling takes more than {SECONDS:.0f} s")
        elif ended and status != 0:
            _answer(answers, child.number, f"the compiler died of signal {os.waitstatus_to_exitcode(status)}")
        elif not ended:
            continue
        del children[process]


def _compile_and_leave(number: int, frame: bytes, target: Any, answers: int) -> NoReturn:
    """Compile all kernels of one schedule in a child, answer, end without cleaning up after its parent.

    A task that does not arrive whole is not the schedule's fault: it is compiled where it is built.
    """
    try:
        task = pickle.loads(frame)
    except BaseException:
        _answer(answers, number, None)
        os._exit(0)
    try:
        reason = compile_schedule(task, target) if task.rank is not None else _planned(task, target)
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    _answer(answers, number, reason)
    os._exit(0)


def compile_schedule(task: Task, target: Any) -> str | None:
    """Compile one schedule; None, or why the device could not run it."""
    from weft.gpu.common.cubin import excess
    from weft.gpu.common.launch import collected

    with collected() as launches:
        task.rank.build(task.description, target)
    for launch in launches:
        cubin = compile_launch(launch)
        reason = excess(cubin.shared, cubin.tensor_memory, target)
        if reason is not None:
            return reason
    return None


def _planned(task: Task, target: Any) -> str | None:
    """Choose a schedule and compile it; an answer that `chosen_of` reads."""
    from weft.planner.planner import choose
    from weft.planner.serialization import serialize_schedule

    best = choose(task.description, "triton", target, task.workspace_limit).best
    compile_schedule(task._replace(rank=best), target)
    said = {"family": best.family.__name__, "serialized": serialize_schedule(best.schedule, task.description)}
    answer = _CHOSEN + base64.b64encode(zlib.compress(json.dumps(said).encode(), 9)).decode()
    return answer if len(answer) <= _LONGEST_ANSWER else None


def chosen_of(answer: str | None) -> dict[str, Any] | None:
    """The family and the serialized schedule that an answer holds; None for any other answer."""
    if answer is None or not answer.startswith(_CHOSEN):
        return None
    try:
        found = json.loads(zlib.decompress(base64.b64decode(answer.removeprefix(_CHOSEN), validate=True)))
    except (ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


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


def _answer(answers: int, number: int, reason: str | None) -> None:
    text = reason if reason is None else reason[:_LONGEST_ANSWER]
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        os.write(answers, json.dumps([number, text]).encode()[:4095] + b"\n")


def _exactly(size: int, parent: int) -> bytes:
    taken = io.BytesIO()
    while taken.tell() < size:
        if _is_readable(_LONGEST_IDLE, parent):
            piece = os.read(0, size - taken.tell())
            if not piece:
                os._exit(0)
            taken.write(piece)
    return taken.getvalue()


def _is_readable(wait: float, parent: int) -> bool:
    """Whether there is input within so many seconds. Without its parent this process ends, and its children with it."""
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    return bool(select.select([0], [], [], wait)[0])
