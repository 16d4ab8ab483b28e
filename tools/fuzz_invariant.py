#!/usr/bin/env python3
"""Random contractions with `invariant=`, each computed with many rows and with fewer: their bits are the same.

    PYTHONPATH=src python tools/fuzz_invariant.py [--seconds 90] [--pairs 100000] [--workers 8] [--device cuda]

A problem draws an equation, types, functions and layouts; its whole result is compared with parts of it, which have
other numbers of rows, begin elsewhere in memory, and are served by other tiers. Each comparison is a pair. Problems of
a GPU share structures, so that few kernels are compiled. Prints what differs and a line last; exit code 1 where
anything did. Writes `fuzz_invariant.json` to --out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("WEFT_SELFTEST", "0")

import torch

import weft
from weft.machine.stamp import command, commit

REAL = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
TYPES = {"cpu": (*REAL, torch.complex64, torch.complex128), "cuda": REAL}
PARTS = {"cpu": 4, "cuda": 16}  # of a problem
STRUCTURES = 24  # of a worker
ELEMENTS = 1 << 21  # of D, at most


def scaled_gelu(total: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(total) * scale


def softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.exp(x)) + torch.sin(x)


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x + 1


class Pair:
    """A random contraction whose rows come in two numbers, many and fewer; `structure` draws all but extents."""

    def __init__(self, seed: int, device: str = "cpu", structure: int | None = None) -> None:
        draw = random.Random(seed if structure is None else structure)
        self.draw, self.values, self.device = draw, torch.Generator().manual_seed(seed), device
        self.rows = "mp"[: draw.choice((1, 1, 2))]
        columns, batch = "no"[: draw.choice((0, 1, 1, 2))], "b"[: draw.choice((0, 0, 1))]
        summed = "xyz"[: draw.choice((1, 1, 2, 3))]
        everywhere = batch if draw.random() < 0.7 else batch + columns[:1]
        terms = [self.rows + everywhere + summed, batch + columns + summed, self.rows + batch + columns]
        self.terms = ["".join(draw.sample(term, len(term))) for term in terms]
        self.orders = [term if draw.random() < 0.7 else "".join(draw.sample(term, len(term))) for term in self.terms]
        self.invariant = self.rows + batch if draw.random() < 0.3 else self.rows
        self.dtype = draw.choice(TYPES[device])
        self.options = self._options()
        self.adds = draw.random() < 0.3
        if structure is not None:
            self.draw = draw = random.Random(seed)
        self.extents = {label: draw.choice((1, 2, 3, 5, 8, 13, 21, 34)) for label in self.rows + columns + batch}
        while math.prod(self.extents.values()) > ELEMENTS:
            largest = max(self.extents, key=self.extents.__getitem__)
            self.extents[largest] //= 2
        left = draw.choice((20, 20, 200, 1500, 5000))
        for label in summed:
            self.extents[label] = draw.randint(1, max(1, left))
            left = max(1, left // self.extents[label])

    @property
    def equation(self) -> str:
        return f"{self.terms[0]},{self.terms[1]}->{self.terms[2]}"

    def _options(self) -> dict[str, Any]:
        if self.dtype.is_complex or self.draw.random() < 0.5:
            return {"a_fn": square} if self.draw.random() < 0.3 else {}
        return self.draw.choice((
            {"epilogue": softplus}, {"a_fn": torch.tanh}, {"b_fn": softplus, "epilogue": torch.relu},
            {"epilogue": scaled_gelu, "operands": self.draw.choice(self.terms[2])},
        ))  # fmt: skip

    def tensor(self, term: str, order: str) -> torch.Tensor:
        """Values with the labels of a term, which lie in that order in memory."""
        found = torch.randn([self.extents[label] for label in order], generator=self.values, dtype=torch.float64)
        if self.dtype.is_complex:
            found = torch.complex(found, found.flip(0) if found.dim() else found)
        return found.to(self.dtype).to(self.device).permute([order.index(label) for label in term])

    def check(self, parts: int = 1) -> str | None:
        """Compare the whole with that many parts; what differs, or None."""
        a, b = (self.tensor(*each) for each in zip(self.terms[:2], self.orders[:2], strict=True))
        options = {**self.options, "invariant": self.invariant}
        scale = options.pop("operands", None)
        others = {"c": (self.terms[2], self.tensor(self.terms[2], self.orders[2]))} if self.adds else {}
        if scale is not None:
            others["scale"] = (scale, self.tensor(scale, scale))
        found = self._call(a, b, others, lambda x, term: x, options)
        for _ in range(parts):
            few = {label: sorted(self.draw.choices(range(self.extents[label] + 1), k=2)) for label in self.invariant}

            def fewer(x: torch.Tensor, term: str, few: dict[str, list[int]] = few) -> torch.Tensor:
                for at, label in enumerate(term):
                    if label in few:
                        x = x.narrow(at, few[label][0], few[label][1] - few[label][0])
                return x

            whole = self.draw.random() < 0.5
            x = fewer(a, self.terms[0])
            part = self._call(x.contiguous() if whole else x, fewer(b, self.terms[1]), others, fewer, options)
            expected = fewer(found, self.terms[2]).contiguous()
            if not torch.equal(part.contiguous().view(torch.uint8), expected.view(torch.uint8)):
                return f"{self.equation} {self.extents} {few} {self.dtype} {self.options} {'copied' if whole else ''}"
        return None

    def _call(self, a: torch.Tensor, b: torch.Tensor, others: dict[str, Any], cut: Any, options: Any) -> torch.Tensor:
        """The contraction of some of the rows."""
        own = {name: (term, cut(x, term)) for name, (term, x) in others.items()}
        c = own.pop("c", (None, None))[1]
        tier = {"specialize": "never"} if self.draw.random() < 0.1 else {}
        return weft.contract(self.equation, a, b, c=c, **options, **tier, **({"operands": own} if own else {}))


def worker(number: int, given: argparse.Namespace) -> dict[str, Any]:
    """Problems until the time is over or enough pairs are compared."""
    torch.set_num_threads(1)
    end, found = time.monotonic() + given.seconds, {"pairs": 0, "problems": 0, "refused": 0, "differ": []}
    parts = PARTS[given.device]
    structures = [1_000_000 * given.seed + 1000 * number + at for at in range(STRUCTURES)]
    problem = number
    while time.monotonic() < end and found["pairs"] * given.workers < given.pairs:
        seed, problem = given.seed * 10_000_000 + problem, problem + given.workers
        at = min(STRUCTURES, 2 + found["problems"] // 20)  # the first are shared by many before others are compiled
        structure = random.Random(seed).choice(structures[:at]) if given.device == "cuda" else None
        pair = Pair(seed, given.device, structure)
        try:
            what = pair.check(parts)
        except weft.UnsupportedError:
            found["refused"] += 1
            continue
        except Exception as error:
            what = f"{pair.equation} {pair.extents}: {type(error).__name__}: {str(error).splitlines()[0]}"
        found["pairs"] += parts
        found["problems"] += 1
        if what is not None:
            found["differ"].append(f"seed {seed}, structure {structure}: {what}")
        if found["problems"] % 50 == 0 or what is not None:
            given.file.write_text(json.dumps(found))
    given.file.write_text(json.dumps(found))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.number is not None:
        worker(given.number, given)
        return 0
    began = time.monotonic()
    total: dict[str, Any] = {"pairs": 0, "problems": 0, "refused": 0, "differ": []}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in range(given.workers)]
        running = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--workers", str(given.workers), "--number",
                              str(number), "--file", str(file)])
            for number, file in enumerate(files)
        ]  # fmt: skip
        for process, file in zip(running, files, strict=True):
            try:
                status = process.wait(max(1.0, given.seconds + 20 - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = 0  # it compiles, or hangs: what it has found counts
            found = json.loads(file.read_text()) if file.exists() else {}
            for name, value in found.items():
                total[name] += value
            if status:
                total["differ"].append(f"a worker ended with status {status}")
    device = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    about = {"command": command(), "commit": commit(), "device": device, "seconds": time.monotonic() - began}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "fuzz_invariant.json").write_text(json.dumps({**about, **total}, indent=1) + "\n")
    for what in total["differ"][:20]:
        print(what)
    print(f"{total['pairs']} pairs of {total['problems']} problems in {about['seconds']:.0f} s on {device}, "
          f"{total['refused']} refused, {len(total['differ'])} differ")  # fmt: skip
    return 1 if total["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
