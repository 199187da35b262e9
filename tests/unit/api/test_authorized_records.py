"""The gate around records: Produce and Fetch, small and large, at once and after a wait."""

import asyncio
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from protocol.records.batch import TRANSACTIONAL, assemble_batch, build_batch
from protocol.records.compression import SNAPPY
from tests.unit.support.client import Client, batch, by_partition, errors, values_of
from tests.unit.support.secured_broker import ROOT, login, secured, use_rules
from tests.unit.support.simulated_broker import Machine

REFUSED, LONG_MS = ErrorCode.TOPIC_AUTHORIZATION_FAILED, 100_000
ID_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def started(m: Machine, *rules: str) -> tuple[Client, Client]:
    """Return the clients of root and alice, who has these rights; both topics have a record."""
    root = await login(m, ROOT)
    for topic in ("t", "hidden"):
        await root.create_topic(topic)
        await root.produce(topic, batch(b"a"))
    use_rules(m, *rules)
    return root, await login(m, "alice")


async def produce(client: Client, version: int, batches: dict[str, Any], id: str | None = None) -> dict[str, int]:
    """Produce a batch to each topic, by name or id. Returns the codes."""
    request = client.produce_request("", {})
    request.topic_data = [
        part for topic, records in batches.items() for part in client.produce_request(topic, {0: records}).topic_data
    ]
    request.transactional_id = id
    response = await client.request(request, version, ProduceResponse)
    return {topic.name: topic.partition_responses[0].error_code for topic in response.responses}


# Produce.


@secured
async def test_the_batches_of_other_topics_are_refused(m: Machine) -> None:
    root, alice = await started(m, "alice WRITE TOPIC t")
    found = await produce(alice, 12, {"hidden": batch(b"b"), "t": batch(b"b"), "nothere": batch(b"b")})
    assert found == {"t": 0, "hidden": REFUSED, "nothere": REFUSED}
    assert [await root.read(topic) for topic in ("t", "hidden")] == [[b"a", b"b"], [b"a"]]
    assert (await alice.produce("hidden", batch(b"c"))).error_code == REFUSED


