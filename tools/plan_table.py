"""The table of choices: for every case and target the schedule, its predicted time and workspace, and digests of code.

    python -m plan_table [--write] [--sections choices,ptx,bits] [--targets sm_90,cpu] [--jobs 2] [case ...]

prints where today's choices differ from `tests/plan_table.json`, and exits with 1 where they do; `--write` replaces
those rows. No GPU is needed. A move of code does not change a line of the table; what changes one says why.

    choices   schedule, predicted seconds and bytes of workspace of every case, for three architectures and a CPU thread
    ptx       a digest of the PTX of the self-test's problems, for the architectures, under the Triton that is named
    bits      a digest of the bits that the CPU computes of small cases, from values on which rounding shows

Choices for a CPU and bits hold for one length of vectors, bits for one release of torch too: where the machine differs
from the recorded one they are not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

from weft.errors import WeftError

TABLE = Path(__file__).parents[1] / "tests" / "plan_table.json"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SECTIONS = ("choices", "ptx", "bits")
_SMALL = 1 << 22  # multiply-adds of a case whose bits are compared
# Debug information names files, lines and modules, which a move changes; it ends the text.
_PLACES = re.compile(r"^\s*(?:\.loc|\.file|//)[^\n]*$|^\s*\.section\s+\.debug.*\Z", re.MULTILINE | re.DOTALL)


@cache
def host() -> str:
    """The machine as far as choices for a CPU depend on it."""
    from weft.cpu.host import multiplies_bytes
    from weft.cpu.level import vector_bytes

    return f"vectors of {vector_bytes()} bytes{', products of bytes' if multiplies_bytes() else ''}"


def arithmetic_of_host() -> str:
    """The machine as far as bits depend on it: its own processor decides what the compiler and torch's BLAS make."""
    from llvmlite import binding

    return f"{host()}, {binding.get_host_cpu_name()}, torch {torch.__version__.partition('+')[0]}"


def triton_version() -> str:
    from importlib import metadata

    return metadata.version("triton")


