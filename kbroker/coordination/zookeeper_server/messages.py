"""ZooKeeper's requests and responses: the operations that kazoo and ZooKeeperSession use.

They are in ZooKeeper's encoding (jute): big-endian integers; strings and byte arrays after a length, which is -1 for
null. Not supported: sequential, container and TTL nodes, ACLs of nodes, SetWatches, and watches on subtrees.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kbroker.coordination.interface import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    WatchEvent,
)

_INT = Struct(">i")
_LONG = Struct(">q")
# czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid.
_STAT = Struct(">qqqqiiiqiiq")
_REPLY_HEADER = Struct(">iqi")
_MULTI_HEADER = Struct(">i?i")
_CONNECT_RESPONSE = Struct(">iiq")
PASSWORD_BYTES = 16
# Numbers of messages that belong to no request of the client's count.
EVENT_XID, PING_XID, AUTH_XID = -1, -2, -4
CONNECTED_STATE = 3
_EVENT_TYPES = {"created": 1, "deleted": 2, "changed": 3, "children": 4}


class MalformedRequest(Exception):
    """The bytes are not a request."""


class JuteReader:
    """Reads the fields of a request. All methods raise MalformedRequest."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def has_more(self) -> bool:
        return self._position < len(self._data)

    def read_int(self) -> int:
        return self._unpack(_INT)

    def read_long(self) -> int:
        return self._unpack(_LONG)

    def read_boolean(self) -> bool:
        if not self.has_more:
            raise MalformedRequest
        self._position += 1
        return self._data[self._position - 1] != 0

    def read_buffer(self) -> bytes:
        """Return a byte array; empty if it is null."""
        size = max(self.read_int(), 0)
        end = self._position + size
        if end > len(self._data):
            raise MalformedRequest
        value = self._data[self._position : end]
        self._position = end
        return value

    def read_string(self) -> str:
        """Return a string; empty if it is null."""
        try:
            return self.read_buffer().decode()
        except UnicodeDecodeError:
            raise MalformedRequest from None

    def _unpack(self, struct: Struct) -> int:
        try:
            value: int = struct.unpack_from(self._data, self._position)[0]
        except StructError:
            raise MalformedRequest from None
        self._position += struct.size
        return value


def encode_int(value: int) -> bytes:
    return _INT.pack(value)


def encode_buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def encode_string(value: str) -> bytes:
    return encode_buffer(value.encode())


