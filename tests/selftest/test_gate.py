"""A family that computes wrong on this machine is found out before its first use, and another serves."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from selftest.made_family import MODULE, WRONG, MadeFamily
from weft.api.describe import TARGETS, choice_for, hypothetical
from weft.planner import registry, verdicts
from weft.planner.planner import choose
from weft.planner.target import target_of
from weft.selftest import cases, gate, trials
from weft.selftest.cases import Trial
from weft_bench.cases import from_letters

CPU = target_of("cpu", torch.device("cpu"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The self-test switched on, with an empty cache; the names of trials that were run."""
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    names: list[str] = []
    real = trials.verdict

    def counted(trial: Trial, *arguments: Any) -> Any:
        names.append(trial.name)
        return real(trial, *arguments)

    monkeypatch.setattr(trials, "verdict", counted)
    new_process()
    yield names
    new_process()


@pytest.fixture
def made(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> MadeFamily:
    family = MadeFamily()
    family.install(monkeypatch)
    return family


def new_process() -> None:
    """What a process knows is forgotten, what is stored is not."""
    verdicts.forget()
    registry.imported.cache_clear()


class CompilationError(Exception):
    """One of a compiler's."""

    __module__ = "triton.compiler.errors"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LASTING = [CompilationError("at 3:4: it cannot be lowered"), caused(RuntimeError("no"), CompilationError("unknown"))]
SHORT = [
    OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EROFS, "Read-only file system"),
    PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EMFILE, "Too many open files"),
    caused(CompilationError("it failed"), OSError(errno.ENOSPC, "No space left on device")),
    CompilationError("`ptxas` failed with error code -9"), RuntimeError("could not write: No space left on device"),
]  # fmt: skip
OTHERS = [RuntimeError("an illegal instruction was met"), TypeError("missing an argument"), KeyError("a key")]
MEMORY = [
    MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("can't start new thread"), caused(CompilationError("it failed"), MemoryError()),
]  # fmt: skip


def raising(error: Exception) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


