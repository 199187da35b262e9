"""Each file of the data directory is lost or damaged, after a clean shutdown and after a kill.

A file that can be rebuilt is rebuilt, and the log reports it; no record or committed offset is lost, and retries are
stored once. Otherwise the broker refuses to start, gives the reason, and changes nothing on the disk.
"""

from collections.abc import Callable

import pytest

from kbroker.coordination.interface import CoordinationError
from kbroker.replica.logs.data_directory import ForeignDirectory
from protocol.errors import ErrorCode
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from tests.unit.replica.logs.test_compaction import commit, committed
from tests.unit.support.client import batch
from tests.unit.support.damaged_log import noise
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.test_broker import coordinator

BATCHES = 30
START = 4
SMALL = {"internal_segment_bytes": 2000, "index_interval_bytes": 200}

Damage = Callable[[bytes], bytes | None]
Files = dict[str, bytes]


def points(*lines: str, version: int = 0) -> Damage:
    return lambda _: "\n".join([str(version), str(len(lines)), *lines, ""]).encode()


ANY: dict[str, Damage] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "noise": lambda data: noise(max(len(data), 24), "noise"),
    "zeros": lambda data: bytes(max(len(data), 24)),
}
POINTS: dict[str, Damage] = {
    "too high": points("t 0 999999", "__consumer_offsets 0 999999"),
    "too low": points("t 0 1", "__consumer_offsets 0 0"),
    "negative": points("t 0 -7", "__consumer_offsets 0 -7"),
    "beyond 64 bits": points("t 0 99999999999999999999"),
    "another version": points("t 0 5", version=3),
    "of unknown topics": points("nobody 0 5", "t 77 5"),
    "twice": points("t 0 9", "t 0 2"),
    "too few": lambda _: b"0\n9\nt 0 5\n",
}
IDENTITY: dict[str, Damage] = {
    "another broker's": lambda data: data.replace(b"node.id=1", b"node.id=2"),
    "another cluster's": lambda data: data.replace(b"cluster.id=", b"cluster.id=x"),
    "another version": lambda data: data.replace(b"version=1", b"version=9"),
    "no number": lambda data: data.replace(b"node.id=1", b"node.id=one"),
}
RECOVERY, STARTS, CLEANER = (
    f"{name}-checkpoint" for name in ("recovery-point-offset", "log-start-offset", "cleaner-offset")
)


def value(number: int) -> bytes:
    return b"value %d" % number


def sent(number: int) -> bytearray:
    return batch(value(number), producer=(7, 0, number), size=100)


async def files_of_broker(m: Machine, stop: str) -> Files:
    """Return the files of a broker with a topic whose records below START were deleted, and with commits of a group."""
    client = await m.client()
    await client.create_topic("t", **SMALL)
    for number in range(BATCHES):
        assert (await client.produce("t", sent(number))).base_offset == number
    await client.delete_records("t", START)
    await coordinator(m, client)
    for offset in range(START, BATCHES):
        await commit(client, "g", offset)
    if stop == "stopped":
        await m.stop()
    else:
        await m.crash()
    return {path: bytes(m.disk.data(path)) for path in m.disk.find("") if not path.endswith("/.lock")}


async def check_nothing_lost(m: Machine, first: int = START) -> None:
    client = await m.client()
    await m.broker.services.groups.runtime.wait_until_loaded("g")
    values = await client.read("t", first)
    assert [text.rstrip(b".") for text in values] == [value(number) for number in range(first, BATCHES)]
    assert await committed(client, "g") == BATCHES - 1
    for number in (BATCHES - 5, BATCHES - 1):
        assert (await client.produce("t", sent(number))).base_offset == number, "a retry is a duplicate"
    assert (await client.produce("t", sent(BATCHES))).base_offset == BATCHES
    await commit(client, "g", BATCHES)


