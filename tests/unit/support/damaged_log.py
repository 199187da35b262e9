"""Logs for damage tests: their contents, and the checks after they are opened again."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader, iter_headers, parse_header
from tests.unit.fuzz.file_targets import empty_disk
from tests.unit.support.log_lab import NOW, Lab, append, batch, content, fill, forget_positions

PRODUCER = 7
RECORDS = 3
# Records are a millisecond apart, batches this much.
STEP_MS = 10


class Written(NamedTuple):
    """Batches in a log. `sent`: as they were sent; `data`: as the log has them; `at`: (position, header)."""

    sent: list[bytes]
    data: bytes
    at: list[tuple[int, BatchHeader]]

    @property
    def ends(self) -> list[int]:
        return [position + header.size for position, header in self.at]


def idempotent(number: int, codec: int = 0) -> bytearray:
    """Build batch `number` of the producer."""
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
    """Append batches of one idempotent producer, with a new leader epoch every four."""
    sent = []
    for number in range(count):
        data = idempotent(number, codec)
        sent.append(bytes(data))
        append(log, data, epoch=number // 4)
        if number == checkpoint_at:
            log.durability.checkpoint()
        if number in roll_at:
            log.roll(NOW)
    stored = content(log)
    return Written(sent, stored, list(iter_headers(stored)))


def write_sound_log(tmp_path: Path) -> Lab:
    """Write and close a log of several segments; producer 7 has written to the first ones."""
    lab = Lab(tmp_path, segment_bytes=3000, index_interval_bytes=300)
    log = lab.open()
    for n in range(30):
        append(log, batch(2, 40, NOW + 5 * n, producer_id=7, producer_epoch=0, base_sequence=2 * n))
    fill(log, 60)
    assert lab.close(log)
    assert len(lab.files(".log")) > 3
    return lab


def edit(lab: Lab, suffix: str, number: int, change: Callable[[bytearray], object]) -> str:
    """Change the content of a file; returns its name."""
    name = lab.files(suffix)[number]
    data = bytearray((lab.path / name).read_bytes())
    change(data)
    (lab.path / name).write_bytes(data)
    return name


def check_reads(log: Log, written: Written) -> None:
    """Check that every offset and every timestamp is found in its batch."""
    for position, header in written.at:
        if header.base_offset >= log.log_end_offset:
            break
        for offset in range(header.base_offset, header.next_offset):
            forget_positions(log)
            data = bytes(read_blocking(log, offset, 1, log.log_end_offset))
            assert data == written.data[position : position + header.size], offset
            timestamp = header.base_timestamp + offset - header.base_offset
            record = find_offset_for_timestamp(log, timestamp, log.log_end_offset)
            assert record is not None
            assert record[:2] == (offset, timestamp)
    assert find_offset_for_timestamp(log, NOW + 1_000_000, log.log_end_offset) is None


def send_again(log: Log, written: Written, first: int) -> None:
    """Send the batches of the producer again from `first` on: stored ones are duplicates, the others are appended."""
    for number in range(first, len(written.sent)):
        data = bytearray(written.sent[number])
        header = parse_header(data)
        base_offset = RECORDS * number
        duplicate = log.producers.check(header)
        if base_offset < log.log_end_offset:
            assert duplicate is not None, f"batch {number} is stored already"
            assert duplicate[:2] == (base_offset, base_offset + RECORDS - 1)
        else:
            assert duplicate is None
            assert append(log, data, epoch=number // 4) == base_offset


def is_out_of_order(log: Log, number: int) -> bool:
    """Return whether batch `number` of the producer would be out of order."""
    try:
        log.producers.check(parse_header(idempotent(number)))
    except KafkaError as error:
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise
        return True
    return False


def flip_bit(data: bytes, bit: int) -> bytes:
    """Return the data with one bit flipped; bit 0 is the highest bit of the first byte."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 0x80 >> bit % 8
    return bytes(damaged)


class LogCopy:
    """The files of a log in memory, which can be damaged and opened repeatedly."""

    def __init__(self, lab: Lab) -> None:
        self.files = files_of(lab)
        self.config = lab.config

    def make(self, **changes: bytes | None) -> Lab:
        """Write the files to another directory. `changes`: files with other content, or None for missing ones; `log` is
        the log of the first segment."""
        lab = memory_lab()
        lab.config = self.config
        lab.disk.makedirs(str(lab.path))
        for name, data in {**self.files, **{FILES.get(name, name): data for name, data in changes.items()}}.items():
            if data is not None:
                lab.disk.write_atomic(f"{lab.path}/{name}", data)
        return lab

    def remove_checkpoint(self) -> None:
        """Keep only the files that a log has before its first checkpoint."""
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
