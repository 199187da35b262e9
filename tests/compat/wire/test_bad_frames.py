"""What no good client sends: it closes the connection or is refused as by Kafka, and costs nobody else anything.

What Apache Kafka 4.3.1 made of the same frames is in kafka-4.3.1-frames.json; record.py says how it got there.
"""

import re
import struct
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest

from tests.compat.conftest import OUTSIDE
from tests.compat.support import eventually, free_port, running_broker
from tests.compat.wire import entities, frames
from tests.compat.wire.batches import CODECS, HEADER, T0, broken, values
from tests.compat.wire.client import Closed, Connection
from tests.compat.wire.golden import FRAMES_FILE, Golden
from tests.compat.wire.play import Cluster, Play, error_codes
from tests.compat.wire.record import played
from tests.compat.wire.table import STORIES

GOLDEN = Golden.load(FRAMES_FILE)
MB = 1 << 20
# What may be told of bytes that are no records: never success, and never that the client should try again.
REFUSALS = {"CORRUPT_MESSAGE", "INVALID_RECORD", "MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR"}

pytestmark = pytest.mark.feature("bad frames")


class Victim:
    """The broker that gets the bad frames, and another client of it, which must not notice them."""

    def __init__(
        self, cluster: Cluster, pid: int | None = None, log: Path | None = None, metrics: str | None = None
    ) -> None:
        self.cluster = cluster
        bootstrap = cluster.bootstrap
        self.pid = pid
        self.log = log
        self.metrics = metrics
        if metrics is not None:
            self.closes()
        self._client = Play(self.cluster, "Fetch", 12)
        self._topic = self._client.topic("other")
        self._client.produce(self._topic, values("a", "b"))
        for api, (first, last) in GOLDEN.versions.items():
            for version in range(max(first, frames.FIRST_SERVED.get(api, 0)), last + 1):
                sample = frames.samples(self._topic, self._client.id(self._topic), "wire.g")[api]
                if api != "Produce":
                    frames.outcome(bootstrap, frames.encoded(api, version, sample), api, version)
        self._seen = self._answer()
        self._memory = self.memory()

    def memory(self) -> int:
        """Bytes that the broker's process has in memory; 0 if it is somebody else's."""
        if self.pid is None:
            return 0
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def _answer(self) -> object:
        rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": MB}]
        asked = {"max_bytes": MB, "topics": [{"topic": self._topic, "partitions": rows}], "replica_id": -1}
        self._client.steps.clear()
        return self._client.ask("the other client", **asked)

    def check(self) -> None:
        """The other client is served as before, over its old connection, and memory has not grown."""
        assert self._answer() == self._seen
        grown = self.memory() - self._memory
        assert grown < 20 * MB, f"memory has grown by {grown} bytes"

    def closes(self) -> Counter[str]:
        """Connections that the broker has closed, by reason, as its metrics count them."""
        assert self.metrics is not None
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=20) as page:
            found = re.findall(r'^kbroker_connections_closed_total\{reason="(.*)"\} (\S+)$', page.read().decode(), re.M)
        return Counter({reason: round(float(count)) for reason, count in found})

    def reasons_logged(self) -> set[str]:
        """The reasons of the lines that name a peer; the log tells the first few of each in a minute."""
        assert self.log is not None
        lines = re.findall(r'connection closed peer=\S+ .*reason=("[^"]*"|\S+)', self.log.read_text())
        return {reason.strip('"') for reason in lines}

    def end(self) -> None:
        self._client.end()


@pytest.fixture(scope="module")
def shared_victim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    if OUTSIDE:
        yield Victim(request.getfixturevalue("cluster"))
        return
    directory = tmp_path_factory.mktemp("victim")
    metrics = f"127.0.0.1:{free_port()}"
    with running_broker(directory, {"kbroker.metrics.listener": metrics}) as broker:
        found = Victim(Cluster(broker.bootstrap), broker.pid, directory / "stderr-1", metrics)
        yield found
        found.end()
        broker.stop()


@pytest.fixture
def victim(shared_victim: Victim) -> Iterator[Victim]:
    yield shared_victim
    shared_victim.check()


@pytest.fixture
def own(victim: Victim) -> Victim:
    if victim.pid is None:
        pytest.skip("not run: it looks into the broker's process, and this one is not the suite's own")
    return victim


def test_every_api_is_tried():
    assert set(GOLDEN.versions) == set(STORIES)


@pytest.mark.parametrize("api", STORIES)
def test_broken_requests_end_as_with_kafka(victim: Victim, api: str):
    first, last = GOLDEN.versions[api]
    for version in range(first, last + 1):
        assert played(victim.cluster, api, version, frames.tell) == GOLDEN.steps(api, version), f"version {version}"


