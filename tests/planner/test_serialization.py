"""Keys and schedules as JSON: the same for the same thing, another for whatever differs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import weft
from tune_problems import choice_of, described
from weft.planner.keys import NotSerializable, serialize_description, serialize_schedule
from weft.spec import Layout

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
