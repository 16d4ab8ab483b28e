"""What `choose` remembers of permutations, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from weft.api.describe import choice_for, hypothetical
from weft.planner.coefficients import coefficients, using
from weft.planner.planner import Choice, choose
from weft.planner.schedule import ResourceError, Target

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def test_a_permutation_that_was_planned_before_keeps_its_own_words() -> None:
    x = torch.empty(64, 48, 80, device="meta")
    first = weft.plan_permute(x, "abc->cba", backend="reference").permutation
    other = replace(first, text="another way to say it")
    assert first == other
    found = choose(first, "triton", H200), choose(other, "triton", H200)
    assert found[0].best == found[1].best
    assert [choice.description.text for choice in found] == ["abc->cba", "another way to say it"]


def test_a_device_that_was_calibrated_since_is_heard() -> None:
    x = torch.empty(64, 48, 80, device="meta")
    described = weft.plan_permute(x, "abc->cba", backend="reference").permutation
    before = choose(described, "triton", H200).best.seconds
    with using(replace(coefficients(H200), families={"permute": 2.0, "pairs": 2.0})):
        assert choose(described, "triton", H200).best.seconds == 2 * before
    assert choose(described, "triton", H200).best.seconds == before


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.parametrize("equation", ["ab,ab->a", "ab,bac->bc", "abc,ac->ab"])
def test_products_of_vectors_in_a_batch_need_no_matrix_instruction(equation: str, precision: str) -> None:
    extents = {label: extent for label, extent in {"a": 127, "b": 7, "c": 3}.items() if label in equation}
    found = hypothetical(equation, extents, dtype=torch.float32, precision=precision, target="sm_90")
    _, choice = choice_for(found)
    assert choice is not None
    assert choice.best.seconds > 0


def test_a_step_falls_back_to_none_that_takes_more_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of several steps has counted on what each of them takes, and so has its limit."""
    found = hypothetical("ab,bcd->acd", {"a": 256, "b": 2048, "c": 32, "d": 32}, dtype=torch.float16, target="sm_90")
    _, choice = choice_for(found)
    assert choice is not None
    ranked = sorted(choice.ranked, key=lambda rank: rank.schedule.workspace_bytes)
    least, most = ranked[0], ranked[-1]
    assert least.schedule.workspace_bytes < most.schedule.workspace_bytes

    def fails(self: Choice) -> str:
        if self.best is failing:
            raise ResourceError("too much of something")
        return "built"

    monkeypatch.setattr(Choice, "build", fails)
    failing = least
    others = replace(choice, best=least, ranked=(least, most))
    assert others.built() == (replace(others, best=most, ranked=(most,), excluded=others.built()[0].excluded), "built")
    with pytest.raises(ResourceError, match="too much of something"):
        others.built_as_a_step()
    failing = most
    others = replace(choice, best=most, ranked=(most, least))
    assert others.built_as_a_step()[0].best is least
