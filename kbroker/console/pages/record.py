"""One record: its value as JSON, text or hexadecimal, its key and headers; and the form that produces a record."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import INT32, INT64
from kbroker.cli.records.formats import parse_headers, printable
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.producer import BlockingProducer, UnknownPartition
from kbroker.common import TopicPartition
from kbroker.console.pages.records import commands
from kbroker.console.rendering import console, integer, page, read_form, see_other
from kbroker.console.scan import PAGE_PARTITION_BYTES

READ_FOR_S = 3.0
MAX_TEXT_BYTES, MAX_HEX_BYTES = 1 << 20, 16 << 10
HEX_ROW = 16
# A value in the format of Confluent's serializers begins with 0 and the id of its schema.
SCHEMA_PREFIX = re.compile(rb"\x00(.{4})", re.DOTALL)
FORMATS = ("json", "text", "hex")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class ShownBytes(NamedTuple):
    """A key, value or header. `text`: of the beginning, None for null. `format`: of FORMATS."""

    text: str | None
    format: str
    size: int
    is_cut: bool = False
    schema_id: int | None = None


def show(data: bytes | None, wanted: str | None = None) -> ShownBytes:
    """Return bytes as text, by default as JSON or text if they are that, else hexadecimal."""
    if data is None:
        return ShownBytes(None, "text", 0)
    prefix = SCHEMA_PREFIX.match(data)
    schema_id = int.from_bytes(prefix[1]) if prefix else None
    as_json = indented_json(data) if wanted in (None, "json") and len(data) <= MAX_TEXT_BYTES else None
    if as_json is not None:
        return ShownBytes(as_json, "json", len(data), schema_id=schema_id)
    if wanted == "hex" or (wanted is None and not _is_text(data)):
        return ShownBytes("\n".join(hex_rows(data)), "hex", len(data), len(data) > MAX_HEX_BYTES, schema_id)
    text = "\n".join(printable(line) for line in data[:MAX_TEXT_BYTES].split(b"\n"))
    return ShownBytes(text, "text", len(data), len(data) > MAX_TEXT_BYTES, schema_id)


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data[:MAX_TEXT_BYTES].decode()
    except UnicodeDecodeError as error:
        # A character that was cut.
        return len(data) > MAX_TEXT_BYTES and error.start > MAX_TEXT_BYTES - 4


def indented_json(data: bytes) -> str | None:
    """Return an object or an array as indented JSON, None for anything else. Numbers and names stay as they are."""
    try:
        text = data.decode()
        if not isinstance(json.loads(text), dict | list):
            return None
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    tokens = _TOKEN.findall(text)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token in "{[":
            depth += 1
            parts.append(token if following in "}]" else f"{token}\n{'  ' * depth}")
        elif token in "}]":
            depth -= 1
            parts.append(token)
        elif token == ",":
            parts.append(f",\n{'  ' * depth}")
        else:
            parts.append(": " if token == ":" else printable(token.encode()))
        if following in ("}", "]") and token not in ("{", "["):
            parts.append(f"\n{'  ' * (depth - 1)}")
    return "".join(parts)


def hex_rows(data: bytes) -> Iterator[str]:
    for start in range(0, min(len(data), MAX_HEX_BYTES), HEX_ROW):
        row = data[start : start + HEX_ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{3 * HEX_ROW - 1}}  {text}"


def read_record(cluster: ClusterClient, topic: str, partition: int, offset: int) -> ConsumedRecord | None:
    """Return the first record from an offset on, None if there is none yet. Raises CliError, BrokerError."""
    at = TopicPartition(topic, partition)
    if partition not in cluster.topic(topic).leaders:
        raise CliError(f"topic {topic} has no partition {partition}")
    consumer = PartitionConsumer(cluster, {at: offset}, max_partition_bytes=PAGE_PARTITION_BYTES)
    deadline_s = monotonic() + READ_FOR_S
    while True:
        position = consumer.positions[at]
        if records := consumer.poll(1):
            return records[0]
        # Control batches have no records.
        if consumer.positions[at] == position or monotonic() > deadline_s:
            return None


async def _read(request: Request) -> ConsumedRecord | None:
    topic, partition, offset = (request.path_params[name] for name in ("topic", "partition", "offset"))
    if partition > INT32 or offset > INT64:
        raise usage_error(f"there is no offset {offset} in a partition {partition}")
    return await console(request).kafka.read(read_record, topic, partition, offset)


async def record(request: Request) -> Response:
    topic, partition, offset = (request.path_params[name] for name in ("topic", "partition", "offset"))
    found = await _read(request)
    if found is None or found.offset != offset:
        return page(
            request, "no_record.html", 404, topic=topic, partition=partition, offset=offset,
            following=found.offset if found is not None else None,
        )  # fmt: skip
    wanted = request.query_params.get("as")
    tombstone = None
    if found.key is not None:
        query = {"key_base64": base64.b64encode(found.key).decode(), "partition": partition, "tombstone": "yes"}
        tombstone = f"/topics/{topic}/produce?{urlencode(query)}"
    return page(
        request, "record.html", topic=topic, record=found, key=show(found.key), formats=FORMATS,
        value=show(found.value, wanted if wanted in FORMATS else None), tombstone=tombstone,
        headers=[(printable(name.encode()), show(content)) for name, content in found.headers],
        commands=commands(request, topic, partition, str(offset), str(offset), 1),
    )  # fmt: skip


async def download(request: Request) -> Response:
    """The bytes of a key or a value as a file."""
    part = request.path_params["part"]
    if part not in ("key", "value"):
        raise HTTPException(404)
    found = await _read(request)
    data = getattr(found, part) if found is not None and found.offset == request.path_params["offset"] else None
    if data is None:
        raise HTTPException(404)
    name = "-".join(str(request.path_params[name]) for name in ("topic", "partition", "offset"))
    headers = {"Content-Disposition": f'attachment; filename="{name}.{part}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


# Producing.


async def produce_form(request: Request) -> Response:
    topic, query = request.path_params["topic"], request.query_params
    await console(request).kafka.read(lambda cluster: cluster.topic(topic))
    fields = {name: query.get(name, "") for name in ("key", "key_base64", "partition", "tombstone", "produced")}
    shown_key = show(_base64(fields["key_base64"])).text if fields["key_base64"] else None
    return page(request, "produce.html", topic=topic, shown_key=shown_key, **fields)


async def produce(request: Request) -> Response:
    """Produce one record. An empty key is none; a tombstone is a null value, and needs a key."""
    topic, form = request.path_params["topic"], await read_form(request)
    key = _base64(form["key_base64"]) if "key_base64" in form else form["key"].encode() if "key" in form else None
    value: bytes | None = form.get("value", "").encode()
    if "tombstone" in form:
        value = None
        if key is None:
            raise usage_error("a tombstone needs a key")
        if form.get("value"):
            raise usage_error("a tombstone has no value: clear the value, or the box")
    partition = integer(form, "partition", -1, INT32)
    headers = parse_headers([line for line in form.get("headers", "").splitlines() if line.strip()])

    def send(cluster: ClusterClient) -> None:
        # Producing must not create a topic that was deleted meanwhile.
        cluster.topic(topic)
        producer = BlockingProducer(cluster)
        try:
            producer.add(topic, key, value, headers, partition if partition >= 0 else None, None)
        except UnknownPartition as error:
            raise CliError(str(error)) from None
        producer.flush()

    kafka = console(request).kafka
    await kafka.read(send)
    kafka.forget()
    return see_other(f"/topics/{topic}/produce?produced=yes")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise usage_error("key_base64 is not base64") from None


routes = [
    Route("/topics/{topic}/produce", produce_form),
    Route("/topics/{topic}/produce", produce, methods=["POST"]),
    Route("/topics/{topic}/{partition:int}/{offset:int}", record),
    Route("/topics/{topic}/{partition:int}/{offset:int}/{part}", download),
]
