"""Every peer computes what weft computes, or says why it cannot; torch's switches are put back."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from bench.sides import tensors_of
from fake_cutensor import FakeCutensor
from weft.errors import ShapeError, UnsupportedError, WeftError
from weft.oracle.judgement import fill_unwritten
from weft.selftest.case import PermuteCase
from weft_bench import cases
from weft_bench.cases import Case, from_letters
from weft_bench.checking import ContractionCheck, reference_slabs
from weft_bench.peers.cutensor_permute import CutensorPermute
from weft_bench.peers.pytorch import CompiledEinsum, exact_products
from weft_bench.peers.registry import PEERS, Prepared, Weft, contender, default_peers, first_line
from weft_bench.peers.views import einsum_text, view
from weft_bench.problems import PermutationProblem, TransposeProblem, copied_set

CPU_PEERS = ("weft", "torch", "ttgt", "numpy", "opt_einsum")
SMALL = 1 << 10


def check(name: str, case: Case, **options: str) -> Prepared | str:
    """What `name` makes of the case; its ways are right on tensors other than those it prepared with."""
    side = CompiledEinsum(**options) if options else contender(name)
    with side.settings(case):
        prepared = side.prepare(case, tensors_of(case))
        if isinstance(prepared, str):
            return prepared
        fresh = tensors_of(case, seed=5)
        for way in prepared.ways:
            fill_unwritten(fresh.d)
            result = way.run(*fresh)
            assert result.stride() == fresh.d.stride() or case.d_shape.count(1)
            for slab in reference_slabs(case, fresh):
                slab.compare(result, prepared.stored)
    return prepared


@pytest.mark.parametrize("name", CPU_PEERS)
def test_tccg_and_beyond(name: str) -> None:
    refused = {}
    for case in (*cases.tccg(), *cases.tccg(torch.float16, torch.float16), *cases.beyond()):
        answer = check(name, cases.scaled(case, SMALL))
        if isinstance(answer, str):
            refused[case.name] = answer
    allowed = {
        "weft": set(),
        "torch": set(),
        "ttgt": {"hadamard"},
        "numpy": {"attention-heads-inside", "bfloat-modes", "fused-residual", "fused-gelu", "fused-paper-example"},
    }
    assert refused.keys() == allowed["numpy" if name == "opt_einsum" else name]


@pytest.mark.parametrize("name", ["torch", "ttgt"])
def test_every_kind_of_case(name: str) -> None:
    """The list of small cases: empty extents, broadcasts, ellipses, labels, layouts, scalars, functions."""
    refused = {}
    for case in cases.general():
        answer = check(name, case)
        if isinstance(answer, str):
            refused[case.name] = answer
    if name == "torch":
        assert refused.keys() == {"labels-sixty"}
    else:
        assert set(refused.values()) == {"every mode is a batch mode: there is no matrix product in it"}
        assert {"elementwise", "scalars"} <= refused.keys()


def check_compiled(backend: str) -> None:
    case = from_letters("fused", "mk,nk->nm", m=8, k=16, n=4, a_fn="relu", epilogue="elu")
    answer = check("compile", case, backend=backend)
    assert isinstance(answer, Prepared), answer
    assert len(answer.ways) == 1


def test_compiled_as_far_as_the_graph() -> None:
    check_compiled("aot_eager")


@pytest.mark.slow
def test_compiled_to_machine_code() -> None:
    check_compiled("inductor")


@pytest.mark.parametrize(
    ("name", "case", "said"),
    [
        ("ttgt", from_letters("hadamard", "ab,ba->ab", a=4, b=5), "every mode is a batch mode"),
        ("numpy", from_letters("bf", "mk,kn->mn", m=4, k=4, n=4, dtypes=(torch.bfloat16,) * 3), "no bfloat16"),
        ("numpy", from_letters("fn", "mk,kn->mn", m=4, k=4, n=4, a_fn="relu"), "PyTorch's"),
        ("numpy", from_letters("low", "mk,kn->mn", m=4, k=4, n=4, precision=torch.float16), "does not round"),
        ("cutensor", from_letters("cpu", "mk,kn->mn", m=4, k=4, n=4), "runs on NVIDIA GPUs"),
    ],
)
def test_why_not(name: str, case: Case, said: str) -> None:
    answer = contender(name).prepare(case, tensors_of(case))
    assert isinstance(answer, str)
    assert said in answer


def test_a_call_that_torch_refuses_is_a_sentence() -> None:
    case = from_letters("plain", "mk,kn->mn", m=4, k=5, n=6)
    wrong = tensors_of(case)._replace(b=torch.ones(7, 6))
    answer = contender("torch").prepare(case, wrong)
    assert isinstance(answer, str)
    assert answer.startswith("RuntimeError: ")


def test_names() -> None:
    with pytest.raises(WeftError, match="no peer is called 'mkl': there are cutensor"):
        contender("mkl")
    with pytest.raises(WeftError, match="no peer is called 'ttgt': there are cutensor, torch, numpy"):
        contender("ttgt", "permutation")
    with pytest.raises(WeftError, match="only plans of contractions and networks are tuned"):
        contender("weft", "in place", tune="measure")
    for kind, known in PEERS.items():
        assert {contender(name, kind).name for name in known} == set(known)
        assert set(default_peers(torch.device("cpu"), kind)) <= set(known)
    assert default_peers(torch.device("cuda")) == ("cutensor", "torch")
    assert default_peers(torch.device("cuda"), "in place") == ("torch",)


@pytest.mark.parametrize("equation", ["mk,kn->mn", "km,nk->mn", "mk,nk->nm", "bkm,bnk->bmn", "kbm,kbn->bnm"])
def test_a_matrix_product_goes_to_blas_as_it_lies(equation: str) -> None:
    case = from_letters("product", equation, b=3, m=4, k=5, n=1)
    given = tensors_of(case)
    found = contender("cublas").prepare(case, given)
    assert isinstance(found, Prepared), found
    fill_unwritten(given.d)
    result = found.ways[0].run(*given)
    assert result.data_ptr() == given.d.data_ptr()
    for slab in reference_slabs(case, given):
        slab.compare(result, found.stored)


@pytest.mark.parametrize(
    "case",
    [
        from_letters("fused", "mk,kn->mn", m=4, k=5, n=6, epilogue="relu"),
        from_letters("modes", "mak,kn->man", m=4, a=3, k=5, n=6),
        from_letters("diagonal", "kk,kn->kn", k=5, n=6),
    ],
    ids=str,
)
def test_what_is_no_matrix_product_is_not_for_blas(case: Case) -> None:
    answer = contender("cublas").prepare(case, tensors_of(case))
    assert isinstance(answer, str)
    assert "matrix product" in answer


def judged(side: Any, case: Case) -> Prepared:
    """The side's ways are all right, on tensors other than those it prepared with."""
    found = side.prepare(case, tensors_of(case))
    assert isinstance(found, Prepared), found
    fresh = tensors_of(case, seed=5)
    for way in found.ways:
        assert ContractionCheck(case, fresh).error(way.run, found.stored) <= 1
    return found


