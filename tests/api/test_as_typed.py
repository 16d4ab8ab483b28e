"""What users type: names of types, keywords of other libraries, arguments the wrong way round, names at hand."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn import functional

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
from weft.planner.at_hand import SPECIALIZE
from weft.planner.options import OF_NAME, OPTIONS, TAKEN, Option, Options
from weft.planner.planner import TUNE
from weft.planner.request import HOOKS
from weft.planner.target import BACKENDS
from weft.spec.dtypes import PRECISIONS

A, B, C = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4) - 5, torch.ones(2, 4)
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

    def test_c_is_added_wherever_it_is_given(self) -> None:
        for found in (
            weft.matmul(A, B, c=C),
            weft.contract("mk,kn->mn", A, B, c=C),
            weft.einsum("mk,kn->mn", A, B, c=C),
            weft.plan("mk,kn->mn", A, B)(A, B, c=C),
        ):
            assert torch.equal(found, AB + 1)
        assert torch.equal(weft.permute(B, "ab->ba", c=torch.ones(4, 3)), B.T + 1)
        assert torch.equal(weft.plan_permute(B, "ab->ba")(B, c=torch.ones(1, 3), beta=2), B.T + 2)
        assert torch.equal(weft.einsum("mk->m", A, c=torch.ones(2), beta=3.0), A.sum(1) + 3)

    def test_a_factor_of_nothing_is_a_mistake(self) -> None:
        for call in (
            lambda: weft.matmul(A, B, beta=2.0),
            lambda: weft.contract("mk,kn->mn", A, B, beta=2.0),
            lambda: weft.einsum("mk,kn->mn", A, B, beta=2.0),
            lambda: weft.permute(A, "ab->ba", beta=2.0),
            lambda: weft.plan("mk,kn->mn", A, B)(A, B, beta=2.0),
        ):
            for _ in range(2):  # a known call is told the same
                with pytest.raises(weft.ShapeError, match=r"beta=2.0 has no c to multiply: pass c, or c=out"):
                    call()
        assert torch.equal(weft.contract("mk,kn->mn", A, B, beta=0.0), AB)

    def test_a_c_of_its_own_is_left_alone(self) -> None:
        c, out = torch.ones(3, 2), torch.full((3, 2), torch.nan)
        assert weft.permute(A, "ab->ba", c=c, out=out, beta=2) is out
        assert torch.equal(out, A.T + 2)
        assert torch.equal(c, torch.ones(3, 2))
        with pytest.raises(weft.DTypeError, match="c is float64, the result is float32"):
            weft.permute(A, "ab->ba", c=c.double())
        memory = torch.ones(8)
        with pytest.raises(weft.ShapeError, match="out overlaps c in memory but is not exactly c"):
            weft.permute(A, "ab->ba", c=memory[:6].view(3, 2), out=memory[2:].view(3, 2))


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


class TestWhatIsNamed:
    """Messages name the operand, the argument or the label at fault."""

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda: weft.contract("mk,knx->mn", A, B), weft.ShapeError, "operand 1: 'knx' has 3 labels, its tensor 2"),
            (lambda: weft.einsum("ab,ab,a->", A, A, A), weft.ShapeError, "operand 2: 'a' has 1 label, its tensor 2"),
            (lambda: weft.contract("...mk,kn->mn", A[0], B), weft.ShapeError, "operand 0: '...mk' has 2 labels"),
            (lambda: weft.permute(A, "abc->cab"), weft.ShapeError, "'abc' has 3 labels, its tensor 2 dimensions"),
            (lambda: weft.contract("mk,kn=>mn", A, B), weft.NotationError, "('->' comes before the labels of the"),
            (lambda: weft.einsum(A, [0, 1], B), weft.NotationError, "argument 2 is a tensor, where labels belong"),
            (lambda: weft.einsum(A, B), weft.NotationError, "argument 1 is a tensor, where labels belong"),
            (lambda: weft.einsum(A, [0, 1], A[0]), weft.NotationError, "argument 2 is a tensor, where labels belong"),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=lambda v, i: v * i, indices={"i": "mn"}),
                weft.NotationError, "index 'i' is the coordinate along one label, 'mn' names 2",
            ),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=weft.functions.causal),
                weft.FunctionError, "the function takes (value, i, j, *, offset=0, fill=-inf), and is given the value",
            ),
            (lambda: weft.Algebra(3, torch.add, 0), weft.FunctionError, "combine of the algebra algebra is a function"),
            (
                lambda: weft.Algebra(torch.add, torch.add, 0, "mine", vjp=3),
                weft.FunctionError, "vjp of the algebra mine is a function, not int",
            ),
            (lambda: weft.functions.chain(torch.relu, 1), weft.FunctionError, "chain takes functions, not int"),
        ],
    )  # fmt: skip
    def test_of(self, call: Any, error: type[Exception], said: str) -> None:
        with pytest.raises(error) as caught:
            call()
        assert said in str(caught.value)

    def test_labels_may_be_arrays_of_whole_numbers(self) -> None:
        assert torch.equal(weft.einsum(A, np.array([0, 1]), B, torch.tensor([1, 2]), np.array([0, 2])), AB)


class TestWordsOfOthers:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("optimize", "contract takes no keyword 'optimize': einsum finds the order by itself"),
            ("slices", "contract takes no keyword 'slices': it is an option of weft.network"),
            ("computeType", "contract takes no keyword 'computeType': weft says precision="),
            ("stream", "contract takes no keyword 'stream': calls run on torch's current stream"),
            ("scale", "contract takes no keyword 'scale': weft says epilogue=weft.functions.scale"),
            ("is_causal", "contract takes no keyword 'is_causal': weft says epilogue=weft.functions.causal"),
            ("order", "contract takes no keyword 'order': weft says out=, a tensor with the strides"),
        ],
    )
    def test_get_what_weft_says(self, name: str, said: str) -> None:
        with pytest.raises(weft.ArgumentError) as caught:
            weft.contract("mk,kn->mn", A, B, **{name: 1})
        assert str(caught.value).startswith(said)


class TestNumpysWords:
    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda: weft.tensordot(A, B, dims=1), "tensordot takes no keyword 'dims': weft says axes="),
            (lambda: weft.tensordot(A, B, axis=1), "tensordot takes no keyword 'axis': did you mean 'axes'?"),
            (lambda: weft.inner(A, A, bias=1), "inner takes no keyword 'bias'"),
            (lambda: weft.outer(A, B, foo=1), "outer takes no keyword 'foo': it takes c, alpha"),
            (lambda: weft.trace(A, dim1=1), "trace takes no keyword 'dim1': weft says axis1="),
        ],
    )
    def test_a_wrong_keyword_comes_first(self, call: Any, said: str) -> None:
        with pytest.raises(weft.ArgumentError) as caught:
            call()
        assert str(caught.value).startswith(said)

    def test_axes_that_are_not_there(self) -> None:
        with pytest.raises(weft.ShapeError, match="axes=5: a has 2 dimensions"):
            weft.tensordot(A, B, 5)
        with pytest.raises(weft.ShapeError, match="there is no axis 7 of a, which has 2 dimensions"):
            weft.tensordot(A, B, ([7], [0]))


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
        assert {each.name for each in dataclasses.fields(Options)} - names == {"peak"}
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

    def test_matmul_and_einsum_take_what_contract_takes(self) -> None:
        bias = torch.arange(4.0)
        options: dict[str, Any] = {
            "epilogue": lambda v, bias, i: v + bias * i, "operands": {"bias": ("n", bias)}, "indices": {"i": "m"},
            "c": C, "c_fn": torch.neg, "alpha": 2.0, "a_fn": torch.square, "b_fn": torch.abs, "deterministic": True,
        }  # fmt: skip
        expected = 2 * (A.square() @ B.abs()) - C + bias * torch.arange(2.0)[:, None]
        for found in (
            weft.matmul(A, B, **options), weft.einsum("mk,kn->mn", A, B, **options, validate=True),
            weft.contract("mk,kn->mn", A, B, **options),
        ):  # fmt: skip
            assert torch.equal(found, expected)

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
        ("call", "said"),
        [
            (lambda: weft.contract(A, B, "mk,kn->mn"), "the equation comes first: weft.contract(equation, a, b)"),
            (lambda: weft.contract(A, "mk,kn->mn", B), "the equation comes first: weft.contract(equation, a, b)"),
            (lambda: weft.plan(A, B, "mk,kn->mn"), "the equation comes first: weft.plan(equation, a, b)"),
            (lambda: weft.einsum(A, B, "mk,kn->mn"), "the equation comes first: weft.einsum('mk,kn->mn', ...)"),
            (lambda: weft.matmul("mk,kn->mn", A), "matmul takes no equation"),
            (lambda: weft.transpose_((0, 1), A), "the tensor comes first: weft.transpose_(x, dims)"),
            (
                lambda: weft.contract("mk,kn->mn", A, B, epilogue=weft.functions.bias, operands={"bias": (C[0], "n")}),
                "operand 'bias' is a pair (modes, tensor), in that order: the two are swapped",
            ),
        ],
    )
    def test_swapped_arguments_get_one_sentence(self, call: Any, said: str) -> None:
        with pytest.raises(weft.ArgumentError) as caught:
            call()
        assert str(caught.value).startswith(said)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
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

    def test_keywords_of_other_calls(self) -> None:
        for call, said in (
            (lambda: weft.matmul(A, B, trans_b=True), "did you mean 'transpose_b'|weft says transpose_b="),
            (lambda: weft.permute(A, "ab->ba", epilogue=torch.relu), "weft says fn="),
            (lambda: weft.contract("mk,kn->mn", A, B, fn=torch.relu), "weft says epilogue="),
            (lambda: weft.plan("mk,kn->mn", A, B)(A, B, operand={}), "a plan's call takes no keyword.*'operands'"),
            (lambda: weft.plan_permute(A, "ab->ba")(A, gamma=1), "takes no keyword 'gamma'"),
            (lambda: weft.matmul(A, B, optimize=True), "einsum finds the order by itself"),
            (lambda: weft.einsum("mk,kn->mn", A, B, optimize=3), "optimize=3 is no word"),
        ):
            with pytest.raises(weft.ArgumentError, match=said):
                call()

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


class TestNamesAtHand:
    def test_after_import_weft_alone(self) -> None:
        code = (
            "import weft; print(weft.functions.relu, weft.testing.poisoned, weft.algebra.max_plus.name)\n"
            "print(weft.cache.folder())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "max_plus" in done.stdout

    @pytest.mark.parametrize(
        ("function", "expected"),
        [
            (weft.functions.relu, torch.relu), (weft.functions.relu(), torch.relu),
            (weft.functions.silu, functional.silu), (weft.functions.gelu, functional.gelu),
            (weft.functions.gelu(), functional.gelu),
            (weft.functions.gelu("tanh"), lambda v: functional.gelu(v, approximate="tanh")),
            (weft.functions.gelu(approximate="tanh"), lambda v: functional.gelu(v, approximate="tanh")),
            (weft.functions.leaky_relu, lambda v: functional.leaky_relu(v, 0.01)),
            (weft.functions.leaky_relu(0.2), lambda v: functional.leaky_relu(v, 0.2)),
            (weft.functions.elu, functional.elu), (weft.functions.softcap(2.0), lambda v: 2 * torch.tanh(v / 2)),
            (weft.functions.sigmoid(), torch.sigmoid), (weft.functions.tanh, torch.tanh),
        ],
    )  # fmt: skip
    def test_with_and_without_brackets(self, function: Any, expected: Any, on: dict[str, str]) -> None:
        found = weft.contract("mk,kn->mn", A / 9, B, epilogue=function, **on)
        torch.testing.assert_close(found, expected(A / 9 @ B))
        torch.testing.assert_close(function(B), expected(B))

    def test_a_function_called_with_neither_a_tensor_nor_its_options(self) -> None:
        with pytest.raises(weft.FunctionError, match=r"leaky_relu is called with a tensor.*its options are slope"):
            weft.functions.leaky_relu(alpha=2)
        with pytest.raises(weft.FunctionError, match=r"relu is called .*it has no options"):
            weft.functions.relu(0.5)

    def test_attention(self, on: dict[str, str]) -> None:
        f, q, k = weft.functions, torch.randn(2, 5, 8), torch.randn(2, 7, 8)
        scores = torch.einsum("hid,hjd->hij", q, k)
        i, j = torch.arange(5)[:, None], torch.arange(7)
        slope = f.alibi_slopes(2)
        assert slope.tolist() == [2.0**-4, 2.0**-8]
        places: dict[str, Any] = {"indices": {"i": "i", "j": "j"}, **on}
        for function, expected in (
            (f.causal, torch.where(j <= i, scores, -torch.inf)),
            (f.causal(2, fill=0.0), torch.where(j <= i + 2, scores, 0.0)),
            (f.banded(1, 2), torch.where((j >= i - 1) & (j <= i + 2), scores, -torch.inf)),
            (f.sliding_window(3), torch.where((j > i - 3) & (j <= i), scores, -torch.inf)),
            (f.decay(rate=0.5), torch.where(j <= i, scores * 0.5 ** (i - j).clamp(min=0), 0.0)),
            (f.chain(f.softcap(3.0), f.causal), torch.where(j <= i, 3 * torch.tanh(scores / 3), -torch.inf)),
        ):
            torch.testing.assert_close(weft.contract("hid,hjd->hij", q, k, epilogue=function, **places), expected)
        found = weft.contract("hid,hjd->hij", q, k, epilogue=f.alibi, operands={"slope": ("h", slope)}, **places)
        torch.testing.assert_close(found, scores + slope[:, None, None] * (j - i))
        mask = torch.rand(5, 7) > 0.5
        for function in (f.masked, f.masked()):
            found = weft.contract("hid,hjd->hij", q, k, epilogue=function, operands={"mask": ("ij", mask)}, **on)
            torch.testing.assert_close(found, torch.where(mask, scores, -torch.inf))

    def test_rotary_embedding(self) -> None:
        """Of pairs seen as complex numbers: scores depend on the distance of positions alone."""
        q, k = torch.randn(5, 4, dtype=torch.complex64), torch.randn(7, 4, dtype=torch.complex64)
        angle = torch.arange(7.0)[:, None] * 100.0 ** (-torch.arange(4.0) / 4)
        turn = torch.polar(torch.ones_like(angle), angle)
        rotary = weft.functions.rotary(pairs=4, base=100.0)
        found = weft.contract("id,jd->ij", q.conj(), k, b_fn=rotary, indices={"i": "j", "d": "d"})
        torch.testing.assert_close(found, q.conj() @ (k * turn).T)

    def test_quantize(self) -> None:
        scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
        f = weft.functions
        found = weft.contract(
            "mk,kn->mn", A, B, epilogue=f.quantize("int8"), operands={"scale": ("n", scale)}, out_dtype="int8"
        )
        assert torch.equal(found, (AB / scale).round().clamp(-128, 127).to(torch.int8))
        assert torch.equal(f.saturate("fp16")(torch.tensor([1e6, -1e6])), torch.tensor([65504.0, -65504.0]).half())

    @pytest.mark.parametrize(
        ("alias", "name"),
        [("tropical", "min_plus"), ("logsumexp", "log"), ("boolean", "or_and"), ("Max-Plus", "max_plus"),
         ("viterbi", "max_times"), ("bottleneck", "min_max"), ("widest_path", "max_min"),
         ("sum_product", "plus_times")],
    )  # fmt: skip
    def test_aliases_of_algebras(self, alias: str, name: str) -> None:
        assert weft.algebra.find_named(alias) is weft.algebra.NAMED[name]
        a, b = A.bool() if name == "or_and" else A, B.bool() if name == "or_and" else B
        assert torch.equal(
            weft.contract("mk,kn->mn", a, b, algebra=alias), weft.contract("mk,kn->mn", a, b, algebra=name)
        )

    def test_max_min_is_the_widest_path(self, on: dict[str, str]) -> None:
        found = weft.contract("mk,kn->mn", A, B, algebra="max_min", **on)
        assert torch.equal(found, torch.minimum(A[:, :, None], B).amax(1))
        weft.testing.check_algebra("max_min")
