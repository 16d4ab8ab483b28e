"""numba as a compiler for a processor that is not there: sources to objects for a level.

numba compiles for the host and links what it compiles. In a process that has called `prepare` its code generator has
the target machine of a level instead, and links nothing. A C callback reports no errors to Python: kernels raise none.
"""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import binding, ir
from numba.core import codegen, cpu

from weft.cpu import level as levels
from weft.cpu.level import Level
from weft.cpu.machine_code import MachineCode, pack_key, symbol_of

#: What kernels may take from the process that they are linked in: functions of C, and of its library of mathematics.
KNOWN = frozenset(("malloc", "free", "memcpy", "memmove", "memset", "exp", "expf", "log", "logf", "log1p", "log1pf"))


def prepare(level: Level) -> None:
    """Let numba compile for a level, from now on and for good."""
    levels.assume(level)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    _Codegen.level = level
    codegen.JITCPUCodegen = _Codegen
    cpu.CPUContext.create_cfunc_wrapper = _wrapped


def compiled(source: str) -> MachineCode:
    """The object of a source, with its C callback under the name that the pack knows it by."""
    names: dict[str, Any] = {"__name__": "weft.cpu.compiled"}
    exec(compile(source, "<written by weft>", "exec"), names)
    entry = names["entry"]
    library, symbol = entry._library, symbol_of(pack_key(source))
    if library.has_dynamic_globals:
        raise ValueError(f"a kernel holds addresses of this process:\n{source}")
    module = library._final_module
    module.get_function(entry.native_name).name = symbol
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    library.optimize()
    content = library.codegen._tm.emit_object(module)
    needs = undefined(content)
    if not KNOWN.issuperset(needs):
        raise ValueError(f"a kernel needs {', '.join(sorted(set(needs) - KNOWN))}:\n{source}")
    return MachineCode(symbol, needs, content)


class _Library(codegen.AOTCodeLibrary):  # type: ignore[misc]
    def _optimize_final_module(self) -> None:
        """Nothing of a part: the whole is optimised once, when it is known what of it is called."""

    def optimize(self) -> None:
        super()._optimize_final_module()

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 1  # nothing calls it


class _Codegen(codegen.AOTCPUCodegen):  # type: ignore[misc]
    _library_class = _Library
    level: Level

    def _init(self, llvm_module: Any) -> None:
        self._tm_features = self.level.tuning
        self._tm = binding.Target.from_triple(self.level.triple).create_target_machine(
            cpu=self.level.processor,
            features=self.level.tuning,
            opt=3,
            reloc="static",
            codemodel="jitdefault",
            jit=True,
        )
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)
        self._loopvect, self._opt_level = False, 0

    def _create_empty_module(self, name: str) -> Any:
        module = super()._create_empty_module(name)
        module.triple = self.level.triple
        return module

    def set_env(self, env_name: str, env: Any) -> None:
        pass


def _wrapped(context: Any, library: Any, fndesc: Any, env: Any, call_helper: Any) -> None:
    """A C callback around a function of numba's. Kernels raise nothing; one that did would end the process."""
    module = context.create_module("cfunc_wrapper")
    shape = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
    callee = ir.Function(module, shape, fndesc.llvm_func_name)
    arguments = [context.get_value_type(each) for each in fndesc.argtypes]
    outer = ir.FunctionType(context.get_value_type(fndesc.restype), arguments)
    wrapper = ir.Function(module, outer, fndesc.llvm_cfunc_wrapper_name)
    builder = ir.IRBuilder(wrapper.append_basic_block("entry"))
    status, result = context.call_conv.call_function(builder, callee, fndesc.restype, fndesc.argtypes, wrapper.args)
    with builder.if_then(status.is_error, likely=False):
        builder.call(module.declare_intrinsic("llvm.trap", fnty=ir.FunctionType(ir.VoidType(), [])), [])
    builder.ret(result)
    library.add_ir_module(module)


def undefined(content: bytes) -> tuple[str, ...]:
    """The names that an ELF object of 64 bits leaves to the linker."""
    (sections,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", content, sections + size * at) for at in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, _, _, _ in heads:
        if kind != 2:  # a table of symbols
            continue
        names = heads[link][4]
        for at in range(offset, offset + length, 24):
            name, _, _, section = struct.unpack_from("<IBBH", content, at)
            if name and section == 0:
                found.add(content[names + name : content.index(b"\0", names + name)].decode())
    return tuple(sorted(found))
