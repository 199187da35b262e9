"""`kbroker log dump` and `kbroker log verify` on damaged files: damage is reported, no file is rejected."""

import json
from functools import cache, partial
from random import Random

from kbroker.cli.log.dump import find_reader
from kbroker.cli.log.items import DumpSelection, format_item
from kbroker.common import TopicPartition
from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import Create, Op, Set
from kbroker.coordination.journal import NUMBER, encode_ops, encode_snapshot, frame
from kbroker.coordinator.group.classic.records import ClassicGroupRecord
from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.records import (
    OffsetAndMetadata,
    OffsetKey,
    OffsetRecord,
)
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.partition_check import CheckpointedState, PartitionCheck
from kbroker.storage.metadata_files import write_clean_shutdown_file
from protocol.messages.group_records import GroupMetadataMember, GroupMetadataValue
from protocol.records.batch import NewRecord, build_batch
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot, text_spots
from tests.unit.fuzz.file_targets import empty_disk
from tests.unit.fuzz.log_targets import DIRECTORY, Files, recorded
from tests.unit.fuzz.record_targets import HEADER_SPOTS
from tests.unit.fuzz.record_targets import seal as seal_batch
from tests.unit.support.log_lab import NOW

_SELECTIONS = (
    DumpSelection(),
    DumpSelection(records=True),
    DumpSelection(records=True, values=True),
    DumpSelection(offsets=(3, 9)),
)
_INTERNAL = "/d/__consumer_offsets-0/00000000000000000000.log"
# Files are read in chunks of 1 MiB, and each entry of a small file becomes an item.
CONSTANT = 12 << 20


def targets() -> list[Target]:
    return [
        Target("inspect.dump", _dump, (), constant=CONSTANT, memory_per_byte=600, seconds=1.0, weight=20),
        Target("inspect.internal", _dump_internal, (), constant=CONSTANT, memory_per_byte=600, seconds=1.0, weight=20),
        Target("inspect.verify", _verify, (), constant=CONSTANT, memory_per_byte=200, seconds=1.0, weight=60),
    ]


@cache
def _files(variant: int) -> Files:
    """Return files of all kinds in a data directory."""
    files = dict(recorded(variant)[0])
    files[f"{DIRECTORY}/00000000000000000000.txnindex"] = (bytes(2) + bytes(7) + b"\1" + bytes(24)) * 3
    files[f"/d/{file_names.RECOVERY_POINTS}"] = checkpoint_files.encode_offsets({TopicPartition("t", 0): 7})
    disk = empty_disk()
    write_clean_shutdown_file(disk, "/d", 7)
    files[f"/d/{file_names.CLEAN_SHUTDOWN}"] = disk.read(f"/d/{file_names.CLEAN_SHUTDOWN}")
    files["/d/meta.properties"] = b"version=1\nnode.id=1\ncluster.id=x\n"
    ops: list[Op] = [Create("/a", b"{}"), Create("/a/b", b"\xff"), Set("/a", b"x")]
    files["/d/coordination.journal"] = frame(NUMBER.pack(1) + encode_ops(ops)) + frame(NUMBER.pack(2))
    tree = DataTree()
    tree.apply(ops, 0)
    files["/d/coordination.snapshot"] = encode_snapshot(tree, 2)
    return files


def _spots(path: str, data: bytes) -> list[Spot]:
    if path.endswith(file_names.LOG):
        return list(HEADER_SPOTS)
    if path.endswith(
        (
            file_names.INDEX,
            file_names.TIME_INDEX,
            file_names.TXN_INDEX,
            file_names.SNAPSHOT,
            "journal",
            "coordination.snapshot",
        )
    ):
        return [Spot(pos, 4, "i32") for pos in range(0, min(len(data), 200) - 3, 4)]
    return text_spots(data)


def _dump(rng: Random) -> Case:
    files = _files(rng.randrange(4))
    path = rng.choice(sorted(files))
    seal = seal_batch if path.endswith(file_names.LOG) else None
    return Case(files[path], partial(_dump_file, path, rng.choice(_SELECTIONS)), _spots(path, files[path]), seal)


def _dump_file(path: str, selection: DumpSelection, data: bytes) -> None:
    """Format every item as text and as JSON; its position must be within the file."""
    disk = empty_disk()
    disk.makedirs(path.rpartition("/")[0])
    disk.write_atomic(path, data)
    reader_and_source = find_reader(disk, path)
    assert reader_and_source is not None
    _, reader, source = reader_and_source
    for item in reader(source, selection):
        line = format_item(item)
        assert line.replace("\t", " ").isprintable(), line
        json.dumps(item.fields)
        assert 0 <= item.bytes_read <= len(data)


def _dump_internal(rng: Random) -> Case:
    member = GroupMetadataMember(
        member_id="m", client_id="c", client_host="/h", rebalance_timeout=1, session_timeout=2,
        subscription=bytes(rng.choice((0, 2, 20))), assignment=rng.randbytes(8),
    )  # fmt: skip
    group = GroupMetadataValue(
        protocol_type=rng.choice(("consumer", "connect")), generation=3, protocol="range", leader="m",
        current_state_timestamp=NOW, members=[member],
    )  # fmt: skip
    kept = [ClassicGroupRecord("g", group), OffsetRecord(OffsetKey("g", "t", 0), OffsetAndMetadata(7, 1, "note", NOW))]
    new: list[NewRecord] = [(NOW, *RECORD_CODEC.encode(record), ()) for record in kept]
    # The CRC is corrected after the damage, so that the records are decoded.
    data = bytes(build_batch(new)) + bytes(build_end_marker(EndTransactionMarker(True, 2), 7, 1, NOW))
    spots = [*HEADER_SPOTS, *(Spot(pos, 2, "i16") for pos in range(61, len(data) - 1, 2))]

    def seal(data: bytearray) -> None:
        first = bytearray(data[: len(data) - 78])
        seal_batch(first)
        data[: len(first)] = first

    return Case(data, partial(_dump_file, _INTERNAL, rng.choice(_SELECTIONS[1:3])), spots, seal)


def _verify(rng: Random) -> Case:
    files, middle = recorded(rng.randrange(4))
    path = rng.choice(sorted(files))
    known = CheckpointedState(rng.choice((0, middle)), rng.choice((0, 0, middle)), is_clean=rng.random() < 0.5)

    def run(data: bytes) -> None:
        disk = empty_disk()
        disk.makedirs(DIRECTORY)
        for name, content in files.items():
            disk.write_atomic(name, data if name == path else content)
        check = PartitionCheck(disk, DIRECTORY, known)
        problems = [finding for finding in check.findings() if finding.is_problem]
        assert check.totals.end_offset >= 0
        if data == files[path]:
            assert not problems, problems

    return Case(files[path], run, _spots(path, files[path]), seal_batch if path.endswith(file_names.LOG) else None)
