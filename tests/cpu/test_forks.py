"""Forked processes compute, whatever ran in their parent: each test is a process of two threads with children."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.early

COMMON = """
import multiprocessing, os, signal, torch, weft
torch.set_num_threads(2)
x, y = torch.ones(300, 400), torch.ones(400, 200)
b3 = torch.ones(60, 70, 80)
calls = {
    "product": lambda: weft.matmul(torch.ones(170, 600), torch.ones(600, 600)),
    "halves": lambda: weft.matmul(x.bfloat16(), y.bfloat16()),
    "bytes": lambda: weft.contract("mk,kn->mn", x.to(torch.int8), y.to(torch.int8), out_dtype=torch.int32),
    "complex": lambda: weft.matmul(x.cfloat(), y.cfloat()),
    "batch": lambda: weft.contract("bmk,bkn->bmn", b3, b3.mT),
    "vector": lambda: weft.contract("mk,k->m", torch.ones(3000, 400), y[:, 0].contiguous()),
    "outer": lambda: weft.contract("m,n->mn", torch.ones(500), torch.ones(500)),
    "function": lambda: weft.contract("mk,kn->nm", x, y, epilogue=torch.relu),
    "C": lambda: weft.contract("mk,kn->mn", x, y, c=torch.ones(300, 200), epilogue=torch.tanh),
    "permuted": lambda: weft.contract("ecb,cfd->bedf", torch.ones(30, 20, 40), torch.ones(20, 30, 40)),
    "algebra": lambda: weft.contract("mk,kn->mn", x, y, algebra="max_plus"),
    "where": lambda: weft.contract("mk,kn->mn", x, y, algebra="max_plus", return_arg=True)[0],
    "reference": lambda: weft.contract("mk,kn->mn", x, y, backend="reference"),
    "sum": lambda: weft.einsum("abc->b", torch.ones(100, 50, 100)),
    "moved": lambda: weft.permute(torch.ones(100, 50, 100), "abc->cba"),
    "network": lambda: weft.einsum("ab,bc,cd->ad", x, y, torch.ones(200, 300)),
    "grouped": lambda: weft.grouped("mk,kn->mn", [(x, y), (x[:100], y)])[0],
    "gradient": lambda: gradient(),
}
def gradient():
    z = x.clone().requires_grad_()
    return torch.autograd.grad(weft.contract("mk,kn->mn", z, y, epilogue=torch.sin).sum(), z)[0]
def same(names, expected):
    signal.alarm(100)
    for name in names:
        print(name, flush=True)  # what the child was at
        torch.testing.assert_close(calls[name](), expected[name])
def forked(run):
    if (child := os.fork()) == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
"""


def passes(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + textwrap.dedent(code)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-3000:]}"


def test_every_kind_of_call_in_a_child_of_its_own() -> None:
    passes("""
        expected = {name: call() for name, call in calls.items()}
        for name in calls:
            forked(lambda: same([name], expected))
        forked(lambda: forked(lambda: same(calls, expected)))  # a grandchild
        torch.testing.assert_close(calls["product"](), expected["product"])  # and the parent goes on,
        assert torch.get_num_threads() == 2
    """)


def test_a_parent_that_called_torch_alone() -> None:
    """Where nothing of weft ran before the fork."""
    passes("""
        first, second = torch.ones(170, 600), torch.ones(600, 600)  # torch itself would wait for threads in the child
        expected = first @ second
        def run():
            signal.alarm(60)
            found = weft.matmul(first, second)
            assert torch.get_num_threads() == 1 and torch.equal(found, expected)
        forked(run)
        def untouched():
            assert torch.get_num_threads() == 2
        forked(untouched)  # threads are as they were where weft computes nothing
    """)


def test_a_parent_that_made_a_cascade_alone() -> None:
    passes("""
        p = weft.plan_cascade("mk,kn->mn", x, y, between=lambda s: weft.logsumexp(s, "n"))
        expected = p(x, y)
        def run():
            signal.alarm(60)
            torch.testing.assert_close(p(x, y), expected)
        forked(run)
    """)


def test_workers_and_what_was_made_before_they_were_forked() -> None:
    passes("""
        some = ["product", "network", "function"]
        expected = {name: calls[name]() for name in some}
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, at):
                same(some, expected)
                return at
        def job(at):
            return Data()[at]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(job, range(4)) == [0, 1, 2, 3]
        loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
        assert [int(at) for at in loader] == [0, 1, 2, 3]
        p, net = weft.plan("mk,kn->mn", x, y), weft.network("ab,bc,cd->ad", x, y, torch.ones(200, 300))
        expected = p(x, y), net(x, y, torch.ones(200, 300))
        def run():
            signal.alarm(60)
            torch.testing.assert_close((p(x, y), net(x, y, torch.ones(200, 300))), expected)
        forked(run)
    """)


def test_what_another_thread_was_at_when_a_child_was_forked() -> None:
    """A function's operations, and a cache: the thread that holds them is not there in the child."""
    passes("""
        import threading
        from weft.base.caches import BoundedCache
        from weft.fn import pointwise
        begun, go_on, record, cache = threading.Event(), threading.Event(), pointwise.record, BoundedCache(4)
        def slow(*given, **named):
            if threading.current_thread() is other:
                begun.set()
                go_on.wait()
            return record(*given, **named)
        def call():
            with cache._lock:
                weft.contract("mk,kn->mn", x, y, a_fn=lambda v: v.abs().sqrt(), backend="cpu", specialize="now")
        pointwise.record = slow
        other = threading.Thread(target=call)
        other.start()
        assert begun.wait(60)
        expected = {"function": torch.full((200, 300), 400.0)}
        forked(lambda: (same(["function"], expected), cache.put("a", 1)))
        go_on.set()
        other.join()
        with cache._lock:
            assert cache._lock.locked()
    """)
