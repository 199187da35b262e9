"""A write of a coordinator: one operation, and the response that waits until its records are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.batches import EncodedRecord
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode, RecordProducer, Respond, ignore
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")

NO_RESULT: CoordinatorResult[None] = CoordinatorResult(None)


class WriteEvent:
    """One operation, from its scheduling until its records are committed.

    `respond` is replaced by `ignore` when it has been called. `has_deadline`: whether the timeout is running.
    """

    __slots__ = ("encoded", "has_deadline", "key", "mode", "operation", "producer", "respond", "result", "timeout_ms")

    def __init__(
        self,
        operation: Callable[[Any], CoordinatorResult[Any]],
        respond: Respond[Any],
        key: str,
        mode: LockMode,
        timeout_ms: int | None,
        producer: RecordProducer,
    ) -> None:
        self.operation = operation
        self.respond = respond
        self.key = key
        self.mode = mode
        self.timeout_ms = timeout_ms
        self.producer = producer
        self.has_deadline = False
        self.result: CoordinatorResult[Any] = NO_RESULT
        self.encoded: Sequence[EncodedRecord] = ()

    def complete(self, response: Any, error: KafkaError | None = None) -> None:
        """Respond, unless the request has timed out."""
        respond, self.respond = self.respond, ignore
        respond(response, error)


def complete(future: Future[T], response: T) -> None:
    """Set the response, unless the future is done because the broker is stopping."""
    if not future.done():
        future.set_result(response)


def complete_or_fail(future: Future[T], response: T, error: KafkaError | None) -> None:
    """Set the response, or the error if there is one, as `complete` does."""
    if error is None:
        complete(future, response)
    elif not future.done():
        future.set_exception(error)


def time_out(event: WriteEvent) -> None:
    """Respond to a write that is not committed in time."""
    event.complete(None, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
