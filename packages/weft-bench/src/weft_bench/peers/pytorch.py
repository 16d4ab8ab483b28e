"""PyTorch as a peer: `torch.einsum`, the same compiled, and permute-multiply-permute around one matrix product.

All of them deliver D written in the asked order; `torch.einsum` alone would often return a permuted view. They write to
memory that torch allocates in the call, often the same from call to call: small results may stay in the cache, which
weft and cuTENSOR are not granted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import float32_products
from weft.spec.dtypes import FP8
from weft.spec.notation import Label
from weft_bench.cases import FUNCTIONS, Case
from weft_bench.peers.registry import Call, Prepared, Tensors, Way, first_line
from weft_bench.peers.views import einsum_text, view
from weft_bench.records import PEAK

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def working_type(case: Case) -> torch.dtype:
    """The type in which torch multiplies: what a and b promote to, unless the case names another.

    Whole numbers are widened to D's type first, as torch would let their sums wrap around; so is fp8, in which torch
    has no arithmetic.
    """
    a, b, d = case.dtypes
    if a in FP8:
        return d
    if case.accumulate is not None:
        return case.accumulate
    if isinstance(case.precision, torch.dtype):
        return case.precision
    common = torch.promote_types(a, b)
    return common if common.is_floating_point or common.is_complex else d


def composed(case: Case, product: Product, *, cast: bool = True) -> Call:
    """`product` with all that a case puts around it, each step a torch operation of its own.

    Without `cast` the result keeps the type that torch computes in.
    """
    work = working_type(case)
    out_dtype = case.dtypes[2] if cast else work
    a_fn, b_fn, c_fn, epilogue = (
        FUNCTIONS[name] if name else None for name in (case.a_fn, case.b_fn, case.c_fn, case.epilogue)
    )
    contiguous = case.layouts[3] == "contiguous"

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor) -> torch.Tensor:
        x, y = a.to(work), b.to(work)
        value = product(a_fn(x) if a_fn else x, b_fn(y) if b_fn else y)
        if case.alpha != 1:
            value = value * case.alpha
        if c is not None and case.c_as == "scale":
            value = value * c.to(value.dtype)
        elif c is not None and case.beta != 0:
            addend = c_fn(c) if c_fn else c
            value = value + (addend if case.beta == 1 else case.beta * addend)
        if epilogue:
            value = epilogue(value)
        value = value.to(out_dtype)
        return value.contiguous() if contiguous else d.copy_(value)

    return run


class _TorchPeer:
    """Common base of peers made of torch operations."""

    name: str

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        if case.algebra != "plus_times":
            return f"products and sums alone, not {case.algebra}"
        try:
            run = self.way(case, tensors)
            run(*tensors)  # torch says what it lacks when it is called, not before
        except (RuntimeError, TypeError, ValueError, UnsupportedError) as error:
            return first_line(error)
        stored = working_type(case)
        note = f"sums rounded to {str(stored).removeprefix('torch.')} first" if stored != case.dtypes[2] else ""
        if case.precision == "tf32x3":
            note = "in IEEE float32: torch has no products of three TF32 pieces"
        return Prepared([Way("", run)], stored=stored, note=note)

    def way(self, case: Case, tensors: Tensors) -> Call:
        raise NotImplementedError

    def settings(self, case: Case) -> AbstractContextManager[Any]:
        return exact_products(tf32=case.precision == "tf32")


class Einsum(_TorchPeer):
    """`torch.einsum`, made contiguous in D's order, functions as operations of their own.

    Without `cast` D is left in the type that torch computes in: a cast to the asked one would be a pass over memory.
    """

    name = "torch"

    def __init__(self, *, cast: bool = True) -> None:
        self._cast = cast

    def way(self, case: Case, tensors: Tensors) -> Call:
        text = einsum_text(case)
        return composed(case, lambda x, y: torch.einsum(text, x, y), cast=self._cast)


class MatrixProduct(_TorchPeer):
    """`torch.mm` or `torch.bmm` on the operands as they lie: cuBLAS on a GPU, torch's BLAS on a CPU."""

    name = "cublas"

    def way(self, case: Case, tensors: Tensors) -> Call:
        if any((case.a_fn, case.b_fn, case.c_fn, case.epilogue, case.add, case.alpha != 1, any(case.conjugate))):
            raise UnsupportedError("more than a matrix product")
        if case.dtypes[0] in FP8:
            raise UnsupportedError("torch.mm takes no fp8")
        term_a, term_b = case.notation.inputs
        output = case.notation.output
        swapped = len(output) > 1 and output[-2] not in term_a  # D's rows are B's
        order_a, order_b = _matrix_dims(*((term_b, term_a) if swapped else (term_a, term_b)), output)
        kept = len(set(case.dtypes)) == 1
        product: Callable[..., torch.Tensor] = torch.mm if len(order_a) == 2 else torch.bmm
        out_dtype = case.dtypes[2]

        def run(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor | None, z: torch.Tensor) -> torch.Tensor:
            x, y = (y, x) if swapped else (x, y)
            left, right = x.permute(order_a), y.permute(order_b)
            if kept:
                return product(left, right, out=z)
            if left.dtype is torch.int8:
                return torch._int_mm(left, right, out=z)
            return product(left, right, out_dtype=out_dtype, out=z)

        return run


