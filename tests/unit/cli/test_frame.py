"""`kbroker tools frame`: requests and responses, intact and damaged, as text and as JSON."""

import base64
import io
import json
import re
import struct
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.tools.frame_fields import ResponseType, parse_capture
from protocol.apis import ALL_APIS, ApiKey
from protocol.client import ClientConnection
from protocol.framing import encode_frame, encode_response_header
from protocol.messages import message_classes
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.k01_fetch import FetchableTopicResponse, FetchResponse, PartitionData
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from protocol.records.batch import build_batch
from protocol.records.control import EndTransactionMarker, build_end_marker
from protocol.schema.codec import encode
from protocol.schema.message import Message, message_info
from tests.sampling import third_of

T0 = 1_700_000_000_000
BATCH = bytes(build_batch([(T0, b"k", b"v", [(b"h", b"1")]), (T0 + 1, None, b"w", ())]))
# Sent by librdkafka 2.5 (ApiVersions version 3) with the client id "rdkafka".
RDKAFKA = bytes.fromhex("000000250012000300000001000772646b61666b61000b6c696272646b61666b6106322e352e3000")


def requests(*messages: tuple[Message, int]) -> bytes:
    """Encode requests with correlation ids from 1 on and the client id "me"."""
    client = ClientConnection("me")
    return b"".join(client.send(message, version).frame for message, version in messages)


def response(message: Message, version: int, correlation_id: int = 1) -> bytes:
    api_key = message_info(type(message)).key
    assert api_key is not None
    return encode_frame(encode_response_header(api_key, version, correlation_id), encode(message, version))


METADATA = requests((MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 12))


def produce(records: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[partition])])


def as_text(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[str]:
    assert main(["tools", "frame", *args]) == status
    return capsys.readouterr().out.splitlines()


def as_json(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in as_text(capsys, "--json", *args, status=status)]


def test_a_request_is_shown_with_the_position_of_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_text(capsys, METADATA.hex()) == [
        "request Metadata version 12 correlation id 1",
        "     0  size: 41",
        "        header",
        "     4    request_api_key: 3 (METADATA)",
        "     6    request_api_version: 12",
        "     8    correlation_id: 1",
        '    12    client_id: "me"',
        "        body",
        "    17    topics: 1 element",
        "            [0]",
        "    18        topic_id: AAAAAAAAAAAAAAAAAAAAAA",
        '    34        name: "orders"',
        "    42    allow_auto_topic_creation: true",
        "    43    include_topic_authorized_operations: false",
    ]


def test_the_example_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "frame", "--help"]) == 0
    [example] = re.findall("kbroker tools frame ([0-9a-f]{8,})", capsys.readouterr().out)
    [frame] = as_json(capsys, example)
    assert frame["body"] == {"topics": [{"name": "orders"}]}


def test_a_captured_request_of_another_client(capsys: pytest.CaptureFixture[str]) -> None:
    [frame] = as_json(capsys, RDKAFKA.hex())
    assert frame["header"]["client_id"] == "rdkafka"
    assert frame["body"] == {"client_software_name": "librdkafka", "client_software_version": "2.5.0"}


@pytest.mark.parametrize("api_key", ALL_APIS)
def test_every_message_in_every_version_has_its_fields(api_key: int) -> None:
    for kind, cls in zip(("request", "response"), message_classes(api_key), strict=True):
        info = message_info(cls)
        for version in range(info.min_version, info.max_version + 1):
            data = requests((cls(), version)) if kind == "request" else response(cls(), version)
            types = None if kind == "request" else lambda _, version=version: ResponseType(api_key, version)
            [frame] = parse_capture(data, types)
            assert frame.damage is None, f"version {version}"
            assert (frame.kind, frame.api, frame.version) == (kind, ALL_APIS[api_key].name, version)
            expected = [name for name, row in cls.__rows__.items() if row.is_in(version) and row.tag < 0]
            assert [field.path[0] for field in frame.body if len(field.path) == 1 or field.path[1] != "[0]"] == expected


def test_input_as_hex_base64_or_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = as_text(capsys, METADATA.hex())
    assert as_text(capsys, "0x" + METADATA.hex().upper()) == expected
    assert as_text(capsys, METADATA.hex(":")) == expected
    assert as_text(capsys, base64.b64encode(METADATA).decode()) == expected
    path = tmp_path / "capture"
    for content in (METADATA, METADATA.hex(" ", 4).encode() + b"\n", base64.encodebytes(METADATA)):
        path.write_bytes(content)
        assert as_text(capsys, "--file", str(path)) == expected
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False))
        assert as_text(capsys) == expected


def test_a_frame_without_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    with_size, [without] = as_json(capsys, METADATA.hex())[0], as_json(capsys, METADATA[4:].hex())
    assert without["size"] is None
    assert (without["header"], without["body"]) == (with_size["header"], with_size["body"])


def test_several_requests_and_their_responses(capsys: pytest.CaptureFixture[str]) -> None:
    sent = requests((MetadataRequest(topics=None), 9), (MetadataRequest(topics=[]), 12))
    assert [frame["position"] for frame in as_json(capsys, sent.hex())] == [0, len(requests((MetadataRequest(), 9)))]
    received = response(MetadataResponse(cluster_id="second"), 12, 2) + response(MetadataResponse(), 9, 1)
    frames = as_json(capsys, received.hex(), "--request", sent.hex())
    assert [(frame["version"], frame["body"]["cluster_id"]) for frame in frames] == [(12, "second"), (9, None)]
    [frame] = as_json(capsys, response(MetadataResponse(), 9, 3).hex(), "--request", sent.hex(), status=1)
    assert frame["damage"]["reason"] == "no request has the correlation id 3"


