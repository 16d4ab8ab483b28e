"""The adapters of cuTENSOR and cuTensorNet against strict stand-ins of their C functions; on a GPU the real library."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.sides import CPU, tensors_of
from fake_cutensor import FakeCutensor
from weft.errors import UnsupportedError
from weft.oracle.judgement import fill_unwritten
from weft.testing import poisoned
from weft_bench import cases
from weft_bench.cases import Case, from_letters
from weft_bench.checking import reference_slabs
from weft_bench.peers import cutensor_library
from weft_bench.peers.cutensor import Cutensor
from weft_bench.peers.cutensor_ahead import compile_into, compile_kernels, meta_tensors
from weft_bench.peers.registry import Prepared, Tensors

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def prepared(case: Case, fake: FakeCutensor | None = None, quick: bool = False) -> Prepared:
    found = Cutensor((fake or FakeCutensor()).library, quick=quick).prepare(case, tensors_of(case))
    assert isinstance(found, Prepared), found
    return found


def check_all(case: Case) -> Prepared:
    """Every way of the case is right, on tensors other than those it was prepared with."""
    found = prepared(case)
    fresh = tensors_of(case, seed=7)
    for way in found.ways:
        fill_unwritten(fresh.d)
        result = way.run(*fresh)
        for slab in reference_slabs(case, fresh):
            slab.compare(result, found.stored)
    return found


def test_tccg_goes_in_as_it_lies() -> None:
    for case in cases.tccg(HALF, HALF):
        found = check_all(cases.scaled(case, 1 << 10))
        assert found.ways[0].about["separate kernels"] == []


@pytest.mark.parametrize(
    "case",
    [case for case in cases.beyond() if not case.tags & {"integer"} and torch.bfloat16 not in case.dtypes],
    ids=str,
)
def test_beyond(case: Case) -> None:
    small = cases.scaled(case, 1 << 10)
    if case.name == "lone-sums-of-both":  # float32 in, all modes reduced before: an outer product
        assert any("summed" in said for said in check_all(small).ways[0].about["separate kernels"])
    else:
        check_all(small)


def test_every_algorithm_with_and_without_jit_and_numbered_kernels() -> None:
    found = prepared(from_letters("plain", "mk,kn->mn", m=4, k=5, n=6), FakeCutensor(kernels=2))
    names = ("default", "patient", "gett", "tgett", "ttgt")
    assert [way.label for way in found.ways] == [*names, *(f"{name}+jit" for name in names), "kernel-0", "kernel-1"]
    assert "CUTENSOR_STATUS_NOT_SUPPORTED" in found.refused["kernel-2"]
    assert {way.label: way.about["workspace bytes"] for way in found.ways}["ttgt"] == 4096


def test_each_way_runs_the_algorithm_it_is_named_after() -> None:
    fake = FakeCutensor()
    case = from_letters("plain", "mk,kn->mn", m=4, k=5, n=6)
    for way in prepared(case, fake).ways:
        way.run(*tensors_of(case))
    modes = [(algorithm, jit) for algorithm, jit, _ in fake.contractions]
    assert modes == [(number, jit) for jit in (0, 1) for number in (-1, -6, -4, -3, -2)] + [(0, 0), (1, 0)]


def test_quick_tries_the_modes_that_win() -> None:
    found = prepared(from_letters("plain", "mk,kn->mn", m=4, k=5, n=6), quick=True)
    assert [way.label for way in found.ways] == [
        "default",
        "patient",
        "gett",
        "tgett",
        "ttgt",
        "default+jit",
        "gett+jit",
    ]


def test_a_mode_that_cannot_is_named_and_the_others_count() -> None:
    mixed = from_letters("mixed", "mk,kn->mn", m=4, k=5, n=6, dtypes=(HALF, HALF, SINGLE))
    found = prepared(mixed)
    assert all(way.label.endswith("+jit") for way in found.ways)
    assert "cutensorCreatePlan" in found.refused["gett"]


def test_every_compute_type_is_held_to_the_errors_of_ieee_sums() -> None:
    for dtype, computes in ((SINGLE, {"32F", "9X16BF", "3XTF32", "TF32"}), (DOUBLE, {"64F", "8XINT8"})):
        fake = FakeCutensor()
        case = from_letters("sum", "mk,kn->mn", m=4, k=5, n=6, dtypes=(dtype,) * 3, precision="ieee_bound")
        found = prepared(case, fake)
        assert {way.label.rpartition(" ")[2] for way in found.ways} == computes
        assert {label.rpartition(" ")[2] for label in found.yardstick} == computes & {"32F", "64F"}


@pytest.mark.parametrize(
    ("dtype", "precision", "compute", "scalar"),
    [
        (HALF, None, "32F", 0),
        (SINGLE, None, "32F", 0),
        (SINGLE, "tf32", "TF32", 0),
        (SINGLE, "tf32x3", "3XTF32", 0),
        (DOUBLE, None, "64F", 1),
        (torch.complex64, None, "32F", 4),
        (torch.complex64, "tf32", "TF32", 4),
        (torch.complex128, None, "64F", 5),
    ],
)
def test_sums_are_as_wide_as_weft_makes_them(dtype: torch.dtype, precision: str, compute: str, scalar: int) -> None:
    fake = FakeCutensor()
    case = from_letters("sum", "mk,kn->mn", m=4, k=5, n=6, dtypes=(dtype,) * 3, precision=precision, alpha=0.5)
    prepared(case, fake).ways[0].run(*tensors_of(case))
    assert (fake.contractions[-1][2]["compute"], fake.contractions[-1][2]["scalar"]) == (compute, scalar)


def test_relu_is_fused_on_both_operands_and_tried_unfused_too() -> None:
    case = from_letters("relu", "mk,kn->mn", m=4, k=5, n=6, a_fn="relu", b_fn="relu", epilogue="relu")
    fake = FakeCutensor()
    found = check_all(case)
    assert {way.label for way in found.ways} >= {"gett fused", "gett unfused"}
    by_label = {way.label: way for way in prepared(case, fake).ways}
    assert by_label["gett fused"].about["separate kernels"] == ["relu of D"]
    assert by_label["gett unfused"].about["separate kernels"] == ["relu of A", "relu of B", "relu of D"]
    by_label["gett fused"].run(*tensors_of(case))
    assert fake.contractions[-1][2]["ops"] == (8, 8)
    by_label["gett unfused"].run(*tensors_of(case))
    assert fake.contractions[-1][2]["ops"] == (1, 1)


def test_leaky_relu_needs_kernels_of_its_own_and_leaves_the_operands_alone() -> None:
    case = from_letters(
        "leaky", "mk,kn->mn", m=4, k=5, n=6, a_fn="leaky_relu", b_fn="leaky_relu", epilogue="leaky_relu"
    )
    found = check_all(case)
    assert found.ways[0].about["separate kernels"] == ["leaky_relu of A", "leaky_relu of B", "leaky_relu of D"]
    given = tensors_of(case)
    before = given.a.clone(), given.b.clone()
    found.ways[0].run(*given)
    assert torch.equal(given.a, before[0])
    assert torch.equal(given.b, before[1])


def test_functions_with_conjugates_and_lone_modes() -> None:
    both = from_letters(
        "both", "mkx,kn->mn", m=4, k=5, n=6, x=3, dtypes=(torch.complex64,) * 3, conjugate=(True, True), b_fn="tanh"
    )
    check_all(both)
    lone = from_letters("lone", "mkx,kn->mn", m=4, k=5, n=6, x=3, a_fn="relu")
    found = check_all(lone)
    assert all("unfused" in way.label for way in found.ways)
    assert "summed first" in found.refused["every mode fused"]


def test_alpha_beta_and_c() -> None:
    case = from_letters("add", "mk,kn->mn", m=4, k=5, n=6, alpha=0.5, beta=-2.0, add=True, c_fn="tanh")
    assert check_all(case).ways[0].about["separate kernels"] == ["tanh of C"]
    check_all(replace(case, c_fn=None, dtypes=(torch.complex128,) * 3, alpha=0.5 + 1j, beta=2 - 1j))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtypes": (torch.int8, torch.int8, torch.int32)}, "no sums of torch.int8"),
        ({"precision": HALF}, "does not round"),
        ({"accumulate": DOUBLE}, "no sums"),
        ({"dtypes": (torch.complex64, torch.complex64, SINGLE), "epilogue": "modulus"}, "does not write"),
        ({"add": True, "layouts": ("contiguous",) * 3 + ("permuted",)}, "C to lie as D"),
    ],
)
def test_what_it_cannot_do_is_a_sentence(change: dict, said: str) -> None:
    case = replace(from_letters("plain", "mk,kn->mn", m=4, k=5, n=6), **change)
    found = Cutensor(FakeCutensor().library).prepare(case, tensors_of(case))
    assert isinstance(found, str)
    assert said in found


def test_everything_is_destroyed_the_handle_last() -> None:
    fake = FakeCutensor()
    found: Prepared | None = prepared(from_letters("plain", "mk,kn->mn", m=4, k=5, n=6), fake)
    assert found is not None
    found.ways[0].run(*tensors_of(from_letters("plain", "mk,kn->mn", m=4, k=5, n=6)))
    assert len(fake.alive) > 1
    del found
    gc.collect()
    assert list(fake.alive.values()) == ["handle"]
    del fake.library
    gc.collect()
    assert fake.alive == {}


def test_on_a_cpu_it_says_so() -> None:
    case = from_letters("plain", "mk,kn->mn", m=4, k=5, n=6)
    assert Cutensor().prepare(case, tensors_of(case)) == "cuTENSOR runs on NVIDIA GPUs"


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CUTENSOR", "/nowhere/libcutensor.so.2")
    with pytest.raises(UnsupportedError, match=r"/nowhere/libcutensor\.so\.2"):
        cutensor_library.load()


def installed(folder: Path, version: str = "2.8.1") -> Path:
    """A wheel of cuTENSOR as pip leaves it in a folder; returns its library."""
    library = folder / "cutensor" / "lib" / "libcutensor.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    about = folder / f"cutensor_cu13-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cutensor-cu13\nVersion: {version}\n")
    (about / "RECORD").write_text("cutensor/lib/libcutensor.so.2,,\n")
    return library


def test_the_wheel_of_a_library_has_a_version_of_its_own(tmp_path: Path) -> None:
    """Also where it lies outside of this environment; a file that no wheel brought has none."""
    library = installed(tmp_path / "site")
    assert cutensor_library.wheel_of(library) == "cutensor-cu13 2.8.1"
    (tmp_path / "link.so").symlink_to(library)
    assert cutensor_library.wheel_of(tmp_path / "link.so") == "cutensor-cu13 2.8.1"
    beside = library.with_name("libcutensor.so.3")
    beside.write_bytes(b"carried here")
    assert cutensor_library.wheel_of(beside) is None
    assert cutensor_library.wheel_of(tmp_path / "nowhere" / "libcutensor.so.2") is None


def test_what_is_loaded_is_asked_for_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = installed(tmp_path)
    monkeypatch.setenv("WEFT_CUTENSOR", str(library))
    monkeypatch.setattr(cutensor_library.ctypes, "CDLL", lambda name: name)
    monkeypatch.setattr(cutensor_library, "load_companions", lambda: None)
    monkeypatch.setattr(cutensor_library, "bind", lambda shared, wheel: (shared, wheel))
    assert cutensor_library.load() == (str(library), "cutensor-cu13 2.8.1")


def test_a_bare_name_is_where_the_loader_found_it() -> None:
    found = cutensor_library._loaded_from("libc.so.6")
    if found.is_absolute():  # on Linux with glibc
        assert found.name.startswith("libc")
    assert cutensor_library._loaded_from("/a/libcutensor.so.2") == Path("/a/libcutensor.so.2")


def test_records_name_the_library_and_its_wheel() -> None:
    fake = FakeCutensor()
    assert fake.library.text == "cuTENSOR 2.8.1"
    fake.library.wheel = "cutensor-cu13 2.8.2"
    assert fake.library.text == "cuTENSOR 2.8.1 (wheel cutensor-cu13 2.8.2)"


@pytest.mark.gpu
def test_the_real_library_computes_a_fused_product() -> None:
    case = replace(cases.tccg(HALF, SINGLE)[3], a_fn="relu", b_fn="leaky_relu", epilogue="elu")
    small = cases.scaled(case, 1 << 22)
    given = cases.operands(small, device="cuda")
    tensors = Tensors(*given, poisoned(small.d_shape, SINGLE, device="cuda").tensor)
    found = Cutensor(quick=True).prepare(small, tensors)
    if isinstance(found, str) and "cannot be used" in found:
        pytest.skip(found)
    assert isinstance(found, Prepared), found
    for way in found.ways:
        fill_unwritten(tensors.d)
        for slab in reference_slabs(small, tensors):
            slab.compare(way.run(*tensors), found.stored)


PLAIN = from_letters("plain", "mk,kn->mn", m=4, k=5, n=6, dtypes=(torch.float16, torch.float16, torch.float32))


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the CPU is aligned as memory of the GPU is, as far as the stand-in looks."""
    monkeypatch.setattr("weft_bench.peers.cutensor._SURE_ALIGNMENT", {"cpu": 16, "meta": 16})


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"a_fn": "relu", "b_fn": "relu", "epilogue": "relu"},
        {"a_fn": "leaky_relu"},
        {"dtypes": (torch.complex64,) * 3, "conjugate": (True, False)},
        {"layouts": ("permuted", "contiguous", "contiguous", "permuted")},
        {"add": True, "beta": 2.0},
    ],
)
def test_what_was_compiled_elsewhere_is_found(change: dict, tmp_path: Path) -> None:
    case = replace(PLAIN, **change)
    there, here = FakeCutensor(), FakeCutensor()
    compile_into(there.library, [case], tmp_path / "kernels")
    assert there.compiled > 0
    assert there.contractions == []
    here.library.read_kernels(tmp_path / "kernels")
    assert isinstance(Cutensor(here.library).prepare(case, tensors_of(case)), Prepared)
    assert here.compiled == 0


