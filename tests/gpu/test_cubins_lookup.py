"""Kernels from the pack and from weft's store: what is looked for where, and that no Triton is imported for it."""

from __future__ import annotations

import json
import os
import subprocess
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
from gpu.fake_driver import FakeDriver, a_gpu, cubin, nothing_loaded
from weft.api.describe import TARGETS
from weft.base.bounded_cache import BoundedCache
from weft.gpu.common import cubins, loading
from weft.gpu.common.cubin import Cubin
from weft.gpu.common.launch import KernelLaunch, collected
from weft.gpu.generic import family
from weft.machine import pack
from weft.planner.at_hand import at_hand
from weft.planner.planner import Choice
from weft.planner.schedule import ResourceError

TARGET = TARGETS["sm_90"]
SIZES = (8, 8, 8, 8, 8, 8, 8)  # three tensors, two factors; then numbers
EQUATION, SHAPES = "ckl,hcal->lahk", ((2, 2, 3), (2, 2, 5, 3))


def chosen(*shapes: tuple[int, ...], **options: Any) -> Choice:
    """A contraction whose kernel is shape-generic."""
    dtype = options.pop("dtype", torch.float32)
    operands = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes or SHAPES]
    described = weft.plan(EQUATION, *operands, backend="reference", **options).contraction
    choice = at_hand(described, "triton", TARGET)
    assert isinstance(choice, Choice)
    assert choice.best.family is family
    return choice


def kernel_of(choice: Choice) -> KernelLaunch:
    with collected() as made:
        choice.build()
    return made[0]


def key(choice: Choice) -> str:
    found = cubins.key_of(kernel_of(choice))
    assert found is not None
    return found


def sizes_of(launch: KernelLaunch) -> tuple[int, ...]:
    """Bytes of the parameters of a kernel with operands A, B and D: pointers, factors, numbers."""
    return (8,) * 5 + (4,) * len(launch.numbers or ())


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and an empty folder for a pack."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("WEFT_KERNELS", str(tmp_path))
    monkeypatch.setattr(cubins, "_refused", set())
    for remembered in (pack._opened, pack._tell, loading._tell):
        remembered.cache_clear()
    return tmp_path


