"""Machine code as text: disassembled, its loop found, its instructions sorted into kinds, with their source lines.

NVIDIA's own tools do the reading (`nvdisasm`, `cuobjdump`); Triton's package brings them, so nothing of this needs a
GPU. PTX is there without them. What each instruction is: PTX ISA; CUDA Binary Utilities, "Instruction Set Reference".
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.errors import UnsupportedError
from weft.planner.registry import triton_fault

_PATIENCE = 60  # seconds for one tool
_OTHER = "other"
_MATRIX = ("wgmma", "tcgen05", "mma")

# The first pattern that an instruction begins with says its kind. "{}" is filled with the bytes of each access.
_SASS = (
    (r"[HIQB]GMMA", "wgmma"), (r"UTC\w*MMA", "tcgen05"), (r"[HIDQO]MMA|HMMA", "mma"),
    (r"UTMALDG|UBLKCP|UBLKPF", "TMA load"), (r"UTMASTG|UTMAREDG", "TMA store"), (r"LDGSTS", "cp.async {}"),
    (r"LDSM", "ldmatrix"), (r"STSM", "stmatrix"), (r"LDTM|STTM", "tensor memory"),
    (r"LDG|LD\b", "ld.global {}"), (r"STG|ST\b", "st.global {}"), (r"LDS", "ld.shared {}"), (r"STS", "st.shared {}"),
    (r"LDL|STL", "spill"), (r"ATOM|RED\b|REDG|ATOMG|ATOMS", "atomic"), (r"LDC|ULDC|LDCU", "constant"),
    (r"DFMA|DADD|DMUL|DSETP|DMNMX", "fp64"), (r"FFMA|FADD|FMUL|FMNMX|FSETP|FSEL|FSET|FCHK|FFMA2|FADD2|FMUL2", "fp32"),
    (r"HFMA2|HADD2|HMUL2|HMNMX2|HSETP2|HSET2", "fp16"), (r"MUFU", "special"),
    (r"SHFL|REDUX|VOTE|VOTEU|MATCH", "shuffle"),
    (r"F2F|F2FP|F2I|I2F|I2FP|F2IP|I2I|FRND", "conversion"),
    (r"BAR|SYNCS|DEPBAR|LDGDEPBAR|WARPSYNC|WARPGROUP|ARRIVES|MEMBAR|FENCE|ERRBAR|ACQBULK|PREEXIT|UTCBAR|UTCATOMSWS|"
     r"USETMAXREG|NANOSLEEP|BSYNC|BSSY|CCTL|UTMACMDFLUSH|UTMACCTL|ELECT|YIELD", "synchronisation"),
    (r"BRA|BRX|EXIT|CALL|RET|JMP|BREAK|BPT", "branch"),
    (r"U?IMAD|U?IADD3?|U?LEA|U?LOP3|U?LOP|U?SHF|U?ISETP|U?IMNMX|VIADD|VIMNMX|U?SEL|U?SGXT|IABS|U?PRMT|U?PLOP3|U?BREV|U?FLO|"
     r"U?POPC|XMAD|U?SHL|U?SHR|U?BMSK|R2P|P2R|UVIRTCOUNT|VIADDMNMX|USHL|IDP", "address and integer"),
    (r"U?MOV|CS2R|S2R|S2UR|R2UR|UR2UP|NOP|LEPC", "move"),
)  # fmt: skip
_PTX = (
    (r"wgmma\.mma_async", "wgmma"), (r"tcgen05\.mma", "tcgen05"), (r"mma\.sync|mma\.sp", "mma"),
    (r"cp\.async\.bulk\S*\.shared\S*\.global|cp\.async\.bulk\.tensor\S*\.shared", "TMA load"),
    (r"cp\.async\.bulk", "TMA store"), (r"cp\.async\.c[ag]", "cp.async {}"), (r"ldmatrix", "ldmatrix"),
    (r"stmatrix", "stmatrix"), (r"tcgen05\.(ld|st|cp)", "tensor memory"), (r"ld\.local|st\.local", "spill"),
    (r"ld\.global", "ld.global {}"), (r"st\.global", "st.global {}"), (r"ld\.shared", "ld.shared {}"),
    (r"st\.shared", "st.shared {}"), (r"ld\.(param|const)", "constant"), (r"atom|red\.", "atomic"),
    (r"(fma|add|sub|mul|min|max|neg|abs|setp|selp|div|sqrt)\S*\.f64", "fp64"),
    (r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh|div)\S*\.f(32|16)", "special"),
    (r"(fma|add|sub|mul|min|max|neg|abs|setp|selp)\S*\.f32", "fp32"),
    (r"(fma|add|sub|mul|min|max|neg|abs|setp|selp)\S*\.(b?f16|f16x2|bf16x2)", "fp16"), (r"cvt", "conversion"),
    (r"shfl|vote|match|redux", "shuffle"),
    (r"bar|mbarrier|fence|membar|cp\.async\.(wait|commit)|wgmma\.|tcgen05\.|griddep|setmaxnreg|elect|nanosleep",
     "synchronisation"),
    (r"bra|ret|exit|brx|call", "branch"), (r"mov|cvta", "move"),
    (r"(add|sub|mul|mad|shl|shr|and|or|xor|not|lop3|bfe|bfi|prmt|min|max|setp|selp|div|rem|popc|clz|shf|neg|abs|sad)\b",
     "address and integer"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of machine code: its text without address, and where in which file it comes from ("" if unknown)."""

    text: str
    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class KernelLoop:
    """The loop that a kernel spends its time in, as far as its text tells: that with most of its products."""

    instructions: tuple[Instruction, ...]
    whole: bool  # there is no loop: this is all of the kernel

    @property
    def mix(self) -> dict[str, int]:
        """How many instructions there are of each kind, most first."""
        return mix(self.instructions)


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers and local memory of a compiled kernel, as `cuobjdump` reads them."""

    registers: int  # of a thread
    stack: int  # bytes of local memory a thread: spilled registers, and arrays


def sass(cubin: bytes) -> str:
    """The machine code of a cubin, with comments that name source lines. `UnsupportedError` without `nvdisasm`."""
    return _output_of("nvdisasm", cubin, "-c", "-g")


def resources(cubin: bytes, kernel: str) -> Resources:
    """Registers and local memory of a kernel of a cubin. `UnsupportedError` without `cuobjdump`."""
    said = _output_of("cuobjdump", cubin, "--dump-resource-usage")
    found = re.search(rf"Function {re.escape(kernel)}:\s*REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise UnsupportedError(f"cuobjdump names no kernel {kernel}: {said.strip()[:200]}")
    return Resources(int(found[1]), int(found[2]))


def read_sass(text: str) -> list[Instruction | str]:
    """Instructions, and labels as plain text, in their order."""
    found: list[Instruction | str] = []
    source = ""
    for line in text.splitlines():
        if at := re.search(r'//## File "([^"]*)", line (\d+)', line):
            source = _short(at[1], at[2])
        elif label := re.match(r"(\.L_\w+):", line):
            found.append(label[1])
        elif code := re.match(r"\s*(?:\{\s*)?/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(.*?)\s*;", line):
            found.append(Instruction(_plain(code[1]), _kind(code[1], _SASS, _sass_bytes), source))
    return found


def read_ptx(text: str) -> list[Instruction | str]:
    """Instructions of PTX, and labels as plain text, in their order."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]*)"', text, re.MULTILINE))
    found: list[Instruction | str] = []
    source = ""
    for line in text.splitlines():
        plain = line.partition("//")[0].strip()
        if at := re.match(r"\.loc\s+(\d+) (\d+)", plain):
            source = _short(files.get(at[1], ""), at[2]) if at[2] != "0" else source
        elif label := re.match(r"(\$L__BB\w+):", plain):
            found.append(label[1])
        elif plain.endswith((";", ",", "{")) and re.match(r"(@!?%\w+\s+)?[a-z][\w.:]*(\s|$)", plain.strip("{} ;")):
            body = _statement(plain)
            found.append(Instruction(_plain(body), _kind(body, _PTX, _ptx_bytes), source))
    return found


