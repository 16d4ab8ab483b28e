"""What importing weft costs and brings, seen in fresh interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS_WITHOUT_TRITON = (
    "weft",
    "weft.spec",
    "weft.fn",
    "weft.plans",
    "weft.plans.contraction",
    "weft.plans.select",
    "weft.planner.planner",
    "weft.machine",
    "weft.oracle",
    "weft.library.family",
    "weft.reference",
    "weft.testing",
    "weft_bench.cases",
)


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=kept)
    return done.stdout.strip()


def test_rooms_import_no_triton_and_touch_no_gpu() -> None:
    code = (
        "import sys, torch, importlib\n"
        f"for room in {ROOMS_WITHOUT_TRITON}:\n"
        "    importlib.import_module(room)\n"
        "    if 'triton' in sys.modules or torch.cuda.is_initialized(): print(room)"
    )
    assert python(code) == ""


def test_cpu_needs_no_triton() -> None:
    """Where no Triton can be imported, functions are traced and contractions run all the same."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, weft; a = torch.full((3, 3), -1.0)\n"
        "p = weft.plan('mk,kn->mn', a, a, a_fn=torch.relu, epilogue=torch.exp)\n"
        "print(p(a, a).sum().item(), weft.einsum('ij->ji', a).sum().item())"
    )
    assert python(code) == "9.0 -9.0"


def test_import_is_quick() -> None:
    """A third of what torch's own import takes, at most: of the processor time, in one of three interpreters."""
    code = (
        "import time; start = time.process_time(); import torch; between = time.process_time(); import weft\n"
        "print((time.process_time() - between) / (between - start))"
    )
    assert any(float(python(code)) < 1 / 3 for _ in range(3))


def test_what_few_calls_need_is_imported_with_the_first_of_them() -> None:
    found = python("import sys, weft; print(*sys.modules)").split()
    assert not {name for name in found if name.partition(".")[0] in ("triton", "numba", "llvmlite", "jax")}
    assert not {"weft.cascades.plan", "weft.distributed", "weft.tn", "weft.jax"} & set(found)


def test_public_names() -> None:
    import weft

    for name in weft.__all__:
        assert hasattr(weft, name)
    wanted = {"contract", "plan", "Plan", "einsum", "reference", "WeftError", "NotationError", "ShapeError"}
    wanted |= {"DTypeError", "FunctionError", "UnsupportedError", "WorkspaceError"}
    assert wanted <= set(dir(weft))


@pytest.mark.parametrize("words", ["", "--version", "--help", "explain --help", "tune --help", "accuracy --help"])
def test_help_and_version_import_no_torch(words: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "weft", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (0 if words else 2)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "weft" in imported
    assert not imported & {"torch", "numpy", "triton", "numba", "matplotlib"}


def test_a_program_of_the_same_name_has_all_of_weft(tmp_path: Path) -> None:
    (tmp_path / "weft").write_text("import weft; print(weft.contract.__name__)")
    command = [sys.executable, "-P", str(tmp_path / "weft"), "--help"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "contract\n"


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft", "--help"], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "demo" in done.stdout


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


def bare(code: str) -> subprocess.CompletedProcess[str]:
    """A run in an environment of the hard dependencies alone: no weft-bench, no extras."""
    command = [sys.executable, "-c", BARE + UNNAMED + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_weft_alone_contracts() -> None:
    done = bare(
        "import torch, weft; a = torch.ones(3, 3)\n"
        "p = weft.plan('mk,kn->mn', a, a)\n"
        "net = weft.network('ab,bc,cd->ad', a, a, a)\n"
        "assert 'mk,kn->mn' in p.explain() and net.explain()\n"
        "from weft import *\n"
        "print(p(a, a).sum().item(), net(a, a, a).sum().item(), weft.permute(a, 'ij->ji').sum().item())"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "27.0 81.0 9.0"


def test_networks_without_cotengra() -> None:
    """Paths of opt_einsum serve, slices that are named too; what would be better is said where it may count."""
    done = bare(
        "import torch, weft, weft.hooks\n"
        "terms = ','.join(chr(97 + at) + chr(98 + at) for at in range(12)) + '->am'\n"
        "a = [torch.full((2, 2), 0.5) for _ in range(12)]\n"
        "net = weft.network(terms, *a)\n"
        "print(net(*a).sum().item(), 'weft[networks]' in net.explain())\n"
        "print(weft.network(terms, *a, slices='c')(*a).sum().item(), weft.einsum(terms, *a).sum().item())\n"
        "few = weft.network('ab,bc,cd->ad', *a[:3], memory_limit='1MB')\n"
        "print(few(*a[:3]).sum().item(), 'weft[networks]' in few.explain(), len(weft.hooks.cotengra()))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.0", "True", "2.0", "2.0", "2.0", "False", "2"]


#: What each raises or prints says what to install.
NOT_INSTALLED = {
    "import weft; weft.profile(None)": "weft.profile comes with the distribution weft-bench",
    "from weft.base.extensions import reader; reader('kernels.kernel', 'plan.kernels')": "plan.kernels comes with the "
    "distribution weft-bench",
    "import weft; weft.energy(None)": "weft.energy comes with the distribution weft-bench",
    "import weft, torch; a = torch.ones(2, 2); weft.network('ab,bc->ac', a, a).draw('x.png')": "Network.draw() "
    "comes with the distribution weft-bench",
    "import sys; sys.argv = ['weft', '--version']; import weft.__main__ as m; m.main()": "weft[cli]",
    f"{CHAIN}weft.network(*chain, memory_limit=400)": "weft[networks]",
    f"{CHAIN}weft.network(*chain, optimize='hyper')": "weft[networks]",
    "import weft; weft.hooks.pyscf().__enter__()": "weft[hooks]",
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
    done = bare(f"CODES = {list(NOT_INSTALLED)}{ONE_BY_ONE}")
    assert done.returncode == 0, done.stderr
    for (code, says), found in zip(NOT_INSTALLED.items(), json.loads(done.stdout), strict=True):
        assert says in found, code


def test_a_command_that_is_not_installed_says_what_to_install() -> None:
    code = (
        f"{UNNAMED}import sys; sys.argv = ['weft', 'bench', 'tccg', '--quick']\nfrom weft.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "weft: weft bench comes with the distribution weft-bench, which is not installed: pip install weft-bench"
    )