def test_a_bias_is_an_operand_of_the_epilogue() -> None:
    _, _, biased, as_c = (cases.scaled(case, SMALL) for case in cases.epilogues())
    assert biased.c_as == "bias"
    for case in (biased, as_c):
        judged(Weft(backend="reference"), case)
    judged(contender("torch"), biased)
    assert contender("cublas").prepare(biased, tensors_of(biased)) == "more than a matrix product"
    with pytest.raises(UnsupportedError, match="is called 'bias' or 'scale'"):
        Weft().prepare(replace(biased, c_as="shift"), tensors_of(biased))


@pytest.mark.parametrize("case", cases.algebras(), ids=lambda case: f"{case.algebra}-{case.name}")
def test_other_algebras(case: Case) -> None:
    small = cases.scaled(case, SMALL)
    judged(Weft(backend="reference"), small)
    assert len(judged(CompiledEinsum(backend="eager"), small).ways) == 2
    for name in ("torch", "numpy", "ttgt"):
        assert contender(name).prepare(small, tensors_of(small)) == f"products and sums alone, not {case.algebra}"


def test_a_wrong_sum_in_another_algebra_is_seen() -> None:
    case = cases.scaled(next(case for case in cases.algebras() if case.name == "log"), SMALL)
    given = tensors_of(case)
    (slab,) = reference_slabs(case, given)
    right = torch.logsumexp(given.a.unsqueeze(-1) + given.b, -2)
    slab.compare(right)
    with pytest.raises(AssertionError):  # a term left out
        slab.compare(torch.logsumexp(given.a[:, :-1].unsqueeze(-1) + given.b[:-1], -2))


def test_large_results_of_another_algebra_are_checked_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.checking._PAIRS", 1000)
    case = cases.scaled(cases.algebras()[0], 1 << 14)
    parts = reference_slabs(case, tensors_of(case))
    assert [part.part is not None for part in parts] == [True] * 3
    assert sum(part.reference.numel() for part in parts) * case.extents["k"] <= 3 * 1000


MOVES = [
    PermuteCase("plain", "abc->cab", (4, 5, 6)),
    PermuteCase("double", "abcd->dcba", (2, 3, 1, 4), torch.complex128),
    PermuteCase("half", "ab->ba", (7, 5), torch.float16),
    PermuteCase("relu", "abc->bca", (4, 5, 6), fn="relu"),
    PermuteCase("cast", "abc->bac", (4, 5, 6), out_dtype=torch.float16),
    PermuteCase("leaky", "abc->bac", (4, 5, 6), fn="leaky_relu"),
]


