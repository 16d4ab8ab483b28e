"""What is kept for calls of the same buffers lives as long as a thread is in it."""

import ctypes
import gc
import shutil
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import weft.jax  # noqa: E402
from forked import said  # noqa: E402
from weft.jax import custom_call  # noqa: E402
from weft.planner.schedule import Launched  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


class Kept:
    """A function of the CPU as a plan binds it, with its words."""

    def __init__(self, function):
        self.function, self.words = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function), (ctypes.c_int64 * 2)(7, 8)
        self.held = self

    def launched(self):
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        return Launched(address, [ctypes.addressof(self.words)], [ctypes.sizeof(self.words)])


def called(site, buffer):
    """A call of XLA's with one operand there."""
    place = (ctypes.c_uint64 * 4)(0, 0, 0, buffer)
    operand = ctypes.c_void_p(ctypes.addressof(place))
    frame = custom_call._CallWords(stage=custom_call._EXECUTE, args=ctypes.addressof(operand))
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(site.address)(ctypes.addressof(frame))


def answered(place):
    custom_call._Answer.from_address(place).done = 1


def test_a_kept_call_stays_while_a_thread_is_in_it():
    missed, entered, leave, seen = [], threading.Event(), threading.Event(), []
    python = custom_call.HANDLER(lambda frame, answer: (missed.append(frame), answered(answer)))
    site = custom_call.site_of(ctypes.cast(python, ctypes.c_void_p).value, False, 1, 0)

    def waiting(words):
        entered.set()
        leave.wait(60)
        seen.append(ctypes.c_int64.from_address(words).value)

    kept = Kept(waiting)
    gone = weakref.ref(kept)
    site.keep((64,), 0, kept)
    del kept
    thread = threading.Thread(target=called, args=(site, 64))
    thread.start()
    assert entered.wait(60)
    others = [SimpleNamespace(held=Kept(seen.append)) for _ in range(5000)]
    known = [weakref.ref(other.held) for other in others]
    for at, other in enumerate(others, start=2):
        site.keep((64 * at,), 0, other)
    del others, other
    gc.collect()
    assert gone() is not None, "what a thread is in was freed"
    assert sum(each() is not None for each in known) <= 256
    leave.set()
    thread.join()
    assert seen == [7]
    called(site, 64)
    assert len(missed) == 1, "its place is another's"
    site.keep((64,), 0, SimpleNamespace(held=Kept(seen.append)))
    gc.collect()
    assert gone() is None, "nobody needs it any more"


def test_threads_call_many_buffers_at_once():
    """More sets of buffers than there are places: kept calls are replaced while others run."""
    product = jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, backend="cpu", precision="ieee"))
    draw = np.random.default_rng(0)
    given = [jax.device_put(draw.integers(-4, 5, (9, 33)).astype(np.float32)) for _ in range(96)]
    w = jax.device_put(draw.integers(-4, 5, (33, 7)).astype(np.float32))
    expected = [np.asarray(x) @ np.asarray(w) for x in given]
    wrong = []

    def calls(first):
        for turn in range(12):
            mine = range(first, len(given), 4)
            results = [product(given[at], w) for at in mine]  # alive together: memory of its own for each
            differ = [(np.asarray(d) != expected[at]).any() for at, d in zip(mine, results, strict=True)]
            wrong.extend((turn, at) for at, differs in zip(mine, differ, strict=True) if differs)

    threads = [threading.Thread(target=calls, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


_INTERRUPTED = """
import signal, sys, time
import numpy as np
import jax, weft.jax
from weft.jax import custom_call

where, cut = "", []
make, tensor = custom_call.HANDLER, custom_call._tensor

def first(handle):  # a signal that has come before Python's handler begins
    def begun(frame, answer):
        if cut and where == "before":
            raise cut.pop()
        return handle(frame, answer)
    return make(begun)

def amid(*given):
    if cut and where != "before":
        signal.raise_signal(signal.SIGINT) if cut.pop() is KeyboardInterrupt else sys.exit(3)
    return tensor(*given)

custom_call.HANDLER, custom_call._tensor = first, amid

def after(raised, x, w):
    cut.append(raised)
    try:
        try:
            product(x, w).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            time.sleep(0.05)
            return "error"
    except KeyboardInterrupt:
        return "interrupt"
    return "nothing"

product = jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, backend="cpu", precision="ieee"))
for rows, where in enumerate(("before", "amid", "amid alone"), start=9):
    if where == "amid alone":  # without a compiler for C
        custom_call.site_of = lambda *words: None
    x, w = np.ones((rows, 33), np.float32), np.ones((33, 7), np.float32)
    print(after(KeyboardInterrupt, x, w), after(SystemExit, x, w), float(product(x, w)[0, 0]))
"""


def test_a_signal_ends_the_call_and_not_the_process():
    """Ctrl-C while a call plans. Without C it is an error of XLA's: Python cannot send the signal again."""
    found = said(_INTERRUPTED, JAX_PLATFORMS="cpu").splitlines()
    assert found == ["interrupt interrupt 33.0"] * 2 + ["error error 33.0"]