def _statement(line: str) -> str:
    """A line of PTX without the braces of a block around it; those of its operands stay."""
    body = line.strip("; ").lstrip("{ ").rstrip("{, ")
    while body.endswith("}") and body.count("}") > body.count("{"):
        body = body[:-1].rstrip("; ")
    return body


def loop_of(lines: Sequence[Instruction | str]) -> KernelLoop:
    """The smallest loop with a quarter of the products (else additions) of any, since rounds may be peeled off.

    All lines where nothing loops.
    """
    places = {line: at for at, line in enumerate(lines) if isinstance(line, str)}
    loops: list[list[Instruction]] = []
    for at, line in enumerate(lines):
        if isinstance(line, Instruction) and line.kind == "branch":
            target = re.search(r"(\.L_\w+|\$L__BB\w+)", line.text)
            if target and (start := places.get(target[1], at)) < at:
                loops.append([each for each in lines[start : at + 1] if isinstance(each, Instruction)])
    every = tuple(line for line in lines if isinstance(line, Instruction))
    counts = [_products(loop) for loop in loops]
    best = max(counts, default=(0, 0))
    if best == (0, 0):
        loops = [loop for loop in loops if any("global" in each.kind for each in loop)]
        return _shortest(loops) if loops else KernelLoop(every, True)
    place = 0 if best[0] else 1
    most = max(count[place] for count in counts)
    fitting = [loop for loop, count in zip(loops, counts, strict=True) if 4 * count[place] >= most]
    return _shortest(fitting)


