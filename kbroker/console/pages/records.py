"""The records of a topic: pages of them, a search that goes on in steps, the live tail, and export as JSON lines."""

import shlex
import time
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.values import PartitionPosition, parse_position, parse_topic_partitions
from kbroker.cli.records.formats import printable, to_json
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord
from kbroker.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.common import format_address
from kbroker.console.record_filter import parse_filter, parse_positions, positions_text
from kbroker.console.rendering import console, integer, page, render
from kbroker.console.scan import MAX_FOUND, ScanResult, ScanStep, scan_backward, scan_forward, start_positions

# The first step is part of the page; scripts ask for further ones, which may take longer.
PAGE_S, STEP_S = 0.1, 0.5
DEFAULT_FOUND = 50
MAX_EXPORTED, DEFAULT_EXPORTED = 1_000_000, 10_000
KEY_BYTES, VALUE_BYTES, SHOWN_HEADERS = 80, 300, 5
NEWEST = "newest"
# The parameters of a search; `at` says where it goes on.
PARAMETERS = ("from", "partition", "key", "header", "text", "json", "committed", "limit")


class RecordQuery(NamedTuple):
    """What a page shows. `start`: None for the newest records first. `at`: where to go on, None for the beginning."""

    topic: str
    parameters: Mapping[str, str]
    start: PartitionPosition | None
    at: Mapping[int, int] | None
    partitions: tuple[int, ...] | None
    step: ScanStep

    @property
    def is_filtered(self) -> bool:
        return self.step.matches is not None

    def link(self, page: str, **changes: str) -> str:
        return f"/topics/{self.topic}/{page}?{urlencode({**self.parameters, **changes})}"


def parse_query(request: Request, max_s: float) -> RecordQuery:
    """Raises CliError."""
    topic, query = request.path_params["topic"], request.query_params
    parameters = {name: text for name in PARAMETERS if (text := query.get(name, "").strip())}
    start = parameters.get("from", NEWEST)
    limit = integer(parameters, "limit", DEFAULT_FOUND, MAX_FOUND)
    isolation_level = READ_COMMITTED if "committed" in parameters else READ_UNCOMMITTED
    partitions = parameters.get("partition")
    return RecordQuery(
        topic,
        parameters,
        None if start == NEWEST else parse_position(start, round(time.time() * 1000)),
        parse_positions(query["at"]) if query.get("at") else None,
        None if partitions is None else parse_topic_partitions(f"{topic}:{partitions}").partitions,
        ScanStep(topic, parse_filter(parameters), max(1, limit), max_s, isolation_level),
    )


def read_step(cluster: ClusterClient, query: RecordQuery) -> ScanResult:
    """Read the next records of a search. Raises CliError, BrokerError, BrokerUnreachable."""
    positions = query.at
    if positions is None:
        start = query.start or PartitionPosition("latest")
        found = start_positions(cluster, query.topic, start, query.step.isolation_level)
        for partition in query.partitions or ():
            if partition not in found:
                raise usage_error(f"topic {query.topic} has no partition {partition}, or that has no leader")
        positions = {at: offset for at, offset in found.items() if query.partitions is None or at in query.partitions}
    scan = scan_backward if query.start is None else scan_forward
    return scan(cluster, positions, query.step)


