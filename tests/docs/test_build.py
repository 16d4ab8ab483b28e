"""The pages as Sphinx renders them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weft
from pages import DOCS


@pytest.mark.slow
def test_pages_build_without_warnings(tmp_path: Path) -> None:
    """As `make docs` builds them; every public name can be linked to, and options come from the command."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    interface = "".join(page.read_text() for page in (tmp_path / "api").glob("*.html"))
    for name in set(weft.__all__) - {"__version__"}:
        assert f'id="weft.{name}"' in interface or f'id="module-weft.{name}"' in interface, name
    assert "--workspace-limit" in (tmp_path / "commands" / "explain.html").read_text()
    assert (tmp_path / "changelog.html").exists()
