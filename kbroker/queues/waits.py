"""Waits: of a task for work, and until everything that is in a partition's log is committed."""

from asyncio import AbstractEventLoop, Future
from functools import partial

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from protocol.errors import ErrorCode


class Wakeup:
    """The wait of one task, which checks for work before each wait: `wake` has no effect while it does not wait."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: Future[None] | None = None

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, max_s: float | None) -> None:
        """Wait until `wake`, at most `max_s` seconds; None: without a limit."""
        waiting = self._waiting = self._loop.create_future()
        timer = None if max_s is None else self._loop.call_later(max_s, self.wake)
        try:
            await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()


async def wait_until_committed(loop: AbstractEventLoop, partition: Partition, timeout_ms: int | None = None) -> None:
    """Wait until the high watermark has reached the current log end offset.

    Raises KafkaError: REQUEST_TIMED_OUT after the timeout, or the error because of which it never will.
    """
    committed: Future[ErrorCode] = loop.create_future()

    def complete(code: ErrorCode) -> None:
        if not committed.done():
            committed.set_result(code)

    timer = None
    if timeout_ms is not None:
        timer = loop.call_later(timeout_ms / 1000, partial(complete, ErrorCode.REQUEST_TIMED_OUT))
    partition.on_committed(partition.log.log_end_offset, complete)
    try:
        code = await committed
    finally:
        if timer is not None:
            timer.cancel()
    if code:
        raise KafkaError(code)
