"""A log to be damaged: what was written to it, and what must be true of it when it is opened again."""

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.storage.log.log import Log
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader, iter_headers, parse_header
from tests.unit.fuzz.file_targets import empty_disk
from tests.unit.support.log_lab import NOW, Lab, append, batch, content

PRODUCER = 7
RECORDS = 3
# A millisecond apart, with pauses between batches.
STEP_MS = 10


class Written(NamedTuple):
    """`sent`: the batches as their producer sent them; `data`: as the log has them, `at`: (position, header) there."""

    sent: list[bytes]
    data: bytes
    at: list[tuple[int, BatchHeader]]

    @property
    def ends(self) -> list[int]:
        return [position + header.size for position, header in self.at]


def idempotent(number: int, codec: int = 0) -> bytearray:
    """The producer's n-th batch."""
    return batch(
        RECORDS,
        40,
        NOW + STEP_MS * number,
        codec=codec,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=RECORDS * number,
    )


def write(log: Log, count: int, *, codec: int = 0, checkpoint_at: int = -1, roll_at: tuple[int, ...] = ()) -> Written:
    """Batches of one idempotent producer, a new leader epoch every four."""
    sent = []
    for number in range(count):
        data = idempotent(number, codec)
        sent.append(bytes(data))
        append(log, data, epoch=number // 4)
        if number == checkpoint_at:
            log.checkpoint()
        if number in roll_at:
            log.roll(NOW)
    stored = content(log)
    return Written(sent, stored, list(iter_headers(stored)))


def check_reads(log: Log, written: Written) -> None:
    """Each offset is read from its own batch, and each timestamp leads to the record that has it."""
    for position, header in written.at:
        if header.base_offset >= log.log_end_offset:
            break
        for offset in range(header.base_offset, header.next_offset):
            log.clear_position_cache()
            found = bytes(log.read_blocking(offset, 1, log.log_end_offset))
            assert found == written.data[position : position + header.size], offset
            when = header.base_timestamp + offset - header.base_offset
            looked_up = log.offset_for_timestamp_blocking(when, log.log_end_offset)
            assert looked_up is not None
            assert looked_up[:2] == (offset, when)
    assert log.offset_for_timestamp_blocking(NOW + 1_000_000, log.log_end_offset) is None


def send_again(log: Log, written: Written, first: int) -> None:
    """The producer's retries from its batch number `first` on: those that are there are known, the others are taken."""
    for number in range(first, len(written.sent)):
        data = bytearray(written.sent[number])
        header = parse_header(data)
        base_offset = RECORDS * number
        known = log.producers.check(header)
        if base_offset < log.log_end_offset:
            assert known is not None, f"batch {number} is stored already"
            assert known[:2] == (base_offset, base_offset + RECORDS - 1)
        else:
            assert known is None
            assert append(log, data, epoch=number // 4) == base_offset


def refused(log: Log, number: int) -> bool:
    """Whether the producer's batch of this number is out of order."""
    try:
        log.producers.check(parse_header(idempotent(number)))
    except KafkaError as error:
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise
        return True
    return False


def flipped(data: bytes, bit: int) -> bytes:
    """Bit 0 is the highest of the first byte."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 0x80 >> bit % 8
    return bytes(damaged)


class Copy:
    """The files of a log, in memory, to be damaged and opened again and again."""

    def __init__(self, lab: Lab) -> None:
        self.files = files_of(lab)
        self.config = lab.config

    def make(self, **changes: bytes | None) -> Lab:
        """Another directory; `changes`: files with other contents, None: without it. `log` is the first segment's."""
        lab = memory_lab()
        lab.config = self.config
        lab.disk.makedirs(str(lab.path))
        for name, data in {**self.files, **{FILES.get(name, name): data for name, data in changes.items()}}.items():
            if data is not None:
                lab.disk.write_atomic(f"{lab.path}/{name}", data)
        return lab

    def of_a_young_log(self) -> None:
        """Without the files of the first checkpoint."""
        self.files = {name: data for name, data in self.files.items() if name.endswith((".log", ".metadata"))}


FILES = {"log": f"{0:020d}.log"}


def memory_lab(**values: Any) -> Lab:
    return Lab(Path("/d"), empty_disk(), **values)


def files_of(lab: Lab) -> dict[str, bytes]:
    return {name: lab.disk.read(f"{lab.path}/{name}") for name in lab.disk.listdir(str(lab.path))}


def log_data(lab: Lab, base_offset: int = 0) -> bytes:
    return lab.disk.read(f"{lab.path}/{base_offset:020d}.log")


def noise(size: int, seed: str) -> bytes:
    return Random(seed).randbytes(size)
