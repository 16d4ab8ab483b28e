"""Blocks computed side by side: a few Python threads, each with its share of torch's threads.

torch lets go of Python's lock while it computes, so blocks of D run in parallel; and one thread that packs a block,
multiplies it and finishes it finds it in its own cache. Threads inside torch's calls would meet at a barrier after
each of them instead, several times for each block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Generic, TypeVar

import torch

# Beyond so many, the Python between torch's calls would keep them waiting; each has more of torch's threads then.
MAX_WORKERS = 8

T = TypeVar("T")


def split(cores: int) -> tuple[int, int]:
    """How many workers `cores` make, and torch threads for each."""
    workers = min(cores, MAX_WORKERS)
    return workers, cores // workers


class _Shared(Generic[T]):
    """An iterator that several threads draw from: whoever is free takes the next."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)

    def drop_the_rest(self) -> None:
        with self._lock:
            self._items = iter(())


def share(work: Callable[[Iterator[T]], None], tasks: Iterable[T], workers: int, threads: int) -> None:
    """Let `workers` threads run `work`, each on the tasks that it draws; raises what the first to fail raised."""
    shared = _Shared(tasks)
    inference = torch.is_inference_mode_enabled()

    def draw() -> None:
        # These modes belong to the calling thread, and the tensors may have been made under them.
        with torch.inference_mode(inference), torch.no_grad():
            try:
                work(shared)
            except BaseException:
                shared.drop_the_rest()
                raise

    crew = _crew(workers, threads)
    running: list[Future[None]] = [crew.submit(draw) for _ in range(workers)]
    errors = [future.exception() for future in running]
    for error in errors:
        if error is not None:
            raise error


@lru_cache(maxsize=4)
def _crew(workers: int, threads: int) -> ThreadPoolExecutor:
    """Idle threads that are kept from call to call."""
    crew = ThreadPoolExecutor(workers, "weft-cpu", torch.set_num_threads, (threads,))
    met = threading.Barrier(workers)
    for future in [crew.submit(met.wait) for _ in range(workers)]:
        future.result()
    # torch keeps the number for each thread, but threads to come start with the one that was set last, anywhere.
    torch.set_num_threads(torch.get_num_threads())
    return crew


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_crew.cache_clear)