def _matrix_dims(a: Sequence[Label], b: Sequence[Label], d: Sequence[Label]) -> tuple[list[int], list[int]]:
    """Orders of dimensions in which A is (..., m, k) and B (..., k, n), where D is (..., m, n) with modes of one each.

    `UnsupportedError` where that is not so.
    """
    inner = [label for label in a if label in b and label not in d]
    if len(d) not in (2, 3) or len(inner) != 1 or len(a) != len(d) or len(b) != len(d):
        raise UnsupportedError("not a matrix product as it lies")
    *batch, m, n = d
    wanted_a, wanted_b = [*batch, m, *inner], [*batch, *inner, n]
    if set(a) != set(wanted_a) or set(b) != set(wanted_b):
        raise UnsupportedError("not a matrix product as it lies")
    return [list(a).index(label) for label in wanted_a], [list(b).index(label) for label in wanted_b]


class CompiledEinsum(_TorchPeer):
    """`torch.einsum` through `torch.compile`, with the shapes known to it. `backend` is one of torch's compilers."""

    name = "compile"

    def __init__(self, backend: str = "inductor") -> None:
        self._backend = backend

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        return super().prepare(case, tensors) if case.algebra == "plus_times" else self._broadcast(case, tensors)

    def _broadcast(self, case: Case, tensors: Tensors) -> Prepared | str:
        """Another algebra: all pairs broadcast and reduced, which the compiler makes one kernel that stores no pair."""
        hooks = (case.a_fn, case.b_fn, case.c_fn, case.epilogue, case.add)
        twice = any(len(set(term)) < len(term) for term in case.notation.inputs)
        if any(hooks) or twice or case.algebra not in BROADCAST:
            return f"no broadcast of {case.algebra} with all that this case has"
        ways = []
        refused = {}
        torch.compiler.reset()
        for label, inner_last in (("k last", True), ("k before n", False)):
            whole = composed(case, broadcast(case, inner_last=inner_last))
            run: Call = torch.compile(whole, fullgraph=True, dynamic=False, backend=self._backend)
            try:
                run(*tensors)
            except RuntimeError as error:
                refused[label] = first_line(error)
            else:
                ways.append(Way(label, run))
        return Prepared(ways, refused) if ways else "; ".join(refused.values())

    def way(self, case: Case, tensors: Tensors) -> Call:
        text = einsum_text(case)
        torch.compiler.reset()  # or the compiler gives up after so many shapes of one function
        whole = composed(case, lambda x, y: torch.einsum(text, x, y))
        run: Call = torch.compile(whole, fullgraph=True, dynamic=False, backend=self._backend)
        return run


