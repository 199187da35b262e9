"""Malformed frames close the connection or are rejected, as by Kafka, and do not affect other clients.

Kafka's responses to the same frames are in kafka-4.4.0-frames.json, recorded by record.py.
"""

import re
import struct
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest

from scripts.ports import free_ports
from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, eventually, running_broker
from tests.compat.wire import kio_messages, malformed_frames
from tests.compat.wire.batches import CODECS, HEADER, T0, modify, values
from tests.compat.wire.client import Client
from tests.compat.wire.record import steps_of
from tests.compat.wire.recorded_responses import FRAMES_FILE, RecordedResponses
from tests.compat.wire.story import Cluster, Story, error_codes, load_stories

STORIES = load_stories()
RECORDED = RecordedResponses.load(FRAMES_FILE)
MB = 1 << 20
# The error codes for bytes that are no records: not success, and not an error after which clients retry.
REJECTIONS = {"CORRUPT_MESSAGE", "INVALID_RECORD", "MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR"}

pytestmark = pytest.mark.feature("bad frames")


class BrokerUnderTest:
    """The broker that receives the malformed frames, and another client of it, which must not be affected."""

    def __init__(
        self, cluster: Cluster, pid: int | None = None, log: Path | None = None, metrics: str | None = None
    ) -> None:
        self.cluster = cluster
        bootstrap = cluster.bootstrap
        self.pid = pid
        self.log = log
        self.metrics = metrics
        if metrics is not None:
            self.closed_connections()
        self._other_client = Story(self.cluster, "Fetch", 12)
        self._topic = self._other_client.create_topic("other")
        self._other_client.produce(self._topic, values("a", "b"))
        for api, (first, last) in RECORDED.versions.items():
            # Memory is measured after each decoder has been generated.
            for version in range(max(first, malformed_frames.FIRST_SERVED.get(api, 0)), last + 1):
                topic_id = self._other_client.topic_id(self._topic)
                sample = malformed_frames.samples(self._topic, topic_id, "wire.g")[api]
                if api != "Produce":
                    frame = malformed_frames.encoded(api, version, sample)
                    malformed_frames.outcome(bootstrap, frame, api, version)
        self._expected = self._fetch()
        self._memory_bytes = self.memory_bytes()

    def memory_bytes(self) -> int:
        """Return the resident memory of the broker's process; 0 if the tests did not start it."""
        if self.pid is None:
            return 0
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def _fetch(self) -> object:
        rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": MB}]
        fields = {"max_bytes": MB, "topics": [{"topic": self._topic, "partitions": rows}], "replica_id": -1}
        self._other_client.steps.clear()
        return self._other_client.request("the other client", **fields)

    def check(self) -> None:
        """Assert that the other client is served as before, on the same connection, and that memory has not grown."""
        assert self._fetch() == self._expected
        growth_bytes = self.memory_bytes() - self._memory_bytes
        assert growth_bytes < 20 * MB, f"memory has grown by {growth_bytes} bytes"

    def closed_connections(self) -> Counter[str]:
        """Return the number of connections that the broker has closed by reason, from its metrics."""
        assert self.metrics is not None
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=DEADLINE_S) as page:
            counts = re.findall(
                r'^kbroker_connections_closed_total\{reason="(.*)"\} (\S+)$', page.read().decode(), re.M
            )
        return Counter({reason: round(float(count)) for reason, count in counts})

    def logged_reasons(self) -> set[str]:
        """Return the reasons in the log. Of each reason, only the first few lines in a minute are logged."""
        assert self.log is not None
        lines = re.findall(r'connection closed peer=\S+ .*reason=("[^"]*"|\S+)', self.log.read_text())
        return {reason.strip('"') for reason in lines}

    def clean_up(self) -> None:
        self._other_client.clean_up()


@pytest.fixture(scope="module")
def module_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerUnderTest]:
    if EXTERNAL_BOOTSTRAP:
        yield BrokerUnderTest(request.getfixturevalue("cluster"))
        return
    directory = tmp_path_factory.mktemp("broker")
    metrics = f"127.0.0.1:{free_ports()}"
    with running_broker(directory, {"kbroker.metrics.listener": metrics}) as broker:
        tested = BrokerUnderTest(Cluster(broker.bootstrap), broker.pid, directory / "stderr-1", metrics)
        yield tested
        tested.clean_up()
        broker.stop()


