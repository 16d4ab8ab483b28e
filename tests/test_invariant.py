"""`invariant=`: the bits of an element of D do not depend on how many others are computed with it."""

from __future__ import annotations

import random

import pytest
import torch

import weft

TYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)


def scaled_gelu(total, scale):
    return torch.nn.functional.gelu(total) * scale


def softplus(x):
    return torch.log1p(torch.exp(x)) + torch.sin(x)


def square(x):
    return x * x + 1


class Pair:
    """A random contraction whose rows come in two numbers, many and fewer."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.draw, self.values = draw, torch.Generator().manual_seed(seed)
        self.rows = "mp"[: draw.choice((1, 1, 2))]
        columns, batch = "no"[: draw.choice((0, 1, 1, 2))], "b"[: draw.choice((0, 0, 1))]
        summed = "xyz"[: draw.choice((1, 1, 2, 3))]
        long = draw.choice((20, 20, 200, 1500, 5000))
        self.extents = {label: draw.choice((1, 2, 3, 5, 8, 13, 21, 34)) for label in self.rows + columns + batch}
        left = long
        for label in summed:
            self.extents[label] = draw.randint(1, max(1, left))
            left = max(1, left // self.extents[label])
        everywhere = batch if draw.random() < 0.7 else batch + columns[:1]
        terms = [self.rows + everywhere + summed, batch + columns + summed, self.rows + batch + columns]
        self.terms = ["".join(draw.sample(term, len(term))) for term in terms]
        self.invariant = self.rows + batch if draw.random() < 0.3 else self.rows
        self.few = {
            label: sorted(draw.sample(range(self.extents[label] + 1), 2)) for label in self.invariant
        }
        self.dtype = draw.choice(TYPES)

    @property
    def equation(self) -> str:
        return f"{self.terms[0]},{self.terms[1]}->{self.terms[2]}"

    def tensor(self, term: str) -> torch.Tensor:
        """Values with the labels of a term, which lie in another order at times."""
        order = term if self.draw.random() < 0.7 else "".join(self.draw.sample(term, len(term)))
        found = torch.randn([self.extents[label] for label in order], generator=self.values, dtype=torch.float64)
        if self.dtype.is_complex:
            found = torch.complex(found, found.flip(0) if found.dim() else found)
        return found.to(self.dtype).permute([order.index(label) for label in term])

    def fewer(self, x: torch.Tensor, term: str) -> torch.Tensor:
        """The part of a tensor that has the fewer rows."""
        for at, label in enumerate(term):
            if label in self.few and x.shape[at] > 1:
                start, end = self.few[label]
                x = x.narrow(at, start, end - start)
            elif label in self.few:
                start, end = self.few[label]
                x = x.narrow(at, 0, min(end - start, 1))
        return x

    def options(self) -> dict:
        if self.dtype.is_complex or self.draw.random() < 0.5:
            return {"a_fn": square} if self.draw.random() < 0.3 else {}
        return self.draw.choice((
            {"epilogue": softplus}, {"a_fn": torch.tanh}, {"b_fn": softplus, "epilogue": torch.relu},
            {"epilogue": scaled_gelu, "operands": "scale"},
        ))  # fmt: skip

    def check(self) -> None:
        a, b = (self.tensor(term) for term in self.terms[:2])
        options = {**self.options(), "invariant": self.invariant}
        c = self.tensor(self.terms[2]) if self.draw.random() < 0.3 else None
        fewer = {"c": None if c is None else self.fewer(c, self.terms[2])}
        whole = {"c": c}
        if options.get("operands"):
            term = self.draw.choice(self.terms[2])
            scale = self.tensor(term)
            whole["operands"], fewer["operands"] = {"scale": (term, scale)}, {"scale": (term, self.fewer(scale, term))}
            options.pop("operands")
        found = weft.contract(self.equation, a, b, **options, **whole)
        x, y = self.fewer(a, self.terms[0]), self.fewer(b, self.terms[1])
        if self.draw.random() < 0.5:
            x = x.contiguous()
        part = weft.contract(self.equation, x, y, **options, **fewer)
        expected = self.fewer(found, self.terms[2])
        same = torch.equal(part.view(torch.uint8), expected.contiguous().view(torch.uint8))
        assert same, (self.equation, self.extents, self.few)


@pytest.mark.parametrize("seed", range(2))
def test_bits_do_not_depend_on_rows(seed):
    for at in range(25):
        Pair(seed * 1000 + at).check()


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_bits_of_many_pairs():
    for seed in range(100_000):
        Pair(seed).check()


def test_bits_do_not_depend_on_threads_tiers_or_gradients():
    a, b = torch.randn(3, 9000), torch.randn(9000, 5)
    words = {"invariant": "m", "epilogue": torch.sigmoid}
    expected = weft.contract("mk,kn->mn", a, b, **words)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(weft.contract("mk,kn->mn", a, b, **words), expected)
    finally:
        torch.set_num_threads(before)
    for specialize in ("now", "never"):
        assert torch.equal(weft.contract("mk,kn->mn", a, b, specialize=specialize, **words), expected)
    plan = weft.plan("mk,kn->mn", a[:1], b, **words)
    assert torch.equal(plan(a[2:], b), expected[2:])
    assert "its bits may not depend on extents" in plan.explain()
    x = a[1:].requires_grad_()
    found = weft.contract("mk,kn->mn", x, b, **words)
    assert torch.equal(found, expected[1:])
    found.sum().backward()
    torch.testing.assert_close(x.grad, (expected[1:] * (1 - expected[1:])) @ b.T, rtol=1e-4, atol=1e-3)


def test_the_order_of_sums_is_that_of_the_equation():
    """Whatever order the summed modes have in memory."""
    a, b = torch.randn(8, 40, 30), torch.randn(40, 30, 6)
    expected = weft.contract("mxy,xyn->mn", a, b, invariant=["m"])
    turned = a.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(weft.contract("mxy,xyn->mn", turned, b, invariant=["m"]), expected)


def test_kernels_of_a_gpu_add_alike():
    """Runs in one program, and shared by as many; one row, and many."""
    a, b = torch.randn(33, 3000), torch.randn(3000, 20)
    words = {"backend": "triton", "invariant": "m"}
    plan = weft.plan("mk,kn->mn", a, b, **words)
    expected = plan(a, b)
    torch.testing.assert_close(expected, a @ b, rtol=1e-4, atol=1e-3)
    texts = [each.text for each in plan.report().candidates]
    for part in ("runs=", "split_k="):
        schedule = next(text for text in texts if part in text)
        assert torch.equal(weft.contract("mk,kn->mn", a, b, schedule=schedule, **words), expected)
    assert torch.equal(weft.contract("mk,kn->mn", a[5:6], b, **words), expected[5:6])


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"invariant": "k"}, weft.NotationError, "invariant names 'k', which D does not have"),
        ({"invariant": 3}, weft.ArgumentError, "invariant is text or a sequence of labels, not int"),
        ({"invariant": "m", "specialize": "library"}, weft.UnsupportedError, "bits of torch's operations depend on"),
        ({"invariant": "m", "backend": "reference"}, weft.UnsupportedError, "the reference takes no invariant="),
        ({"invariant": "m", "reduce": {"x": ("n", "sum")}}, weft.UnsupportedError, "reduce= takes no invariant="),
        ({"invariant": "m", "algebra": "max_plus", "return_arg": True}, weft.UnsupportedError, "return_arg takes no"),
    ],
)
def test_what_is_refused(words, error, message):
    with pytest.raises(error, match=message):
        weft.contract("mk,kn->mn", torch.ones(3, 4), torch.ones(4, 5), **words)
