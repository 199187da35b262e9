"""Shortages of disk space or file descriptors are logged once per window and partition."""

import asyncio
import errno

import pytest

from kbroker.common import TopicPartition
from kbroker.replica.logs.disk_health import MAX_LINES_PER_WINDOW, WINDOW_MS, ShortageReporter
from kbroker.simulation.runtime.environment import simulated_environment
from kbroker.simulation.runtime.loop import SimLoop

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
    reporter.on_out_of_descriptors = lambda: calls.append(None)

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
