"""Requests to a coordinator, retried as clients do, and the errors of transactions."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.connections.connection import ConnectionLostError, SimClientConnection
from protocol.errors import ErrorCode

Attempt = Callable[[SimClientConnection], Awaitable[ErrorCode]]

# Errors after which the client looks up the coordinator again.
COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Retriable errors of a request that had no effect.
NOT_APPLIED = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class TransactionError(Exception):
    """A transactional request failed."""


class AbortableError(TransactionError):
    """The transaction can only be aborted. The producer may begin the next one."""


class FatalError(TransactionError):
    """The producer cannot continue: it is fenced, or the outcome of its transaction is unknown."""


# Fatal errors of requests other than Produce, as in the Java client.
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
# Fatal errors of Produce: a fenced producer gets the fatal error when it aborts.
FATAL_TO_PRODUCE = FATAL - {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


def transaction_error(code: ErrorCode, fatal: frozenset[ErrorCode] = FATAL) -> TransactionError:
    return FatalError(code.name) if code in fatal else AbortableError(code.name)


def first_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """Return the error to handle: a non-retriable one before a retriable one."""
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
    """A client of the coordinator of a group or transactional id."""

    def __init__(self, cluster: Cluster, name: str, kind: int) -> None:
        self._cluster = cluster
        self._name, self._kind = name, kind
        self._connection: SimClientConnection | None = None

    async def find(self) -> SimClientConnection:
        """Return a connection to the coordinator. Raises OSError."""
        if self._connection is None or self._connection.lost:
            self._connection = await self._cluster.coordinator(self._name, self._kind)
        return self._connection

    async def request(
        self, attempt: Attempt, deadline: float, attempts: Attempts, is_cancelled: Callable[[], bool] = lambda: False
    ) -> ErrorCode:
        """Retry `attempt` until its result is not retriable, and return that.

        Raises TimeoutError after the deadline or when `is_cancelled` returns true.
        """
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
        """Close the connection. The next request looks up the coordinator again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
