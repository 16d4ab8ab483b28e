"""`weft profile`, of one process or over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import read_device, read_dtype, read_extents, read_precision, read_work, split
from weft.cli.terminal import console, device_ceilings, errors_in_a_line, progress
from weft.errors import ArgumentError, NotationError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from weft.machine.ceilings import Ceilings
    from weft_bench.cases import Case
    from weft_bench.profiling.profile import Profile


def profile_over_ranks(
    case: Case, place: torch.device, placements: str, budget: float | None, out: Path | None
) -> None:
    """Plan, validate, and measure the case on operands of random values; rank 0 says what was found."""
    import torch
    import torch.distributed as dist

    from weft.distributed import DistributedPlan, plan
    from weft_bench.profiling.api import profile

    where = read_placements(placements)
    if not dist.is_torchelastic_launched():
        raise UnsupportedError("--placements is for several ranks: torchrun --nproc-per-node 2 -m weft profile ...")
    if case.add:
        raise UnsupportedError(f"case {case.name} adds a C: --placements is for contractions without one")
    if place.type == "cuda":
        place = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(place)
    dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    try:
        a, b = parts(case, place, where, dist.get_rank(), dist.get_world_size())
        options = {name: value for name, value in case.options().items() if name not in ("alpha", "beta")}
        made = plan(case.equation, a, b, placements=where, specialize="now", **options)
        assert isinstance(made, DistributedPlan)
        made(a, b, alpha=case.alpha, validate=True)
        found = profile(made, a, b, budget=budget)
        if dist.get_rank() == 0:
            console().print(str(found), markup=False, highlight=False, soft_wrap=True)
            if out is not None:
                typer.echo(f"wrote {found.save(out)}")
    finally:
        dist.destroy_process_group()


def read_placements(text: str) -> dict[str, str]:
    """``a=k,b=k,d=m`` as a mapping; a tensor that is left out is whole on every rank."""
    found: dict[str, str] = {}
    for word in split(text):
        name, _, label = (piece.strip() for piece in word.partition("="))
        if name not in ("a", "b", "d") or not label:
            raise ArgumentError(f"'{word}' in --placements is not of the form a=k, for a, b or d")
        found[name] = label
    return found


def parts(case: Case, place: torch.device, where: dict[str, str], rank: int, ranks: int) -> list[Any]:
    """This rank's parts of A and B."""
    from weft.distributed.placement import Span, chunk
    from weft.testing import random_operand

    found = []
    for at, name in enumerate("ab"):
        term, shape = case.notation.inputs[at], list(case.shapes[at])
        for dim, label in enumerate(term):
            if str(label) == where.get(name):
                shape[dim] = chunk(Span(0, shape[dim]), ranks, rank).extent
        seed = 2 * rank + at if name in where else at  # of what is whole all have the same
        found.append(random_operand(tuple(shape), case.dtypes[at], seed, device=place))
    return found


_HOOKS = ("a_fn", "b_fn", "c_fn", "epilogue")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(profile)


