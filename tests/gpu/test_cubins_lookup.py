"""Kernels from weft's store: what is looked for there, and that no Triton is imported for it."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import weft
from commands import python
from gpu.fake_driver import FakeDriver, a_gpu, cubin, nothing_loaded
from weft.api.describe import TARGETS
from weft.gpu.common import cubins
from weft.gpu.common.cubins import Cubin
from weft.gpu.common.launch import KernelLaunch, collected
from weft.gpu.simt import family
from weft.planner.planner import Choice, choose_among
from weft.planner.schedule import ResourceError

TARGET = TARGETS["sm_90"]
SIZES = (8, 8, 8, 8, 8, 8, 8)  # three tensors, two factors; then numbers
EQUATION, SHAPES = "ckl,hcal->lahk", ((2, 2, 3), (2, 2, 5, 3))


def chosen(*shapes: tuple[int, ...], **options: Any) -> Choice:
    """A contraction of one kernel."""
    dtype = options.pop("dtype", torch.float32)
    operands = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes or SHAPES]
    described = weft.plan(EQUATION, *operands, backend="reference", **options).contraction
    return choose_among([family], described, "triton", TARGET)


def kernel_of(choice: Choice) -> KernelLaunch:
    with collected() as made:
        choice.build()
    return made[0]


def key(choice: Choice) -> str:
    found = cubins.key_of(kernel_of(choice))
    assert found is not None
    return found


def sizes_of(launch: KernelLaunch) -> tuple[int, ...]:
    """Bytes of the parameters of a kernel with operands A, B and D: pointers, factors."""
    return (8,) * (2 + sum(layout is not None for layout in launch.layouts))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "store"))
    cubins._tell.cache_clear()
    return tmp_path


@pytest.fixture
def gpu(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with a_gpu(monkeypatch, FakeDriver()) as found:
        yield found


def keep(**entries: Cubin) -> None:
    """In the store, as an earlier process would have left them."""
    for name, each in entries.items():
        cubins.keep(name, 90, each)


def compiling(monkeypatch: pytest.MonkeyPatch, made: Cubin) -> list[str]:
    """Triton compiles this one; the names of what it was asked for."""
    asked: list[str] = []

    def compile(launch: KernelLaunch) -> Cubin:
        asked.append(launch.function.name)
        return made

    monkeypatch.setattr(KernelLaunch, "compile", compile)
    monkeypatch.setattr(Cubin, "of", lambda compiled: compiled)
    return asked


def test_the_store_comes_first_then_triton(gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chosen()
    asked = compiling(monkeypatch, cubin("compiled", sizes_of(kernel_of(choice))))
    for _ in range(2):
        nothing_loaded(monkeypatch)
        choice.build()
        assert gpu.loaded[-1].removeprefix(b"\x7fELF") == b"compiled"
        assert len(asked) == 1, "it was kept"
    assert gpu.named[-1] == b"kernel"


def test_equal_kernels_are_loaded_once(gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chosen()
    launch = kernel_of(choice)
    keep(**{key(choice): cubin("packed", sizes_of(launch))})
    first, second, third = (choice.build().kernels[0] for _ in range(3))
    assert len(gpu.loaded) == 1
    assert first.loaded is second.loaded is third.loaded
    assert third.loaded is not None
    assert third.digest == cubin("packed", sizes_of(launch)).digest
    assert (third.loaded.registers, third.loaded.stack) == (40, 8)
    tensors = [torch.empty(4) for _ in range(3)]
    third([tensors[0], tensors[1], None, tensors[2]], 1.0, 0.0)
    assert gpu.launches == [(1001, third.programs, 1024)]
    assert set(gpu.contexts) == {100}


@pytest.mark.parametrize(("shared", "rooms"), [(49152, []), (65536, [232448 - 64])])
def test_much_shared_memory_is_asked_for(gpu: FakeDriver, places: Path, shared: int, rooms: list[int]) -> None:
    choice = chosen()
    keep(**{key(choice): cubin("packed", sizes_of(kernel_of(choice)), shared)})
    choice.build()
    assert gpu.rooms == rooms


def test_what_the_device_cannot_hold_is_said(gpu: FakeDriver, places: Path) -> None:
    choice = chosen()
    keep(**{key(choice): cubin("packed", sizes_of(kernel_of(choice)), 300000)})
    with pytest.raises(ResourceError, match="it needs 300000 of shared memory, the device has 232448"):
        choice.build()


def test_what_the_driver_does_not_take_is_compiled_anew_with_one_sentence(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, other = chosen(), chosen(dtype=torch.float64)
    sizes = sizes_of(kernel_of(choice))
    packed = cubin("packed", sizes)
    keep(**{key(choice): packed, key(other): packed})
    gpu.refused = (packed.code,)
    asked = compiling(monkeypatch, cubin("compiled", sizes))
    with pytest.warns(weft.WeftWarning, match=r"does without kernels of its store: .* CUDA_ERROR_INVALID_IMAGE"):
        choice.build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.build()
    assert len(asked) == 2
    assert gpu.loaded == [cubin("compiled", sizes).code] * 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"\0" * 100])
def test_a_damaged_store_is_compiled_anew(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    choice = chosen()
    asked = compiling(monkeypatch, cubin("compiled", sizes_of(kernel_of(choice))))
    choice.build()
    [file] = (places / "store" / cubins.ROOM).glob("*.json")
    file.write_bytes(damage)
    nothing_loaded(monkeypatch)
    choice.build()
    assert len(asked) == 2


def test_a_store_that_cannot_be_written_is_a_warning(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "store").write_text("no folder")
    choice = chosen()
    asked = compiling(monkeypatch, cubin("compiled", sizes_of(kernel_of(choice))))
    with pytest.warns(weft.WeftWarning, match="cannot write its cache"):
        choice.build()
    assert len(asked) == len(gpu.loaded) == 1


def test_a_launch_that_triton_is_to_tell_of_goes_through_its_launcher(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen()
    keep(**{key(choice): cubin("packed", sizes_of(kernel_of(choice)))})
    launch, seen = choice.build().kernels[0], []
    monkeypatch.setattr(KernelLaunch, "_bound", lambda self: lambda *given: seen.append(given))
    monkeypatch.setattr(KernelLaunch, "_absent", lambda self: (None,))
    hooks = SimpleNamespace(launch_enter_hook=print, launch_exit_hook=None)
    monkeypatch.setitem(sys.modules, "triton.knobs", SimpleNamespace(runtime=hooks))
    x = torch.empty(4)
    launch([x, x, None, x], 1.0, 0.0)
    assert (len(seen), gpu.launches) == (1, [])
    hooks.launch_enter_hook = None
    launch([x, x, None, x], 1.0, 0.0)
    assert (len(seen), len(gpu.launches)) == (1, 1)


def test_a_key_says_what_a_kernel_is_made_of() -> None:
    plain = chosen()
    others = [chosen((2, 2, 4), (2, 2, 7, 4)), chosen(dtype=torch.float64)]
    others += [chosen(a_fn=torch.exp), chosen(a_fn=torch.sin)]
    others.append(replace(plain, target=TARGETS["sm_80"]))
    others.append(replace(plain, best=replace(plain.best, schedule=replace(plain.best.schedule, warps=16))))
    assert len({key(plain), *map(key, others)}) == 7
    assert key(chosen(a_fn=torch.sin)) == key(others[3])


def test_a_key_holds_how_functions_become_code_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [chosen(), chosen(a_fn=torch.exp), chosen(algebra="max_plus")]
    before = [key(each) for each in choices]
    monkeypatch.setattr(cubins, "of_files", lambda *patterns: "of another version")
    assert [key(each) == old for each, old in zip(choices, before, strict=True)] == [True, False, False]


def test_settings_of_the_compiler_are_part_of_the_stores_key(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sought = cubin("plain", SIZES), "0" * 32
    cubins.keep(sought, 90, found)
    assert cubins.found(sought, 90) == found
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    assert cubins.found(sought, 90) is None


def test_a_cubin_is_kept_as_it_is() -> None:
    found = cubin("some", (8, 4), 7)
    assert Cubin.from_bytes(found.to_bytes()) == found
    for content in (b"", b"{}\n\x7fELF", b"[]\n\x7fELF", found.to_bytes().replace(b'"format": 2', b'"format": 9')):
        with pytest.raises(ValueError, match="it is no cubin"):
            Cubin.from_bytes(content)


_WITHOUT_TRITON = """
import json, sys
import pytest, torch, weft
from gpu.fake_driver import FakeDriver, a_gpu
from gpu.test_cubins_lookup import chosen, cubin, keep, key, kernel_of, sizes_of
choices = [chosen(), chosen(dtype=torch.float16), chosen(a_fn=torch.exp), chosen(algebra="max_plus")]
keep(**{key(each): cubin(key(each), sizes_of(kernel_of(each))) for each in choices})
with pytest.MonkeyPatch.context() as patch, a_gpu(patch, FakeDriver()) as found:
    for each in choices:
        launch = each.build()
        tensors = [torch.empty(100) for _ in range(3)]
        launch(tensors[0], tensors[1], None, tensors[2], 1.0, 0.0)
print(json.dumps([len(found.launches), [key(each) for each in choices], [*sys.modules]]))
"""


def test_a_kernel_is_planned_loaded_and_launched_without_triton(places: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    printed = python(_WITHOUT_TRITON, TRITON_INTERPRET="0", PYTHONPATH=path)
    launches, keys, modules = json.loads(printed.splitlines()[-1])
    assert launches == 4
    assert keys[:3] == [key(each) for each in (chosen(), chosen(dtype=torch.float16), chosen(a_fn=torch.exp))]
    assert not [name for name in modules if name.split(".")[0] == "triton"]


def test_no_warning_where_all_is_well(gpu: FakeDriver, places: Path) -> None:
    choice = chosen()
    keep(**{key(choice): cubin("packed", sizes_of(kernel_of(choice)))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice.build()
