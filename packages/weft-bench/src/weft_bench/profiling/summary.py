"""Profiles of a folder in one page of Markdown, a sentence each: ``python -m weft_bench.profiling.summary FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.base.figures import duration, share
from weft.errors import WeftError
from weft_bench.profiling.page import JSON_FILE
from weft_bench.profiling.profile import Profile, load
from weft_bench.records import write_whole

PAGE = "index.md"


def write(folder: Path) -> Path:
    """Write the page of the profiles below `folder`; returns it. `WeftError` where there are none."""
    found = {file.parent.name: load(file)[0] for file in sorted(folder.glob(f"*/{JSON_FILE}"))}
    if not found:
        raise WeftError(f"there is no {JSON_FILE} in any folder of {folder}")
    write_whole(folder / PAGE, text(found))
    return folder / PAGE


def text(found: dict[str, Profile]) -> str:
    """A row for each: time, how much of the roof is reached, what really moved, and what binds."""
    lines = [
        f"# Profiles on {next(iter(found.values())).device}", "", f"{_taken(found)}. Made by `make profiles`.", "",
        "| case | time | floor | of the roof | moved / least | what binds it |", "|-|-|-|-|-|-|",
    ]  # fmt: skip
    for name, each in found.items():
        floor = duration(each.floor["seconds"]) if each.floor else "-"
        roof = share(each.share) if each.share is not None else "-"
        moved = f"{each.moved / each.bytes:.2f}" if each.moved is not None and each.bytes else "-"
        page = f"[{name}]({name}/index.html)"
        lines.append(f"| {page} | {duration(each.seconds.value)} | {floor} | {roof} | {moved} | {each.sentence} |")
    return "\n".join(lines) + "\n"


def _taken(found: dict[str, Profile]) -> str:
    """The day and commit of each run that profiles are of, earliest first."""
    by_date = sorted(found.values(), key=lambda each: each.date)
    runs = dict.fromkeys(
        (each.date[:10], each.environment.get("artifacts", {}).get("commit") or "unknown") for each in by_date
    )
    return "; ".join(f"{date}, commit {commit}" for date, commit in runs)


if __name__ == "__main__":
    print(f"wrote {write(Path(sys.argv[1]))}")
