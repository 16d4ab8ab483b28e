"""What `choose` remembers of permutations, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import torch

import weft
from weft.kernels.coefficients import coefficients, using
from weft.plan.planner import choose
from weft.plan.schedule import Target

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
