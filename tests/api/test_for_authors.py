"""For authors of libraries: plans that pickle, the logger, the cache, memory, reports as data, tensors as they come."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from forked import said

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4) - 5
AB = A @ B


def doubled(value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return 2 * value + bias


class TestPickle:
    def test_a_plan_with_functions_operands_and_an_algebra(self) -> None:
        bias = torch.arange(4.0)
        plan = weft.plan(
            "mk,kn->mn", A, B, a_fn=weft.functions.leaky_relu(0.5), epilogue=doubled, operands={"bias": ("n", bias)},
            precision="fp16", out_dtype="f64",
        )  # fmt: skip
        again = pickle.loads(pickle.dumps(plan))
        assert again is not plan
        expected = plan(A, B, operands={"bias": bias})
        assert torch.equal(again(A, B, operands={"bias": bias}), expected)
        assert str(again.schedule) == str(plan.schedule)
        longest = weft.plan("mk,kn->mn", A, B, algebra="max_plus")
        assert torch.equal(pickle.loads(pickle.dumps(longest))(A, B), longest(A, B))
        other = weft.plan("mk,kn->mn", A, B, backend="reference")
        assert torch.equal(pickle.loads(pickle.dumps(other))(A, B), AB)

    def test_a_permutation(self) -> None:
        plan = weft.plan_permute(A, "ab->ba", fn=torch.relu, out_dtype="half")
        assert torch.equal(pickle.loads(pickle.dumps(plan))(A), plan(A))

    def test_another_process_makes_it_again(self, tmp_path: Path) -> None:
        file = tmp_path / "plan.pickle"
        file.write_bytes(pickle.dumps(weft.plan("mk,kn->mn", A, B, epilogue=torch.relu)))
        code = (
            f"import pickle, torch; p = pickle.load(open({str(file)!r}, 'rb'))\n"
            "print(p(torch.ones(2, 3), torch.ones(3, 4)).sum().item())"
        )
        assert said(code) == "24.0\n"

    def test_a_function_that_cannot_be_found_again_is_named(self) -> None:
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pickle.dumps(weft.plan("mk,kn->mn", A, B, epilogue=lambda v: v + 1))

    def test_copies_of_modules_share_their_plans(self) -> None:
        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.plan = weft.plan("mk,kn->mn", A, B)

        layer = Layer()
        assert torch.equal(copy.deepcopy(layer).plan(A, B), AB)
        assert copy.deepcopy(layer).plan is copy.copy(layer.plan) is layer.plan

    def test_algebras(self) -> None:
        for algebra in weft.algebra.NAMED.values():
            assert pickle.loads(pickle.dumps(algebra)) is copy.deepcopy(algebra) is algebra
        modulo = pickle.loads(pickle.dumps(weft.algebra.plus_times_mod(7)))
        assert torch.equal(
            weft.contract("mk,kn->mn", A.int(), B.int(), algebra=modulo), (A.int() @ B.int()).remainder(7)
        )
        own = weft.Algebra(torch.add, torch.maximum, "lowest", "mine")
        assert pickle.loads(pickle.dumps(own)) == own


class TestLog:
    def test_a_line_for_each_plan(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "weft"):
            weft.plan("mk,kn->mn", torch.ones(2, 31), torch.ones(31, 4))(torch.ones(2, 31), torch.ones(31, 4))
        (line,) = [record.getMessage() for record in caplog.records if record.name == "weft"]
        for part in ("mk,kn->mn on CPU", "from the model", "predicted", "planned in", "built in"):
            assert part in line

    @pytest.mark.parametrize(
        ("level", "said"), [("info", "planned in"), ("", ""), ("loud", "WEFT_LOG=loud is no level")]
    )
    def test_the_environment_asks_for_it(self, level: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_LOG", level)
        code = "import torch, weft; weft.matmul(torch.ones(2, 2), torch.ones(2, 2))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        assert said in done.stderr
        assert bool(done.stderr) == bool(said)


class TestCache:
    @pytest.fixture(autouse=True)
    def _own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))

    def test_info_export_clear_import(self, tmp_path: Path) -> None:
        from weft.machine.store import Store

        assert weft.cache.folder() == tmp_path / "cache"
        assert weft.cache.info()["files"] == 0
        Store("ceilings").save({"what": "x"}, {"date": "2026"})
        Store("schedules").save({"what": "y"}, 1)
        found = weft.cache.info()
        assert found["files"] == 2
        assert found["rooms"]["ceilings"]["files"] == 1
        assert found["bytes"] == sum(room["bytes"] for room in found["rooms"].values()) > 0
        document = weft.cache.export(tmp_path / "all.json")
        assert len(document["entries"]) == 2
        assert weft.cache.clear("ceilings") == 1
        assert weft.cache.clear() == 1
        assert weft.cache.import_(tmp_path / "all.json") == 2
        assert weft.cache.import_(document) == 2
        assert weft.cache.info()["files"] == 2

    def test_bad_input(self, tmp_path: Path) -> None:
        with pytest.raises(weft.UnsupportedError, match="no room 'plans': its rooms are schedules"):
            weft.cache.clear("plans")
        with pytest.raises(weft.WeftError, match="is no cache that weft has exported"):
            weft.cache.import_(tmp_path / "absent.json")
        with pytest.raises(weft.WeftError, match="no cache that weft has exported"):
            weft.cache.import_({})


class TestMemory:
    def test_out_of_memory_says_how_much(self) -> None:
        """A result of a peta-element: no allocator has that."""
        x = torch.ones(1).expand(1 << 25)
        for _ in range(2):
            with pytest.raises(weft.WorkspaceError, match=r"memory on cpu: the call allocates \d+ bytes .*available"):
                weft.contract("m,n->mn", x, x)
        with pytest.raises(MemoryError, match=str(4 << 50)):
            weft.contract("m,n->mn", x, x)
        with pytest.raises(weft.WorkspaceError, match="out of memory"):
            weft.permute(torch.ones(1), "a->ab", extents={"b": 1 << 50})

    def test_views_that_are_less_aligned_than_planned(self, on: dict[str, str]) -> None:
        memory, bias = torch.randn(64), torch.randn(9)
        a, b = memory[:16].view(4, 4), torch.randn(4, 8)
        plan = weft.plan(
            "mk,kn->mn", a, b, epilogue=weft.functions.bias, operands={"bias": ("n", bias[:8])}, **on
        )
        for at in (1, 2, 16, 3):
            for shift in (0, 1):
                x, y = memory[at : at + 16].view(4, 4), bias[shift : shift + 8]
                torch.testing.assert_close(plan(x, b, operands={"bias": y}), x @ b + y)

    def test_freed_and_shrunk_storage(self) -> None:
        """Freed storage is seen in every call; shrunk storage where a call is checked in full, as a new one is."""
        out = torch.empty(2, 4)
        calls: list[tuple[Any, tuple[int, ...]]] = [
            (lambda x: weft.contract("mk,kn->mn", x, B), (2, 3)),
            (lambda x: weft.permute(x, "ab->ba"), (2, 3)),
            (weft.plan("mk,kn->mn", A, B, out=out).__call__, (2, 3)),
            (lambda x: weft.contract("mk,kn->mn", A, B, out=x), (2, 4)),
            (lambda x: weft.contract("mk,kn->mn", A, B, c=x), (2, 4)),
        ]
        for call, shape in calls:
            x = torch.ones(shape)
            x.untyped_storage().resize_(8)
            run = (lambda x, call=call: call(x, B)) if hasattr(call, "__self__") else call
            with pytest.raises(weft.ShapeError, match=r"needs \d+ bytes of memory, and its storage holds 8"):
                run(x)
            known = torch.ones(shape)
            run(known)
            known.untyped_storage().resize_(0)
            with pytest.raises(weft.ShapeError, match=r"needs \d+ bytes of memory, and its storage was freed"):
                run(known)


class TestReport:
    def test_everything_that_explain_says(self) -> None:
        plan = weft.plan("mk,kn->mn", A, B, epilogue=torch.relu, workspace_limit=1 << 30)
        report = plan.report()
        assert isinstance(report, weft.Report)
        assert report.flops == 2 * 2 * 3 * 4
        assert report.bytes_read == 4 * (6 + 12)
        assert report.bytes_written == 4 * 8
        assert report.types == dict.fromkeys(("A", "B", "D", "products", "sums"), "float32")
        assert report.functions == {"epilogue": "relu"}
        assert report.schedule == str(plan.schedule) == report.candidates[0].text
        assert report.source == "model"
        assert report.workspace_limit == 1 << 30
        assert {mode.name: mode.extent for mode in report.modes} == {"m": 2, "n": 4, "k": 3}
        assert report.predicted_seconds is not None
        assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["candidates"][0]["text"] == report.schedule
        text = plan.explain()
        for each in report.candidates[:4]:
            assert each.text in text

    def test_of_permutations_and_of_the_reference(self) -> None:
        report = weft.plan_permute(A, "ab->ba").report()
        assert (report.bytes_read, report.bytes_written) == (24, 24)
        assert report.modes[0].role == ""
        assert json.dumps(report.to_dict(), allow_nan=False)
        reference = weft.plan("mk,kn->mn", A, B, backend="reference").report()
        assert reference.schedule is None
        assert reference.source == "reference"
        assert weft.plan("m,n->mn", A[0], B[0]).report().to_dict()["intensity"] is not None

    def test_a_schedule_is_forced_by_object_or_text(self) -> None:
        a, b = torch.randn(40, 50), torch.randn(50, 1)
        candidates = weft.plan("mk,kn->mn", a, b).report().candidates
        assert len(candidates) > 2
        for chosen in candidates[:: max(1, len(candidates) // 5)]:
            for schedule in (chosen.schedule, chosen.text):
                plan = weft.plan("mk,kn->mn", a, b, schedule=schedule)
                assert str(plan.schedule) == chosen.text
                assert plan.report().source == "forced"
                assert "forced by schedule=" in plan.explain()
                torch.testing.assert_close(plan(a, b), a @ b)
            torch.testing.assert_close(weft.matmul(a, b, schedule=chosen.text), a @ b)
        moves = weft.plan_permute(a, "ab->ba").report().candidates
        assert torch.equal(weft.permute(a, "ab->ba", schedule=moves[-1].text), a.T)

    def test_a_schedule_that_is_none(self) -> None:
        text = weft.plan("mk,kn->mn", A, B).report().candidates[-1].text
        with pytest.raises(weft.UnsupportedError) as caught:
            weft.contract("mk,kn->mn", A, B, schedule=text + "x")
        assert f"the nearest is {text!r}" in str(caught.value)
        with pytest.raises(weft.ArgumentError, match="not int"):
            weft.contract("mk,kn->mn", A, B, schedule=3)


class TestTensorsAsTheyCome:
    def test_subclasses_and_parameters(self) -> None:
        class Mine(torch.Tensor):
            pass

        with torch.no_grad():
            for kind in (Mine, torch.nn.Parameter):
                x: Any = A.clone().as_subclass(Mine) if kind is Mine else torch.nn.Parameter(A.clone())
                for _ in range(2):
                    assert torch.equal(weft.contract("mk,kn->mn", x, B), AB)
                    assert torch.equal(weft.permute(x, "ab->ba"), A.T)

    def test_a_tensor_over_several_processes_is_refused_by_name(self) -> None:
        kind = type("DTensor", (torch.Tensor,), {})
        x = A.clone().as_subclass(kind)
        for call in (
            lambda: weft.contract("mk,kn->mn", x, B), lambda: weft.einsum("mk,kn->mn", A, B.as_subclass(kind)),
            lambda: weft.permute(x, "ab->ba"), lambda: weft.matmul(x, B),
        ):  # fmt: skip
            with pytest.raises(weft.UnsupportedError, match=r"is a DTensor, spread over several processes: pass"):
                call()

    @pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.complex32])
    def test_types_that_torch_only_moves(self, dtype: torch.dtype) -> None:
        x = torch.arange(6).reshape(2, 3).to(dtype)
        assert torch.equal(weft.permute(x, "ab->ba").view(torch.uint8), x.T.contiguous().view(torch.uint8))
        assert torch.equal(weft.einsum("ab->ba", x).view(torch.uint8), x.T.contiguous().view(torch.uint8))
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.einsum("ab,bc->ac", x, x.T)
        with pytest.raises(weft.UnsupportedError, match=f"{str(dtype)[6:]} are not supported yet"):
            weft.einsum("ab,bc->ac", x, x.T)

    def test_datasets_of_files_only_on_request(self) -> None:
        class Dataset:
            """What h5py's is to a reader: a shape, a dtype, and `__array__`."""

            shape, dtype = (2, 3), np.dtype("float32")

            def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
                return A.numpy()

        assert (weft.contract("mk,kn->mn", Dataset(), B.numpy(), promote=True) == AB.numpy()).all()
        with pytest.raises(weft.DTypeError, match=r"a is Dataset: .*promote=True"):
            weft.contract("mk,kn->mn", Dataset(), B)
