"""`kbroker log dump`: every kind of file, intact and damaged, as text and as JSON."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.common.errors import CliError
from kbroker.cli.log.dump import parse_offset_range
from kbroker.cli.log.items import decode_internal
from kbroker.common import TopicPartition, uuid_text
from kbroker.coordination.interface import Create, Delete, Set
from kbroker.coordination.journal import Journal, encode_snapshot
from kbroker.coordinator.group.classic.records import ClassicGroupRecord
from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.metadata_files import write_clean_shutdown_file
from protocol.errors import MalformedError
from protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue, TransactionPartitions
from protocol.records.batch import TRANSACTIONAL, build_batch
from protocol.records.compression import GZIP
from protocol.records.control import EndTransactionMarker, build_end_marker
from protocol.schema.codec import encode
from tests.unit.support.log_lab import NOW, Lab, append, batch

Items = list[dict[str, Any]]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, segment_bytes=2000, index_interval_bytes=300)
    log = lab.open()
    for n in range(20):
        append(log, batch(2, 40, NOW + 5 * n, producer_id=7, producer_epoch=0, base_sequence=2 * n))
    assert lab.close(log)
    return lab


def as_json(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> Items:
    assert main(["log", "dump", "--json", *args]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def as_text(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[str]:
    assert main(["log", "dump", *args]) == status
    return capsys.readouterr().out.splitlines()


def write(path: Path, data: bytes | bytearray) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def test_a_directory_is_dumped_recursively(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    items = as_json(capsys, str(lab.path.parent))
    by_kind: dict[str, int] = {}
    for item in items:
        by_kind[item["item"]] = by_kind.get(item["item"], 0) + 1
    assert by_kind["batch"] == 20
    assert by_kind["producer"] == len(lab.files(".snapshot"))
    assert by_kind["epoch"] == by_kind["topic id"] == 1
    # Offset index entries point at the starts of batches.
    begins = {(item["last_offset"], item["position"]) for item in items if item["item"] == "batch"}
    entries = {(item["offset"], item["position"]) for item in items if item["item"] == "entry" and "position" in item}
    assert entries
    assert entries <= begins
    times = {item["last_offset"]: item["max_timestamp"] for item in items if item["item"] == "batch"}
    dated = [item for item in items if item["item"] == "entry" and "timestamp" in item]
    assert dated
    assert all(times[item["offset"]] == item["timestamp"] for item in dated)


def test_batches_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = build_batch(
        [(NOW, b"k", b"v\n", [(b"h", b"\xff")]), (NOW, None, None, ())],
        codec=GZIP,
        base_offset=5,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=1,
        base_sequence=2**31 - 1,
    )
    path = write(tmp_path / "t-0" / "00000000000000000005.log", data)
    head, line = as_text(capsys, path)
    assert head == f"{path}: segment, {len(data)} bytes"
    assert line.startswith(f"@0  offsets 5..6  2 records  {len(data)} bytes  epoch 3  2023-11-1")
    assert line.endswith("gzip  producer 9 epoch 1 sequences 2147483647..0")
    assert [text[30:] for text in as_text(capsys, path, "--records")[2:]] == [
        "  key 1 byte  value 2 bytes  1 header",
        "  key null  value null",
    ]
    assert [text[30:] for text in as_text(capsys, path, "--values")[2:]] == [
        "  key k  value v\\n  h=base64:/w==",
        "  key null  value null",
    ]
    (record,) = [item for item in as_json(capsys, path, "--values") if item["item"] == "record" and item["offset"] == 5]
    assert (record["key"], record["value"], record["headers"]) == ("k", "v\n", [{"key": "h", "value_base64": "/w=="}])


def test_control_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t-0" / f"{0:020d}.log", build_end_marker(EndTransactionMarker(False, 4), 9, 1, NOW))
    batch_item, _, control = as_json(capsys, path, "--records")
    assert (batch_item["transactional"], batch_item["control"]) == (True, True)
    assert (control["type"], control["coordinator_epoch"]) == ("ABORT", 4)
    assert "  transactional  control" in as_text(capsys, path)[1]


def test_offsets_and_max_limit_the_items(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(lab.path / "00000000000000000000.log")
    assert [item["base_offset"] for item in as_json(capsys, path, "--offsets", "3..6")] == [2, 4, 6]
    assert [
        item["offset"] for item in as_json(capsys, path, "--offsets", "3..4", "--records") if item["item"] == "record"
    ] == [3, 4]
    lines = as_text(capsys, path, "--max", "2")
    assert len(lines) == 4
    assert lines[-1] == "... more items are not shown (--max)"
    assert as_json(capsys, path, "--max", "1")[-1]["item"] == "more"
    assert (parse_offset_range("5"), parse_offset_range("5..")[0], parse_offset_range("..7")) == ((5, 5), 5, (0, 7))
    for wrong in ("", "..", "x..y", "7..3"):
        with pytest.raises(CliError):
            parse_offset_range(wrong)


def test_damage_is_printed_with_its_position_and_the_batches_after_it(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lab.path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    size = len(batch(2, 40))
    count = len(data) // size
    data[2 * size + 70] ^= 1
    write(path, data + b"torn")
    items = as_json(capsys, str(path), "--values", status=1)
    first, last = (item for item in items if item["item"] == "damage")
    assert (first["position"], first["size"], first["offset"]) == (2 * size, size, 4)
    assert first["reason"] == "its CRC is wrong"
    assert [item["position"] for item in items if item.get("valid") is False] == [2 * size]
    assert (last["position"], last["size"]) == (len(data), 4)
    assert len([item for item in items if item["item"] == "batch"]) == count
    assert f"DAMAGE at byte {2 * size} to {3 * size - 1}, offset 4: its CRC is wrong" in as_text(
        capsys, str(path), status=1
    )


def test_random_bytes_under_every_name_are_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(1)
    names = [f"{7:020d}{suffix}" for suffix in (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)]
    names += [
        file_names.LEADER_EPOCHS,
        file_names.PARTITION_METADATA,
        file_names.RECOVERY_POINTS,
        file_names.LOG_START_OFFSETS,
    ]
    names += [
        file_names.CLEANER_OFFSETS,
        file_names.HIGH_WATERMARKS,
        file_names.TRANSACTION_INDEXES,
        file_names.META_PROPERTIES,
        file_names.CLEAN_SHUTDOWN,
    ]
    names += ["coordination.journal", "coordination.snapshot"]
    for name in names:
        path = write(tmp_path / "__consumer_offsets-0" / name, random.randbytes(999))
        assert main(["log", "dump", "--values", path]) == 1, name
        output = capsys.readouterr()
        assert "DAMAGE" in output.out, name
        assert output.err == "", name


def test_small_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk, directory = RealDisk(), str(tmp_path)
    checkpoint_files.write_offsets(disk, directory, file_names.RECOVERY_POINTS, {TopicPartition("t", 1): 5})
    indexes = checkpoint_files.encode_index_entries({TopicPartition("t", 1): {40: 3}})
    write(tmp_path / file_names.TRANSACTION_INDEXES, indexes)
    write_clean_shutdown_file(disk, directory, 3)
    metadata_files.write_meta_properties(disk, directory, metadata_files.MetaProperties("cluster", 2, "directory"))
    write(tmp_path / "t-1.0123456789abcdef0123456789abcdef-delete" / file_names.LEADER_EPOCHS, b"0\n1\n4 9\n")
    items = {item["item"]: item for item in as_json(capsys, directory)}
    assert items["offset"] == {
        "file": f"{directory}/{file_names.RECOVERY_POINTS}",
        "item": "offset", "topic": "t", "partition": 1, "offset": 5,
    }  # fmt: skip
    entries = items["index entries"]
    assert (entries["topic"], entries["partition"], entries["base_offset"], entries["entries"]) == ("t", 1, 40, 3)
    assert items["clean shutdown"]["broker_epoch"] == 3
    assert items["identity"]["cluster_id"] == "cluster"
    assert (items["epoch"]["epoch"], items["epoch"]["start_offset"]) == (4, 9)
    assert "topic t  partition 1  offset 5" in as_text(capsys, f"{directory}/{file_names.RECOVERY_POINTS}")
    path = write(tmp_path / file_names.CLEANER_OFFSETS, b"0\n2\nt 1 5\n")
    lines = as_text(capsys, path, status=1)
    assert lines[1] == "DAMAGE at byte 0 to 9: 1 entries where 2 are expected"
    assert lines[-1] == "  t 1 5"


def test_the_coordination_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(RealDisk(), str(tmp_path))
    tree = journal.load()
    for ops in ([Create("/a", b'{"x":1}')], [Set("/a", b"\xff"), Create("/a/b", b"")], [Delete("/a/b")]):
        tree.apply(ops, 0)
        journal.append(ops)
    journal.close()
    path = tmp_path / "coordination.journal"
    assert [(item["number"], item["op"], item["path"]) for item in as_json(capsys, str(path))] == [
        (1, "create", "/a"),
        (2, "set", "/a"),
        (2, "create", "/a/b"),
        (3, "delete", "/a/b"),
    ]
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    items = as_json(capsys, str(path), status=1)
    assert [item["item"] for item in items] == ["damage", "change", "change", "change"]
    snapshot = write(tmp_path / "coordination.snapshot", encode_snapshot(tree, 3))
    assert as_text(capsys, snapshot)[1:] == ["/a  version 1  base64:/w=="]


def test_offset_commits_and_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offset = OffsetAndMetadata(
        offset=42, leader_epoch=1, metadata="m", commit_ms=NOW, expire_ms=-1, topic_id=bytes(range(16))
    )
    records = [
        RECORD_CODEC.encode(OffsetRecord(OffsetKey("g", "t", 3), offset)),
        RECORD_CODEC.encode(OffsetRecord(OffsetKey("g", "t", 3), None)),
        RECORD_CODEC.encode(ClassicGroupRecord("g", None)),
        (b"\0\x03\0\x01g", b"??"),
        (b"\x7f\x03", b""),
    ]
    data = build_batch([(NOW, key, value, ()) for key, value in records])
    path = write(tmp_path / "__consumer_offsets-4" / f"{0:020d}.log", data)
    items = as_json(capsys, path, "--records", status=1)
    decoded = [item for item in items if item["item"] == "decoded"]
    assert decoded[0]["kind"] == "offset commit"
    assert decoded[0]["key"] == {"group": "g", "topic": "t", "partition": 3}
    assert decoded[0]["value"]["offset"] == 42
    assert decoded[0]["value"]["topic_id"] == uuid_text(bytes(range(16)))
    assert [item["value"] for item in decoded[1:]] == [None, None, None]
    assert decoded[3]["kind"] == "record of a newer group type 3"
    assert items[-1]["reason"] == "a key of unknown version 32515 in __consumer_offsets"


def test_transactional_offset_commits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, value = RECORD_CODEC.encode(OffsetRecord(OffsetKey("g", "t", 3), OffsetAndMetadata(42)))
    data = build_batch(
        [(NOW, key, value, ())], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0
    )
    path = write(tmp_path / "__consumer_offsets-4" / f"{0:020d}.log", data)
    items = as_json(capsys, path, "--records")
    assert [item["kind"] for item in items if item["item"] == "decoded"] == ["transactional offset commit"]


def test_transactions() -> None:
    key = b"\0\0" + encode(TransactionLogKey(transactional_id="tx"), 0)
    partitions = [TransactionPartitions(topic="t", partition_ids=[1, 2])]
    value = TransactionLogValue(producer_id=5, transaction_status=1, transaction_partitions=partitions)
    for version in (0, 1):
        decoded = decode_internal("__transaction_state", key, bytes([0, version]) + encode(value, version))
        assert (decoded["kind"], decoded["key"]) == ("transaction", {"transactional_id": "tx"})
        assert decoded["value"]["transaction_status"] == "Ongoing"
        assert decoded["value"]["transaction_partitions"] == [{"topic": "t", "partition_ids": [1, 2]}]
        assert ("next_producer_id" in decoded["value"]) == (version == 1)
    assert decode_internal("__transaction_state", key, None)["value"] is None
    with pytest.raises(MalformedError):
        decode_internal("__transaction_state", key, b"\0\x05")
    with pytest.raises(MalformedError):
        decode_internal("__transaction_state", None, None)


def test_missing_and_unknown_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(tmp_path / "00000000000000000000.log")]) == 1
    assert capsys.readouterr().err.endswith("00000000000000000000.log: No such file or directory\n")
    path = write(tmp_path / "notes.txt", b"")
    assert main(["log", "dump", path]) == 1
    assert "not the name of a file of a data directory" in capsys.readouterr().err
