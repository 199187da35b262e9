"""Inputs on which a decoder failed once, shrunk."""

import zlib
from collections.abc import Callable

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.log.items import decode_internal
from kbroker.cli.records.formats import record_from_json
from kbroker.config.sources.files import parse_config_file
from kbroker.config.values import ConfigError
from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import CoordinationError
from kbroker.coordination.journal import FRAME, NUMBER, Journal, encode_ops, frame, load_snapshot
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log
from kbroker.storage import checkpoint_files
from protocol.fast.fetch import decode_fetch_request
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataMember, GroupMetadataValue
from protocol.messages.k01_fetch import FetchRequest
from protocol.schema.codec import decode, encode
from tests.unit.fuzz.file_targets import empty_disk


def load_journal(data: bytes) -> None:
    disk = empty_disk()
    disk.write_atomic("/d/coordination.journal", data)
    Journal(disk, "/d").load()


def load(payload: bytes) -> None:
    """Load a snapshot with a valid CRC."""
    load_snapshot(FRAME.pack(len(payload), zlib.crc32(payload)) + payload, DataTree())


ONE = NUMBER.pack(1)


@pytest.mark.parametrize(
    ("decoder", "data", "error"),
    [
        (checkpoint_files.decode_offsets, b"0", ValueError),
        (checkpoint_files.decode_epochs, b"0", ValueError),
        (load_journal, frame(ONE + b"\1\0\2/\xff\0\0\0\0"), CoordinationError),
        (load_journal, frame(ONE + b"\1\0"), CoordinationError),
        (load_journal, frame(ONE + b"\1\0\2/a\0"), CoordinationError),
        (load_journal, frame(ONE + b"\1\0\2/a\0\0\0\7x"), CoordinationError),
        (load_journal, frame(ONE + b"\7\0\2/a\0\0\0\0"), CoordinationError),
        (load_journal, frame(ONE + b"\3\0\2/a"), CoordinationError),
        (load, ONE + b"\0\2\0\0\0\0\0\0\0\0/\xff", CoordinationError),
        (load, ONE + b"\0\4\0\0\0\0\0\0\0\0/a/b", CoordinationError),
        (load, ONE + b"\0\2\0\0\0", CoordinationError),
        (load, ONE + b"\0\2\0\0\0\0\0\0\0\7/a", CoordinationError),
        (load, ONE + b"\0\2\0\0\0\0\0\0\0\0/a" * 2, CoordinationError),
        (lambda data: znodes.decode_broker(1, data), b'{"host": "h"}', znodes.InvalidNodeData),
        (lambda data: znodes.decode_topic("t", data), b"1", znodes.InvalidNodeData),
        (lambda data: znodes.decode_topic("t", data), b'{"id": "zz", "internal": false}', znodes.InvalidNodeData),
        (lambda data: znodes.decode_chunk(0, data), b'{"00": {"0": [1]}}', znodes.InvalidNodeData),
        (lambda data: znodes.decode_chunk(0, data), b"[]", znodes.InvalidNodeData),
        (decode_change_log, b'{"recent": []}', znodes.InvalidNodeData),
        (record_from_json, b'{"a":' * 50_000, CliError),
        (lambda data: parse_config_file("x.toml", data), b"a = " + b"[" * 50_000, ConfigError),
        (lambda data: parse_config_file("x.toml", data), b"a." * 5000 + b"b = 1", ConfigError),
        (lambda data: parse_config_file("x.toml", data), b"'a'." * 5000 + b"b = 1", ConfigError),
    ],
)
def test_the_input_is_rejected(decoder: Callable[[bytes], object], data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decoder(data)


def test_a_record_without_operations_is_loaded() -> None:
    """The record of the rejected journals above is valid by itself."""
    load_journal(frame(ONE + encode_ops([])))


@pytest.mark.parametrize("version", [12, 13, 14])
def test_tag_1_is_ignored_before_fetch_15(version: int) -> None:
    """KIP-903 added it; earlier versions may have any field with that tag."""
    encoded = encode(FetchRequest(replica_id=7), version)
    assert encoded.endswith(b"\0")
    for tag in (b"\1\1\0", b"\1\1\4\0\0\0\x09"):
        data = memoryview(encoded[:-1] + tag)
        assert decode(FetchRequest, data, version).replica_id == 7
        assert decode_fetch_request(data, 0, version).replica_id == 7


def test_member_metadata_of_any_version_is_shown() -> None:
    """Clients choose these bytes, and `log dump` must not fail on them."""
    member = GroupMetadataMember(member_id="m", subscription=b"\x8f\x6d1", assignment=b"\xff\xff")
    value = b"\0\3" + encode(GroupMetadataValue(protocol_type="consumer", members=[member]), 3)
    key = b"\0\2" + encode(GroupMetadataKey(group="g"), 2)
    shown = decode_internal("__consumer_offsets", key, value)
    assert shown["value"]["members"][0]["subscription"] == "j20x"
