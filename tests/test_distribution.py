"""The wheel and the sdist, installed where nothing of these sources can be seen, and what is said of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft
from release import SMOKE

ROOT = Path(__file__).resolve().parent.parent


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
