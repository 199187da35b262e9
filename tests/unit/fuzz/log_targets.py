"""Opens the log of a partition with one damaged file.

Opening succeeds. After damage to a segment, all batches before the damage remain; after damage to any other file, all.
"""

from functools import cache, partial
from random import Random
from typing import Any

from kbroker.common import KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage import file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_max_timestamp, find_offset_for_timestamp
from kbroker.storage.recovery.open_log import open_log
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import iter_headers
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot, text_spots
from tests.unit.fuzz.file_targets import empty_disk
from tests.unit.fuzz.record_targets import HEADER_SPOTS
from tests.unit.fuzz.record_targets import seal as seal_batch
from tests.unit.support.log_lab import NOW, TOPIC_ID, TP, Background, append, batch, config

DIRECTORY = f"/d/{TP}"
# Recovery reads chunks of 1 MiB.
CONSTANT = 12 << 20
CONFIG = config(segment_bytes=3000, index_interval_bytes=256)


def targets() -> list[Target]:
    kinds = (
        file_names.LOG,
        file_names.INDEX,
        file_names.TIME_INDEX,
        file_names.SNAPSHOT,
        file_names.LEADER_EPOCHS,
        file_names.PARTITION_METADATA,
    )
    # A different topic id may also be a mix-up of directories, so it is an error.
    errors = {file_names.PARTITION_METADATA: (KafkaError,)}
    return [
        Target(
            f"log.{kind.strip('.')}",
            partial(_case, kind),
            errors.get(kind, ()),
            constant=CONSTANT,
            memory_per_byte=100,
            seconds=0.5,
            weight=20,
        )
        for kind in kinds
    ]


Files = dict[str, bytes]


@cache
def recorded(variant: int) -> tuple[Files, int]:
    """Return the files of a log of several segments, and a recovery point in the middle."""
    disk = empty_disk()
    log = _open(disk, 0, False)
    point = 0
    for n in range(40):
        kinds: dict[str, Any] = {"codec": (n + variant) % 5 if variant else 0}
        if n % 3 == variant % 3:
            kinds |= {"producer_id": 7 + variant, "producer_epoch": 0, "base_sequence": n // 3}
            append(log, batch(1, 40, NOW + 10 * n, **kinds), epoch=n // 15)
        else:
            append(log, batch(1 + n % 3, 10 + 37 * n % 200, NOW + 10 * n, **kinds), epoch=n // 15)
        if n == 20:
            log.durability.checkpoint()
            point = log.recovery_point
    log.durability.checkpoint()
    log.durability.close(True, lambda _: None)
    return {path: disk.read(path) for name in disk.listdir(DIRECTORY) for path in [f"{DIRECTORY}/{name}"]}, point


def _open(disk: SimDisk, recovery_point: int, clean: bool, topic: TopicConfig = CONFIG) -> Log:
    return open_log(
        disk, DIRECTORY, TP, TOPIC_ID, topic, recovery_point, clean, NOW, background=Background(), random=Random(1),
        owner=None,
    )  # fmt: skip


def _stored(files: Files) -> bytes:
    return b"".join(data for path, data in sorted(files.items()) if path.endswith(file_names.LOG))


def _case(kind: str, rng: Random) -> Case:
    files, middle = recorded(rng.randrange(4))
    path = rng.choice(sorted(path for path in files if path.endswith(kind)))
    clean = rng.random() < 0.3
    point = rng.choice((0, middle, 1 << 40))
    stored = _stored(files)
    before = _stored({name: data for name, data in files.items() if name < path})

    def run(data: bytes) -> None:
        disk = empty_disk()
        disk.makedirs(DIRECTORY)
        for name, content in files.items():
            disk.write_atomic(name, data if name == path else content)
        log = _open(disk, point, clean)
        data = _read_all(log, strict=kind != file_names.LOG or (point == 0 and not clean))
        if kind != file_names.LOG:
            assert data == stored, f"{len(data)} of {len(stored)} bytes remain"
            _read_each_offset(log)
            return
        unchanged = _common_prefix_size(data, files[path])
        ends = [pos + header.size for pos, header in iter_headers(files[path]) if pos + header.size <= unchanged]
        kept = before + files[path][: max(ends, default=0)]
        assert data.startswith(kept), f"{len(kept)} bytes before the damage are lost"

    spots = HEADER_SPOTS if kind == file_names.LOG else text_spots(files[path]) if "-" in kind else _words(files[path])
    return Case(files[path], run, spots, seal_batch if kind == file_names.LOG else None)


def _words(data: bytes) -> list[Spot]:
    return [Spot(pos, 4, "i32") for pos in range(0, min(len(data), 200) - 3, 4)]


def _common_prefix_size(first: bytes, second: bytes) -> int:
    """Return the number of equal bytes at the beginning."""
    for pos, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return pos
    return min(len(first), len(second))


def _read_each_offset(log: Log) -> None:
    """Read every offset, in descending order: no read begins where another ended, so each is looked up in an index."""
    for offset in range(log.log_end_offset - 1, log.log_start_offset - 1, -1):
        data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
        _, header = next(iter_headers(data))
        assert header.base_offset <= offset <= header.last_offset, f"{header} was found for {offset}"


def _look_up(log: Log, strict: bool) -> None:
    """Look up timestamps, which decodes records. They may be damaged although the CRC of the batch is valid."""
    try:
        for timestamp in (0, NOW + 95, NOW + 1000):
            find_offset_for_timestamp(log, timestamp, log.log_end_offset)
        find_max_timestamp(log)
    except KafkaError as error:
        if strict and error.code != ErrorCode.CORRUPT_MESSAGE:
            raise


def _read_all(log: Log, *, strict: bool) -> bytes:
    """Read all batches. Unless `strict`, stop at damage that opening the log does not look for."""
    parts = []
    offset = log.log_start_offset
    try:
        while offset < log.log_end_offset:
            data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
            previous = offset
            for pos, header in iter_headers(data):
                parts.append(data[pos : pos + header.size])
                assert header.base_offset >= offset, f"offset {header.base_offset} follows {offset - 1}"
                offset = header.next_offset
            assert offset > previous, f"the read at offset {previous} of {log.log_end_offset} returned nothing"
    except (KafkaError, MalformedError, AssertionError):
        if strict:
            raise
        return b"".join(parts)
    _look_up(log, strict)
    return b"".join(parts)
