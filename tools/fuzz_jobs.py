"""The jobs that `fuzz_gpu.py` draws: a call of weft on poisoned memory, compared with float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import gelu

import weft
from weft.testing import Guarded, poisoned, random_operand

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, WIDE = torch.complex64, torch.complex128
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 257)
LAYOUTS = ("contiguous", "contiguous", "permuted", "padded", "strided", "offset")
READ = (*LAYOUTS, "expanded")

EQUATIONS = (
    "mk,kn->mn", "km,kn->mn", "mk,nk->nm", "bmk,bkn->bmn", "mkb,bkn->nbm", "mak,kna->mn", "amk,kn->nam", "m,n->mn",
    "mk,k->m", "mki,kn->mn", "kmk,kn->mn", "abk,kcd->dacb", "aibj,jci->bca", "bmi,bnj->bmn", "k,k->", "bk,bk->b",
)  # fmt: skip
TYPES: tuple[tuple[torch.dtype, dict[str, Any]], ...] = (
    (SINGLE, {}), (HALF, {}), (BRAIN, {"out_dtype": SINGLE}), (DOUBLE, {}), (COMPLEX, {}),
    (HALF, {"out_dtype": SINGLE}), (SINGLE, {"precision": "tf32"}), (SINGLE, {"precision": "tf32x3"}),
    (SINGLE, {"precision": "ieee_bound"}), (COMPLEX, {"precision": "ieee_bound"}),
    (torch.int8, {"out_dtype": torch.int32}),
    (torch.int32, {}), (WIDE, {}), (torch.float8_e4m3fn, {"out_dtype": SINGLE}),
)  # fmt: skip


def _halved(v: Any) -> Any:
    return 0.5 * v + 1


def _biased(v: Any, bias: Any) -> Any:
    return torch.relu(v + bias)


def _squared(v: Any) -> Any:
    return v * v


FUNCTIONS: tuple[tuple[dict[str, Any], bool], ...] = (  # of real numbers alone, the second says
    ({}, False), ({}, False), ({"epilogue": torch.relu}, True), ({"epilogue": _halved}, False),
    ({"epilogue": gelu}, True), ({"epilogue": torch.tanh}, True), ({"epilogue": _biased}, True),
    ({"a_fn": torch.abs}, True), ({"b_fn": torch.neg}, False), ({"a_fn": _squared, "epilogue": torch.relu}, True),
)  # fmt: skip
NETWORKS = ("ij,jk,kl->il", "ab,bc,cd,de->ae", "abc,bd,ce->ade", "ij,jk,ki->", "aij,bjk,cki->abc", "ab,ac,ad->bcd")
MOVES = ("ab->ba", "abc->cab", "abc->bac", "abcd->dbca", "abc->cba", "abcd->acbd", "aab->ba", "abcde->ecadb")
ALGEBRAS = ("max_plus", "min_plus", "log", "min_max")


@dataclass
class Job:
    """A call: `run` writes results that `reset` has poisoned, `check` says how far off they are, in bounds, and what
    is wrong; `renew` gives the operands other values."""

    text: str
    run: Callable[[], None]
    reset: Callable[[], None]
    check: Callable[[], tuple[float, str | None]]
    renew: Callable[[], None]
    repeats: bool = True  # running twice gives the same
    before_capture: bool = False  # it has to run once before


Exact = Callable[[], tuple[torch.Tensor, torch.Tensor]]  # values and their bounds


class Draw:
    """Calls of one worker: its own structures, and shapes and layouts of all kinds."""

    def __init__(self, rng: random.Random, number: int, count: int, seed: int, device: str, work: int) -> None:
        self.rng, self.device, self.work = rng, device, work
        every = [(equation, types, function) for equation in EQUATIONS for types in TYPES for function in FUNCTIONS]
        random.Random(seed).shuffle(every)
        self.structures = every[number::count][:14]
        fixed = random.Random(seed * 77 + number)
        self.fixed = [(structure, fixed.randrange(1 << 30)) for structure in every[number::count][14:22]]
        self.backend = {"backend": "triton"} if device == "cuda" else {}

    def job(self, kind: str) -> Job:
        """One of a kind of `fuzz_gpu.WEIGHTS`."""
        if kind in ("library", "auto"):
            words = {"specialize": "never" if kind == "library" else "auto"}
            return self.contraction(self.rng.choice(self.structures), self.rng, words)
        if kind == "specialised":
            structure, seed = self.rng.choice(self.fixed)
            return self.contraction(structure, random.Random(seed), {"specialize": "now"})
        makers = {
            "algebra": self.algebra, "permutation": self.permutation, "in place": self.in_place, "group": self.group,
            "network": self.network, "chain": self.chain,
        }  # fmt: skip
        return makers[kind]()

    def extents(self, labels: str, rng: random.Random, work: int | None = None) -> dict[str, int]:
        found = {label: rng.choice(EXTENTS) for label in sorted(set(labels) - set(",->"))}
        while math.prod(found.values()) > (work or self.work):
            largest = max(found, key=lambda label: found[label])
            found[largest] = max(1, found[largest] // 2 + rng.randrange(2) - 1)
        return found

    def operand(self, term: str, extents: dict[str, int], dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
        shape = tuple(extents[label] for label in term)
        return random_operand(shape, dtype, self.seed(), layout=rng.choice(READ), device=self.device)

    def place(self, term: str, extents: dict[str, int], dtype: torch.dtype, rng: random.Random) -> Guarded:
        shape = tuple(extents[label] for label in term)
        return poisoned(shape, dtype, layout=rng.choice(LAYOUTS), device=self.device)

    def seed(self) -> int:
        return self.rng.randrange(1 << 40)

    def contraction(self, structure: Any, rng: random.Random, words: dict[str, Any]) -> Job:
        """`rng` draws what a plan depends on, the worker's own the values."""
        equation, (dtype, types), (functions, real) = structure
        if (real and dtype.is_complex) or not (dtype.is_floating_point or dtype.is_complex):
            functions = {}
        terms, extents = equation.replace("->", ",").split(","), self.extents(equation, rng)
        a, b = (self.operand(term, extents, dtype, rng) for term in terms[:2])
        out = types.get("out_dtype", dtype)
        place = self.place(terms[2], extents, out, rng)
        options = {**types, **functions, **words, **self.backend}
        whole = not (out.is_floating_point or out.is_complex)
        if rng.random() < 0.3 and not functions:
            options |= {"c": self.operand(terms[2], extents, out, rng), "beta": 2 if whole else rng.choice([1.0, -0.5])}
            options["alpha"] = 3 if whole else rng.choice([1.0, 0.25, 1 - 2j] if dtype.is_complex else [1.0, 0.25])
        bias = None
        if functions.get("epilogue") is _biased and terms[2]:
            bias = self.operand(terms[2][-1], extents, out, rng)
            options["operands"] = {"bias": (terms[2][-1], bias)}
        elif functions.get("epilogue") is _biased:
            options.pop("epilogue")
        way, plan = rng.choice(("contract", "plan", "a new D")), None

        def run() -> None:
            nonlocal plan
            if way == "contract":
                weft.contract(equation, a, b, out=place.tensor, **options)
                return
            if way == "a new D":
                place.tensor.copy_(weft.contract(equation, a, b, **options))
                return
            given = {name: options[name] for name in ("c", "alpha", "beta") if name in options}
            if plan is None:
                made = {name: value for name, value in options.items() if name not in ("alpha", "beta")}
                plan = weft.plan(equation, a, b, out=place.tensor, **made)
            beside = {"operands": options["operands"]} if "operands" in options else {}
            plan(a, b, out=place.tensor, **given, **beside)

        def exact() -> tuple[torch.Tensor, torch.Tensor]:
            return expected(equation, (a, b), options, bias, out)

        inputs = [x for x in (a, b, options.get("c"), bias) if x is not None]
        text = f"{equation} {extents} {dtype} {_told(options)} {way} {_lie(*inputs)}"
        return self.checked(f"{text} -> {place.tensor.stride()}", run, [(place, exact)], inputs)

    def algebra(self) -> Job:
        rng = self.rng
        name, dtype = rng.choice(ALGEBRAS), rng.choice([SINGLE, SINGLE, DOUBLE])
        extents = self.extents("mnk", rng, min(self.work, 1 << 21))
        a, b = self.operand("mk", extents, dtype, rng), self.operand("kn", extents, dtype, rng)
        place = self.place("mn", extents, dtype, rng)
        words = {"algebra": name, "specialize": "never", **self.backend}

        def exact() -> tuple[torch.Tensor, torch.Tensor]:
            x, y = a.double()[:, :, None], b.double()[None]
            pairs = torch.maximum(x, y) if name == "min_max" else x + y
            value = pairs.logsumexp(1) if name == "log" else pairs.amax(1) if name.startswith("max") else pairs.amin(1)
            steps = 4 + (extents["k"] + 12 if name == "log" else 0)
            return value, steps * torch.finfo(dtype).eps * (1 + value.abs() + pairs.abs().amax(1))

        text = f"{name} mk,kn->mn {extents} {dtype} {_lie(a, b)} -> {place.tensor.stride()}"
        run = lambda: weft.contract("mk,kn->mn", a, b, out=place.tensor, **words)  # noqa: E731
        return self.checked(text, run, [(place, exact)], [a, b])

    def permutation(self) -> Job:
        rng = self.rng
        equation, dtype = rng.choice(MOVES), rng.choice([HALF, SINGLE, DOUBLE, COMPLEX, torch.int8, torch.int64, WIDE])
        source, target = equation.split("->")
        extents = self.extents(equation, rng)
        x, place = self.operand(source, extents, dtype, rng), self.place(target, extents, dtype, rng)
        words: dict[str, Any] = {"specialize": rng.choice(["never", "never", "never", "auto"]), **self.backend}
        if dtype in (HALF, SINGLE, DOUBLE) and rng.random() < 0.3:
            words["fn"] = torch.relu
        if dtype in (SINGLE, DOUBLE, COMPLEX) and rng.random() < 0.3:
            words["alpha"] = -2.0

        def exact() -> tuple[torch.Tensor, torch.Tensor]:
            value = torch.einsum(equation, _wide(x))
            value = (torch.relu(value) if "fn" in words else value) * words.get("alpha", 1)
            return value, torch.zeros(value.shape, device=self.device)

        text = f"permute {equation} {extents} {dtype} {_told(words)} {_lie(x)} -> {place.tensor.stride()}"
        return self.checked(text, lambda: weft.permute(x, equation, out=place.tensor, **words), [(place, exact)], [x])

    def in_place(self) -> Job:
        rng = self.rng
        extents = self.extents("mn", rng, min(self.work, 1 << 16))
        square = rng.random() < 0.5
        m, n = extents["m"], extents["m"] if square else extents["n"]
        dtype = rng.choice([HALF, SINGLE, DOUBLE, COMPLEX])
        place = poisoned((m, n), dtype, device=self.device)
        before = random_operand((m, n), dtype, self.seed(), device=self.device)
        place.tensor.copy_(before)

        def reset() -> None:
            place.tensor.copy_(before)

        def check() -> tuple[float, str | None]:
            return _compared(before.T.contiguous().view(m, n), torch.zeros(m, n, device=self.device), place)

        run = lambda: weft.transpose_(place.tensor, (0, 1), **self.backend)  # noqa: E731
        return Job(f"transpose_ {m}x{n} {dtype}", run, reset, check, lambda: None, repeats=False, before_capture=True)

    def group(self) -> Job:
        rng = self.rng
        dtype = rng.choice([HALF, SINGLE, SINGLE, DOUBLE] if self.device == "cuda" else [SINGLE, DOUBLE])
        words = {"epilogue": torch.relu} if rng.random() < 0.3 else {}
        pairs, places = [], []
        for _ in range(rng.randint(1, 7)):
            extents = self.extents("mnk", rng, min(self.work, 1 << 18))
            pairs.append((self.operand("mk", extents, dtype, rng), self.operand("kn", extents, dtype, rng)))
            places.append(self.place("mn", extents, dtype, rng))
        outs = [place.tensor for place in places]

        def exact(at: int) -> Exact:
            return lambda: expected("mk,kn->mn", pairs[at], words, None, dtype)

        text = f"grouped {[(*a.shape, b.shape[1]) for a, b in pairs]} {dtype} {_told(words)}"
        run = lambda: weft.grouped("mk,kn->mn", pairs, out=outs, **words, **self.backend)  # noqa: E731
        wanted = [(place, exact(at)) for at, place in enumerate(places)]
        return self.checked(text, run, wanted, [x for pair in pairs for x in pair])

    def network(self) -> Job:
        rng = self.rng
        equation, dtype = rng.choice(NETWORKS), rng.choice([SINGLE, SINGLE, DOUBLE, COMPLEX])
        *terms, result = equation.replace("->", ",").split(",")
        labels = sorted(set(equation) - set(",->"))
        extents = {label: rng.choice([1, 2, 3, 5, 8, 13, 16]) for label in labels}
        given = [self.operand(term, extents, dtype, rng) for term in terms]
        place = self.place(result, extents, dtype, rng)
        known = weft.network(equation, *given) if rng.random() < 0.5 else None

        def run() -> None:
            if known is not None:
                known(*given, out=place.tensor)
            else:
                weft.einsum(equation, *given, out=place.tensor, **self.backend)

        text = f"{'network' if known is not None else 'einsum'} {equation} {extents} {dtype} {_lie(*given)}"
        exact = lambda: expected(equation, given, {}, None, dtype)  # noqa: E731
        return self.checked(text, run, [(place, exact)], given)

    def chain(self) -> Job:
        rng = self.rng
        extents = {label: rng.choice([1, 2, 3, 8, 16, 17, 32]) for label in "pqbcr"}
        given = [self.operand(term, extents, SINGLE, rng) for term in ("pq", "bqc", "cr")]
        place = self.place("bpr", extents, SINGLE, rng)
        equation = "pq,bqc,cr->bpr"
        run = lambda: weft.chain(equation, *given, out=place.tensor, **self.backend)  # noqa: E731
        exact = lambda: expected(equation, given, {}, None, SINGLE)  # noqa: E731
        return self.checked(f"chain {extents} {_lie(*given)}", run, [(place, exact)], given)

    def checked(
        self, text: str, run: Callable[[], Any], wanted: list[tuple[Guarded, Exact]], inputs: list[torch.Tensor]
    ) -> Job:
        def reset() -> None:
            for place, _ in wanted:
                place.memory.fill_(place.poison)

        def renew() -> None:
            for x in inputs:
                if 0 not in x.stride():
                    x.copy_(random_operand(tuple(x.shape), x.dtype, self.seed(), device=self.device))

        def check() -> tuple[float, str | None]:
            found = [_compared(*exact(), place) for place, exact in wanted]
            return max(error for error, _ in found), next((what for _, what in found if what is not None), None)

        return Job(text, run, reset, check, renew)


