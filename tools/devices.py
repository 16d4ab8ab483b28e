"""Check that weft's tensors have devices: `python tools/devices.py [file or folder ...]`, a part of `make lint`.

A function of torch that makes a tensor names `device`, as it would take the default device otherwise, which the program
may have set (`torch.set_default_device`, `with torch.device(...)`). The same holds where such a function is an argument
of a call. Without arguments all of `src` is checked.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Functions of torch that make tensors where nobody names a device; tests hold it against torch's own list.
MAKERS = frozenset({
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_permuted",
    "empty_quantized", "empty_strided", "eye", "full", "hamming_window", "hann_window", "kaiser_window", "linspace",
    "logspace", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "sparse_bsc_tensor",
    "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor",
    "tensor", "tril_indices", "triu_indices", "zeros",
})  # fmt: skip


def of_text(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault in a Python file."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        for each in (node.func, *node.args):
            named = any(word.arg in ("device", None) for word in node.keywords)
            if _makes(each) and not named and (each is node.func or not _mentions(node)):
                yield node.lineno, f"{ast.unparse(each)} names no device: it makes a tensor on the default device"


def _makes(node: ast.expr) -> bool:
    """Whether an expression is a function of torch that makes tensors."""
    of_torch = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
    return of_torch and node.attr in MAKERS  # type: ignore[union-attr]


def _mentions(call: ast.Call) -> bool:
    """Whether a dictionary among the arguments names a device."""
    return any(isinstance(node, ast.Constant) and node.value == "device" for node in ast.walk(call))


def main(*paths: str) -> int:
    """The exit code: 1 where anything was found."""
    found = 0
    for path in map(Path, paths or (str(ROOT / "src"),)):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, message in of_text(file.read_text()):
                print(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{line}: {message}")
                found = 1
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