def is_logged(caplog: pytest.LogCaptureFixture, name: str) -> bool:
    return any(name in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("stop", ["stopped", "killed"])
@pytest.mark.parametrize("name", [RECOVERY, STARTS, CLEANER, ".kafka_cleanshutdown"])
@broker_test
async def test_damaged_checkpoints(m: Machine, name: str, stop: str, caplog: pytest.LogCaptureFixture) -> None:
    files = await files_of_broker(m, stop)
    path = f"/data/{name}"
    for kind, damage in {**ANY, **POINTS}.items():
        if (name, kind) == (STARTS, "too high"):
            continue
        caplog.clear()
        await start_on(m, {**files, path: damage(files.get(path, b"0\n1\nt 0 2\n"))})
        wrong = kind in ("empty", "half", "noise", "zeros", "negative", "another version", "too few", "beyond 64 bits")
        assert is_logged(caplog, name) == (wrong and not name.startswith(".")), kind
        first = m.partition("t").log.log_start_offset
        assert first <= START
        # If the file is lost, the first leader epoch begins there. If it is wrong, deleted records return whose
        # segments still exist.
        assert first == START or (name == STARTS and kind in ("too low", "of unknown topics", "twice"))
        await check_nothing_lost(m)
        await m.restart()
        client = await m.client()
        await m.broker.services.groups.runtime.wait_until_loaded("g")
        assert len(await client.read("t", START)) == BATCHES + 1 - START
        assert await committed(client, "g") == BATCHES
        await m.stop()


@broker_test
async def test_a_log_start_offset_beyond_the_log_is_respected(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka: a power loss may have removed the records after the deleted ones. Their offsets are not reused."""
    files = await files_of_broker(m, "killed")
    await start_on(m, {**files, f"/data/{STARTS}": points("t 0 1000")(b"")})
    client = await m.client()
    assert (await client.produce("t", batch(b"after"))).base_offset == 1000
    assert is_logged(caplog, "it ends before the log start offset 1000")


async def start_on(m: Machine, files: dict[str, bytes | None]) -> None:
    """Start a broker on a disk with only these files."""
    m.disk = type(m.disk)(m.clock, m.disk.random)
    for path, data in files.items():
        if data is not None:
            m.disk.makedirs(path.rpartition("/")[0])
            m.disk.write_atomic(path, data)
    await m.start()


async def refusal_of_start(m: Machine, files: dict[str, bytes | None], error: type[Exception]) -> str:
    """Return why the broker refuses to start, and check that it has written nothing but the lock."""
    with pytest.raises(error) as refusal:
        await start_on(m, files)
    await m.stop()
    # A valid journal may have been compacted into a snapshot.
    excluded = ("/.lock", "/data/coordination/") if error is ForeignDirectory else ("/.lock",)
    after = {path: bytes(m.disk.data(path)) for path in m.disk.find("") if not any(part in path for part in excluded)}
    before = {path: data for path, data in files.items() if data is not None}
    assert after == {path: data for path, data in before.items() if not any(part in path for part in excluded)}
    return str(refusal.value)


@pytest.mark.parametrize("stop", ["stopped", "killed"])
@broker_test
async def test_damaged_or_foreign_meta_properties(m: Machine, stop: str) -> None:
    files = await files_of_broker(m, stop)
    path = "/data/meta.properties"
    for name, damage in {**ANY, **IDENTITY}.items():
        changed = {**files, path: damage(files[path])}
        if name == "gone":
            # The coordination store knows the cluster id.
            await start_on(m, changed)
            await check_nothing_lost(m)
            await m.stop()
        else:
            reason = await refusal_of_start(m, changed, ForeignDirectory)
            assert path in reason or "/data belongs to" in reason, name


@pytest.mark.parametrize("stop", ["stopped", "killed"])
@broker_test
async def test_damaged_coordination_files(m: Machine, stop: str) -> None:
    """Topics, configs and ids cannot be rebuilt from other files."""
    files = await files_of_broker(m, stop)
    path = "/data/coordination/coordination.journal"
    data = files[path]
    middle = len(data) // 3
    for damaged in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], data[:middle] + data[middle + 9 :]):
        reason = await refusal_of_start(m, {**files, path: damaged}, CoordinationError)
        assert "damaged and others follow it" in reason
    for damaged in (noise(1000, "snapshot"), b"", data[:60]):
        changed = {**files, "/data/coordination/coordination.snapshot": damaged}
        assert "snapshot is damaged" in await refusal_of_start(m, changed, CoordinationError)


# Committed offsets.


@broker_test
async def test_commits_before_the_damage_survive(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    files = await files_of_broker(m, "killed")
    (path,) = (path for path in files if path.endswith("/__consumer_offsets-0/00000000000000000000.log"))
    data = files[path]
    size = len(data) // (BATCHES - START)
    assert len(data) == size * (BATCHES - START), "each commit is a batch of the same size"
    without = {name: data for name, data in files.items() if not name.startswith(f"/data/{RECOVERY}")}
    for commits, damaged in [
        (BATCHES - START - 1, data[:-1]),
        (BATCHES - START - 2, data[: -2 * size]),
        (BATCHES - START - 3, data[: -3 * size + 60]),
        (6, data[: 6 * size + 70] + b"\x00" + data[6 * size + 71 :]),
        (1, data[: size + 8] + b"\x55" + data[size + 9 :]),
    ]:
        caplog.clear()
        kept = {name: text for name, text in without.items() if "__consumer_offsets-0" not in name or name == path}
        await start_on(m, {**kept, path: damaged})
        client = await m.client()
        await m.broker.services.groups.runtime.wait_until_loaded("g")
        survive = len(damaged) // size if commits == len(damaged) // size else commits
        assert await committed(client, "g") == START + survive - 1
        assert is_logged(caplog, "__consumer_offsets-0") == (len(damaged) % size != 0 or survive < len(damaged) // size)
        await commit(client, "g", 77)
        await m.restart()
        await m.broker.services.groups.runtime.wait_until_loaded("g")
        assert await committed(await m.client(), "g") == 77
        await m.stop()


@broker_test
async def test_unreadable_commits_are_an_error(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """Damage below the recovery point is found when it is read."""
    files = await files_of_broker(m, "stopped")
    (path,) = (path for path in files if path.endswith("/__consumer_offsets-0/00000000000000000000.log"))
    data = bytearray(files[path])
    data[61] = 0x7F
    await start_on(m, {**files, path: bytes(data)})
    client = await m.client()
    await m.broker.services.groups.runtime.wait_until_loaded("g")
    response = await client.request(
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")]), 8, OffsetFetchResponse
    )
    assert response.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert is_logged(caplog, "__consumer_offsets-0")
    # Other partitions are served.
    assert len(await client.read("t", START)) == BATCHES - START
