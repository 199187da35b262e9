"""The server's codec against kazoo's: requests that kazoo encodes, responses that kazoo decodes."""

import pytest
from kazoo.exceptions import BadVersionError, RolledBackError, RuntimeInconsistency
from kazoo.protocol import serialization
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from kbroker.coordination.interface import BadVersion, Check, Create, Delete, Node, Set, Unavailable, WatchEvent
from kbroker.coordination.zookeeper_server import messages
from kbroker.coordination.zookeeper_server.messages import (
    JuteReader,
    MalformedRequest,
    RequestRefused,
    RequestType,
    ZooKeeperError,
)

REQUESTS = [
    (serialization.Create("/a", b"data", OPEN_ACL_UNSAFE, 0), Create("/a", b"data")),
    (serialization.Create("/é", b"", CREATOR_ALL_ACL, 1), Create("/é", b"", ephemeral=True)),
    (serialization.Create("/a", None, OPEN_ACL_UNSAFE, 0), Create("/a", b"")),
    (serialization.SetData("/a", b"x" * 1000, 7), Set("/a", b"x" * 1000, 7)),
    (serialization.Delete("/a/b", -1), Delete("/a/b", -1)),
    (serialization.CheckVersion("/a", 3), Check("/a", 3)),
]


@pytest.mark.parametrize(("request_", "op"), REQUESTS)
def test_writes(request_: object, op: object) -> None:
    assert messages.decode_op(request_.type, JuteReader(bytes(request_.serialize()))) == op


def test_a_multi() -> None:
    body = serialization.Transaction([request for request, _ in REQUESTS]).serialize()
    assert messages.decode_multi(JuteReader(bytes(body))) == [(request.type, op) for request, op in REQUESTS]


@pytest.mark.parametrize("size", range(30))
def test_a_request_that_ends_early_is_malformed(size: int) -> None:
    body = bytes(serialization.Transaction([serialization.Create("/a", b"data", OPEN_ACL_UNSAFE, 0)]).serialize())
    with pytest.raises(MalformedRequest):
        messages.decode_multi(JuteReader(body[:size]))


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a\0"])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(RequestRefused) as refusal:
        messages.decode_path(JuteReader(bytes(serialization.write_string(path))))
    assert refusal.value.code == ZooKeeperError.BAD_ARGUMENTS


def test_a_connect_request_and_its_response() -> None:
    body = bytes(serialization.Connect(0, 5, 4_000, 9, b"p" * 16, False).serialize())
    assert messages.decode_connect(body) == (4_000, 9, b"p" * 16)
    response, _ = serialization.Connect.deserialize(messages.encode_connect(4_000, 9, b"p" * 16), 4)
    assert (response.time_out, response.session_id, response.passwd) == (4_000, 9, b"p" * 16)


def test_an_event() -> None:
    encoded = messages.encode_event(WatchEvent("deleted", ""))
    header, offset = serialization.ReplyHeader.deserialize(encoded, 4)
    watch, _ = serialization.Watch.deserialize(encoded, offset)
    assert (header.xid, watch.type, watch.state, watch.path) == (-1, 2, 3, "/")


def test_the_results_of_a_multi() -> None:
    ops = [
        (RequestType.CREATE, Create("/a", b"")),
        (RequestType.SET_DATA, Set("/a", b"xy")),
        (RequestType.DELETE, None),
    ]
    nodes = [Node(b"", 0), Node(b"xy", 1, 8), None]
    path, stat, deleted = serialization.Transaction.deserialize(messages.encode_multi_results(ops, nodes), 0)
    assert (path, stat.version, stat.dataLength, stat.ephemeralOwner, deleted) == ("/a", 1, 2, 8, True)


def test_the_errors_of_a_multi() -> None:
    error = BadVersion("/a")
    error.operation = 1
    results = serialization.Transaction.deserialize(messages.encode_multi_error(3, error), 0)
    assert [type(result) for result in results] == [RolledBackError, BadVersionError, RuntimeInconsistency]


def test_a_failed_disk_is_an_unknown_outcome() -> None:
    assert messages.error_code(Unavailable()) == ZooKeeperError.OPERATION_TIMEOUT
