"""The part of the adapter that knows kazoo: its requests, results and errors; one session and its connection.

The connection lives in a thread of kazoo.

kazoo promises less than the coordination interface. The differences that are handled here:

- kazoo delivers watch events and results through a queue and a thread each, so their order is lost. `ConnectionHandler`
  delivers both in the thread that reads the socket, and `LoopCalls` passes them to the event loop in that order.
- kazoo opens a new session when the session has expired. `SessionClient` stops instead.
- kazoo queues requests while it is disconnected, without a limit, and sends them when it is connected again.
  `SessionClient` fails them, so that no request is sent after its caller has received an error.
- kazoo detects a server that does not respond only while it sends no requests: `disconnect` is for the adapter, whose
  calls have deadlines.
- kazoo's thread sends heartbeats while the event loop hangs, so a broker that hangs would keep its registration and its
  leaderships forever: `LoopWatchdog` ends its session.
- kazoo does not tell which session timeout ZooKeeper has chosen, within its minSessionTimeout and maxSessionTimeout.
  `SessionClient` takes it from the response to the connection's first request.
- kazoo's delay between attempts to connect grows up to an hour; here it is at most a second.
- kazoo waits for the response to a connection's first request for the whole session timeout, if there is one server.
  ZooKeeper accepts connections while it starts, and never responds to some of them: here an attempt to connect takes at
  most a third, so that the session is connected to a restarted server before it expires.

SessionClient overrides methods of kazoo that are not public.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EBUSY
from time import monotonic
from typing import Any

from kazoo import exceptions
from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import Callback, EventType, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionExpired,
    Set,
    TooLarge,
    Unavailable,
    Watch,
)

# ZooKeeper closes the connection if a request has more bytes (jute.maxbuffer).
MAX_REQUEST_BYTES = 0xFFFFF
# The bytes of a request before its body: its number and its type.
REQUEST_HEADER_BYTES = 8
EPHEMERAL_FLAG = 1


class AccessDenied(CoordinationError):
    """The ACL of the node does not allow the operation."""


_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    exceptions.NodeExistsError: NodeExists,
    exceptions.NoNodeError: NoNode,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    exceptions.SessionExpiredError: SessionExpired,
    exceptions.ConnectionClosedError: SessionExpired,
    exceptions.AuthFailedError: SessionExpired,
    exceptions.ConnectionLoss: Unavailable,
    exceptions.OperationTimeoutError: Unavailable,
    exceptions.RequestTimeoutError: Unavailable,
    exceptions.SessionMovedError: Unavailable,
    exceptions.ThrottledOpError: Unavailable,
    exceptions.NoAuthError: AccessDenied,
}
_DETAILS: dict[type[Exception], str] = {
    exceptions.ConnectionLoss: "the connection to ZooKeeper is lost",
    exceptions.NoAuthError: "(see kbroker.zookeeper.digest)",
    exceptions.InvalidACLError: "ZooKeeper does not accept the ACL of new nodes (see kbroker.zookeeper.digest)",
    exceptions.NotReadOnlyCallError: "the ZooKeeper server is read-only",
    exceptions.QuotaExceededError: "the quota of the ZooKeeper node is exceeded",
}
# The errors of the operations before and after the one that fails a multi.
_NOT_APPLIED = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


def coordination_error(error: Exception, path: str) -> CoordinationError:
    """Return the interface's error for an error of kazoo."""
    kind = type(error)
    if kind is exceptions.NoChildrenForEphemeralsError:
        return NoNode(path, "the parent is ephemeral")
    name = "" if kind in _ERRORS else f"ZooKeeper failed: {kind.__name__} {error}".strip()
    return _ERRORS.get(kind, CoordinationError)(path, _DETAILS.get(kind, name))


def acl(creator_only: bool) -> Sequence[ACL]:
    """Return the ACL of new nodes: for those that know the digest only, or for everyone."""
    rights: Sequence[ACL] = CREATOR_ALL_ACL if creator_only else OPEN_ACL_UNSAFE
    return rights


def transaction(ops: Sequence[Op], chroot: str, acl: Sequence[ACL]) -> serialization.Transaction:
    """Return the request of a multi. Raises TooLarge."""
    request = serialization.Transaction([_operation(op, chroot, acl) for op in ops])
    size = REQUEST_HEADER_BYTES + len(request.serialize())
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(ops[0].path, f"{len(ops)} operations have {size} bytes, ZooKeeper allows {MAX_REQUEST_BYTES}")
    return request


