"""What is stored of schedules: keys, JSON, code digests; a schedule comes back as it was, or is forgotten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tune_problems import choice_of, described
from weft.api.describe import choice_for, hypothetical
from weft.machine.store import Store
from weft.planner import keys, tuned
from weft.planner.keys import NotSerializable, serialize_description, serialize_schedule
from weft.planner.planner import Choice, choose
from weft.planner.registry import FAMILIES, PERMUTATION_FAMILIES
from weft.planner.schedule import Target
from weft.planner.tuned import TunedSchedule, recalled, remember, restored
from weft.spec import Layout
from weft.tune.candidates import FEW, pick_candidates, with_others

BASE = {"equation": "ecb,bd->dce", "shapes": ((30, 20, 7), (7, 25))}


def serialized(equation: str = BASE["equation"], shapes: tuple = BASE["shapes"], **options) -> str:
    return json.dumps(serialize_description(described(equation, *shapes, **options)), sort_keys=True)


def test_labels_do_not_matter() -> None:
    assert serialized("xyz,zw->wyx") == serialized()
    assert serialized("edb,bc->cde") == serialized()


def test_everything_else_does() -> None:
    """Guards against plans for similar calls: cupy#7318, #7812; stale keys: triton#7348."""
    constant = 2.0
    variants = [
        serialized(),
        serialized(shapes=((30, 20, 8), (8, 25))),
        serialized("ecb,bd->dec"),
        serialized(dtype=torch.float64),
        serialized(out_dtype=torch.float64),
        serialized(precision="tf32"),
        serialized(accumulate=torch.float64),
        serialized(a_fn=torch.relu),
        serialized(b_fn=torch.relu),
        serialized(epilogue=torch.relu),
        serialized(epilogue=lambda x: x * 2.0),
        serialized(epilogue=lambda x: x * 3.0),
        serialized(algebra="max_plus"),
        serialized(algebra="min_plus"),
    ]
    assert len(set(variants)) == len(variants)
    assert serialized(epilogue=lambda x: x * constant) == variants[10]


@pytest.mark.parametrize(
    "change",
    [
        {"a": Layout((30, 20, 7), (280, 14, 2), torch.float32)},
        {"conjugate_a": True},
        {"c": Layout.contiguous((25, 20, 30), torch.float32)},
    ],
)
def test_layouts_and_conjugation_do(change: dict) -> None:
    contraction = described(BASE["equation"], *BASE["shapes"])
    assert serialize_description(replace(contraction, **change)) != serialize_description(contraction)


def test_alignment_does() -> None:
    contraction = described(BASE["equation"], *BASE["shapes"])
    odd = replace(contraction, b=contraction.b._replace(alignment=4))
    assert serialize_description(odd) != serialize_description(contraction)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_schedules_are_told_apart_and_come_back_through_json(backend: str) -> None:
    contraction = described("ecb,bd->dce", (30, 20, 40), (40, 25))
    ranked = choice_of(contraction, backend).ranked
    texts = [json.dumps(serialize_schedule(rank.schedule, contraction)) for rank in ranked]
    assert len(set(texts)) == len(texts) > 1
    renamed = described("xyz,zw->wyx", (30, 20, 40), (40, 25))
    others = {json.dumps(serialize_schedule(rank.schedule, renamed)) for rank in choice_of(renamed, backend).ranked}
    assert set(texts) == others


def test_permutations() -> None:
    def serialized_move(equation: str, **options) -> str:
        plan = weft.plan_permute(torch.empty(3, 4, 5), equation, backend="reference", **options)
        return json.dumps(serialize_description(plan.permutation))

    assert serialized_move("abc->cba") == serialized_move("xyz->zyx")
    others = (serialized_move("abc->bca"), serialized_move("abc->cba", fn=torch.relu))
    assert len({serialized_move("abc->cba"), *others}) == 3


def test_what_only_this_process_understands_is_refused() -> None:
    contraction = replace(described("ik,jk->ij", (3, 4), (5, 4)), text="other")
    assert serialize_description(contraction)
    with pytest.raises(NotSerializable):
        serialize_description(replace(contraction, arithmetic=object()))


H100 = Target("cuda", 0, "NVIDIA H100 80GB HBM3", 90, 132, 232448)
CPU = Target("cpu", 0, "CPU", 0, 2, 0)
STEPS = {"ttgt", "complex", "counting", "logsumexp", "pre_reduce"}  # of contractions: planned anew