def profile(
    equation: Annotated[str, typer.Argument(help='Two operands, "ecbfa,fd->abcde", or a case: tccg-04, example.')],
    extents: Annotated[str | None, typer.Option(help="Of every label: a=16,b=16,...; a case has its own.")] = None,
    dtype: Annotated[str, typer.Option(help="Of both operands.")] = "float16",
    out_dtype: Annotated[str | None, typer.Option(help="Of the result; float32 for half precision.")] = None,
    precision: Annotated[str | None, typer.Option(help="ieee, ieee_bound, tf32, tf32x3, or a type.")] = None,
    functions: Annotated[str | None, typer.Option(help="By hook: a_fn=relu,epilogue=elu.")] = None,
    algebra: Annotated[str, typer.Option(help="max_plus, min_plus, log, ...")] = "plus_times",
    against: Annotated[str | None, typer.Option(help="torch, cutensor, cublas, ..., or a schedule of weft's.")] = None,
    claim: Annotated[
        str | None, typer.Option(help="The mechanism that is to be shown: traffic, occupancy, ...")
    ] = None,
    counters: Annotated[bool, typer.Option(help="Read hardware counters with Nsight Compute.")] = True,
    energy: Annotated[bool, typer.Option("--energy", help="Measure joules, too.")] = False,
    energy_model: Annotated[
        bool, typer.Option("--energy-model", help="Fit the card's energy model (20 s, then kept), and show it.")
    ] = False,
    precisions: Annotated[
        bool, typer.Option("--precisions", help="Time, joules and digits in fp64, fp32, tf32x3, tf32 and fp16, too.")
    ] = False,
    scaling: Annotated[bool, typer.Option("--scaling", help="On a CPU: strong and weak scaling over threads.")] = False,
    placements: Annotated[
        str | None, typer.Option(help="Under torchrun, over its ranks: the mode by which each lies, a=k,b=k,d=m.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU where there is one.")] = None,
    work: Annotated[str | None, typer.Option(help="Most multiply-adds (1e7, 10M); larger cases are scaled.")] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds of samples for each timing.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for index.html and profile.json.", file_okay=False)] = None,
    record: Annotated[Path | None, typer.Option(help="Add the counters to this file of recorded sets.")] = None,
) -> None:
    """Measure one contraction and say why it is fast, or slow: floor, launches, counters, what binds it."""
    with errors_in_a_line():
        from weft_bench.profiling.evidence import MECHANISMS
        from weft_bench.profiling.page import save
        from weft_bench.profiling.record import append_recorded, compared, recorded_sets
        from weft_bench.profiling.text import side_by_side, trade_lines

        known = [each.name for each in MECHANISMS]
        if claim is not None and claim not in known:
            raise UnsupportedError(f"--claim {claim} is no mechanism: {', '.join(known)}")
        sides = [("weft", None), *([_side(against)] if against is not None else [])]
        place = read_device(device)
        if "->" not in equation and "," in equation:
            raise NotationError(f"'{equation}' is neither an equation nor one case: profile cases one by one")
        case = _case(equation, extents, dtype, out_dtype, precision, functions, algebra)
        case = _shrunk(case, read_work(work))
        if placements is not None:
            from weft_bench.cli.profile import profile_over_ranks

            _check_plain(against=against, claim=claim, energy=energy or energy_model, precisions=precisions,
                         scaling=scaling, record=record)  # fmt: skip
            profile_over_ranks(case, place, placements, budget, out)
            return
        if scaling and place.type != "cpu":
            raise UnsupportedError("--scaling varies the threads of a CPU: add --device cpu")
        if record is not None:
            recorded_sets(record)
        ceilings = device_ceilings(place)
        how = {"counters": counters, "energy": energy or energy_model, "budget": budget}
        found = [_measured(case, place, who, schedule, ceilings, how) for who, schedule in sides]
        if energy_model:
            _modelled(found, place)
        scaled = _scaling(case) if scaling else ()
        trades = _traded(case, place, budget) if precisions else ()
        text = side_by_side(found, compared(found, claim))
        console().print(text, markup=False, highlight=False, soft_wrap=True)
        for each in scaled:
            said = ", ".join(f"{p}: {s:.2f}" for p, s in zip(each.workers, each.speedups, strict=True))
            typer.echo(f"{each.kind} scaling, speed-up by threads {said}; parallel share {each.parallel:.3f}")
        for line in trade_lines(trades):
            typer.echo(line)
        if out is not None:
            typer.echo(f"wrote {save(found, out, scaled, trades)}")
        if record is not None:
            typer.echo(f"{record} holds {append_recorded(record, found)} sets of counters")


def _case(
    equation: str, extents: str | None, dtype: str, out_dtype: str | None, precision: str | None,
    functions: str | None, algebra: str,
) -> Case:  # fmt: skip
    """The case that is named, or that the options describe."""
    import torch

    from weft_bench import cases

    hooks = _functions(functions)
    stored = read_dtype(dtype)
    half = stored in (torch.float16, torch.bfloat16)
    result = read_dtype(out_dtype, "--out-dtype") if out_dtype else torch.float32 if half else stored
    products = read_precision(precision)
    given: dict[str, Any] = {"precision": products, "algebra": _algebra(algebra), **hooks}
    if "->" not in equation and "," not in equation:
        from dataclasses import replace

        named = {case.name: case for case in (cases.example(), *cases.tccg(stored, result), *cases.beyond())}
        if equation not in named:
            raise NotationError(f"'{equation}' is neither an equation nor a case: tccg-01 to tccg-48, example, ...")
        if extents is not None:
            raise ShapeError(f"case {equation} has extents of its own: leave --extents out")
        return replace(
            named[equation], **{name: value for name, value in given.items() if value not in (None, "plus_times")}
        )
    if extents is None:
        raise ShapeError("--extents gives the extent of every label: a=16,b=16,...")
    from weft.spec import parse

    sizes = read_extents(extents)
    terms = [[str(label) for label in term] for term in parse(equation).inputs]
    labels = {label for term in terms for label in term}
    if len(terms) != 2:
        raise NotationError(f"a contraction has two operands, '{equation}' names {len(terms)}")
    if missing := sorted(labels - sizes.keys()):
        raise ShapeError(f"no extent is given for {', '.join(missing)}")
    if strangers := sorted(sizes.keys() - labels):
        raise NotationError(f"extents are given for {', '.join(strangers)}, which '{equation}' does not have")
    shapes = tuple(tuple(sizes[label] for label in term) for term in terms)
    return cases.Case(equation, equation, shapes, (stored, stored, result), **given)  # type: ignore[arg-type]