@secured
async def test_a_topic_id_is_resolved(m: Machine) -> None:
    root, alice = await started(m)
    for topic in ("t", "hidden"):
        request = alice.produce_request(topic, {0: batch(b"b")})
        request.topic_data[0].topic_id = m.broker.services.metadata.topics[topic].topic_id
        response = await alice.request(request, 13, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == REFUSED
        assert await root.read(topic) == [b"a"]


@secured
async def test_a_large_request_is_checked_too(m: Machine) -> None:
    root, alice = await started(m, "alice WRITE TOPIC t")
    for records in (batch(bytes(200_000)), batch(bytes(2_000_000))):
        assert (await alice.produce("hidden", records)).error_code in (REFUSED, ErrorCode.MESSAGE_TOO_LARGE)
    many = alice.produce_request("hidden", dict.fromkeys(range(1000), batch(b"b")))
    response = await alice.request(many, 12, ProduceResponse)
    assert {row.error_code for row in response.responses[0].partition_responses} == {REFUSED}
    assert await root.read("hidden") == [b"a"]


@secured
async def test_nothing_is_decompressed_before_the_check(m: Machine) -> None:
    """CVE-2023-34455: a batch that claims to decompress to 4 GB, in a topic whose records the broker decompresses."""
    body = b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\0" * 1000
    head = {"count": 1, "last_offset_delta": 0, "base_timestamp": 0, "max_timestamp": 0, "attributes": SNAPPY}
    bomb = bytes(assemble_batch(body, **head))
    root, alice = await started(m, "alice WRITE TOPIC t")
    await root.create_topic("compacted", cleanup_policy="compact")
    assert await produce(alice, 12, {"compacted": bomb}) == {"compacted": REFUSED}
    use_rules(m, "alice WRITE TOPIC compacted")
    assert await produce(alice, 12, {"compacted": bomb}) == {"compacted": ErrorCode.UNKNOWN_SERVER_ERROR}


@secured
async def test_validation_that_takes_long_does_not_go_around_the_check(m: Machine) -> None:
    root, alice = await started(m, "alice WRITE TOPIC t")
    for topic in ("t", "hidden"):
        await root.alter_topic(topic, compression_type="zstd")
    values = [b"%d" % number for number in range(5000)]
    found = await produce(alice, 12, {"hidden": batch(*values), "t": batch(*values)})
    assert found == {"t": 0, "hidden": REFUSED}
    assert [len(await root.read(topic)) for topic in ("t", "hidden")] == [5001, 1]


@secured
async def test_without_acknowledgements_an_error_closes_the_connection(m: Machine) -> None:
    root, alice = await started(m, "alice WRITE TOPIC t")
    alice.produce_acks_0("t", batch(b"b"))
    alice.produce_acks_0("hidden", batch(b"b"))
    await m.until(lambda: m.broker._server.context.errors.closed["Produce with acks=0 failed"])
    assert [await root.read(topic) for topic in ("t", "hidden")] == [[b"a", b"b"], [b"a"]]


@secured
async def test_a_transactional_batch_needs_the_right_to_the_id(m: Machine) -> None:
    root, alice = await started(m, "alice WRITE TOPIC t")
    records = build_batch([(0, b"k", b"v", ())], producer_id=1, producer_epoch=0, attributes=TRANSACTIONAL)
    assert await produce(alice, 11, {"t": records, "hidden": batch(b"b")}, "id") == {
        "t": ID_REFUSED,
        "hidden": ID_REFUSED,
    }
    # As in Kafka, an id without transactional batches is not looked at.
    assert await produce(alice, 11, {"t": batch(b"b")}, "id") == {"t": 0}
    assert await root.read("t") == [b"a", b"b"]


# Fetch.


@secured
async def test_other_topics_are_not_read(m: Machine) -> None:
    _, alice = await started(m, "alice READ TOPIC t")
    response = await alice.fetch({("hidden", 0): 0, ("t", 0): 0, ("nothere", 0): 0})
    assert errors(response) == {("hidden", 0): REFUSED, ("t", 0): 0, ("nothere", 0): REFUSED}
    assert by_partition(response)["hidden", 0].high_watermark == -1


@secured
async def test_a_fetch_that_waits_is_checked_again(m: Machine) -> None:
    root, alice = await started(m, "alice READ TOPIC t")
    waiting = alice.send_fetch({("t", 0): 1}, max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    assert not waiting.done()
    use_rules(m)
    await root.produce("t", batch(b"secret"))
    assert errors(await waiting) == {("t", 0): REFUSED}


@secured
async def test_a_cold_read_is_checked_again(m: Machine) -> None:
    _, alice = await started(m, "alice READ TOPIC t")
    m.disk.cold = 1.0
    m.threads.held.add("read_cold_blocking")
    waiting = alice.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    await m.until(lambda: m.threads.started["read_cold_blocking"])
    use_rules(m)
    m.threads.release("read_cold_blocking")
    assert errors(await waiting) == {("t", 0): REFUSED}


@secured
async def test_a_session_learns_of_a_revocation_without_new_records(m: Machine) -> None:
    _, alice = await started(m, "alice READ TOPIC t", "alice READ TOPIC hidden")
    session = (await alice.fetch({("t", 0): 1, ("hidden", 0): 1}, session=(0, 0))).session_id
    assert errors(await alice.fetch({}, session=(session, 1))) == {}
    use_rules(m, "alice READ TOPIC t")
    assert errors(await alice.fetch({}, session=(session, 2))) == {("hidden", 0): REFUSED}
    use_rules(m, "alice READ TOPIC t", "alice READ TOPIC hidden")
    assert errors(await alice.fetch({}, session=(session, 3))) == {("hidden", 0): 0}


@secured
async def test_a_session_belongs_to_its_principal(m: Machine) -> None:
    _, alice = await started(m, "alice READ TOPIC t", "bob READ TOPIC t")
    bob = await login(m, "bob")
    session = (await alice.fetch({("t", 0): 0}, session=(0, 0))).session_id
    for epoch in (1, 0, -1):
        response = await bob.fetch({("t", 0): 0} if epoch < 1 else {}, session=(session, epoch))
        assert response.error_code == (0 if epoch < 1 else ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert (await alice.fetch({}, session=(session, 1))).error_code == 0, "another user has closed it"


@secured
async def test_a_cached_response_is_only_for_the_same_rights(m: Machine) -> None:
    root, alice = await started(m)
    for _ in range(4):
        assert values_of(by_partition(await root.fetch({("t", 0): 0}))["t", 0]) == [b"a"]
    assert m.broker.services.fetching.response_cache
    assert errors(await alice.fetch({("t", 0): 0})) == {("t", 0): REFUSED}
    use_rules(m, "alice READ TOPIC t")
    for _ in range(4):
        assert values_of(by_partition(await alice.fetch({("t", 0): 0}))["t", 0]) == [b"a"]
    use_rules(m)
    assert errors(await alice.fetch({("t", 0): 0})) == {("t", 0): REFUSED}
