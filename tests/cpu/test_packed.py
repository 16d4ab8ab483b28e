"""Kernels built ahead: linked without numba where the pack has them, and whatever is wrong with a pack, all goes on."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from commands import python

pytest.importorskip("numba")
pytest.importorskip("weft_kernels")

from weft.cpu import jit, level, machine_code
from weft.cpu.level import LEVELS
from weft.cpu.machine_code import MachineCode
from weft.machine import folder as folders
from weft.machine import pack
from weft_kernels import build_cpu

HOST = level.host_level()
on_a_level = pytest.mark.skipif(HOST is None, reason="the host is of no level")
PACKAGE = Path(weft.__file__).parent
SOURCE = """
from numba import cfunc
from weft.cpu.gett.vector import load_word

@cfunc("int64(int64)")
def entry(x):
    return x * {factor}
"""
VECTORS = """
from numba import cfunc, float32
from weft.cpu.gett.vector import copy_vector

@cfunc("void(int64, int64)")
def entry(to, source):
    copy_vector(to, source, float32(0))
"""


def times(factor: int) -> str:
    return SOURCE.format(factor=factor)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shelf for the host: three times a number."""
    assert HOST is not None
    folder = tmp_path_factory.mktemp("built")
    in_a_process([HOST.name], folder, [times(3)])
    return (folder / f"{HOST.name}.pack").read_bytes()


def in_a_process(names: list[str], folder: Path, sources: list[str]) -> None:
    (folder / "sources.json").write_text(json.dumps(sources))
    for name in names:
        command = [sys.executable, "-m", "weft_kernels.build_cpu", name, "--part", "sources.json", f"{name}.pack"]
        subprocess.run(command, check=True, cwd=folder, timeout=120)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the host's shelf belongs, in a process that has linked nothing."""
    assert HOST is not None
    monkeypatch.setenv("WEFT_KERNELS", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_functions", {})
    monkeypatch.setattr(folders, "_told", set())
    for known in (pack._opened, pack._tell, jit.folder, machine_code._environment):
        known.cache_clear()
    yield tmp_path / f"{HOST.name}.pack"
    for known in (pack._opened, pack._tell, jit.folder, machine_code._environment):
        known.cache_clear()


def called(source: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.compiled(source))(7))


def was_compiled() -> bool:
    """Whether numba has compiled what was called last: its machine code is kept."""
    return bool(list(jit.folder().rglob("*.json")))


@on_a_level
def test_what_the_pack_has_is_linked_and_the_rest_is_compiled(shelf: Path, built: bytes) -> None:
    shelf.write_bytes(built)
    assert called(times(3)) == 21
    assert not was_compiled()
    assert called(times(5)) == 35
    assert was_compiled()


@on_a_level
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda content: content[:100], "it is cut short"),
        (lambda content: content[:5], "it is no pack of this version"),
        (lambda content: b"#!/bin/sh\n" * 9, "it is no pack of this version"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "an entry is not as it was written"),
    ],
)
def test_a_damaged_shelf_is_one_sentence_and_all_goes_on(
    shelf: Path, built: bytes, damage: object, sentence: str
) -> None:
    assert callable(damage)
    shelf.write_bytes(damage(built))
    with pytest.warns(weft.WeftWarning, match=sentence) as told:
        assert [called(times(3)), called(times(5))] == [21, 35]
    assert len(told) == 1
    assert was_compiled()


