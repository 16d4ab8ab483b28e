"""`validate=True`: some elements of a result computed again, in wide types, and held against their error bound.

The sampled elements are a contraction of their own. What A, B, C and the operands of functions hold for each of them is
gathered along a new label that takes the place of all of D's:

    D[s] = epilogue(alpha * sum over k of a_fn(A[s, k]) * b_fn(B[s, k]) + beta * c_fn(C[s]))

The oracle computes that, and `weft.oracle.bounds` bounds it. Only slices that sampled elements need are read, some
elements at a time, so memory does not grow with A, B or D.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from weft.base.log import log
from weft.errors import AccuracyError, UnsupportedError
from weft.fn.pointwise import is_triton_function
from weft.oracle.bounds import check_known, expectation
from weft.oracle.elements import every_index
from weft.oracle.judgement import as_held, judged
from weft.oracle.reference import contract, wide
from weft.planner.request import HOOKS, Request, Results
from weft.planner.schedule import Scalar
from weft.spec.contraction import summed
from weft.spec.notation import Label, label_text

SAMPLED = 256  # elements of D
FEWEST = 16  # of them, however long the sums are
CORNERS = 64
PRODUCTS = 1 << 26  # in all sampled sums together
GATHERED = 1 << 20  # products at once, where one sum allows
SEED = 0


def validated(
    request: Request,
    run: Callable[[], Results],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    alpha: Scalar,
    beta: Scalar,
    operands: Mapping[str, torch.Tensor],
) -> Results:
    """The results of `run`, checked. C is sampled before, as it may be overwritten.

    Raises `AccuracyError` for the worst element past its bound, and `UnsupportedError` before anything runs where no
    bound is known.
    """
    check_supported(request)
    beside = {name: WholeSample(tensor) for name, tensor in operands.items()}
    addend = WholeSample(c) if c is not None and beta != 0 else None
    sampled = Sampled.of(request, WholeSample(a), WholeSample(b), addend, alpha, beta, beside)
    results = run()
    sampled.compare(results if isinstance(results, tuple) else (results,))
    return results


def check_supported(request: Request) -> None:
    """`UnsupportedError` where no bound is known."""
    for function in request.functions.raw:
        if function is not None and is_triton_function(function):
            raise UnsupportedError("validate=True evaluates functions with torch: it cannot run one written in Triton")
    total = request.arithmetic.accumulate
    if request.raw_algebra is not None and (total.is_floating_point or total.is_complex):
        check_known(request.raw_algebra)


class SampledSource(Protocol):
    """A tensor that gives sampled elements, wherever it is stored."""

    def gathered(self, sample: Sample, term: Sequence[Label], mark: Label) -> tuple[torch.Tensor, tuple[Label, ...]]:
        """The values for each sampled element, on the CPU, and their labels: `mark` for all of D's."""


@dataclass(frozen=True, slots=True)
class WholeSample:
    """A tensor that is all here."""

    tensor: torch.Tensor

    def gathered(self, sample: Sample, term: Sequence[Label], mark: Label) -> tuple[torch.Tensor, tuple[Label, ...]]:
        return sample.gather(self.tensor, term, mark)


