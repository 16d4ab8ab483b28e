"""A part of a contraction, all of it where it is small enough: built from what is described, run on tensors.

A, B -> sums        `weft.library.sums`, in D if they can be
     -> D           C, functions: in one pass (`weft.library.passes`), or by torch's operations
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.base.caches import cached_property
from weft.cpu.host import HUGE, advise, reach
from weft.fn.pointwise import RecordedFunction
from weft.library.algebras import Counts, Exponentials, Tables, joining
from weft.library.factors import OperandFactor
from weft.library.functions import FunctionOperands, Written, live_bytes, writing
from weft.library.products import wrapped
from weft.library.scheme import LibraryScheme, fuses
from weft.library.sums import Matrices, Nothing, Pairs, SplitMatrices
from weft.library.views import FIRST, C, D, Frame, Group
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar, Target
from weft.spec import Contraction, Layout

if TYPE_CHECKING:
    from weft.library.passes import FunctionPass


class LibraryPart:
    """Runs on new pointers. Between calls it keeps nothing but whether one pass does what follows on the sums.

    `sums` are those alone, of what is a part along k as well; `in_place`: they are stored where D is.
    """

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        self.scheme, self.frame, self.sums = scheme, frame, sums_of(scheme, frame)
        self.adds, self.clamps = self.sums.adds, self.sums.clamps  # C and negative values, in the product
        if scheme.rounds_sums and not self.adds:
            scheme = scheme.wide()
            self.sums = sums_of(scheme, frame)
        self._part = scheme, frame, self.sums.kept
        self._elements: FunctionPass | None = None  # of products without a sum
        self._fused: FunctionPass | None = None
        self._reason: str | None = None  # why there is no pass
        self._finish = PartFinish(*self._part)
        alone = contraction.c is None and not contraction.outputs
        # Sums may be stored in D until the epilogue has passed over them, where nobody else reads what D holds.
        self.in_place = self.sums.places and (alone or not scheme.follows)
        self._follows = scheme.follows
        self._with_c, self._direct = contraction.c is not None, None if scheme.follows else self.sums.direct
        self._huge = reach(contraction.d) if scheme.kind == "cpu" else 0  # a new D's first pages take longer than sums
        self._returns = not scheme.follows and self.sums.returns and self._huge < HUGE
        #: Bytes of sums in memory of their own, and of all that a run allocates.
        self.total_bytes = frame.size(self.sums.kept) * scheme.types.result.itemsize
        held = 0 if self.in_place and (contraction.c is None or self.adds) else self.total_bytes
        self.workspace_bytes = self.sums.bytes + held + (0 if self.adds else self._finish.bytes)

    def prepare(self, target: Target, *, apart: bool = False) -> None:
        """Have functions, and copies along many modes, done in one pass each, where a device can; `apart`: sums are
        made by `made` alone. `ResourceError` where nothing multiplies terms of matrices that lie so."""
        contraction, in_place = self.scheme.contraction, self.in_place and self.scheme.contraction.c is None
        if isinstance(self.sums, SplitMatrices):
            self.sums.prepare_terms(target, in_place=in_place)
        if not fuses(target):
            return
        functions = contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue
        scattered = self._finish.is_scattered
        if isinstance(self.sums, Pairs) and not apart and (any(functions) or contraction.c is not None or scattered):
            from weft.library.passes import elements_pass  # it brings all of CUDA C++

            made = elements_pass(*self._part, target)
            if not isinstance(made, str):
                self._elements = made
                return
        for operand in () if apart else self.sums.packed:
            operand.prepare(target)
        adds = contraction.c is not None and not self.adds
        if contraction.epilogue is not None or adds or (scattered and not self.in_place):
            from weft.library.passes import finish_pass

            made = finish_pass(*self._part, in_place and not apart, target)
            self._fused, self._reason = (None, made) if isinstance(made, str) else (made, None)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """Launches that multiply terms."""
        return self.sums.kernels

    @property
    def state(self) -> str | None:
        """A sentence on what computes functions; None where there is nothing to choose."""
        found = [*self.sums.states, *(each.state for each in (self._elements, self._fused) if each is not None)]
        return "; ".join(dict.fromkeys([*found, *([self._reason] if self._reason is not None else [])])) or None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._huge >= HUGE:
            advise(d, self._huge)
        direct = self._direct
        if direct is not None and alpha == 1 and (c is not None) is self._with_c and (c is None or beta == 1):
            direct(a, b, c, d)
            return
        sums, elements = self.sums, self._elements
        if elements is not None and elements.serves(c, beta):
            elements([a, b], c, d, (alpha, beta), aux)
            return
        if c is not None and beta != 0:
            if self.adds and alpha != 0 and isinstance(sums, Matrices):
                sums(a, b, d, alpha, aux, c, beta)
                return
        elif self.in_place:
            sums(a, b, d, alpha, aux)
            if self._follows and not sums.has_epilogue:
                self._follow(d, aux)
            return
        self.finish(sums(a, b, None, alpha, aux), c, d, beta, aux)

    def bound(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> Callable[[], Any]:
        """The run on these tensors."""
        if self._direct is not None and alpha == 1 and c is None and not self._with_c:
            return partial(self._direct, a, b, None, d)
        return partial(self, a, b, c, d, alpha, beta, aux)

    def maker(self, new: NewTensor, addend: int | None = None) -> Make | None:
        """The call of torch that returns D, and one pass behind it where that computes the epilogue.

        None where more is done. `addend`: which auxiliary operand is C.
        """
        direct = self._direct
        if direct is None or not self._returns:
            return self._passed(new) if addend is None else None
        call, aux = self.sums.call, self.scheme.contraction.aux
        if call is not None and len(aux) == (0 if addend is None else 1):
            return call
        return lambda a, b, *aux: direct(a, b, None if addend is None else aux[addend], None)

    def _passed(self, new: NewTensor) -> Make | None:
        """The product, in D where it may stand there, and the pass behind it."""
        fused, sums = self._fused, self.sums
        lone = not self._with_c and not self.scheme.contraction.outputs and self.scheme.roles.repeat == 1
        if fused is None or not lone or not isinstance(sums, Matrices):
            return None
        in_place, (shape, strides, dtype, device) = self.in_place, new
        product = sums.direct if in_place and sums.returns else None if in_place else sums.unplaced
        if product is None:
            return None
        ready = False

        def make(a: Tensor, b: Tensor, *aux: Tensor | None) -> Tensor:
            nonlocal ready
            ready = ready or fused.serves(None, 1)
            if ready and in_place:
                d = product(a, b, None, None)
                fused.follow(d, d, aux)
                return d
            d = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            if ready:
                fused.follow(product(a, b, None, None), d, aux)
            else:
                self(a, b, None, d, 1, 1, aux)
            return d

        return make

    def finish(self, total: Tensor, c: Tensor | None, d: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        fused = self._fused
        if fused is not None and total.is_contiguous() and fused.serves(c, beta):
            fused([total], c, d, (beta,), aux)
        else:
            self._finish(total, c, self._finish.place(d), beta, aux)

    def _follow(self, d: Tensor, aux: AuxTensors) -> None:
        """The epilogue of sums that stand in D."""
        fused = self._fused
        if fused is not None and fused.serves(None, 1):
            fused([d], None, d, (1,), aux)
        else:
            total = self._finish.place(d)
            self._finish(total, None, total, 1, aux)


def sums_of(scheme: LibraryScheme, frame: Frame) -> Nothing | Pairs | Matrices | Tables:
    """The sums of a part in the form of its scheme."""
    if scheme.empty:
        return Nothing(scheme, frame)
    if scheme.form == "product":
        return SplitMatrices(scheme, frame) if scheme.types.way == "split" else Matrices(scheme, frame)
    kinds: dict[str, type[Pairs] | type[Tables]]
    kinds = {"pairs": Pairs, "algebra": Tables, "counts": Counts, "exponentials": Exponentials}
    return kinds[scheme.form](scheme, frame)


class PartFinish:
    """sums + beta * c_fn(C), the epilogue, and what is written to D and to the places of further results."""

    def __init__(self, scheme: LibraryScheme, frame: Frame, kept: Group) -> None:
        contraction = self._contraction = scheme.contraction
        self._d = frame.view(kept, D).in_layout(contraction.d)
        self._c = OperandFactor(scheme, C, frame, kept, False) if contraction.c is not None else None
        self._repeat = scheme.roles.repeat if contraction.algebra is None else 1
        self._join = joining(contraction.algebra, scheme.accumulate) if contraction.algebra is not None else None
        self._arguments = FunctionOperands(contraction, contraction.epilogue_args, kept, frame)
        self._outputs = [(at, frame.view(kept, FIRST + at)) for at in contraction.outputs]
        self.bytes = frame.size(kept) * _bytes_of_each(contraction)

    @property
    def is_scattered(self) -> bool:
        """Whether sums are copied to D along many modes."""
        from weft.gpu.pointwise.source import is_scattered  # a CPU does without

        return is_scattered(*self._d[:2], self._dense)

    @property
    def _dense(self) -> tuple[int, ...]:
        """The strides of D, were it contiguous."""
        return Layout.contiguous(self._d.shape, self._contraction.d.dtype).strides

    @cached_property
    def _epilogue(self) -> Written | None:
        """The last function, from sums to the places of the results."""
        contraction = self._contraction
        if (function := contraction.epilogue) is None:
            return None
        assert isinstance(function, RecordedFunction), "others are refused"
        dtypes = (contraction.d.dtype, *(contraction.aux[at].dtype for at in contraction.outputs))
        return writing(function, dtypes, self._d.strides == self._dense)

    def place(self, d: Tensor) -> Tensor:
        """D with a dimension for each mode of the sums."""
        return self._d.of(d)

    def __call__(self, total: Tensor, c: Tensor | None, place: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        """`total` may be written; it may be `place` itself where there are no further results."""
        if self._repeat != 1:
            total *= self._repeat
        if c is not None and beta != 0 and self._c is not None:
            values, join = self._c.of(c, aux), self._join
            total = join(total, values) if join else total.add_(values, alpha=wrapped(beta, total.dtype))
        if (epilogue := self._epilogue) is not None:
            others: list[Any] = [view.of(aux[at]) for at, view in self._outputs]  # type: ignore[arg-type]
            with torch._C._DisableAutocast():
                epilogue(place, *others, total, *self._arguments.of(aux, total.device))
        elif place is not total:
            place.copy_(total)


def _bytes_of_each(contraction: Contraction) -> int:
    """Bytes of values on their way from sums to D, for each element."""
    item = contraction.arithmetic.accumulate.itemsize
    epilogue = live_bytes(contraction.epilogue) if contraction.epilogue is not None else 0
    if contraction.c is None:
        return epilogue
    of_c = item * (contraction.c.dtype != contraction.arithmetic.accumulate)
    if contraction.c_fn is not None:
        of_c += live_bytes(contraction.c_fn) + item
    return max(epilogue, of_c + (2 * item if contraction.algebra is not None else 0))
