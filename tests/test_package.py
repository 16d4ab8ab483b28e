"""The package: its sources and installed distributions agree, what importing it costs, what few others it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft
from commands import python
from release import SMOKE

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    """Name to version, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_distribution_and_module_agree_on_the_version() -> None:
    """An editable install has the version of the day it was made: a slow test below makes a new one."""
    made = metadata.distribution(PROJECT["name"])
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


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^cff-version: 1\.2\.0$", text, re.MULTILINE)
    assert re.search(rf"^version: {re.escape(weft.__version__)}$", text, re.MULTILINE)
    for key in ("message", "title", "authors", "license"):
        assert re.search(rf"^{key}:", text, re.MULTILINE), key


def test_the_changelog_has_this_version() -> None:
    (first, *_) = re.findall(r"^## \[([^\]]+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first[0] == weft.__version__
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", first[1])


def test_the_recipe_of_conda_forge_asks_for_what_the_project_does() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML, which reads recipes, comes with the extra `test`")
    recipe = yaml.safe_load((ROOT / "packages" / "conda-forge" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert recipe["context"]["version"] == weft.__version__
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # there; what has a program is the larger package

    def there(requirements: list[str]) -> set[str]:
        parts = [each.partition(">=") for each in requirements]
        return {f"{names.get(name, name)} >={least}" for name, _, least in parts}

    needed = there(project["dependencies"]) | {f"python {project['requires-python']}"}
    extras = project["optional-dependencies"]
    assert set(recipe["requirements"]["run"]) == needed
    assert set(recipe["requirements"]["run_constraints"]) == there([*extras["cli"], *extras["networks"]])
    assert recipe["build"]["python"]["entry_points"] == [f"weft = {project['scripts']['weft']}"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist; the wheel is made from the sdist, as `python -m build` does it."""
    for name in ("build", "hatchling"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: the extra `test` brings it")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
    return folder


def run(command: list[str], where: Path) -> str:
    """What a command says; nothing of this process's environment leads it to the sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=500, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_it_installs_and_works(built: Path, suffix: str, tmp_path: Path) -> None:
    """Dependencies are those at hand, seen by path: no `.pth` file of theirs is read, so no editable weft is."""
    (package,) = built.glob(f"*{suffix}")
    assert weft.__version__ in package.name
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    paths = {"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")}
    (Path(sysconfig.get_path("purelib", vars=paths)) / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages"))
    )
    how = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--force-reinstall"]
    run([str(python), "-m", "pip", "install", *how, str(package)], tmp_path)
    assert "mk,kn->mn" in run([str(python), "-c", SMOKE, weft.__version__], tmp_path)
    command = str(python.with_name("weft"))
    assert run([command, "--version"], tmp_path).strip() == weft.__version__
    shapes = ["--extents", "m=64,k=64,n=64", "--dtype", "float16", "--target", "sm_90"]
    assert "candidates" in run([command, "explain", "mk,kn->mn", *shapes], tmp_path)


@pytest.mark.slow
def test_the_sdist_has_what_tests_and_pages_need(built: Path) -> None:
    (package,) = built.glob("*.tar.gz")
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"CITATION.cff", "CHANGELOG.md", "LICENSE", "Makefile", "docs/conf.py", "docs/cookbook/index.md"}
    assert needed <= names
    assert {"conftest.py", "tests/support.py"} <= names
    assert {f"examples/{file.name}" for file in (ROOT / "examples").glob("*.*")} <= names


ROOMS_WITHOUT_TRITON = (
    "weft", "weft.spec", "weft.fn", "weft.plans", "weft.plans.contraction", "weft.plans.select", "weft.planner.planner",
    "weft.machine", "weft.oracle", "weft.library.family", "weft.reference", "weft.testing", "weft_bench.cases",
)  # fmt: skip


def test_rooms_import_no_triton_and_touch_no_gpu() -> None:
    code = (
        "import sys, torch, importlib\n"
        f"for room in {ROOMS_WITHOUT_TRITON}:\n"
        "    importlib.import_module(room)\n"
        "    if 'triton' in sys.modules or torch.cuda.is_initialized(): print(room)"
    )
    assert python(code) == ""


def test_import_is_quick() -> None:
    """A third of what torch's own import takes, at most: of the processor time, in one of three interpreters."""
    code = (
        "import time; start = time.process_time(); import torch; between = time.process_time(); import weft\n"
        "print((time.process_time() - between) / (between - start))"
    )
    assert any(float(python(code)) < 1 / 3 for _ in range(3))


def test_what_few_calls_need_is_imported_with_the_first_of_them() -> None:
    found = python("import sys, weft; print(*sys.modules)").split()
    packages = {"triton", "numba", "llvmlite", "jax", "matplotlib", "cotengra", "typer", "rich", "weft_bench"}
    assert not packages & {name.partition(".")[0] for name in found}
    assert not {"weft.cascades.plan", "weft.distributed", "weft.tn", "weft.jax"} & set(found)


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft", "--help"], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "demo" in done.stdout


def test_public_names() -> None:
    import weft

    for name in weft.__all__:
        assert hasattr(weft, name)
    wanted = {"contract", "plan", "Plan", "einsum", "reference", "WeftError", "NotationError", "ShapeError"}
    wanted |= {"DTypeError", "FunctionError", "UnsupportedError", "WorkspaceError"}
    assert wanted <= set(dir(weft))


@pytest.mark.one_of(2)
@pytest.mark.parametrize("words", ["", "--help", "--version", "explain --help", "tune --help", "accuracy --help"])
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
