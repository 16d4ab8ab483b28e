"""What is to be tuned, described without tensors: one equation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.api.describe import hypothetical
from weft.errors import UnsupportedError
from weft.planner.planner import Choice, choose
from weft.planner.schedule import Description, Target
from weft.planner.serialization import NotSerializable, digest, serialize_description
from weft.spec import Layout
from weft.spec.contraction import output_shape


@dataclass(frozen=True, slots=True)
class Job:
    """One description to be tuned, and what it is called."""

    group: str
    name: str
    equation: str
    extents: Mapping[str, int]
    description: Description
    backend: str
    target: Target
    workspace_limit: int | None = None

    @property
    def label(self) -> str:
        return f"{self.group} {self.name}".strip()

    @property
    def mark(self) -> str | None:
        """What tells its description from others, functions and types included; None where that cannot be said."""
        try:
            return digest(serialize_description(self.description))
        except NotSerializable:
            return None

    def choice(self) -> Choice:
        """The cost model's ranking, whatever is stored."""
        return choose(self.description, self.backend, self.target, self.workspace_limit)


def of_equation(equation: str, extents: Mapping[str, int], **options: Any) -> Job:
    """The contraction of two contiguous operands; options are those of `weft.api.describe.hypothetical`."""
    request = hypothetical(equation, extents, **options)
    if request.backend == "reference":
        raise UnsupportedError("the reference backend chooses nothing: there is nothing to tune")
    d = Layout.contiguous(output_shape(request.notation, request.extents()), request.d_dtype)
    described = request.contraction(None, d)
    return Job("", equation, equation, extents, described, request.backend, request.target, request.workspace_limit)
