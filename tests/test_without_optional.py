"""Beside the hard dependencies alone: every public name, and calls and commands that Triton serves, where it is not."""

from __future__ import annotations

import os
import subprocess
import sys

#: Everything that no hard dependency brings, blocked as if it were not installed.
BLOCKED = """
import importlib.abc, sys
from importlib import metadata

HIDDEN = ("triton", "quimb", "pyscf", "jax", "cupy", "numba_cuda", "nbclient", "sphinx", "scipy", "hypothesis")

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
version = metadata.version

def known(name):
    if name.replace("-", "_") in HIDDEN:
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = known
import torch, weft
"""


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED + code], capture_output=True, text=True, timeout=200,
        env={**os.environ, "TRITON_INTERPRET": "0", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there() -> None:
    code = """
import pkgutil
from importlib import import_module
names = sorted({*weft.__all__, *weft._LATER})
for name in names:
    getattr(weft, name)
for package in (weft.distributed, weft.hooks, weft.tn, weft.nn, weft.blocks, weft.cache, weft.testing):
    for name in getattr(package, "__all__", ()):
        getattr(package, name)
for found in pkgutil.iter_modules(import_module("weft.cli").__path__):
    import_module(f"weft.cli.{found.name}")
print(len(names))
"""
    assert int(python(code)) > 50


CALLS = {
    "contract": "weft.contract('ij,jk->ik', a, a, backend='triton')",
    "plan": "weft.plan('ij,jk->ik', a, a, backend='triton')",
    "einsum": "weft.einsum('ij,jk,kl->il', a, a, a, backend='triton')",
    "permute": "weft.permute(a, 'ij->ji', backend='triton')",
    "return_arg": "weft.contract('ij,jk->ik', a, a, backend='triton', algebra='max_plus', return_arg=True)",
    "grouped": "weft.grouped('ij,jk->ik', [(a, a), (a[:1], a)], backend='triton')",
    "chain": "weft.chain('pq,bqc,cr->bpr', a, a[None], a, backend='triton')",
    "transpose_": "weft.transpose_(a, (0, 1), backend='triton')",
}


def test_what_is_triton_s_says_what_to_install() -> None:
    lines = "".join(
        f"\ntry: {call}\nexcept weft.UnsupportedError as error: print({name!r}, str(error).splitlines()[0])"
        for name, call in CALLS.items()
    )
    told = python(f"\na = torch.ones(3, 3)\n{lines}", TRITON_INTERPRET="1").splitlines()
    assert [line.partition(" ")[0] for line in told] == list(CALLS)
    for line in told:
        assert "Triton is not installed (pip install triton)" in line


COMMANDS = {
    "explain mk,kn->mn --extents m=64,n=64,k=64": (0, "plan"),
    "explain mk,kn->mn --extents m=64,n=64,k=64 --ptx": (0, "no kernel of weft's own"),
    "explain mk,kn->mn --extents m=64,n=64,k=64 --target h200": (0, "blas"),
    "explain mk,kn->mn --extents m=64,n=64,k=64 --target h200 --ptx": (2, "pip install triton"),
    "explain mk,kn->mn --extents m=64,n=64,k=64 --target h200 --sass": (2, "pip install triton"),
    "info --no-measure": (0, "not installed"),
    "doctor --backend triton --device cpu": (2, "TRITON_INTERPRET"),
    "warm": (2, "NVIDIA GPUs"),
    "cache": (0, "WEFT_CACHE_DIR"),
}


def test_commands(tmp_path: object) -> None:
    code = f"""
from typer.testing import CliRunner
from weft.cli.main import app
for line in {list(COMMANDS)!r}:
    done = CliRunner().invoke(app, line.split())
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    print(done.exit_code, "|", " ".join(done.output.split()))
"""
    told = python(code, WEFT_CACHE_DIR=str(tmp_path), WEFT_SELFTEST="0", COLUMNS="400").splitlines()
    assert len(told) == len(COMMANDS)
    for (line, (status, words)), found in zip(COMMANDS.items(), told, strict=True):
        code_of, _, output = found.partition(" | ")
        assert int(code_of) == status, (line, output)
        assert words in output, (line, output)