@pytest.fixture
def broker(module_broker: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    yield module_broker
    module_broker.check()


@pytest.fixture
def own_broker(broker: BrokerUnderTest) -> BrokerUnderTest:
    if broker.pid is None:
        pytest.skip("not run: it looks at the broker's process, and the tests did not start this broker")
    return broker


def test_every_api_is_tried():
    assert set(RECORDED.versions) == set(STORIES)


@pytest.mark.parametrize("api", STORIES)
def test_malformed_requests_end_as_with_kafka(broker: BrokerUnderTest, api: str):
    first, last = RECORDED.versions[api]
    for version in range(first, last + 1):
        steps = steps_of(broker.cluster, api, version, malformed_frames.run)
        assert steps == RECORDED.steps(api, version), f"version {version}"


def test_closed_connections_are_counted_and_logged(own_broker: BrokerUnderTest):
    before = own_broker.closed_connections()
    cases = [data for _, data, finish in malformed_frames.invalid_frames() if not finish]
    outcomes = [malformed_frames.outcome(own_broker.cluster.bootstrap, data, "Heartbeat", 0) for data in cases]
    closed = outcomes.count("closed")
    assert closed > 20
    eventually(lambda: (own_broker.closed_connections() - before).total() == closed, f"{closed} closed connections")
    assert own_broker.logged_reasons() >= set(own_broker.closed_connections())


def test_a_frame_size_allocates_nothing(own_broker: BrokerUnderTest):
    """Each client sends the largest frame size that is allowed, and little of the frame."""
    clients = [Client(own_broker.cluster.bootstrap) for _ in range(60)]
    for client in clients:
        client.send_raw(struct.pack(">i", malformed_frames.MAX_REQUEST) + bytes(2000))
    own_broker.check()
    for client in clients:
        client.send_raw(bytes(2000))
    own_broker.check()
    for client in clients:
        client.close()


def test_a_frame_of_many_elements(own_broker: BrokerUnderTest):
    """The frame is complete, but decoded it would be a hundred times as large: a limit that only kbroker has."""
    for api, item in {"DescribeGroups": b"\1", "Metadata": bytes(16) + b"\2a\0", "DeleteGroups": b"\2g"}.items():
        version = own_broker.cluster.highest(api)
        head = malformed_frames.encoded(api, version, {})
        body = malformed_frames.body_position(head, api, version)
        count = 10 * MB // len(item)
        frame = malformed_frames.with_size(head[:body] + malformed_frames.uvarint(count + 1) + item * count + bytes(10))
        assert malformed_frames.outcome(own_broker.cluster.bootstrap, frame, api, version) == "closed"


def test_null_records(broker: BrokerUnderTest):
    """Kafka fails internally and never responds; kbroker rejects them."""
    if not broker.cluster.is_kbroker:
        pytest.skip("not run: Kafka never responds")
    assert produce_errors(broker, "null", None) == ["INVALID_RECORD"]


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
def test_a_claimed_size_allocates_nothing(own_broker: BrokerUnderTest, title: str):
    """The topic has another compression type, so that the broker decompresses the records."""
    codec, body = CLAIMS[title]
    errors = produce_errors(
        own_broker, title, batch_of(body, codec), compression_type="lz4" if codec != "lz4" else "zstd"
    )
    assert set(errors) <= REJECTIONS
    assert len(errors) == 1


def test_a_decompression_bomb_is_rejected(own_broker: BrokerUnderTest):
    """A batch of a few KB contains 256 MB of zeros."""
    bomb = batch_of(bytes(cramjam.zstd.compress(bytes(1 << 28))), "zstd")
    assert len(bomb) < MB
    assert produce_errors(own_broker, "bomb", bomb, compression_type="gzip") == ["MESSAGE_TOO_LARGE"]


def batch_of(body: bytes, codec: str) -> bytes:
    """Build a batch of one record with a given body."""
    head = values("a", time_ms=T0)[:HEADER]
    return modify(head + body, length=HEADER - 12 + len(body), attributes=CODECS[codec])


def produce_errors(broker: BrokerUnderTest, title: str, records: bytes | None, **configs: str) -> list[str]:
    """Produce to a new topic, which must remain empty; returns the error codes."""
    story = Story(broker.cluster, "Produce", 12)
    topic = story.create_topic(re.sub(r"\W", "-", title), **configs)
    fields = {"name": topic, "topic_id": story.topic_id(topic), "partition_data": [{"index": 0, "records": records}]}
    client = Client(broker.cluster.bootstrap)
    try:
        response = client.request("Produce", 12, acks=-1, timeout=10_000, topic_data=[fields])
    except ConnectionClosedError:
        pytest.fail("the connection was closed")
    finally:
        client.close()
    end_offset = story.end_offset(topic)
    story.clean_up()
    assert end_offset == 0
    return error_codes(kio_messages.plain(response))