def product(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands and their product; another shape for each caller that wants another plan."""
    a, b = torch.arange(3.0 * rows).reshape(rows, 3), torch.arange(6.0).reshape(3, 2)
    return a, b, a @ b


def store_files() -> list[Path]:
    return sorted(verdicts.Store(verdicts.ROOM).directory.glob("*.json"))


@pytest.mark.parametrize("behaviour", WRONG)
def test_a_family_that_fails_is_excluded_and_another_serves(made: MadeFamily, behaviour: str) -> None:
    made.behaviour = behaviour
    a, b, expected = product()
    with pytest.warns(weft.WeftWarning, match="does without its family made on CPU: excluded") as given:
        plan = weft.plan("mk,kn->mn", a, b, backend="cpu")
    assert torch.equal(plan(a, b), expected)
    assert torch.equal(weft.contract("mk,kn->mn", a, b, backend="cpu"), expected)
    assert len([each for each in given if each.category is weft.WeftWarning]) == 1
    assert plan.schedule.family != "made"
    [sentence] = [line for line in plan.explain().splitlines() if "made: excluded" in line]
    assert f"its self-test failed under torch {torch.__version__}: " in sentence
    assert "(a product)" in sentence


def test_the_sentence_says_what_was_wrong(made: MadeFamily) -> None:
    found = {}
    for behaviour in WRONG:
        new_process()
        for file in store_files():
            file.unlink()
        made.behaviour = behaviour
        with pytest.warns(weft.WeftWarning):
            weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        found[behaviour] = str(verdicts.failure(MODULE, "cpu", CPU))
    assert "1 of 15 elements wrong" in found["wrong"]
    assert "AttributeError: module 'triton.language' has no attribute 'gone' (a" in found["raises when built"]
    assert "RuntimeError: an illegal instruction was met" in found["raises when run"]
    assert "3 of 15 elements wrong, nan at [4, 0]" in found["unwritten"]
    assert "4 bytes outside the tensor were written" in found["past the end"]
    assert "an operand was written" in found["writes an operand"]


def test_it_warns_once_and_runs_once(made: MadeFamily, ran: list[str]) -> None:
    made.behaviour = "wrong"
    with pytest.warns(weft.WeftWarning):
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(5, 8):
            a, b, expected = product(rows)
            assert torch.equal(weft.contract("mk,kn->mn", a, b, backend="cpu"), expected)
    assert ran.count("a product") == 1


def test_a_family_that_passes_is_used(made: MadeFamily, ran: list[str]) -> None:
    a, b, expected = product()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = weft.plan("mk,kn->mn", a, b, backend="cpu")
    assert plan.schedule.family == "made"
    assert torch.equal(plan(a, b), expected)
    assert ran == ["a product"], "only what was chosen is tested"


def test_plans_made_before_an_exclusion_are_made_anew(made: MadeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    made.behaviour = "wrong"
    a, b, expected = product()
    monkeypatch.setenv("WEFT_SELFTEST", "0")
    assert not torch.equal(weft.contract("mk,kn->mn", a, b, backend="cpu"), expected)
    monkeypatch.setenv("WEFT_SELFTEST", "1")
    with pytest.warns(weft.WeftWarning):
        weft.plan("mk,kn->mn", *product(9)[:2], backend="cpu")
    assert torch.equal(weft.contract("mk,kn->mn", a, b, backend="cpu"), expected)


class TestRecord:
    def test_another_process_finds_it(self, made: MadeFamily, ran: list[str]) -> None:
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        new_process()
        assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family == "made"
        assert ran == ["a product"]

    def test_so_it_does_of_a_failure(self, made: MadeFamily, ran: list[str]) -> None:
        made.behaviour = "wrong"
        for _ in range(2):
            with pytest.warns(weft.WeftWarning, match="1 of 15 elements wrong"):
                assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family != "made"
            new_process()
        assert ran.count("a product") == 1

    @pytest.mark.parametrize("error", LASTING, ids=str)
    def test_what_a_compiler_says_is_kept(
        self, made: MadeFamily, ran: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(sys.modules[MODULE], "build", raising(error))
                with pytest.warns(weft.WeftWarning, match="excluded on this machine"):
                    plan = weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
            assert plan.schedule.family != "made"
            new_process()
        assert ran.count("a product") == 1

    @pytest.mark.parametrize("error", [*SHORT, *OTHERS], ids=str)
    def test_what_another_process_may_find_otherwise_is_not(
        self, made: MadeFamily, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[MODULE], "build", raising(error))
            with pytest.warns(weft.WeftWarning, match="excluded in this process"):
                plan = weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
            assert plan.schedule.family != "made", "another serves meanwhile"
        assert "a product" not in "".join(file.read_text() for file in store_files())
        new_process()
        assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family == "made"

    @pytest.mark.parametrize("error", MEMORY, ids=str)
    def test_nor_is_a_lack_of_memory_which_excludes_nothing(
        self, made: MadeFamily, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(trials, "problem", raising(error))
            assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family == "made"
        assert "a product" not in "".join(file.read_text() for file in store_files())
        assert verdicts.failure(MODULE, "cpu", CPU) is None

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: "no JSON",
            lambda text: text[: len(text) // 2],
            lambda text: json.dumps(json.loads(text) | {"value": ["of another kind"]}),
            lambda text: json.dumps(json.loads(text) | {"value": {"a product": {"reason": 3}}}),
            lambda text: json.dumps(
                json.loads(text) | {"value": {"a product": {"reason": 3, "date": "", "seconds": 1.0}}}
            ),
        ],
        ids=["no JSON", "cut short", "a list", "fields are missing", "a field of another type"],
    )
    def test_a_damaged_one_is_made_anew(self, made: MadeFamily, ran: list[str], damage: Any) -> None:
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        [file] = store_files()
        sound = json.loads(file.read_text())
        file.write_text(damage(file.read_text()))
        new_process()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        assert ran == ["a product"] * 2
        assert json.loads(file.read_text())["key"] == sound["key"]
        new_process()
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        assert len(ran) == 2

    @pytest.mark.parametrize("part", ["torch", "triton", "name"])
    def test_other_software_or_another_device_is_tested_anew(
        self, made: MadeFamily, ran: list[str], monkeypatch: pytest.MonkeyPatch, part: str
    ) -> None:
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        real = verdicts.device_stamp
        monkeypatch.setattr(verdicts, "device_stamp", lambda device: real(device) | {part: "another"})
        new_process()
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        assert ran == ["a product"] * 2

    def test_so_is_other_code(self, made: MadeFamily, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        monkeypatch.setattr(verdicts, "of_backend", lambda backend: "another")
        new_process()
        weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        assert ran == ["a product"] * 2


class TestWhen:
    def test_switched_off(self, made: MadeFamily, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_SELFTEST", "0")
        made.behaviour = "wrong"
        assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family == "made"
        assert ran == []
        assert store_files() == []

    def test_switched_off_it_forgives_what_failed(self, made: MadeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
        made.behaviour = "wrong"
        with pytest.warns(weft.WeftWarning):
            weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        monkeypatch.setenv("WEFT_SELFTEST", "0")
        assert weft.plan("mk,kn->mn", *product(6)[:2], backend="cpu").schedule.family == "made"

    def test_not_for_a_device_that_is_not_here(self, ran: list[str]) -> None:
        asked = hypothetical("mk,kn->mn", {"m": 64, "n": 64, "k": 64}, dtype=torch.float16, target="sm_90")
        _, choice = choice_for(asked)
        assert choice is not None
        if not torch.cuda.is_available():
            assert gate.admitted(choice)
            assert not verdicts.applies("triton", TARGETS["sm_90"])
        assert ran == []

    def test_not_for_the_interpreter_unless_it_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        target = target_of("triton", torch.device("cpu"))
        for setting, wanted in (("1", False), ("0", False), ("interpreter", True)):
            monkeypatch.setenv("WEFT_SELFTEST", setting)
            assert verdicts.applies("triton", target) is wanted

    def test_later_where_nothing_can_be_run_now(
        self, made: MadeFamily, ran: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while a CUDA graph is captured."""
        with monkeypatch.context() as patch:
            patch.setattr(gate, "_must_wait", lambda target: True)
            weft.plan("mk,kn->mn", *product()[:2], backend="cpu")
        assert ran == []
        assert store_files() == []
        weft.plan("mk,kn->mn", *product(5)[:2], backend="cpu")
        assert ran == ["a product"]

    def test_short_memory_is_no_fault_of_a_family(self, made: MadeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_room(*_: Any) -> None:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(trials, "problem", no_room)
        assert weft.plan("mk,kn->mn", *product()[:2], backend="cpu").schedule.family == "made"
        assert store_files() == []

    def test_under_a_default_device_and_dtype_of_the_caller(self, made: MadeFamily, ran: list[str]) -> None:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                a, b = torch.ones(4, 3, device="cpu"), torch.ones(3, 2, device="cpu")
                assert weft.plan("mk,kn->mn", a, b, backend="cpu").schedule.family == "made"
        finally:
            torch.set_default_dtype(before)
        assert ran == ["a product"]


def test_where_every_family_fails_the_error_says_so(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("weft.cpu.permute.family", "weft.library.permutations"):
        monkeypatch.setattr(import_module(family), "build", lambda *_: lambda x, c, d, alpha, beta: d.fill_(7))
    x = torch.arange(6.0).reshape(2, 3)
    wrong = r"the cpu backend cannot do this: permute: excluded on this machine, its self-test failed under torch"
    with pytest.warns(weft.WeftWarning), pytest.raises(weft.UnsupportedError, match=wrong):
        weft.permute(x, "ab->ba", backend="cpu")
    assert len(ran) == 2, "one of each family's ways is at fault"


def test_transpositions_in_place(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(weft.transpose_(x.clone()), x.t())
    assert ran == ["rectangular"]
    monkeypatch.setattr(import_module("weft.cpu.permute.transpose"), "square_", lambda matrices, alpha: None)
    square = torch.arange(9.0).reshape(3, 3)
    with pytest.warns(weft.WeftWarning), pytest.raises(weft.UnsupportedError, match="cannot be transposed in place"):
        weft.transpose_(square)
    assert torch.equal(square, torch.arange(9.0).reshape(3, 3)), "nothing is written then"


def test_steps_of_a_schedule_are_tested_too(ran: list[str]) -> None:
    described = weft.plan("mik,kn->mn", torch.ones(6, 4, 5), torch.ones(5, 6), backend="reference").contraction
    others = ("cpu", "gett", "stream")  # without them sums of a mode of A alone come first
    choice = choose(described, "cpu", CPU, without=others)
    assert gate.admitted(choice)
    assert {"a mode of A alone", "float32"} <= set(ran)


def test_kernels_of_triton_in_the_interpreter(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The family that is chosen is broken; the next one serves."""
    family = pytest.importorskip("weft.gpu.gett.family")
    if torch.cuda.is_available():
        pytest.skip("kernels are not interpreted where there is a device")
    monkeypatch.setenv("WEFT_SELFTEST", "interpreter")
    small = from_letters("a product", "mk,kn->mn", m=17, k=16, n=16, dtypes=(torch.float16,) * 2 + (torch.float32,))
    names = ("weft.gpu.gett.family", "weft.gpu.simt.family")
    monkeypatch.setitem(cases.TRIALS, "triton", tuple(Trial(name, small) for name in names))
    a, b = (torch.arange(256.0).reshape(16, 16).remainder(5).half() for _ in range(2))
    chosen = weft.plan("mk,kn->mn", a, b, out_dtype=torch.float32, backend="triton").schedule.family
    assert chosen == family.NAME
    real = family.build

    def broken(*arguments: Any) -> Any:
        launch = real(*arguments)
        return lambda a, b, c, d, alpha, beta, aux=(): launch(a, b, c, d, 2 * alpha, beta, aux)

    monkeypatch.setattr(family, "build", broken)
    for file in store_files():
        file.unlink()
    new_process()
    with pytest.warns(weft.WeftWarning, match=r"family gett on Triton interpreter.* failed under Triton 3"):
        plan = weft.plan("mk,kn->mn", a, b, out_dtype=torch.float32, backend="triton")
    assert plan.schedule.family != family.NAME
    assert torch.equal(plan(a, b), a.float() @ b.float())
