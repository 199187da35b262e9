"""The snapshot file of a derived state: the part of the log that it covers, and the encoded state.

    magic 4 | crc-32c 4 | topic id 16 | end offset 8 | leader epoch 4 | state

The state covers the log below the end offset. The leader epoch is that of the last record below it. If two logs of a
partition have a record of the same epoch at the same offset, they are equal up to that record. So a snapshot of a log
that was truncated afterwards is detected: other records at this offset have another epoch. The CRC covers everything
after it.
"""

from collections.abc import Iterable
from itertools import chain
from struct import Struct
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.storage.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache
from protocol.records.checksum import crc32c

_MAGIC = b"KBS1"
_PREFIX = Struct(">4sI")
_FIELDS = Struct(">16sqi")


class StateSnapshot(NamedTuple):
    topic_id: bytes
    end_offset: int
    leader_epoch: int
    state: Buffer


def encode_state_snapshot(topic_id: bytes, end_offset: int, leader_epoch: int, parts: Iterable[Buffer]) -> bytearray:
    """Encode a state of several parts. Between two of them the event loop may run: it has copied no more than one."""
    data = bytearray(_PREFIX.size)
    crc = 0
    for part in chain((_FIELDS.pack(topic_id, end_offset, leader_epoch),), parts):
        crc = crc32c(part, crc)
        data += part
    _PREFIX.pack_into(data, 0, _MAGIC, crc)
    return data


def decode_state_snapshot(data: Buffer) -> StateSnapshot:
    """Raises ValueError if the file is damaged."""
    if len(data) < _PREFIX.size + _FIELDS.size:
        raise ValueError(f"a snapshot of {len(data)} bytes")
    magic, crc = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    if magic != _MAGIC or crc32c(body) != crc:
        raise ValueError("the snapshot does not match its CRC")
    topic_id, end_offset, epoch = _FIELDS.unpack_from(body)
    return StateSnapshot(topic_id, end_offset, epoch, body[_FIELDS.size :])


def matches_log(
    snapshot: StateSnapshot, topic_id: bytes, epochs: LeaderEpochCache, log_start_offset: int, log_end_offset: int
) -> bool:
    """Return whether the log certainly has the records that the snapshot covers."""
    return (
        snapshot.topic_id == topic_id
        and snapshot.leader_epoch != NO_EPOCH
        and log_start_offset < snapshot.end_offset <= log_end_offset
        and epochs.epoch_for(snapshot.end_offset - 1) == snapshot.leader_epoch
    )
