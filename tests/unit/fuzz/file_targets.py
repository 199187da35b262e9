"""Files other than segments: indexes, snapshots, checkpoints, and the files and nodes of the coordination service."""

import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from struct import Struct

from crc32c import crc32c

from kbroker.common import TopicPartition
from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import CoordinationError, Create, Delete, Op, Set
from kbroker.coordination.journal import FRAME, NUMBER, Journal, encode_ops, encode_snapshot, frame, load_snapshot
from kbroker.metadata.image import BrokerNode, BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import Change, ChangeLog, decode_change_log, encode_change_log
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.log.indexes import OffsetIndex, TimeIndex, find_entry, find_last_before
from kbroker.storage.metadata_files import (
    MetaProperties,
    decode_meta_properties,
    encode_meta_properties,
    read_topic_id,
    write_topic_id,
)
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import build_batch, parse_header
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot, text_spots
from tests.unit.support.log_lab import NOW

# A line of a few characters becomes a tuple, or a key and a value of a dict.
LINE_MEMORY_PER_BYTE = 60
_CRC = Struct(">I")


def targets() -> list[Target]:
    damaged = (ValueError,)
    table = [
        Target("file.index", _offset_index, damaged, memory_per_byte=20),
        Target("file.timeindex", _time_index, damaged, memory_per_byte=20),
        Target("file.snapshot", _producers, damaged, memory_per_byte=40),
        Target("file.offsets", _offsets, damaged, memory_per_byte=LINE_MEMORY_PER_BYTE),
        Target("file.epochs", _epochs, damaged, memory_per_byte=LINE_MEMORY_PER_BYTE),
        Target("file.partition_metadata", _partition_metadata, (), memory_per_byte=LINE_MEMORY_PER_BYTE),
        Target("file.meta_properties", _meta_properties, damaged, memory_per_byte=LINE_MEMORY_PER_BYTE),
        Target("coordination.snapshot", _tree_snapshot, (CoordinationError,), memory_per_byte=LINE_MEMORY_PER_BYTE),
        Target("coordination.journal", _journal, (CoordinationError,), memory_per_byte=LINE_MEMORY_PER_BYTE, weight=4),
    ]
    for name, make in (("broker", _broker), ("topic", _topic), ("chunk", _chunk), ("changes", _changes)):
        table.append(Target(f"node.{name}", make, (CoordinationError,), memory_per_byte=100))
    return table


class _NoClock:
    def now_ms(self) -> int:
        return NOW

    def mono_ms(self) -> int:
        return 0

    def mono_ns(self) -> int:
        return 0


def empty_disk() -> SimDisk:
    disk = SimDisk(_NoClock(), Random(1))
    disk.makedirs("/d")
    return disk


def _grid(size: int, widths: tuple[int, ...]) -> list[Spot]:
    """Return spots of these widths, repeatedly."""
    spots, pos = [], 0
    while pos < size:
        for width in widths:
            spots.append(Spot(pos, width, {2: "i16", 4: "i32", 8: "i64"}[width]))
            pos += width
    return spots


# Indexes and snapshots.


