"""Producer ids: blocks of 1,000 taken from a counter in the coordination service, so that none is given
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import BadVersion, CoordinationError
from kbroker.runtime.turnstile import Turnstile
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from kbroker.metadata.store.coordination import Coordination

BLOCK_SIZE = 1000
# After a failure all who wait are refused, and those who come within so many seconds.
RETRY_BACKOFF_S = 1.0


class ProducerIdManager:
    """A crash wastes the rest of a block; the first id is 0."""

    def __init__(self, coordination: Coordination, loop: AbstractEventLoop) -> None:
        self._coordination = coordination
        self._loop = loop
        self._turn = Turnstile(loop)
        self._next = 0
        self._end = 0
        self._failure: CoordinationError | None = None
        self._failed_at = 0.0

    async def generate_producer_id(self) -> int:
        """Raises KafkaError (COORDINATOR_NOT_AVAILABLE, which producers retry) when no block can be had."""
        if self._next == self._end:
            async with self._turn:
                if self._next == self._end:
                    await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        if self._failure is not None and self._loop.time() < self._failed_at + RETRY_BACKOFF_S:
            raise _refused(self._failure)
        while True:
            try:
                node = await self._coordination.get(znodes.PRODUCER_IDS)
                start = znodes.decode(znodes.PRODUCER_IDS, node.data)["next"]
                taken = znodes.encode({"next": start + BLOCK_SIZE})
                await self._coordination.set(znodes.PRODUCER_IDS, taken, node.version)
            except BadVersion:
                continue
            except CoordinationError as fault:
                self._failure, self._failed_at = fault, self._loop.time()
                raise _refused(fault) from fault
            self._next, self._end, self._failure = start, start + BLOCK_SIZE, None
            return


def _refused(fault: CoordinationError) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(fault))
