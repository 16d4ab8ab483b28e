"""What weft does without what is optional, and what it says of it."""

from __future__ import annotations

import json
import subprocess
import sys

from commands import python

ABSENT = ("matplotlib", "rich", "typer", "pynvml", "weft_bench", "IPython", "cotengra", "autoray", "pyscf")
BARE = f"ABSENT = {ABSENT}" + """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
CHAIN = "import weft, torch; chain = 'ab,bc,cd->ad', *[torch.ones(8, 8)] * 3; "
UNNAMED = """
from importlib import metadata
real = metadata.entry_points
metadata.entry_points = lambda **asked: () if asked.get("group", "").startswith("weft.") else real(**asked)
"""


def bare(code: str) -> str:
    """What is said in an environment of the hard dependencies alone: no weft-tensor-bench, no extras."""
    return python(BARE + UNNAMED + code)


def test_weft_alone_contracts() -> None:
    """Paths of opt_einsum serve, slices that are named too; what would be better is said where it may count."""
    said = bare(
        "import torch, weft, weft.hooks; a = torch.ones(3, 3)\n"
        "p = weft.plan('mk,kn->mn', a, a)\n"
        "net = weft.network('ab,bc,cd->ad', a, a, a)\n"
        "assert 'mk,kn->mn' in p.explain() and net.explain()\n"
        "from weft import *\n"
        "print(p(a, a).sum().item(), net(a, a, a).sum().item(), weft.permute(a, 'ij->ji').sum().item())\n"
        "terms = ','.join(chr(97 + at) + chr(98 + at) for at in range(12)) + '->am'\n"
        "a = [torch.full((2, 2), 0.5) for _ in range(12)]\n"
        "net = weft.network(terms, *a)\n"
        "print(net(*a).sum().item(), 'weft-tensor[networks]' in net.explain())\n"
        "print(weft.network(terms, *a, slices='c')(*a).sum().item(), weft.einsum(terms, *a).sum().item())\n"
        "few = weft.network('ab,bc,cd->ad', *a[:3], memory_limit='1MB')\n"
        "print(few(*a[:3]).sum().item(), 'weft-tensor[networks]' in few.explain(), len(weft.hooks.cotengra()))"
    )
    assert said.split() == ["27.0", "81.0", "9.0", "2.0", "True", "2.0", "2.0", "2.0", "False", "2"]


#: What each raises or prints says what to install.
NOT_INSTALLED = {
    "import weft; weft.profile(None)": "weft.profile comes with the distribution weft-tensor-bench",
    "from weft.base.extensions import reader; reader('kernels.kernel', 'plan.kernels')": "plan.kernels comes with the "
    "distribution weft-tensor-bench",
    "import weft; weft.energy(None)": "weft.energy comes with the distribution weft-tensor-bench",
    "import weft, torch; a = torch.ones(2, 2); weft.network('ab,bc->ac', a, a).draw('x.png')": "Network.draw() "
    "comes with the distribution weft-tensor-bench",
    "import sys; sys.argv = ['weft', '--version']; import weft.__main__ as m; m.main()": "weft-tensor[cli]",
    f"{CHAIN}weft.network(*chain, memory_limit=400)": "weft-tensor[networks]",
    f"{CHAIN}weft.network(*chain, optimize='hyper')": "weft-tensor[networks]",
    "import weft; weft.hooks.pyscf().__enter__()": "weft-tensor[hooks]",
}
ONE_BY_ONE = """
import contextlib, io, json, traceback
found = []
for code in CODES:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            exec(code, {})
            found.append("nothing is raised")
        except SystemExit as end:
            found.append(said.getvalue() + str(end) if end.code else "nothing is wrong")
        except Exception as error:
            found.append("".join(traceback.format_exception_only(error)))
print(json.dumps(found))
"""


def test_what_is_not_installed_is_named() -> None:
    said = json.loads(bare(f"CODES = {list(NOT_INSTALLED)}{ONE_BY_ONE}"))
    for (code, says), found in zip(NOT_INSTALLED.items(), said, strict=True):
        assert says in found, code


def test_a_command_that_is_not_installed_says_what_to_install() -> None:
    code = (
        f"{UNNAMED}import sys; sys.argv = ['weft', 'bench', 'tccg', '--quick']\nfrom weft.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "weft: weft bench comes with the distribution weft-tensor-bench, which is not installed: "
        "pip install weft-tensor-bench"
    )


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


def without(code: str, **environment: str) -> str:
    return python(BLOCKED + code, limit=200, **{"PYTHONWARNINGS": "ignore", "TRITON_INTERPRET": "0", **environment})


def test_every_public_name_is_there_and_functions_are_traced_and_contracted() -> None:
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
a = torch.full((3, 3), -1.0)
p = weft.plan('mk,kn->mn', a, a, a_fn=torch.relu, epilogue=torch.exp)
print(len(names), p(a, a).sum().item(), weft.einsum('ij->ji', a).sum().item())
"""
    count, *sums = without(code).split()
    assert int(count) > 50
    assert sums == ["9.0", "-9.0"]


OF_TRITON = {
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
        for name, call in OF_TRITON.items()
    )
    told = without(f"\na = torch.ones(3, 3)\n{lines}", TRITON_INTERPRET="1").splitlines()
    assert [line.partition(" ")[0] for line in told] == list(OF_TRITON)
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
    told = without(code, WEFT_CACHE_DIR=str(tmp_path), WEFT_SELFTEST="0", COLUMNS="400").splitlines()
    assert len(told) == len(COMMANDS)
    for (line, (status, words)), found in zip(COMMANDS.items(), told, strict=True):
        code_of, _, output = found.partition(" | ")
        assert int(code_of) == status, (line, output)
        assert words in output, (line, output)
