"""Incremental fetch sessions (KIP-227) in a broker: responses, eviction, cost."""

import asyncio

import pytest

from kbroker.replica.fetch import partition_reads
from kbroker.replica.fetch.fetch_session import partition_bytes
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchResponse
from tests.unit.support.client import Client, TopicPartition, base_offsets, batch, errors, values_of
from tests.unit.support.simulated_broker import HOUR, Machine, broker_test

LONG_MS = 100_000


class Session:
    """The client side of a fetch session: requests have only the partitions that changed."""

    def __init__(self, client: Client, version: int = 12) -> None:
        self.client = client
        self.version = version
        self.id = 0
        self.epoch = 0

    async def fetch(self, offsets: dict[TopicPartition, int] | None = None, **options: object) -> FetchResponse:
        response = await self.client.fetch(
            offsets or {}, session=(self.id, self.epoch), version=self.version, **options
        )
        self.id, self.epoch = response.session_id, self.epoch + 1
        assert response.error_code == 0
        return response


@broker_test
@pytest.mark.parametrize("version", [7, 12, 18])
async def test_only_changed_partitions_are_in_the_response(m: Machine, version: int) -> None:
    client = await m.client()
    await client.create_topic("t", 4)
    session = Session(client, version)
    everything = {("t", index): 0 for index in range(4)}
    first = await session.fetch(everything)
    assert session.id != 0
    assert len(first.responses[0].partitions) == 4
    assert (await session.fetch()).responses == []
    await client.produce("t", batch(b"a"), 2)
    response = await session.fetch()
    assert [(part.partition_index, values_of(part)) for part in response.responses[0].partitions] == [(2, [b"a"])]
    # It is sent again until the client fetches from the next offset.
    response = await session.fetch()
    assert [(part.partition_index, values_of(part)) for part in response.responses[0].partitions] == [(2, [b"a"])]
    assert (await session.fetch({("t", 2): 1})).responses == []
    await client.produce("t", batch(b"b"), 2)
    await client.produce("t", batch(b"c"), 3)
    response = await session.fetch()
    assert {part.partition_index for part in response.responses[0].partitions} == {2, 3}