CASES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("mk,kn->mn", ((512, 300), (300, 700)), {}),
    ("mk,kn->mn", ((512, 304), (304, 704)), {"dtype": torch.float16}),
    ("aebf,dfce->abcd", ((20, 24, 16, 30), (18, 30, 22, 24)), {}),
    ("bij,bjk->bik", ((100, 8, 8), (100, 8, 8)), {"dtype": torch.float64}),
    ("ik,kj->ij", ((200, 200), (200, 200)), {"algebra": "max_plus"}),
    ("ik,kj->ij", ((200, 200), (200, 200)), {"dtype": torch.complex64}),
    ("mk,nk->mn", ((4096, 4096), (4096, 4096)), {"dtype": torch.bfloat16, "epilogue": torch.relu}),
]


@pytest.fixture
def triton() -> None:
    pytest.importorskip("triton")


@pytest.mark.parametrize("target", [H100, CPU], ids=["h100", "cpu"])
@pytest.mark.parametrize("case", CASES, ids=[f"{at} {equation}" for at, (equation, *_) in enumerate(CASES)])
def test_schedules_come_back_as_they_were(triton: None, case: Any, target: Target) -> None:
    equation, shapes, options = case
    description = described(equation, *shapes, **options)
    choice = choose(description, "cpu" if target.kind == "cpu" else "triton", target)
    ranks = [rank for rank in choice.ranked if rank.schedule.family not in STEPS][:40]
    assert ranks or choice.best.schedule.family in STEPS
    for rank in ranks:
        serialized = serialize_schedule(rank.schedule, description)
        found = restored(serialized, rank.family.__name__, description, choice.backend, target)
        assert found is not None, rank.schedule
        assert found.schedule == rank.schedule
        assert str(found.schedule) == str(rank.schedule)
        assert found.seconds > 0


def damaged(value: dict[str, Any]) -> list[Any]:
    return [
        None, [], "gett", {**value, "is": "Path"}, {**value, "m": 3}, {**value, "warps": "four"},
        {**value, "stranger": 1}, {key: each for key, each in value.items() if key != "warps"},
        {**value, "m": [[[3, "m", [1, 2, 3, 4]], 5]]},
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(9))
def test_what_is_not_understood_is_absent(triton: None, at: int) -> None:
    description = described("aebf,dfce->abcd", (20, 24, 16, 30), (18, 30, 22, 24))
    ranked = choose(description, "triton", H100).ranked
    rank = next(rank for rank in ranked if rank.schedule.family == "gett")
    value = damaged(serialize_schedule(rank.schedule, description))[at]
    assert restored(value, rank.family.__name__, description, "triton", H100) is None


def test_a_family_that_is_not_there_is_absent(triton: None) -> None:
    description = described("mk,kn->mn", (5, 4), (4, 3))
    assert restored({"is": "GettSchedule"}, "weft.gpu.nowhere.family", description, "triton", H100) is None


TUNED: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("mk,kn->mn", ((512, 304), (304, 704)), {}),
    ("aebf,dfce->abcd", ((20, 24, 16, 30), (18, 30, 22, 24)), {}),
    ("bij,bjk->bik", ((100, 8, 8), (100, 8, 8)), {"dtype": torch.float64}),
    ("mk,nk->mn", ((256, 256), (256, 256)), {"dtype": torch.float16, "epilogue": torch.relu}),
]


@pytest.fixture
def device_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "here", lambda target: True)
    monkeypatch.setattr(tuned, "environment", lambda target: {"name": target.name})


@pytest.mark.parametrize("case", TUNED, ids=[equation for equation, *_ in TUNED])
def test_what_wins_is_found_again_whatever_its_family(triton: None, device_is_here: None, case: Any) -> None:
    equation, shapes, options = case
    choice = choice_of(described(equation, *shapes, **options), "triton", H100)
    every = with_others(choice, None)
    beside = [rank for rank in every.ranked if rank not in choice.ranked]
    assert "weft.library.family" in [rank.family.__name__ for rank in beside]
    for rank in beside:
        found = TunedSchedule(rank.schedule, 1e-5, choice.best.schedule, 2e-5, 9)
        assert remember(every, None, found)
        again = recalled(choice, None)
        assert again is not None, rank.schedule
        assert (again.best.schedule, again.best.measured) == (rank.schedule, 1e-5)
        assert again.best.family.__name__ == rank.family.__name__
        needed = rank.schedule.workspace_bytes
        if needed:
            limited = recalled(choice, needed - 1)
            assert limited is None or limited.best.schedule != rank.schedule