@dataclass(frozen=True, slots=True)
class Sample:
    """Some elements of D: its corners, and others drawn at random, the same for the same shape."""

    labels: tuple[Label, ...]  # of D
    extents: tuple[int, ...]
    coordinates: torch.Tensor  # int64, (elements, labels)
    depth: int  # products in the sum of each

    @classmethod
    def of(cls, request: Request, most: int = SAMPLED) -> Sample:
        known = request.extents
        labels = tuple(request.notation.output)
        extents = tuple(known[label] for label in labels)
        depth = summed(request.notation, known)
        count = max(FEWEST, min(most, PRODUCTS // max(depth, 1)))
        return cls(labels, extents, _chosen(extents, count), depth)

    def parts(self) -> tuple[Sample, ...]:
        """So few elements at a time that what is gathered stays small."""
        if not len(self.coordinates):
            return ()
        step = max(1, GATHERED // max(self.depth, 1))
        return tuple(Sample(self.labels, self.extents, part, self.depth) for part in self.coordinates.split(step))

    def along(self, label: Label) -> torch.Tensor:
        return self.coordinates[:, self.labels.index(label)]

    def gather(
        self, tensor: torch.Tensor, term: Sequence[Label], mark: Label
    ) -> tuple[torch.Tensor, tuple[Label, ...]]:
        """A tensor's values for each sampled element, on the CPU, and their labels: `mark` for all of D's."""
        own = [at for at, label in enumerate(term) if label in self.labels]
        others = [at for at, label in enumerate(term) if label not in self.labels]
        left = tuple(term[at] for at in others)
        if not own:  # a C of no modes may be overwritten
            return (tensor if left else tensor.clone()).cpu(), left
        index = tuple(
            (self.along(term[at]) if tensor.shape[at] != 1 else torch.zeros_like(self.along(term[at]))).to(
                tensor.device
            )
            for at in own
        )
        return tensor.permute(*own, *others)[index].cpu(), (mark, *left)


def _chosen(extents: Sequence[int], count: int) -> torch.Tensor:
    """Coordinates of about `count` elements, none twice: all of a small D, else corners and random ones."""
    total = math.prod(extents)
    if total <= count:
        return every_index(extents, 0, total, torch.device("cpu"))
    ends = [sorted({0, extent - 1}) for extent in extents]
    corners = list(itertools.islice(itertools.product(*ends), CORNERS - 1))
    corners.append(tuple(extent - 1 for extent in extents))
    generator = torch.Generator("cpu").manual_seed(SEED)
    size = (max(count - len(corners), 0),)
    drawn = [torch.randint(0, extent, size, generator=generator, device="cpu") for extent in extents]
    fixed = torch.tensor(corners, dtype=torch.int64, device="cpu")
    return torch.cat([fixed, torch.stack(drawn, 1)]).unique(dim=0)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Sampled elements as a contraction, in the words of `weft.oracle.bounds.expectation`."""

    sample: Sample
    equation: tuple[tuple[Label, ...], ...]
    a: torch.Tensor
    b: torch.Tensor
    options: dict[str, Any]

    @classmethod
    def gathered(
        cls,
        request: Request,
        sample: Sample,
        a: SampledSource,
        b: SampledSource,
        c: SampledSource | None,
        alpha: Scalar,
        beta: Scalar,
        operands: Mapping[str, SampledSource],
    ) -> _Problem:
        mark = object()
        x, term_a = a.gathered(sample, request.notation.inputs[0], mark)
        y, term_b = b.gathered(sample, request.notation.inputs[1], mark)
        aux_args: dict[str, tuple[tuple[Label, ...], torch.Tensor]] = {}
        indices: dict[str, Label] = {}
        for named in request.named:
            if named.layout is not None:
                values, term = operands[named.name].gathered(sample, named.term, mark)
                aux_args[named.name] = (term, values)
            elif named.term[0] in sample.labels:
                aux_args[named.name] = ((mark,), sample.along(named.term[0]).to(named.dtype))
            else:
                indices[named.name] = named.term[0]
        arithmetic = request.arithmetic
        options: dict[str, Any] = {
            "c": c.gathered(sample, sample.labels, mark)[0] if c is not None else None,
            "alpha": alpha, "beta": beta, "accumulate": arithmetic.accumulate,
            "out_dtype": (request.d_dtype, *request.outputs) if request.outputs else request.d_dtype,
            "precision": _precision(request),
            **dict(zip(HOOKS, request.functions.raw, strict=True)),
            "operands": aux_args, "indices": indices, "algebra": request.raw_algebra or "plus_times",
            "promote": request.promote,
        }  # fmt: skip
        return cls(sample, (term_a, term_b, (mark,) if sample.labels else ()), x, y, options)

    def only(self, kept: torch.Tensor) -> _Problem:
        """The problem of those elements that `kept` marks."""
        if not self.sample.labels or bool(kept.all()):
            return self
        ((mark,), addend) = self.equation[2], self.options["c"]

        def rows(values: torch.Tensor, term: tuple[Label, ...]) -> torch.Tensor:
            return values[kept] if mark in term else values

        sample = replace(self.sample, coordinates=self.sample.coordinates[kept])
        beside = {name: (term, rows(values, term)) for name, (term, values) in self.options["operands"].items()}
        options = {**self.options, "operands": beside, "c": None if addend is None else addend[kept]}
        term_a, term_b, _ = self.equation
        return replace(self, sample=sample, a=rows(self.a, term_a), b=rows(self.b, term_b), options=options)

    def conditions(self) -> dict[str, torch.Tensor]:
        """Condition numbers of each element: of its sum of products, sum |a b| / |sum a b|, and of adding C to it.

        Empty where functions, an algebra or integers stand between operands and sums. Formulae: *Design and
        Performance Engineering of GPU-Accelerated Tensor Network Algorithms*, section 2.2.3.
        """
        options = self.options
        inner = (options["a_fn"], options["b_fn"], options["c_fn"])
        exact = not (options["accumulate"].is_floating_point or options["accumulate"].is_complex)
        if exact or any(inner) or options["algebra"] != "plus_times" or options["promote"]:
            return {}
        a, b = wide(self.a), wide(self.b)
        total = contract(self.equation, a, b).reshape(-1)
        found = {"kappa_dot": _condition(contract(self.equation, a.abs(), b.abs()).reshape(-1), total)}
        if options["c"] is not None:
            scaled, added = options["alpha"] * total, options["beta"] * wide(options["c"]).reshape(-1)
            found["kappa_add"] = _condition(scaled.abs() + added.abs(), scaled + added)
        return found

    def expected(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each result the elements and their bounds."""
        found, bounds = expectation(self.equation, self.a, self.b, **self.options)
        if not isinstance(found, tuple):
            found, bounds = (found,), (bounds,)
        return [(one.reshape(-1), bound.reshape(-1)) for one, bound in zip(found, bounds, strict=True)]


def _condition(sizes: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The sum of magnitudes over the magnitude of the sum: 1 where both are 0, infinite where only the sum is."""
    return torch.where(sizes == 0, 1.0, sizes / total.abs())


def _precision(request: Request) -> str | torch.dtype | None:
    """The `precision` that a caller would ask for to get the request's products."""
    arithmetic = request.arithmetic
    if arithmetic.precision != "ieee":
        return arithmetic.precision
    return None if arithmetic.product is torch.bool else arithmetic.product


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled elements of one call, and all that they are computed from: gathered before it runs, compared after."""

    problems: tuple[_Problem, ...]

    @classmethod
    def of(
        cls, request: Request, a: SampledSource, b: SampledSource, c: SampledSource | None, alpha: Scalar, beta: Scalar,
        operands: Mapping[str, SampledSource], *, most: int = SAMPLED,
    ) -> Sampled:  # fmt: skip
        parts = Sample.of(request, most).parts()
        return cls(tuple(_Problem.gathered(request, part, a, b, c, alpha, beta, operands) for part in parts))

    def compare(self, results: Sequence[torch.Tensor], starts: Sequence[int] | None = None) -> None:
        """`AccuracyError` for the worst element of the results past its bound.

        `starts`: where the results, which are parts, begin along each mode of D; elements that lie elsewhere are left
        out.
        """
        starts = starts if starts is not None else (0,) * results[0].dim()
        begin = torch.tensor(starts, dtype=torch.int64, device="cpu")
        end = begin + torch.tensor(results[0].shape, dtype=torch.int64, device="cpu")
        parts = []
        for problem in self.problems:
            at = problem.sample.coordinates
            here = ((at >= begin) & (at < end)).all(1)
            if bool(here.any()):
                part = problem.only(here)
                parts.append((replace(part.sample, coordinates=part.sample.coordinates - begin), part, part.expected()))
        try:
            for number, result in enumerate(results):
                _judge("D" if len(results) == 1 else f"result {number}, D", result, [
                    (local, part.sample, *expected[number]) for local, part, expected in parts
                ])  # fmt: skip
        except AccuracyError as error:
            raise AccuracyError(f"{error}{_cancelled([part for _, part, _ in parts])}") from None
        if log.isEnabledFor(logging.INFO):
            log.info("validated%s", _cancelled([part for _, part, _ in parts]) or ": exact sums, or functions within")


def _cancelled(problems: Sequence[_Problem]) -> str:
    """The worst condition numbers of the elements in words; a power of ten is a digit that cancellation may cost."""
    worst: dict[str, float] = {}
    for problem in problems:
        for name, values in problem.conditions().items():
            worst[name] = max(worst.get(name, 1.0), float(values.max()))
    return "".join(f"; {name} is at most {value:.3g}" for name, value in worst.items())


def _judge(name: str, result: torch.Tensor, parts: Sequence[tuple[Sample, Sample, torch.Tensor, torch.Tensor]]) -> None:
    """Hold a result against values and bounds at the coordinates of a sample, which are told by those of the next."""
    worst, wrong, text = 1.0, 0, ""
    for local, sample, exact, bound in parts:
        value = as_held(exact, result.dtype)
        have = local.gather(result, local.labels, None)[0].reshape(-1)
        found = judged(have, value, bound)
        wrong += found.wrong
        if found.worst > worst:
            worst, first = found.worst, found.at
            place = ", ".join(
                f"{label_text(label)}={int(index)}"
                for label, index in zip(sample.labels, sample.coordinates[first], strict=True)
            )
            text = f"[{place}] is {have[first].item()}, expected {value[first].item()} within {bound[first].item():.3g}"
    if wrong:
        count = sum(len(sample.coordinates) for _, sample, _, _ in parts)
        raise AccuracyError(f"{name}{text}: {wrong} of {count} sampled elements are off")
