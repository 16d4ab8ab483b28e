"""The ranks of a process group: who they are, whether they agree, and what each says when one fails.

Ranks agree through the store that torch.distributed was started with, not through collectives: a message needs no GPU
and waits for no stream, and a rank that does not come can be named. The store is read with a time limit throughout.
What ranks send one another is JSON.

The ranks along each dimension of a mesh are groups of their own, in which collectives of one dimension run.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from weft import errors
from weft.distributed.placement import coordinates, read_mesh
from weft.errors import ArgumentError, RankError, UnsupportedError, WeftError

TIMEOUT = 300.0  # seconds that a rank waits for the others, where nothing else is said
_LOOK = 0.5  # seconds between looks at whether the ranks that are waited for still run
_ROLL_CALL = 5.0  # seconds for ranks to answer after one has failed
_counts: dict[str, int] = {}  # of agreements by group: every rank of a group counts alike
_made: dict[tuple[Any, ...], tuple[Ranks, ...]] = {}  # lines of meshes, by the group itself, its name and the mesh

T = TypeVar("T")


class Ranks:
    """The ranks of one process group as one of them sees them; `find_ranks` makes it.

    `name` is the group's name in torch, `rank` this process's number in it, `size` how many there are, `group` the
    process group of torch.distributed, `timeout` the seconds after which a missing rank is an error, `last` the
    collective that was begun last. Of ranks along one dimension of a mesh `whole` are those of the mesh: a failure of
    one of those is heard here, and one here there, and messages number ranks as the mesh does.
    """

    def __init__(self, group: Any, timeout: float, whole: Ranks | None = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.timeout = timeout
        self.last = ""
        self.name = str(group.group_name)
        self._store = dist.PrefixStore(f"weft/{self.name}", _default_store())
        self._store.set(f"who/{self.rank}", json.dumps(_this_process()))
        self._who: list[dict[str, Any]] | None = None
        self._counting: tuple[Ranks, ...] = (self,) if whole is None else (self, whole)
        self._numbers, self._of = list(range(self.size)), self.size  # of the ranks in messages
        if whole is not None:
            self._numbers = [
                dist.get_group_rank(whole.group, dist.get_global_rank(group, rank)) for rank in range(self.size)
            ]
            self._of = whole.size

    def __str__(self) -> str:
        return self._listed([self.rank])

    def _listed(self, ranks: Collection[int]) -> str:
        """"rank 1 of 4", or "ranks 0, 2, 3 of 4"."""
        numbers = ", ".join(str(self._numbers[rank]) for rank in ranks)
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers} of {self._of}"

    # -- who they are --------------------------------------------------------------------------------------------------

    def backend(self, device: torch.device) -> str:
        """The backend that moves tensors of `device` in this group ("gloo", "nccl"); `ArgumentError` without one."""
        try:
            return str(self.group._get_backend(device).name())
        except (RuntimeError, AttributeError) as error:
            raise ArgumentError(
                f"the process group moves no {device.type} tensors (it has {dist.get_backend(self.group)}): "
                "init_process_group('cpu:gloo,cuda:nccl') serves both"
            ) from error

    def hosts(self) -> tuple[str, ...]:
        """The machine of each rank; waits until every rank has said."""
        return tuple(str(one["host"]) for one in self._all())

    def per_host(self) -> int:
        """How many ranks share a machine at most: collectives among so many stay inside it."""
        hosts = self.hosts()
        return max(hosts.count(host) for host in hosts)

    # -- whether they agree --------------------------------------------------------------------------------------------

    def agreed(self, what: str, check: Callable[[], T], same: Callable[[T], Mapping[str, Any]] | None = None) -> T:
        """Run `check` on every rank; its result where it passed on all of them and all requested the same.

        `what` names the call for messages; ranks that are at different calls are a `RankError`. `same` says, of a
        result, what must be equal on all ranks by name, as text or numbers: equations, shapes, types.

        Where `check` failed on some ranks every rank raises the error of the first of them, of the same class and with
        the number of each rank that failed and its message. Errors that are not weft's come as a `RankError`. Ranks
        whose values of `same` differ get a `ShapeError` with the value of each.
        """
        failed: Exception | None = None
        said: dict[str, Any] = {}
        found: T | None = None
        try:
            found = check()
            if same is not None:
                said["same"] = {name: str(value) for name, value in same(found).items()}
        except Exception as error:
            failed = error
            said["error"] = [type(error).__name__, str(error)]
        every = self.exchanged(what, said)
        self._compare(every, failed)
        return found  # type: ignore[return-value]  # where check failed, _compare raised

    def exchanged(self, what: str, value: Any) -> list[Any]:
        """A value of each rank, as JSON holds it, in the order of ranks. Raises what `numbered` raises."""
        return self.numbered(what, value)[1]

    def numbered(self, what: str, value: Any) -> tuple[int, list[Any]]:
        """The number of this exchange, which is the same on all ranks and no other's of the group; and their values.

        `RankError` names the ranks that did not bring theirs within the time limit, that have ended, or that are at
        another call, which `what` names.
        """
        number = _counts[self.name] = _counts.get(self.name, -1) + 1
        self._store.set(f"{number}/{self.rank}", json.dumps([what, value]))
        every = self._gathered(str(number), what)
        if number >= 2:  # every rank that set the last one has read the one before it
            self._store.delete_key(f"{number - 2}/{self.rank}")
        calls = {rank: call for rank, (call, _) in enumerate(every)}
        if len(set(calls.values())) > 1:
            raise RankError(f"ranks are at different calls: {self._by_value(calls)}")
        return number, [value for _, value in every]

    def _compare(self, every: list[dict[str, Any]], mine: Exception | None) -> None:
        """Raise, on every rank alike, what is wrong with what ranks said."""
        failed = {rank: said["error"] for rank, said in enumerate(every) if "error" in said}
        if failed:
            kind, first = next(iter(failed.values()))
            alike = all(message == first for _, message in failed.values())
            if alike:
                text = f"{self._listed(failed)}: {first}"
            else:
                text = "\n".join(f"{self._listed([rank])}: {message}" for rank, (_, message) in failed.items())
            raise _kind(kind)(text) from mine
        for name in every[0].get("same", {}):
            values = {rank: said["same"].get(name, "nothing") for rank, said in enumerate(every)}
            if len(set(values.values())) > 1:
                raise errors.ShapeError(f"{name} differs: {self._by_value(values)}")

    def _by_value(self, values: Mapping[int, str]) -> str:
        """Which ranks have which value."""
        by: dict[str, list[int]] = {}
        for rank, value in values.items():
            by.setdefault(value, []).append(rank)
        return "; ".join(f"{self._listed(ranks)}: {value}" for value, ranks in by.items())

    # -- what is said when one fails -----------------------------------------------------------------------------------

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Around a collective that `what` names: its failure is a `RankError` that names the ranks that are gone."""
        self.last = what
        try:
            yield
        except WeftError:
            raise
        except RuntimeError as error:  # torch.distributed's own errors are RuntimeErrors, too
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise self._lost(what, str(error).partition("\n")[0]) from error

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Around what other ranks count on: where it fails here, those that wait for this rank hear of it."""
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            self._say_failed(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            raise

    def wait(self, work: Any, what: str) -> None:
        """Wait for an asynchronous collective: on a CPU here, looking whether other ranks run; on a GPU by its stream.

        With gloo a rank that neither sends to nor receives from the one that died would wait for it until the group's
        own time limit, half an hour by default.
        """
        with self.during(what):
            if "nccl" not in str(dist.get_backend_config(self.group)):
                self.watch(work.is_completed, what)
            work.wait()

    def watch(self, done: Callable[[], bool], what: str) -> None:
        """Wait on the host until `done()`; `RankError` where meanwhile a rank failed or ended, or time is up."""
        self.last = what
        begun = looked = now = time.monotonic()
        while not done():
            time.sleep(min(max(2e-5, (now - begun) / 8), 1e-3))  # late by an eighth of the wait at most
            now = time.monotonic()
            if now - looked > _LOOK:
                looked = now
                for ranks in self._counting:
                    if ranks._store.check(["failed"]):
                        raise self._lost(what, ranks._store.get("failed").decode())
                if self._ended(range(self.size)):
                    raise self._lost(what, "another rank ended")
                if now - begun > self.timeout:
                    raise self._lost(what, f"nothing came within {self.timeout:g} s")

    def _lost(self, what: str, reason: str) -> RankError:
        """The error of a collective that failed, after a roll call; of a mesh any rank may be the one that ended."""
        self._say_failed(reason)
        self._store.set(f"here/{self.rank}", "1")
        until, every = time.monotonic() + _ROLL_CALL, self._counting[-1]
        missing = self._missing("here")
        while not (ended := every._ended(range(every.size))) and missing and time.monotonic() < until:
            time.sleep(0.05)
            missing = self._missing("here")
        if ended:
            said = f"{every._listed(ended)} has ended" if len(ended) == 1 else f"{every._listed(ended)} ended"
        elif missing:
            said = f"no answer from {self._listed(missing)}"
        else:
            said = f"{self._listed(range(self.size))} still answer"
        return RankError(f"{said}; the last collective was {what} ({reason})")

    def _say_failed(self, reason: str) -> None:
        """Let all hear of it that count on this rank; the first one to fail is heard."""
        for ranks in self._counting:
            if not ranks._store.check(["failed"]):
                ranks._store.set("failed", f"{ranks} failed: {reason}")

    def _gathered(self, place: str, what: str) -> list[Any]:
        keys = [f"{place}/{rank}" for rank in range(self.size)]
        begun = looked = time.monotonic()
        pause = 1e-4
        while not self._store.check(keys):  # asked again and again: waiting in the store logs every look that was vain
            time.sleep(pause)
            now = time.monotonic()
            pause = min(2 * pause, max(1e-4, (now - begun) / 50), 2e-2)  # late by 2 % of the wait at most
            if now - looked > _LOOK:
                looked = now
                missing = self._missing(place)
                if ended := self._ended(missing):
                    raise RankError(f"{self._listed(ended)} ended before {what}{self._after()}")
                if missing and now - begun > self.timeout:
                    raise RankError(
                        f"{self._listed(missing)} did not come to {what} within {self.timeout:g} s{self._after()}"
                    )
        return [json.loads(value) for value in self._store.multi_get(keys)]

    def _after(self) -> str:
        return f"; the last collective was {self.last}" if self.last else ""

    def _missing(self, place: str) -> list[int]:
        return [rank for rank in range(self.size) if not self._store.check([f"{place}/{rank}"])]

    def _all(self) -> list[dict[str, Any]]:
        if self._who is None:
            self._who = self._gathered("who", "the process group")
        return self._who

    def _ended(self, ranks: Collection[int] | range) -> list[int]:
        """The ranks of `ranks` that ran on this machine and have ended."""
        here = _this_process()
        found = []
        for rank in ranks:
            if self._who is None and not self._store.check([f"who/{rank}"]):
                continue  # it never came so far
            who = self._who[rank] if self._who is not None else json.loads(self._store.get(f"who/{rank}"))
            if who["machine"] == here["machine"] and not _runs(int(who["pid"])):
                found.append(rank)
        return found


def find_ranks(group: Any = None, timeout: float | None = None, whole: Ranks | None = None) -> Ranks:
    """The ranks of `group`: a process group, a DeviceMesh of one dimension, or None for the default group.

    `timeout`: seconds after which a rank that does not come is an error, 300 by default. `whole`: the ranks of a mesh,
    where the group is a line of it. Raises `ArgumentError` where there is no process group, or this process is not in
    it, and `UnsupportedError` where torch has none.
    """
    if not dist.is_available():
        raise UnsupportedError("this torch was built without torch.distributed")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0):
        raise ArgumentError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if not dist.is_initialized():
        raise ArgumentError(
            "there is no process group: start the program with torchrun, and call "
            "torch.distributed.init_process_group() before weft.distributed"
        )
    if hasattr(group, "mesh_dim_names"):
        if group.ndim != 1:
            raise ArgumentError(f"a mesh of {group.ndim} dimensions is no group: name one, mesh['name']")
        group = group.get_group()
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ArgumentError(f"rank {dist.get_rank()} of {dist.get_world_size()} is not in the group that is given")
        raise ArgumentError(f"group is a process group of torch.distributed, not {type(group).__name__}")
    return Ranks(group, TIMEOUT if timeout is None else float(timeout), whole)


def _default_store() -> Any:
    """The store that the default group was started with; torch has no public name for it."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _kind(name: str) -> type[WeftError]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, WeftError) else RankError


