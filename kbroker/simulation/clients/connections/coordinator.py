"""Asking a coordinator until it has said something that counts: what may pass is tried again, as clients do."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.connections.connection import ConnectionLostError, SimClientConnection
from protocol.errors import ErrorCode

Attempt = Callable[[SimClientConnection], Awaitable[ErrorCode]]

# The coordinator is another one, or will be.
ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Refused before anything was written, and to be tried again.
NOT_YET = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


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


def error_of(code: ErrorCode, fatal: frozenset[ErrorCode] = FATAL) -> TransactionError:
    return FatalError(code.name) if code in fatal else AbortableError(code.name)


def first_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """What to heed of several answers: an error that is not to be tried again comes before one that is."""
    errors = [code for code in codes if code]
    return next((code for code in errors if not code.retriable), errors[0] if errors else ErrorCode.NONE)


@dataclass(slots=True)
class Tries:
    """What came of the attempts. `undecided`: it is not certain of each that it had no effect. `lost`: the answer to
    one never came, so that it may have its effect at any time."""

    undecided: bool = False
    lost: bool = False


class Coordinator:
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

    async def ask(
        self, attempt: Attempt, deadline: float, tries: Tries, given_up: Callable[[], bool] = lambda: False
    ) -> ErrorCode:
        """The first answer that will not be another one when asked again. Raises TimeoutError after the deadline, and
        when it is given up."""
        while self._cluster.loop.time() < deadline and not given_up():
            try:
                connection = await self.find()
            except OSError:
                await self._cluster.rest()
                continue
            try:
                code = await attempt(connection)
            except ConnectionLostError:
                tries.undecided = tries.lost = True
                self.leave()
            else:
                if not code.retriable:
                    return code
                tries.undecided = tries.undecided or code not in NOT_YET
                if code in ELSEWHERE:
                    self.leave()
            await self._cluster.rest()
        raise TimeoutError

    def leave(self) -> None:
        """Give the connection up: the next question looks for the coordinator anew."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
