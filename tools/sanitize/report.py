"""All findings of a run in one record, and as a table."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from sanitize import run
from sanitize.layout import Region, name_of, of_job
from sanitize.log import Finding
from sanitize.verdicts import known
from weft.machine.stamp import command, commit, device_stamp

MOST_NAMED = 12  # jobs and places of a finding that are written down
MOST_READ = 16  # jobs of a finding whose kernels are compiled again to read what lies where; each takes seconds


@dataclass
class Outcome:
    """The outcome of one tool, over all its processes."""

    tool: str
    jobs: int = 0
    ran: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # of the process that took longest
    troubles: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    bits: dict[str, str] = field(default_factory=dict)  # of results, where they are compared
    reference: dict[str, str] = field(default_factory=dict)
    missing: str = ""  # why it was not run

    def add(self, ended: run.Ended) -> None:
        """Take up what a process found."""
        self.jobs += ended.jobs
        self.ran += len(ended.log.ran)
        self.refused |= ended.log.refused
        self.seconds = max(self.seconds, ended.seconds)
        self.troubles += [ended.trouble] if ended.trouble else []
        self.troubles += [f"{job}: {reason}" for job, reason in ended.log.failed.items()]
        self.summaries += [ended.log.summary] if ended.log.summary else []
        self.bits |= ended.log.bits
        self.reference |= ended.log.reference
        self.note(ended.log.findings)
        counted = _errors(ended.log.summary)
        if counted and not ended.log.findings:
            self.troubles.append(f"the tool counts {counted} errors, none of which could be read")

    def note(self, findings: Iterable[Finding]) -> None:
        """Take up findings, those of one kernel and kind as one."""
        for finding in findings:
            key = finding.kernel, finding.kind
            if key in self.findings:
                self.findings[key].add(finding)
            else:
                self.findings[key] = finding


def _errors(summary: str) -> int:
    first = summary.partition(":")[2].split()
    return int(first[0]) if first and first[0].isdigit() else 0


def judged(outcome: Outcome, architecture: str) -> Iterator[dict[str, Any]]:
    """Each finding with where it is, and its verdict where there is one."""
    verdicts = known()
    _read_layouts(outcome, architecture)
    for finding in outcome.findings.values():
        regions = _regions(finding, architecture)
        where = list(regions) or list(finding.places)
        verdict = next(
            (each for each in verdicts if each.covers(finding.tool, finding.kernel, finding.kind, where)), None
        )
        yield {
            "tool": finding.tool,
            "kernel": finding.kernel,
            "kind": finding.kind,
            "severity": finding.severity,
            "reports": finding.count,
            "shared memory": dict(regions),
            "places": dict(finding.places.most_common(MOST_NAMED)),
            "jobs": dict(finding.jobs.most_common(MOST_NAMED)),
            "first report": finding.first,
            "verdict": verdict.verdict if verdict else None,
            "reason": verdict.reason if verdict else None,
        }


def _read_layouts(outcome: Outcome, architecture: str) -> None:
    """Read the layouts of all jobs that have findings, by a process for each core."""
    jobs = {job for finding in outcome.findings.values() for job in _looked_at(finding)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _layouts(job, architecture), jobs))


@cache
def _layouts(job: str, architecture: str) -> dict[str, list[Region]]:
    return of_job(job, architecture)


def _looked_at(finding: Finding) -> set[str]:
    """The jobs near which most reports came that name an address."""
    counts: Counter[str] = Counter()
    for (job, _), count in finding.shared.items():
        counts[job] += count
    return {job for job, _ in counts.most_common(MOST_READ)}


def _regions(finding: Finding, architecture: str) -> Counter[str]:
    """The regions at the places of a finding's reports, in the jobs looked at; reports come near the job that runs."""
    named: Counter[str] = Counter()
    looked_at = _looked_at(finding)
    for (job, address), count in finding.shared.items():
        if job in looked_at:
            found = _layouts(job, architecture).get(finding.kernel, [])
            named[name_of(address, found) if found else "unknown"] += count
    return named


@dataclass(frozen=True)
class Record:
    """The record of a run."""

    content: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether every tool came to its end, with nothing that is not judged."""
        tools = self.content["tools"].values()
        return not any(tool["troubles"] for tool in tools) and all(each["verdict"] for each in self.content["findings"])

    def json(self) -> str:
        return json.dumps(self.content, indent=1, ensure_ascii=False) + "\n"


def record(outcomes: list[Outcome], findings: list[dict[str, Any]], names: list[str], seconds: float) -> Record:
    """Put together what was found, on what, by what."""
    tools = {
        outcome.tool: {
            "jobs": outcome.jobs,
            "run": outcome.ran,
            "too large for the device": outcome.refused,
            "seconds": round(outcome.seconds, 1),
            "troubles": outcome.troubles,
            "summaries": outcome.summaries,
            **({"not run": outcome.missing} if outcome.missing else {}),
            **({"results": len(outcome.bits), "references": len(outcome.reference)} if outcome.bits else {}),
        }
        for outcome in outcomes
    }
    version = _version() if any(outcome.tool in run.TOOLS for outcome in outcomes) else "not asked for"
    return Record(
        {
            "device": device_stamp("cuda"),
            "cuda": torch.version.cuda,
            "compute-sanitizer": version,
            "commit": commit(),
            "command": command(),
            "seconds": round(seconds, 1),
            "tools": tools,
            "findings": findings,
            "jobs": names,
        }
    )


def _version() -> str:
    said = subprocess.run([run.sanitizer(), "--version"], capture_output=True, text=True).stdout
    return next((line for line in said.splitlines() if "Version" in line), said.strip())


def table(written: Record) -> str:
    """The record as a table to read."""
    content = written.content
    device = content["device"]
    lines = [
        f"{device['name']}, driver {device['driver']}, torch {device['torch']}, Triton {device['triton']}",
        f"compute-sanitizer: {content['compute-sanitizer']}",
        f"commit {content['commit']}",
        f"{content['command']}    ({content['seconds']:.0f} s)",
        "",
        f"{'tool':<10} {'jobs':>5} {'run':>5} {'seconds':>8}  findings",
    ]
    for name, tool in content["tools"].items():
        own = [each for each in content["findings"] if each["tool"] == name]
        new = sum(each["verdict"] is None for each in own)
        counts = f"{tool['jobs']:>5} {tool['run']:>5} {tool['seconds']:>8}"
        lines.append(f"{name:<10} {counts}  {len(own)}, to be judged: {new}")
        lines += [f"           not run: {tool['not run']}"] if "not run" in tool else []
        if "results" in tool:
            lines.append(f"           {tool['results']} results compared, {tool['references']} with the plain kernel's")
        lines += [f"           {trouble}" for trouble in tool["troubles"]]
    for each in content["findings"]:
        lines += ["", f"{each['tool']}: {each['kernel'] or 'no kernel'}: {each['kind']} ({each['reports']} reports)"]
        where = each["shared memory"] or each["places"]
        lines += [f"    at {', '.join(f'{name} ({count})' for name, count in where.items())}"] if where else []
        lines += [f"    in {job}" for job in list(each["jobs"])[:3]]
        lines += [f"    | {line}" for line in each["first report"]]
        lines.append(f"    {each['verdict']}: {each['reason']}" if each["verdict"] else "    TO BE JUDGED")
    return "\n".join(lines) + "\n"
