"""What users type: names of types, keywords of other libraries, arguments the wrong way round."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, get_args

import numpy as np
import pytest
import torch

import weft
from weft.api.keywords import (
    Backend,
    CallKeywords,
    ContractKeywords,
    PermuteKeywords,
    PlanKeywords,
    Precision,
    Specialize,
    Tune,
)
from weft.planner.options import OF_NAME, OPTIONS, SPECIALIZE, TAKEN, TUNE, Option, Options
from weft.planner.request import HOOKS
from weft.planner.target import BACKENDS
from weft.spec.dtypes import PRECISIONS

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4) - 5
AB = A @ B
SIGNED = [weft.contract, weft.plan, weft.einsum, weft.matmul, weft.permute, weft.plan_permute, weft.grouped,
          weft.plan_grouped, weft.chain]  # fmt: skip
#: Arguments that have a bullet in the documentation of `weft.contract`.
BULLETS = {
    name
    for names in re.findall(r"^    \* ((?:`\w+`(?:, )?)+):", weft.contract.__doc__ or "", re.MULTILINE)
    for name in re.findall(r"\w+", names)
}


class TestNoSilentSurprise:
    @pytest.mark.parametrize("flag", ["N", "T", "C", 1, 0, None])
    def test_flags_of_blas_are_no_truth_values(self, flag: Any) -> None:
        with pytest.raises(weft.ArgumentError, match=f"transpose_b is True or False, not {flag!r}"):
            weft.matmul(A, B, transpose_b=flag)

    @pytest.mark.parametrize("flag", ["yes", 1, 0, None])
    def test_nor_are_words_where_a_call_is_validated(self, flag: Any) -> None:
        plan = weft.plan("mk,kn->mn", A, B)
        for call in (
            lambda: weft.contract("mk,kn->mn", A, B, validate=flag),
            lambda: weft.matmul(A, B, validate=flag),
            lambda: weft.einsum("mk,kn->mn", A, B, validate=flag),
            lambda: plan(A, B, validate=flag),
        ):
            call_known = (weft.contract("mk,kn->mn", A, B), plan(A, B))  # what is known already is told the same
            assert torch.equal(*call_known)
            with pytest.raises(weft.ArgumentError, match=f"validate is True or False, not {flag!r}"):
                call()
        with pytest.raises(weft.ArgumentError, match=f"return_arg is True or False, not {flag!r}"):
            weft.contract("mk,kn->mn", A, B, algebra="max_plus", return_arg=flag)


HALF = ["float16", "fp16", "half", "f16", "torch.float16", " Half ", "numpy.float16", np.float16, np.dtype("float16")]


class TestTypes:
    @pytest.mark.parametrize("half", [torch.float16, *HALF], ids=repr)
    def test_every_name_of_half_precision(self, half: Any) -> None:
        assert weft.contract("mk,kn->mn", A, B, out_dtype=half).dtype == torch.float16
        assert weft.matmul(A, B, out_dtype=half).dtype == torch.float16
        assert weft.einsum("mk,kn->mn", A, B, out_dtype=half).dtype == torch.float16
        assert weft.permute(A, "ab->ba", out_dtype=half).dtype == torch.float16
        assert weft.plan("mk,kn->mn", A, B, precision=half).contraction.arithmetic.product == torch.float16
        assert weft.reference.contract("mk,kn->mn", A, B, out_dtype=half).dtype == torch.float16

    @pytest.mark.parametrize(
        ("name", "dtype"),
        [("bf16", torch.bfloat16), ("double", torch.float64), ("f64", torch.float64), ("fp32", torch.float32),
         ("single", torch.float32), ("c64", torch.complex64), (complex, torch.complex128), (float, torch.float64)],
    )  # fmt: skip
    def test_names_of_other_types(self, name: Any, dtype: torch.dtype) -> None:
        assert weft.contract("mk,kn->mn", A, B, out_dtype=name).dtype == dtype

    def test_eight_bits(self) -> None:
        a = A.to(torch.float8_e4m3fn)
        plan = weft.plan("mk,kn->mn", a, a.T, precision="e4m3", out_dtype="half")
        assert plan.contraction.arithmetic.product == torch.float8_e4m3fn
        assert weft.matmul(A.to(torch.int8), B.to(torch.int8), out_dtype="i32", accumulate="int64").dtype == torch.int32

    def test_modes_whatever_their_case(self) -> None:
        assert weft.plan("mk,kn->mn", A, B, precision="TF32").contraction.arithmetic.precision == "tf32"

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"out_dtype": "flaot16"}, "out_dtype='flaot16' names no number type: did you mean 'float16'?"),
            ({"precision": "tf3"}, "precision='tf3' names no number type: did you mean 'tf32'?"),
            ({"accumulate": "f128"}, "accumulate='f128' names no number type: did you mean 'c128'?"),
            ({"out_dtype": 16}, "out_dtype is a number type (torch.float16, 'float16', 'fp16', numpy.float16, ...)"),
            ({"out_dtype": "xyz"}, "out_dtype='xyz' names no number type: it is a number type (torch.float16,"),
        ],
    )
    def test_a_wrong_name_is_shown_with_the_nearest_right_one(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(weft.DTypeError) as caught:
            weft.contract("mk,kn->mn", A, B, **options)
        assert str(caught.value).startswith(said)

    def test_a_word_near_to_none_gets_the_list(self) -> None:
        words = "ieee, ieee_bound, tf32, tf32x3, 3m"
        with pytest.raises(weft.DTypeError, match=rf"precision='highest' .* or one of {words}"):
            weft.contract("mk,kn->mn", A, B, precision="highest")  # torch's word


Argument, Shape, Notation, Function = weft.ArgumentError, weft.ShapeError, weft.NotationError, weft.FunctionError


class TestWhatIsNamed:
    """Messages name the operand, the argument or the label at fault."""

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda: weft.contract("mk,knx->mn", A, B), Shape, "operand 1: 'knx' has 3 labels, its tensor 2"),
            (lambda: weft.einsum("ab,ab,a->", A, A, A), Shape, "operand 2: 'a' has 1 label, its tensor 2"),
            (lambda: weft.contract("...mk,kn->mn", A[0], B), Shape, "operand 0: '...mk' has 2 labels"),
            (lambda: weft.permute(A, "abc->cab"), Shape, "'abc' has 3 labels, its tensor 2 dimensions"),
            (lambda: weft.contract("mk,kn=>mn", A, B), Notation, "('->' comes before the labels of the"),
            (lambda: weft.einsum(A, [0, 1], B), Notation, "argument 2 is a tensor, where labels belong"),
            (lambda: weft.einsum(A, B), Notation, "argument 1 is a tensor, where labels belong"),
            (lambda: weft.einsum(A, [0, 1], A[0]), Notation, "argument 2 is a tensor, where labels belong"),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=lambda v, i: v * i, indices={"i": "mn"}),
                Notation, "index 'i' is the coordinate along one label, 'mn' names 2",
            ),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=weft.functions.causal),
                Function, "the function takes (value, i, j, *, offset=0, fill=-inf), and is given the value",
            ),
            (lambda: weft.Algebra(3, torch.add, 0), Function, "combine of the algebra algebra is a function"),
            (
                lambda: weft.Algebra(torch.add, torch.add, 0, "mine", vjp=3),
                Function, "vjp of the algebra mine is a function, not int",
            ),
            (lambda: weft.functions.chain(torch.relu, 1), Function, "chain takes functions, not int"),
            (lambda: weft.tensordot(A, B, 5), Shape, "axes=5: a has 2 dimensions"),
            (lambda: weft.tensordot(A, B, ([7], [0])), Shape, "there is no axis 7 of a, which has 2 dimen"),
            (lambda: weft.tensordot(A, B, dims=1), Argument, "^tensordot takes no keyword 'dims': weft says axes="),
            (
                lambda: weft.tensordot(A, B, axis=1),
                Argument,
                "^tensordot takes no keyword 'axis': did you mean 'axes'?",
            ),
            (lambda: weft.inner(A, A, bias=1), Argument, "^inner takes no keyword 'bias'"),
            (lambda: weft.outer(A, B, foo=1), Argument, "^outer takes no keyword 'foo': it takes c, alpha"),
            (lambda: weft.trace(A, dim1=1), Argument, "^trace takes no keyword 'dim1': weft says axis1="),
            (
                lambda: weft.contract(A, B, "mk,kn->mn"),
                Argument,
                "^the equation comes first: weft.contract(equation, a, b)",
            ),
            (
                lambda: weft.contract(A, "mk,kn->mn", B),
                Argument,
                "^the equation comes first: weft.contract(equation, a, b)",
            ),
            (lambda: weft.plan(A, B, "mk,kn->mn"), Argument, "^the equation comes first: weft.plan(equation, a, b)"),
            (
                lambda: weft.einsum(A, B, "mk,kn->mn"),
                Argument,
                "^the equation comes first: weft.einsum('mk,kn->mn', ...)",
            ),
            (lambda: weft.matmul("mk,kn->mn", A), Argument, "^matmul takes no equation"),
            (lambda: weft.transpose_((0, 1), A), Argument, "^the tensor comes first: weft.transpose_(x, dims)"),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=weft.functions.bias, operands={"bias": (B[0], "n")}),
                Argument, "^operand 'bias' is a pair (modes, tensor), in that order: the two are swapped",
            ),
            (lambda: weft.matmul(A, B, trans_b=True), Argument, "weft says transpose_b="),
            (lambda: weft.permute(A, "ab->ba", epilogue=torch.relu), Argument, "weft says fn="),
            (lambda: weft.contract("mk,kn->mn", A, B, fn=torch.relu), Argument, "weft says epilogue="),
            (lambda: weft.plan("mk,kn->mn", A, B)(A, B, operand={}), Argument, "did you mean 'operands'"),
            (lambda: weft.plan_permute(A, "ab->ba")(A, gamma=1), Argument, "takes no keyword 'gamma'"),
            (lambda: weft.matmul(A, B, optimize=True), Argument, "einsum finds the order by itself"),
            (lambda: weft.einsum("mk,kn->mn", A, B, optimize=3), Argument, "optimize=3 is no word"),
        ],
    )  # fmt: skip
    def test_of(self, call: Any, error: type[Exception], said: str) -> None:
        with pytest.raises(error) as caught:
            call()
        assert said in f"^{caught.value}"  # the mark is the begin of the message

    def test_labels_may_be_arrays_of_whole_numbers(self) -> None:
        assert torch.equal(weft.einsum(A, np.array([0, 1]), B, torch.tensor([1, 2]), np.array([0, 2])), AB)


class TestOneSignature:
    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
    def test_options_are_typed_read_and_documented(self, option: Option) -> None:
        """A new option has its type where type checkers look, its field where it is read, and its bullet."""
        deciding = {"epilogue": "Function | None", "return_arg": "bool", "reduce": "Any", "ragged": "Any"}
        typed = {**ContractKeywords.__annotations__, **deciding}
        if "contract" in option.calls:
            assert option.name in typed, "type checkers read the keywords of contract in weft.api.keywords"
            kind = typed[option.name]
            assert getattr(kind, "__forward_arg__", kind) == option.type
            assert option.name in BULLETS, "contract's documentation has a bullet for each of its options"
        if "plan" in option.calls:
            assert option.name in {*PlanKeywords.__annotations__, "epilogue", "return_arg", "c", "out"}
        if option.name in PermuteKeywords.__annotations__:
            assert "permute" in option.calls
        if option.name in CallKeywords.__annotations__:
            assert "a plan's call" in option.calls
        fields = {each.name for each in dataclasses.fields(Options)}
        of_a_call = {"return_arg", "reduce", "ragged", *CallKeywords.__annotations__}
        if "contract" in option.calls and option.name not in (*HOOKS, *of_a_call):
            assert option.read is not None
            assert option.name in fields
        elif option.read is not None:
            assert option.name in fields
        assert option.says
        assert option.calls

    def test_what_is_typed_and_read_is_in_the_table(self) -> None:
        names = {option.name for option in OPTIONS}
        assert set(ContractKeywords.__annotations__) <= set(TAKEN["contract"])
        assert not {each.name for each in dataclasses.fields(Options)} - names
        assert not BULLETS - {*TAKEN["contract"], "equation", "a", "b"}

    def test_types_name_what_readers_take(self) -> None:
        for kind, words in ((Backend, BACKENDS), (Specialize, SPECIALIZE), (Tune, TUNE), (Precision, PRECISIONS)):
            assert set(get_args(kind)) == set(words) - {None}

    @pytest.mark.parametrize("call", SIGNED)
    def test_help_shows_every_keyword_with_its_default(self, call: Any) -> None:
        shown = inspect.signature(call).parameters
        for name in TAKEN[call.__name__]:
            assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
            assert shown[name].default == OF_NAME[name].default_of(call.__name__)
        assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown.values())

    def test_einsum_in_other_algebras(self) -> None:
        D = torch.arange(8.0).reshape(4, 2)
        inner = (A[:, :, None] + B).amax(1)
        found = weft.einsum("ab,bc,cd->ad", A, B, D, algebra="max_plus")
        assert torch.equal(found, (inner[:, :, None] + D).amax(1))
        assert torch.equal(weft.einsum("ab->a", B, algebra="tropical"), B.amin(1))
        assert torch.equal(weft.einsum("ab->a", B > 0, algebra="boolean"), (B > 0).any(1))
        assert torch.equal(weft.einsum("ab,bc->ac", [A, B]), AB)
        with pytest.raises(weft.UnsupportedError, match="a_fn is for at most two operands, einsum has 3"):
            weft.einsum("ab,bc,cd->ad", A, B, D, a_fn=torch.relu)

    def test_permute_takes_tensor_and_equation_in_either_order(self) -> None:
        assert torch.equal(weft.permute("ab->ba", A), A.T)
        assert torch.equal(weft.permute(A, "ab->ba"), A.T)
        assert torch.equal(weft.permute((("a", "b"), ("b", "a")), A), A.T)
        assert torch.equal(weft.plan_permute("ab->ba", A)(A), A.T)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("computeType", "weft says precision="),
            ("stream", "calls run on torch's current stream"),
            ("scale", "weft says epilogue=weft.functions.scale"),
            ("is_causal", "weft says epilogue=weft.functions.causal"),
            ("order", "weft says out=, a tensor with the strides"),
            ("bias", 'weft says epilogue=weft.functions.bias with operands={"bias": ("n", tensor)}'),
            ("activation", "weft says epilogue="),
            ("dtype", "weft says out_dtype="),
            ("preferred_element_type", "weft says out_dtype="),
            ("allow_tf32", 'weft says precision="tf32"'),
            ("semiring", "weft says algebra="),
            ("epilog", "did you mean 'epilogue'?"),
            ("acumulate", "did you mean 'accumulate'?"),
            ("work_space_limit", "did you mean 'workspace_limit'?"),
            ("xyzzy", "it takes c, alpha, beta, out"),
        ],
    )
    def test_unknown_keywords_get_the_right_one(self, name: str, said: str) -> None:
        for call in (weft.contract, weft.plan, weft.einsum):
            with pytest.raises(weft.ArgumentError) as caught:
                call("mk,kn->mn", A, B, **{name: 1})  # type: ignore[operator]
            assert f"takes no keyword '{name}'" in str(caught.value)
            assert said.split(", alpha")[0] in str(caught.value)
        assert isinstance(caught.value, TypeError)

    @pytest.mark.parametrize(
        ("name", "said"), [("optimize", "einsum finds the order by itself"), ("slices", "it is one of network")]
    )
    def test_keywords_that_einsum_takes(self, name: str, said: str) -> None:
        with pytest.raises(weft.ArgumentError, match=f"contract takes no keyword '{name}': {said}"):
            weft.contract("mk,kn->mn", A, B, **{name: 1})

    def test_a_plan_takes_operands_as_contract_does(self) -> None:
        bias = torch.arange(4.0)
        plan = weft.plan("mk,kn->mn", A, B, epilogue=weft.functions.bias, operands={"bias": ("n", bias)})
        for operands in ({"bias": bias}, {"bias": ("n", bias)}, {"bias": (["n"], bias)}):
            assert torch.equal(plan(A, B, operands=operands), AB + bias)
        with pytest.raises(weft.ShapeError, match="operand 'bias' lies along 'm', planned was 'n'"):
            plan(A, B, operands={"bias": ("m", bias)})

    def test_a_mistake_after_a_known_call_is_still_one(self) -> None:
        for _ in range(2):
            assert torch.equal(weft.contract("mk,kn->mn", A, B, backend="cpu"), AB)
            with pytest.raises(weft.DTypeError):
                weft.contract("mk,kn->mn", A, B, out_dtype=["x"])
            with pytest.raises(weft.ArgumentError):
                weft.contract("mk,kn->mn", A, B, backends="cpu")
