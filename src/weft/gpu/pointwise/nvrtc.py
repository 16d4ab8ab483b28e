"""NVIDIA's compiler of CUDA C++ at run time (NVRTC), as torch's wheels or an installed CUDA bring it.

A path in ``WEFT_NVRTC`` names the library, ``WEFT_NVRTC=0`` does without it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

from weft.base.interpreter import turns_off

_FOLDERS = ("cu*/lib", "cuda_nvrtc/lib", "cu*/bin/x86_64", "cuda_nvrtc/bin")  # of torch's wheels, below `nvidia`
_NAMES = ("libnvrtc.so.*", "nvrtc64_*.dll")
_PLACES = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


class CompileError(RuntimeError):
    """The source is not compiled, or there is no compiler."""


def identity() -> str | None:
    """Name and size of the compiler's library, by which its code is told from another's; None where there is none.

    Nothing is loaded for it.
    """
    asked = _asked()
    return None if turns_off(asked) else _identity(asked)


def _asked() -> str:
    asked = os.environ.get("WEFT_NVRTC", "1")
    return "" if asked.lower() in ("1", "on", "yes", "true") else asked


@lru_cache
def _identity(asked: str) -> str | None:
    file = _file(asked)
    return None if file is None else f"{file.name} {file.stat().st_size}"


@lru_cache
def _file(asked: str) -> Path | None:
    if asked:
        return Path(asked) if Path(asked).is_file() else None
    major = (torch.version.cuda or "").partition(".")[0]
    found = [file for file in _candidates() if ".alt." not in file.name]
    fitting = [file for file in found if f".so.{major}" in file.name or f"nvrtc64_{major}" in file.name]
    return next(iter(fitting or found), None)


def _candidates() -> Iterator[Path]:
    spec = PathFinder.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in _FOLDERS:
            for name in _NAMES:
                yield from sorted(Path(place).glob(f"{folder}/{name}"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            for folder in ("lib64", "lib", "bin"):
                for name in _NAMES:
                    yield from sorted(Path(root, folder).glob(name))
    for place in (*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_PLACES):
        if place:
            yield from sorted(Path(place).glob(_NAMES[0]))


@lru_cache
def _library(asked: str) -> Any:
    file = _file(asked)
    if file is None:
        raise CompileError("there is no NVRTC")
    for beside in sorted(file.parent.glob("libnvrtc-builtins.so.*")):  # which it asks for by name
        if ".alt." not in beside.name:
            with suppress(OSError):
                ctypes.CDLL(str(beside))
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise CompileError(f"NVRTC is not loaded: {error}") from None
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def compiled(source: str, capability: int) -> bytes:
    """Machine code for a compute capability, 90 for 9.0. Other threads run meanwhile. Raises `CompileError`."""
    return _built(source, f"--gpu-architecture=sm_{capability}", "CUBIN")


def ptx(source: str, capability: int) -> str:
    """PTX for a compute capability, to be read."""
    return _built(source, f"--gpu-architecture=compute_{capability}", "PTX").rstrip(b"\0").decode()


def _built(source: str, architecture: str, kind: str) -> bytes:
    library, program = _library(_asked()), ctypes.c_void_p()
    _done(library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"weft.cu", 0, None, None))
    try:
        options = (ctypes.c_char_p * 1)(architecture.encode())
        status = library.nvrtcCompileProgram(program, len(options), options)
        _done(library, status, lambda: _text(library, program, "ProgramLog").decode(errors="replace"))
        return _text(library, program, kind)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: Any, program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _done(library, getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _done(library, getattr(library, f"nvrtcGet{kind}")(program, content))
    return content.raw


def _done(library: Any, status: int, log: Any = None) -> None:
    if status:
        why = library.nvrtcGetErrorString(status).decode()
        raise CompileError(f"NVRTC: {why}{': ' + log() if log is not None else ''}")
