"""The steps of the backward pass of one contraction of plus-times, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from weft.autograd import hooks
from weft.autograd.spec import A_FN, B_FN, C_FN, EPILOGUE, FIRST_OPERAND, C, Spec
from weft.autograd.steps import ONE, GradientStep, Input, Spread
from weft.errors import UnsupportedError
from weft.fn.pointwise import RecordedFunction
from weft.planner.options import Options, types_of
from weft.spec.dtypes import FP8, value_type

Needs = tuple[bool, ...]  # of A, B, C and the operands: which gradients are requested
Steps = tuple[GradientStep | Spread, ...]

SUMS, TOTAL = "sums", "G"  # sources: the sums that were kept or are made again, and their gradient where it is stored


class Backward:
    """The steps of one backward pass being put together.

    `stored`: the gradient of the sums is a tensor of its own. `fused`: the derivative of an operand's function is part
    of the contraction that makes its gradient, else a pass of its own.
    """

    def __init__(
        self, spec: Spec, pattern: hooks.Pattern, known: frozenset[int], stored: bool, sums: int, fused: bool = True
    ) -> None:
        self.spec, self.pattern, self.known, self.stored, self.fused = spec, pattern, known, stored, fused
        self.sums = sums  # which result is the sums that are kept, if any
        self.found: list[GradientStep | Spread] = []
        self.done: dict[str, str] = {}  # gradients of operands so far: what a further part is added to
        at = next(at for at, given in enumerate(pattern) if given)
        self.main = f"weft_grad{at}"
        kind = spec.results[at]
        if spec.accumulate.is_complex and not kind.is_complex and spec.functions[EPILOGUE] is not None:
            self.main, kind = "weft_sums", hooks.kept_type(spec)  # a real value has no complex prologue
        self.kind = kind

    def steps(self, needs: Needs) -> Steps:
        spec = self.spec
        needed = {name for at, (name, _) in enumerate(spec.operands) if needs[FIRST_OPERAND + at]}
        total = self._function(0, products=False)
        flows = total is not None or spec.functions[EPILOGUE] is None
        if flows and self.stored:
            self.found.append(self._on_elements(TOTAL, 0, spec.term_d, product_type(spec)))
        for hook, target in ((A_FN, "dA"), (B_FN, "dB")):
            taken = [name for name in spec.taken(hook) if name in needed]
            if flows and (needs[hook] or taken):
                self._operand(hook, target, needs[hook], taken)
        if flows and spec.term_c is not None:
            taken = [name for name in spec.taken(C_FN) if name in needed]
            if needs[C] or taken:
                self._addend(needs[C], taken)
        for name in spec.taken(EPILOGUE):
            if name in needed:
                place = 1 + spec.names[EPILOGUE].index(name)
                if self._function(place, products=False) is not None:
                    self._add(self._on_elements(self._d(name), place, spec.modes(name), self._type(name)))
        return tuple(self.found)

    # -- the gradient of the sums --------------------------------------------------------------------------------------

    def _function(self, place: int, *, products: bool) -> RecordedFunction | None:
        """The derivative that makes the gradient of the sums (0), or of a name that the epilogue takes."""
        spec = self.spec
        value = value_type(self.kind, product_type(spec) if products else spec.accumulate)
        if spec.functions[EPILOGUE] is None and self.kind.is_complex == spec.accumulate.is_complex:
            return None
        return hooks.of_sums(spec, self.pattern, self.main, value, self.known)[place]

    def _source(self, parameter: str) -> str:
        """Where a parameter's values come from."""
        if not parameter.startswith("weft_"):
            return operand_source(parameter)
        name = parameter.removeprefix("weft_")
        if name.startswith("grad"):
            return grad_source(int(name.removeprefix("grad")))
        if name.startswith("result"):
            at = int(name.removeprefix("result"))
            return SUMS if at == self.sums else result_source(at)
        return {"sums": SUMS, "a": "A", "b": "B", "c": "C"}[name]

    def _further_inputs(
        self, function: RecordedFunction | None, own: str, places: dict[str, tuple[str | None, str]] | None = None
    ) -> tuple[Input, ...]:
        """The further inputs of a derivative; `own` are its value's modes, `places` sources that it has here."""
        known: dict[str, tuple[str | None, str]] = {name: (None, label) for name, label in self.spec.indices}
        known.update(places or {})
        found: list[Input] = []
        for name in function.inputs[1:] if function is not None else ():
            modes = own if name.startswith("weft_") or name in known else self.spec.modes(name)
            found.append((name, *(known[name] if name in known else (self._source(name), modes))))
        return tuple(found)

    def _on_elements(self, target: str, place: int, term: str, out: torch.dtype) -> GradientStep:
        """The gradient of the sums, or of an operand of the epilogue, summed to some modes of D."""
        spec = self.spec
        function = self._function(place, products=False)
        fits = torch.promote_types(out, product_type(spec)) == product_type(spec)
        if self.stored and fits and target != TOTAL and _are_one(function, self._function(0, products=False)):
            step = over_elements(spec, target, out, TOTAL, term)
        else:
            aux = self._further_inputs(function, spec.term_d)
            step = over_elements(spec, target, out, self._source(self.main), term)
            step = replace(step, a_fn=function, aux=aux, prologue=function is not None)
        return self._in_kind(step, out)

    def _in_kind(self, step: GradientStep, out: torch.dtype) -> GradientStep:
        """Real where what it is the gradient of is."""
        if self.spec.accumulate.is_complex and not out.is_complex:
            return replace(step, epilogue=hooks.real_part(self.spec.accumulate))
        return step

    # -- A and B -------------------------------------------------------------------------------------------------------

    def _operand(self, hook: int, target: str, needed: bool, taken: Sequence[str]) -> None:
        """dA, or dB, and the gradients of what its function takes."""
        spec = self.spec
        own, other = (spec.term_a, spec.term_b) if hook == A_FN else (spec.term_b, spec.term_a)
        core = "".join(label for label in own if label in other or label in spec.term_d)
        function, storage = spec.functions[hook], spec.storage[hook]
        if function is None:
            part = target if core == own else f"{target} along {core}"
            self.found.append(self._in_kind(self._contracted(hook, part, core, storage), storage))
            if core != own:
                self.found.append(Spread(target, part, core, own, "A" if hook == A_FN else "B", storage))
            return
        if self.fused and core == own and not taken:
            (pulled, *_) = hooks.of_operand(spec, hook, "weft_h", spec.accumulate)
            if pulled is not None:
                step = self._contracted(hook, target, core, storage)
                aux = self._further_inputs(pulled, own, {"weft_a": ("A" if hook == A_FN else "B", own)})
                self.found.append(replace(step, epilogue=pulled, aux=_joined(step.aux, aux)))
            return
        made = f"{target} before its function"
        self.found.append(self._contracted(hook, made, core, spec.accumulate))
        self._pulled(hook, target, made, core, needed, taken)

    def _pulled(self, hook: int, target: str, made: str, core: str, needed: bool, taken: Sequence[str]) -> None:
        """Through the derivative of an operand's function, and on to what it takes, in passes of their own."""
        spec = self.spec
        own = spec.term_a if hook == A_FN else spec.term_b
        storage = spec.storage[hook]
        # The main input has all modes: the operand. A real value has no complex function; then it is the gradient.
        main, left = ("weft_a", "A" if hook == A_FN else "B")
        places: dict[str, tuple[str | None, str]] = {"weft_h": (made, core)}
        kind = storage
        if not storage.is_complex and any(self._type(name).is_complex for name in taken):
            main, left, kind, places = "weft_h", made, spec.accumulate, {"weft_a": (left, own)}
            if core != own:
                raise UnsupportedError(
                    f"complex operands of {hooks.HOOKS[hook]} beside a real tensor with a mode that is summed alone "
                    "have no gradient here: sum that mode before"
                )
        value = value_type(kind, spec.accumulate)
        functions = hooks.of_operand(spec, hook, main, value)
        self._flows(hook, target if needed else None, own, own, functions, left, places, taken)

    def _flows(
        self, hook: int, target: str | None, term: str, along: str, functions: Sequence[RecordedFunction | None],
        left: str, places: dict[str, tuple[str | None, str]], taken: Sequence[str], scale: str | None = None,
    ) -> None:  # fmt: skip
        """Passes over the elements of `left` that make the gradients of a function's value, `target` with the modes
        `term`, and of what it takes; `along` are the modes of the passes."""
        spec = self.spec
        wanted = [] if target is None else [(target, term, spec.storage[hook], functions[0])]
        for name in taken:
            place = 1 + spec.names[hook].index(name)
            wanted.append((self._d(name), spec.modes(name), self._type(name), functions[place]))
        for goal, modes, out, function in wanted:
            if function is not None:
                aux = self._further_inputs(function, along, places)
                step = over_elements(spec, goal, out, left, modes, along)
                self._add(self._in_kind(replace(step, a_fn=function, aux=aux, scale=scale), out))

    def _contracted(self, hook: int, target: str, core: str, out: torch.dtype) -> GradientStep:
        """The sum of G with the other operand's values, conjugated."""
        spec = self.spec
        other = B_FN if hook == A_FN else A_FN
        term, source = (spec.term_b, "B") if hook == A_FN else (spec.term_a, "A")
        function = spec.functions[other]
        is_complex = value_type(spec.storage[other], product_type(spec)).is_complex
        if function is not None and is_complex:
            function = hooks.conjugated(function)
        left, prologue = TOTAL, None
        if not self.stored:
            left, prologue = self._source(self.main), self._function(0, products=True)
        aux = _joined(self._further_inputs(prologue, spec.term_d), _inputs(spec, other))
        return GradientStep(
            target, f"{spec.term_d},{term}->{core}", left, source, out, product_options(spec),
            a_fn=prologue, b_fn=function, aux=aux, scale="alpha",
            conjugate=is_complex and function is None, prologue=prologue is not None,
        )  # fmt: skip

    # -- C and operands ------------------------------------------------------------------------------------------------

    def _addend(self, needed: bool, taken: Sequence[str]) -> None:
        """dC, and the gradients of what `c_fn` takes."""
        spec = self.spec
        term, storage = spec.term_c or "", spec.storage[C]
        if spec.functions[C_FN] is None:
            self.found.append(replace(self._on_elements("dC", 0, term, storage), scale="beta"))
            return
        main, kind, left = self.main, self.kind, self._source(self.main)
        scale: str | None = "beta"
        if spec.accumulate.is_complex:  # its derivative need not be linear in complex factors: beta goes first
            self.found.append(replace(self._on_elements("beta G", 0, spec.term_d, spec.accumulate), scale="beta"))
            main, kind, left, scale = "weft_h", spec.accumulate, "beta G", None
        functions = hooks.of_addend(spec, self.pattern, main, value_type(kind, spec.accumulate), self.known)
        places: dict[str, tuple[str | None, str]] = {"weft_c": ("C", term)}
        self._flows(C_FN, "dC" if needed else None, term, spec.term_d, functions, left, places, taken, scale)

    def _add(self, step: GradientStep) -> None:
        """A step whose result is a part of its target's gradient."""
        before = self.done.get(step.target)
        if before is not None:
            step = replace(step, addend=before)
        self.done[step.target] = step.target
        self.found.append(step)

    def _d(self, name: str) -> str:
        return f"d {operand_source(name)}"

    def _type(self, name: str) -> torch.dtype:
        return self.spec.storage[self.spec.place(name)]


