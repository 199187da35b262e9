"""Control records, which a control batch has instead of data.

An end-transaction marker (KIP-98) is one record. Its key is a version and a type (both int16), its value a version
(int16) and the coordinator epoch (int32). Clients skip control batches of every type.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedError
from protocol.records.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, Buffer, build_batch, parse_header
from protocol.records.compression import TooLargeError, decompress
from protocol.records.record import iter_records

ABORT = 0
COMMIT = 1

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_MAX_RECORDS = 1 << 16


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction in one partition."""

    committed: bool
    coordinator_epoch: int


def parse_control_type(key: bytes | None) -> int:
    """Return the type in the key of a control record: ABORT, COMMIT, or another. Raises MalformedError."""
    try:
        version, kind = _KEY.unpack_from(key or b"")
    except StructError:
        raise MalformedError(f"control record key of {len(key or b'')} bytes") from None
    if version < 0:
        raise MalformedError(f"control record key of version {version}")
    return int(kind)


def parse_end_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker:
    """Read the record of an end-transaction marker. Raises MalformedError."""
    kind = parse_control_type(key)
    if kind not in (ABORT, COMMIT):
        raise MalformedError(f"control record of type {kind} ends no transaction")
    try:
        version, epoch = _VALUE.unpack_from(value or b"")
    except StructError:
        raise MalformedError(f"end-transaction marker of {len(value or b'')} bytes") from None
    if version < 0:
        raise MalformedError(f"end-transaction marker of version {version}")
    return EndTransactionMarker(kind == COMMIT, epoch)


def build_end_marker(marker: EndTransactionMarker, producer_id: int, producer_epoch: int, timestamp: int) -> bytearray:
    """Build the control batch that ends a producer's transaction in one partition."""
    key = _KEY.pack(_VERSION, COMMIT if marker.committed else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [(timestamp, key, value, ())],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def find_end_marker(batch: Buffer) -> EndTransactionMarker | None:
    """Return the marker in a complete control batch; None if it has another control record, or none."""
    header = parse_header(batch)
    try:
        body = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], _MAX_RECORDS)
        for record in iter_records(body, header.count, header.base_timestamp):
            return parse_end_marker(record.key, record.value)
    except (MalformedError, TooLargeError):
        return None
    return None