@broker_test
async def test_only_appends_to_its_partitions_complete_a_fetch(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", 3)
    session = Session(client)
    await session.fetch({("t", 0): 0, ("t", 1): 0})
    await session.fetch(forgotten=[("t", 1)])
    waiting = asyncio.ensure_future(session.fetch(max_wait_ms=LONG_MS))
    for index in (1, 2):
        await producer.produce("t", batch(b"a"), index)
    await asyncio.sleep(5)
    assert not waiting.done()
    await producer.produce("t", batch(b"a"), 0)
    assert list(base_offsets(await waiting)) == [("t", 0)]


@broker_test
async def test_partitions_are_added_and_forgotten(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.produce("t", batch(b"a"), 0)
    await client.produce("t", batch(b"b"), 1)
    session = Session(client)
    assert base_offsets(await session.fetch({("t", 0): 0})) == {("t", 0): [0]}
    assert base_offsets(await session.fetch({("t", 0): 1, ("t", 1): 0})) == {("t", 1): [0]}
    assert base_offsets(await session.fetch({("t", 0): 0}, forgotten=[("t", 1)])) == {("t", 0): [0]}
    assert m.partition("t", 1).fetchers == {}
    # A session without partitions is closed, as in Kafka.
    assert base_offsets(await session.fetch(forgotten=[("t", 0)])) == {}
    assert session.id == 0
    assert len(m.broker.services.fetching.sessions) == 0
    assert m.partition("t", 0).fetchers == {}


@broker_test
async def test_errors_of_sessions(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")

    async def code(session: tuple[int, int], version: int = 12) -> ErrorCode:
        response = await client.fetch({("t", 0): 0}, session=session, version=version)
        assert response.session_id == 0 or response.error_code == 0
        return ErrorCode(response.error_code)

    first = await client.fetch({("t", 0): 0}, session=(0, 0))
    session_id = first.session_id
    assert await code((session_id ^ 1, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await code((session_id, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert await code((session_id, 1), 13) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert await code((session_id, 1)) is ErrorCode.NONE
    assert await code((session_id, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # A full request closes the previous session.
    second = await client.fetch({("t", 0): 0}, session=(session_id, 0))
    assert second.session_id not in (0, session_id)
    assert await code((session_id, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    # The final epoch closes a session.
    assert await code((second.session_id, -1)) is ErrorCode.NONE
    assert await code((second.session_id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert m.partition("t").fetchers == {}


@broker_test
async def test_an_error_of_a_partition_is_returned_every_time_until_it_ends(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    session = Session(client)
    await session.fetch({("t", 0): 0, ("u", 0): 0})
    for _ in range(3):
        assert errors(await session.fetch({("t", 0): 1})) == {("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await client.create_topic("u")
    assert errors(await session.fetch()) == {("u", 0): ErrorCode.NONE}
    assert errors(await session.fetch()) == {}


@broker_test(max_incremental_fetch_session_cache_slots=2)
async def test_a_full_cache(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    sessions = [Session(client) for _ in range(3)]
    for session in sessions:
        await session.fetch({("t", 0): 0})
    assert [session.id == 0 for session in sessions] == [False, False, True]
    await asyncio.sleep(100)
    await sessions[0].fetch()
    await asyncio.sleep(50)
    # Now a session has been idle for long enough to be evicted.
    another = Session(client)
    await another.fetch({("t", 0): 0})
    assert another.id != 0
    await sessions[0].fetch()
    response = await client.fetch({}, session=(sessions[1].id, 1))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(m.partition("t").fetchers) == 2


@broker_test(max_incremental_fetch_session_cache_slots=1)
async def test_a_session_that_is_evicted_while_it_waits(m: Machine) -> None:
    client, other = await m.client(), await m.client()
    await client.create_topic("t")
    session = Session(client)
    await session.fetch({("t", 0): 0, ("u", 0): 0})
    await session.fetch({("t", 0): 0}, forgotten=[("u", 0)])
    waiting = client.send_fetch({}, session=(session.id, 2), max_wait_ms=int(HOUR * 1000))
    await asyncio.sleep(300)
    new_session = Session(other)
    await new_session.fetch({("t", 0): 0})
    assert new_session.id != 0
    assert (await waiting).responses == []
    assert len(m.partition("t").fetchers) == 1


@broker_test
async def test_a_fetch_replaces_a_waiting_fetch_of_the_same_session(m: Machine) -> None:
    """A consumer lost its connection while it waited, and continues its session on another connection."""
    lost, client, producer = await m.client(), await m.client(), await m.client()
    await producer.create_topic("t", 2)
    session = Session(lost)
    await session.fetch({("t", 0): 0, ("t", 1): 0})
    waiting = lost.send_fetch({}, session=(session.id, 1), max_wait_ms=1000)
    await asyncio.sleep(0.5)
    repeated = client.send_fetch({}, session=(session.id, 2), max_wait_ms=LONG_MS)
    # The first fetch gets an empty response.
    assert (await waiting).responses == []
    await asyncio.sleep(5)
    assert not repeated.done()
    await producer.produce("t", batch(b"a"), 1)
    assert base_offsets(await repeated) == {("t", 1): [0]}
    assert len(m.broker.services.replicas.purgatory) == 0


@broker_test
async def test_a_session_survives_its_connection(m: Machine) -> None:
    lost, client = await m.client(), await m.client()
    await client.create_topic("t")
    session = Session(lost)
    await session.fetch({("t", 0): 0})
    lost.send_fetch({}, session=(session.id, 1), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    lost.close()
    await asyncio.sleep(1)
    assert len(m.broker.services.replicas.purgatory) == 0
    waiting = client.send_fetch({}, session=(session.id, 2), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    producer = await m.client()
    await producer.produce("t", batch(b"a"))
    assert base_offsets(await waiting) == {("t", 0): [0]}


@broker_test
async def test_no_partition_of_a_session_starves(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 5)
    for index in range(5):
        for _ in range(10):
            await client.produce("t", batch(b"v", size=1000), index)
    session = Session(client)
    offsets = {("t", index): 0 for index in range(5)}
    response = await session.fetch(offsets, max_bytes=1000)
    fetched: list[TopicPartition] = []
    for _ in range(24):
        moved = {tp: batches[-1] + 1 for tp, batches in base_offsets(response).items() if batches}
        fetched += moved
        response = await session.fetch(moved, max_bytes=1000)
    assert sorted(fetched[:5]) == sorted(fetched[5:10]) == sorted(offsets)


@broker_test
async def test_the_cost_of_a_session_does_not_grow_with_its_partitions(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10,000 partitions one changes: the fetch checks only that one."""
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", 10)
    session = Session(client)
    await session.fetch({("t", index): 0 for index in range(10)})
    # To save time, the other partitions of the session share a log.
    state = m.broker.services.fetching.sessions._sessions[session.id]
    partition = m.partition("t", 1)
    for index in range(10, 10_000):
        fetched = type(next(iter(state.partitions.values())))(state, "t", (index, -1, 0, -1, 1 << 20, -1))
        fetched.target = partition
        fetched.last_sent = (0, 0)
        state.partitions["t", index] = fetched
    checked: list[int] = []
    check = partition_reads.check_fetch
    monkeypatch.setattr(
        partition_reads, "check_fetch", lambda read, *rest: checked.append(read.tp.partition) or check(read, *rest)
    )
    assert (await session.fetch()).responses == []
    assert checked == []
    await producer.produce("t", batch(b"a"), 7)
    assert base_offsets(await session.fetch()) == {("t", 7): [0]}
    assert checked == [7]
    assert (await session.fetch({("t", 7): 1})).responses == []
    waiting = asyncio.ensure_future(session.fetch(max_wait_ms=LONG_MS))
    await asyncio.sleep(1)
    checked.clear()
    await producer.produce("t", batch(b"b"), 7)
    assert base_offsets(await waiting) == {("t", 7): [1]}
    assert checked == [7]


@broker_test
async def test_without_room_for_a_session_full_requests_are_served(m: Machine) -> None:
    """The response has the session id 0; a session that grows too large is closed by the next request."""
    client = await m.client()
    await client.create_topic("t", 4)
    for index in range(4):
        await client.produce("t", batch(b"v"), index)
    sessions = m.broker.services.fetching.sessions
    sessions.max_bytes = 3 * partition_bytes("t")
    growing = Session(client)
    await growing.fetch({("t", index): 0 for index in range(3)})
    assert growing.id != 0
    rejected = Session(client)
    assert base_offsets(await rejected.fetch({("t", index): 0 for index in range(4)})) == {
        ("t", index): [0] for index in range(4)
    }
    assert rejected.id == 0
    response = await growing.fetch({("t", 3): 0})
    assert ("t", 3) in base_offsets(response)
    assert (growing.id, len(sessions), sessions.size_bytes) == (0, 0, 0)
    assert not any(m.partition("t", index).fetchers for index in range(4)), "no partition refers to it"
    fresh = Session(client)
    await fresh.fetch({("t", 0): 0})
    assert fresh.id != 0


@broker_test
async def test_idle_sessions_cost_appends_nothing(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    sessions = [Session(client) for _ in range(30)]
    for session in sessions:
        await session.fetch({("t", 0): 0})
    partition = m.partition("t")
    assert len(partition.fetchers) == 30
    await producer.produce("t", batch(b"a"))
    # Each session was notified once, and is not notified again before its next fetch.
    assert len(partition.fetchers) == 0
    await producer.produce("t", batch(b"b"))
    for session in sessions:
        assert base_offsets(await session.fetch()) == {("t", 0): [0, 1]}
        assert base_offsets(await session.fetch({("t", 0): 2})) == {}
    assert len(partition.fetchers) == 30


@broker_test
async def test_min_bytes_count_all_partitions_of_a_session(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", 2)
    session = Session(client)
    await producer.produce("t", batch(b"a", size=300), 0)
    await session.fetch({("t", 0): 0, ("t", 1): 0}, partition_max_bytes=1000)
    waiting = asyncio.ensure_future(session.fetch(max_wait_ms=LONG_MS, min_bytes=1000))
    for n in range(4):
        await asyncio.sleep(1)
        assert waiting.done() == (n >= 2)
        await producer.produce("t", batch(b"b", size=300), n % 2)
    assert base_offsets(await waiting) == {("t", 0): [0, 1], ("t", 1): [0]}


@broker_test(max_incremental_fetch_session_cache_slots=1)
async def test_a_large_session_is_evicted_in_turns(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    large = Session(client)
    await large.fetch({("t", index): 0 for index in range(2_000)})
    await asyncio.sleep(300)
    fetching = m.broker.services.fetching
    (evicted,) = fetching.sessions.all()
    fetching._close(fetching.sessions.remove(evicted.id))
    assert 0 < len(evicted.partitions) < 2_000
    while evicted.partitions:
        await asyncio.sleep(0)
    new_session = Session(client)
    await new_session.fetch({("t", 0): 0})
    assert new_session.id != 0
    assert len(m.partition("t").fetchers) == 1
