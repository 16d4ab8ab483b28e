"""Other programs at work are seen."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.machine import identity
from weft.machine.identity import Watch, _ranges, machine_identity, usable_cores


def test_programs_on_all_cores_are_seen() -> None:
    watch = Watch()
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in 2 * usable_cores()]
    try:
        time.sleep(1.0)
        assert watch.others() > 0.5
    finally:
        for each in loops:
            each.kill()
            each.wait()


@pytest.mark.parametrize(("used", "own", "share"), [(2.0, 2.0, 0.0), (2.0, 1.0, 0.5), (1.0, 2.0, 0.0)])
def test_what_this_process_uses_is_not_others(
    monkeypatch: pytest.MonkeyPatch, used: float, own: float, share: float
) -> None:
    monkeypatch.setattr(identity, "_spin", lambda: 0.0)
    monkeypatch.setattr(identity, "usable_cores", lambda: [0])
    moments = iter([identity._Moment(0.0, 0.0, 0.0), identity._Moment(2.0, own, used)])
    monkeypatch.setattr(identity, "_moment", lambda: next(moments))
    assert Watch().others() == share


def test_where_the_system_tells_nothing_a_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_at_work", lambda: None)
    monkeypatch.setattr(identity, "_spin", lambda: 0.25)
    assert Watch().others() == 0.25


def test_the_machine_is_told_as_json_would() -> None:
    assert machine_identity() == machine_identity()
    assert machine_identity()["cores"] >= len(usable_cores())
    assert _ranges([0, 1, 2, 3, 8]) == "0-3,8"
    assert not Path("/etc/machine-id").exists() or Path("/etc/machine-id").read_text().strip() not in str(
        machine_identity()
    )