def _offset_index(rng: Random) -> Case:
    index = OffsetIndex()
    for n in range(rng.choice((0, 1, 5, 600, 1500))):
        index.add(n * 3 + 2, n * 100 + 70)
    data = index.encode(0, len(index.entries))

    def run(data: bytes) -> None:
        try:
            decoded = OffsetIndex.decode(data)
            assert decoded.encode(0, len(decoded.entries)) == data
            if len(decoded.entries) <= 512:
                # Larger indexes are only checked in samples.
                assert list(decoded.entries) == sorted(set(decoded.entries))
        finally:
            # Lookups in the file do not validate it; they must not fail.
            read = partial(_read, data)
            for target in (0, 7, 1 << 30):
                find_entry(read, len(data) // 8, target)

    return Case(data, run, _grid(min(len(data), 400), (4, 4)))


def _time_index(rng: Random) -> Case:
    index = TimeIndex()
    for n in range(rng.choice((0, 1, 5, 600, 1500))):
        index.add(NOW + n * 10, n * 3 + 2)
    data = index.encode(0, len(index.timestamps))

    def run(data: bytes) -> None:
        try:
            decoded = TimeIndex.decode(data)
            assert decoded.encode(0, len(decoded.timestamps)) == data
            if len(decoded.timestamps) <= 512:
                assert list(decoded.timestamps) == sorted(set(decoded.timestamps))
        finally:
            for target in (0, NOW + 77, 1 << 62):
                find_last_before(partial(_read, data), len(data) // 12, target)

    return Case(data, run, _grid(min(len(data), 400), (8, 4)))


def _read(data: bytes, size: int, offset: int) -> bytes:
    return data[offset : offset + size]


def _producers(rng: Random) -> Case:
    states = ProducerStateManager()
    for n in range(rng.choice((0, 1, 3, 30))):
        batch = build_batch([(NOW, b"k", b"v", ())], producer_id=n, producer_epoch=n % 3, base_sequence=n)
        states.update(parse_header(batch), 10 * n)
        if n % 5 == 4:
            states.end_transaction(parse_header(batch)._replace(producer_epoch=3), 10 * n + 1, True, 1)
    data = bytes(states.to_snapshot()())

    def run(data: bytes) -> None:
        snapshot = ProducerStateManager.from_snapshot(data).to_snapshot()()
        assert _CRC.unpack_from(data, 2)[0] == crc32c(memoryview(data)[6:])
        assert ProducerStateManager.from_snapshot(bytes(snapshot)).to_snapshot()() == snapshot

    def seal(data: bytearray) -> None:
        if len(data) >= 6:
            _CRC.pack_into(data, 2, crc32c(memoryview(data)[6:]))

    return Case(
        data, run, [Spot(0, 2, "i16"), Spot(6, 4, "i32"), *(Spot(10 + 8 * n, 8, "i64") for n in range(5))], seal
    )


# Checkpoints and other small files.


def _offsets(rng: Random) -> Case:
    tps = [TopicPartition(rng.choice(("t", "a.b_c-1", "x" * 100)), n) for n in range(rng.choice((0, 1, 4, 40)))]
    data = checkpoint_files.encode_offsets({tp: rng.getrandbits(40) for tp in tps})

    def run(data: bytes) -> None:
        decoded = checkpoint_files.decode_offsets(data)
        assert checkpoint_files.decode_offsets(checkpoint_files.encode_offsets(decoded)) == decoded

    return Case(data, run, text_spots(data))


def _epochs(rng: Random) -> Case:
    data = checkpoint_files.encode_epochs((n, n * 7) for n in range(rng.choice((0, 1, 4, 40))))

    def run(data: bytes) -> None:
        decoded = checkpoint_files.decode_epochs(data)
        assert decoded == sorted(decoded)
        assert checkpoint_files.decode_epochs(checkpoint_files.encode_epochs(decoded)) == decoded

    return Case(data, run, text_spots(data))


def _partition_metadata(rng: Random) -> Case:
    disk = empty_disk()
    write_topic_id(disk, "/d", rng.randbytes(16))
    path = f"/d/{file_names.PARTITION_METADATA}"

    def run(data: bytes) -> None:
        disk.write_atomic(path, data)
        topic_id = read_topic_id(disk, "/d")
        assert topic_id is None or len(topic_id) == 16

    return Case(disk.read(path), run)


def _meta_properties(rng: Random) -> Case:
    data = encode_meta_properties(
        MetaProperties("kCFAi45jQfKSHiMsg_P8Xw", rng.getrandbits(31), "CfIFDGi9QRGtsFNmOeZ5ng")
    )

    def run(data: bytes) -> None:
        assert isinstance(decode_meta_properties(data).node_id, int)

    return Case(data, run, text_spots(data))


# Coordination.


def _random_ops(rng: Random) -> list[Op]:
    ops: list[Op] = [Create("/a", b""), Create("/a/b", rng.randbytes(20)), Create("/ä", b"{}")]
    ops += [Create(f"/a/{n}", b"x" * n) for n in range(rng.randint(0, 5))]
    return [*ops, Set("/a", rng.randbytes(rng.choice((0, 5, 100)))), Delete("/a/b")]


def _one(op: Op) -> list[Op]:
    return [op]


def _tree_snapshot(rng: Random) -> Case:
    tree = DataTree()
    tree.apply(_random_ops(rng), 0)
    data = encode_snapshot(tree, 77)

    def run(data: bytes) -> None:
        tree = DataTree()
        number = load_snapshot(data, tree)
        assert _valid_frames_end(data) == len(data)
        reloaded = DataTree()
        assert load_snapshot(encode_snapshot(tree, number), reloaded) == number
        assert [path for path, _ in reloaded.persistent()] == [path for path, _ in tree.persistent()]

    return Case(data, run, [Spot(0, 4, "i32"), *_grid(60, (2, 4, 4))[4:]], _seal_frame)


def _valid_frames_end(data: bytes) -> int:
    """Return the end of the valid frames at the beginning."""
    pos = 0
    while pos + FRAME.size <= len(data):
        size, crc = FRAME.unpack_from(data, pos)
        end = pos + FRAME.size + size
        if size < NUMBER.size or end > len(data) or zlib.crc32(data[pos + FRAME.size : end]) != crc:
            break
        pos = end
    return pos


def _seal_frame(data: bytearray) -> None:
    if len(data) >= FRAME.size:
        FRAME.pack_into(data, 0, len(data) - FRAME.size, zlib.crc32(memoryview(data)[FRAME.size :]))


def _journal(rng: Random) -> Case:
    """A journal of several records. Records before the damage are loaded, or the journal is rejected."""
    changes: list[list[Op]] = [_random_ops(rng), *(_one(Set("/a", b"%d" % n)) for n in range(rng.randint(0, 6)))]
    records = [frame(NUMBER.pack(n + 1) + encode_ops(ops)) for n, ops in enumerate(changes)]
    data = b"".join(records)

    def run(damaged: bytes) -> None:
        disk = empty_disk()
        disk.write_atomic("/d/coordination.journal", damaged)
        journal = Journal(disk, "/d")
        tree = journal.load()
        end = 0
        for number, record in enumerate(records):
            end += len(record)
            if damaged[:end] != data[:end]:
                break
            assert journal.number >= number + 1, "a record before the damage is lost"
        # Loading writes everything again, so that it is durable.
        assert disk.size("/d/coordination.journal") == 0
        assert disk.exists("/d/coordination.snapshot") == bool(_valid_frames_end(damaged))
        # The loaded journal can be appended to.
        if tree.version("/z") is None:
            journal.append([Create("/z", b"")])
            assert Journal(disk, "/d").load().version("/z") == 0

    return Case(data, run, [Spot(0, 4, "i32"), *_grid(40, (2, 4))[4:]], _seal_frame)


# The data of nodes: JSON.


def _json(data: bytes, decode: Callable[[bytes], object], encode: Callable[[object], bytes]) -> Case:
    def run(data: bytes) -> None:
        decoded = decode(data)
        assert decode(encode(decoded)) == decoded

    return Case(data, run, text_spots(data))


def _broker(rng: Random) -> Case:
    broker = BrokerRegistration(1, "hôte", rng.randint(1, 65535), rng.choice((None, "r")), 7, "h", 9, "d")
    if rng.random() < 0.5:
        return _json(
            znodes.encode_registration(KnownBroker(broker, rng.random() < 0.5)),
            partial(znodes.decode_registration, 1),
            znodes.encode_registration,  # type: ignore[arg-type]
        )
    data = znodes.encode_broker(BrokerNode(broker, rng.randint(-1, 6)))
    return _json(data, partial(znodes.decode_broker, 1), znodes.encode_broker)  # type: ignore[arg-type]


def _topic(rng: Random) -> Case:
    data = znodes.encode_topic(znodes.TopicNode(rng.randbytes(16), rng.random() < 0.5, rng.random() < 0.5))
    return _json(data, partial(znodes.decode_topic, "t"), znodes.encode_topic)  # type: ignore[arg-type]


def _chunk(rng: Random) -> Case:
    def image(n: int) -> PartitionRegistration:
        return PartitionRegistration(1, n, [1, 2], [1], [2] * (n % 2), [], n)

    data = znodes.encode_chunk({rng.randbytes(16): {n: image(n) for n in range(3)} for _ in range(rng.randint(0, 3))})
    return _json(data, partial(znodes.decode_chunk, 0), znodes.encode_chunk)  # type: ignore[arg-type]


def _changes(rng: Random) -> Case:
    rows: dict[int, znodes.ChunkRows] = {
        n: {rng.randbytes(16): {n: PartitionRegistration(1, n, [1, 2], [1]), n + 1: None}}
        for n in range(rng.randint(0, 3))
    }
    last = Change(7, ["/kbroker/topics/t"] * rng.choice((0, 1, 3, 300)), rows)
    changes = ChangeLog(7, rng.choice((None, last)))
    return _json(encode_change_log(changes), decode_change_log, encode_change_log)  # type: ignore[arg-type]