def _functions(text: str | None) -> dict[str, str]:
    """``a_fn=relu,epilogue=elu`` as hooks to names of functions."""
    from weft.base.figures import nearest
    from weft_bench.cases import FUNCTIONS

    found: dict[str, str] = {}
    for part in split(text):
        hook, _, name = (piece.strip() for piece in part.partition("="))
        if hook not in _HOOKS:
            raise NotationError(
                f"'{part}' in --functions is not of the form epilogue=relu: hooks are {', '.join(_HOOKS)}"
            )
        if name not in FUNCTIONS:
            raise NotationError(f"--functions knows no '{name}': {', '.join(FUNCTIONS)}{nearest(name, FUNCTIONS)}")
        found[hook] = name
    return found


def _algebra(name: str) -> str:
    from weft.base.figures import nearest
    from weft_bench.cases import ALGEBRAS

    if name not in ALGEBRAS:
        raise NotationError(f"--algebra {name} is none of {', '.join(ALGEBRAS)}{nearest(name, ALGEBRAS)}")
    return name


def _check_plain(**options: Any) -> None:
    """Refuse options that a profile over ranks does not take."""
    if named := [name for name, value in options.items() if value]:
        raise UnsupportedError(f"--placements does not go with --{named[0]}")


def _shrunk(case: Case, work: int | None) -> Case:
    from weft_bench.cases import scaled

    return case if work is None or case.work <= work else scaled(case, work)


def _side(against: str) -> tuple[str, str | None]:
    """Who the other one is: a peer by name, or weft by a schedule."""
    from weft_bench.peers.registry import PEERS

    peers = PEERS["contraction"]
    if against not in peers and not any(sign in against for sign in " :,"):
        others = ", ".join(each for each in peers if each != "weft")
        raise UnsupportedError(
            f"--against {against} is neither a peer ({others}) nor a schedule as weft explain prints them"
        )
    return (against, None) if against in peers else ("weft", against)


def _measured(
    case: Case, place: torch.device, who: str, schedule: str | None, ceilings: Ceilings | None, how: dict[str, Any]
) -> Profile:
    """One side: checked, timed, traced, counted."""
    from dataclasses import replace

    from weft_bench.checking import WrongResult, tolerance_text
    from weft_bench.environment import disclose
    from weft_bench.problems import ContractionProblem
    from weft_bench.profiling.energy import measured_energy
    from weft_bench.profiling.profile import add_work, profiled
    from weft_bench.profiling.subject import of_case, usual_sampling

    with progress(f"profile {case.name}", None) as step:
        step(f"{schedule or who}: plan and check")
        subject = of_case(case, place, who, schedule)
        problem = ContractionProblem(case)
        try:
            error = problem.check(problem.inputs(place, 1)).error(subject.call, subject.stored)
        except WrongResult as wrong:
            error = wrong.error
        sampling = usual_sampling(place)
        if how["budget"] is not None:
            sampling = replace(sampling, budget=how["budget"])
        environment = disclose(
            place, workloads={"case": case.name, "call": subject.about, "inputs": "normal random values"},
            correctness=tolerance_text(), ceilings=ceilings, rrs=sampling.rrs, budget=sampling.budget,
        )  # fmt: skip
        step(f"{schedule or who}: time, launches, counters")
        found = profiled(
            subject, sampling=sampling, ceilings=ceilings, counters=how["counters"], error_over_bound=error,
            environment=environment,
        )  # fmt: skip
        add_work(found, case, subject.tensors, ceilings)
        if how["energy"]:
            step(f"{schedule or who}: energy")
            try:
                found.energy = measured_energy(subject, flops=found.flops, moved=found.moved or found.bytes).to_dict()
            except UnsupportedError as reason:
                found.missing["energy"] = str(reason)
    return found


def _modelled(found: list[Profile], place: torch.device) -> None:
    """The prediction of the card's model for each call, next to the measurement."""
    from weft_bench.profiling.energy import card_model

    for each in found:
        if not each.energy:
            continue
        model = card_model(place, str(each.ceilings.get("rate") or "float32"), refresh=each is found[0])
        expected = model.predict(each.energy["seconds"], each.flops, each.moved or each.bytes)
        each.energy |= {"model": str(model), "model_joules": expected}


def _traded(case: Case, place: torch.device, budget: float | None) -> tuple[Any, ...]:
    from weft_bench.machine.energy import sensor_of
    from weft_bench.profiling.tradeoff import trade

    sensor = sensor_of(place) if place.type == "cuda" else None
    return tuple(trade(case, place, 0.2 if budget is None else budget, sensor))


def _scaling(case: Case) -> tuple[Any, ...]:
    from weft_bench.profiling.scaling import strong, weak

    return strong(case), weak(case)
