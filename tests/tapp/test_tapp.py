"""libweft_tapp.so, contractions for C and Fortran: values against NumPy's in double, and what errors say."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

PACKAGE = Path(__file__).parents[2] / "packages" / "weft-tapp"
TYPES = {"f4": 0, "f8": 1, "c8": 2, "c16": 3, "f2": 4}
PRODUCTS = (*[(each,) * 4 for each in TYPES], ("f4", "f8", "f4", "f8"), ("f8", "c16", "f8", "c16"),
            ("f2", "f4", "f4", "f2"), ("c16", "c8", "c8", "c8"))  # fmt: skip
Handle = ctypes.c_ssize_t

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def built(folder: Path, flags: str) -> Path:
    """The library, made once for all processes that test it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", PACKAGE, f"OUT={folder}", f"CFLAGS={flags}"], check=True, timeout=300)
    return folder / "libweft_tapp.so"


@pytest.fixture(scope="module")
def path(pytestconfig: pytest.Config) -> Path:
    return built(pytestconfig.rootpath / ".pytest_cache" / "tapp", "-O2 -DWEFT_ONE_LEVEL -march=native")


@pytest.fixture(scope="module")
def library(path: Path) -> ctypes.CDLL:
    return opened(path)


def opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    one = (ctypes.POINTER(Handle), ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    library.TAPP_create_tensor_info.argtypes = one
    library.TAPP_create_tensor_product.argtypes = [
        ctypes.POINTER(Handle), Handle, *[ctypes.c_int, Handle, ctypes.c_void_p] * 4, ctypes.c_int,
    ]  # fmt: skip
    library.TAPP_execute_product.argtypes = [Handle, Handle, *[ctypes.c_void_p] * 7]
    library.TAPP_execute_batched_product.argtypes = [
        Handle, Handle, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_void_p] * 3,
    ]  # fmt: skip
    for name in ("TAPP_destroy_tensor_info", "TAPP_destroy_tensor_product"):
        getattr(library, name).argtypes = [Handle]
    return library


def numbers(values) -> ctypes.Array:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


