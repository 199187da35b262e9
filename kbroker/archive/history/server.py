"""The loop of the process: reads calls from standard input, and writes responses to standard output in any order.

    bounds           archive, topic                        -> topic_id, committed_only, commit_ms, partitions
    fetch            ... partition, offset, end, max_bytes -> next_offset, and record batches as the body
    offset_for_time  ... partition, timestamp              -> offset, found_timestamp, leader_epoch; offset -1: none

Each call has an id, which its response has too. A call that fails has "error" and "kind" in its response, and a line in
the log on standard error. The process ends with its input.
"""

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from kbroker.archive.history.file_reader import FileReader
from kbroker.archive.history.frames import Buffers, read_frame, write_frame
from kbroker.archive.history.lanes import Lanes
from kbroker.archive.history.topic_history import REFUSED, UNAVAILABLE, HistoryError, TopicHistory

_STDIN, _STDOUT, _STDERR = range(3)


def main() -> NoReturn:
    output = os.dup(_STDOUT)
    # What libraries print must not become part of a response.
    os.dup2(_STDERR, _STDOUT)
    gc.freeze()
    try:
        HistoryServer(partial(write_frame, output)).serve(_STDIN)
    except (OSError, ValueError) as error:
        print(f"history: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    # Threads may still read files.
    os._exit(0)


class HistoryServer:
    """Executes calls in threads. `write` writes a response, by one thread at a time."""

    def __init__(self, write: Callable[[Mapping[str, Any], Buffers], None], reader: FileReader | None = None) -> None:
        self._write = write
        self._write_lock = threading.Lock()
        self._reader = reader or FileReader()
        self._lanes = Lanes()
        self._topics: dict[tuple[str, str], TopicHistory] = {}

    def serve(self, fd: int) -> None:
        """Execute the calls that arrive, until the end of the input. Raises OSError, or ValueError for bad frames."""
        while (header := read_frame(fd)) is not None:
            self.submit(header)

    def submit(self, header: Mapping[str, Any]) -> None:
        """Execute a call, and write its response when it is ready."""
        lane = header.get("archive"), header.get("topic"), header.get("partition")
        if not self._lanes.submit(lane, partial(self._execute, header)):
            self._fail(header, UNAVAILABLE, "too many calls wait for this partition")

    def _execute(self, header: Mapping[str, Any]) -> None:
        try:
            call = _CALLS.get(header.get("call", ""))
            if call is None:
                raise HistoryError(REFUSED, f"there is no call {header.get('call')!r}")
            topic = self._topic(header["archive"], header["topic"])
            response, body = call(topic, header)
            self._respond({"id": header["id"], **response}, body)
            if body:
                self._prefetch(topic, header["partition"], response["next_offset"])
        except HistoryError as error:
            self._fail(header, error.kind, str(error))
        except (KeyError, TypeError) as error:
            traceback.print_exc()
            self._fail(header, REFUSED, f"the call is malformed: {error!r}")
        except Exception as error:
            traceback.print_exc()
            self._fail(header, UNAVAILABLE, f"the call has failed: {error!r}")

    def _topic(self, archive: str, topic: str) -> TopicHistory:
        history = self._topics.get((archive, topic))
        return history or self._topics.setdefault((archive, topic), TopicHistory(archive, topic, self._reader))

    def _prefetch(self, topic: TopicHistory, partition: int, offset: int) -> None:
        """Read what the next fetch of the partition needs, one block at most, while the consumer is busy."""
        lane = topic.archive, topic.topic, partition, "prefetch"

        def prefetch() -> None:
            with suppress(HistoryError):  # the fetch will fail too
                topic.prefetch(partition, offset)

        self._lanes.submit(lane, prefetch, is_optional=True)

    def _fail(self, header: Mapping[str, Any], kind: str, text: str) -> None:
        print(f"history: {header.get('call')} of {header.get('topic')}: {text}", file=sys.stderr, flush=True)
        self._respond({"id": header.get("id"), "error": text, "kind": kind}, ())

    def _respond(self, response: Mapping[str, Any], body: Buffers) -> None:
        try:
            with self._write_lock:
                self._write(response, body)
        except OSError:
            # The broker has ended: so does the input.
            return


_Response = tuple[dict[str, Any], Buffers]


def _bounds(topic: TopicHistory, header: Mapping[str, Any]) -> _Response:
    layout = topic.bounds()
    info = layout.state.topic
    return {
        "topic_id": "" if info is None else info.topic_id,
        "committed_only": layout.committed_only,
        "commit_ms": layout.state.time_ms,
        "partitions": {
            str(partition): {"start": start, "end": end} for partition, (start, end) in layout.bounds().items()
        },
    }, ()


def _fetch(topic: TopicHistory, header: Mapping[str, Any]) -> _Response:
    fetched = topic.fetch(header["partition"], header["offset"], header["end"], header["max_bytes"])
    return {"next_offset": fetched.next_offset}, fetched.batches


def _offset_for_time(topic: TopicHistory, header: Mapping[str, Any]) -> _Response:
    found = topic.first_since(header["partition"], header["timestamp"])
    if found is None:
        return {"offset": -1}, ()
    return {
        "offset": found.offset,
        "found_timestamp": found.timestamp_ms,
        "leader_epoch": found.leader_epoch,
    }, ()


_CALLS: Mapping[str, Callable[[TopicHistory, Mapping[str, Any]], _Response]] = {
    "bounds": _bounds,
    "fetch": _fetch,
    "offset_for_time": _offset_for_time,
}
