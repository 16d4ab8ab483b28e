"""Machine code on disk: whatever becomes of the files, every later process computes right and mends them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.errors import WeftWarning

pytest.importorskip("numba")

from weft.cpu import jit, machine_code
from weft.cpu.machine_code import CodeStore, MachineCode
from weft.machine import folder as folders
from weft.machine.store import Store

SOURCE = """
from numba import cfunc

@cfunc("int64(int64)")
def entry(x):
    return x * {factor}
"""
CODE = MachineCode("entry", ("memcpy",), bytes(range(256)) * 8)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of its own, in a process that has compiled nothing."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    new_process(monkeypatch)
    yield tmp_path
    jit.folder.cache_clear()


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    jit.folder.cache_clear()
    monkeypatch.setattr(jit, "_functions", {})
    monkeypatch.setattr(folders, "_told", set())


def times(factor: int) -> int:
    """7 times a number, by a compiled function."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.compiled(SOURCE.format(factor=factor)))
    return int(function(7))


def was_linked(factor: int) -> bool:
    return type(jit._functions[SOURCE.format(factor=factor)].owner).__name__ == "ExecutionEngine"


def in_a_child(work: Callable[[], None]) -> int:
    """The process of a fork that does some work, and ends with 0 where nothing is raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_another_process_links_what_one_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert times(3) == 21
    assert not was_linked(3)
    new_process(monkeypatch)
    assert times(3) == 21
    assert was_linked(3)
    assert not list(jit.folder().rglob("*.py")), "nothing lies there that Python would run"


def test_code_that_needs_what_is_not_there_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    times(3)
    load = CodeStore.load

    def with_more(store: CodeStore, source: str) -> MachineCode | None:
        code = load(store, source)
        return code and code._replace(needs=(*code.needs, "a_function_of_another_numba"))

    monkeypatch.setattr(CodeStore, "load", with_more)
    new_process(monkeypatch)
    assert times(3) == 21
    assert not was_linked(3)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no object"])
def test_a_real_object_that_is_damaged_is_made_anew(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    times(5)
    [file] = jit.folder().glob("*.json")
    file.write_bytes(content)
    for linked in (False, True):
        new_process(monkeypatch)
        assert times(5) == 35
        assert was_linked(5) is linked


DAMAGE: dict[str, Callable[[Path], object]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "cut by half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "cut by a byte": lambda file: os.truncate(file, file.stat().st_size - 1),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b" "),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "gone": Path.unlink,
    "a link": lambda file: (file.rename(file.with_name("elsewhere")), file.symlink_to("elsewhere")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file, 0o600)),
    "open to others": lambda file: file.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_absent_and_replaced(tmp_path: Path, damage: str) -> None:
    store = CodeStore(tmp_path / "0123456789abcdef")
    store.save("a source", CODE)
    assert store.load("a source") == CODE
    [file] = (tmp_path / "0123456789abcdef").glob("*.json")
    DAMAGE[damage](file)
    assert store.load("a source") is None
    if damage == "a folder":
        file.rmdir()
    store.save("a source", CODE)
    assert store.load("a source") == CODE


def test_any_byte_may_flip(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "0123456789abcdef")
    store.save("a source", CODE)
    [file] = (tmp_path / "0123456789abcdef").glob("*.json")
    content = file.read_bytes()
    for at in range(0, len(content), 1 + len(content) // 200):
        for bit in (1, 128):
            file.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            assert store.load("a source") is None, f"byte {at}"
    store.save("a source", CODE)
    assert store.load("a source") == CODE


def test_code_of_another_function_under_this_name_is_not_taken(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "0123456789abcdef")
    store.save("one", CODE)
    store.save("another", CODE._replace(content=b"other"))
    one, another = sorted((tmp_path / "0123456789abcdef").glob("*.json"))
    shutil.copy(one, another)
    assert {store.load("one"), store.load("another")} & {None}


class TestOthers:
    """What others may have written is neither read nor run."""

    def test_what_is_made_is_its_owners_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "fresh"))
        new_process(monkeypatch)
        before = os.umask(0)
        try:
            times(11)
        finally:
            os.umask(before)
        for each in (tmp_path / "fresh", *(tmp_path / "fresh").rglob("*")):
            assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
    def test_a_folder_that_others_write_is_not_used(self, tmp_path: Path, mode: int) -> None:
        folder = tmp_path / "0123456789abcdef"
        store = CodeStore(folder)
        store.save("a source", CODE)
        folder.chmod(mode)
        with pytest.warns(WeftWarning, match=f"does not use its cache in .*others may write there .mode {mode:o}"):
            assert store.load("a source") is None

    def test_values_are_not_read_from_one_either(self, tmp_path: Path) -> None:
        store = Store("room", tmp_path)
        store.save({"a": 1}, "value")
        store.directory.chmod(0o777)
        with pytest.warns(WeftWarning, match="others may write there"):
            assert store.load({"a": 1}) is None
        before = sorted(store.directory.iterdir())
        store.save({"a": 2}, "value")
        assert sorted(store.directory.iterdir()) == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    @pytest.mark.parametrize("what", ["folder", "file"])
    def test_what_belongs_to_another_user_is_not_used(self, tmp_path: Path, what: str) -> None:
        folder = tmp_path / "0123456789abcdef"
        store = CodeStore(folder)
        store.save("a source", CODE)
        given = {"folder": folder, "file": next(folder.glob("*.json"))}[what]
        os.chown(given, 12345, -1)
        if what == "folder":
            with pytest.warns(WeftWarning, match="it belongs to user 12345"):
                assert store.load("a source") is None
        else:
            assert store.load("a source") is None

    def test_planted_sources_and_pickles_do_not_run(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They lay so beside each other in earlier versions."""
        name = f"weft_cpu_{hashlib.sha256(SOURCE.format(factor=3).encode()).hexdigest()[:24]}"
        jit.folder().mkdir(parents=True, exist_ok=True)
        (jit.folder() / f"{name}.py").write_text(f"open({str(cache / 'ran')!r}, 'w')\n")
        assert times(3) == 21
        assert not (cache / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("readable", [True, False])
def test_another_users_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    """Without a home that can be written: root's code is linked where it may be read, and nothing is left anywhere."""
    place = Path(tempfile.mkdtemp(prefix="weft-test-"))
    try:
        monkeypatch.setenv("WEFT_CACHE_DIR", str(place / "cache"))
        new_process(monkeypatch)
        times(13)
        new_process(monkeypatch)
        place.chmod(0o755)
        for each in place.rglob("*") if readable else ():
            each.chmod(0o755 if each.is_dir() else 0o644)
        temporary = set(os.listdir(tempfile.gettempdir()))

        def work() -> None:
            os.setegid(65534)
            os.seteuid(65534)
            os.environ["HOME"] = "/nonexistent"
            assert times(13) == 91
            assert was_linked(13) is readable
            assert times(17) == 119

        assert ended(in_a_child(work)) == 0
        assert set(os.listdir(tempfile.gettempdir())) <= temporary
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("room", [0, 40, 600])
def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Files end where a limit is: what is computed is right, and nothing that is half there is taken for whole."""

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with pytest.warns(WeftWarning, match="cannot write its cache"):
            assert times(19) == 133

    assert ended(in_a_child(work)) == 0
    assert not list(cache.rglob("*.tmp"))
    for linked in (False, True):
        new_process(monkeypatch)
        assert times(19) == 133
        assert was_linked(19) is linked


CONTAINER = """
import torch, weft
a = torch.ones(40, 40)
weft.contract("ik,kj->ij", a, a, algebra="max_plus", backend="cpu", specialize="now")
"""


@pytest.mark.slow
def test_calls_where_nothing_can_be_kept_warn_once(tmp_path: Path) -> None:
    """Code, verdicts of self-tests and all else: one sentence, at the line of the program."""
    (tmp_path / "file").touch()
    script = tmp_path / "program.py"
    script.write_text(CONTAINER)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=True,
        env={**os.environ, "WEFT_CACHE_DIR": str(tmp_path / "file")},
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(told) == 1, done.stderr
    assert told[0].startswith(f"{script}:4: WeftWarning: weft cannot write its cache in {tmp_path / 'file'} ")


def test_one_of_eight_processes_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(2)  # numba is ready

    def work() -> None:
        assert times(23) == 161
        if not was_linked(23):
            (cache / f"compiled by {os.getpid()}").touch()

    assert [ended(child) for child in [in_a_child(work) for _ in range(8)]] == [0] * 8
    assert len(list(cache.glob("compiled by *"))) == 1
    new_process(monkeypatch)
    assert times(23) == 161
    assert was_linked(23)
    assert not [file for end in ("tmp", "broken", "lock") for file in cache.rglob(f"*.{end}")]


def test_a_process_that_never_ends_is_not_waited_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_PATIENCE", 0.2)
    with CodeStore(jit.folder()).turn(SOURCE.format(factor=29)):
        assert times(29) == 203
    assert not was_linked(29)
    assert not list(cache.rglob("*.lock"))


def killed_at_random(count: int, work: Callable[[int], None], seconds: float) -> None:
    draw = random.Random(0)
    for turn in range(count):
        child = in_a_child(lambda turn=turn: work(turn))
        time.sleep(draw.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_processes_that_are_killed_while_they_write(tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"

    def work(turn: int) -> None:
        for step in range(10_000):
            CodeStore(folder).save(f"source {step % 20}", CODE._replace(content=bytes([step % 20]) * 100_000))

    for seconds in (0.05, 0.5, 5.0):  # a slow machine writes nothing in the first
        killed_at_random(25, work, seconds)
        found = [CodeStore(folder).load(f"source {step}") for step in range(20)]
        assert all(code is None or code.content == bytes([step]) * 100_000 for step, code in enumerate(found))
        if any(found):
            break
    assert any(found)
    for step in range(20):
        CodeStore(folder).save(f"source {step}", CODE)
        assert CodeStore(folder).load(f"source {step}") == CODE


@pytest.mark.slow
def test_two_hundred_kills_during_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    times(2)

    def work(turn: int) -> None:
        for factor in range(100, 110):
            times(factor + turn // 20)

    began = time.perf_counter()
    times(3)
    killed_at_random(200, work, 4 * (time.perf_counter() - began))
    for factor in range(100, 120):
        new_process(monkeypatch)
        assert times(factor) == 7 * factor
        new_process(monkeypatch)
        assert times(factor) == 7 * factor
        assert was_linked(factor)


def test_what_was_left_behind_is_removed_and_the_number_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "0123456789abcdef"
    monkeypatch.setattr(machine_code, "MOST", 10)
    monkeypatch.setattr(machine_code, "_OFTEN", 2)
    left = folder / f"{'0' * 64}12345678.tmp"
    lock = left.with_suffix(".lock")
    foreign = folder / "mine.json"
    folder.mkdir()
    for file in (left, lock, foreign):
        file.touch()
        os.utime(file, (0, 0))
    for step in range(40):
        CodeStore(folder).save(f"source {step}", CODE._replace(content=bytes([step])))
    assert CodeStore(folder).load("source 39") is not None
    assert len(list(folder.glob("*.json"))) <= 13
    assert not left.exists()
    assert not lock.exists()
    assert foreign.exists()


@pytest.mark.parametrize("what", ["numba", "sources"])
def test_code_of_other_software_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What one version has compiled another one does not find, and leaves for it."""
    store = CodeStore(tmp_path / "0123456789abcdef")
    store.save("a source", CODE)
    with monkeypatch.context() as patched:
        if what == "numba":
            patched.setattr(machine_code.metadata, "version", lambda name: "0.0")
        else:
            patched.setattr(machine_code, "sources_digest", lambda: "another")
        machine_code._environment.cache_clear()
        assert store.load("a source") is None
    machine_code._environment.cache_clear()
    assert store.load("a source") == CODE