class RequestType(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    AUTH = 100
    CLOSE = -11


class ZooKeeperError(IntEnum):
    OK = 0
    SYSTEM_ERROR = -1
    # In a multi: the operations after the one that failed.
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112


_ERROR_CODES: dict[type[CoordinationError], ZooKeeperError] = {
    NoNode: ZooKeeperError.NO_NODE,
    BadVersion: ZooKeeperError.BAD_VERSION,
    NodeExists: ZooKeeperError.NODE_EXISTS,
    NotEmpty: ZooKeeperError.NOT_EMPTY,
    SessionExpired: ZooKeeperError.SESSION_EXPIRED,
}


class RequestRefused(Exception):
    """The request cannot be made. `code`: ZooKeeper's error."""

    def __init__(self, code: ZooKeeperError) -> None:
        super().__init__(code)
        self.code = code


class SessionRequest(NamedTuple):
    """`session`: 0 for a new session. `timeout_ms`: the session timeout that the client proposes."""

    timeout_ms: int
    session: int
    password: bytes


def error_code(error: CoordinationError) -> ZooKeeperError:
    if isinstance(error, Unavailable):
        # The client does not know whether the change was made, as if the server had not responded.
        return ZooKeeperError.OPERATION_TIMEOUT
    return _ERROR_CODES.get(type(error), ZooKeeperError.SYSTEM_ERROR)


# Requests.


def decode_connect(body: bytes) -> SessionRequest:
    """Decode the first request of a connection. Raises MalformedRequest."""
    reader = JuteReader(body)
    reader.read_int()  # the version of the protocol, always 0
    reader.read_long()  # the client's last transaction id
    return SessionRequest(reader.read_int(), reader.read_long(), reader.read_buffer())


def decode_path(reader: JuteReader) -> str:
    """Decode the path of a node; the root is "". Raises MalformedRequest, RequestRefused."""
    path = reader.read_string()
    if path == "/":
        return ""
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise RequestRefused(ZooKeeperError.BAD_ARGUMENTS)
    return path


def decode_op(kind: int, reader: JuteReader) -> Op:
    """Decode a write, or a part of a multi. Raises MalformedRequest, RequestRefused."""
    match kind:
        case RequestType.CREATE | RequestType.CREATE2:
            path, data = decode_path(reader), reader.read_buffer()
            for _ in range(reader.read_int()):
                # An ACL: permissions, scheme, id.
                reader.read_int(), reader.read_buffer(), reader.read_buffer()
            flags = reader.read_int()
            if flags not in (0, 1):
                raise RequestRefused(ZooKeeperError.UNIMPLEMENTED)
            return Create(path, data, ephemeral=flags == 1)
        case RequestType.DELETE:
            return Delete(decode_path(reader), reader.read_int())
        case RequestType.SET_DATA:
            return Set(decode_path(reader), reader.read_buffer(), reader.read_int())
        case RequestType.CHECK:
            return Check(decode_path(reader), reader.read_int())
        case _:
            raise RequestRefused(ZooKeeperError.UNIMPLEMENTED)


def decode_multi(reader: JuteReader) -> list[tuple[int, Op]]:
    """Decode a multi as (request type, operation). Raises MalformedRequest, RequestRefused."""
    ops: list[tuple[int, Op]] = []
    while True:
        kind, is_end, _ = reader.read_int(), reader.read_boolean(), reader.read_int()
        if is_end:
            return ops
        ops.append((kind, decode_op(kind, reader)))


def decode_auth(reader: JuteReader) -> tuple[str, bytes]:
    """Decode credentials as (scheme, credentials). Raises MalformedRequest."""
    reader.read_int()
    return reader.read_string(), reader.read_buffer()


# Responses.


def frame(body: bytes) -> bytes:
    return encode_int(len(body)) + body


def encode_reply(xid: int, code: int = ZooKeeperError.OK, body: bytes = b"") -> bytes:
    return frame(_REPLY_HEADER.pack(xid, 0, code) + body)


def encode_connect(timeout_ms: int, session: int, password: bytes) -> bytes:
    """Encode the response to a SessionRequest; all values are 0 if the session has expired."""
    return frame(_CONNECT_RESPONSE.pack(0, timeout_ms, session) + encode_buffer(password) + b"\0")


def encode_event(event: WatchEvent) -> bytes:
    fields = encode_int(_EVENT_TYPES[event.kind]) + encode_int(CONNECTED_STATE) + encode_string(event.path or "/")
    return encode_reply(EVENT_XID, ZooKeeperError.OK, fields)


def encode_node_stat(node: Node, children: int = 0) -> bytes:
    """Encode the attributes of a node. The service stores neither transaction ids nor times: they are 0."""
    return _STAT.pack(0, 0, 0, 0, node.version, 0, 0, node.owner, len(node.data), children, 0)


def encode_names(names: Sequence[str]) -> bytes:
    return encode_int(len(names)) + b"".join(map(encode_string, names))


def encode_result(kind: int, op: Op, node: Node | None) -> bytes:
    """Encode the result of a write, or of a part of a multi. `node`: the node after it."""
    match kind:
        case RequestType.CREATE:
            return encode_string(op.path)
        case RequestType.CREATE2 if node is not None:
            return encode_string(op.path) + encode_node_stat(node)
        case RequestType.SET_DATA if node is not None:
            return encode_node_stat(node)
        case _:
            return b""


def encode_multi_results(ops: Sequence[tuple[int, Op]], nodes: Sequence[Node | None]) -> bytes:
    results = (
        _MULTI_HEADER.pack(kind, False, 0) + encode_result(kind, op, node)
        for (kind, op), node in zip(ops, nodes, strict=True)
    )
    return b"".join(results) + _MULTI_HEADER.pack(-1, True, -1)


def encode_multi_error(count: int, error: CoordinationError) -> bytes:
    """Encode the results of `count` operations of which one has failed."""
    before, after = error.operation, count - error.operation - 1
    codes = [ZooKeeperError.OK] * before + [error_code(error)] + [ZooKeeperError.RUNTIME_INCONSISTENCY] * after
    return b"".join(_MULTI_HEADER.pack(-1, False, code) + encode_int(code) for code in codes) + _MULTI_HEADER.pack(
        -1, True, -1
    )
