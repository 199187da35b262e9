"""A broker process delivers records that are due at once, however they came: what one costs, and in which order."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records.batch import build_batch, iter_batch_records, iter_headers
from tests.compat.broker_connection import BrokerConnection
from tests.compat.hostile.raw_client import PRODUCE_VERSION, RawClient, create_topic, produce_request
from tests.compat.support import BrokerProcess, eventually, need_own_broker, running_broker, unique
from tests.sampling import third_of

pytestmark = [pytest.mark.feature("queues"), pytest.mark.client("wire")]

# Ten times what a record takes on a quiet machine. Reading each record by itself took 0.8 to 11 ms.
MAX_MS = 0.3
# Records, bytes of a value, records in a batch, and whether they are due in another order than that of their arrival.
# All together are larger than what is read ahead.
SHAPES = [
    (6_000, 2_000, 400, True),
    (6_000, 2_000, 40, True),
    (12_000, 10, 1, True),
    (12_000, 10, 1, False),
    (6_000, 2_000, 400, False),
    (6_000, 2_000, 40, False),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need_own_broker()
    with running_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process


def fill(client: BrokerConnection, bootstrap: str, topic: str, dues: list[int], size: int, per_batch: int) -> float:
    """Produce records with these due times, with 16 requests in flight. Returns how long it took (s)."""
    begin, in_flight = time.monotonic(), 0
    create_topic(bootstrap, topic, kbroker_delay_enable="true")
    for at in range(0, len(dues), per_batch):
        rows = [
            (0, None, b"%d " % (at + n) + bytes(size), [(b"TIMER_DELIVER_MS", b"%d" % due)])
            for n, due in enumerate(dues[at : at + per_batch])
        ]
        client.send(client.client.send(produce_request(topic, bytes(build_batch(rows))), PRODUCE_VERSION).frame)
        in_flight += 1
        if in_flight == 16:
            check_produced(client)
            in_flight -= 1
    for _ in range(in_flight):
        check_produced(client)
    return time.monotonic() - begin


def check_produced(client: BrokerConnection) -> None:
    response = client.receive_response().decode(ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0


def delivered(client: BrokerConnection, topic: str) -> list[int]:
    """Return the numbers of the records that consumers see."""
    found: list[int] = []
    position = 0
    while True:
        wanted = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=10_000_000)
        topics = [FetchTopic(topic=topic, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=10_000_000, topics=topics)
        records = client.request(request, 11, FetchResponse).responses[0].partitions[0].records or b""
        before = position
        for pos, header in iter_headers(records):
            position = header.next_offset
            if not header.is_control:
                batch = records[pos : pos + header.size]
                found += [int((record.value or b"").split()[0]) for record in iter_batch_records(batch, header)]
        if position == before:
            return found


@pytest.mark.parametrize(("records", "size", "per_batch", "is_scattered"), third_of(SHAPES))
def test_the_cost_of_a_record_does_not_depend_on_how_it_came(
    broker: BrokerProcess, records: int, size: int, per_batch: int, is_scattered: bool
) -> None:
    order = list(range(records))
    if is_scattered:
        Random(1).shuffle(order)
    with RawClient(broker.bootstrap) as client:
        now_ms = time.time_ns() // 1_000_000
        # Once for a day later, which shows how long it takes. All must be pending before the first is due.
        took_s = fill(client, broker.bootstrap, unique("later"), [now_ms + 86_400_000] * records, size, per_batch)
        start_ms = time.time_ns() // 1_000_000 + round(3000 * took_s) + 3000
        dues = [start_ms + at * 1000 // records for at in order]
        topic = unique("delayed")
        fill(client, broker.bootstrap, topic, dues, size, per_batch)
        before_s = processor_s(broker)
        expected = sorted(range(records), key=lambda number: (dues[number], number))
        eventually(lambda: len(delivered(client, topic)) == records, "all are delivered", interval=0.5)
        each_ms = (processor_s(broker) - before_s) * 1000 / records
        assert delivered(client, topic) == expected
    assert each_ms <= MAX_MS


def processor_s(broker: BrokerProcess) -> float:
    """Return the processor time that the broker has used (s)."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