def _shortest(loops: Sequence[list[Instruction]]) -> KernelLoop:
    found = min(loops, key=len)
    return KernelLoop(tuple(found), False)


def mix(instructions: Sequence[Instruction]) -> dict[str, int]:
    """How many there are of each kind, most first."""
    return dict(Counter(each.kind for each in instructions).most_common())


def listing(loop: KernelLoop, most: int | None = None) -> list[str]:
    """The loop's lines, each source line named where it begins; at most so many."""
    shown = loop.instructions[:most]
    width = max((len(each.source) for each in shown), default=0)
    lines, before = [], ""
    for each in shown:
        lines.append(f"{each.source if each.source != before else '':<{width}}  {each.text}")
        before = each.source
    rest = len(loop.instructions) - len(shown)
    return [*lines, f"... and {rest} more"] if rest else lines


@cache
def tool(name: str) -> str | None:
    """A tool of CUDA's by its path: that which Triton brings, else one on PATH or of a toolkit; None without any."""
    places = [name, f"/usr/local/cuda/bin/{name}"]
    if triton_fault() is None:
        import triton

        places.insert(0, str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name))
    return next(filter(None, map(shutil.which, places)), None)


def _output_of(name: str, cubin: bytes, *options: str) -> str:
    """The output of a tool for a cubin."""
    program = tool(name)
    if program is None:
        raise UnsupportedError(f"machine code is read by {name}, which is neither in Triton's package nor on PATH")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [program, *options, file.name], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    if done.returncode or not done.stdout.strip():
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise UnsupportedError(f"{name} cannot read this kernel: {said}")
    return done.stdout


def _products(loop: Sequence[Instruction]) -> tuple[int, int]:
    """Matrix instructions, and arithmetic on floating-point numbers."""
    counted = mix(loop)
    return sum(counted.get(kind, 0) for kind in _MATRIX), sum(counted.get(kind, 0) for kind in ("fp32", "fp64", "fp16"))


def _kind(code: str, kinds: Sequence[tuple[str, str]], width: Callable[[str], int | None]) -> str:
    """The kind of an instruction, its predicate aside."""
    body = re.sub(r"^@!?%?\w+\s+", "", code)
    for pattern, kind in kinds:
        if re.match(rf"(?:{pattern})(?![a-z0-9A-Z_])" if pattern.isupper() else pattern, body):
            return kind.format(f"{width(body)} B") if "{}" in kind else kind
    return _OTHER


def _sass_bytes(code: str) -> int:
    """Bytes that one thread moves."""
    found = re.search(r"\.(U8|S8|U16|S16|64|128|256)\b", code)
    return {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}[found[1]] if found else 4


def _ptx_bytes(code: str) -> int | None:
    if copied := re.search(r"cp\.async\.c[ag]\S* .*?,\s*(?:0x)?([0-9a-f]+)", code):
        return int(copied[1], 16) if "0x" in code else int(copied[1])
    found = re.search(r"\.(v2\.|v4\.|v8\.)?[busf](8|16|32|64|128)\b", code)
    return int(found[2]) // 8 * int((found[1] or "v1.")[1]) if found else None


def _plain(code: str) -> str:
    return re.sub(r"\s+", " ", code)


def _short(file: str, line: str) -> str:
    """A source line as people name it: the folder, the file, the line."""
    return f"{'/'.join(Path(file).parts[-2:])}:{line}" if file else ""
