"""`weft.plan_permute`: plans run on new tensors, keep apart what differs, and say what they do."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import weft
from permuting import any_bits, ready, same_bits
from support import Backend


class TestRun:
    def test_on_new_tensors(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((6, 7, 5), torch.float32, 1, device=backend.device)
        p = weft.plan_permute(x, "abc->cab", backend=backend.name)
        assert p.shape == (5, 6, 7)
        assert p.dtype == torch.float32
        for seed in (2, 3):
            y = any_bits((6, 7, 5), torch.float32, seed, device=backend.device)
            assert same_bits(p(y), y.permute(2, 0, 1))

    def test_scalars_belong_to_the_call(self, backend: Backend) -> None:
        ready(backend)
        x = torch.arange(12.0, device=backend.device).reshape(3, 4)
        p = weft.plan_permute(x, "ab->ba", backend=backend.name)
        out = torch.ones(4, 3, device=backend.device)
        assert torch.equal(p(x), x.T)
        assert torch.equal(p(x, alpha=2), 2 * x.T)
        assert p(x, c=out, out=out, beta=3) is out
        assert torch.equal(out, x.T + 3)
        assert torch.equal(p(x, out=out), x.T), "the plain variant is still there"

    def test_results_of_any_layout(self, backend: Backend) -> None:
        ready(backend)
        x = any_bits((6, 7), torch.float32, 4, device=backend.device)
        p = weft.plan_permute(x, "ab->ba", backend=backend.name)
        for out in (torch.empty(7, 6), torch.empty(6, 7).T, torch.empty(7, 9)[:, :6]):
            out = out.to(backend.device)
            assert same_bits(p(x, out=out), x.T)

    def test_arrays_of_numpy(self) -> None:
        x = np.arange(12.0).reshape(3, 4)
        p = weft.plan_permute(x, "ab->ba", fn=torch.square)
        assert np.array_equal(p(x), np.square(x).T)

    def test_conjugate_views(self) -> None:
        z = torch.randn(3, 4, dtype=torch.complex128)
        p = weft.plan_permute(z.conj(), "ab->ba")
        assert torch.equal(p(z.conj()), z.T.conj())
        with pytest.raises(weft.DTypeError, match="conjugate"):
            p(z)

    def test_runs_on_what_is_less_aligned(self) -> None:
        p = weft.plan_permute(torch.ones(3, 4), "ab->ba")
        other = torch.arange(13.0)[1:].view(3, 4)
        assert torch.equal(p(other), other.T)

    @pytest.mark.parametrize(
        ("other", "error", "words"),
        [
            (torch.ones(3, 5), weft.ShapeError, "shape"),
            (torch.ones(4, 3).T, weft.ShapeError, "strides"),
            (torch.ones(3, 4).double(), weft.DTypeError, "float64"),
        ],
    )
    def test_refuses_what_lies_otherwise(self, other: torch.Tensor, error: type[weft.WeftError], words: str) -> None:
        p = weft.plan_permute(torch.ones(3, 4), "ab->ba")
        out = torch.full((4, 3), 7.0)
        with pytest.raises(error, match=words):
            p(other, out=out)
        assert bool((out == 7).all())

    def test_in_several_threads(self) -> None:
        x = any_bits((96, 64, 80), torch.float32, 5)
        expected = x.permute(2, 1, 0)
        p = weft.plan_permute(x, "abc->cba")
        with ThreadPoolExecutor(4) as crew:
            results = list(crew.map(lambda _: p(x), range(12)))
        assert all(same_bits(result, expected) for result in results)


class TestCache:
    @pytest.mark.keeps
    def test_one_plan_for_one_request(self) -> None:
        x = torch.ones(3, 4)
        plan = weft.plan_permute(x, "ab->ba")
        assert weft.plan_permute(torch.zeros(3, 4), "ab->ba") is plan
        assert weft.plan_permute(x, "ab->ba", fn=torch.relu) is weft.plan_permute(x, "ab->ba", fn=torch.relu)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (torch.ones(3, 4), torch.ones(4, 3).T),
            (torch.ones(3, 4), torch.ones(3, 4).half()),
            (torch.ones(3, 4), torch.ones(13)[1:].view(3, 4)),
            (torch.ones(3, 4, dtype=torch.complex64), torch.ones(3, 4, dtype=torch.complex64).conj()),
        ],
    )
    def test_layouts_are_told_apart(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """cupy#7318, #7812: a plan cache that hands a similar call the wrong plan."""
        assert weft.plan_permute(first, "ab->ba") is not weft.plan_permute(second, "ab->ba")
        for x in (first, second, first):
            assert same_bits(weft.permute(x, "ab->ba"), x.T.resolve_conj())

    def test_constants_of_functions_are_told_apart(self) -> None:
        x = torch.ones(3, 4)
        results = [weft.permute(x, "ab->ba", fn=lambda v, by=by: v * by) for by in (2.0, 3.0)]
        assert [result[0, 0].item() for result in results] == [2.0, 3.0]

    def test_extents_are_told_apart(self) -> None:
        x = torch.ones(3)
        assert weft.permute(x, "a->ba", extents={"b": 2}).shape == (2, 3)
        assert weft.permute(x, "a->ba", extents={"b": 5}).shape == (5, 3)
        assert weft.permute(x, "a->ba", out=torch.empty(4, 3)).shape == (4, 3)


class TestExplain:
    def test_names_what_it_does(self) -> None:
        x = torch.ones(64, 32, 48)
        text = weft.plan_permute(x, "abc->cab", fn=torch.relu, alpha=2.0, out_dtype=torch.float64).explain()
        for words in ("abc->cab", "D[cab] = alpha * fn(X[abc])", "transposition", "relu", "float64", "MB", "workspace"):
            assert words in text, text

    def test_a_copy_is_found_to_be_one(self) -> None:
        text = weft.plan_permute(torch.ones(4, 5, 6), "abc->abc").explain()
        assert re.search(r"abc\s+120\s+1\s+1\n", text), text
        assert "a copy" in text
        assert "bits are moved as they are" in text

    def test_of_the_reference_backend(self) -> None:
        assert "oracle" in weft.plan_permute(torch.ones(4, 5), "ab->ba", backend="reference").explain()

    def test_many_modes_and_accumulation(self) -> None:
        x, out = torch.ones((2,) * 12), torch.ones((2,) * 12)
        p = weft.plan_permute(x, (range(12), range(11, -1, -1)), c=out, out=out, beta=1.0)
        assert "and 2 more" in p.explain()
        assert "beta * D" in p.explain()
        assert "read X 16.4 kB + D 16.4 kB" in p.explain()

    def test_schedule_and_workspace(self) -> None:
        p = weft.plan_permute(torch.ones(300, 200, 100), "abc->cba")
        assert str(p.schedule) in repr(p)
        assert 0 < p.workspace_bytes < 1 << 23
        assert weft.plan_permute(torch.ones(300, 200, 100), "abc->cba", workspace_limit=0).workspace_bytes == 0
