"""Instructions that decide the speed of a kernel, or would make it wrong, counted in its PTX or AMD assembly."""

from __future__ import annotations

import re


def instructions(text: str) -> dict[str, int]:
    """How often the instructions that decide a kernel's speed stand in its PTX."""
    wanted = {
        "wgmma": r"wgmma\.mma_async",
        "tcgen05": r"tcgen05\.mma",
        "mma": r"mma\.sync",
        "mfma": r"v_mfma",
        "cp.async": r"cp\.async\.c[ag]",
        "cp.async.bulk": r"cp\.async\.bulk\.tensor",
        "cp.async.16": r"cp\.async\.c[ag]\S* \[.*0x10",  # of 16 bytes
        "ld.global": r"ld\.global",
        "ld.global.16": r"ld\.global\S*\.(v4\.[bf]32|v2\.[bf]64)",
        "st.global": r"st\.global",
        "st.global.16": r"st\.global\S*\.(v4\.[bf]32|v2\.[bf]64)",
        "local": r"\.local|scratch_(load|store)",
        "waits": r"griddepcontrol\.wait",  # for the launches before
    }
    found = {name: len(re.findall(pattern, text)) for name, pattern in wanted.items()}
    faults = {"unfenced": unfenced(text), "unawaited": unawaited(text), "unmet": unmet(text), "unread": unread(text)}
    return found | faults


def unawaited(text: str) -> int:
    """How many accesses to memory stand in PTX before the wait for the launches before: what they read may not have
    been written."""
    before, wait, _ = text.partition("griddepcontrol.wait")
    return len(re.findall(r"(?:ld|st|atom|red)\.global|cp\.async", before)) if wait else 0


def unfenced(text: str) -> int:
    """How many fences for the matrix units in PTX come too late: after the threads that stored have met, and with no
    other meeting before a wgmma.

    Matrix units read shared memory by another path than threads write it. Every thread that stores must fence, and then
    all must meet: otherwise a warp may multiply while the fence of another is still to come.
    """
    count, state = 0, ""
    for line in text.splitlines():
        if "st.shared" in line or "stmatrix" in line:
            state = "stored"
        elif "bar.sync" in line:
            state = "met" if state == "stored" else ""
        elif "fence.proxy.async" in line:
            state = "late" if state == "met" else ""
        elif "wgmma.mma_async" in line and state:
            count += state == "late"
            state = ""
    return count


def unread(text: str) -> int:
    """How many groups of wgmmas in PTX may still be reading a factor in registers when a loop begins anew, which then
    writes the next one: assemblers before CUDA 13.3 may give both the same registers."""
    count, made = 0, False
    flying: list[bool] = []  # groups under way: whether a factor of theirs is in registers
    labels: set[str] = set()
    for line in text.splitlines():
        if found := re.match(r"(\$L\w+):", line):
            labels.add(found[1])
        elif found := re.search(r"wgmma\.mma_async\S* \{[^}]*\},\s*(\{)?", line):
            made = made or found[1] is not None
        elif "wgmma.commit_group" in line:
            flying, made = [*flying, made], False
        elif found := re.search(r"wgmma\.wait_group\S*\s+(\d+)", line):
            flying = flying[max(len(flying) - int(found[1]), 0) :]
        elif (found := re.search(r"\bbra\S*\s+(\$L\w+);", line)) and found[1] in labels:
            count += sum(flying)
    return count


def unmet(text: str) -> int:
    """How many arrivals at an mbarrier in PTX follow an access to shared memory, or the wait for a wgmma, that not all
    threads of the role are known to be done with: one thread arrives for all, so all must meet before.

    Gluon's compiler puts that meeting there. Kernels with specialised warps count on it where they give slots back.
    """
    count, met = 0, True
    for line in text.splitlines():
        if re.search(r"\b(bar|barrier)\.(warp\.)?sync", line):
            met = True
        elif re.search(r"(ld|st)\.shared|ldmatrix|stmatrix|wgmma\.wait_group", line):
            met = False
        elif "mbarrier.arrive" in line and "expect_tx" not in line:
            count += not met
    return count
