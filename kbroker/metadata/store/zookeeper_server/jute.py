"""ZooKeeper's encoding (jute): big-endian integers; strings and byte arrays after a length, which is -1 for null."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

_INT = Struct(">i")
_LONG = Struct(">q")
# czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid.
_STAT = Struct(">qqqqiiiqiiq")


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
            (value,) = struct.unpack_from(self._data, self._position)
        except StructError:
            raise MalformedRequest from None
        self._position += struct.size
        return value  # type: ignore[no-any-return]


def encode_int(value: int) -> bytes:
    return _INT.pack(value)


def encode_buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def encode_string(value: str) -> bytes:
    return encode_buffer(value.encode())


def encode_stat(version: int, owner: int, data_bytes: int, children: int) -> bytes:
    """Encode the attributes of a node. The service stores neither transaction ids nor times: they are 0."""
    return _STAT.pack(0, 0, 0, 0, version, 0, 0, owner, data_bytes, children, 0)