def test_error_codes_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    received = response(MetadataResponse(topics=[MetadataResponseTopic(error_code=3, name="t")]), 5)
    for api in ("Metadata", "metadata", "METADATA", "3"):
        lines = as_text(capsys, received.hex(), "--response", api, "--version", "5")
        assert "        error_code: 3 (UNKNOWN_TOPIC_OR_PARTITION)" in [line[6:] for line in lines]


def test_a_response_to_an_unknown_version_of_api_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker responds in version 0 (KIP-511)."""
    rows = [ApiVersion(api_key=18, min_version=0, max_version=3)]
    received = response(ApiVersionsResponse(error_code=35, api_keys=rows), 0)
    [frame] = as_json(capsys, received.hex(), "--response", "ApiVersions", "--version", "4")
    assert frame["version"] == 0
    assert frame["body"] == {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}]}


def test_records_are_shown_with_their_batches(capsys: pytest.CaptureFixture[str]) -> None:
    lines = as_text(capsys, requests((produce(BATCH), 9)).hex())
    records, batch, first, second = lines[-4:]
    assert records.endswith("records: 82 bytes")
    assert "offsets 0..1  2 records  82 bytes" in batch
    assert first.endswith("key k  value v  h=1")
    assert second.endswith("key null  value w")


def test_markers_and_the_beginning_of_a_batch_in_a_fetch_response(capsys: pytest.CaptureFixture[str]) -> None:
    marker = bytes(build_end_marker(EndTransactionMarker(True, 3), 7, 0, T0))
    partition = PartitionData(partition_index=0, records=marker + BATCH[:40])
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    [frame] = as_json(capsys, response(message, 11).hex(), "--response", "Fetch", "--version", "11")
    items = frame["body"]["responses"][0]["partitions"][0]["records"]
    assert [item["item"] for item in items] == ["batch", "record", "control", "incomplete"]
    assert items[2]["type"] == "COMMIT"


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (BATCH[:-1] + b"x", "its CRC is wrong"),
        (BATCH[:-1], "a batch of 82 bytes where 81 remain"),
        (BATCH[:20], "20 bytes are less than a batch header"),
        (BATCH[:16] + b"\1" + BATCH[17:], "a batch of format 1"),
    ],
)
def test_damaged_records(capsys: pytest.CaptureFixture[str], records: bytes, reason: str) -> None:
    frame = requests((produce(records), 9)).hex()
    lines = as_text(capsys, frame, status=1)
    assert any("DAMAGE" in line and reason in line for line in lines)
    [fields] = as_json(capsys, frame, status=1)
    items = fields["body"]["topic_data"][0]["partition_data"][0]["records"]
    assert items[-1]["reason"] == reason


def test_a_frame_is_shown_up_to_the_damage(capsys: pytest.CaptureFixture[str]) -> None:
    lines = as_text(capsys, METADATA[:38].hex(), status=1)
    assert lines[:-1] == as_text(capsys, METADATA.hex())[:11]
    assert lines[-1] == "DAMAGE at byte 35, body topics [0] name: 6 bytes expected, 3 remain"
    [frame] = as_json(capsys, METADATA[:38].hex(), status=1)
    assert frame["body"] == {"topics": [{"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}]}
    assert frame["damage"] == {
        "position": 35,
        "field": ["body", "topics", "[0]", "name"],
        "reason": "6 bytes expected, 3 remain",
    }


def changed(at: int, new: bytes) -> bytes:
    return METADATA[:at] + new + METADATA[at + len(new) :]


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (changed(17, b"\xff"), "DAMAGE at byte 17, body topics: 126 elements in 26 bytes"),
        (changed(17, b"\xff\xff\xff\xff\xff"), "body topics: unsigned varint longer than 5 bytes"),
        (changed(4, b"\0\x63"), "kbroker does not know the fields of API 99"),
        (changed(4, b"\0\x34"), "kbroker does not know the fields of API VOTE"),
        (changed(6, b"\0\x63"), "kbroker has Metadata in versions 0 to 13, not 99"),
        (changed(12, b"\xff\xf0"), "header client_id: length -16"),
        (struct.pack(">i", 43) + METADATA[4:] + b"ab", "2 bytes remain after the end of the message"),
        (METADATA + b"\0\0", "DAMAGE at byte 45, size: 4 bytes of a frame's size expected"),
    ],
)
def test_the_damage_is_described(capsys: pytest.CaptureFixture[str], data: bytes, damage: str) -> None:
    assert damage in as_text(capsys, data.hex(), status=1)[-1]


@pytest.mark.parametrize("seed", third_of(range(20)))
def test_any_bytes_are_shown_without_an_exception(seed: int) -> None:
    random = Random(seed)
    data = METADATA + requests((produce(BATCH), 9))
    for _ in range(100):
        damaged = bytearray(data[: random.randrange(1, len(data) + 1)])
        for _ in range(random.randrange(4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        parse_capture(bytes(damaged), None)
        parse_capture(random.randbytes(random.randrange(1, 60)), None)
        parse_capture(bytes(damaged), lambda _: ResponseType(ApiKey.FETCH, random.randrange(4, 19)))


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["xyz"], "frames must be hex or base64"),
        (["00", "--file", "f"], "exclude each other"),
        (["--file", "/nonexistent"], "No such file or directory"),
        (["00", "--response", "Metadata"], "--response needs --version"),
        (["00", "--version", "3"], "--version needs --response"),
        (["00", "--response", "Nothing", "--version", "3"], "unknown API: 'Nothing'"),
        (["00", "--request", "00", "--version", "3"], "--request excludes"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], args: list[str], error: str) -> None:
    assert main(["tools", "frame", *args]) in (1, 2)
    assert error in capsys.readouterr().err