def cases() -> dict[str, Any]:
    """Every case by its name and types, permutations among them."""
    from weft_bench import cases as listed
    from weft_bench.cases import layout

    half = (torch.float16, torch.float16, torch.float32)
    tccg = [*listed.tccg(), *(_typed(case, half) for case in listed.tccg())]
    every = (
        *listed.general(), *tccg, *listed.beyond(), *listed.epilogues(), *listed.algebras(), *listed.tiny(),
        *(case for _, case in listed.numbers()), listed.weights()[0], *layout.permutations(torch.float32),
        *(case for _, case in layout.fused()),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for case in every:
        if not getattr(case, "c_as", ""):
            found.setdefault(f"{case.name} {_types(case)}", case)
    return found


def _typed(case: Any, dtypes: tuple[torch.dtype, ...]) -> Any:
    from dataclasses import replace

    return replace(case, dtypes=dtypes)


def _types(case: Any) -> str:
    dtypes = getattr(case, "dtypes", None) or (case.dtype, case.d_dtype)
    return ",".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def target_named(name: str) -> tuple[str, Any]:
    """Backend and target; a CPU is planned for with one thread."""
    from weft.api.describe import find_target
    from weft.planner.schedule import Target

    return ("cpu", Target("cpu", name="CPU", processors=1)) if name == "cpu" else ("triton", find_target(name))


def choices(name: str, targets: Sequence[str]) -> dict[str, Any]:
    """For each target schedule, seconds and workspace, or why there is none."""
    from weft.planner.planner import choose
    from weft_bench.tuning.jobs import described

    found: dict[str, Any] = {}
    for target in targets:
        backend, place = target_named(target)
        try:
            best = choose(described(cases()[name]), backend, place, None).best
        except WeftError as error:
            found[target] = str(error).partition("\n")[0]
            continue
        found[target] = [str(best.schedule), f"{best.seconds:.12g}", best.schedule.workspace_bytes]
    return found


def problems() -> dict[str, Any]:
    """The self-test's problems by family and name: each kind of kernel is among them."""
    from weft.selftest.cases import InPlaceCase, trials

    planned = [trial for trial in trials("triton") if not isinstance(trial.case, InPlaceCase)]
    return {f"{trial.family.removeprefix('weft.')}: {trial.name}": trial for trial in planned}


def kernels(name: str, targets: Sequence[str]) -> dict[str, Any]:
    """For each architecture a digest of the kernels that the best schedule of a problem's own family launches."""
    from weft.gpu.common.inspect import compiled
    from weft.gpu.common.launch import collected
    from weft.selftest.trials import problem, schedules
    from weft_bench.kernels.kernel import launched_kernels

    trial = problems()[name]
    description = problem(trial.case, torch.device("cpu")).description
    found: dict[str, Any] = {}
    for target in targets:
        if target == "cpu":
            continue
        choice = schedules(trial, description, *target_named(target))
        if isinstance(choice, str):
            found[target] = choice
            continue
        try:
            with collected():
                choice, launch = choice.built()
                launches = launched_kernels(launch)
        except WeftError as error:  # its library is not here
            found[target] = str(error).partition("\n")[0]
            continue
        text = "\n".join(_code_of(str(compiled(each, target).asm["ptx"])) for each in launches)
        found[target] = [str(choice.best.schedule), _digest(text.encode())]
    return found


def _code_of(ptx: str) -> str:
    return "\n".join(line for line in _PLACES.sub("", ptx).splitlines() if line.strip())


def bits(name: str, targets: Sequence[str]) -> dict[str, Any]:
    """A digest of what the CPU computes of a case's random values, with one thread."""
    if "cpu" not in targets:
        return {}
    import weft
    from weft_bench.cases import operands

    case = cases()[name]
    torch.set_num_threads(1)
    try:
        a, b, c = operands(case, seed=1)
        result = weft.contract(case.equation, a, b, c=c, backend="cpu", **case.options())
    except WeftError as error:
        return {"cpu": str(error).partition("\n")[0]}
    values = result.resolve_conj().contiguous().reshape(-1).view(torch.uint8)
    return {"cpu": _digest(values.numpy().tobytes())}


def small_cases() -> list[str]:
    return [name for name, case in cases().items() if hasattr(case, "work") and case.work <= _SMALL]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _names(section: str) -> list[str]:
    return {"choices": lambda: list(cases()), "ptx": lambda: list(problems()), "bits": small_cases}[section]()


_ROW: dict[str, Callable[[str, Sequence[str]], dict[str, Any]]] = {"choices": choices, "ptx": kernels, "bits": bits}


def conditions(section: str, target: str) -> str:
    """The conditions of a row; a row recorded under others is not compared."""
    if section == "ptx":
        return f"Triton {triton_version()}"
    if section == "bits":
        return arithmetic_of_host()
    return host() if target == "cpu" else f"Triton {triton_version()}"


def row(section: str, name: str, targets: Sequence[str]) -> dict[str, Any]:
    return _ROW[section](name, targets)


def today(section: str, names: Sequence[str], targets: Sequence[str], jobs: int) -> dict[str, dict[str, Any]]:
    """The rows of a section as the code makes them now."""
    if jobs == 1:
        return {name: row(section, name, targets) for name in names}
    with ProcessPoolExecutor(jobs) as pool:
        rows = pool.map(row, *zip(*((section, name, targets) for name in names), strict=True), chunksize=8)
        return dict(zip(names, rows, strict=True))


def recorded() -> dict[str, Any]:
    return json.loads(TABLE.read_text()) if TABLE.exists() else {"conditions": {}}


def differences(section: str, now: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for every row that is not as it was recorded."""
    table = recorded()
    held = table["conditions"].get(section, {})
    for name, by_target in now.items():
        for target, found in by_target.items():
            if held.get(target) != conditions(section, target):
                continue
            before = table[section].get(name, {}).get(target)
            if before != found:
                yield f"{section} of {name} for {target}: {found}, recorded {before}"


def write(section: str, now: Mapping[str, Mapping[str, Any]]) -> None:
    table = recorded()
    for name, by_target in now.items():
        table.setdefault(section, {}).setdefault(name, {}).update(by_target)
        for target in by_target:
            table["conditions"].setdefault(section, {})[target] = conditions(section, target)
    lines = ",\n".join(
        f'"{part}": {{\n' + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in table[part].items()) + "\n}"
        for part in ("conditions", *SECTIONS)
        if part in table
    )
    TABLE.write_text(f"{{\n{lines}\n}}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases whose names begin so; all")
    parser.add_argument("--write", action="store_true", help="record what the code does now")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--targets", default=",".join((*ARCHITECTURES, "cpu")))
    parser.add_argument("--every", type=int, default=1, help="a sample: one case of so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    count, compared = 0, 0
    for section in given.sections.split(","):
        names = [name for name in _names(section) if not given.names or name.startswith(tuple(given.names))]
        names = names[:: given.every]
        now = today(section, names, given.targets.split(","), given.jobs)
        found = list(differences(section, now))
        print(*found, sep="\n", end="\n" if found else "")
        count += len(found)
        held = recorded()["conditions"].get(section, {})
        compared += sum(held.get(t) == conditions(section, t) for by_target in now.values() for t in by_target)
        if given.write:
            write(section, now)
    print(f"{count} of {compared} rows differ from those recorded{', which are replaced' if given.write else ''}")
    return 0 if given.write or not count else 1


if __name__ == "__main__":
    sys.exit(main())
