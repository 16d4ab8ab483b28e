"""Triton's interpreter as the tests need it, with less to do; what it takes is for `weft.gpu.common.release`."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest

PARTS = (
    "GridExecutor", "_LangPatchScope", "_get_np_dtype", "_patch_attr", "_patch_builtin", "_patch_lang",
    "interpreter_builder", "interpreter_semantic", "tl",
)  # fmt: skip


def prepare(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Do all of it to Triton's module `interpreter`; one that is made of other parts is left as it is."""
    if all(hasattr(interpreter, part) for part in PARTS):
        leave_out_overflows(interpreter.interpreter_builder, patch)
        list_once(interpreter, patch)
        replace_once_per_launch(interpreter, patch)
        describe_once(interpreter, patch)
        match_once(interpreter, patch)


def leave_out_overflows(builder: Any, patch: pytest.MonkeyPatch) -> None:
    """Compute integers once, and not again in 64 bits to see whether they fit.

    That takes more than half of the time of an interpreted kernel, and nobody hears of it: what would raise the error
    is left out unless Triton debugs, which the interpreter does not.
    """
    patch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug))


def list_once(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Keep what is put in place of the language's functions: Triton looks through all its names in each launch.

    What it puts there calls a function that looks whether it is given the semantics; they are given to the one behind.
    """
    replace = interpreter._patch_builtin

    def builtin(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic, behind = interpreter.interpreter_semantic, getattr(member, "__wrapped__", member)

        def interpreted(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return behind(*args, **kwargs)

        scope.set_attr(place, name, interpreted)

    @functools.cache
    def found_in(place: Any, builder: Any) -> list[tuple[Any, str, Any]]:
        found: list[tuple[Any, str, Any]] = []
        replace(place, builder, SimpleNamespace(set_attr=lambda *replaced: found.append(replaced)))
        return found

    def replace_found(place: Any, builder: Any, scope: Any) -> None:
        for each in found_in(place, builder):
            scope.set_attr(*each)

    patch.setattr(interpreter, "_patch_attr", builtin)
    patch.setattr(interpreter, "_patch_builtin", replace_found)


def replace_once_per_launch(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Let a device function replace only what its launch, and the functions before it, have not.

    Triton goes through every name of its language again whenever a device function is called, which takes a third of
    the time of an interpreted kernel and finds nothing left to replace. What is computed is the same.
    """
    run, replace = interpreter.GridExecutor.__call__, interpreter._patch_lang
    modules = (interpreter.tl, interpreter.tl.core)
    replaced: set[int] = set()  # within the launch under way

    @functools.cache
    def seen_by(fn: Any) -> frozenset[int]:
        return frozenset(at for at, module in enumerate(modules) if any(x is module for x in fn.__globals__.values()))

    def replace_the_rest(fn: Any) -> Any:
        if replaced and seen_by(fn) <= replaced:
            return interpreter._LangPatchScope()  # nothing to restore
        scope = replace(fn)
        replaced.update(seen_by(fn))
        return scope

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()
        try:
            run(executor, *args, **kwargs)
        finally:
            replaced.clear()

    patch.setattr(interpreter, "_patch_lang", replace_the_rest)
    patch.setattr(interpreter.GridExecutor, "__call__", launch)


def describe_once(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Keep what is known of a type: Triton finds it again for each value that an operation makes.

    That is NumPy's type of a type's name, and of a block's element and shape: how many elements it has, its name, and
    the constants that its values have as shape. It takes a third of the time of an interpreted kernel.
    """
    core, numpy_type = interpreter.tl.core, interpreter._get_np_dtype
    make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
    numpy_types: dict[str, Any] = {}
    blocks: dict[tuple[int, tuple[Any, ...]], dict[str, Any]] = {}

    def np_dtype(type: Any) -> Any:
        name = type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(type)
        return numpy_types[name]

    def init_block(block: Any, element_ty: Any, shape: Any) -> None:
        key = id(element_ty), tuple(shape)  # what is kept keeps the element, so that no other gets its id
        if key not in blocks:
            make_block(block, element_ty, shape)
            blocks[key] = {**vars(block), "of_values": shape_of_values(block)}
        vars(block).update(blocks[key])

    def shape_of_values(type: Any) -> dict[str, Any]:
        value = core.tensor.__new__(core.tensor)
        make_tensor(value, None, type)
        return {"shape": value.shape, "numel": value.numel, "dtype": value.dtype}

    of_scalars = {"shape": core.tuple([]), "numel": core.constexpr(1)}

    def init_tensor(value: Any, handle: Any, type: Any) -> None:
        known = vars(type).get("of_values") or {**of_scalars, "dtype": type.scalar}
        vars(value).update(known, handle=handle, type=type)

    patch.setattr(interpreter, "_get_np_dtype", np_dtype)
    patch.setattr(core.block_type, "__init__", init_block)
    patch.setattr(core.tensor, "__init__", init_tensor)


MATCHES = 1 << 13  # pairs of operands that are kept: types, and constants beside them


def match_once(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """Keep what two operands become so that they match, by their types and by the value of a constant.

    Triton goes through its rules of promotion and of spreading for each operation and fills a block with each constant,
    which takes half of the time of an interpreted kernel. No operation writes into its operands.
    """
    semantic, tensor = type(interpreter.interpreter_semantic), interpreter.tl.core.tensor
    kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def become(self: Any, given: Any, noted: Any) -> Any:
        """An operand as it was noted: None of one that stays, a constant's value, or another value's type."""
        if noted is None or isinstance(noted, tensor):
            return given if noted is None else noted
        value = self.cast(given, noted.scalar)
        if value.type.name == noted.name:
            return value
        if value.type.is_block():
            return self.tensor(self.builder.create_broadcast(value.handle, noted.shape), noted)
        return self.tensor(self.builder.create_splat(noted, value.handle), noted)

    def kind(given: Any) -> Any:
        return given.type.name if isinstance(given, tensor) else (type(given), repr(given))

    def note(given: Any, found: Any) -> Any:
        return None if found is given else found.type if isinstance(given, tensor) else found

    def kept_of(match: Any) -> Any:
        def matched(self: Any, lhs: Any, rhs: Any, *rules: Any, **named: Any) -> Any:
            key = match, kind(lhs), kind(rhs), rules, *named.items()
            if key not in kept:
                found = match(self, lhs, rhs, *rules, **named)
                if len(kept) == MATCHES:
                    kept.clear()
                kept[key] = note(lhs, found[0]), note(rhs, found[1])
                return found
            left, right = kept[key]
            return become(self, lhs, left), become(self, rhs, right)

        return matched

    for name in ("binary_op_type_checking_impl", "broadcast_impl_value"):
        patch.setattr(semantic, name, kept_of(getattr(semantic, name)))
