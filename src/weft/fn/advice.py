"""Advice for an operation that cannot be fused: its place in the user's file, and what to write instead."""

from __future__ import annotations

import linecache
import os
import sys
import traceback

import torch

from weft.errors import FunctionError

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

_SHOWN = 80  # characters of a line of the user's


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REDUCTIONS = _words(
    "sum mean prod max min amax amin aminmax all any argmax argmin logsumexp norm linalg_vector_norm var std "
    "median var_mean std_mean nansum nanmedian cumsum cumprod cummax cummin logcumsumexp _softmax _log_softmax "
    "sort topk native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
    "_fused_rms_norm count_nonzero kthvalue mode"
)
_PRODUCTS = _words(
    "mm bmm addmm baddbmm addmv mv dot vdot matmul linear convolution convolution_overrideable addr "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math cdist"
)
_AXES = _words(
    "select slice index index_put index_select gather scatter scatter_add permute transpose t view reshape "
    "_unsafe_view unsqueeze squeeze expand cat stack unbind split chunk split_with_sizes flip roll repeat "
    "diagonal as_strided tril triu unfold pixel_shuffle constant_pad_nd view_as_complex take nonzero "
    "masked_select embedding"
)
_COORDINATES = _words("arange linspace logspace eye tril_indices triu_indices")
_RANDOM = ("rand", "bernoulli", "dropout", "normal", "uniform", "multinomial", "poisson", "exponential", "cauchy")


def instead_of(operation: str) -> str:
    """One sentence on what to write instead of the aten operation of that name (`"sum"`, `"mm"`, ...)."""
    if operation.startswith(_RANDOM) or "_rand" in operation or "dropout" in operation:
        drawn = "random numbers are drawn before the call: pass them as a tensor by operands="
        return f"{drawn}, or write weft.functions.dropout or .uniform, which follow from a seed and indices="
    if operation == "reduce":
        return "weft.cascade and weft.contract(reduce=) take functions that reduce over modes"
    if operation in _REDUCTIONS:
        return (
            "reductions belong into the equation (a label that the output lacks is reduced) or after the call; "
            "weft.cascade takes functions that reduce over modes, as weft.softmax(s, 'k')"
        )
    if operation in _PRODUCTS:
        return "products over a mode belong into the equation"
    if operation in _COORDINATES:
        return "the coordinate of an element comes in by indices="
    if operation in _AXES:
        return (
            "a function works on one element at a time: axes are arranged by the labels of the equation, "
            "other tensors come in by operands=, coordinates by indices=, and a choice by mask is torch.where"
        )
    return (
        "there is no code for one element of it: write it with torch's arithmetic, comparisons and torch.where, "
        "or compute it before the call and pass it by operands="
    )


def user_line(entry: str, error: BaseException | None = None) -> str:
    """Where the user's function stands, as ` (file.py:12: y = x.sum())`; empty when no line of Python shows.

    Looks at the running frames from the innermost outward, or at those that `error` came through, for the first that
    is neither of this room, of torch, nor generated. The frame of this room named `entry` called the user's function:
    reaching it first means that the function is a built-in.
    """
    running = traceback.walk_stack(sys._getframe(1))
    for frame, number in reversed([*traceback.walk_tb(error.__traceback__)]) if error else running:
        code = frame.f_code
        own = code.co_filename.startswith(_OWN_FOLDER)
        if own and code.co_name == entry:
            return ""
        if not own and not code.co_filename.startswith((_TORCH_FOLDER, "<frozen", "<eval_with_key")):
            text = linecache.getline(code.co_filename, number).strip()
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
            return f" ({os.path.basename(code.co_filename)}:{number}{': ' if text else ''}{shown})"
    return ""


def translated(error: Exception, hook: str, entry: str) -> FunctionError:
    """The error of weft's for what a function raised while it was recorded, called by `entry`."""
    text = str(error)
    line = user_line(entry, error)
    if "Boolean value of Tensor" in text or "converted to Scalar" in text or "converted to Python scalar" in text:
        return FunctionError(f"{hook}: {READS_ADVICE}{line}")
    if ".numpy()" in text or "__array__" in text:
        return FunctionError(f"{hook}: the function hands its value to NumPy{line}; use torch's functions")
    return FunctionError(f"{hook}: the function raised {type(error).__name__}: {text}{line}")


READS_ADVICE = (
    "the function reads a value into Python (if, while, bool(), item(), float(), ...); it is recorded once, not run "
    "for each element: choose by torch.where"
)
