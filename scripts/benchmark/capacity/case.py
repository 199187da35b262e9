"""A capacity case, and the load of requests that are repeated unchanged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from protocol.schema.codec import encode
from protocol.schema.message import Message
from scripts.benchmark.capacity.client import Load
from scripts.benchmark.capacity.requests import api_key, error_position, frame
from scripts.benchmark.capacity.server import Server

# Creates what the requests need, and removes it at the end of its context.
Prepare = Callable[[Server], AbstractContextManager[Load]]
# The part of a response that has an error code.
ErrorRow = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """`at_least` and `at_most`: bounds of kbroker's ratio to Apache Kafka for responses/s and processor time."""

    name: str
    prepare: Prepare
    at_least: float | None = None
    at_most: float | None = None


def rotated(frames: Sequence[bytes], connections: int) -> list[list[bytes]]:
    """Return the frames of each connection: all of them, but each connection begins with a different one."""
    count = len(frames)
    return [[frames[(first + index) % count] for index in range(count)] for first in range(connections)]


def error_position_of(response: Message, version: int, error_row: ErrorRow) -> int:
    """Return the position of the error code of a response from a server."""

    def set_error(response: Message) -> None:
        error_row(response).error_code = -1

    return error_position(response, version, set_error)


@contextmanager
def repeating(
    server: Server, requests: Sequence[Message], error_row: ErrorRow, connections: int, in_flight: int
) -> Iterator[Load]:
    """Yield a load in which each connection repeats one of the requests.

    Before that, each request is sent until its response has no error. The last response shows the size of a response
    and the position of its error code.
    """
    version = server.version(api_key(requests[0]))
    for request in requests:
        response = server.request(request, lambda response: error_row(response).error_code, version)
    size = len(encode(response, version))
    frames = [frame(request, version) for request in requests]
    each = [[frames[index % len(frames)]] for index in range(connections)]
    yield Load(each, in_flight, error_position_of(response, version, error_row), size)