def _are_one(first: RecordedFunction | None, second: RecordedFunction | None) -> bool:
    """Whether two derivatives compute the same, and read inputs of the same names."""
    return first == second and (first is None or second is None or first.inputs == second.inputs)


def operand_source(name: str) -> str:
    return f"operand {name}"


def result_source(at: int) -> str:
    return f"D{at or ''}"


def grad_source(at: int) -> str:
    return f"dD{at or ''}"


def _inputs(spec: Spec, *hooks: int) -> tuple[Input, ...]:
    """The inputs of these of a contraction's functions, besides their values."""
    names = {name for hook in hooks for name in spec.names[hook]}
    given = (*((name, operand_source(name), modes) for name, modes in spec.operands),
             *((name, None, label) for name, label in spec.indices))  # fmt: skip
    return tuple([each for each in given if each[0] in names])


def _joined(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def product_type(spec: Spec) -> torch.dtype:
    """In which backward products are made; fp8 values, which gradients do not fit, as halves, and halves as float32
    where the gradient of D is in float32, whose range is longer, and no function was recorded for halves."""
    product = spec.arithmetic.product
    if product == torch.float16 and spec.results[0] == torch.float32 and not any(spec.functions[:C_FN]):
        return torch.float32
    return torch.float16 if product in FP8 else product


def arithmetic(spec: Spec) -> dict[str, Any]:
    """`precision` and `accumulate` of products like those of the forward pass."""
    precision, accumulate = types_of(spec.arithmetic)
    return {"precision": torch.float16 if precision in FP8 else precision, "accumulate": accumulate}


@lru_cache(maxsize=256)
def with_sums(spec: Spec) -> Spec:
    """The contraction with the sums as one more result, which a forced schedule is not for."""
    epilogue = spec.functions[EPILOGUE]
    assert epilogue is not None
    return replace(
        spec, functions=(*spec.functions[:EPILOGUE], hooks.keeping(epilogue)),
        results=(*spec.results, hooks.kept_type(spec)), several=True, how=replace(spec.how, schedule=None),
    )  # fmt: skip


def product_options(spec: Spec) -> Options:
    """The options of a step that sums products."""
    types = arithmetic(spec)
    if types["precision"] == torch.float16 != product_type(spec):
        types["precision"] = "tf32"  # no fewer digits than a half has
    return spec.asked(promote=False, **types)


def over_elements(
    spec: Spec, target: str, out: torch.dtype, left: str, term: str, along: str | None = None
) -> GradientStep:
    """A step over the elements of D, or of what has the modes `along`, summed to those of `term`."""
    own = spec.term_d if along is None else along
    return GradientStep(target, f"{own},->{term}", left, ONE, out, spec.passing())


def sums_again(spec: Spec) -> GradientStep:
    """The sums, made from A and B (and C) as the forward pass made them."""
    return GradientStep(
        SUMS, spec.text, "A", "B", hooks.kept_type(spec), product_options(spec),
        a_fn=spec.functions[A_FN], b_fn=spec.functions[B_FN], c_fn=spec.functions[C_FN],
        aux=_inputs(spec, A_FN, B_FN, C_FN), scale="forward", addend="C" if spec.term_c is not None else None,
        addend_term=spec.term_c,
    )  # fmt: skip
