"""Wheel and sdist of weft, each installed in an empty environment of every Python that is here, as users install it.

    make release                                    # Python 3.11 to 3.14, as far as they are on the machine
    make release ARGS="/opt/python3.13/bin/python"  # another one

torch is installed first: packages and bytes after it are what weft costs beside torch. Then the smallest install has
to contract and to name its extras, and the extras have to bring the `weft` program. Where `uv` is on the machine it
installs the wheel, too. Exit code 1 where anything fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))
MOST_PACKAGES = 8  # beside torch
EXTRAS = "cli,networks"

#: A program that needs what `pip install weft-tensor` brings and nothing else; its argument is the version.
SMOKE = """
import sys, numpy, torch, weft
assert weft.__file__.startswith(sys.prefix), weft.__file__
assert weft.__version__ == sys.argv[1]
a, b = torch.randn(6, 5, 4), torch.randn(4, 7)
d = weft.contract("abk,kc->cab", a, b, epilogue=torch.relu)
assert torch.allclose(d, torch.relu(torch.einsum("abk,kc->cab", a, b)), atol=1e-4)
assert numpy.allclose(weft.einsum("ij,jk,kl->il", *[numpy.eye(3)] * 3), numpy.eye(3))
assert weft.contract("ik,kj->ij", a[0], b, algebra="max_plus", specialize="now").shape == (5, 7)
assert weft.permute(a, "abc->cab").shape == (4, 6, 5)
print(weft.plan("mk,kn->mn", b.T, b).explain())
"""
#: Names of the installed packages, and the bytes of all their files.
_CONTENTS = """
import pathlib, sysconfig
from importlib.metadata import distributions
files = pathlib.Path(sysconfig.get_path("purelib")).rglob("*")
print(sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc"))
print(*sorted({each.metadata["Name"] for each in distributions()}))
"""
_WITHOUT_EXTRA = "import subprocess, sys; print(subprocess.run(sys.argv[1], stderr=subprocess.PIPE).stderr)"


class ReleaseError(Exception):
    """A command that fails, or a package that is not as it should be."""


class Contents(NamedTuple):
    """The packages of an environment, and the bytes of their files without compiled modules."""

    bytes: int
    packages: frozenset[str]


def main(pythons: Sequence[str]) -> int:
    """Check every package with every interpreter; the exit code."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="weft-release-") as place:
        packages = built(Path(place))
        for name in pythons or PYTHONS:
            python = interpreter(name)
            if python is None:
                print(f"{name}: not on this machine, so not checked")
                continue
            for how, package in ways(packages):
                try:
                    print(f"{name}, {how} {package.name}: {checked(python, how, package)}", flush=True)
                except ReleaseError as error:
                    failed = True
                    print(f"{name}, {how} {package.name}: FAILED\n{error}", flush=True)
    return 1 if failed else 0


def built(folder: Path) -> list[Path]:
    """The sdist, and the wheel that is built from it."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]


def ways(packages: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Installers, and what each installs."""
    for package in packages:
        yield "pip", package
        if package.suffix == ".whl" and shutil.which("uv"):
            yield "uv", package


def interpreter(name: str) -> str | None:
    """The path of an interpreter that runs; None where there is none of that name."""
    found = shutil.which(name)
    runs = found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    return found if runs else None


def checked(python: str, how: str, package: Path) -> str:
    """A line that says what a user gets of a package."""
    version = package.name.split("-")[1].removesuffix(".tar.gz")
    with tempfile.TemporaryDirectory(prefix="weft-environment-") as place:
        run(python, "-m", "venv", place)
        inside = str(Path(place) / "bin" / "python")
        install(inside, "pip", "torch")  # the build for this machine, as pip is set up to find it
        before = contents(inside)
        install(inside, how, str(package))
        after = contents(inside)
        run(inside, "-c", SMOKE, version)
        program = str(Path(place) / "bin" / "weft")
        told = run(inside, "-c", _WITHOUT_EXTRA, program)
        expect("pip install 'weft-tensor[cli]'" in told, f"the program without its extra says {told!r}")
        install(inside, how, f"{package}[{EXTRAS}]")
        expect(run(program, "--version").strip() == version, "weft --version is of another version")
        run(program, "explain", "mk,kn->mn", "--extents", "m=64,k=64,n=64", "--target", "sm_90")
    new = sorted(after.packages - before.packages - {"weft-tensor"})
    expect(len(new) <= MOST_PACKAGES, f"{len(new)} packages beside torch: {', '.join(new)}")
    return f"right; beside torch {len(new)} packages ({', '.join(new)}), {(after.bytes - before.bytes) / 1e6:.0f} MB"


def install(python: str, how: str, what: str) -> None:
    """Install: by pip the versions that are tested together, by uv those that it finds."""
    if how == "uv":
        run("uv", "pip", "install", "--quiet", "--python", python, what)
    else:
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", *CONSTRAINTS, what)


def contents(python: str) -> Contents:
    """The packages of the environment of an interpreter, but for those that every environment has."""
    size, names = run(python, "-c", _CONTENTS).splitlines()
    return Contents(int(size), frozenset(names.split()) - {"pip", "setuptools"})


def run(*command: str) -> str:
    """The output of a command. `ReleaseError` with its last lines where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir(), env=environment
    )  # fmt: skip
    expect(done.returncode == 0, f"{' '.join(command)[:200]}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def expect(right: bool, fault: str) -> None:
    """`ReleaseError` with the fault of something that is not right."""
    if not right:
        raise ReleaseError(fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
