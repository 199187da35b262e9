"""Requests to other brokers, queued so that several items share a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kbroker.common import KafkaError
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode
from protocol.schema.message import Message

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.interbroker.peers import Peers
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.coordinators")

T = TypeVar("T")


class RequestQueues(Generic[T]):
    """Items for other brokers. Those that are added in one iteration of the event loop share a request to each broker.

    `next_request` splits a queue into the items of the next request, and the others. `encode` returns the request for
    items. `complete` is called with the items and the response, or `fail` with the items and the error. One of the two
    is always called; otherwise a transaction would wait forever.
    """

    def __init__(
        self,
        environment: Environment,
        version: int,
        timeout_ms: Callable[[], int],
        next_request: Callable[[list[T]], tuple[list[T], list[T]]],
        encode: Callable[[Sequence[T]], Message],
        complete: Callable[[Sequence[T], Any], None],
        fail: Callable[[Sequence[T], KafkaError], None],
    ) -> None:
        self._environment = environment
        self._version = version
        self._timeout_ms = timeout_ms
        self._next_request = next_request
        self._encode = encode
        self._complete = complete
        self._fail = fail
        # By the id of the broker. Dicts keep the order, so that a simulation is repeatable.
        self._queues: dict[int, list[T]] = {}
        self._tasks: dict[Task[None], None] = {}

    def add(self, peers: Peers, broker_id: int, item: T) -> None:
        if not self._queues:
            self._environment.loop.call_soon(self._flush, peers)
        self._queues.setdefault(broker_id, []).append(item)

    def _flush(self, peers: Peers) -> None:
        queues, self._queues = self._queues, {}
        for broker_id, queue in queues.items():
            while queue:
                items, queue = self._next_request(queue)
                task = self._environment.loop.create_task(self._send(peers, broker_id, items))
                self._tasks[task] = None
                task.add_done_callback(partial(self._on_done, items))

    async def _send(self, peers: Peers, broker_id: int, items: Sequence[T]) -> None:
        try:
            request = self._encode(items)
            response: Any = await peers.request(broker_id, request, self._version, timeout_ms=self._timeout_ms())
            self._complete(items, response)
        except KafkaError as error:
            self._fail(items, error)
        except Exception as error:
            # Such as a malformed response.
            log.failure("request to another broker failed", error, broker=broker_id)
            self._fail(items, KafkaError(ErrorCode.NETWORK_EXCEPTION))

    def _on_done(self, items: Sequence[T], task: Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            self._fail(items, KafkaError(ErrorCode.NETWORK_EXCEPTION))