def expected(
    equation: str, tensors: Any, options: dict[str, Any], bias: torch.Tensor | None, out: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, and how far it may be off."""
    functions = [options.get("a_fn"), options.get("b_fn")]
    seen = [_wide(x) for x in tensors]
    seen = [fn(x) if fn is not None else x for x, fn in zip(seen, (functions + [None] * 9)[: len(seen)], strict=True)]
    value, size = torch.einsum(equation, *seen), torch.einsum(equation, *(x.abs() for x in seen))
    terms, result = equation.split("->")
    summed = set(terms) - set(result) - {","}
    extents = {label: x.shape[at] for term, x in zip(terms.split(","), tensors, strict=True)
               for at, label in enumerate(term)}  # fmt: skip
    length = math.prod(extents[label] for label in summed)
    alpha, beta, c = options.get("alpha", 1), options.get("beta", 0), options.get("c")
    value, size = alpha * value, abs(alpha) * size
    if c is not None:
        value, size = value + beta * _wide(c), size + abs(beta) * _wide(c).abs()
    bound = (2 * length + 16) * _unit(tensors[0].dtype) * size * (3 if value.is_complex() else 1)
    bound = bound + {"tf32": 2.0**-9, "tf32x3": 2.0**-19}.get(str(options.get("precision")), 0.0) * size
    if _squared in functions:  # its values are rounded to the type of products
        bound = bound + _eps(tensors[0].dtype) * size
    if (epilogue := options.get("epilogue")) is not None:
        value = epilogue(value, _wide(bias)) if bias is not None else epilogue(value)
        size = size + (_wide(bias).abs() if bias is not None else 0)
        bound = 1.2 * bound + 32 * _unit(tensors[0].dtype) * (1 + size)
    return value, bound + 2 * _eps(out) * value.abs() + torch.finfo(HALF).tiny * (out is HALF)


def _compared(value: torch.Tensor, bound: torch.Tensor, place: Guarded) -> tuple[float, str | None]:
    """The largest error over its bound, and what is wrong."""
    found = _wide(place.tensor)
    error = (found - value).abs()
    right = error <= bound
    changed = (place.memory != place.poison) & place.guards
    wrong, beside = (int(one) for one in torch.stack([(~right).sum(), changed.sum()]).tolist())
    if wrong:
        at = tuple((~right).nonzero()[0].tolist())
        return 0.0, f"{wrong} of {right.numel()} wrong, {found[at].item()} at {list(at)} and not {value[at].item()}"
    if beside:
        return 0.0, f"{beside} bytes beside the result were written"
    ratio = (error / bound).nan_to_num(0.0)
    return (float(ratio.max()) if ratio.numel() else 0.0), None


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(WIDE if x.is_complex() else DOUBLE)


def _unit(dtype: torch.dtype) -> float:
    """The rounding of sums of such operands; half precision's are in float32."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return 2.0**-52 if dtype in (DOUBLE, WIDE) else 2.0**-23


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _told(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()
                    if name not in ("c", "operands", "backend"))  # fmt: skip


def _lie(*tensors: torch.Tensor) -> str:
    return " ".join(str(tuple(x.stride())) for x in tensors)