@on_a_level
def test_a_pack_of_another_version_is_never_used(shelf: Path, built: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.write_bytes(built)
    monkeypatch.setattr(machine_code, "sources_digest", lambda: "of other code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert called(times(3)) == 21
    assert was_compiled()


@on_a_level
def test_an_entry_that_needs_what_is_not_there_is_compiled(
    shelf: Path, built: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.write_bytes(built)
    load = machine_code.from_pack

    def with_more(source: str) -> MachineCode | None:
        code = load(source)
        return code and code._replace(needs=("a_function_of_another_library",))

    monkeypatch.setattr(jit, "from_pack", with_more)
    assert called(times(3)) == 21
    assert was_compiled()


@on_a_level
def test_a_store_that_cannot_be_written_is_one_sentence(shelf: Path, built: bytes) -> None:
    shelf.write_bytes(built)
    Path(os.environ["WEFT_CACHE_DIR"]).write_text("a file")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert called(times(3)) == 21
    with pytest.warns(weft.WeftWarning) as told:
        assert [called(times(5)), called(times(6))] == [35, 42]
    assert len(told) == 1


@on_a_level
def test_a_machine_below_every_level_compiles(shelf: Path, built: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    shelf.write_bytes(built)
    features = binding.get_host_cpu_features()
    fewer = type(features)({**features, "avx2": False, "avx512f": False})
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: fewer)
    monkeypatch.setattr(binding, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(level, "_processor", lambda: "flags\t\t: sse4_2")
    level.host_level.cache_clear()
    level.vector_bytes.cache_clear()
    try:
        assert level.host_level() is None
        assert called(times(3)) == 21
    finally:
        monkeypatch.undo()
        level.host_level.cache_clear()
        level.vector_bytes.cache_clear()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere LLVM says it")
def test_the_system_and_llvm_agree_on_the_vectors() -> None:
    from llvmlite import binding

    features, name = binding.get_host_cpu_features(), binding.get_host_cpu_name()
    assert level.vector_bytes() == (64 if features.get("avx512f") and not name.startswith("znver4") else 32)


def test_a_sum_of_three_that_compiles_nothing_loads_no_llvm() -> None:
    program = "import sys, torch, weft; x = torch.ones(8, 8); weft.einsum('ab,bc,cd->ad', x, x, x)"
    subprocess.run([sys.executable, "-c", f"{program}; assert 'llvmlite' not in sys.modules"], check=True,
                   env={key: value for key, value in os.environ.items() if not key.startswith("WEFT_")})  # fmt: skip


@pytest.mark.parametrize(
    ("host", "features", "chosen"),
    [
        ("znver5", {"avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512f"}, "x86-64-v4"),
        ("znver4", {"avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512f"}, "x86-64-v3"),  # splits long vectors
        ("haswell", set(), "x86-64-v3"),
        ("knl", {"avx512f"}, None),  # vectors of 64 bytes, but not all that the level needs
    ],
)
def test_the_level_has_the_vectors_of_the_host(
    host: str, features: set[str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llvmlite import binding

    every = {*features, *next(each for each in LEVELS if each.name == "x86-64-v3").needs}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: dict.fromkeys(every, True))
    monkeypatch.setattr(binding, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(sys, "platform", "linux")
    maker, family = {"znver5": ("AuthenticAMD", 26), "znver4": ("AuthenticAMD", 25)}.get(host, ("GenuineIntel", 6))
    said = f"vendor_id\t: {maker}\ncpu family\t: {family}\nflags\t\t: {' '.join(sorted(features))}"
    monkeypatch.setattr(level, "_processor", lambda: said)
    known = level.host_level, level.vector_bytes
    for each in known:
        each.cache_clear()
    try:
        found = level.host_level()
        assert (None if found is None else found.name) == chosen
        assert found is None or found.vector == level.vector_bytes()
    finally:
        for each in known:
            each.cache_clear()


def test_every_level_is_compiled_for_on_any_machine(tmp_path: Path) -> None:
    """Objects of the level's architecture, whose vectors are as long as the level has them."""
    in_a_process([each.name for each in LEVELS], tmp_path, [VECTORS])
    machines = {"x86-64-v4": 62, "x86-64-v3": 62, "aarch64": 183}
    sizes = {}
    for each in LEVELS:
        entry = pack.Shelf(tmp_path / f"{each.name}.pack").get(machine_code.pack_key(VECTORS)) or b""
        content = entry.partition(b"\n")[2]
        assert content[:5] == b"\x7fELF\x02"
        assert int.from_bytes(content[18:20], "little") == machines[each.name]
        sizes[each.name] = content
    assert b"\x62" in sizes["x86-64-v4"], "EVEX prefix: a vector of 64 bytes"
    assert b"\xc5\xfc\x10" in sizes["x86-64-v3"], "vmovups of ymm"


def test_the_digest_covers_all_that_sources_import() -> None:
    """The files that sources name, and those of the CPU's code that these import."""
    named = {file for pattern in machine_code.CODE for file in PACKAGE.glob(pattern)}
    texts = [file.read_text() for folder in ("cpu", "fn", "library", "cascades")
             for file in (PACKAGE / folder).rglob("*.py")]  # fmt: skip
    found = {
        module for text in texts for source in re.findall(r'"""\\\n(.*?)"""', text, re.DOTALL)
        for module in re.findall(r"^from (weft\.[\w.]+) import", source, re.MULTILINE)
    }  # fmt: skip
    found |= {module for text in texts for module in re.findall(r'"(weft\.cpu\.[\w.]*kernel)\.', text)}
    waiting = [file for module in found if (file := file_of(module)).exists()]
    assert len(waiting) > 8
    reached: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in reached or file.name == "__init__.py":
            continue
        reached.add(file)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom) and re.match(r"weft\.(cpu|fn\.numba)\b", node.module or ""):
                several = [file_of(f"{node.module}.{name.name}") for name in node.names]
                waiting += [each for each in (file_of(str(node.module)), *several) if each.exists()]
    assert reached - named == set()


def file_of(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


CONTRACTS = """
import sys, torch, weft
a, b = torch.randn(64, 64, dtype=torch.float64), torch.randn(64, 64, dtype=torch.float64)
x, y = a.float(), b.float()
assert torch.allclose(weft.contract("ab,bc->ac", x, y), x @ y, atol=1e-4)
assert torch.allclose(2 * (a @ b), weft.contract("ab,bc->ac", a, b) + weft.contract("ab,bc->ac", a, b))
z = torch.randn(9, 33, 17)
assert torch.equal(weft.permute(z, "abc->cab"), z.permute(2, 0, 1))
print("numba" in sys.modules)
"""


@on_a_level
def test_a_first_contraction_imports_no_numba(tmp_path: Path) -> None:
    """With the shelf of this checkout, where one was built."""
    assert HOST is not None
    shelf = build_cpu.FOLDER / f"{HOST.name}.pack"
    if not shelf.exists() or pack.Shelf(shelf).about["code"] != machine_code.sources_digest():
        pytest.skip("this checkout has no pack of its code: make kernels")
    found = python(CONTRACTS, WEFT_CACHE_DIR=str(tmp_path), WEFT_KERNELS=str(build_cpu.FOLDER))
    assert found == "False", "is the pack that of this code?"


def test_a_shelf_is_stale_where_it_holds_other_sources(tmp_path: Path) -> None:
    shelf = tmp_path / "x86-64-v4.pack"
    assert build_cpu.stale(shelf, [times(3)])
    pack.write_shelf(shelf, {machine_code.pack_key(times(3)): b""}, {})
    assert not build_cpu.stale(shelf, [times(3)])
    assert build_cpu.stale(shelf, [times(3), times(5)])
    shelf.write_bytes(b"something else")
    assert build_cpu.stale(shelf, [times(3)])


def test_the_sources_are_known_without_compiling() -> None:
    command = "import sys; from weft_kernels.cpu_sources import sources; print(len(sources()), 'numba' in sys.modules)"
    count, numba = python(command).split()
    assert 100 < int(count) < 1000
    assert numba == "False"
