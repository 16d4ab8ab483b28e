"""weft-tensor-kernels as `make dist` makes it: packages hold the kernels, and plans link those of a wheel."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import packed
import weft

pytest.importorskip("numba")
pytest.importorskip("weft_kernels")

from weft.cpu import jit, level, machine_code
from weft.cpu.level import LEVELS
from weft.machine import pack
from weft_kernels import build_cpu

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "packages" / "weft-kernels"
HOST = level.host_level()
PROGRAM = """
import sys, torch, weft
from weft.cpu.machine_code import is_packed, pack_state
from weft.machine import pack
assert is_packed() and str(pack.folder()).startswith(sys.argv[1]), pack_state()
z = torch.randn(9, 33, 17)
assert torch.equal(weft.permute(z, "abc->cab", specialize="now"), z.permute(2, 0, 1))
print("numba" in sys.modules)
"""


def sources_of_a_permutation(patch: pytest.MonkeyPatch, cache: Path) -> list[str]:
    """Those of the kernels that the plan of `PROGRAM` links; nothing is compiled."""
    patch.setenv("WEFT_KERNELS", "0")
    patch.setenv("WEFT_SELFTEST", "0")
    patch.setenv("WEFT_CACHE_DIR", str(cache))
    nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
    assert nothing is not None
    with jit.collecting(nothing) as found:
        weft.permute(torch.randn(9, 33, 17), "abc->cab", specialize="now")
    return sorted(found)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist, made of the package's files and of a shelf for the host."""
    for name in ("build", "hatchling"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: the extra `test` brings it")
    if HOST is None:
        pytest.skip("the host is of no level")
    folder = tmp_path_factory.mktemp("kernels")
    source, out = folder / "package", folder / "dist"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("*.pack", "__pycache__"))
    shutil.copy(ROOT / ".gitignore", source)  # packs are ignored here as they are in the repository
    with pytest.MonkeyPatch.context() as patch:
        sources = sources_of_a_permutation(patch, folder / "cache")
    build_cpu.build([HOST], sources, source / "src" / "weft_kernels")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_it_holds_the_kernels_whole(built: Path, suffix: str) -> None:
    assert HOST is not None
    (package,) = built.glob(f"weft_tensor_kernels-{weft.__version__}*{suffix}")
    assert packed.kernels(package) == {HOST.name: 3}
    shelf = built.parent / "package" / "src" / "weft_kernels" / f"{HOST.name}.pack"
    assert package.stat().st_size > shelf.stat().st_size


@pytest.mark.slow
def test_plans_link_the_kernels_of_an_installed_wheel(built: Path, tmp_path: Path) -> None:
    """Neither the sources' package is on the path, nor is anything compiled."""
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(place)]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    environment = {name: value for name, value in os.environ.items() if name != "WEFT_KERNELS"}
    environment |= {"PYTHONPATH": os.pathsep.join((str(place), str(ROOT / "src"))), "WEFT_SELFTEST": "0"}
    environment |= {"WEFT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(place)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def a_wheel(folder: Path, levels: dict[str, int]) -> None:
    """A wheel with so many kernels of each level."""
    content = folder / "content"
    content.mkdir(parents=True)
    for name, count in levels.items():
        pack.write_shelf(content / f"{name}.pack", {str(at): b"code" for at in range(count)}, {})
    made = shutil.make_archive(str(folder / "archive"), "zip", content)
    Path(made).rename(folder / "weft_tensor_kernels-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    ("levels", "fault"),
    [
        ({each.name: 2 for each in LEVELS}, ""),
        ({}, "has no kernels for x86-64-v3"),
        ({each.name: each.name != "aarch64" for each in LEVELS}, "has no kernels for aarch64"),
    ],
)
def test_a_package_without_kernels_ends_make_dist(
    levels: dict[str, int], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_wheel(tmp_path, levels)
    assert packed.main(tmp_path) == bool(fault)
    assert fault in capsys.readouterr().err


def test_no_package_at_all_ends_make_dist(tmp_path: Path) -> None:
    assert packed.main(tmp_path) == 1


def test_make_dist_looks_at_what_it_made() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndist:")[2].partition("\n\n")[0]
    assert "build_cpu --if-stale" in recipe
    assert recipe.index("packages/weft-kernels") < recipe.index("tools/packed.py out/dist")


def test_progress_tells_each_twentieth(capsys: pytest.CaptureFixture[str]) -> None:
    progress = build_cpu._Progress(40)
    for _ in range(40):
        progress.step()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(count) for count in range(2, 41, 2)]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (None, "not installed, or turned off"),
        ([], "has no kernels at all in"),
        (["another-level.pack"], "has none of this version for this CPU in"),
    ],
)
def test_an_empty_pack_is_told(
    files: list[str] | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_KERNELS", "0" if files is None else str(tmp_path))
    for name in files or []:
        (tmp_path / name).write_bytes(b"")
    machine_code.is_packed.cache_clear()
    try:
        assert sentence in machine_code.pack_state()
    finally:
        machine_code.is_packed.cache_clear()
