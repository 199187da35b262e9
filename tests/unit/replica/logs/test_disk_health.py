"""Whether the broker can write to its disk: decisions and probes; reports of operations that lacked something."""

import asyncio
import errno
from functools import partial

import pytest

from kbroker.common import TopicPartition
from kbroker.metadata.image import WriteHealth
from kbroker.replica.logs.disk_health import (
    DOUBT_MS,
    FORGET_MS,
    MAX_LINES_PER_WINDOW,
    MAX_PROBATION_MS,
    MIN_PROBATION_MS,
    OK_PERIOD_MS,
    PROBE_FILE,
    STABLE_MS,
    WINDOW_MS,
    ShortageReporter,
    WriteHealthTracker,
)
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, broker_test

OK, PROBATION, FAILING = WriteHealth
ERROR = "no space"


def recover(tracker: WriteHealthTracker, now_ms: int) -> int:
    """Let writes succeed until the probation begins; returns its duration, in steps of a second."""
    for now in range(now_ms, now_ms + STABLE_MS + 1, STABLE_MS):
        tracker.check(now, None, None)
    assert tracker.health is PROBATION
    now = began_ms = now_ms + STABLE_MS
    while tracker.health is PROBATION:
        now += 1_000
        tracker.check(now, None, None)
    assert tracker.health is OK
    return now - began_ms


def test_a_failed_probe_is_enough() -> None:
    tracker = WriteHealthTracker()
    assert tracker.check(0, ERROR, None)
    assert (tracker.health, tracker.error) == (FAILING, ERROR)
    assert not tracker.check(1, "another", None)
    assert tracker.error == "another"


def test_one_failed_append_is_not_if_the_probe_succeeds() -> None:
    tracker = WriteHealthTracker()
    assert not tracker.check(0, None, ERROR)
    assert not tracker.check(DOUBT_MS, None, ERROR)
    assert tracker.check(2 * DOUBT_MS - 1, None, ERROR), "every append fails, but not the probe"
    assert tracker.health is FAILING
    tracker.check(2 * DOUBT_MS, None, None)
    tracker.check(2 * DOUBT_MS + STABLE_MS - 1, None, ERROR)
    tracker.check(2 * DOUBT_MS + STABLE_MS, None, None)
    assert tracker.health is FAILING, "an append has failed in between"


def test_the_probation_begins_after_a_second_of_successes() -> None:
    tracker = WriteHealthTracker()
    tracker.check(0, ERROR, None)
    assert not tracker.check(100, None, None)
    assert not tracker.check(100 + STABLE_MS - 1, None, None)
    assert tracker.check(100 + STABLE_MS, None, None)
    assert (tracker.health, tracker.error) == (PROBATION, ERROR)
    assert not tracker.check(100 + STABLE_MS + MIN_PROBATION_MS - 1, None, None)
    assert tracker.check(100 + STABLE_MS + MIN_PROBATION_MS, None, None)
    assert (tracker.health, tracker.error) == (OK, "")


def test_a_disk_that_fills_again_and_again_has_longer_probations() -> None:
    tracker = WriteHealthTracker()
    now_ms, found = 0, []
    for _ in range(6):
        tracker.check(now_ms, ERROR, None)
        found.append(recover(tracker, now_ms + 10_000))
        now_ms += 200_000
    assert found == [5_000, 10_000, 20_000, 40_000, MAX_PROBATION_MS, MAX_PROBATION_MS]
    now_ms += FORGET_MS
    tracker.check(now_ms, ERROR, None)
    assert recover(tracker, now_ms + 1) == MIN_PROBATION_MS


def test_a_failure_ends_the_probation() -> None:
    tracker = WriteHealthTracker()
    for now_ms, error in ((0, ERROR), (1, None), (1 + STABLE_MS, None)):
        tracker.check(now_ms, error, None)
    assert tracker.health is PROBATION
    assert tracker.check(2_000, ERROR, None)
    assert tracker.health is FAILING