def _operation(op: Op, chroot: str, acl: Sequence[ACL]) -> Any:
    path = chroot + op.path
    match op:
        case Check(version=version):
            return serialization.CheckVersion(path, version)
        case Create(data=data, ephemeral=ephemeral):
            return serialization.Create(path, data, acl, EPHEMERAL_FLAG if ephemeral else 0)
        case Set(data=data, version=version):
            return serialization.SetData(path, data, version)
        case Delete(version=version):
            return serialization.Delete(path, version)


def transaction_results(results: Sequence[Any], ops: Sequence[Op]) -> Sequence[Any]:
    """Return the results of a multi. Raises the error of the operation that has failed."""
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, _NOT_APPLIED):
            raise coordination_error(result, op.path)
    return results


# The delay before an attempt to connect begins with the first and grows to the second, in seconds.
RECONNECT_DELAYS_S = (0.05, 1.0)
# The size of the buffer of the socket that wakes kazoo's thread, which blocks the event loop when it is full: it has
# space for several hundred requests.
WAKEUP_BUFFER_BYTES = 1 << 20
CHECKS_PER_TIMEOUT = 4
# A session without requests can be closed within this time, in seconds.
STOP_S = 10.0

EVENT_KINDS = {
    EventType.CREATED: "created",
    EventType.CHANGED: "changed",
    EventType.DELETED: "deleted",
    EventType.CHILD: "children",
}


class LoopCalls:
    """Calls functions on the event loop, in the order in which any thread has added them."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def add(self, function: Callable[..., None], *arguments: object) -> None:
        self._calls.append((function, arguments))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Reset first: a call that is added from now on is found below, or schedules the next run.
        self._is_scheduled = False
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


class Call:
    """A request with the future of its result. kazoo sets its outcome, for which `on_outcome` is called on the loop.

    `deadline`: the loop's time. `watch` is set if the request succeeds.
    """

    __slots__ = ("_calls", "_on_outcome", "deadline", "future", "path", "request", "watch")

    def __init__(
        self,
        request: object,
        path: str,
        future: Future[Any],
        deadline: float,
        watch: Watch | None,
        calls: LoopCalls,
        on_outcome: Callable[[Call, Any, Exception | None], None],
    ) -> None:
        self.request = request
        self.path = path
        self.future = future
        self.deadline = deadline
        self.watch = watch
        self._calls = calls
        self._on_outcome = on_outcome

    def set(self, value: object = None) -> None:
        self._calls.add(self._on_outcome, self, value, None)

    def set_exception(self, error: Exception) -> None:
        self._calls.add(self._on_outcome, self, None, error)

    def fail(self, error: Exception) -> None:
        """Called on the event loop."""
        if not self.future.done():
            self.future.set_exception(error)


class ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs callbacks in the thread that reads the socket, and opens the connections."""

    def __init__(
        self, connect_timeout_s: float, tls: ssl.SSLContext | None, loop: AbstractEventLoop, session_timeout_s: float
    ) -> None:
        super().__init__()
        self.watchdog = LoopWatchdog(loop, session_timeout_s, self.disconnect)
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """kazoo's handler starts its threads here; this one has none."""

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Callback) -> None:
        callback.func(*callback.args)

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        reader, writer = socket.socketpair()
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAKEUP_BUFFER_BYTES)
        return reader, writer

    def create_connection(self, address: tuple[str, int], hostname: str, **_: object) -> socket.socket:
        """Connect to a server, whose name in its certificate is `hostname`. Raises OSError."""
        if self.watchdog.hangs:
            raise OSError(EBUSY, "the event loop of this process hangs")
        connection = socket.create_connection(address, self._connect_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
            except OSError:
                connection.close()
                raise
        self._socket = connection
        return connection

    def disconnect(self) -> None:
        """Close the connection, from any thread: kazoo finds it closed, and connects again."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class LastWarning(logging.Handler):
    """Stores kazoo's last warning, which is the reason why it cannot connect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        # The warnings without arguments have no reason, such as "Transition to CONNECTING".
        if record.args:
            self.text = record.getMessage()


class SessionClient(KazooClient):  # type: ignore[misc]
    """One session: it ends when it expires, and sends requests only while it is connected.

    On the event loop, `on_state` is called with a KazooState and the session id, and `on_event` with the kind and the
    path of each event of a watch.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        settings: ZooKeeperSettings,
        on_state: Callable[[str, int], None],
        on_event: Callable[[str, str], None],
    ) -> None:
        # Held while the connection's state changes, so that no request is queued after that has failed all requests.
        self._state_lock = threading.RLock()
        self.calls = LoopCalls(loop)
        self._on_event = on_event
        self._connect_timeout_s = settings.session_timeout_s / 3
        self._handler = ConnectionHandler(
            self._connect_timeout_s, _tls_context(settings), loop, settings.session_timeout_s
        )
        self._handler.watchdog.start()
        self.last_warning = LastWarning()
        logger = logging.Logger("kazoo", logging.WARNING)
        logger.addHandler(self.last_warning)
        delay, max_delay = RECONNECT_DELAYS_S
        super().__init__(
            hosts=",".join(settings.hosts),
            timeout=settings.session_timeout_s,
            handler=self._handler,
            auth_data=[("digest", settings.digest)] if settings.digest else None,
            connection_retry=KazooRetry(max_tries=-1, delay=delay, max_delay=max_delay),
            logger=logger,
            use_ssl=settings.tls,
        )
        # The session timeout in milliseconds: what is asked for, then what ZooKeeper has chosen.
        self.timeout_ms = round(settings.session_timeout_s * 1000)
        self._invoke = self._connection._invoke
        self._connection._invoke = self._invoke_to_connect
        self.add_listener(lambda state: self.calls.add(on_state, state, self._session_id or 0))

    def watch(self, event: Any) -> None:
        """The watch of all requests. kazoo calls it once for each kind of watch that an event fires."""
        # Watches that kazoo forgets with the connection have NONE. The session reports them when it is connected again.
        if event.type != EventType.NONE:
            self.calls.add(self._on_event, EVENT_KINDS[event.type], event.path)

    def disconnect(self) -> None:
        self._handler.disconnect()

    def end(self, on_ended: Callable[[], None]) -> None:
        """Close the session and the connection in a thread; `on_ended` is called on the event loop."""
        self._handler.spawn(self._end_blocking, on_ended)

    def _end_blocking(self, on_ended: Callable[[], None]) -> None:
        self._handler.watchdog.stop()
        with suppress(Exception):
            self.stop()
        with suppress(Exception):
            self._connection.stop(STOP_S)
            self.close()
        self.calls.add(on_ended)

    def _call(self, request: Any, completion: Any) -> Any:
        with self._state_lock:
            if self._live.is_set() or self._state in CLOSED_STATES:
                return super()._call(request, completion)
            completion.set_exception(ConnectionLoss())
            return False

    # Sends a request; the Call is completed.
    send = _call

    def _invoke_to_connect(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Send a request of the handshake, and return its response. Notes the session timeout."""
        result = self._invoke(min(timeout, self._connect_timeout_s), request, xid)
        if isinstance(request, Connect) and result[0].time_out > 0:
            self.timeout_ms = result[0].time_out
            self._handler.watchdog.timeout_s = self.timeout_ms / 1000
        return result

    def _session_callback(self, state: str) -> None:
        with self._state_lock:
            if state == KeeperState.EXPIRED_SESSION:
                # kazoo would connect again, with a new session.
                self._stopped.set()
            super()._session_callback(state)


def _tls_context(settings: ZooKeeperSettings) -> ssl.SSLContext | None:
    """Return the TLS context. Raises OSError, with the file that cannot be read or is not valid."""
    if not settings.tls:
        return None
    file = settings.truststore
    try:
        context = ssl.create_default_context(cafile=settings.truststore or None)
        context.check_hostname = settings.check_hostname
        if settings.keystore:
            file = settings.keystore
            context.load_cert_chain(settings.keystore, password=settings.keystore_password or None)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), file) from None
    return context


