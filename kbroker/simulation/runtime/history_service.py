"""A history process on a simulated machine, and the archives that all of them read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.replica.history.frames import Frame, FrameAssembler, encode_frame
from protocol.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    assemble_batch,
    body_of,
    iter_batch_records,
    iter_headers,
    parse_header,
)

if TYPE_CHECKING:
    import asyncio
    from random import Random

# The time from a request until its response, in seconds.
DELAY_S = (0.001, 0.2)


@dataclass(slots=True)
class SimArchivedPartition:
    """`batches`: with their last offset and largest timestamp."""

    start: int
    end: int
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class SimArchivedTopic:
    topic_id: str
    committed_only: bool = True
    partitions: dict[int, SimArchivedPartition] = field(default_factory=dict)

    def append(self, partition: int, records: bytes | memoryview, end: int) -> None:
        """Archive complete batches of a log up to `end`, without control batches and producers."""
        archived = self.partitions.get(partition)
        for position, header in iter_headers(records):
            if archived is None:
                archived = self.partitions[partition] = SimArchivedPartition(header.base_offset, header.base_offset)
            if header.is_control or header.next_offset <= archived.end or header.base_offset >= end:
                continue
            batch = assemble_batch(
                body_of(records, position, header.size),
                count=header.count,
                last_offset_delta=header.last_offset_delta,
                base_timestamp=header.base_timestamp,
                max_timestamp=header.max_timestamp,
                attributes=header.attributes & ~TRANSACTIONAL,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
                base_sequence=NO_SEQUENCE,
            )
            archived.batches.append((header.last_offset, header.max_timestamp, bytes(batch)))
        if archived is not None:
            archived.end = max(archived.end, end)


class SimArchives:
    """Archives by location and topic. `failure`: the kind of error of all calls but bounds, or None; `is_slow`: no call
    gets a response. `calls` counts the calls by name."""

    def __init__(self) -> None:
        self.topics: dict[tuple[str, str], SimArchivedTopic] = {}
        self.failure: str | None = None
        self.is_slow = False
        self.calls: dict[str, int] = {}
        self.services: list[SimHistoryService] = []

    def starter(self, loop: asyncio.AbstractEventLoop, random: Random) -> Callable[..., SimHistoryService]:
        """Return the ServiceStarter of a machine's environment."""
        return partial(SimHistoryService, self, loop, random)

    def respond(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the header, without its id, and the body of the response to a request."""
        call = request["call"]
        self.calls[call] = self.calls.get(call, 0) + 1
        topic = self.topics.get((request["archive"], request["topic"]))
        if topic is None:
            return {"error": f"{request['archive']} has no topic {request['topic']}", "kind": "absent"}, b""
        if call == "bounds":
            rows = {str(index): {"start": each.start, "end": each.end} for index, each in topic.partitions.items()}
            header = {"topic_id": topic.topic_id, "committed_only": topic.committed_only, "commit_ms": 0}
            return {**header, "partitions": rows}, b""
        if self.failure is not None:
            return {"error": "a file is damaged", "kind": self.failure}, b""
        partition = topic.partitions[request["partition"]]
        return _fetch(partition, request) if call == "fetch" else (_offset_for_time(partition, request), b"")


def _fetch(partition: SimArchivedPartition, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return complete batches, also one that begins before the offset. (The real process builds other batches.)"""
    found, end = b"", request["end"]
    next_offset = end
    for last_offset, _, batch in partition.batches:
        header = parse_header(batch)
        if last_offset < request["offset"] or header.base_offset < partition.start:
            continue
        if header.base_offset >= end:
            break
        if found and len(found) + len(batch) > request["max_bytes"]:
            next_offset = header.base_offset
            break
        found += batch
        next_offset = max(end, header.next_offset)
    return {"next_offset": next_offset}, found


def _offset_for_time(partition: SimArchivedPartition, request: dict[str, Any]) -> dict[str, Any]:
    for last_offset, timestamp, batch in partition.batches:
        if timestamp >= request["timestamp"] and last_offset >= partition.start:
            header = parse_header(batch)
            for record in iter_batch_records(batch, header):
                if record.timestamp >= request["timestamp"]:
                    offset = header.base_offset + record.offset_delta
                    return {"offset": offset, "found_timestamp": record.timestamp, "leader_epoch": header.leader_epoch}
    return {"offset": -1}


class SimHistoryService:
    """A Service: it responds to each request after a random time, until it is killed."""

    def __init__(
        self,
        archives: SimArchives,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        module: str,
        receive: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self.is_killed = False
        self._archives = archives
        self._loop = loop
        self._random = random
        self._receive = receive
        self._on_end = ended
        self._frames = FrameAssembler()
        archives.services.append(self)

    def send(self, data: bytes, /) -> None:
        for frame in self._frames.feed(data):
            self._loop.call_later(self._random.uniform(*DELAY_S), self._respond, frame)

    def _respond(self, frame: Frame) -> None:
        if self.is_killed or self._archives.is_slow:
            return
        header, body = self._archives.respond(frame.header)
        self._receive(encode_frame({"id": frame.header["id"], **header}, body))

    def kill(self) -> None:
        if not self.is_killed:
            self.is_killed = True
            self._loop.call_soon(self._on_end, "it was killed")