class Ttgt(_TorchPeer):
    """Transpose, transpose, matrix product, transpose: operands permuted to matrices, the product to D's order."""

    name = "ttgt"

    def way(self, case: Case, tensors: Tensors) -> Call:
        return composed(case, matrix_form(case, tensors))


#: Algebras that torch has a reduction for: how pairs are made, and how they are reduced along a dimension.
BROADCAST: dict[str, tuple[Product, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]]] = {
    "max_plus": (torch.add, torch.amax),
    "min_plus": (torch.add, torch.amin),
    "log": (torch.add, torch.logsumexp),
    "log_direct": (torch.add, torch.logsumexp),
}


def broadcast(case: Case, *, inner_last: bool) -> Product:
    """The case in another algebra: all pairs of elements, reduced along D's missing modes, which come last or before
    D's last mode. No label may stand twice in an operand.
    """
    combine, reduce = BROADCAST[case.algebra]
    output = case.notation.output
    missing = [label for label in case.extents if label not in output]
    at = len(output) if inner_last else len(output) - 1
    labels = [*output[:at], *missing, *output[at:]]
    dims = tuple(range(at, at + len(missing)))
    orders = [[term.index(label) for label in labels if label in term] for term in case.notation.inputs]
    spread = [tuple(slice(None) if label in term else None for label in labels) for term in case.notation.inputs]

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left, right = x.permute(orders[0])[spread[0]], y.permute(orders[1])[spread[1]]
        return reduce(combine(left, right), dims)

    return product


def matrix_form(case: Case, tensors: Tensors) -> Product:
    """The contraction as one (batched) matrix product of permuted operands.

    A mode that stands in one operand alone and not in D is summed there first. `UnsupportedError` when no mode is left
    to multiply as a matrix.
    """
    notation = case.notation
    extents = case.extents
    a, b = (view(term, x) for term, x in zip(notation.inputs, tensors[:2], strict=True))
    output = [label for label in notation.output if extents[label] != 1]
    batch = [label for label in output if label in a.labels and label in b.labels]  # in A, B and D
    rows = [label for label in output if label in a.labels and label not in b.labels]  # in A and D
    columns = [label for label in output if label in b.labels and label not in a.labels]  # in B and D
    inner = [label for label in a.labels if label in b.labels and label not in output]  # in A and B
    if not (rows or columns or inner):
        raise UnsupportedError("every mode is a batch mode: there is no matrix product in it")
    shape = case.d_shape
    order = [(*batch, *rows, *columns).index(label) for label in output]

    def matrices(x: torch.Tensor, labels: tuple[Any, ...], *groups: list[Any]) -> torch.Tensor:
        wanted = [label for group in groups for label in group]
        alone = [at for at, label in enumerate(labels) if label not in wanted]
        x = x.sum(alone, dtype=x.dtype) if alone else x
        left = [label for label in labels if label in wanted]
        x = x.permute([left.index(label) for label in wanted])
        sizes = [math.prod(extents[label] for label in group) for group in groups]
        return x.reshape(sizes if batch else sizes[1:])

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left = matrices(view(notation.inputs[0], x).of(x), a.labels, batch, rows, inner)
        right = matrices(view(notation.inputs[1], y).of(y), b.labels, batch, inner, columns)
        result = torch.matmul(left, right).reshape([extents[label] for label in (*batch, *rows, *columns)])
        return result.permute(order).reshape(shape)

    return product


@contextmanager
def exact_products(*, tf32: bool) -> Iterator[None]:
    """Make torch's products on the GPU as exact as a case asks: no sums in half precision, TF32 only where asked for.

    Both are switches of the process, which are put back.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        with float32_products(tf32=tf32):
            yield
    finally:
        matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = before


def peak_bytes(run: Call, tensors: Sequence[torch.Tensor | None]) -> dict[str, int]:
    """`PEAK`, the bytes that a second call of `run` takes at most beyond `tensors`; nothing on a CPU."""
    run(*tensors)
    if not any(each is not None and each.is_cuda for each in tensors):
        return {}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(*tensors)
    return {PEAK: torch.cuda.max_memory_allocated() - before}
