"""`weft doctor`: every family of kernels tested on this machine, and its versions held against those tested before."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from weft.base.figures import duration
from weft.base.version import __version__
from weft.cli.arguments import read_device
from weft.cli.terminal import WRONG, console, errors_in_a_line, progress
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from rich.table import Table

    from weft.planner.schedule import Target
    from weft.planner.verdicts import Verdict
    from weft.selftest.cases import Trial


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """The self-test's result for one family of a backend."""

    backend: str
    family: str
    cases: int  # that were run
    seconds: float
    verdict: str  # "passed", "failed", "not here", "not now", or "broken" where it cannot be imported
    reason: str

    @property
    def is_fault(self) -> bool:
        return self.verdict in ("failed", "broken")


def doctor(
    backend: Annotated[str, typer.Option(help="auto (all that can run here), triton or cpu.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1, ...; a GPU where there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    first_call: Annotated[
        bool, typer.Option("--first-call", help="Time the phases of a first call in a fresh process, and test nothing.")
    ] = False,
) -> None:
    """Test every family of kernels on this machine; exit code 1 where one fails."""
    with errors_in_a_line():
        if first_call:
            _print_first_call(str(read_device(device, backend)), as_json)
            return
        targets = _targets(backend, device)
        lines = [line for name, target in targets for line in _lines(name, target)]
        software = {name: versions(target) for name, target in targets}
        if as_json:
            typer.echo(json.dumps(document(lines, software), indent=1))
        else:
            _print(lines, software)
        if any(line.is_fault for line in lines):
            raise typer.Exit(WRONG)


def _print_first_call(device: str, as_json: bool) -> None:
    """The phases of a first call, a line each."""
    from weft.cli.first_call import measured

    try:
        phases = measured(device)
    except RuntimeError as error:
        raise UnsupportedError(f"a first call on {device} fails: {error}") from None
    if as_json:
        typer.echo(json.dumps({"what": "weft doctor --first-call", "device": device, "phases": phases}, indent=1))
        return
    width = max(len(phase.name) for phase in phases)
    for phase in phases:
        typer.echo(f"{phase.name:<{width}}  {duration(phase.seconds):>8}  {phase.who}")


def _targets(backend: str, device: str | None) -> list[tuple[str, Target]]:
    """Each backend that can run here, and the device that it is tested on."""
    import torch

    from weft.planner.target import target_of

    if backend not in ("auto", "triton", "cpu"):
        raise UnsupportedError(f"backend {backend!r} is none of auto, triton, cpu")
    place = read_device(device, backend)
    names = ["cpu"] if place.type == "cpu" else ["triton", "cpu"]
    return [
        (name, target_of(name, place if name == "triton" else torch.device("cpu")))
        for name in (names if backend == "auto" else [backend])
    ]


def _lines(backend: str, target: Target) -> list[DoctorLine]:
    """All families of a backend, tested now."""
    from weft.planner.registry import WITHOUT_TRITON, imported, short_name, triton_fault
    from weft.selftest.cases import trials
    from weft.selftest.whole import whole

    with progress(f"self-test on {target.name}", len(trials(backend))) as step:
        found = whole(backend, target, lambda trial: step(trial.name))
    by_family: dict[str, dict[Trial, Verdict | None]] = {}
    for trial, verdict in found.items():
        by_family.setdefault(trial.family, {})[trial] = verdict
    lines = [_line(backend, family, own) for family, own in by_family.items()]
    if backend == "triton" and (fault := triton_fault()) is not None:
        return [*lines, DoctorLine(backend, "all others", 0, 0.0, "broken", f"{fault}; {WITHOUT_TRITON}")]
    broken = {trial.family: why for trial in trials(backend) if isinstance(why := imported(trial.family), str)}
    return [*lines, *(DoctorLine(backend, short_name(name), 0, 0.0, "broken", why) for name, why in broken.items())]


def _line(backend: str, family: str, own: Mapping[Trial, Verdict | None]) -> DoctorLine:
    from weft.planner.registry import short_name

    found = [(trial.name, verdict) for trial, verdict in own.items() if verdict is not None]
    failed = [f"{name}: {verdict.reason}" for name, verdict in found if verdict.reason is not None]
    absent = [f"{name}: {verdict.absent}" for name, verdict in found if verdict.absent is not None]
    ran = len(found) - len(absent)
    label = "not now" if not found else "failed" if failed else "passed" if ran else "not here"
    reasons = failed or absent or ([] if found else ["memory is short, or a CUDA graph is being captured"])
    seconds = sum(verdict.seconds for _, verdict in found)
    return DoctorLine(backend, _named(family, short_name(family)), ran, seconds, label, "; ".join(reasons))


def _named(family: str, short: str) -> str:
    """Families of one name are distinguished by what they do: those of the CPU are files of one folder."""
    return short if not family.startswith("weft.cpu.") else f"cpu {short}"


def versions(target: Target) -> dict[str, str | None]:
    """The installed versions that matter to a device."""
    import torch

    from weft.machine.stamp import driver_version
    from weft.planner.registry import triton_version

    found = {
        "weft": __version__,
        "torch": torch.__version__,
        "triton": triton_version(),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    if target.kind in ("cuda", "hip"):
        found |= {
            "cuda": torch.version.cuda,
            "driver": driver_version(target.device),
            "capability": f"{target.capability // 10}.{target.capability % 10}",
        }
    return found | {"device": target.name}


def document(lines: Iterable[DoctorLine], software: Mapping[str, Mapping[str, str | None]]) -> dict[str, Any]:
    """All of it as JSON."""
    from weft.cpu.machine_code import pack_state
    from weft.machine.stamp import components, together

    return {
        "what": "weft doctor",
        "format": 1,
        "families": [asdict(line) for line in lines],
        "backends": {
            backend: {
                "versions": dict(found),
                **({"kernels": pack_state()} if backend == "cpu" else {}),
                "tested": [asdict(each) for each in components(backend, found)],
                "tested_together": together(backend, found),
            }
            for backend, found in software.items()
        },
    }


def _print(lines: list[DoctorLine], software: Mapping[str, Mapping[str, str | None]]) -> None:
    screen = console()
    screen.print(_families(lines))
    for backend, found in software.items():
        for text in _told(backend, found):
            screen.print(text, markup=False, highlight=False, soft_wrap=True)


def _families(lines: Iterable[DoctorLine]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("backend", "family"):
        table.add_column(title, no_wrap=True)
    for title in ("cases", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for line in lines:
        text = f"{line.verdict}: {line.reason}" if line.reason else line.verdict
        style = "red" if line.is_fault else "green" if line.verdict == "passed" else "dim"
        time = f"{line.seconds:.2f} s" if line.cases else ""
        table.add_row(line.backend, line.family, str(line.cases), time, Text(text, style))
    return table


def _told(backend: str, found: Mapping[str, str | None]) -> Iterator[str]:
    """The installed versions, what the project knows of them, and what the CPU has of kernels built ahead."""
    from weft.cpu.machine_code import pack_state
    from weft.machine.stamp import components, together

    yield f"\n{backend} on {found['device']}: {'tested' if together(backend, found) else 'not tested'} by the project"
    yield "  " + ", ".join(f"{name} {version}" for name, version in found.items() if version and name != "device")
    for each in components(backend, found):
        if not each.known:
            yield f"  {each.name} {each.version} was not tested; {', '.join(each.tested)} was"
    if backend == "cpu":
        yield f"  {pack_state()}"