async def refuse(client: Client) -> None:
    result = await client.produce("t", batch(b"a"))
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@broker_test
async def test_a_full_disk_is_noticed_with_the_first_append(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    monitor = m.broker.services.replicas.write_health
    m.disk.capacity = m.disk.used
    await asyncio.sleep(60)
    assert monitor.health is WriteHealth.OK, "a lone broker does not probe its disk"
    await refuse(client)
    await asyncio.sleep(0.1)
    assert (monitor.health, monitor.error) == (WriteHealth.FAILING, "No space left on device")
    m.disk.capacity = None
    await asyncio.sleep(3)
    assert monitor.health is WriteHealth.PROBATION
    await asyncio.sleep(6)
    assert (monitor.health, monitor.error) == (WriteHealth.OK, "")
    assert not m.disk.exists(f"/data/{PROBE_FILE}")


def contains(name: str, path: str) -> bool:
    return name in path


@broker_test
async def test_a_full_disk_is_noticed_with_a_log_that_cannot_be_opened(m: Machine) -> None:
    client = await m.client()
    monitor = m.broker.services.replicas.write_health
    for name in ("/t-0/", PROBE_FILE, PROBE_FILE):
        m.disk.faults.fail_next("open", partial(contains, name), errno.ENOSPC)
    new = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[new], timeout_ms=1000)
    (result,) = (await client.request(request, 7, CreateTopicsResponse)).topics
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert result.error_message == (
        "The topic exists, but has no log yet: No space left on device. The broker tries again to open it."
    )
    assert (monitor.health, monitor.error) == (WriteHealth.FAILING, "No space left on device")
    new.name = "u"
    (result,) = (await client.request(request, 7, CreateTopicsResponse)).topics
    assert result.error_message == "The broker cannot write to its disk: No space left on device."
    assert "u" not in m.broker.services.metadata.topics
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=5, assignments=None)], timeout_ms=1000)
    (refused,) = (await client.request(more, 3, CreatePartitionsResponse)).results
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    m.disk.faults.stop()
    await asyncio.sleep(20)
    assert (await client.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
    assert monitor.health is WriteHealth.OK


@broker_test
async def test_appends_that_fail_while_probes_succeed(m: Machine) -> None:
    """Such as those to a file that has the maximum size of the file system or of the process."""
    client = await m.client()
    await client.create_topic("t")
    monitor = m.broker.services.replicas.write_health
    for health in (WriteHealth.OK, WriteHealth.FAILING):
        m.disk.faults.fail_next("write", lambda path: path.endswith(".log"), errno.EFBIG)
        await refuse(client)
        await asyncio.sleep(2)
        assert monitor.health is health


@broker_test
async def test_what_a_log_refuses_until_it_resumes_is_no_failure_of_the_disk(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    maintenance, monitor = m.broker.services.replicas.maintenance, m.broker.services.replicas.write_health
    m.disk.capacity = m.disk.used
    await refuse(client)
    await asyncio.sleep(0.1)
    assert monitor.health is WriteHealth.FAILING
    m.disk.capacity = None
    # The log does not resume yet.
    maintenance.appends_suspended = True
    for _ in range(30):
        await refuse(client)
        await asyncio.sleep(0.1)
    assert monitor.health is WriteHealth.PROBATION
    maintenance.appends_suspended = False


@broker_test
async def test_an_idle_broker_of_a_cluster_probes_its_disk(m: Machine) -> None:
    monitor = m.broker.services.replicas.write_health
    monitor.start(is_in_cluster=True)
    m.disk.read_only = True
    await asyncio.sleep(OK_PERIOD_MS / 1000 + 0.1)
    assert (monitor.health, monitor.error) == (WriteHealth.FAILING, "Read-only file system")
    m.disk.read_only = False


NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")
LOGGER = "kbroker.logs"
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of the reporter; clients that another test has left may log, too."""
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_each_operation_of_a_partition_is_logged_once_per_window(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimLoop()
    reporter = ShortageReporter(simulated_environment(1, loop=loop))
    calls: list[None] = []
    reporter.report_to(lambda: calls.append(None))

    async def main() -> None:
        for _ in range(3):
            for operation, error in (("read", NO_DESCRIPTOR), ("sync", NO_DESCRIPTOR), ("append", NO_SPACE)):
                reporter.report(TopicPartition("t", 0), operation, error)
        await asyncio.sleep(0.1)
        assert [line.partition(" reason=") for line in lines(caplog)] == [
            (f"log operation failed, will be retried partition=t-0 operation={operation}", " reason=", f'"{error}"')
            for operation, error in (("read", NO_DESCRIPTOR), ("sync", NO_DESCRIPTOR), ("append", NO_SPACE))
        ]
        assert len(calls) == 6
        await asyncio.sleep(WINDOW_MS / 1000)
        reporter.report(TopicPartition("t", 0), "read", NO_DESCRIPTOR)
        await asyncio.sleep(0.1)
        assert len(lines(caplog)) == 4

    loop.run_until_complete(main())
    loop.close()


def test_the_lines_per_window_are_limited_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimLoop()
    reporter = ShortageReporter(simulated_environment(1, loop=loop))

    async def main() -> None:
        for index in range(MAX_LINES_PER_WINDOW + 7):
            reporter.report(TopicPartition("t", index), "read", NO_DESCRIPTOR)
        await asyncio.sleep(0.1)
        assert len(lines(caplog)) == MAX_LINES_PER_WINDOW
        await asyncio.sleep(WINDOW_MS / 1000)
        reporter.report(TopicPartition("t", 0), "read", NO_DESCRIPTOR)
        await asyncio.sleep(0.1)
        assert lines(caplog)[-1].endswith(" others_not_reported=7")

    loop.run_until_complete(main())
    loop.close()


def test_a_report_after_the_end_of_the_loop_has_no_effect() -> None:
    loop = SimLoop()
    reporter = ShortageReporter(simulated_environment(1, loop=loop))
    loop.close()
    reporter.report(TopicPartition("t", 0), "read", NO_DESCRIPTOR)