@pytest.mark.parametrize("case", TUNED, ids=[equation for equation, *_ in TUNED])
def test_candidates_of_a_short_tuning_are_of_every_family(triton: None, device_is_here: None, case: Any) -> None:
    equation, shapes, options = case
    choice = with_others(choice_of(described(equation, *shapes, **options), "triton", H100), None)
    serving = choice.ranked[-1]
    candidates = pick_candidates(choice.ranked, FEW, [serving])
    assert [candidates[0].rank, candidates[1].rank] == [choice.ranked[0], serving]
    assert {each.rank.family.__name__ for each in candidates} == {rank.family.__name__ for rank in choice.ranked}
    assert len({each.rank for each in candidates}) == len(candidates) <= 16


PACKAGE = Path(weft.__file__).parent

GETT = "weft.gpu.gett.family"
PACKED = "weft.gpu.composite.ttgt"
SPECIALIZED = "weft.gpu.warp_specialized.family"


@pytest.fixture
def copied(device_is_here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of weft's code, which digests are made of."""
    copy = tmp_path / "weft"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "data"))
    monkeypatch.setattr(keys, "_PACKAGE", copy)
    keys.of_family.cache_clear()
    yield copy
    keys.of_family.cache_clear()


def edit(file: Path) -> None:
    """Change code, as the next process would find it."""
    assert file.is_file(), file
    file.write_text(file.read_text() + "\n# changed\n")
    keys.of_family.cache_clear()


def store_first_of(choice: Choice, family: str) -> None:
    """Store the first schedule of a family as the fastest, beside the model's choice."""
    rank = next(rank for rank in choice.ranked if rank.family.__name__ == family)
    fastest = TunedSchedule(rank.schedule, 1e-6, rank.schedule, 1e-6, 1)
    assert tuned.remember(choice, None, fastest)


def on_a_gpu(family: str) -> Choice:
    """The choice for a contraction that the family can do."""
    equation = "ecbfa,fd->abcde" if family == PACKED else "abc,cd->bad"
    extents = {label: 64 if label in "df" else 32 for label in equation if label.isalpha()}
    request = hypothetical(equation, extents, dtype=torch.float16, a_fn=torch.relu, target="sm_90")
    return choice_for(request)[1]


@pytest.mark.parametrize(
    ("family", "file"),
    [
        (GETT, "gpu/gett/kernel.py"),
        (GETT, "gpu/gett/family.py"),
        (GETT, "gpu/common/launch.py"),
        (GETT, "gpu/common/device.py"),
        (GETT, "fn/triton/activations.py"),
        (GETT, "fn/pointwise.py"),
        (SPECIALIZED, "gpu/warp_specialized/schedule.py"),
        (SPECIALIZED, "gpu/warp_specialized/views.py"),
        (PACKED, "gpu/composite/packing.py"),
        (PACKED, "gpu/permute/kernel.py"),  # of a step
        (PACKED, "planner/program.py"),
    ],
)
def test_editing_what_kernels_are_made_of_forgets_the_schedule(copied: Path, family: str, file: str) -> None:
    choice = on_a_gpu(family)
    store_first_of(choice, family)
    found = tuned.recalled(choice, None)
    assert found.best.family.__name__ == family
    edit(copied / file)
    assert tuned.recalled(choice, None) is None


@pytest.mark.parametrize(
    "file",
    ["gpu/semiring/kernel.py", "gpu/transpose/kernel.py", "gpu/permute/kernel.py", "library/part.py", "tune/tuner.py"],
)
def test_editing_another_family_leaves_it(copied: Path, file: str) -> None:
    choice = on_a_gpu(GETT)
    store_first_of(choice, GETT)
    edit(copied / file)
    found = tuned.recalled(choice, None)
    assert found.best.family.__name__ == GETT


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("cpu/gett/layout.py", False),
        ("fn/pointwise.py", False),
        ("fn/triton/activations.py", True),
        ("gpu/gett/kernel.py", True),
    ],
)
def test_on_the_cpu(copied: Path, file: str, kept: bool) -> None:
    a, b = torch.randn(40, 30, 20), torch.randn(20, 50)
    tuned.outdate()
    weft.plan("abk,kc->bca", a, b, tune="measure")
    assert list(Store(tuned.ROOM).directory.glob("*.json"))
    edit(copied / file)
    tuned.outdate()
    found = weft.plan("abk,kc->bca", a, b)._first().choice
    assert found is not None
    assert (found.origin.source == "store") == kept


@pytest.mark.parametrize("module", sorted({*sum(FAMILIES.values(), ()), *sum(PERMUTATION_FAMILIES.values(), ())}))
def test_every_family_has_its_own_file_among_its_code(module: str) -> None:
    files = keys.code_of(module)
    assert PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py") in files
    assert len(set(files)) == len(files)
