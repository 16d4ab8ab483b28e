"""The steps of a backward pass: each is a contraction whose options are read, and so is differentiable itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.api.describe import choice_for
from weft.api.entry import contraction, words_of
from weft.api.lookup import one_of
from weft.engine.calls import CALLS, present
from weft.fn import Pointwise
from weft.fn.writer import HALF_TYPES
from weft.planner.options import Options
from weft.planner.planner import Choice
from weft.planner.schedule import Scalar
from weft.planner.target import resolve_backend, target_of
from weft.plans.resolving import resolved
from weft.spec import parse
from weft.spec.dtypes import dtype_name

ONE = "1"  # the source of an operand that is the number one

Input = tuple[str, str | None, str]  # a parameter, its source (None for a coordinate), and its modes

_OF_SINGLE = ("tf32", "tf32x3", "ieee_bound")  # ways to make products of float32


@dataclass(frozen=True, slots=True)
class GradientStep:
    """One contraction: `target` is what it makes of the sources `left` and `right`, tensors by name.

    `aux` are the inputs of its functions. `scale` names the factor of the sum, "alpha" or "beta", whose conjugate it is
    multiplied with; "forward": both are, as they are. `addend` is a source that is added, `addend_term` its labels,
    which may lack some of the result's.
    """

    target: str
    text: str
    left: str
    right: str
    out_dtype: Any  # of the result, or of each of several
    options: Options  # but for functions, what these take, and the result's type
    a_fn: Pointwise | None = None
    b_fn: Pointwise | None = None
    epilogue: Pointwise | None = None
    c_fn: Pointwise | None = None
    aux: tuple[Input, ...] = ()
    scale: str | None = None
    conjugate: bool = field(default=False)  # the right operand, before its function
    addend: str | None = None
    addend_term: str | None = None
    prologue: bool = False  # the gradient of the sums is made as it is read

    @property
    def reads(self) -> set[str]:
        """The sources."""
        found = {self.left, self.right, self.addend, *(source for _, source, _ in self.aux)}
        return {source for source in found if source is not None and source != ONE}

    def asked(self, sources: Mapping[str, torch.Tensor]) -> Options:
        """The options of its call."""
        left, right = sources[self.left].dtype, None if self.right == ONE else sources[self.right].dtype
        options = replace(
            self.options, out_dtype=self.out_dtype, functions=(self.a_fn, self.b_fn, self.c_fn, self.epilogue),
            operands={name: (modes, sources[source]) for name, source, modes in self.aux if source is not None},
            indices={name: label for name, source, label in self.aux if source is None},
        )  # fmt: skip
        if right is not None and left != right:
            return replace(options, promote=True)
        if options.precision in _OF_SINGLE and left in HALF_TYPES:  # the other one was longer
            return replace(options, precision=torch.float32)
        return options

    def run(self, sources: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> torch.Tensor:
        left, right, addend, alpha, beta, *_ = self.arguments(sources, alpha, beta)
        if alpha == 1 and self._moves_nothing(left):
            return left
        found: torch.Tensor = contraction(self.text, left, right, self.asked(sources), addend, alpha, beta)
        return found

    def known(self, sources: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> Any:
        """The known call that makes this step of sources like these, or None."""
        left, right, addend, _, _, _, beside = self.arguments(sources, alpha, beta)
        words = None if self._moves_nothing(left) else words_of(self.text, self.asked(sources))
        return None if words is None else CALLS.find(*present(words, left, right, addend, None, beside))[0]

    def arguments(self, sources: Mapping[str, torch.Tensor], alpha: Scalar, beta: Scalar) -> tuple[Any, ...]:
        """A, B, C, the factors, no `out`, and the tensors of functions: what a known call takes."""
        if self.scale is None:
            alpha = beta = 1.0
        elif self.scale != "forward":
            alpha, beta = (alpha if self.scale == "alpha" else beta).conjugate(), 1.0
        left = sources[self.left]
        right = one_of(left.dtype, left.device) if self.right == ONE else sources[self.right]
        if self.conjugate and right.is_complex():
            right = right.conj()
        beside = [sources[source] for _, source, _ in self.aux if source is not None] if self.aux else ()
        if self.addend is None:
            return left, right, None, alpha, 1.0, None, beside
        addend = sources[self.addend]
        if self.addend_term is not None:
            addend = with_modes(addend, self.addend_term, self.text.split("->")[1])
        return left, right, addend, alpha, beta, None, beside

    def chosen(self, sources: Mapping[str, torch.Tensor], device: torch.device) -> tuple[torch.Tensor, Choice | None]:
        """The result of the step as a meta tensor, and the planner's choice for it; `sources` may be meta tensors.

        The choice is None for the reference backend, which chooses nothing.
        """
        meta = {name: _meta(tensor) for name, tensor in sources.items() if name in self.reads}
        options = self.asked(meta)
        backend = resolve_backend(options.backend, device)
        left, right = map(_meta, self.arguments(meta, 1.0, 1.0)[:2])
        request = resolved(parse(self.text), self.text, left, right, replace(options, backend="reference"))
        request = replace(request, backend=backend, device=device, target=target_of(backend, device))
        choice = choice_for(request)[1]
        extents = request.extents
        shape = [extents[label] for label in request.notation.output]
        return torch.empty(shape, dtype=self.out_dtype, device="meta"), choice

    def line(self) -> str:
        """The step in one line of `explain`."""
        left = f"{self.left}'" if self.a_fn is not None else self.left
        right = f"{self.right}'" if self.b_fn is not None else self.right
        beside = [source for _, source, _ in self.aux if source is not None]
        reads = f", reading {', '.join(dict.fromkeys(beside))}" if beside else ""
        fused = f", through {self.epilogue.inputs[0]}'" if self.epilogue is not None else ""
        return f"{self.target} = {self.text} of {left} and {right}{fused}{reads}, in {dtype_name(self.out_dtype)}"

    def _moves_nothing(self, left: torch.Tensor) -> bool:
        """Whether a pass over the left operand leaves it as it is, but for a factor."""
        if self.right != ONE or left.dtype != self.out_dtype or self.addend is not None:
            return False
        before, after = self.text.split(",->")
        return before == after and self.a_fn is self.b_fn is self.c_fn is self.epilogue is None


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor repeated along some modes, as a view: nothing is computed."""

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
    """A meta tensor of a tensor's layout; contiguous where it has none, inside a transform of torch.func."""
    if tensor.device.type == "meta" and not tensor.is_conj():
        return tensor
    try:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    except RuntimeError:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