def _this_process() -> dict[str, Any]:
    """This process, its host, and a name of what numbers its processes: a machine since its start, or a container."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        machine = socket.gethostname()
    return {"pid": os.getpid(), "host": socket.gethostname(), "machine": machine}


def _runs(pid: int) -> bool:
    """Whether a process of this machine runs; one that ended and was not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def ranks_of(group: Any, timeout: float | None) -> Ranks:
    """All ranks of `group`, a process group or a DeviceMesh."""
    return find_ranks(None if _is_mesh(group) else group, timeout)


def shape_of(group: Any, mesh: Any, ranks: Ranks) -> tuple[int, ...]:
    """The mesh of these ranks: that of a DeviceMesh, or the extents that are given."""
    if not _is_mesh(group):
        return read_mesh(mesh, ranks.size)
    shape = tuple(group.mesh.shape)
    if group.mesh.flatten().tolist() != list(range(ranks.size)):
        raise ArgumentError(
            f"the device mesh {shape} is not all {ranks.size} ranks in their order: pass a group and mesh= instead"
        )
    return shape


def lines_of(group: Any, mesh: tuple[int, ...], ranks: Ranks) -> tuple[Ranks, ...]:
    """This rank's line along each dimension of the mesh, on which all ranks have agreed.

    Groups of lines are made once for each group and mesh; ranks of one line wait for one another.
    """
    if len(mesh) == 1:
        return (ranks,)
    if _is_mesh(group):
        return tuple(find_ranks(group.get_group(dim), ranks.timeout, ranks) for dim in range(group.ndim))
    key = ranks.group, ranks.name, mesh
    if key not in _made:
        _made[key] = tuple(_line(ranks, mesh, dim) for dim in range(len(mesh)))
    return _made[key]


def _is_mesh(group: Any) -> bool:
    return hasattr(group, "mesh_dim_names") and group.ndim > 1


def _line(ranks: Ranks, mesh: tuple[int, ...], dim: int) -> Ranks:
    """The ranks that differ from this one in one coordinate. Only they take part in making their group."""
    every = dist.get_process_group_ranks(ranks.group)
    apart = math.prod(mesh[dim + 1 :])  # of neighbours: ranks count row by row
    first = ranks.rank - apart * coordinates(ranks.rank, mesh)[dim]
    members = [every[first + at * apart] for at in range(mesh[dim])]
    if len(members) == ranks.size == math.prod(mesh):
        return ranks
    return find_ranks(dist.new_group(members, use_local_synchronization=True), ranks.timeout, ranks)
