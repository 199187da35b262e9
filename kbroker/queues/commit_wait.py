"""Waits until everything that is in a partition's log is committed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from kbroker.replica.partition import Partition


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
