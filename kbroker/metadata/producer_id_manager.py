"""ProducerIdManager: allocates producer ids from blocks of 1,000, which it reserves in the coordination service.

A block is reserved with a compare-and-set of a counter, so no id is allocated twice in a cluster. A broker that crashes
wastes the rest of its block.
"""

from asyncio import AbstractEventLoop, Lock

from kbroker.common import KafkaError
from kbroker.coordination.interface import BadVersion, Coordination, CoordinationError
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode

BLOCK_SIZE = 1000
# After a failure, requests that wait or arrive within this time (in seconds) fail without another attempt.
RETRY_BACKOFF_S = 1.0


class ProducerIdManager:
    def __init__(self, coordination: Coordination, loop: AbstractEventLoop) -> None:
        self._coordination = coordination
        self._loop = loop
        self._lock = Lock()
        # The ids of the current block that are not allocated yet: from _next to _end, exclusive.
        self._next = 0
        self._end = 0
        # The end of the last block of this broker. No later block begins below `_min`.
        self.reserved_end = self._min = 0
        self._failure: CoordinationError | None = None
        self._failed_at = 0.0

    def use_session(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def skip_to(self, producer_id: int) -> None:
        """Reserve only ids from this one on: the service has older data than the ids that are in use."""
        self._min = max(self._min, producer_id)

    async def generate_producer_id(self) -> int:
        """Return a new producer id. Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS) if no block can be reserved."""
        if self._next == self._end:
            async with self._lock:
                if self._next == self._end:
                    await self._reserve_block()
        self._next += 1
        return self._next - 1

    async def _reserve_block(self) -> None:
        if self._failure is not None and self._loop.time() < self._failed_at + RETRY_BACKOFF_S:
            raise _not_available(self._failure)
        while True:
            try:
                node = await self._coordination.get(znodes.PRODUCER_IDS)
                start = max(znodes.decode(znodes.PRODUCER_IDS, node.data)["next"], self._min)
                data = znodes.encode({"next": start + BLOCK_SIZE})
                await self._coordination.set(znodes.PRODUCER_IDS, data, node.version)
            except BadVersion:
                continue  # another broker has reserved this block
            except CoordinationError as error:
                self._failure, self._failed_at = error, self._loop.time()
                raise _not_available(error) from error
            self._next, self._end, self._failure = start, start + BLOCK_SIZE, None
            self.reserved_end = self._end
            return


def _not_available(error: CoordinationError) -> KafkaError:
    # As in Kafka. With COORDINATOR_NOT_AVAILABLE kafka-python looks for the coordinator of an idempotent producer,
    # which has none: its requests are malformed.
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error))