def test_what_closes_a_connection_is_counted_and_logged(own: Victim):
    before = own.closes()
    cases = [data for _, data, finish in frames.unframed() if not finish]
    closed = [frames.outcome(own.cluster.bootstrap, data, "Heartbeat", 0) for data in cases].count("closed")
    assert closed > 20
    eventually(lambda: (own.closes() - before).total() == closed, f"{closed} closed connections")
    assert own.reasons_logged() >= set(own.closes())


def test_a_length_reserves_nothing(own: Victim):
    """Each connection announces as much as a request may have, and sends little of it."""
    connections = [Connection(own.cluster.bootstrap) for _ in range(60)]
    for connection in connections:
        connection.send_raw(struct.pack(">i", frames.MAX_REQUEST) + bytes(2000))
    own.check()
    for connection in connections:
        connection.send_raw(bytes(2000))
    own.check()
    for connection in connections:
        connection.close()


def test_a_frame_of_many_elements(own: Victim):
    """Its bytes are all there, but in memory it would be a hundred times as large: a bound of our own."""
    for api, item in {"DescribeGroups": b"\1", "Metadata": bytes(16) + b"\2a\0", "DeleteGroups": b"\2g"}.items():
        version = own.cluster.highest(api)
        head = frames.encoded(api, version, {})
        body = frames.body_position(head, api, version)
        count = 10 * MB // len(item)
        frame = frames.sized(head[:body] + frames.uvarint(count + 1) + item * count + bytes(10))
        assert frames.outcome(own.cluster.bootstrap, frame, api, version) == "closed"


def test_null_records(victim: Victim):
    """Kafka fails on them within and never answers; here they are refused."""
    if not victim.cluster.is_kbroker:
        pytest.skip("not run: Kafka never answers")
    assert produced(victim, "null", None) == ["INVALID_RECORD"]


CLAIMS = {
    "a snappy block of 2 GiB": ("snappy", b"\xff\xff\xff\xff\x07" + b"\xf4" * 20),
    "a framed snappy block of 2 GiB": (
        "snappy",
        b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 2**31 - 1) + b"\xff\xff\xff\xff\x07" + b"\xf4" * 20,
    ),
    "a zstd frame of 4 GiB": ("zstd", b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\xff" + b"\1\0\0"),
    "a zstd window of 2 TiB": ("zstd", b"\x28\xb5\x2f\xfd\0\xf8" + b"\1\0\0"),
    "an lz4 frame of 4 TiB": ("lz4", b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**42) + b"\0" + bytes(4)),
    "an lz4 block of 2 GiB": ("lz4", b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xff\xff\xff\x7f" + bytes(20)),
    "a gzip of 4 GiB": ("gzip", bytes(cramjam.gzip.compress(b"x"))[:-4] + b"\xff\xff\xff\xff"),
    "a record of 2 GiB": ("none", b"\xfe\xff\xff\xff\x0f" + bytes(30)),
    "a key of 2 GiB": ("none", b"\x28\0\0\0\xfe\xff\xff\xff\x0f" + bytes(30)),
    "headers beyond number": ("none", b"\x28\0\0\0\1\1\xfe\xff\xff\xff\x0f" + bytes(30)),
}


@pytest.mark.parametrize("title", CLAIMS)
def test_what_records_claim_reserves_nothing(own: Victim, title: str):
    """On a topic whose records the broker has to unpack."""
    codec, body = CLAIMS[title]
    refused = produced(own, title, packed(body, codec), compression_type="lz4" if codec != "lz4" else "zstd")
    assert set(refused) <= REFUSALS
    assert len(refused) == 1


def test_a_bomb_is_not_unpacked(own: Victim):
    """256 MB of zeros in a batch of a few KB."""
    bomb = packed(bytes(cramjam.zstd.compress(bytes(1 << 28))), "zstd")
    assert len(bomb) < MB
    assert produced(own, "bomb", bomb, compression_type="gzip") == ["MESSAGE_TOO_LARGE"]


def packed(body: bytes, codec: str) -> bytes:
    """A batch that says that it has one record in this body."""
    head = values("a", time_ms=T0)[:HEADER]
    return broken(head + body, length=HEADER - 12 + len(body), attributes=CODECS[codec])


def produced(victim: Victim, title: str, records: bytes | None, **configs: str) -> list[str]:
    """The error codes of a Produce to a new topic, in which nothing is then."""
    play = Play(victim.cluster, "Produce", 12)
    topic = play.topic(re.sub(r"\W", "-", title), **configs)
    part = {"name": topic, "topic_id": play.id(topic), "partition_data": [{"index": 0, "records": records}]}
    connection = Connection(victim.cluster.bootstrap)
    try:
        answer = connection.ask("Produce", 12, acks=-1, timeout=10_000, topic_data=[part])
    except Closed:
        pytest.fail("the connection was closed")
    finally:
        connection.close()
    stored = play.end_offset(topic)
    play.end()
    assert stored == 0
    return error_codes(entities.plain(answer))
