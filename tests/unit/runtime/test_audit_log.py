"""The audit log has every event once, in files of bounded size, and says how many it lacks."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kbroker.runtime import audit_log
from kbroker.runtime.audit_log import AuditLog
from kbroker.runtime.real_disk import RealDisk
from kbroker.simulation.runtime.environment import EPOCH_MS, simulated_environment
from kbroker.simulation.runtime.loop import SimLoop

PATH = "/audit.log"


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


def lines(disk: Any, path: str = PATH) -> list[dict[str, Any]]:
    return [json.loads(line) for line in disk.read(path).splitlines()]


def test_an_event_is_a_line_and_equal_ones_share_it(loop: SimLoop) -> None:
    environment = simulated_environment(1, loop=loop)

    async def scenario() -> None:
        audit = AuditLog(environment, PATH, 1 << 20, 3)
        for _ in range(3):
            audit.record("denied", principal="User:alice", host="10.0.0.7", client=None)
        audit.record("denied", principal="User:bob\n", host="10.0.0.7")
        assert not environment.disk.read(PATH)
        await environment.sleep(1.5)
        assert lines(environment.disk) == [
            {"time_ms": EPOCH_MS, "event": "denied", "principal": "User:alice", "host": "10.0.0.7",
             "count": 3},
            {"time_ms": EPOCH_MS, "event": "denied", "principal": "User:bob\n", "host": "10.0.0.7"},
        ]  # fmt: skip
        audit.record("changed", resource="TOPIC:a")
        await audit.stop()
        assert lines(environment.disk)[2]["resource"] == "TOPIC:a"

    loop.run_until_complete(scenario())


def test_a_full_file_is_renamed_and_the_oldest_is_deleted(loop: SimLoop) -> None:
    environment = simulated_environment(1, loop=loop)

    async def scenario() -> None:
        audit = AuditLog(environment, PATH, 100, 3)
        for number in range(5):
            audit.record("denied", principal="User:" + "a" * 100, number=number)
            await environment.sleep(2)
        await audit.stop()
        found = {path: [line["number"] for line in lines(environment.disk, path)] for path in
                 (PATH, f"{PATH}.1", f"{PATH}.2")}  # fmt: skip
        assert found == {PATH: [4], f"{PATH}.1": [3], f"{PATH}.2": [2]}
        assert not environment.disk.exists(f"{PATH}.3")

    loop.run_until_complete(scenario())


def test_events_that_do_not_fit_are_counted(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "MAX_PENDING_BYTES", 100)
    environment = simulated_environment(1, loop=loop)

    async def scenario() -> None:
        audit = AuditLog(environment, PATH, 1 << 20, 1)
        for number in range(10):
            audit.record("denied", number=number)
        await audit.stop()
        kept = [line for line in lines(environment.disk) if line["event"] == "denied"]
        assert {"event": "dropped", "events": 10 - len(kept)}.items() <= lines(environment.disk)[-1].items()
        assert "events are missing in the audit log" in caplog.text

    loop.run_until_complete(scenario())


def test_a_disk_that_is_full_for_a_while_costs_events_and_no_torn_line(loop: SimLoop) -> None:
    environment = simulated_environment(1, loop=loop)
    disk: Any = environment.disk

    async def scenario() -> None:
        audit = AuditLog(environment, PATH, 1 << 20, 1)
        disk.capacity = disk.used + 10
        for _ in range(3):
            audit.record("denied", principal="User:alice")
            await environment.sleep(3)
        assert lines(disk) == []
        disk.capacity = None
        await environment.sleep(3)
        assert [(line["event"], line["events"]) for line in lines(disk)] == [("dropped", 3)]
        await audit.stop()

    loop.run_until_complete(scenario())


def test_only_its_user_can_read_it(loop: SimLoop, tmp_path: Any) -> None:
    path = tmp_path / "audit.log"
    path.touch(0o644)
    environment = replace(simulated_environment(1, loop=loop), disk=RealDisk())
    AuditLog(environment, str(path), 100, 1)
    assert path.stat().st_mode & 0o777 == 0o600
