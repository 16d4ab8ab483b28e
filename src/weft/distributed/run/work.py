"""What is computed of parts: products with functions, sums that go on from part to part, and what follows a sum."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from weft.algebra import Algebra
from weft.api.contract import contract
from weft.distributed.planned.blocks import Block, Run
from weft.planner.schedule import Scalar
from weft.spec.notation import Label

Spans = Mapping[Label, Run]
_one_at_a_time = threading.Lock()  # on a CPU: a lane reduces by the same kernels, which have all cores to themselves


@dataclass(frozen=True)
class Work:
    """The functions of a call and what they take, ready for any part of it.

    `taken` has for each hook the names that its function takes; `aux` has for each name a block of the whole tensor
    (of an index: its coordinates, so that a part sees those of the whole). `options` are keywords of every contraction.
    """

    functions: Mapping[str, Any]
    taken: Mapping[str, tuple[str, ...]]
    aux: Mapping[str, Block]
    options: Mapping[str, Any]
    algebra: Algebra | None
    sum_type: torch.dtype
    types: tuple[torch.dtype, ...]  # of D and of what else the epilogue yields
    term: tuple[Label, ...]  # of D
    largest: bool = False  # of an algebra that selects, with indices: whether the larger value is kept

    def multiply(
        self, a: Block, b: Block, out: Sequence[Block], runs: Spans, *, spans: Spans, addend: Block | None,
        alpha: Scalar, beta: Scalar, hooks: Sequence[str],
    ) -> None:  # fmt: skip
        """One contraction of the indices `runs` of the loop's label, into the same of `out`.

        `spans` are the indices that this rank computes of every label, for operands of functions; `hooks` the
        functions that run.
        """
        x, term_a = a.cut(runs)
        y, term_b = b.cut(runs)
        keywords = self._keywords({**spans, **runs}, hooks)
        if addend is not None:
            keywords["c"] = addend.cut_addend({label: run for label, run in runs.items() if label in self.term})
        self._call(term_a, x, term_b, y, [one.cut(runs) for one in out], alpha, beta, keywords, dict(self.options))

    def finish(
        self, sums: torch.Tensor, out: Sequence[torch.Tensor], spans: Spans, addend: Block | None, alpha: Scalar,
        beta: Scalar,
    ) -> None:  # fmt: skip
        """D from complete sums: alpha, C, the epilogue. `spans` are the indices that `sums` has of every label."""
        bare = self.functions.get("epilogue") is None and addend is None and (alpha == 1 or self.algebra is not None)
        if bare:
            out[0].copy_(sums)
            return
        keywords = self._keywords(spans, ("c_fn", "epilogue") if addend is not None else ("epilogue",))
        if addend is not None:
            keywords["c"] = addend.cut_addend({label: run for label, run in spans.items() if label in self.term})
        self._call(
            self.term, sums, (), self._one(sums.device), [(one, self.term) for one in out], alpha, beta, keywords,
            self._after(),
        )  # fmt: skip

    def select(self, a: Block, b: Block, spans: Spans) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Values as they are selected of these indices, and where they lie along each reduced mode, counted from here.
        """
        (x, term_a), (y, term_b) = a.cut({}), b.cut({})
        keywords = {**self.options, **self._keywords(spans, ("a_fn", "b_fn"))}
        with _guard(x), torch.no_grad():
            values, places = contract(
                (term_a, term_b, self.term), x, y, out_dtype=self.sum_type, return_arg=True, **keywords
            )
        return values, list(places) if isinstance(places, tuple) else [places]

    def reduced(self, pieces: torch.Tensor) -> torch.Tensor:
        """The algebra's reduction of sums over the first dimension of `pieces`."""
        found = torch.empty_like(pieces[0])
        labels = tuple(range(1, pieces.dim()))
        self._call(
            (0, *labels), pieces, (), self._one(pieces.device), [(found, labels)], 1.0, 1.0, {}, self._after()
        )  # fmt: skip
        return found

    def _after(self) -> dict[str, Any]:
        """Options of what is done to sums: a value alone, reduced as the algebra does."""
        kept = {name: value for name, value in self.options.items() if name in ("backend", "specialize")}
        if self.algebra is not None:
            kept["algebra"] = alone(self.algebra)
        kept["accumulate"] = self.sum_type
        return kept

    def _one(self, device: torch.device) -> torch.Tensor:
        return torch.ones((), dtype=self.sum_type, device=device)

    def _keywords(self, runs: Spans, hooks: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        operands: dict[str, Any] = {}
        for hook in hooks:
            if self.functions.get(hook) is None:
                continue
            found[hook] = self.functions[hook]
            for name in self.taken[hook]:
                tensor, term = self.aux[name].cut(runs)
                operands[name] = (term, tensor)
        return {**found, "operands": operands} if operands else found

    def _call(
        self, term_a: Any, a: torch.Tensor, term_b: Any, b: torch.Tensor, out: Sequence[tuple[torch.Tensor, Any]],
        alpha: Scalar, beta: Scalar, keywords: dict[str, Any], options: dict[str, Any],
    ) -> None:  # fmt: skip
        places = tuple(tensor for tensor, _ in out)
        said: dict[str, Any] = {**options, **keywords, "out": places if len(places) > 1 else places[0]}
        if self.algebra is None:
            said |= {"alpha": alpha, "beta": beta} if "c" in keywords else {"alpha": alpha}
        with _guard(a), torch.no_grad():
            contract((term_a, term_b, out[0][1]), a, b, **said)


def _guard(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    return _one_at_a_time if tensor.device.type == "cpu" else nullcontext()


def alone(algebra: Algebra) -> Algebra:
    """The same reduction of values that are not combined with anything."""
    return Algebra(_first, algebra.reduce, algebra.identity, f"{algebra.name}, of sums", algebra.requires)


def _first(x: Any, y: Any) -> Any:
    return x
