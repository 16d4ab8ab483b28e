"""numba at first use: functions compiled to an address, and kept on disk under weft's cache folder.

Each compiled function is a C callback, written as text. weft's own are built ahead and linked without numba. Others,
and those that the pack lacks, are compiled in memory; their machine code is kept, and later processes link that (see
`weft.cpu.machine_code`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from weft.base.interpreter import turns_off
from weft.base.log import log
from weft.base.memory import has_room
from weft.cpu.level import ROOM, need_room
from weft.cpu.machine_code import CodeStore, MachineCode, from_pack
from weft.machine.store import cache_directory
from weft.planner.schedule import Target

_lock = RLock()
_functions: dict[str, _Function] = {}
# A fork waits until nothing is compiled, neither here nor in numba: the child has no thread that would go on.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_told = False
_collected: tuple[set[str], _Function] | None = None


class _Function(NamedTuple):
    """A function that can be called; `owner` holds its code in memory."""

    address: int
    owner: Any


@lru_cache
def fault() -> str | None:
    """Why numba cannot be used here; None where it can. Looks whether it is there, and does not import it."""
    if turned_off():
        return "numba is turned off by WEFT_NUMBA"
    return "numba is not installed" if importlib.util.find_spec("numba") is None else None


def fault_on(target: Target) -> str | None:
    """Why kernels for the CPU cannot run on a device; None where they can."""
    return fault() if target.kind == "cpu" else f"it runs on the CPU, the tensors are on a {target.kind} device"


def turned_off() -> bool:
    return turns_off(os.environ.get("WEFT_NUMBA"))


@lru_cache
def folder() -> Path:
    """The folder of compiled functions."""
    return cache_directory() / "cpu"


@contextmanager
def collecting(address: int) -> Iterator[set[str]]:
    """The sources that are requested meanwhile: nothing is compiled, all have one address."""
    global _collected
    found: set[str] = set()
    _collected = found, _Function(address, None)
    try:
        yield found
    finally:
        _collected = None


def compiled_kernel(kernel: str, *values: str | int, words: str = "frame") -> int:
    """The address of one of weft's kernels (module and name), a callback of so many words.

    `values`: what the kernel takes behind them to tell cases apart: numba's name of a number type, whose zero it is
    given, or a place in a table of its own, which it knows by a tuple of so many numbers and one more.
    """
    module, _, name = kernel.rpartition(".")
    types = dict.fromkeys("int8" if isinstance(value, int) else value for value in values)
    given = (f"({'int8(0), ' * (value + 1)})" if isinstance(value, int) else f"{value}(0)" for value in values)
    source = f"""\
from numba import {", ".join(("cfunc", *types))}
from {module} import {name}


@cfunc("void({", ".join(["int64"] * len(words.split()))})", error_model="numpy")
def entry({words}):
    {name}({", ".join((words, *given))})
"""
    return compiled(source, kernel=True)


def compiled(source: str, *, kernel: bool = False) -> int:
    """The address of `entry`, a C callback that `source` defines. `kernel`: one of weft's, which takes seconds."""
    known = _functions.get(source)
    if known is None:
        if _collected is not None:
            sources, known = _collected
            sources.add(source)
            return known.address
        with _lock:
            known = _functions.get(source)
            if known is None:
                need_room()
                known = _functions[source] = _packed(source) or _kept(source) or _made_once(source, kernel)
    return known.address


def at_hand(source: str) -> bool:
    """Whether nothing is compiled for a source: it was in this process, or is on disk."""
    if source not in _functions and has_room(ROOM):
        with _lock:
            found = _packed(source) or _kept(source)
            if found is not None:
                _functions[source] = found
    return source in _functions


def _packed(source: str) -> _Function | None:
    """A function that was built ahead, linked without numba; None where there is none that can be."""
    code = from_pack(source)
    return None if code is None or not _has_all(code.needs) else _linked(code)


def _kept(source: str) -> _Function | None:
    """A function that was compiled on this machine before, linked; None where there is none that can be."""
    code = CodeStore(folder()).load(source)
    if code is None:
        return None
    if not _has_all(code.needs):
        _tell_linker()
        if not _has_all(code.needs):
            return None
    return _linked(code)


def _has_all(names: Iterable[str]) -> bool:
    """Whether the linker knows all of these: it ends the process where one is missing."""
    from llvmlite import binding

    _tell_llvm()
    return all(binding.address_of_symbol(name) for name in names)


def _linked(code: MachineCode) -> _Function | None:
    from llvmlite import binding

    try:
        engine = _engine()
        engine.add_object_file(binding.ObjectFileRef.from_data(code.content))
        engine.finalize_object()
        address = int(engine.get_function_address(code.symbol))
    except RuntimeError as error:  # of LLVM
        log.info("machine code cannot be linked: %s", error)
        return None
    return _Function(address, engine) if address else None


def _engine() -> Any:
    from llvmlite import binding

    target = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), target)


@lru_cache
def _tell_llvm() -> None:
    """Name the processor that LLVM links for; with its first engine it learns what this process has loaded."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    _engine()


@lru_cache
def _tell_linker() -> None:
    """Name the addresses of numba's own functions, which compiled ones call: numba does so when it first compiles."""
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)


def _made_once(source: str, kernel: bool) -> _Function:
    """A function compiled now, or by another process meanwhile: ranks that begin together compile each one once."""
    with CodeStore(folder()).turn(source):
        return _kept(source) or _made(source, kernel)


def _made(source: str, kernel: bool) -> _Function:
    """A function compiled now, its machine code kept."""
    if kernel:
        _tell()
    names: dict[str, Any] = {"__name__": "weft.cpu.compiled"}
    exec(compile(source, "<written by weft>", "exec"), names)
    entry = names["entry"]
    library = entry._library
    content = None if library.has_dynamic_globals else _object_code(library)  # else addresses of this process
    if content is not None:
        module = library._final_module
        declared = [each.name for each in (*module.functions, *module.global_variables) if each.is_declaration]
        needs = tuple(name for name in declared if not name.startswith("llvm."))
        CodeStore(folder()).save(source, MachineCode(entry.native_name, needs, content))
    return _Function(int(entry.address), entry)


def _object_code(library: Any) -> bytes | None:
    """The object code of a compiled library; None where LLVM handed it to nobody: the next process compiles again."""
    try:
        content, _ = library.serialize_using_object_code()[2]
    except RuntimeError:
        return None
    return bytes(content)


def _tell() -> None:
    """One line of progress, where somebody sits and waits."""
    global _told
    if not _told and sys.stderr.isatty():
        _told = True
        print("weft: compiling kernels for this CPU, once; some seconds each", file=sys.stderr, flush=True)