@pytest.fixture
def gpu(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with a_gpu(monkeypatch, FakeDriver()) as found:
        yield found


def shelve(folder: Path, **entries: Cubin) -> None:
    pack.write_shelf(folder / "sm_90.pack", {name: each.to_bytes() for name, each in entries.items()}, {})
    pack._opened.cache_clear()


def compiling(monkeypatch: pytest.MonkeyPatch, made: Cubin) -> list[str]:
    """Triton compiles this one; the names of what it was asked for."""
    asked: list[str] = []

    def compile(launch: KernelLaunch) -> Cubin:
        asked.append(launch.function.name)
        return made

    monkeypatch.setattr(KernelLaunch, "compile", compile)
    monkeypatch.setattr(Cubin, "of", lambda compiled: compiled)
    return asked


def test_the_pack_comes_first_then_the_store_then_triton(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen()
    sizes = sizes_of(kernel_of(choice))
    asked = compiling(monkeypatch, cubin("compiled", sizes))

    def loaded() -> bytes:
        nothing_loaded(monkeypatch)
        choice.build()
        return gpu.loaded[-1].removeprefix(b"\x7fELF")

    assert loaded() == b"compiled"
    assert len(asked) == 1
    assert loaded() == b"compiled"
    assert len(asked) == 1, "it was kept"
    shelve(places, **{key(choice): cubin("packed", sizes)})
    assert loaded() == b"packed"
    monkeypatch.setenv("WEFT_KERNELS", "0")
    assert loaded() == b"compiled"
    assert len(asked) == 1
    assert gpu.named[-1] == b"kernel"


def test_equal_kernels_are_loaded_once(gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chosen()
    launch = kernel_of(choice)
    shelve(places, **{key(choice): cubin("packed", sizes_of(launch))})
    first, second = (choice.build().kernels[0] for _ in range(2))
    monkeypatch.setattr(family, "_KERNELS", BoundedCache(64))
    third = choice.build().kernels[0]
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
    shelve(places, **{key(choice): cubin("packed", sizes_of(kernel_of(choice)), shared)})
    choice.build()
    assert gpu.rooms == rooms


def test_what_the_device_cannot_hold_is_said(gpu: FakeDriver, places: Path) -> None:
    choice = chosen()
    shelve(places, **{key(choice): cubin("packed", sizes_of(kernel_of(choice)), 300000)})
    with pytest.raises(ResourceError, match="it needs 300000 of shared memory, the device has 232448"):
        choice.build()


def test_what_the_driver_does_not_take_is_compiled_anew_with_one_sentence(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, other = chosen(), chosen(dtype=torch.float64)
    sizes = sizes_of(kernel_of(choice))
    packed = cubin("packed", sizes)
    shelve(places, **{key(choice): packed, key(other): packed})
    gpu.refused = (packed.code,)
    asked = compiling(monkeypatch, cubin("compiled", sizes))
    with pytest.warns(weft.WeftWarning, match=r"does without kernels of the pack: .* CUDA_ERROR_INVALID_IMAGE"):
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


def test_a_damaged_pack_is_compiled_anew_with_one_sentence(
    gpu: FakeDriver, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen()
    sizes = sizes_of(kernel_of(choice))
    shelve(places, **{key(choice): cubin("packed", sizes)})
    file = places / "sm_90.pack"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    asked = compiling(monkeypatch, cubin("compiled", sizes))
    with pytest.warns(weft.WeftWarning, match="an entry is not as it was written"):
        choice.build()
    assert len(asked) == 1


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
    shelve(places, **{key(choice): cubin("packed", sizes_of(kernel_of(choice)))})
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
    longer = chosen((2, 2, 4), (2, 2, 7, 4))
    assert key(longer) == key(plain), "extents are arguments"
    others = [chosen(dtype=torch.float64), chosen(a_fn=torch.exp), chosen(a_fn=torch.sin)]
    others.append(replace(plain, target=TARGETS["sm_80"]))
    others.append(replace(plain, best=replace(plain.best, schedule=replace(plain.best.schedule, warps=16))))
    assert len({key(plain), *map(key, others)}) == 6
    assert key(chosen(a_fn=torch.sin)) == key(others[2])


def test_a_key_holds_how_functions_become_code_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [chosen(), chosen(a_fn=torch.exp), chosen(algebra="max_plus")]
    before = [key(each) for each in choices]
    monkeypatch.setattr(cubins, "of_files", lambda *patterns: "of another version")
    assert [key(each) == old for each, old in zip(choices, before, strict=True)] == [True, False, False]


def test_settings_of_the_compiler_are_part_of_the_stores_key(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sought = cubin("plain", SIZES), "0" * 32
    cubins.keep(sought, 90, found)
    assert [each for _, each in cubins.found(sought, 90)] == [found]
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    assert not list(cubins.found(sought, 90))


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
from gpu.test_cubins_lookup import chosen, cubin, key, kernel_of, shelve, sizes_of
from pathlib import Path
choices = [chosen(), chosen(dtype=torch.float16), chosen(a_fn=torch.exp), chosen(algebra="max_plus")]
shelve(Path(sys.argv[1]), **{key(each): cubin(key(each), sizes_of(kernel_of(each))) for each in choices})
with pytest.MonkeyPatch.context() as patch, a_gpu(patch, FakeDriver()) as found:
    for each in choices:
        launch = each.build()
        tensors = [torch.empty(100) for _ in range(3)]
        launch(tensors[0], tensors[1], None, tensors[2], 1.0, 0.0)
print(json.dumps([len(found.launches), [key(each) for each in choices], [*sys.modules]]))
"""


def test_a_kernel_is_planned_loaded_and_launched_without_triton(places: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TRITON, str(places)], capture_output=True, text=True, timeout=120,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launches, keys, modules = json.loads(done.stdout.splitlines()[-1])
    assert launches == 4
    assert keys[:3] == [key(each) for each in (chosen(), chosen(dtype=torch.float16), chosen(a_fn=torch.exp))]
    assert not [name for name in modules if name.split(".")[0] == "triton"]


def test_no_warning_where_all_is_well(gpu: FakeDriver, places: Path) -> None:
    choice = chosen()
    shelve(places, **{key(choice): cubin("packed", sizes_of(kernel_of(choice)))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice.build()
