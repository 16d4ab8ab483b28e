"""The output of a tool as findings: one for each kernel and kind of report.

Lines of the tools begin with nine `=`; a report's first line is indented by one blank, those that follow by more. Lines
of the workload stand between them and say which job runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sanitize.workload import BITS, DONE, FAILED, LOST, MARK, REFERENCE, REFUSED

PREFIX = "========="
FIRST_LINES = 8  # of a finding's first report that are kept
_NO_REPORTS = ("COMPUTE-SANITIZER", "Target application", "Device not supported")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")
_SEVERITY = re.compile(r"^(error|warning|warn|info|fatal): ?(?:\((.*?)\) ?)?", re.IGNORECASE)
_FRAME = re.compile(r"Device Frame: *(\w+)")
# "at kernel+0x1a0 in file.py:12", with older releases "at 0x1a0 in file.py:12:kernel"
_PLACES = (
    re.compile(r"\bat (?P<kernel>\w+)(?:\([^)]*\))?\+0x[0-9a-f]+(?: in (?:\S*/)?(?P<place>[\w.-]+:\d+))?"),
    re.compile(r"\bat 0x[0-9a-f]+ in (?:\S*/)?(?P<place>[\w.-]+:\d+):(?P<kernel>\w+)"),
)
# What CUDA prints of an assertion on the device, as those of Triton's sanitizers are.
_ASSERTION = re.compile(r"(?:\S*/)?(?P<place>[\w.-]+:\d+): (?P<kernel>\w+): block: .* Assertion `(?P<kind>.*)` failed")
_SHARED = re.compile(r"__shared__ (0x[0-9a-f]+)")
_ACCESS = re.compile(r"(Read|Write|Atomic) (?:access|Thread)", re.IGNORECASE)


@dataclass
class Finding:
    """All reports of one kind about one kernel."""

    tool: str
    kernel: str
    kind: str
    severity: str = ""
    count: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)  # files and lines
    shared: Counter[tuple[str, int]] = field(default_factory=Counter)  # jobs, and addresses in shared memory
    first: list[str] = field(default_factory=list)  # lines

    def add(self, other: Finding) -> None:
        """Take up more of the same."""
        self.count += other.count
        for mine, more in ((self.jobs, other.jobs), (self.places, other.places), (self.shared, other.shared)):
            mine.update(more)  # type: ignore[arg-type]


@dataclass
class Log:
    """The log of one process."""

    tool: str
    findings: list[Finding] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)  # jobs that were begun
    refused: dict[str, str] = field(default_factory=dict)  # jobs that the device has no room for, and why
    failed: dict[str, str] = field(default_factory=dict)  # jobs that raised an error
    bits: dict[str, str] = field(default_factory=dict)  # digests of the results of jobs, where they are computed
    reference: dict[str, str] = field(default_factory=dict)  # of the reference, in the same process
    lost: bool = False  # a job took the CUDA context along
    done: bool = False  # the workload came to its end
    summary: str = ""  # the tool's own last line


def read(tool: str, lines: Iterable[str]) -> Log:
    """Read a process's output."""
    log = Log(tool)
    found: dict[tuple[str, str], Finding] = {}
    for line, report in _reports(lines):
        if line.startswith(MARK):
            log.ran.append(line.removeprefix(MARK))
        elif line.startswith(REFUSED):
            log.refused[log.ran[-1]] = line.removeprefix(REFUSED)
        elif line.startswith(FAILED):
            log.failed[log.ran[-1]] = line.removeprefix(FAILED)
        elif line.startswith(BITS):
            log.bits[log.ran[-1]] = line.removeprefix(BITS)
        elif line.startswith(REFERENCE):
            log.reference[log.ran[-1]] = line.removeprefix(REFERENCE)
        elif line.startswith(LOST):
            log.lost = True
        elif line.startswith(DONE):
            log.done = True
        elif report and (summary := _SUMMARY.search(report[0])):
            log.summary = summary[0]
        elif report and not report[0].startswith(_NO_REPORTS):
            finding = _finding(tool, report, log.ran[-1] if log.ran else "")
            key = finding.kernel, finding.kind
            if key in found:
                found[key].add(finding)
            else:
                found[key] = finding
    log.findings = list(found.values())
    return log


def _reports(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Lines of the workload, each with no report; and reports, each with no line."""
    report: list[str] = []
    for line in lines:
        if _ASSERTION.match(line):
            yield "", [line.strip()]
            continue
        if not line.startswith(PREFIX):
            if line.startswith("@"):  # what torch or Triton print is no end of a report
                if report:
                    yield "", report
                report = []
                yield line.rstrip("\n"), []
            continue
        text = line.removeprefix(PREFIX).rstrip()
        if report and not text.startswith("  "):
            yield "", report
            report = []
        if text.strip():
            report.append(text.strip())
    if report:
        yield "", report


def _finding(tool: str, report: list[str], job: str) -> Finding:
    head = report[0]
    if (asserted := _ASSERTION.match(head)) is not None:
        found = Counter((asserted["place"],))
        return Finding(tool, asserted["kernel"], asserted["kind"], "error", 1, Counter((job,)), found, first=[head])
    severity = _SEVERITY.match(head)
    text = "\n".join(report)
    places = [found for pattern in _PLACES for found in pattern.finditer(text)]
    frames = _FRAME.findall(text)
    kernel = frames[-1] if frames else places[0]["kernel"] if places else ""
    finding = Finding(tool, kernel, _kind(head, text), severity[1].lower() if severity else "", 1)
    finding.jobs[job] += 1
    finding.places.update(found["place"] for found in places if found["place"])
    finding.shared.update((job, int(address, 16)) for address in _SHARED.findall(head))
    finding.first = report[:FIRST_LINES]
    return finding


def _kind(head: str, text: str) -> str:
    """The first line without what differs from report to report; of two accesses that race, which they are."""
    kind = _SEVERITY.sub("", head)
    if "memcpy_async" in text:
        return f"{_first_words(kind)} (asynchronous copy)"
    if kind.startswith("Race reported"):
        return "Race reported between " + " and ".join(sorted({each.lower() for each in _ACCESS.findall(text)}))
    return _first_words(kind)


def _first_words(kind: str) -> str:
    return re.sub(r" at [\w(].*$| in block .*$|\s*\[\d+ hazards?\]| 0x[0-9a-f]+|:\s*$", "", kind).strip()
