"""Functions of torch tensors as custom calls of XLA: no copy, no callback of the host's Python through JAX.

XLA calls a handler of C's calling convention, on a CPU in one of its threads, for a GPU when it comes to the call in
the stream (https://openxla.org/xla/custom_call; the structures are those of `xla/ffi/api/c_api.h`, whose layout is
stable). The handler looks at XLA's buffers as torch tensors and launches weft's kernels on XLA's stream. What it has
bound to buffers is launched without Python when they come again: by the handlers of `handler.c`. Where XLA records a
program as a CUDA graph, the launches of a call become part of it: see `_Recorded`.

A C compiler builds those at the first custom call. The store keeps the library by its source, XLA's header and the
machine; one that is not as it was written is built anew. Without a compiler Python's handler runs every call.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from platform import machine, system
from typing import Any, NamedTuple

import torch

import jax
from weft.base.arrays import outside_transforms, without_autocast
from weft.base.caches import BoundedCache
from weft.base.log import log
from weft.engine.memo import keeps
from weft.machine.store import Store, as_text, from_text
from weft.planner.validity import default_precision, precision

Address = int
Tensors = list[torch.Tensor]
Run = Callable[[Tensors, Tensors], Any]  # of operands, and of places for the results
_ROOM = "jax"  # of the store
_SOURCE = Path(__file__).with_name("handler.c")
_KNOWN = 256  # sets of buffers of one call, by their addresses
_EXECUTE, _INTERNAL = 3, 13  # a stage, an error code
_IN_GRAPHS = 1  # a trait: what a call launches may be recorded
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)  # of a frame, and of the place for the answer
_HANDLER_ALONE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_thread = threading.local()
_handlers: list[Any] = []  # XLA keeps their addresses for ever


class CustomCallSpec(NamedTuple):
    """The shape and type of a buffer."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, device: str | torch.device = "meta") -> torch.Tensor:
        """A tensor without values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class _CallWords(ctypes.Structure):
    """The words of a call frame that are read; sizes and extensions of nested structures between them."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("api", ctypes.c_void_p), ("ctx", ctypes.c_void_p),
        ("stage", ctypes.c_int64), ("args_head", ctypes.c_int64 * 4), ("args", ctypes.c_void_p),
        ("rets_head", ctypes.c_int64 * 4), ("rets", ctypes.c_void_p),
    )  # fmt: skip


class _Answer(ctypes.Structure):
    """The answer of Python's handler to `handler.c`: an error of XLA's, and whether it has come to its end."""

    _fields_ = (("error", ctypes.c_void_p), ("done", ctypes.c_int64))


class _Metadata(ctypes.Structure):
    """The version that XLA asks a handler for when it is registered."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("version_head", ctypes.c_int64 * 2), ("major", ctypes.c_int),
        ("minor", ctypes.c_int), ("traits", ctypes.c_uint32),
    )  # fmt: skip


class _Question(ctypes.Structure):
    """The arguments of the functions of XLA that are called: the last word is the answer, or the error code."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("given", ctypes.c_void_p),
        ("answer", ctypes.c_void_p),
    )  # fmt: skip


class _Api(ctypes.Structure):
    """XLA's functions, by their places in its table."""

    _fields_ = (
        ("head", ctypes.c_int64 * 4), ("major", ctypes.c_int), ("minor", ctypes.c_int), ("internal", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 18),
    )  # fmt: skip

    ERROR, STREAM, ORDINAL = 0, 4, 17

    def ask(self, function: int, given: int | None, answer: int | None = None) -> tuple[int | None, int | None]:
        """The result of a function, and the last word of its arguments."""
        question = _Question(_QUESTION, None, given, answer)
        found = _function(self.functions[function])(ctypes.byref(question))
        return found, question.answer


_QUESTION = ctypes.sizeof(_Question)


@cache
def _function(at: Address) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Question))(at)


