"""Fetch (key 1): waiting, limits, errors, incremental sessions (KIP-227)."""

import asyncio

import pytest

from kbroker.simulation.disk import SimFile
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchResponse
from protocol.records.batch import iter_headers
from tests.unit.client import Client, Place, batch, by_place, records_of, values_of
from tests.unit.harness import HOUR, Machine, story

LONG_MS = 100_000


def bases(answer: FetchResponse) -> dict[Place, list[int]]:
    """Base offsets of the batches of each partition that is in an answer."""
    return {
        place: [header.base_offset for _, header in iter_headers(records_of(part))]
        for place, part in by_place(answer).items()
    }


def errors(answer: FetchResponse) -> dict[Place, ErrorCode]:
    return {place: ErrorCode(part.error_code) for place, part in by_place(answer).items()}


# Waiting.


@story
@pytest.mark.parametrize("version", range(4, 19))
async def test_each_version(m: Machine, version: int) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b"))
    answer = await client.fetch_one("t", 0, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    assert values_of(answer) == [b"a", b"b"]
    assert answer.aborted_transactions is None
    answer = await client.fetch_one("t", 0, version=version, isolation_level=1)
    assert values_of(answer) == [b"a", b"b"]
    assert answer.aborted_transactions == []


@story
async def test_the_batch_that_holds_the_offset_is_given_whole(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b", b"c"))
    answer = await client.fetch_one("t", 2)
    assert values_of(answer) == [b"a", b"b", b"c"]


@story
async def test_a_fetch_wakes_when_something_is_appended(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    waiting = client.post_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    await asyncio.sleep(50)
    assert not waiting.done()
    began = m.elapsed_ms
    await producer.produce("t", batch(b"a"))
    assert values_of((await waiting).responses[0].partitions[0]) == [b"a"]
    assert m.elapsed_ms - began < 5
    assert len(m.broker.services.replicas.purgatory) == 0


@story
async def test_a_fetch_ends_when_its_time_is_over(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for wait_ms in (500, 0, 7, 3_600_000):
        began = m.elapsed_ms
        answer = await client.fetch_one("t", 0, max_wait_ms=wait_ms)
        assert (answer.error_code, records_of(answer)) == (0, b"")
        assert wait_ms <= m.elapsed_ms - began < wait_ms + 5
        await asyncio.sleep(1)


@story
async def test_deadlines_of_several_who_wait(m: Machine) -> None:
    admin = await m.client()
    await admin.create_topic("t")
    clients = [await m.client() for _ in range(6)]
    began = m.elapsed_ms
    waits = [3000, 1000, 2000, 1500, 500, 2500]

    async def wait(client: Client, wait_ms: int) -> None:
        await client.fetch({("t", 0): 0}, max_wait_ms=wait_ms)
        assert wait_ms <= m.elapsed_ms - began < wait_ms + 5

    await asyncio.gather(*map(wait, clients, waits))


@story
async def test_min_bytes(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    await producer.produce("t", batch(b"0", size=500))
    began = m.elapsed_ms
    waiting = client.post_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=2000)
    for n in range(1, 4):
        assert not waiting.done()
        await producer.produce("t", batch(b"%d" % n, size=500))
        await asyncio.sleep(1)
    answer = await waiting
    assert bases(answer) == {("t", 0): [0, 1, 2, 3]}
    # With less than that it waits for its time.
    began = m.elapsed_ms
    assert bases(await client.fetch({("t", 0): 3}, max_wait_ms=700, min_bytes=2000)) == {("t", 0): [3]}
    assert 700 <= m.elapsed_ms - began < 705


@story
async def test_min_bytes_of_what_is_synced(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", flush_before_ack=True)
    waiting = client.post_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=2000)
    for n in range(4):
        assert not waiting.done()
        await producer.produce("t", batch(b"%d" % n, size=500))
        await asyncio.sleep(1)
    assert bases(await waiting) == {("t", 0): [0, 1, 2, 3]}


@story
async def test_more_than_is_ever_given_is_not_waited_for(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(6):
        await client.produce("t", batch(b"v", size=900_000))
    began = m.elapsed_ms
    answer = await client.fetch(
        {("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=50 << 20, max_bytes=60 << 20, partition_max_bytes=60 << 20
    )
    assert len(bases(answer)[("t", 0)]) == 4
    assert m.elapsed_ms - began < 1000


@story
async def test_appends_of_one_turn_share_an_answer(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    waiting = client.post_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    frames = [producer.encoded(producer.produce_request("t", {0: batch(b"v")}, acks=0), 9) for _ in range(5)]
    connection = next(iter(c for c in m.broker._server.connections if not c.waiting))
    connection._receive(memoryview(bytearray(b"".join(frames))))
    assert bases(await waiting) == {("t", 0): [0, 1, 2, 3, 4]}


# Limits.


@story
async def test_sizes(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    for index in range(2):
        for _ in range(10):
            await client.produce("t", batch(b"v", size=1000), index)
    both = {("t", 0): 0, ("t", 1): 0}
    # The first batch is whole, however little is asked for; the others keep to the limits (KIP-74).
    assert bases(await client.fetch(both, partition_max_bytes=1)) == {("t", 0): [0], ("t", 1): []}
    assert bases(await client.fetch(both, max_bytes=1)) == {("t", 0): [0], ("t", 1): []}
    assert bases(await client.fetch(both, max_bytes=0, partition_max_bytes=0)) == {("t", 0): [0], ("t", 1): []}
    three = 3 * (1000 + 80)
    assert bases(await client.fetch(both, partition_max_bytes=three)) == {("t", 0): [0, 1, 2], ("t", 1): [0, 1, 2]}
    assert bases(await client.fetch(both, max_bytes=three)) == {("t", 0): [0, 1, 2], ("t", 1): []}
    found = bases(await client.fetch(both, max_bytes=4 * three, partition_max_bytes=3 * three))
    assert found == {("t", 0): list(range(9)), ("t", 1): [0, 1, 2]}


@story(fetch_max_bytes=5000)
async def test_fetch_max_bytes_of_the_broker(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(10):
        await client.produce("t", batch(b"v", size=1000))
    assert bases(await client.fetch({("t", 0): 0})) == {("t", 0): [0, 1, 2, 3]}


# What cannot be had.


@story
async def test_errors(m: Machine) -> None:
    client = await m.client()
    topic_id = await client.create_topic("t")
    await client.produce("t", batch(b"a", b"b"))
    assert (await client.fetch_one("u", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch_one("t", 0, 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch_one("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.fetch_one("t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.fetch_one("t", 2)).error_code == ErrorCode.NONE
    assert (await client.fetch_one("t", 0, leader_epoch=0)).error_code == ErrorCode.NONE
    assert (await client.fetch_one("t", 0, leader_epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    client.ids["t"] = bytes(15) + b"\1"
    assert (await client.fetch_one("t", 0, version=13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    client.ids["t"] = topic_id
    assert (await client.fetch_one("t", 0, version=13)).error_code == ErrorCode.NONE
    request = client.fetch_request({("t", 0): 0})
    request.replica_id = 2
    answer = await client.ask(request, 12, FetchResponse)
    assert errors(answer) == {("t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


@story
async def test_a_leader_epoch_of_before_the_restart_is_fenced(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await m.restart()
    client = await m.client()
    assert (await client.fetch_one("t", 0, leader_epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await client.fetch_one("t", 0, leader_epoch=1)).error_code == ErrorCode.NONE


@story
async def test_an_error_is_answered_at_once(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    began = m.elapsed_ms
    answer = await client.fetch({("t", 0): 0, ("u", 0): 0}, max_wait_ms=LONG_MS)
    assert errors(answer) == {("t", 0): ErrorCode.NONE, ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert m.elapsed_ms - began < 10


@story
@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_topic_that_is_deleted_while_a_fetch_waits(m: Machine, version: int, in_session: bool) -> None:
    client, admin = await m.client(), await m.client()
    client.ids["t"] = await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    session = (0, -1)
    if in_session:
        answer = await client.fetch({("t", 0): 1}, session=(0, 0), version=version)
        session = (answer.session_id, 1)
    waiting = client.post_fetch(
        {} if in_session else {("t", 0): 1}, session=session, max_wait_ms=LONG_MS, version=version
    )
    await asyncio.sleep(1)
    await admin.delete_topic("t")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    assert list(errors(await waiting).values()) == [unknown]
    # Created again under its name it is found by its name, and its old id stays unknown.
    await admin.create_topic("t")
    await admin.produce("t", batch(b"new"))
    session = (session[0], 2) if in_session else session
    answer = await client.fetch({("t", 0): 0}, session=session, version=version)
    (part,) = by_place(answer).values()
    if version < 13:
        assert values_of(part) == [b"new"]
    else:
        assert part.error_code == unknown


@story
async def test_deleted_records_wake_who_waits_below(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await client.create_topic("t")
    await admin.produce("t", batch(b"a", b"b", b"c"))
    first = await client.fetch({("t", 0): 3}, session=(0, 0))
    waiting = client.post_fetch({}, session=(first.session_id, 1), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    assert await admin.delete_records("t", 2) == (0, 2)
    # The log start has moved, which is said.
    (part,) = by_place(await waiting).values()
    assert (part.error_code, part.log_start_offset) == (0, 2)
    assert (await client.fetch_one("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_of(await client.fetch_one("t", 2), 2) == [b"c"]
    assert await admin.delete_records("t", -1) == (0, 3)
    assert (await admin.delete_records("t", 4))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await admin.delete_records("t", 1) == (0, 3)


# Reads that have to wait for the disk.


@story
async def test_cold_reads(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 3)
    for index in range(3):
        for n in range(5):
            await client.produce("t", batch(b"%d" % n), index)
    m.disk.cold = 1.0
    everything = {("t", index): 0 for index in range(3)}
    assert bases(await client.fetch(everything)) == {place: [0, 1, 2, 3, 4] for place in everything}
    assert m.threads.began["read_cold_blocking"] == 1
    answer = await client.fetch(everything, max_bytes=1)
    assert bases(answer) == {("t", 0): [0], ("t", 1): [], ("t", 2): []}
    answer = await client.fetch(everything, partition_max_bytes=200)
    assert bases(answer) == {place: [0, 1] for place in everything}
    assert await client.read("t", 3) == [b"3", b"4"]


@story
async def test_a_cold_partition_has_its_turn_beside_hot_ones(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One consumer of a partition that is being written and of another whose data is on the disk only."""
    client = await m.client()
    await client.create_topic("t", 2)
    for _ in range(20):
        await client.produce("t", batch(b"old", size=1000), 0)
        await client.produce("t", batch(b"new", size=1000), 1)
    cold = m.partition("t", 0).log.active.file
    hot = SimFile.pread_nowait
    monkeypatch.setattr(SimFile, "pread_nowait", lambda self, size, at: None if self is cold else hot(self, size, at))
    offsets = {("t", 0): 0, ("t", 1): 0}
    answer = await client.fetch(offsets, session=(0, 0), max_bytes=2000)
    for epoch in range(1, 30):
        moved = {}
        for place, batches in bases(answer).items():
            if batches:
                offsets[place] = moved[place] = batches[-1] + 1
        answer = await client.fetch(moved, session=(answer.session_id, epoch), max_bytes=2000)
    assert min(offsets.values()) > 10


@story
async def test_a_topic_that_is_deleted_during_a_cold_read(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    m.disk.cold = 1.0
    m.threads.held.add("read_cold_blocking")
    reading = client.post_fetch({("t", 0): 0})
    await asyncio.sleep(1)
    await admin.delete_topic("t")
    m.threads.release("read_cold_blocking")
    assert errors(await reading) == {("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@story
async def test_a_client_that_goes_away_during_a_cold_read(m: Machine) -> None:
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    m.disk.cold = 1.0
    m.threads.held.add("read_cold_blocking")
    client.post_fetch({("t", 0): 0})
    await asyncio.sleep(1)
    client.close()
    await asyncio.sleep(1)
    assert not m.partition("t").fetchers
    m.threads.release("read_cold_blocking")
    await asyncio.sleep(1)


@story
async def test_a_read_that_fails_takes_the_log_offline(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    for index in range(2):
        await client.produce("t", batch(b"a"), index)
    broken = m.partition("t", 0).log.active.file
    hot = SimFile.pread_nowait

    def pread(self: SimFile, size: int, offset: int) -> bytes | None:
        if self is broken:
            raise OSError(5, "Input/output error")
        return hot(self, size, offset)

    monkeypatch.setattr(SimFile, "pread_nowait", pread)
    answer = await client.fetch({("t", 0): 0, ("t", 1): 0})
    assert errors(answer) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("t", 1): ErrorCode.NONE}
    monkeypatch.undo()
    answer = await client.fetch({("t", 0): 0, ("t", 1): 0})
    assert errors(answer) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("t", 1): ErrorCode.NONE}


# Sessions.


class Session:
    """A consumer's fetch session: it sends what has changed."""

    def __init__(self, client: Client, version: int = 12) -> None:
        self.client = client
        self.version = version
        self.id = 0
        self.epoch = 0

    async def fetch(self, wanted: dict[Place, int] | None = None, **options: object) -> FetchResponse:
        answer = await self.client.fetch(wanted or {}, session=(self.id, self.epoch), version=self.version, **options)
        self.id, self.epoch = answer.session_id, self.epoch + 1
        assert answer.error_code == 0
        return answer


@story
@pytest.mark.parametrize("version", [7, 12, 18])
async def test_only_what_has_changed_is_answered(m: Machine, version: int) -> None:
    client = await m.client()
    await client.create_topic("t", 4)
    session = Session(client, version)
    everything = {("t", index): 0 for index in range(4)}
    first = await session.fetch(everything)
    assert session.id != 0
    assert len(first.responses[0].partitions) == 4
    assert (await session.fetch()).responses == []
    await client.produce("t", batch(b"a"), 2)
    answer = await session.fetch()
    assert [(part.partition_index, values_of(part)) for part in answer.responses[0].partitions] == [(2, [b"a"])]
    # It is there until the client asks for what follows.
    answer = await session.fetch()
    assert [(part.partition_index, values_of(part)) for part in answer.responses[0].partitions] == [(2, [b"a"])]
    assert (await session.fetch({("t", 2): 1})).responses == []
    await client.produce("t", batch(b"b"), 2)
    await client.produce("t", batch(b"c"), 3)
    answer = await session.fetch()
    assert {part.partition_index for part in answer.responses[0].partitions} == {2, 3}


@story
async def test_a_session_wakes_for_its_own_partitions_only(m: Machine) -> None:
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
    assert list(bases(await waiting)) == [("t", 0)]


@story
async def test_partitions_that_come_and_go(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.produce("t", batch(b"a"), 0)
    await client.produce("t", batch(b"b"), 1)
    session = Session(client)
    assert bases(await session.fetch({("t", 0): 0})) == {("t", 0): [0]}
    assert bases(await session.fetch({("t", 0): 1, ("t", 1): 0})) == {("t", 1): [0]}
    assert bases(await session.fetch({("t", 0): 0}, forgotten=[("t", 1)])) == {("t", 0): [0]}
    assert m.partition("t", 1).fetchers == {}
    # Without any partition left there is no session, as in Kafka.
    assert bases(await session.fetch(forgotten=[("t", 0)])) == {}
    assert session.id == 0
    assert len(m.broker.services.fetching.sessions) == 0
    assert m.partition("t", 0).fetchers == {}


@story
async def test_errors_of_sessions(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")

    async def code(session: tuple[int, int], version: int = 12) -> ErrorCode:
        answer = await client.fetch({("t", 0): 0}, session=session, version=version)
        assert answer.session_id == 0 or answer.error_code == 0
        return ErrorCode(answer.error_code)

    first = await client.fetch({("t", 0): 0}, session=(0, 0))
    number = first.session_id
    assert await code((number ^ 1, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert await code((number, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert await code((number, 1), 13) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert await code((number, 1)) is ErrorCode.NONE
    assert await code((number, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # The client begins anew, and the old session ends with it.
    second = await client.fetch({("t", 0): 0}, session=(number, 0))
    assert second.session_id not in (0, number)
    assert await code((number, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    # Or it is closed.
    assert await code((second.session_id, -1)) is ErrorCode.NONE
    assert await code((second.session_id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert m.partition("t").fetchers == {}


@story
async def test_an_error_in_a_session_is_told_every_time_and_so_is_its_end(m: Machine) -> None:
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


@story(max_incremental_fetch_session_cache_slots=2)
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
    # Now one is idle for long enough to give its place up.
    another = Session(client)
    await another.fetch({("t", 0): 0})
    assert another.id != 0
    await sessions[0].fetch()
    answer = await client.fetch({}, session=(sessions[1].id, 1))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(m.partition("t").fetchers) == 2


@story(max_incremental_fetch_session_cache_slots=1)
async def test_a_session_that_is_evicted_while_it_waits(m: Machine) -> None:
    client, other = await m.client(), await m.client()
    await client.create_topic("t")
    session = Session(client)
    await session.fetch({("t", 0): 0, ("u", 0): 0})
    await session.fetch({("t", 0): 0}, forgotten=[("u", 0)])
    waiting = client.post_fetch({}, session=(session.id, 2), max_wait_ms=int(HOUR * 1000))
    await asyncio.sleep(300)
    taker = Session(other)
    await taker.fetch({("t", 0): 0})
    assert taker.id != 0
    assert (await waiting).responses == []
    assert len(m.partition("t").fetchers) == 1


@story
async def test_a_waiting_fetch_takes_nothing_from_the_one_that_replaces_it(m: Machine) -> None:
    """A consumer whose connection was lost while it waited goes on with its session on another one."""
    lost, client, producer = await m.client(), await m.client(), await m.client()
    await producer.create_topic("t", 2)
    session = Session(lost)
    await session.fetch({("t", 0): 0, ("t", 1): 0})
    waiting = lost.post_fetch({}, session=(session.id, 1), max_wait_ms=1000)
    await asyncio.sleep(0.5)
    again = client.post_fetch({}, session=(session.id, 2), max_wait_ms=LONG_MS)
    # The first is told that there is nothing for it any more.
    assert (await waiting).responses == []
    await asyncio.sleep(5)
    assert not again.done()
    await producer.produce("t", batch(b"a"), 1)
    assert bases(await again) == {("t", 1): [0]}
    assert len(m.broker.services.replicas.purgatory) == 0


@story
async def test_a_session_outlives_its_connection(m: Machine) -> None:
    lost, client = await m.client(), await m.client()
    await client.create_topic("t")
    session = Session(lost)
    await session.fetch({("t", 0): 0})
    lost.post_fetch({}, session=(session.id, 1), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    lost.close()
    await asyncio.sleep(1)
    assert len(m.broker.services.replicas.purgatory) == 0
    waiting = client.post_fetch({}, session=(session.id, 2), max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    producer = await m.client()
    await producer.produce("t", batch(b"a"))
    assert bases(await waiting) == {("t", 0): [0]}


@story
async def test_nobody_is_starved_in_a_session(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 5)
    for index in range(5):
        for _ in range(10):
            await client.produce("t", batch(b"v", size=1000), index)
    session = Session(client)
    offsets = {("t", index): 0 for index in range(5)}
    answer = await session.fetch(offsets, max_bytes=1000)
    seen: list[Place] = []
    for _ in range(24):
        moved = {place: found[-1] + 1 for place, found in bases(answer).items() if found}
        seen += moved
        answer = await session.fetch(moved, max_bytes=1000)
    assert sorted(seen[:5]) == sorted(seen[5:10]) == sorted(offsets)


@story
async def test_the_cost_of_a_session_does_not_grow_with_its_partitions(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10,000 partitions one changes: the fetch looks at that one."""
    client, producer = await m.client(), await m.client()
    await client.create_topic("t", 10)
    session = Session(client)
    await session.fetch({("t", index): 0 for index in range(10)})
    # What nobody has appended to is as cheap when it does not exist in this test: partitions that are the same log.
    state = m.broker.services.fetching.sessions._sessions[session.id]
    partition = m.partition("t", 1)
    for index in range(10, 10_000):
        fetched = type(next(iter(state.partitions.values())))(state, "t", (index, -1, 0, -1, 1 << 20))
        fetched.target = partition
        fetched.told = (0, 0)
        state.partitions["t", index] = fetched
    looked_at: list[int] = []
    check = type(partition).check_leader
    monkeypatch.setattr(
        type(partition), "check_leader", lambda self, epoch: looked_at.append(self.tp.partition) or check(self, epoch)
    )
    assert (await session.fetch()).responses == []
    assert looked_at == []
    await producer.produce("t", batch(b"a"), 7)
    assert bases(await session.fetch()) == {("t", 7): [0]}
    assert looked_at == [7]
    assert (await session.fetch({("t", 7): 1})).responses == []
    waiting = asyncio.ensure_future(session.fetch(max_wait_ms=LONG_MS))
    await asyncio.sleep(1)
    looked_at.clear()
    await producer.produce("t", batch(b"b"), 7)
    assert bases(await waiting) == {("t", 7): [1]}
    assert looked_at == [7]


@story
async def test_sessions_that_are_left_alone_cost_appends_nothing(m: Machine) -> None:
    client, producer = await m.client(), await m.client()
    await client.create_topic("t")
    sessions = [Session(client) for _ in range(30)]
    for session in sessions:
        await session.fetch({("t", 0): 0})
    partition = m.partition("t")
    assert len(partition.fetchers) == 30
    await producer.produce("t", batch(b"a"))
    # Each was told once. Until it asks again, it need not be told of more.
    assert len(partition.fetchers) == 0
    await producer.produce("t", batch(b"b"))
    for session in sessions:
        assert bases(await session.fetch()) == {("t", 0): [0, 1]}
        assert bases(await session.fetch({("t", 0): 2})) == {}
    assert len(partition.fetchers) == 30


@story
async def test_one_who_waits_hears_of_every_append(m: Machine) -> None:
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
    assert bases(await waiting) == {("t", 0): [0, 1], ("t", 1): [0]}