def test_without_it_kernels_are_compiled_where_they_are_needed() -> None:
    here = FakeCutensor()
    Cutensor(here.library).prepare(PLAIN, tensors_of(PLAIN))
    assert here.compiled > 0


def test_a_case_that_the_library_refuses_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    integers = replace(PLAIN, dtypes=(torch.int8, torch.int8, torch.int32))
    fake = FakeCutensor()
    compile_into(fake.library, [integers, PLAIN], tmp_path / "kernels")
    assert fake.compiled > 0
    assert (tmp_path / "kernels").exists()


def test_tensors_without_memory_lie_as_the_real_ones() -> None:
    for case in (*cases.beyond(), *cases.tccg()):
        small = cases.scaled(case, 1 << 10)
        for unreal, real in zip(meta_tensors(small), tensors_of(small), strict=True):
            assert (unreal is None) == (real is None), case
            if real is not None:
                assert (unreal.shape, unreal.stride(), unreal.dtype) == (real.shape, real.stride(), real.dtype), case
                assert unreal.is_conj() == real.is_conj()


def test_without_a_gpu_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_bench.peers.cutensor_library.load", pytest.fail)
    compile_kernels([Cutensor()], [PLAIN] * 8, CPU, jobs=4)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_all_shares_arrive_and_one_that_fails_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand in for the processes, which need a GPU."""
    here = FakeCutensor()
    wide = [replace(PLAIN, name=str(n), shapes=((4, 5), (5, n))) for n in range(2, 8)]
    elsewhere: list[FakeCutensor] = []

    def share(given: list[Case], file: Path, device: torch.device, quick: bool) -> None:
        if wide[1] in given:
            raise RuntimeError("no room on the GPU")
        elsewhere.append(FakeCutensor())
        compile_into(elsewhere[-1].library, given, file, quick)

    monkeypatch.setattr("weft_bench.peers.cutensor_ahead._processes", ThreadPoolExecutor)
    monkeypatch.setattr("weft_bench.peers.cutensor_ahead._compile_share", share)
    peer = Cutensor(here.library)
    with pytest.warns(UserWarning, match="not all compiled ahead: RuntimeError: no room on the GPU"):
        compile_kernels([object(), peer], [*wide, replace(wide[0], a_fn="relu")], torch.device("cuda"), jobs=3)
    assert len(elsewhere) == 2
    for at, case in enumerate(wide):
        before = here.compiled
        assert isinstance(peer.prepare(case, tensors_of(case)), Prepared)
        assert (here.compiled > before) == (at % 3 == 1)