def register(
    name: str, platform: str, operands: Sequence[CustomCallSpec], results: Sequence[CustomCallSpec], run: Run,
    bound: Run, recorded: bool = False,
) -> None:  # fmt: skip
    """Make a custom call of this name, which is for ever.

    `run` computes; `bound` makes a callable that computes on these very tensors, for buffers that come again. Where it
    is `recorded`, XLA may take what `bound` launches into a CUDA graph, as one of several calls of a program.
    """
    known = BoundedCache(_KNOWN)
    counts = len(operands), len(results)
    traits = _IN_GRAPHS if recorded and all(math.prod(each.shape) for each in results) else 0
    graphs: dict[Any, _Recorded] = {}

    def handle(frame_at: Address, answer_at: Address) -> None:
        frame, answer = _CallWords.from_address(frame_at), _Answer.from_address(answer_at)
        try:
            if frame.extension:
                _tell(frame, traits)
            elif frame.stage & 0xFFFFFFFF == _EXECUTE:
                with outside_transforms():  # tensors are kept, and XLA may call in the thread of whoever asked
                    execute(frame)
        except Exception as error:  # XLA hands it on
            answer.error = _error(frame, f"{type(error).__name__}: {error}")
        except BaseException:  # of a signal: without an answer it comes again after the call
            return
        answer.done = 1

    def execute(frame: _CallWords) -> None:
        if not hasattr(_thread, "stays"):  # Python's state of XLA's thread, made anew for each call, outlasts a launch
            ctypes.pythonapi.PyGILState_Ensure()
            _thread.stays = True
        stream = None if platform == "cpu" else _stream(_Api.from_address(frame.api), frame.ctx)
        key = _places(frame.args, counts[0]), _places(frame.rets, counts[1]), stream
        recording = traits and stream is not None and _on(stream, torch.cuda.is_current_stream_capturing)
        call = graphs.get(key) if recording else known.get(key)
        if call is None:
            device = torch.device("cpu") if stream is None else stream.device
            both = [
                [_tensor(each, at, device) for each, at in zip(specs, found, strict=True)]
                for specs, found in zip((operands, results), key[:2], strict=True)
            ]
            if recording:
                call = graphs[key] = _Recorded(partial(bound, *both), device)
            else:
                call = _CustomCall(partial(run, *both), partial(bound, *both))
                if keeps():
                    known.put(key, call)
        # A call has the precision that its program named, not that of the moment when XLA comes to it.
        with without_autocast(), nullcontext() if default_precision() == "ieee" else precision("ieee"):
            made = call() if stream is None else _on(stream, call)
        if made is not None and site is not None:
            site.keep(key[0] + key[1], 0 if stream is None else stream.cuda_stream, made)

    handler = HANDLER(handle)
    site = site_of(ctypes.cast(handler, ctypes.c_void_p).value or 0, platform != "cpu", *counts)
    _handlers.append(handler)
    target = jax.ffi.pycapsule(_alone(handle) if site is None else site.address)
    jax.ffi.register_ffi_target(name, target, platform="cpu" if platform == "cpu" else "CUDA")


def _alone(handle: Callable[[Address, Address], None]) -> Address:
    """A handler without a site, which a signal may cut off before it begins: only C keeps Python from that."""

    def answered(frame_at: Address) -> int | None:
        answer = _Answer()
        handle(frame_at, ctypes.addressof(answer))
        error: int | None = answer.error
        return error if answer.done else _error(_CallWords.from_address(frame_at), "interrupted")

    _handlers.append(handler := _HANDLER_ALONE(answered))
    return ctypes.cast(handler, ctypes.c_void_p).value or 0


def _error(frame: _CallWords, message: str) -> int | None:
    text = ctypes.create_string_buffer(message.encode())
    return _Api.from_address(frame.api).ask(_Api.ERROR, ctypes.addressof(text), _INTERNAL)[0]


class _CustomCall:
    """A call of the same buffers: bound to them when they come for the second time."""

    def __init__(self, run: Callable[[], Any], bound: Callable[[], Callable[[], Any]]) -> None:
        self._run, self._came = run, False
        self._bound: Callable[[], Callable[[], Any]] | None = bound

    def __call__(self) -> Callable[[], Any] | None:
        """Run it; what was bound, where that was done now."""
        made = None
        if self._came and self._bound is not None:
            self._run = made = self._bound()
            self._bound = None
        self._came = True
        self._run()
        return made


class _Recorded:
    """A call that XLA has recorded in a CUDA graph, which nobody tells when the graph is gone: it stays for good, as do
    the workspaces of its kernels, in memory of its own."""

    def __init__(self, bound: Callable[[], Callable[[], Any]], device: torch.device) -> None:
        self._bound, self._device = bound, device
        self._pool = torch.cuda.MemPool()
        self._run: Callable[[], Any] | None = None

    def __call__(self) -> None:
        with torch.cuda.use_mem_pool(self._pool, self._device):
            if self._run is None:
                self._run = self._bound()
            self._run()


def _tell(frame: _CallWords, traits: int) -> None:
    """The version of the interface, which is that of XLA itself: what is read here is in every one."""
    metadata = _Metadata.from_address(ctypes.c_uint64.from_address(frame.extension + 24).value)
    metadata.major, metadata.minor, metadata.traits = 0, 1, traits


def _places(buffers: Address, count: int) -> tuple[Address, ...]:
    """The addresses of the elements of buffers."""
    if not count:
        return ()
    return tuple([_word(at + 24).value for at in _words(count).from_address(buffers)])


_word = ctypes.c_uint64.from_address


@lru_cache(maxsize=256)
def _words(count: int) -> Any:
    return ctypes.c_uint64 * count