class LoopWatchdog:
    """A thread that expects a sign of life of the event loop in every `timeout_s` seconds, the session timeout.

    Without one, `hangs` is true, and this thread calls `on_hang` at each check until the loop runs again. The session
    then expires, unless a new connection is opened. Any thread may change `timeout_s`.
    """

    def __init__(self, loop: AbstractEventLoop, timeout_s: float, on_hang: Callable[[], None]) -> None:
        self._loop = loop
        self.timeout_s = timeout_s
        self._on_hang = on_hang
        self._last_beat_s = monotonic()
        self._stopped = threading.Event()

    @property
    def hangs(self) -> bool:
        return monotonic() - self._last_beat_s > self.timeout_s

    def start(self) -> None:
        self._last_beat_s = monotonic()
        threading.Thread(target=self._run, name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        self._last_beat_s = monotonic()

    def _run(self) -> None:
        checked_s = monotonic()
        while not self._stopped.wait(interval_s := self.timeout_s / CHECKS_PER_TIMEOUT):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._beat)
            now_s, checked_before_s = monotonic(), checked_s
            checked_s = now_s
            if now_s - checked_before_s > 2 * interval_s:
                # The whole process was paused: the loop may still run in this check's interval.
                self._last_beat_s = max(self._last_beat_s, now_s - self.timeout_s + interval_s)
            elif self.hangs:
                self._on_hang()
