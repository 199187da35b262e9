"""The metrics of share groups: what members do shows on the page."""

from __future__ import annotations

import asyncio

from tests.unit.exporter.test_exporter import Labels, scrape
from tests.unit.share.test_share_fetch import EARLIEST, produce
from tests.unit.support.http_client import LISTENER
from tests.unit.support.share_consumer import ALONE, ShareConsumer, alter_group, initialize
from tests.unit.support.simulated_broker import Machine, broker_test

LOCK_S = 15


def of(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


@broker_test(**ALONE, **LISTENER)
async def test_records_in_flight_acknowledgements_and_lag(m: Machine) -> None:
    client = await m.client()
    topic_id = await client.create_topic("t")
    await alter_group(client, "g", share_record_lock_duration_ms=str(LOCK_S * 1000), **EARLIEST)
    await produce(m, 20)
    await initialize(m, "g", topic_id)

    consumer = await ShareConsumer.open(m, topic_id)
    assert await consumer.acquire(max_records=10, max_wait_ms=5000) == [(0, 9, 1)]
    # 0 to 2 are accepted, 5 is rejected, 6 is released, and the others are locked.
    assert (await consumer.acknowledge((0, 2, 1), (5, 5, 3), (6, 6, 2))).error_code == 0
    page = await scrape(m)

    place = of(group="g", topic="t", partition="0")
    assert page["kafka_server_sharepartitionmetrics_inflightmessagecount"] == {place: 7}
    # 3 and 4, 5, 6, 7 to 9.
    assert page["kafka_server_sharepartitionmetrics_inflightbatchcount"] == {place: 4}
    assert page["kbroker_share_group_records"] == {
        of(group="g", state="Acquired"): 5,
        of(group="g", state="Archived"): 1,
        of(group="g", state="Available"): 1,
    }
    assert page["kbroker_share_group_max_delivery_count"] == {of(group="g"): 1}
    counted = page["kafka_server_sharegroupmetrics_recordacknowledgements_total"]
    assert counted == {
        of(ackType=name): count
        for name, count in [("Accept", 3), ("Reject", 1), ("Release", 1), ("Gap", 0), ("Renew", 0)]
    }
    assert page["kbroker_share_records_total"] == {
        of(state=name): count
        for name, count in {"Acquired": 10, "Acknowledged": 3, "Archived": 1, "Available": 1, "Archiving": 0}.items()
    }
    # Of 20 records 3 are before the start, and one behind it is archived.
    assert page["kbroker_share_group_lag"] == {of(group="g", topic="t"): 16}

    await asyncio.sleep(LOCK_S + 1)
    page = await scrape(m)
    assert page["kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total"] == {place: 5}
    assert page["kbroker_share_records_total"][of(state="Available")] == 6

    # A partition that no member fetches has no samples, but the group has its lag.
    consumer.client.close()
    await asyncio.sleep(1)
    page = await scrape(m)
    assert "kafka_server_sharepartitionmetrics_inflightmessagecount" not in page
    assert page["kbroker_share_group_lag"] == {of(group="g", topic="t"): 16}
