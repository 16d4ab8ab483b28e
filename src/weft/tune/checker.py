"""The check that a candidate computes the right thing, on poisoned memory, before it may win.

Some elements of the result, its corners among them, are held against the oracle. Then the whole result is held against
that of the first candidate that passed: wherever two candidates differ most, the oracle decides between them. So an
error anywhere is met by the oracle as soon as any candidate computes that element otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from weft.oracle.elements import Expected, expected, offsets, result_modes
from weft.oracle.judgement import judged, unwritten
from weft.oracle.problem import Operands, Problem, flat, memory_of

SAMPLED = {"cuda": 512, "cpu": 128}  # elements of D
_PRODUCTS = {"cuda": 1 << 26, "cpu": 1 << 21}  # of A and B that all of them take
_FEWEST = 8
_CORNERS = 64
_DISPUTED = 64  # stretches of D, from each of which the element that differs most is decided
_REMEMBERED = {"cuda": 1 << 32, "cpu": 1 << 28}  # bytes of a result that are kept for comparing


class Checker:
    """Runs launches of one problem and says what is wrong with them."""

    def __init__(self, problem: Problem, operands: Operands, seed: int = 0) -> None:
        self._problem = problem
        self._operands = operands
        self._modes = result_modes(problem.description)
        self._extents = [mode.extent for mode in self._modes]
        self._samples = self._chosen(seed)
        self._before = [tensor.clone() for tensor in self._added()]
        self._expected = expected(problem, operands, self._samples)
        self._trusted: list[torch.Tensor] | None = None
        self._trusted_name = ""

    def verdict(self, launch: Any, name: str) -> tuple[str | None, str | None]:
        """Run a launch; what is wrong with it, and the name of an earlier one that it shows to be wrong."""
        self._reset()
        self._problem.call(launch)(*self._operands)
        if self._problem.device.type == "cuda":
            torch.cuda.synchronize(self._problem.device)
        if self._guards_changed():
            return "it writes past the ends of the result", None
        if (reason := self._against_oracle(self._samples, self._expected)) is not None:
            return reason, None
        revoked = None
        if self._trusted is not None:
            disputed = self._disputed(self._trusted)
            decided = self._decided(disputed)
            if (reason := self._against_oracle(disputed, decided)) is not None:
                return reason, None
            if any(
                not judged(trusted.reshape(-1)[self._numbers(disputed)], *there).right
                for there, trusted in zip(decided, self._trusted, strict=True)
            ):
                revoked, self._trusted = self._trusted_name, None
        if self._trusted is None:
            self._trust(name)
        return None, revoked

    def _chosen(self, seed: int) -> torch.Tensor:
        """Coordinates to look at: corners of the result, and random ones as far as time allows."""
        device = self._problem.device
        ends = [sorted({0, extent - 1}) for extent in self._extents]
        corners = list(itertools.islice(itertools.product(*ends), _CORNERS))
        depth = getattr(self._problem.description, "k", 1)
        count = max(_FEWEST, min(SAMPLED[device.type], _PRODUCTS[device.type] // max(depth, 1)))
        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(0, extent, (count,), generator=generator, device="cpu") for extent in self._extents]
        random = torch.stack(columns, dim=1) if columns else torch.zeros(1, 0, dtype=torch.int64, device="cpu")
        rows = [tuple(extent - 1 for extent in self._extents), *corners][:count]
        fixed = torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(len(rows), len(self._extents))
        return torch.cat([fixed, random]).to(device)

    def _added(self) -> list[torch.Tensor]:
        """Results that are read as well, and must hold the same values before every run."""
        operands = self._operands
        return [operands.d] if operands.c is operands.d else []

    def _reset(self) -> None:
        for at, tensor in self._problem.results(self._operands):
            if at == 3 and self._before:
                tensor.copy_(self._before[0])
            else:
                memory_of(tensor).fill_(unwritten(tensor.dtype))

    def _guards_changed(self) -> bool:
        for _, tensor in self._problem.results(self._operands):
            memory, size = memory_of(tensor), tensor.element_size()
            start = tensor.storage_offset() * size
            end = start + flat(tensor).numel() * size
            expected_byte = unwritten(tensor.dtype)
            if bool((memory[:start] != expected_byte).any() | (memory[end:] != expected_byte).any()):
                return True
        return False

    def _against_oracle(self, coordinates: torch.Tensor, wanted: Sequence[Expected]) -> str | None:
        for (at, tensor), there in zip(self._problem.results(self._operands), wanted, strict=True):
            have = flat(tensor)[offsets(self._modes, coordinates, at)]
            found = judged(have, *there)
            if not found.right:
                worst = found.at
                indices = coordinates[worst].tolist()
                place = ", ".join(f"{mode.name}={at}" for mode, at in zip(self._modes, indices, strict=True))
                return (
                    f"it is wrong: {have[worst].item()} at [{place}], not {there.value[worst].item()} "
                    f"({found.wrong} of {found.of} looked at)"
                )
        return None

    def _whole(self) -> list[torch.Tensor]:
        """Every element of each result, with a dimension for each mode."""
        return [
            tensor.as_strided(self._extents, [mode.strides[at] for mode in self._modes])
            for at, tensor in self._problem.results(self._operands)
        ]

    def _disputed(self, trusted: Sequence[torch.Tensor]) -> torch.Tensor:
        """Where this result differs most from the trusted one, in each stretch of it."""
        found = []
        for mine, theirs in zip(self._whole(), trusted, strict=True):
            stretches = max(1, min(_DISPUTED, mine.numel()))
            length = -(-mine.numel() // stretches)
            both_nan = (mine != mine) & (theirs != theirs)  # true for NaN alone
            apart = (mine - theirs).abs() if mine.dtype is not torch.bool else mine ^ theirs
            apart = torch.where(both_nan | (mine == theirs), 0, apart).to(torch.float32).nan_to_num(nan=torch.inf)
            line = apart.reshape(-1)
            for start in range(0, line.numel(), length):
                found.append(line[start : start + length].argmax() + start)
        return self._at(torch.unique(torch.stack(found)))

    def _decided(self, coordinates: torch.Tensor) -> list[Expected]:
        """The oracle's answer there, with the results as they were before the run where they are read."""
        if not self._before:
            return expected(self._problem, self._operands, coordinates)
        after = self._operands.d.clone()
        self._operands.d.copy_(self._before[0])
        decided = expected(self._problem, self._operands, coordinates)
        self._operands.d.copy_(after)
        return decided

    def _trust(self, name: str) -> None:
        whole = self._whole()
        if sum(part.numel() * part.element_size() for part in whole) <= _REMEMBERED[self._problem.device.type]:
            self._trusted, self._trusted_name = (
                [part.clone(memory_format=torch.contiguous_format) for part in whole],
                name,
            )

    def _at(self, numbers: torch.Tensor) -> torch.Tensor:
        """Coordinates of elements by their number, the last mode fastest."""
        if not self._extents:
            return numbers.new_zeros(len(numbers), 0)
        return torch.stack(torch.unravel_index(numbers, self._extents), dim=1)

    def _numbers(self, coordinates: torch.Tensor) -> torch.Tensor:
        number = coordinates.new_zeros(len(coordinates))
        for column, extent in enumerate(self._extents):
            number = number * extent + coordinates[:, column]
        return number