class RecordRow(NamedTuple):
    """A record in a list; texts are shortened, and characters that could change the page's layout are escaped."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    size: int
    headers: list[tuple[str, str]]
    more_headers: int


def row_of(record: ConsumedRecord) -> RecordRow:
    headers = [(short(name.encode(), KEY_BYTES) or "", short(data, KEY_BYTES) or "") for name, data in record.headers]
    return RecordRow(
        record.partition, record.offset, record.timestamp, short(record.key, KEY_BYTES),
        short(record.value, VALUE_BYTES), len(record.value or b""), headers[:SHOWN_HEADERS],
        len(headers) - SHOWN_HEADERS,
    )  # fmt: skip


def short(data: bytes | None, most: int) -> str | None:
    """Return the beginning of a key or a value as printable text; None for null."""
    if data is None or len(data) <= most:
        return None if data is None else printable(data)
    # Without the first part of a character at the end.
    beginning = getincrementaldecoder("utf-8")("backslashreplace").decode(data[:most])
    return printable(beginning.encode()) + "…"


async def records(request: Request) -> Response:
    query = parse_query(request, PAGE_S)
    result = await console(request).kafka.read(read_step, query)
    at = positions_text(result.positions)
    return page(
        request, "records.html", query=query, parameters=query.parameters, topic=query.topic,
        rows=[row_of(record) for record in result.records], result=result, at=at,
        next_link=query.link("records", at=at), step_link=query.link("records/step"),
        export_link=query.link("export"), is_done=_is_done(query, result), commands=_search_commands(request, query),
        max_found=query.step.max_found,
    )  # fmt: skip


def _is_done(query: RecordQuery, result: ScanResult) -> bool:
    """Return whether a search has nothing more to read now."""
    return result.remaining == 0 or (query.at is not None and result.positions == query.at)


async def step(request: Request) -> Response:
    """The next step of a search or of the tail, for the script of the page."""
    query = parse_query(request, STEP_S)
    result = await console(request).kafka.read(read_step, query)
    return JSONResponse(
        {
            "rows": render(request, "record_rows.html", topic=query.topic, rows=map(row_of, result.records)),
            "found": len(result.records),
            "at": positions_text(result.positions),
            "read": result.read,
            "read_bytes": result.read_bytes,
            "remaining": result.remaining,
            "is_done": _is_done(query, result),
        }
    )


async def tail(request: Request) -> Response:
    query = parse_query(request, STEP_S)._replace(start=PartitionPosition("latest"))
    # Nothing is read: the end of each partition is where the tail begins.
    found = await console(request).kafka.read(read_step, query._replace(step=query.step._replace(max_found=0)))
    return page(
        request, "tail.html", topic=query.topic, parameters=query.parameters, at=positions_text(found.positions),
        step_link=query.link("records/step", **{"from": "latest"}),
    )  # fmt: skip


async def export(request: Request) -> Response:
    most = integer(request.query_params, "max", DEFAULT_EXPORTED, MAX_EXPORTED)
    query = parse_query(request, STEP_S)
    # The first step fails before the response begins.
    first = await console(request).kafka.read(read_step, query)
    headers = {"Content-Disposition": f'attachment; filename="{query.topic}.jsonl"'}
    return StreamingResponse(_lines(request, query, first, most), media_type="application/x-ndjson", headers=headers)


async def _lines(request: Request, query: RecordQuery, result: ScanResult, most: int) -> AsyncIterator[bytes]:
    """Yield at most so many records as JSON lines. The user's browser sets the pace."""
    while True:
        yield b"".join(to_json(record) + b"\n" for record in result.records[:most])
        most -= len(result.records)
        if most <= 0 or _is_done(query, result):
            return
        query = query._replace(at=result.positions, step=query.step._replace(max_found=min(most, MAX_FOUND)))
        result = await console(request).kafka.read(read_step, query)


def _search_commands(request: Request, query: RecordQuery) -> list[str]:
    """Return commands that read from where the search begins."""
    if query.start is None:
        start = "earliest" if query.is_filtered else f"-{query.step.max_found}"
    else:
        start = query.parameters["from"]
    kcat_start = {"earliest": "beginning", "latest": "end"}.get(start, start)
    if query.start is not None and query.start.kind == "time":
        kcat_start = f"s@{query.start.value}"
    return commands(request, query.topic, query.partitions[0] if query.partitions else None, start, kcat_start)


def commands(
    request: Request, topic: str, partition: int | None, start: str, kcat_start: str, count: int | None = None
) -> list[str]:
    """Return commands of kbroker and kcat that read records as JSON. `count`: None for all."""
    bootstrap = ",".join(format_address(*address) for address in console(request).settings.bootstrap)
    of_kbroker = ["kbroker", "consume", topic, "-b", bootstrap]
    of_kcat = ["kcat", "-C", "-b", bootstrap, "-t", topic]
    if partition is not None:
        of_kbroker += ["--partition", str(partition)]
        of_kcat += ["-p", str(partition)]
    of_kbroker += [f"--from={start}", *([] if count is None else ["--count", str(count)]), "--json"]
    of_kcat += ["-o", kcat_start, *([] if count is None else ["-c", str(count)]), "-e", "-J"]
    return [shlex.join(of_kbroker), shlex.join(of_kcat)]


routes = [
    Route("/topics/{topic}/records", records),
    Route("/topics/{topic}/records/step", step),
    Route("/topics/{topic}/tail", tail),
    Route("/topics/{topic}/export", export),
]
