"""A `Network`: any number of tensors, planned once, contracted again and again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, overload

import torch

from weft.base.arguments import describe_operands
from weft.base.arrays import Array, One, Returned, Scaled, like, outside_transforms
from weft.base.dispatch import as_operation, is_traced, outside_graphs
from weft.base.extensions import reader
from weft.base.figures import counted
from weft.engine.calls import Calls
from weft.engine.ways import asked, is_seen
from weft.errors import ArgumentError, UnsupportedError, call_context
from weft.networks.derivatives import Contractions, alone, as_operations, contractions_of, differentiable
from weft.networks.operands import Changes, Fixed, kind_of, read_changed, read_tensors, result_of, result_place
from weft.networks.plan import NetworkPlan
from weft.networks.program import NetworkProgram
from weft.networks.rescale import scaled
from weft.networks.work import EVERY, Slices, work_of
from weft.plans.known_call import BoundCall, held
from weft.spec.arguments import read_path
from weft.tune.many import BUDGET, TuningReport

PROGRAMS = 4  # layouts of operands that a network is prepared for at once
NONE: Mapping[int, torch.Tensor] = MappingProxyType({})


class Network(Generic[Returned]):
    """A network of tensors, planned once; calling it contracts tensors of the same shapes and types.

    Made by `weft.network`. `net(*tensors)` returns the result. `path`, `slices`, `explain()`, `report()`, `to_graph()`,
    `draw()` and `to_html()` say what was planned, the last three where weft-tensor-bench is installed;
    `error_bound(*tensors)` how far a result may be off.
    """

    def __init__(self, plan: NetworkPlan, constants: Mapping[int, torch.Tensor] = NONE, reduce: Any = None) -> None:
        """`constants` are operands by place, `reduce` as for `weft.network`."""
        if reduce is not None and plan.settings.strip_exponent:
            raise UnsupportedError("strip_exponent and reduce do not go together: reductions would be of the mantissa")
        self.plan, self.fixed, self._reduce = plan, Fixed(plan, constants), reduce
        names = tuple(plan.graph.names[label] for label in plan.graph.output)
        self._reductions = None if reduce is None else as_operation("reductions")(reduce, names)
        self._plain = plan.is_plain and reduce is None
        self._paused: Slices | None = None
        self._shared: dict[str, Any] = {}  # who does which slices, by the name of a process group
        self.latest: NetworkProgram | None = None  # the program that was made last
        self._forget()

    def _forget(self) -> None:
        """Know of no call."""
        self._calls = Calls(2 * PROGRAMS, alike=PROGRAMS)  # programs of operands, and of plain calls
        self._contractions: Contractions | None = None  # for derivatives
        self._changes = Changes() if self.plan.settings.reuse else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Its plan and constants: a copy is a network of its own that was not called yet."""
        return Network, (self.plan, self.fixed.constants, self._reduce)

    @property
    def path(self) -> tuple[tuple[int, int], ...]:
        """The path, as `opt_einsum` has it: places in a list from which operands go and to whose end results come."""
        return self.plan.whole.path

    @property
    def slices(self) -> tuple[Any, ...]:
        """The labels that are sliced, as the caller named them; empty where nothing is."""
        return tuple(self.plan.tree.graph.names[label] for label in self.plan.tree.sliced)

    @property
    def memory(self) -> int:
        """Bytes that a call holds at once in addition to operands: intermediates, the result and what is needed for it,
        and on a GPU copies of operands where steps are replayed as a CUDA graph. `memory_limit` is held against it.
        Kernels pack operands in what the limit leaves, or in 4 MiB where that is less."""
        return self.plan.memory(self.latest)

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
        fixed = self.fixed
        if fixed.may_change:
            self._follow()
        if group is not None or checkpoint is not None or distribute != "slices":
            over = group, distribute, link
            found = self._at_length(tensors, out, changed, over, checkpoint, checkpoint_every)
            return self._with_reductions(found)
        place = None
        if self._plain and out is None and changed is None:
            known, place = self._calls.find("call", tensors)
            if known is not None:
                found = known(*tensors, *fixed.operands) if fixed.constants else known(*tensors)
                if found is not None:
                    return found
        with call_context(lambda: self._described(tensors)):
            found, program = self._called(tensors, out, changed)
        self._calls.keep(place, tensors, program)
        return self._with_reductions(found)

    def _called(
        self, tensors: Sequence[Any], out: Any, changed: Collection[int] | None
    ) -> tuple[Any, NetworkProgram | None]:
        """The result of a call that is read in full, and the program that makes it."""
        read = read_tensors(self.plan, tensors)
        operands, program = self._operands(read), None
        if asked(*read):
            if out is not None:
                raise UnsupportedError("out= takes no part in derivatives: leave it out, or use torch.no_grad()")
            return like(kind_of(tensors), differentiable(self._for_derivatives(), operands)), None
        if is_traced(read):
            into = None if out is None else result_place(self.plan, out, read)
            return as_operations(self._for_derivatives(), operands, into), None
        place = result_place(self.plan, out, read)
        if changed is not None and self._changes is None:
            raise ArgumentError("changed= is for a network made with reuse=True, which keeps its intermediates")
        exponent = None
        if not self.plan.tree.steps:
            operand = operands[0]
            if self.plan.settings.strip_exponent:
                operand, exponent = scaled(operand)
            alone(self.plan, operand, place)
        elif self._changes is not None:
            with self._changes.lock:
                program = self.program(read)
                touched = self._changes.since(program, operands, read_changed(self.plan, changed))
                program.run(operands, place, touched)
                self._changes.done(program, operands)
        elif self.plan.tree.sliced or self.plan.settings.strip_exponent:
            made = self._sliced_call(Slices(self.work(operands, place), range(self.plan.tree.slices)))
            exponent = made[1] if self.plan.settings.strip_exponent else None
        else:
            program = self.program(read)
            program.run(operands, place)
        result = result_of(tensors, out, place)
        return (result if exponent is None else (result, exponent)), program

    def bind(self, *tensors: Any, out: Any = None) -> BoundCall:
        """The call on these very tensors, without arguments: it launches, and does nothing else (`weft.BoundCall`).

        Without `out` the result is allocated now, once. Runs take turns; those that are replayed as CUDA graphs capture
        one on these operands. Raises what a call raises, and `UnsupportedError` where a derivative is requested, while
        torch traces, and for networks of one operand, with slices, `reuse`, `strip_exponent` or `check_finite`.
        """
        self._follow()
        with call_context(lambda: self._described(tensors)):
            if not self._plain:
                raise UnsupportedError("only networks whose call is their steps, one after the other, are bound")
            read = read_tensors(self.plan, [held("an operand", one, conjugate=True) for one in tensors])
            place = result_place(self.plan, None if out is None else held("out", out), read)
            result = out if out is not None else like(kind_of(tensors), place)
            return BoundCall(self._described(tensors), self.program(read), (self._operands(read), place), result)

    def resume(self) -> Any:
        """Go on with the call that Ctrl-C has interrupted, from the first slice that was not done.

        Of a call with a group every rank has to.
        """
        call = self._paused
        if call is None:
            raise ArgumentError("there is nothing to resume: no call of this network was interrupted between slices")
        return self._with_reductions(self._sliced_call(call))

    def program(self, read: Sequence[torch.Tensor], *, keep: bool = True, measured: bool = True) -> NetworkProgram:
        """The network bound to operands with the layouts of these; `keep`: with an arena that stays allocated.

        Of a network that measures, the steps of one that is new are tuned, unless that is done by the caller.
        """
        program: NetworkProgram | None
        program, place = self._calls.find("program", read)
        if program is not None:
            return program
        graphs = self.plan.settings.cuda_graph if keep else False
        with outside_transforms():
            program = self.latest = NetworkProgram(self.plan, self._operands(read), keep=keep, graphs=graphs)
        if measured and self.plan.settings.options.tune == "measure":
            from weft.networks.tuning import measured as tuned

            return tuned(self, program, [operand.detach() for operand in self._operands(read)])
        self._calls.keep(place, read, program)
        return program

    def operands(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """The operands of a call, checked as there, and after them those made of constants."""
        self._follow()
        with call_context(lambda: self._described(tensors)):
            return self._operands(read_tensors(self.plan, tensors))

    def place(self) -> torch.Tensor:
        """Memory for a result, not filled: of its shape and type, contiguous, on the network's device."""
        return result_place(self.plan)

    def refresh(self) -> None:
        """Take all operands and constants for changed, whoever has written them.

        Calls see by themselves what torch's count of versions shows: what torch and weft have written. They do not see
        what fused optimizers, ``tensor.data``, NumPy or kernels of other libraries write.
        """
        self.fixed.refresh()
        if self._changes is not None:
            self._changes = Changes()

    def _follow(self) -> None:
        """Forget what was made of functions that compute something else by now, or of constants that have changed."""
        if self.fixed.may_change and self.fixed.changed():
            self.refresh()
            self._forget()

    def _operands(self, read: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [*read, *self.fixed.operands]

    def _for_derivatives(self) -> Contractions:
        self._contractions = self._contractions or contractions_of(self.plan)
        return self._contractions

    def _with_reductions(self, found: Any) -> Any:
        return found if self._reductions is None else (found, self._reductions.of(found))

    def _at_length(
        self, tensors: Sequence[Any], out: Any, changed: Collection[int] | None, over: tuple[Any, Any, Any],
        checkpoint: Any, every: float,
    ) -> Any:  # fmt: skip
        """A call that ranks share, or of which a checkpoint is kept."""
        from weft.networks.modes_call import call_at_length
        from weft.networks.shared import NetworkCall, check_interval

        def read() -> tuple[list[torch.Tensor], torch.Tensor]:
            if checkpoint is not None:
                check_interval(every)
            found = read_tensors(self.plan, tensors)
            if changed is not None or self._changes is not None:
                raise UnsupportedError("reuse keeps every intermediate in memory: without group and checkpoint")
            if is_seen(found):
                raise UnsupportedError("group and checkpoint take no part in derivatives: use torch.no_grad()")
            return self._operands(found), result_place(self.plan, out, found)

        with call_context(lambda: self._described(tensors)):
            folder = None if checkpoint is None else read_path("checkpoint", checkpoint)
            given = NetworkCall(self.plan, read, self.work, self._shared, folder, every)
            found, place = call_at_length(given, over, self._sliced_call)
        result = result_of(tensors, out, place)
        return (result, found[1]) if self.plan.settings.strip_exponent else result

    def work(self, operands: Sequence[torch.Tensor], place: torch.Tensor, partial: Collection[int] = ()) -> Any:
        """The slices of a call into `place`; the parts `partial` of the result are not finished here."""
        return work_of(self.program(operands[: len(self.plan.folded.given)]), operands, place, partial)

    def _sliced_call(self, call: Slices) -> Any:
        """Slices one after the other; what is done when Ctrl-C comes is kept for `resume`."""
        self._paused = call
        found = call.result()
        self._paused = None
        return found

    def warm(self, *tensors: Any) -> Any:
        """Contract these tensors once, and have the best kernel for every step from then on; returns the network.

        `tensors` as in a call. It takes seconds where nothing is compiled yet; later processes find the kernels. Raises
        what a call raises.
        """
        from weft.networks.tuning import warm

        warm(self, tensors)
        return self

    def tune(self, *tensors: Any, budget: float = BUDGET, workers: int | None = None) -> TuningReport:
        """Measure what could serve each step, and have the fastest from then on; returns a report that prints itself.

        `tensors` as in a call. Equal steps are measured once, those that take longest by prediction first. Candidates
        are the best schedules of each family by prediction, torch's own operations, and what serves now. `budget`:
        seconds, after which no further step is begun. `workers`: processes that compile meanwhile, by default one for
        each core but one. The fastest are stored, for all networks that have such a step and for later processes; a
        step whose schedule is stored is not measured again. With ``specialize="never"`` torch's own operations serve
        on. On a terminal a bar shows on standard error. Ctrl-C keeps what was found.

        Raises what a call raises, `ArgumentError` for a budget or workers below 0, `UnsupportedError` while a CUDA
        graph is being captured.
        """
        from weft.networks.tuning import tune

        return tune(self, tensors, budget, workers)

    def error_bound(self, *tensors: Any) -> torch.Tensor:
        """The most by which each element of the result may differ from the exact one: a float64 tensor of its shape.

        `tensors` as in a call. It costs a contraction of the magnitudes in float64.
        """
        from weft.networks.report import error_bound

        return error_bound(self.plan, self.operands(tensors))

    def explain(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> str:
        """Path, slices, steps with their flops, bytes and predicted times, peak memory, and the tree as text.

        Figures have their units; those of a step are of one slice. With `ranks`: the intermediates distributed by modes
        over so many ranks, as calls with `distribute="modes"` have them: what ranks share out in each step, how its
        result is placed, the bytes that travel. `link` is a `weft.distributed.Link` or the name of a preset, by default
        NVLink within machines of eight GPUs, and InfiniBand between them; `target` another GPU ("h200", "sm_90").
        """
        return self._said("explain", ranks, link, target)

    def report(self, ranks: int | None = None, link: Any = None, target: str | None = None) -> dict[str, Any]:
        """The plan as data: plain numbers, text and lists; times in seconds, sizes in bytes, work in flops.

        With `ranks` that of the intermediates distributed by modes, as for `explain`.
        """
        return self._said("report", ranks, link, target)

    def _said(self, what: str, *paper: Any) -> Any:
        from weft.networks import report

        if paper != (None, None, None):
            return getattr(report, f"{what}_on_ranks")(self.plan, *paper)
        return getattr(report, what)(self.plan, self.latest)

    def to_graph(self) -> Any:
        """The contraction tree as a `networkx.DiGraph`: see `weft_bench.report.trees.to_graph`."""
        return reader("report.trees", "Network.to_graph()").to_graph(self)

    def draw(self, file: Any = None) -> Any:
        """The tree as a matplotlib figure, saved where `file` is a path: circles grow with the tensors' bytes, colours
        are predicted seconds."""
        return reader("report.trees", "Network.draw()").draw(self, file)

    def to_html(self, file: Any = None) -> str:
        """The text of `explain` and the tree as one HTML page; saved where `file` is a path."""
        return reader("report.trees", "Network.to_html()").to_html(self, file)

    def _repr_html_(self) -> str:
        """HTML for a notebook: figures, and the text of `explain` behind a click."""
        from weft.networks.report import shown

        return shown(self.plan, self.latest)

    def _described(self, tensors: Sequence[Any]) -> str:
        count = counted(len(self.plan.graph.operands), "operand")
        described = describe_operands(tensors, self.plan.folded.given)
        return f"network of {count} ({described})" if described else f"network of {count}"

    def __repr__(self) -> str:
        return repr(self.plan)
