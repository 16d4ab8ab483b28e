"""Whether packages of weft-tensor-kernels hold kernels for every level of CPUs: ``packed.py FOLDER``.

The last step of `make dist`: it ends with exit code 1 where a wheel or an sdist in the folder lacks a level, or holds
one of no kernels.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from weft.cpu.level import LEVELS
from weft.machine.pack import Shelf

LEVEL_NAMES = tuple(level.name for level in LEVELS)


def main(folder: Path) -> int:
    """Say what each package holds; the exit code."""
    packages = sorted(folder.glob("weft_tensor_kernels-*"))
    faults = [] if packages else [f"{folder} has no package of weft-tensor-kernels"]
    for package in packages:
        held = kernels(package)
        print(f"{package.name}: {package.stat().st_size / 1e6:.1f} MB, kernels by level: {held}")
        faults += [f"{package.name} has no kernels for {name}" for name in LEVEL_NAMES if not held.get(name)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def kernels(package: Path) -> dict[str, int]:
    """How many kernels a wheel or an sdist holds for each level."""
    with tempfile.TemporaryDirectory() as place:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as wheel:
                wheel.extractall(place)
        else:
            with tarfile.open(package) as sdist:
                sdist.extractall(place, filter="data")
        return {shelf.stem: len(Shelf(shelf)) for shelf in sorted(Path(place).rglob("*.pack"))}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