def _tensor(spec: CustomCallSpec, at: Address, device: torch.device) -> torch.Tensor:
    """A buffer as a tensor, which does not own it."""
    count = math.prod(spec.shape) * spec.dtype.itemsize
    if count == 0:
        return torch.empty(spec.shape, dtype=spec.dtype, device=device)
    if device.type == "cpu":
        return torch.frombuffer(_bytes(count).from_address(at), dtype=spec.dtype).view(spec.shape)
    return torch.as_tensor(_OnDevice(at, count), device=device).view(spec.dtype).view(spec.shape)


@lru_cache(maxsize=4096)
def _bytes(count: int) -> Any:
    """The type of so many bytes, which ctypes takes longer to make than a launch takes."""
    return ctypes.c_char * count


class _OnDevice:
    """Bytes of a GPU's memory."""

    def __init__(self, at: Address, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (at, False), "version": 2}


def _stream(api: _Api, ctx: Address) -> Any:
    """XLA's stream, as torch has it."""
    return _external(api.ask(_Api.STREAM, ctx)[1] or 0, (api.ask(_Api.ORDINAL, ctx)[1] or 0) & 0x7FFFFFFF)


@cache
def _external(stream: Address, device: int) -> Any:
    return torch.cuda.ExternalStream(stream, torch.device("cuda", device))


def _on(stream: Any, call: Callable[[], Any]) -> Any:
    """The call on a stream, as in `torch.cuda.stream`, which takes as long as a launch."""
    here, before = torch._C._cuda_getDevice(), torch._C._cuda_getCurrentStream(stream.device_index)
    _set(stream.stream_id, stream.device_index, stream.device_type)
    try:
        return call()
    finally:
        _set(*before)
        if here != stream.device_index:
            torch.cuda.set_device(here)


def _set(stream: int, device: int, kind: int) -> None:
    torch._C._cuda_setStream(stream_id=stream, device_index=device, device_type=kind)


class Site:
    """One custom call's handler; `address` is what XLA calls, and `keep` what it need not ask Python for."""

    def __init__(self, library: Any, number: int) -> None:
        self._library, self._number = library, number
        self.address = library.weft_handler(number)
        self._lock = threading.Lock()
        self._kept: dict[int, Any] = {}  # what the words of each kept call point to

    def keep(self, buffers: Sequence[int], stream: int, bound: Any) -> None:
        """Launch what a call of these buffers has bound, where that is one kernel, or one function on one thread."""
        held = getattr(bound, "held", None)
        call = None if held is None else held.launched()
        if call is None:
            return
        count = len(call.words)
        places, grid = (ctypes.c_void_p * len(buffers))(*buffers), (ctypes.c_uint * 3)(*call.grid)
        with self._lock:
            kept = self._library.weft_keep(
                self._number, places, ctypes.c_void_p(stream), ctypes.c_void_p(call.function), grid, call.threads,
                call.shared, int(call.follows), (ctypes.c_void_p * count)(*call.words),
                (ctypes.c_int * count)(*call.sizes), count,
            )  # fmt: skip
            if kept is not None:
                self._kept[kept] = bound
            while (gone := self._library.weft_gone(self._number)) is not None:
                del self._kept[gone]


def site_of(handler: int, gpu: bool, operands: int, results: int) -> Site | None:
    """A site for Python's handler at that address; None where C is not to be had."""
    library = _handler_library()
    if library is None:
        return None
    launch = capturing = None
    if gpu:
        from weft.gpu.common.driver import loaded_driver

        driver = loaded_driver()
        launch = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p)
        capturing = ctypes.cast(driver.cuStreamIsCapturing, ctypes.c_void_p)
    interrupt = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p)
    number = library.weft_site(ctypes.c_void_p(handler), interrupt, launch, capturing, operands, results)
    return Site(library, number) if number >= 0 else None


@cache
def _handler_library() -> Any:
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "handler.so")
            kept = _kept_library()
            if kept is None:
                _build_library(file)
            else:
                file.write_bytes(kept)
            library = ctypes.CDLL(str(file))
        for function in (library.weft_handler, library.weft_keep, library.weft_gone):
            function.restype = ctypes.c_void_p
        return library
    except (AttributeError, OSError, subprocess.SubprocessError) as error:
        log.info("custom calls of JAX are run by Python: %s", error)
        return None


def _kept_library() -> bytes | None:
    """The library as an earlier process built it."""
    with suppress(KeyError, TypeError, ValueError):
        value: Any = Store(_ROOM).load(_library_key())
        return from_text(value["library"])
    return None


def _build_library(file: Path) -> None:
    """Write the library, and keep it; raises `OSError` or `SubprocessError` where it cannot be made."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler")
    words = ["-O2", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(file), "-lpthread"]
    subprocess.run([compiler, *words], check=True, capture_output=True, timeout=60)
    Store(_ROOM).save(_library_key(), {"library": as_text(file.read_bytes())})


def _library_key() -> dict[str, str]:
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_bytes()
    source = hashlib.sha256(_SOURCE.read_bytes() + header).hexdigest()
    return {"source": source, "machine": machine(), "system": system()}