class Product:
    """A planned product of arrays' descriptions."""

    def __init__(self, library, equation, a, b, c, d, conjugated=(0, 0, 0, 0), prec=-1, kinds=None) -> None:
        self.library, self.plan = library, Handle()
        inputs, output = equation.split("->")
        self.words = []
        for term, x, op in zip((*inputs.split(","), output, output), (a, b, c, d), conjugated, strict=True):
            info = Handle()
            kind = TYPES[x.dtype.str[1:]] if kinds is None else kinds
            steps = numbers([step // x.itemsize for step in x.strides])
            assert not library.TAPP_create_tensor_info(ctypes.byref(info), kind, x.ndim, numbers(x.shape), steps)
            self.words += [int(op), info, numbers([ord(label) for label in term])]
        self.error = library.TAPP_create_tensor_product(ctypes.byref(self.plan), 0, *self.words, prec)
        for info in self.words[1::3]:
            library.TAPP_destroy_tensor_info(info)

    def __call__(self, a, b, c, d, alpha=1, beta=0) -> int:
        alpha, beta = (np.array(each, d.dtype) for each in (alpha, beta))
        given = (each if each is None else each.ctypes.data for each in (alpha, a, b, beta, c, d))
        return self.library.TAPP_execute_product(self.plan, 0, None, *given)

    def batched(self, count, a, b, c, d, beta=0) -> int:
        """Lists of arrays, each of which may be None; None for `c` as a whole is NULL."""
        one, beta = np.ones((), d[0].dtype), np.array(beta, d[0].dtype)
        lists = [each and (ctypes.c_void_p * len(each))(*(x if x is None else x.ctypes.data for x in each))
                 for each in (a, b, c, d)]  # fmt: skip
        scalars = one.ctypes.data, beta.ctypes.data
        given = scalars[0], lists[0], lists[1], scalars[1], lists[2], lists[3]
        return self.library.TAPP_execute_batched_product(self.plan, 0, None, count, *given)

    def __del__(self) -> None:
        self.library.TAPP_destroy_tensor_product(self.plan)


class Drawn:
    """A random product: batch, free and summed modes, some of one operand alone; views, steps backwards."""

    def __init__(self, seed: int) -> None:
        self.draw, self.values = random.Random(seed), np.random.default_rng(seed)
        draw = self.draw
        lone = int(draw.random() < 0.15)
        roles = dict(zip("bmnkpq", ("ab", "cd", "ef", "gh", "i", "j"), strict=True))
        count = lambda role: draw.choice((0, 1, 1, 2)) if role in "bmnk" else lone  # noqa: E731
        roles = {role: labels[: count(role)] for role, labels in roles.items()}
        sizes = (2, 20, 70, 300) if draw.random() < 0.2 else (1, 2, 3, 5, 7, 17)
        self.extents = {label: 0 if draw.random() < 0.02 else draw.choice(sizes) for label in "".join(roles.values())}
        while np.prod([float(max(1, each)) for each in self.extents.values()]) > 2e6:
            self.extents = {label: -(-extent // 2) for label, extent in self.extents.items()}
        terms = (roles["b"] + roles["m"] + roles["k"] + roles["p"], roles["b"] + roles["n"] + roles["k"] + roles["q"],
                 roles["b"] + roles["m"] + roles["n"])  # fmt: skip
        self.terms = ["".join(draw.sample(term, len(term))) for term in terms]
        self.equation = f"{self.terms[0]},{self.terms[1]}->{self.terms[2]}"
        self.kinds = draw.choice(PRODUCTS)
        self.summed = np.prod([float(self.extents[x]) for role in "kpq" for x in roles[role]])

    def array(self, term: str, kind: str) -> np.ndarray:
        order = self.draw.sample(range(len(term)), len(term))
        shape = [self.extents[term[at]] + self.draw.choice((0, 0, 2)) for at in order]
        found = self.values.standard_normal(shape)
        found = (found + 1j * self.values.standard_normal(shape) if kind[0] == "c" else found).astype(kind)
        found = found.transpose([order.index(at) for at in range(len(term))])
        found = found[(..., *[slice(0, self.extents[label]) for label in term])]
        return found[(..., *[slice(None, None, -1 if self.draw.random() < 0.2 else 1) for _ in term])]

    def check(self, library: ctypes.CDLL) -> None:
        draw, kind = self.draw, self.kinds[3]
        a, b, c, d = (self.array(*each) for each in zip((*self.terms, self.terms[2]), self.kinds, strict=True))
        conjugated = [kind[0] == "c" and draw.random() < 0.3 for _ in range(4)]
        alpha, beta = draw.choice((1, -0.5)), draw.choice((0, 1, 0.25))
        if kind[0] == "c":
            alpha, beta = alpha * (1 + 0.5j), beta * (1 - 2j)
        in_place = draw.random() < 0.3
        widest = "c16" if "c" in "".join(self.kinds) else "f8"
        wide = [x.astype(widest) for x in (a, b, d if in_place else c)]
        x, y, z = (each.conj() if flag else each for each, flag in zip(wide, conjugated, strict=False))
        expected = alpha * np.einsum(self.equation, x, y) + (beta * z if beta else 0)
        bound = abs(alpha) * np.einsum(self.equation, abs(x), abs(y)) + abs(beta) * abs(z)
        product = Product(library, self.equation, a, b, d if in_place else c, d, conjugated)
        assert product.error == 0, self
        assert product(a, b, (None if draw.random() < 0.5 else d) if in_place else c, d, alpha, beta) == 0
        has_double = any(each in ("f8", "c16") for each in self.kinds)
        eps = max(np.finfo(kind).eps, np.finfo("f8" if has_double else "f4").eps)  # of D, and of the sums
        slack = 2.0**-24 if kind == "f2" else 0  # its subnormal numbers
        error = abs(d - (expected.conj() if conjugated[3] else expected))
        assert (error <= eps * (4 + 2 * self.summed) * bound + slack).all(), (self.equation, self.extents, self.kinds)


@pytest.mark.parametrize("seed", range(4))
def test_products_of_any_layout_and_type(library, seed):
    for at in range(100):
        Drawn(1000 * seed + at).check(library)


@pytest.mark.slow
def test_vectors_of_any_length(tmp_path):
    """The library that chooses among levels when it is called, and those of the shorter vectors."""
    one = "-O2 -DWEFT_ONE_LEVEL -march="
    flags = ("-O3", f"{one}haswell", f"{one}x86-64") if os.uname().machine == "x86_64" else ("-O3",)
    for number, each in enumerate(flags):
        library = opened(built(tmp_path / str(number), each))
        for seed in range(600):
            Drawn(seed).check(library)


def test_sums_longer_than_a_block_and_rows_of_several_threads(library):
    a, b = (np.random.default_rng(at).integers(-4, 5, (700, 900)).astype("f8") for at in (0, 1))
    d = np.full((700, 700), np.nan)
    assert Product(library, "mk,nk->mn", a, b, d, d)(a, b, None, d) == 0
    np.testing.assert_array_equal(d, a @ b.T)


def test_diagonals(library):
    draw = np.random.default_rng(0).random
    a, b, d = draw((4, 4, 5)), draw((5, 4)), np.zeros((4, 4))
    assert Product(library, "iik,kj->ij", a, b, d, d)(a, b, None, d) == 0
    np.testing.assert_allclose(d, np.einsum("iik,kj->ij", a, b))
    d = np.zeros((4, 4))
    x, y = draw(4), draw(4)
    assert Product(library, "i,i->ii", x, y, d, d)(x, y, None, d) == 0
    np.testing.assert_array_equal(d, np.diag(x * y))


def test_halves_and_bfloats_are_rounded_to_nearest(library):
    values = torch.randn(500) * 2.0 ** torch.randint(-30, 20, (500,))
    values = torch.cat([values, torch.tensor([65519.0, 65520.0, 2.0**-25])])
    for kind, dtype in ((4, torch.float16), (5, torch.bfloat16)):
        a = values.to(dtype)
        b = torch.tensor([1 + 2.0**-7, 0.75, 1.0]).to(dtype)
        d = torch.empty(len(values), 3, dtype=dtype)
        views = [x.view(torch.int16).numpy() for x in (a, b, d)]
        product = Product(library, "i,j->ij", *views[:2], views[2], views[2], kinds=kind)
        one = torch.ones(1, dtype=dtype).view(torch.int16).item()
        assert product(*views[:2], None, views[2], one, 0) == 0
        expected = (a.double()[:, None] * b.double()).to(torch.float32).to(dtype)  # sums are float32
        assert torch.equal(d, expected)


@pytest.mark.parametrize(
    ("equation", "shapes", "sentence"),
    [
        ("ik,kj->ij", ((2, 3), (4, 5), (2, 5)), "A label that A and B share has two extents."),
        ("ik,kj->ij", ((2, 3), (3, 5), (3, 5)), "A label that A and D share has two extents."),
        ("ik,kj->ij", ((2, 3), (3, 5), (2, 4)), "A label that B and D share has two extents."),
        ("ik,kj->il", ((2, 3), (3, 5), (2, 4)), "D has a label that neither A nor B has."),
        ("iik,kj->ij", ((2, 3, 3), (3, 5), (2, 5)), "A label that stands twice in A has two extents."),
    ],
)
def test_what_cannot_be_planned(library, equation, shapes, sentence):
    a, b, d = (np.ones(shape) for shape in shapes)
    product = Product(library, equation, a, b, d, d)
    assert explained(library, product.error) == sentence
    before = d.copy()
    assert product(a, b, None, d) == product.error
    np.testing.assert_array_equal(d, before)


def test_other_errors(library):
    a, d = np.ones((3, 3)), np.ones((3, 3))
    apart = np.lib.stride_tricks.as_strided(np.ones(7), (3, 3), (16, 8))
    product = Product(library, "ik,kj->ij", a, a, apart, apart)
    assert explained(library, product.error) == "Two elements of D lie at one address."
    woven = np.lib.stride_tricks.as_strided(np.zeros(9), (3, 2), (16, 24))  # 0, 2, 4 and 3, 5, 7: each once
    assert Product(library, "ik,kj->ij", a, np.ones((3, 2)), woven, woven)(a, np.ones((3, 2)), None, woven) == 0
    np.testing.assert_array_equal(woven, np.full((3, 2), 3.0))
    wrong = Product(library, "ik,kj->ij", a, a, a.astype("f4"), d)
    assert explained(library, wrong(a, a, None, d, 1, 1)).startswith("beta is not zero and there is no C")
    real = Product(library, "ik,kj->ij", a.astype("c16"), a, d, d)
    assert explained(library, real.error) == "A, B or C is complex and D is real."
    assert explained(library, Product(library, "ik,kj->ij", a, a, d, d, prec=9).error) == "There is no such precision."
    info = Handle()
    error = library.TAPP_create_tensor_info(ctypes.byref(info), 1, -1, None, None)
    assert explained(library, error) == "A tensor has a negative number of modes."
    assert explained(library, 99) == "There is no error of this number."
    assert library.TAPP_explain_error(8, ctypes.c_size_t(0), None) == len("Two elements of D lie at one address.")
    short = ctypes.create_string_buffer(8)
    assert library.TAPP_explain_error(8, ctypes.c_size_t(8), short) == 7
    assert short.value == b"Two ele"


OVERLAPS = "D overlaps A or B, or a C that does not lie as D does."


def test_batches_are_all_checked_before_one_is_written(library):
    a = [np.full((2, 3), at + 1.0) for at in range(3)]
    b, d = [np.ones((3, 2)) for _ in a], [np.full((2, 2), np.nan) for _ in a]
    product = Product(library, "ik,kj->ij", a[0], b[0], d[0], d[0])
    assert product.batched(3, a, b, None, d) == 0
    np.testing.assert_array_equal(np.stack(d), np.stack(a) @ np.stack(b))
    before = [each.copy() for each in d]
    for bad, sentence in (
        ((a, [*b[:2], None], None, d), "An argument that is needed is NULL."),
        ((a, b, None, [*d[:2], None]), "An argument that is needed is NULL."),
        ((a, b, None, [*d[:2], a[2]]), OVERLAPS),
    ):
        assert explained(library, product.batched(3, *bad)) == sentence
        np.testing.assert_array_equal(d, before)
    assert explained(library, product.batched(-1, a, b, None, d)) == "The number of batches is negative."
    assert product.batched(0, a, b, None, d) == 0
    np.testing.assert_array_equal(d, before)


def test_batches_without_a_c_that_is_needed_write_nothing(library):
    a, b, c, d = (np.ones((2, 2)) for _ in range(4))
    product = Product(library, "ik,kj->ij", a, b, c.T, d)  # C does not lie as D does
    other = np.ones((2, 2))
    error = product.batched(2, [a, a], [b, b], [c, None], [d, other], beta=1)
    assert explained(library, error).startswith("beta is not zero and there is no C")
    np.testing.assert_array_equal(np.stack([d, other]), 1)


def test_a_d_that_shares_memory_with_an_operand_is_refused(library):
    whole = np.arange(64.0).reshape(8, 8)
    a, b, right = whole[:4, :4], np.ones((4, 4)), whole[:4, 4:]
    for d in (a, whole[:4, 3:7], whole[3:7, :4], whole[3:7, 3:7], whole[:4, :4].T, whole[3::-1, :4]):
        product, before = Product(library, "ik,kj->ij", a, b, d, d), whole.copy()
        assert explained(library, product(a, b, None, d)) == OVERLAPS
        assert explained(library, product(a, b, None, d, 1, 1)) == OVERLAPS
        np.testing.assert_array_equal(whole, before)
        product = Product(library, "kj,ik->ij", b, a, d, d)
        assert explained(library, product(b, a, None, d)) == OVERLAPS
    for d in (right, whole[4:, :4], whole[4:, 4:], right[::-1]):  # between the rows of A
        product, expected = Product(library, "ik,kj->ij", a, b, d, d), a @ b
        assert product(a, b, None, d) == 0
        np.testing.assert_array_equal(d, expected)
    odd, even = np.ones((3, 8))[:, 1::2], np.ones((3, 8))
    product = Product(library, "ik,jk->ij", odd, odd, even[:, :3], even[:, :3])
    assert product(odd, odd, None, even[:, :3]) == 0
    comb = np.arange(24.0).reshape(3, 8)
    squares = comb[:, ::2] ** 2
    product = Product(library, "ik,ik->ik", comb[:, ::2], comb[:, ::2], comb[:, 1::2], comb[:, 1::2])
    assert product(comb[:, ::2], comb[:, ::2], None, comb[:, 1::2]) == 0
    np.testing.assert_array_equal(comb[:, 1::2], squares)


def test_a_c_that_lies_otherwise_may_not_share_memory_with_d(library):
    a, d = np.ones((3, 3)), np.arange(9.0).reshape(3, 3)
    product = Product(library, "ik,kj->ij", a, a, d.T, d)
    before = d.copy()
    assert explained(library, product(a, a, d.T, d, 1, 1)) == OVERLAPS
    np.testing.assert_array_equal(d, before)
    assert product(a, a, d.T, d) == 0  # with a beta of 0 it is not read


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_parts_of_ranks_are_slices_of_the_whole(library, ranks):
    """As the pages tell programs over MPI: a summed mode split, sums added; or a mode of D split."""
    draw = np.random.default_rng(2).random
    m, n, k = 12, 5, 20
    a, b, d, beta = draw((m, k)), draw((k, n)), draw((m, n)), 0.5
    expected, total, rows = a @ b + beta * d, np.zeros((m, n)), d.copy()
    for rank in range(ranks):
        of_k, of_m = (slice(rank * each // ranks, (rank + 1) * each // ranks) for each in (k, m))
        own = d.copy()
        product = Product(library, "ik,kj->ij", a[:, of_k], b[of_k], own, own)
        assert product(a[:, of_k], b[of_k], None, own, 1, beta if rank == 0 else 0) == 0
        total += own
        part = rows[of_m]
        assert Product(library, "ik,kj->ij", a[of_m], b, part, part)(a[of_m], b, None, part, 1, beta) == 0
    np.testing.assert_allclose(total, expected)
    np.testing.assert_allclose(rows, expected)


def test_fortran_has_every_function_of_the_header(library):
    """With as many arguments, and no other."""
    header = re.sub(r"/\*.*?\*/", "", (PACKAGE / "include" / "tapp.h").read_text(), flags=re.DOTALL)
    module = (PACKAGE / "include" / "tapp.f90").read_text().replace("&\n", "")
    declared = re.findall(r"TAPP_EXPORT[^;]*?(TAPP_\w+)\(([^;]*)\);", header)
    counts = {name: given.count(",") + 1 for name, given in declared}
    there = re.findall(r"(?:function|subroutine) \w+\(([^)]*)\)\s*bind\(c, name=\"(\w+)\"\)", module)
    assert {name: given.count(",") + 1 for given, name in there} == counts
    assert len(counts) == 19
    assert all(hasattr(library, name) for name in counts)


def test_commands_of_the_readme(tmp_path):
    """As they stand, in a copy of the package; those of gfortran where there is one."""
    readme = (PACKAGE / "README.md").read_text()
    (block,) = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)
    lines = block.splitlines()
    if shutil.which("gfortran") is None:
        lines = lines[: next(at for at, line in enumerate(lines) if line.startswith("gfortran"))]
    folder = tmp_path / "weft-tapp"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("build"))
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "14 16 32 34" in done.stdout
    assert ("matmul" in done.stdout) == (len(lines) > 3)


def explained(library: ctypes.CDLL, error: int) -> str:
    text = ctypes.create_string_buffer(200)
    library.TAPP_explain_error(error, ctypes.c_size_t(200), text)
    return text.value.decode()


@pytest.mark.parametrize(
    ("compiler", "files", "said"),
    [
        ("cc", ["examples/contract.c"], "14 16 32 34\nA label that A and B share has two extents.\n"),
        ("gfortran", ["include/tapp.f90", "examples/contract.f90"], "the product is that of matmul\n"),
    ],
)
def test_examples(path, tmp_path, compiler, files, said):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    sources = [PACKAGE / file for file in files]
    words = ["-Wall", f"-I{PACKAGE / 'include'}", f"-L{path.parent}", f"-Wl,-rpath,{path.parent}", "-lweft_tapp"]
    subprocess.run([compiler, *sources, *words, "-o", "example"], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=True).stdout == said
