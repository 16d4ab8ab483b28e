"""The installed distribution agrees with the sources it was built from."""

import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import weft

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    """Name to version, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_distribution_and_module_agree_on_the_version() -> None:
    """An editable install has the version of the day it was made: `tests/test_distribution.py` makes a new one."""
    made = metadata.distribution("weft")
    if "editable" in (made.read_text("direct_url.json") or ""):
        assert PROJECT["dynamic"] == ["version"]
    else:
        assert made.version == weft.__version__


def test_package_is_marked_as_typed() -> None:
    assert resources.files("weft").joinpath("py.typed").is_file()


def test_command_points_into_the_package() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="weft")
    assert script.value == "weft.__main__:main"


def test_every_direct_dependency_is_pinned() -> None:
    wanted = [*PROJECT["dependencies"], *(d for extra in PROJECT["optional-dependencies"].values() for d in extra)]
    names = {d.split(";")[0].split(">")[0].split("=")[0].strip() for d in wanted}
    assert names <= pins().keys()


def test_users_install_little_beside_torch() -> None:
    """NumPy, opt_einsum, and numba with llvmlite; typing_extensions is torch's."""
    names = {d.partition(">")[0] for d in PROJECT["dependencies"]}
    assert names == {"torch", "numpy", "opt_einsum", "numba", "typing_extensions"}


def test_linters_are_pinned_alike() -> None:
    for requirement in PROJECT["optional-dependencies"]["dev"]:
        name, version = requirement.split("==")
        assert pins()[name] == version


def test_import_brings_no_plots_no_paths_and_no_command_line() -> None:
    names = {"matplotlib", "cotengra", "typer", "rich", "weft_bench"}
    code = f"import sys, weft; print(sorted({names} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
