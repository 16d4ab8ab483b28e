"""Reads of uniform registers that nothing has written: what a broken assembler leaves in machine code of Hopper.

Registers that were written on some way from the kernel's start are known at each instruction; a read of another one is
a read of whatever was there. Predicated writes count, so every find is a mistake. Operand forms: CUDA Binary Utilities,
"Instruction Set Reference"; that a product with A in registers leaves the first two of its four descriptor registers
alone was seen in the code of kernels whose values are right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from weft_bench.kernels.machine_code import Instruction, read_sass, sass

_REGISTERS = 64  # uniform ones of a warp
_WRITES = ("R2UR", "S2UR", "REDUX", "VOTEU", "U")
_READS_ONLY = ("UTMA", "UBLK", "USETMAXREG", "UCGABAR", "UISETP", "UPLOP")
_ENDS = ("BRA", "EXIT", "BREAK", "RET")


class Effect(NamedTuple):
    """Numbers of the uniform registers that an instruction reads and writes."""

    reads: frozenset[int]
    writes: frozenset[int]


def unwritten(cubin: bytes) -> list[str]:
    """The instructions of a kernel that read a uniform register which nothing has written before."""
    return unwritten_in(sass(cubin))


def unwritten_in(text: str) -> list[str]:
    """The same of a kernel as `nvdisasm -c` prints it."""
    code, labels = _split(read_sass(text))
    effects = [effect(text) for text in code]
    written = _written_before(effects, _predecessors(code, labels))
    return [
        text for text, (reads, _), known in zip(code, effects, written, strict=True)
        if known is not None and reads - known
    ]  # fmt: skip


def effect(text: str) -> Effect:
    """What one instruction does, its predicate aside."""
    operation, _, rest = re.sub(r"^@!?U?P\w+ ", "", text).partition(" ")
    operands = [each.strip() for each in rest.split(",")]
    if operation.startswith("CALL"):  # a subroutine may write any, and is not looked into
        return Effect(frozenset(), frozenset(range(_REGISTERS)))
    writes: range | tuple[int, ...] = ()
    if operation == "ELECT":  # a predicate, a uniform register, a predicate
        place = re.fullmatch(r"UR(\d+)", operands[1])
        return Effect(frozenset(), frozenset({int(place[1])} if place else ()))
    first = re.fullmatch(r"UR(\d+)", operands[0])
    if first and operation.startswith(_WRITES) and not operation.startswith(_READS_ONLY):
        wide = 4 if ".128" in operation else 2 if ".64" in operation or "WIDE" in operation else 1
        writes, operands = range(int(first[1]), int(first[1]) + wide), operands[1:]
    reads = {number for operand in operands for number in _read(operand, operands)}
    return Effect(frozenset(reads), frozenset(writes))


def _read(operand: str, operands: Sequence[str]) -> list[int]:
    if matrix := re.search(r"gdesc\[UR(\d+)\]", operand):  # A's descriptor, then B's
        skipped = 2 if re.match(r"R\d", operands[1]) else 0
        return list(range(int(matrix[1]) + skipped, int(matrix[1]) + 4))
    return [int(number) for number in re.findall(r"\bUR(\d+)\b", operand)]


def _split(lines: Sequence[Instruction | str]) -> tuple[list[str], dict[str, int]]:
    """The instructions, and which of them each label stands before."""
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(code)
        else:
            code.append(line.text)
    return code, labels


def _predecessors(code: Sequence[str], labels: dict[str, int]) -> list[list[int]]:
    """The instructions that each may follow."""
    found: list[list[int]] = [[] for _ in code]
    for at, text in enumerate(code):
        if target := re.search(r"`\((\.L_\w+)\)", text):
            to = labels.get(target[1], len(code))
            if to < len(code):
                found[to].append(at)
        branches_always = text.startswith(_ENDS) and not re.match(r"BRA\S* U?P\d|BRA\.DIV", text)
        if not branches_always and at + 1 < len(code):
            found[at + 1].append(at)
    return found


def _written_before(effects: Sequence[Effect], before: Sequence[Sequence[int]]) -> list[frozenset[int] | None]:
    """The registers that some way to each instruction writes, grown until nothing is added; None where no way leads."""
    known: list[frozenset[int] | None] = [None] * len(effects)
    known[0] = frozenset()
    grew = True
    while grew:
        grew = False
        for at, ways in enumerate(before):
            found = [ahead | effects[way].writes for way in ways if (ahead := known[way]) is not None]
            if found and (union := frozenset().union(known[at] or (), *found)) != known[at]:
                known[at], grew = union, True
    return known
