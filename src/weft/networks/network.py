"""A `Network`: any number of tensors, planned once, contracted again and again."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, overload

import torch

from weft.base.arrays import (
    Array,
    One,
    Returned,
    Scaled,
    is_scalar,
    like,
    outside_transforms,
    source_of,
    without_neg,
    written,
)
from weft.base.describe import describe_operands
from weft.base.dispatch import as_operation, is_traced, outside_graphs
from weft.base.figures import counted
from weft.base.kept import Kept
from weft.base.memory import new_tensor
from weft.engine.calls import Calls, call_signature, is_plain
from weft.engine.memo import Memo
from weft.errors import ArgumentError, UnsupportedError, call_context
from weft.networks.alone import move_alone, scaled
from weft.networks.arguments import read_changed, read_out, read_tensors
from weft.networks.changes import Changes, state_of
from weft.networks.derivatives import as_operations, differentiable
from weft.networks.described import DescribedNetwork
from weft.networks.finite import finite_watch
from weft.networks.folding import folded
from weft.networks.graph import Graph
from weft.networks.long_run import EVERY, Alone, Going
from weft.networks.order import orders_of
from weft.networks.path import Found
from weft.networks.program import NetworkProgram
from weft.networks.scheme import scheme_of, sliced_tree
from weft.networks.settings import Settings, check_same, check_signs, node_dtypes, read_functions
from weft.networks.slicing import read_slices
from weft.networks.tree import Tree
from weft.networks.watching import watched
from weft.networks.work import Summing, combine_of
from weft.plans.bound import BoundCall, held
from weft.plans.derivatives import asked
from weft.spec.arguments import read_path

PROGRAMS = 4  # layouts of operands that a network is prepared for at once


class Network(DescribedNetwork, Generic[Returned]):
    """A network of tensors, planned once; calling it contracts tensors of the same shapes and types.

    Made by `weft.network`. `net(*tensors)` returns the result. `path`, `slices`, `explain()`, `report()`, `to_graph()`,
    `draw()` and `to_html()` say what was planned; `error_bound(*tensors)` how far a result may be off.
    """

    def __init__(
        self, graph: Graph, leaves: Sequence[torch.dtype], settings: Settings, found: Found, slices: Any = (),
        functions: Any = None, constants: Mapping[int, torch.Tensor] | None = None, reduce: Any = None,
    ) -> None:  # fmt: skip
        """`constants` are operands by place. The rest as read from the arguments of `weft.network`."""
        self.graph, self.settings, self.source = graph, settings, found.source
        self.leaves = tuple(leaves)
        given = dict(constants or {})
        check_signs(graph, given)
        tree = Tree.of(graph, found.pairs)
        self.functions = read_functions(tree, functions)
        self.dtypes = node_dtypes(tree, leaves, settings)
        asked_slices = read_slices(tree, slices) or found.sliced
        self.folded = folded(tree, given.keys(), orders_of(tree, self._items(tree), self.model) if given else {})
        self.tree = sliced_tree(self, asked_slices)
        self.scheme = scheme_of(self, self.leaves)
        self._watched, self._fixed = watched(self), (tree, given)
        self._follows = self._watched is not None or bool(given)
        self._begin()
        self.refresh()
        if settings.strip_exponent and self.functions:
            raise UnsupportedError("strip_exponent and functions do not go together: they would see scaled values")
        if graph.early.never and self.functions:
            raise UnsupportedError(f"functions of intermediates need sums before the last step: {graph.early.broken}")
        self.reductions = None if reduce is None else self._read_reductions(reduce)
        special = settings.strip_exponent or settings.reuse or settings.check_finite or self.tree.slices > 1
        special = special or graph.early.unsigned or reduce is not None  # signs are looked at in every call
        self._plain = bool(self.tree.steps) and not special

    def _read_reductions(self, reduce: Any) -> Any:
        if self.settings.strip_exponent:
            raise UnsupportedError("strip_exponent and reduce do not go together: reductions would be of the mantissa")
        return as_operation("reductions")(reduce, tuple(self.graph.names[label] for label in self.graph.output))

    def _with_reductions(self, found: Any) -> Any:
        return found if self.reductions is None else (found, self.reductions.of(found))

    def _begin(self) -> None:
        self._programs = Memo("network: programs", PROGRAMS)
        self._changes = Changes() if self.settings.reuse else None
        self._paused: Going | None = None
        self._calls = Calls(PROGRAMS)  # of plain calls
        self._seen = self._constants_now()
        self._layouts: set[Any] = set()  # of operands for which steps were tuned
        self._shared: dict[str, Any] = {}  # who does which slices, by the name of a process group
        self.latest = self.backward = None

    @overload
    def __call__(
        self: Network[One], first: Array, /, *tensors: Any, out: Any = None, changed: Collection[int] | None = None,
        group: Any = None, distribute: str = "slices", link: Any = None, checkpoint: Any = None,
        checkpoint_every: float = EVERY,
    ) -> Array: ...
    @overload
    def __call__(
        self: Network[Scaled], first: Array, /, *tensors: Any, out: Any = None, changed: Collection[int] | None = None,
        group: Any = None, distribute: str = "slices", link: Any = None, checkpoint: Any = None,
        checkpoint_every: float = EVERY,
    ) -> tuple[Array, torch.Tensor]: ...
    @overload
    def __call__(
        self, *tensors: Any, out: Any = None, changed: Collection[int] | None = None, group: Any = None,
        distribute: str = "slices", link: Any = None, checkpoint: Any = None, checkpoint_every: float = EVERY,
    ) -> Any: ...
    @outside_graphs
    def __call__(
        self, *tensors: Any, out: Any = None, changed: Collection[int] | None = None, group: Any = None,
        distribute: str = "slices", link: Any = None, checkpoint: Any = None, checkpoint_every: float = EVERY,
    ) -> Any:  # fmt: skip
        """Contract these tensors: all operands but constants, in their order, of the shapes and types planned for.

        `out` is where the result goes: its shape and type, any strides, no memory of an operand. `changed`, of a
        network made with `reuse=True`: the places of the operands that are other than in the last call; without it
        that is found by the tensors' identity and version (see `refresh`), and those that require a gradient are.

        `group`: a process group of torch.distributed, or a DeviceMesh, whose ranks share the call. Each of them makes
        the same network and this call, with the same operands; each gets the result, the same bits on all, and from run
        to run on as many ranks. `distribute`: "slices" shares the slices out; "modes" distributes every intermediate by
        modes, so that `memory_limit` is that of each rank and all of them together need few slices or none; "auto" is
        what is predicted to be faster. `link`: as for `weft.distributed.plan`, for "modes" and "auto".
        `checkpoint`: a folder for what is done so far, written every `checkpoint_every` seconds, at the end, on Ctrl-C
        and on SIGTERM. A call that finds it goes on from there, on any number of ranks or without a group. It holds for
        this network with these operands, whose bytes are all compared.

        Raises `ShapeError` or `DTypeError` for tensors that do not fit, `ArgumentError` for a checkpoint of something
        else; nothing is written then. With a group one error is raised on every rank, and names the ranks at fault;
        `RankError` where one has ended. On Ctrl-C between two slices `KeyboardInterrupt` leaves; `resume()` goes on.
        """
        if self._follows:
            self._follow()
        if group is not None or checkpoint is not None or distribute != "slices":
            over = (group, distribute, link)
            found = self._at_length(tensors, out, changed, over, checkpoint, checkpoint_every)
            return self._with_reductions(found)
        if self._plain and out is None and changed is None and (known := self._known(tensors)) is not None:
            place = self.place()
            known.run([*tensors, *self.constants] if self.constants else tensors, place)
            return place
        return self._with_reductions(self._called(tensors, out, changed))

    def _called(self, tensors: Sequence[Any], out: Any, changed: Collection[int] | None) -> Any:
        with call_context(lambda: self._described(tensors)):
            read = self._read(tensors)
            if asked(*read):
                if out is not None:
                    raise UnsupportedError("out= takes no part in derivatives: leave it out, or use torch.no_grad()")
                return like(_source(tensors), differentiable(self, self._operands(read)))
            if is_traced(read):
                return as_operations(self, self._operands(read), None if out is None else self._place(out, read))
            place = self._place(out, read)
            if self.settings.strip_exponent:
                exponent = self._run_scaled(self._operands(read), place)
                return _result(tensors, out, place), exponent
            self._run(read, place, changed)
        return _result(tensors, out, place)

    def bind(self, *tensors: Any, out: Any = None) -> BoundCall:
        """The call on these very tensors, without arguments: it launches, and does nothing else (`weft.BoundCall`).

        Without `out` the result is allocated now, once. Runs take turns; those that are replayed as CUDA graphs capture
        one on these operands. Raises what a call raises, and `UnsupportedError` where a derivative is requested, while
        torch traces, and for networks of one operand, with slices, `reuse`, `strip_exponent` or `check_finite`.
        """
        if self._follows:
            self._follow()
        with call_context(lambda: self._described(tensors)):
            if not self._plain:
                raise UnsupportedError("only networks whose call is their steps, one after the other, are bound")
            read = self._read([held("an operand", one, conjugate=True) for one in tensors])
            place = self.place() if out is None else self._place(held("out", out), read)
            result = out if out is not None else like(_source(tensors), place)
            return BoundCall(self._described(tensors), self.program(read), (self._operands(read), place), result)

    def resume(self) -> Any:
        """Go on with the call that Ctrl-C has interrupted, from the first slice that was not done.

        Of a call with a group every rank has to.
        """
        call = self._paused
        if call is None:
            raise ArgumentError("there is nothing to resume: no call of this network was interrupted between slices")
        return self._with_reductions(self._sliced_call(call))

    def program(self, read: Sequence[torch.Tensor], *, keep: bool = True) -> NetworkProgram:
        """The network bound to operands with the layouts of these; `keep`: with an arena that stays allocated.

        Of a network that measures, the steps are tuned for layouts that are new.
        """
        program = self.untuned(read, keep=keep)
        if self.settings.options.tune == "measure" and self.is_new(read):
            from weft.networks.tuning import first_tuned

            first_tuned(self, program, read)
        return program

    def is_new(self, read: Sequence[torch.Tensor]) -> bool:
        """Whether nobody asked so before of operands with the layouts of these."""
        layouts = tuple([(tensor.stride(), tensor.data_ptr() & 15) for tensor in read])
        is_new = layouts not in self._layouts
        self._layouts.add(layouts)
        return is_new

    def untuned(self, read: Sequence[torch.Tensor], *, keep: bool = True) -> NetworkProgram:
        """`program` as it is planned."""
        key = _key_of(read)

        def make() -> NetworkProgram:
            graphs = self.settings.cuda_graph if keep else False
            with outside_transforms():
                self.latest = NetworkProgram(self.scheme, self._operands(read), keep=keep, graphs=graphs)
            return self.latest

        program: NetworkProgram = make() if key is None else self._programs.made(key, make)
        return program

    def retain(self, read: Sequence[torch.Tensor], program: NetworkProgram) -> None:
        """Go on with a program for operands like these, though plans are outdated since it was made."""
        if (key := _key_of(read)) is not None:
            self._programs.put(self._programs.place(key), program)

    def operands(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """The operands of a call, checked as there, and after them those made of constants."""
        if self._follows:
            self._follow()
        with call_context(lambda: self._described(tensors)):
            return self._operands(self._read(tensors))

    def place(self) -> torch.Tensor:
        """Memory for a result, not filled: of its shape and type, contiguous, on the network's device."""
        return new_tensor(self.graph.shape, self.dtype, self.settings.device)

    def _items(self, tree: Tree) -> dict[int, int]:
        return {step.node: self.dtypes[step.node].itemsize for step in tree.steps}

    def refresh(self) -> None:
        """Take all operands and constants for changed, whoever has written them.

        Calls see by themselves what torch's count of versions shows: what torch and weft have written. They do not see
        what fused optimizers, ``tensor.data``, NumPy or kernels of other libraries write.
        """
        self._seen = self._constants_now()
        self.made = Kept(partial(self._make_constants, *self._fixed), self.settings.device)
        if self._changes is not None:
            self._changes = Changes()

    def _follow(self) -> None:
        """Forget what was made of functions that compute something else by now, or of constants that have changed."""
        computes = self._watched is not None and self._watched.changed()
        if computes or self._constants_now() != self._seen:
            self._programs, self._calls = Memo("network: programs", PROGRAMS), Calls(PROGRAMS)
            self.refresh()

    def _constants_now(self) -> list[Hashable]:
        return [state_of(tensor) for tensor in self._fixed[1].values()]

    def _known(self, tensors: Sequence[Any]) -> NetworkProgram | None:
        """The program of tensors whose layouts were seen before: they were checked then."""
        known: NetworkProgram | None
        known, place = self._calls.find(len(tensors), tensors)
        if known is None and (key := call_signature(*tensors)) is not None:
            known = self._programs.get(self._programs.place(key))
            self._calls.keep(place, tensors, known)
        return known

    def _make_constants(self, whole: Tree, given: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        from weft.networks.constants import made_constants

        check_same(list(given.values()), self.graph, self.leaves, list(given), self.settings.device)
        return made_constants(self, whole, self.folded, {at: without_neg(each) for at, each in given.items()})

    def _read(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        return read_tensors(self, tensors)

    def _operands(self, read: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [*read, *self.constants]

    def _place(self, out: Any, read: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.place() if out is None else read_out(self, out, read)

    def _run(self, read: Sequence[torch.Tensor], place: torch.Tensor, changed: Collection[int] | None) -> None:
        operands = self._operands(read)
        if not self.tree.steps:
            move_alone(self, operands[0], place)
            return
        program = self.program(read)
        if self._changes is not None:
            with self._changes.lock:
                touched = self._changes.since(program, operands, read_changed(self, changed))
                program.run(operands, place, self._watch(), touched)
                self._changes.done(program, operands)
            return
        if changed is not None:
            raise ArgumentError("changed= is for a network made with reuse=True, which keeps its intermediates")
        if self.tree.slices > 1:
            self._sliced_call(Alone(self.work(operands, place), range(self.tree.slices)))
        else:
            program.run(operands, place, self._watch())

    def _at_length(
        self, tensors: Sequence[Any], out: Any, changed: Collection[int] | None, over: tuple[Any, Any, Any],
        checkpoint: Any, every: float,
    ) -> Any:  # fmt: skip
        """A call that ranks share, or of which a checkpoint is kept."""
        from weft.networks.shared import NetworkCall, call_with_checkpoint, call_with_group

        with call_context(lambda: self._described(tensors)):
            if not self.tree.steps:
                raise UnsupportedError("a network of one operand has no slices: call it without group and checkpoint")
            folder = None if checkpoint is None else read_path("checkpoint", checkpoint)
            call: Going
            given = NetworkCall(self, lambda: self._read_at_length(tensors, out, changed), self.work, self._shared)
            group, way, link = over
            if way != "slices":
                from weft.networks.by_modes.call import call_by_modes

                if (made := call_by_modes(given, group, way, link, checkpoint)) is not None:
                    return _result(tensors, out, made)
            if group is None:
                call, place = call_with_checkpoint(given, folder, every)
            else:
                call, place = call_with_group(given, group, folder, every)
            found = self._sliced_call(call)
        result = _result(tensors, out, place)
        return (result, found[1]) if self.settings.strip_exponent else result

    def _read_at_length(
        self, tensors: Sequence[Any], out: Any, changed: Any
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The operands of such a call and the place of its result, checked."""
        read = self._read(tensors)
        if changed is not None or self.settings.reuse:
            raise UnsupportedError("reuse keeps every intermediate of a call in memory: without group and checkpoint")
        if asked(*read) or is_traced(read):
            raise UnsupportedError("group and checkpoint take no part in derivatives: use torch.no_grad()")
        return self._operands(read), self._place(out, read)

    def work(self, operands: Sequence[torch.Tensor], place: torch.Tensor, partial: Collection[int] = ()) -> Any:
        """The slices of a call into `place`; the parts `partial` of the result are not finished here."""
        program = self.program(operands[: len(self.folded.given)])
        if self.settings.strip_exponent:
            from weft.networks.rescale import Scaling

            return Scaling(self, program, operands, place)
        combine = combine_of(self.settings.options.algebra) if partial else None
        return Summing(program, operands, place, self._watch(), partial, combine)

    def _sliced_call(self, call: Going) -> Any:
        """Slices one after the other; what is done when Ctrl-C comes is kept for `resume`."""
        from contextlib import nullcontext

        from weft.tune.progress import quiet, shown

        total = self.tree.slices
        visible = self.settings.progress and call.visible
        with shown("slices") if visible else nullcontext(quiet) as report:
            self._paused = call
            found = call.go_on(lambda done: report("contracting", done, total))
            self._paused = None
        return found

    def _watch(self) -> Any:
        return finite_watch(self) if self.settings.check_finite else None

    def _run_scaled(self, operands: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor:
        """All slices into `place`, with their exponent apart."""
        if self.tree.steps:
            work = self.work(operands, place)
            return self._sliced_call(Alone(work, range(self.tree.slices)))[1]
        operand, exponent = scaled(operands[0])
        move_alone(self, operand, place)
        return exponent

    def _described(self, tensors: Sequence[Any]) -> str:
        count = counted(len(self.graph.operands), "operand")
        described = describe_operands(tensors, self.folded.given)
        return f"network of {count} ({described})" if described else f"network of {count}"


def _key_of(read: Sequence[torch.Tensor]) -> Any:
    """The key of the program for operands like these; None where each call has its own."""
    key = call_signature(*read)
    return key if key is None or is_plain(key) else (key, "special")  # of special ones every call is read anew


def _result(tensors: Sequence[Any], out: Any, place: torch.Tensor) -> Any:
    """The result of a call whose kernels have written to a place: `out`, or the place as an array of theirs."""
    written((place,))
    return out if out is not None else like(_source(tensors), place)


def _source(tensors: Sequence[Any]) -> Any:
    """The operand that says what kind of array a result is; torch's where all are constants or numbers."""
    found = source_of(*tensors) if tensors else None
    return torch.empty(0, device="cpu") if found is None or is_scalar(found) else found
