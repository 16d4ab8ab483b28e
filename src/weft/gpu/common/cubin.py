"""A compiled kernel as data: machine code of an NVIDIA GPU, and the facts that launching and describing it take."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.base.cached import cached_property
from weft.gpu.common.tensor_maps import MapForm
from weft.machine.store import fields_of
from weft.planner.schedule import Target

FORMAT = 2  # of the bytes
TENSOR_MEMORY = 512  # columns of tensor memory that an SM of Blackwell has
_SIZES = {"*": 8, "i64": 8, "i32": 4}


@dataclass(frozen=True)
class Cubin:
    """One kernel. `to_bytes` and `from_bytes` keep it on disk."""

    code: bytes
    name: str  # of the function in it
    threads: int  # of a program, those of all roles
    barriers: int  # that are named
    shared: int  # bytes of dynamic shared memory
    tensor_memory: int  # columns
    pdl: bool  # launched as dependent by program
    sizes: tuple[int, ...] | None  # bytes of each parameter; None where only Triton's launcher knows how to pass them
    maps: tuple[MapForm, ...]  # of the parameters that are tensor maps, in order
    triton: str  # the version that compiled it

    @cached_property
    def digest(self) -> str:
        """A digest of the machine code: by it verdicts say what was tested."""
        return hashlib.sha256(self.code).hexdigest()[:16]

    @classmethod
    def of(cls, compiled: Any) -> Cubin:
        """The cubin of a kernel that Triton has compiled."""
        from triton import __version__

        metadata, ptx = compiled.metadata, str(compiled.asm["ptx"])
        threads = metadata.num_warps * metadata.warp_size
        plain = metadata.num_ctas == 1 and not metadata.launch_cooperative_grid
        scratch = metadata.global_scratch_size or metadata.profile_scratch_size
        maps = MapForm.all_of(compiled)
        sizes = parameter_sizes(compiled.src.signature, maps) if plain and not scratch and maps is not None else None
        return cls(
            bytes(compiled.asm["cubin"]), metadata.name, threads, block_barriers(ptx), metadata.shared,
            getattr(metadata, "tmem_size", None) or 0, bool(metadata.launch_pdl),
            None if sizes is None else tuple(sizes), maps or (), __version__,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """A line of JSON, then the machine code."""
        facts = {name: value for name, value in asdict(self).items() if name != "code"}
        return json.dumps({"format": FORMAT, **facts}).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, content: bytes) -> Cubin:
        """`ValueError` where this is no cubin of this format."""
        head, _, code = content.partition(b"\n")
        try:
            facts = json.loads(head)
            if facts.pop("format") != FORMAT or not code.startswith(b"\x7fELF"):
                raise ValueError
            return fields_of(cls, facts | {"code": code})
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise ValueError("it is no cubin of this version") from None


def excess(shared: int, tensor_memory: int, target: Target) -> str | None:
    """A sentence on what a kernel takes more of than the device has: bytes of shared memory, or columns of tensor
    memory; None where it fits."""
    if target.shared_memory and shared > target.shared_memory:
        return f"it needs {shared} of shared memory, the device has {target.shared_memory}"
    if tensor_memory > TENSOR_MEMORY:
        return f"it needs {tensor_memory} columns of tensor memory, the device has {TENSOR_MEMORY}"
    return None


def parameter_sizes(signature: dict[str, Any], maps: Sequence[MapForm] = ()) -> list[int] | None:
    """Bytes of each parameter that a kernel takes at run time, in order; None where one is no pointer, integer or
    tensor map of these."""
    found: list[int] = []
    forms = iter(maps)
    for kind in signature.values():
        for each in kind if isinstance(kind, tuple) else (kind,):
            if each == "constexpr":
                continue
            if str(each).startswith("tensordesc"):
                form = next(forms, None)
                if form is None:
                    return None
                found += form.sizes
                continue
            size = _SIZES.get("*" if str(each).startswith("*") else each)
            if size is None:
                return None
            found.append(size)
    return found


def block_barriers(ptx: str) -> int:
    """How many named barriers a kernel uses, as its PTX numbers them; one where it names none, as the driver counts."""
    named = re.findall(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)\S* +(\d+)", ptx)
    return max((int(each) + 1 for each in named), default=1)
