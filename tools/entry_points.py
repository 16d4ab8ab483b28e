"""Write the entry points of a project file where `importlib.metadata` finds them: ``entry_points.py PROJECT FOLDER``.

For environments that nothing is installed into: the folder goes on PYTHONPATH, and its name is printed.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(project: str, folder: str) -> None:
    about = tomllib.loads((Path(project) / "pyproject.toml").read_text())["project"]
    place = Path(folder) / f"{about['name'].replace('-', '_')}-0.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: 0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in about["entry-points"].items()
    )
    (place / "entry_points.txt").write_text("\n".join(groups))
    print(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
