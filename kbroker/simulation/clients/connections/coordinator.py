"""Asking a coordinator until it has said something that counts: what may pass is tried again, as clients do."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.connections.connection import ConnectionLostError, SimClientConnection
from protocol.errors import ErrorCode

Attempt = Callable[[SimClientConnection], Awaitable[ErrorCode]]

# The coordinator is another one, or will be.
COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Refused before anything was written, and to be tried again.
NOT_APPLIED = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class TransactionError(Exception):
    """What was wanted of a transaction cannot be had."""


class AbortableError(TransactionError):
    """This transaction can only be aborted; the producer goes on with the next one."""


class FatalError(TransactionError):
    """This producer is at its end: another one has its transactional id, or nobody knows what has become of its
    transaction."""


# As the Java client has it: of what is answered to anything but a Produce.
FATAL = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    }
)
# To a Produce: who was fenced learns so when it aborts.
FATAL_TO_PRODUCE = FATAL - {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


def transaction_error(code: ErrorCode, fatal: frozenset[ErrorCode] = FATAL) -> TransactionError:
    return FatalError(code.name) if code in fatal else AbortableError(code.name)


def first_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """What to heed of several responses: an error that is not to be tried again comes before one that is."""
    errors = [code for code in codes if code]
    return next((code for code in errors if not code.retriable), errors[0] if errors else ErrorCode.NONE)


@dataclass(slots=True)
class Attempts:
    """What is known about the attempts at one operation.

    `maybe_applied`: at least one attempt may have had an effect. `response_lost`: at least one attempt got no response,
    so it may still take effect at any time.
    """

    maybe_applied: bool = False
    response_lost: bool = False


class CoordinatorClient:
    """Of a group or a transactional id, as one client knows it."""

    def __init__(self, cluster: Cluster, name: str, kind: int) -> None:
        self._cluster = cluster
        self._name, self._kind = name, kind
        self._connection: SimClientConnection | None = None

    async def find(self) -> SimClientConnection:
        """Raises OSError."""
        if self._connection is None or self._connection.lost:
            self._connection = await self._cluster.coordinator(self._name, self._kind)
        return self._connection

    async def request(
        self, attempt: Attempt, deadline: float, attempts: Attempts, is_cancelled: Callable[[], bool] = lambda: False
    ) -> ErrorCode:
        """The first response that will not be another one when asked again. Raises TimeoutError after the deadline, and
        when it is given up."""
        while self._cluster.loop.time() < deadline and not is_cancelled():
            try:
                connection = await self.find()
            except OSError:
                await self._cluster.backoff()
                continue
            try:
                code = await attempt(connection)
            except ConnectionLostError:
                attempts.maybe_applied = attempts.response_lost = True
                self.disconnect()
            else:
                if not code.retriable:
                    return code
                attempts.maybe_applied = attempts.maybe_applied or code not in NOT_APPLIED
                if code in COORDINATOR_MOVED:
                    self.disconnect()
            await self._cluster.backoff()
        raise TimeoutError

    def disconnect(self) -> None:
        """Give the connection up: the next question looks for the coordinator anew."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