@pytest.mark.parametrize("case", MOVES, ids=str)
@pytest.mark.parametrize("name", ["weft", "torch", "numpy", "cutensor"])
def test_who_permutes(name: str, case: PermuteCase) -> None:
    """All of them give the same bits, on tensors other than those they were prepared with."""
    side = contender(name, "permutation") if name != "cutensor" else CutensorPermute(FakeCutensor().library)
    problem = PermutationProblem(case)
    first = problem.inputs(torch.device("cpu"))
    found = side.prepare(case, first)
    if name == "numpy" and case.fn:
        assert found == "the functions are PyTorch's"
        return
    assert isinstance(found, Prepared), found
    fresh = copied_set(first)
    for way in found.ways:
        assert problem.check(fresh).error(way.run, None) == 0
    if name == "cutensor":
        assert [way.label for way in found.ways] == ["default"]
        assert "NOT_SUPPORTED" in found.refused["default+jit"]
        assert found.ways[0].about["separate kernels"] == (["leaky_relu of A"] if case.fn == "leaky_relu" else [])


def test_cutensor_permutes_on_gpus() -> None:
    case = MOVES[0]
    answer = contender("cutensor", "permutation").prepare(case, PermutationProblem(case).inputs(torch.device("cpu")))
    assert answer == "cuTENSOR runs on NVIDIA GPUs"


@pytest.mark.parametrize("shape", [(6, 6), (4, 9)])
@pytest.mark.parametrize("name", PEERS["in place"])
def test_who_transposes_in_place(name: str, shape: tuple[int, int]) -> None:
    case = PermuteCase("matrix", "ab->ba", shape)
    problem = TransposeProblem(case)
    given = problem.inputs(torch.device("cpu"))
    check = problem.check(given)
    found = contender(name, "in place").prepare(case, given)
    assert isinstance(found, Prepared), found
    for _ in range(2):  # the same work on the same memory, again and again
        assert check.error(found.ways[0].run, None) == 0


def test_what_is_not_there_yet_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise UnsupportedError("not on the GPU yet")

    monkeypatch.setattr("weft.api.transpose.transpose_", refuse)
    monkeypatch.setattr("weft.api.permute.plan_permute", refuse)
    case = MOVES[0]
    assert contender("weft", "permutation").prepare(case, PermutationProblem(case).inputs(torch.device("cpu"))) == (
        "not on the GPU yet"
    )
    matrix = PermuteCase("matrix", "ab->ba", (4, 9))
    given = TransposeProblem(matrix).inputs(torch.device("cpu"))
    assert contender("weft", "in place").prepare(matrix, given) == "not on the GPU yet"


def test_errors_as_sentences() -> None:
    assert first_line(UnsupportedError("no such thing\nmore of it")) == "no such thing"
    assert first_line(ShapeError("m is 2 and 3")) == "m is 2 and 3"
    assert first_line(RuntimeError("CUDA error\nstack")) == "RuntimeError: CUDA error"


def test_switches_are_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_tf32
    with exact_products(tf32=True):
        assert matmul.allow_fp16_reduced_precision_reduction is False
        assert matmul.allow_bf16_reduced_precision_reduction is False
        assert matmul.allow_tf32 is True
    assert (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_tf32) == before


def test_views() -> None:
    x = torch.arange(2.0 * 3 * 3 * 1).reshape(3, 2, 3, 1)
    seen = view("iaib", x)
    assert seen.labels == ("i", "a")
    assert torch.equal(seen.of(x), torch.einsum("iai->ia", x[..., 0]))
    z = torch.randn(3, 4, dtype=torch.complex64).conj()
    assert torch.equal(view("ab", z).of(z), z)


def test_einsum_letters() -> None:
    assert einsum_text(from_letters("a", "...mk,kn->...mn", shapes=((2, 3, 5), (5, 7)))) == "abc,cd->abd"
    sixty = next(case for case in cases.general() if case.name == "labels-sixty")
    with pytest.raises(UnsupportedError, match="60 labels"):
        einsum_text(sixty)


@pytest.mark.parametrize("name", ["int8", "e4m3"])
def test_weights_of_eight_bits_with_scales_by_column(name: str) -> None:
    case = cases.scaled(next(case for case in cases.weights() if case.name == name), SMALL)
    assert case.c_as == "scale"
    judged(Weft(backend="cpu"), case)
    given = tensors_of(case)
    (slab,) = reference_slabs(case, given)
    assert given.c is not None
    product = given.a.double() @ given.b.double().T
    slab.compare((product * given.c.double()).half())
    with pytest.raises(AssertionError):  # the scales forgotten
        slab.compare(product.half())


def test_the_schedule_without_functions_is_asked_for_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, made = [], []
    plan = weft.api.contract.plan

    def planned(*tensors: Any, **options: Any) -> Any:
        asked.append(options)
        made.append(plan(*tensors, **{**options, "schedule": None}))
        return made[-1]

    monkeypatch.setattr(weft.api.contract, "plan", planned)
    fused = cases.scaled(replace(cases.tccg()[0], b_fn="relu"), SMALL)
    assert isinstance(check("weft-same", fused), Prepared)
    assert [options["b_fn"] is None for options in asked] == [True, False]
    assert [options["schedule"] for options in asked] == [None, str(made[0].schedule)]


def test_a_schedule_that_takes_no_functions_is_named() -> None:
    by_library = from_letters("product", "mk,kn->mn", m=64, k=64, n=64, dtypes=(torch.float32,) * 3, b_fn="relu")
    assert "that can compute this" in str(check("weft-same", by_library))
