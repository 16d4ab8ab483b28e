"""The steps of a backward pass: each is a call of `weft.contract`, and so is differentiable itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.api.contract import contract
from weft.api.describe import choice_for
from weft.api.lookup import one_of
from weft.api.options import read_options, resolved
from weft.fn import Pointwise
from weft.fn.writer import HALF_TYPES
from weft.planner.planner import Choice
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.spec import parse
from weft.spec.dtypes import dtype_name

#: `weft.contract`, whose keywords are put together here as they come.
contraction: Callable[..., Any] = contract

ONE = "1"  # the source of an operand that is the number one

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """One contraction: `target` is what it makes of the sources `left` and `right`, tensors by name.

    `aux` are (parameter, source, modes) of what its functions take, `indices` (parameter, label). `scale` names the
    factor of the sum, "alpha" or "beta", whose conjugate it is multiplied with; "forward": both are, as they are.
    `addend` is a source that is added, `addend_term` its labels where it may lack some of the result's.
    """

    target: str
    text: str
    left: str
    right: str
    out_dtype: torch.dtype
    options: tuple[tuple[str, Any], ...]
    a_fn: Pointwise | None = None
    b_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    c_fn: Pointwise | None = None
    aux: tuple[tuple[str, str, str], ...] = ()
    indices: tuple[tuple[str, str], ...] = ()
    scale: str | None = None
    conjugate: bool = field(default=False)  # the right operand, before its function
    addend: str | None = None
    addend_term: str | None = None
    prologue: bool = False  # the gradient of the sums is made as it is read

    @property
    def reads(self) -> set[str]:
        """The sources."""
        found = {self.left, self.right, *(source for _, source, _ in self.aux)} - {ONE}
        return found | ({self.addend} if self.addend is not None else set())

    def keywords(self, sources: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        found = dict(self.options)
        found.update(out_dtype=self.out_dtype)
        if self.a_fn is not None:
            found["a_fn"] = self.a_fn
        if self.b_fn is not None:
            found["b_fn"] = self.b_fn
        if self.epilogue is not None:
            found["epilogue"] = self.epilogue
        if self.c_fn is not None:
            found["c_fn"] = self.c_fn
        if self.aux:
            found["operands"] = {name: (modes, sources[source]) for name, source, modes in self.aux}
        if self.indices:
            found["indices"] = dict(self.indices)
        left, right = self.pair(sources)
        if left.dtype != right.dtype:
            found["promote"] = True
        elif found.get("precision") in ("tf32", "tf32x3") and left.dtype in HALF_TYPES:  # the other one was longer
            found["precision"] = torch.float32
        return found

    def run(self, sources: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> torch.Tensor:
        keywords = self.keywords(sources)
        if self.scale == "forward":
            keywords.update(alpha=alpha, beta=beta)
        elif self.scale is not None:
            keywords["alpha"] = self.factor(alpha, beta)
        if self._moves_nothing(sources[self.left], keywords):
            return sources[self.left]
        if self.addend is not None:
            keywords["c"] = self._added(sources[self.addend])
        left, right = self.pair(sources)
        found: torch.Tensor = contraction(self.text, left, right, **keywords)
        return found

    def _added(self, addend: torch.Tensor) -> torch.Tensor:
        return addend if self.addend_term is None else with_modes(addend, self.addend_term, self.text.split("->")[1])

    def factor(self, alpha: Scalar, beta: Scalar) -> Scalar:
        """What the sum is multiplied with, of the call's factors."""
        return 1.0 if self.scale is None else (alpha if self.scale == "alpha" else beta).conjugate()

    def chosen(self, sources: Mapping[str, torch.Tensor], device: torch.device) -> tuple[torch.Tensor, Choice | None]:
        """What the step would yield, as a meta tensor, and what the planner makes of it; `sources` may be meta tensors.

        The choice is None for the reference backend, which chooses nothing.
        """
        meta = {name: _meta(tensor) for name, tensor in sources.items() if name in self.reads}
        keywords = self.keywords(meta)
        backend = resolve_backend(keywords.get("backend", "auto"), device)
        left, right = (_meta(each) for each in self.pair(meta))
        asked = replace(read_options("contract", keywords), backend="reference")
        request = resolved(parse(self.text), self.text, left, right, asked)
        request = replace(request, backend=backend, device=device, target=target_of(backend, device))
        choice = choice_for(request)[1]
        extents = request.extents()
        shape = [extents[label] for label in request.notation.output]
        return torch.empty(shape, dtype=self.out_dtype, device="meta"), choice

    def line(self) -> str:
        """The step in one line of `explain`."""
        left = f"{self.left}'" if self.a_fn is not None else self.left
        right = f"{self.right}'" if self.b_fn is not None else self.right
        beside = [source for _, source, _ in self.aux]
        reads = f", reading {', '.join(dict.fromkeys(beside))}" if beside else ""
        fused = f", through {self.epilogue.inputs[0]}'" if self.epilogue is not None else ""
        return f"{self.target} = {self.text} of {left} and {right}{fused}{reads}, in {dtype_name(self.out_dtype)}"

    def _moves_nothing(self, left: torch.Tensor, keywords: Mapping[str, Any]) -> bool:
        """Whether the result is the left operand as it is."""
        computed = {"a_fn", "b_fn", "c_fn", "epilogue"} & keywords.keys() or self.addend is not None
        before, after = self.text.split(",->") if self.right == ONE else ("", "-")
        return not computed and before == after and left.dtype == self.out_dtype and keywords.get("alpha", 1) == 1

    def pair(self, sources: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The two operands."""
        left = sources[self.left]
        if self.right == ONE:
            kind = left.device if left.device.type != "meta" else torch.device("meta")
            return left, one_of(left.dtype, kind)
        right = sources[self.right]
        return left, right.conj() if self.conjugate and right.is_complex() else right


@dataclass(frozen=True, slots=True)
class Spread:
    """What is the same along some modes, as a view that repeats it: nothing is computed."""

    target: str
    source: str
    have: str
    want: str
    like: str  # a source that has the modes wanted
    dtype: torch.dtype
    scale: None = None

    @property
    def reads(self) -> set[str]:
        return {self.source, self.like}

    def run(self, sources: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> torch.Tensor:
        found = sources[self.source]
        kept = [label for label in self.want if label in self.have]
        found = with_modes(found.permute([self.have.index(label) for label in kept]), kept, self.want)
        return found.expand(sources[self.like].shape).to(self.dtype)

    def line(self) -> str:
        return f"{self.target} = {self.source} repeated along {', '.join(x for x in self.want if x not in self.have)}"


def with_modes(tensor: torch.Tensor, have: Sequence[str], want: Sequence[str]) -> torch.Tensor:
    """A view with a dimension for each label of `want`, of extent 1 for those that `have` lacks; the order is one."""
    return tensor[tuple(slice(None) if label in have else None for label in want)]


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    """How a tensor lies; contiguous where that cannot be asked, inside a transform of torch.func."""
    if tensor.device.type == "meta" and not tensor.is_conj():
        return tensor
    try:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    except RuntimeError:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
