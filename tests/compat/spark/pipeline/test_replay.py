"""Replays of archived topics, read back record by record with another client."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, TopicMetadata

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, TopicInfo
from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import cluster_client
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import run, sending
from kbroker.pipeline.replay.archived_rows import plan_storage
from kbroker.pipeline.replay.group_offsets import ALL_GROUPS, CommittedOffset, GroupPosition
from kbroker.pipeline.replay.plan import ReplayRequest, list_plans, load_plan
from kbroker.pipeline.replay.preparation import ReplayContext, prepare_replay
from kbroker.pipeline.replay.routing import murmur2, target_names
from kbroker.pipeline.replay.run import create_plan, execute_plan
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.sending import Pacing, SpeedLimit
from tests.compat.spark.helpers import Topics
from tests.compat.spark.pipeline.processes import Command, quick_jvm
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("replay")]

ORIGIN_HEADERS = ("kbroker.origin.topic", "kbroker.origin.partition", "kbroker.origin.offset", "kbroker.replay")
HOUR_MS = 3_600_000
YEAR_2014_MS = 1_388_534_400_000
# Kills of the command, which starts anew after each; the last one kills the broker too.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "1"))
KILLED_RECORDS = 12_000 + 8_000 * KILLS


def random_records(count: int, partitions: int, begin_ms: int, seed: int = 7) -> list[dict[str, Any]]:
    """Return records with null and empty keys and values, headers with null values, and timestamps that go back."""
    dice = random.Random(seed)
    records = []
    for number in range(count):
        records.append(
            {
                "partition": dice.randrange(partitions),
                "key": dice.choice([None, b"", b"k%d" % (number % 5), b"\xff\xfe"]),
                "value": dice.choice([None, b"", b"value %d" % number, b"x" * dice.randrange(400)]),
                "headers": dice.choice(
                    [[], [("a", b"1")], [("a", b""), ("a", None), ("b", b"\x00\xff")], [("number", b"%d" % number)]]
                ),
                "timestamp": begin_ms + number * 10 - dice.choice([0, 0, 500]),
            }
        )
    return records


def archive_topics(
    topics: Topics,
    directory: Path,
    partitions: Mapping[str, int],
    configs: Mapping[str, str] | None = None,
    groups: Mapping[str, Mapping[int, int]] | None = None,
) -> Archive:
    """Archive the current records of some topics, given with their partition counts, in two commits each."""
    archive = create_archive(str(directory), {})
    for name, count in partitions.items():
        messages = topics.read(name)
        table = archive.create_table(name)
        state = replace(table.state, topic=TopicInfo("", count, configs or {}), groups=groups or {})
        middle = len(messages) // 2
        for part in (messages[:middle], messages[middle:]):
            covered = [
                (number, OffsetRange(min(offsets), max(offsets) + 1))
                for number in range(count)
                if (offsets := [m.offset() for m in part if m.partition() == number])
            ]
            state = state.with_covered(covered)
            state = table.commit("append", state, write_rows(table.write_target(), [as_rows(part)]))
    return archive


def as_rows(messages: Sequence[Any]) -> pa.RecordBatch:
    """Return messages as rows of a table."""
    headers = [[{"key": name, "value": value} for name, value in m.headers() or []] for m in messages]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.record_batch(
        {
            "partition": pa.array([m.partition() for m in messages], pa.int32()),
            "offset": pa.array([m.offset() for m in messages], pa.int64()),
            "timestamp": pa.array([1000 * m.timestamp()[1] for m in messages], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * len(messages), pa.int32()),
            "key": pa.array([m.key() for m in messages], pa.binary()),
            "value": pa.array([m.value() for m in messages], pa.binary()),
            "headers": pa.array([each or None for each in headers], pa.list_(header)),
        }
    )


def content(message: Any) -> tuple[Any, ...]:
    """Return what a replay keeps of a record."""
    headers = [(name, value) for name, value in message.headers() or [] if name not in ORIGIN_HEADERS]
    return message.partition(), message.key(), message.value(), headers, message.timestamp()


def context_for(spark: Any, archive: Archive, bootstrap: str) -> ReplayContext:
    storage = plan_storage(archive)
    return ReplayContext(spark, archive, storage, cluster_client(bootstrap), bootstrap, lambda _: None, patience_s=20)


def request_for(topics: Sequence[str], to: str | None = None, **options: Any) -> ReplayRequest:
    request_options = {name: options.pop(name) for name in list(options) if name not in Selection.__dataclass_fields__}
    return ReplayRequest(Selection(tuple(topics), **options), target_names(topics, to, None), **request_options)


def replay(context: ReplayContext, request: ReplayRequest) -> Any:
    return execute_plan(context, create_plan(context, prepare_replay(context, request, {})), SpeedLimit())


def test_a_topic_is_replayed_record_by_record(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(3)
    topics.fill(source, random_records(3000, 3, begin_ms))
    original = topics.read(source)
    archive = archive_topics(topics, tmp_path / "archive", {source: 3}, {"max.message.bytes": "600000"})
    # into a topic of the same name, after the original is deleted: it is created like it
    topics._admin.delete_topics([source])[source].result(DEADLINE_S)
    eventually(lambda: source not in topics._admin.list_topics(timeout=DEADLINE_S).topics, "the topic is deleted")
    context = context_for(spark, archive, bootstrap)
    summary = replay(context, request_for([source]))
    assert (summary.plan.rows, summary.sent) == (3000, 3000)
    copies = topics.read(source)
    assert [content(m) for m in copies] == [content(m) for m in original]
    for old, new in zip(original, copies, strict=True):
        assert new.headers()[-4:] == [
            ("kbroker.origin.topic", source.encode()),
            ("kbroker.origin.partition", b"%d" % old.partition()),
            ("kbroker.origin.offset", b"%d" % old.offset()),
            ("kbroker.replay", summary.plan.id.encode()),
        ]
    assert context.cluster.topic(source).leaders.keys() == {0, 1, 2}
    # and into a topic of another name, without origin headers
    other = unique("other")
    replay(context, request_for([source], other, origin_headers=False))
    assert [(content(m), m.headers() or []) for m in topics.read(other)] == [
        (content(m), m.headers() or []) for m in original
    ]
    topics.created.append(other)
    with pytest.raises(PipelineError, match=f"topic {other} is not empty: partition 0 ends at"):
        prepare_replay(context, request_for([source], other), {})


def test_two_simultaneous_commands_are_one_replay(spark, topics: Topics, bootstrap, tmp_path, monkeypatch):
    source, target = topics.create(), topics.create()
    topics.fill(source, random_records(300, 1, time.time_ns() // 1_000_000 - HOUR_MS))
    context = context_for(spark, archive_topics(topics, tmp_path / "archive", {source: 1}), bootstrap)
    prepared = [prepare_replay(context, request_for([source], target), {}) for _ in range(3)]
    first = create_plan(context, prepared[0])
    with monkeypatch.context() as patch:  # the second one looked for plans before the first one stored its own
        patch.setattr(run, "find_unfinished", lambda *_: None)
        assert create_plan(context, prepared[1]) == first
    # a record that is erased meanwhile would move all records after it
    table = context.archive.table(source)
    table.commit("erase", replace(table.state, gaps=(Gap(0, 7, 8, "erased"),)))
    with pytest.raises(PipelineError, match=f"records of topic {source} were deleted from the archive since it was"):
        execute_plan(context, first, SpeedLimit())
    table.commit("repair", replace(table.state, gaps=()))
    execute_plan(context, first, SpeedLimit())
    with pytest.raises(PipelineError, match=f"topic {target} is not empty"):
        create_plan(context, prepared[2])
    assert len(topics.read(target)) == 300


def test_selections(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(2)
    topics.fill(source, random_records(1000, 2, begin_ms, seed=3))
    original = topics.read(source)
    archive = archive_topics(topics, tmp_path / "archive", {source: 2})
    context = context_for(spark, archive, bootstrap)
    middle = begin_ms + 5000
    cases: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
        ({"from_ms": middle, "until_ms": middle + 2000}, lambda m: middle <= m.timestamp()[1] < middle + 2000),
        ({"offsets": ((1, 10, 30), (1, 100, None))}, lambda m: m.partition() == 1 and in_ranges(m.offset())),
        ({"key": "k3", "partitions": (0,)}, lambda m: m.key() == b"k3" and m.partition() == 0),
        ({"key_regex": "^k[12]$"}, lambda m: m.key() in (b"k1", b"k2")),
        ({"headers": (("a", "1"),)}, lambda m: ("a", b"1") in (m.headers() or [])),
        ({"headers": (("b", None), ("a", ""))}, lambda m: "b" in dict(m.headers() or [])),
    ]
    for number, (selection, is_selected) in enumerate(cases):
        target = topics.create(2, name=unique(f"case-{number}"))
        summary = replay(context, request_for([source], target, **selection))
        expected = [content(m) for m in original if is_selected(m)]
        assert [content(m) for m in topics.read(target)] == expected
        assert summary.sent == len(expected) > 0
    with pytest.raises(PipelineError, match="no record of the archive matches the selection"):
        prepare_replay(context, request_for([source], "never", key="no such key"), {})
    with pytest.raises(PipelineError, match="no partition of the archive has records that match the selection"):
        prepare_replay(context, request_for([source], "never", partitions=(7,)), {})
    with pytest.raises(PipelineError, match=r"'\(' is not a Java regular expression"):
        prepare_replay(context, request_for([source], "never", key_regex="("), {})
    check_partitioning_by_key(context, topics, source, original)


def in_ranges(offset):
    return 10 <= offset < 30 or offset >= 100


def check_partitioning_by_key(context, topics, source, original):
    target = topics.create(1, name=unique("few"))
    with pytest.raises(PipelineError, match=f"topic {target} has 1 partition, but {source}-1 has records to replay"):
        prepare_replay(context, request_for([source], target), {})
    target = topics.create(5, name=unique("by-key"))
    replay(context, request_for([source], target, by_key=True))
    copies = topics.read(target)
    assert sorted(map(repr, [content(m)[1:] for m in copies])) == sorted(map(repr, [content(m)[1:] for m in original]))
    for m in copies:
        origin = int(dict(m.headers())["kbroker.origin.partition"])
        assert m.partition() == (origin % 5 if m.key() is None else (murmur2(m.key()) & 0x7FFFFFFF) % 5)
    # each target keeps the order of a source partition's records
    for target_partition in range(5):
        for origin in (b"0", b"1"):
            in_target = [dict(m.headers()) for m in copies if m.partition() == target_partition]
            offsets = [int(h["kbroker.origin.offset"]) for h in in_target if h["kbroker.origin.partition"] == origin]
            assert offsets == sorted(offsets)


def test_kills_of_the_command_and_the_broker_lose_and_duplicate_nothing(broker, spark, tmp_path):
    topics = Topics(broker.bootstrap, "killed")
    source, target = topics.create(3, name="source"), "target"
    # Timestamps in 2014: the broker soon forgets the producer state of such records.
    topics.fill(
        source, [{"partition": n % 3, "value": b"%d" % n, "timestamp": YEAR_2014_MS + n} for n in range(KILLED_RECORDS)]
    )
    archive = archive_topics(topics, tmp_path / "archive", {source: 3})
    # At this rate it takes 20 s: a busy machine may see only seconds later that enough records have arrived.
    command = Command(
        tmp_path / "replay", "replay", archive.location, source, "--to", target, "--rate", "1000",
        "--config", "retention.ms=-1", "--bootstrap", broker.bootstrap, "--master", "local[2]", "--conf", quick_jvm(),
    )  # fmt: skip
    dice = random.Random(1)
    kills = [("command", "broker", "both")[number % 3] for number in range(KILLS - 1)] + ["both"]
    for process in kills:
        kill_after(process, broker, command, lambda: count_records(topics, target), dice.randrange(1000, 3000))
    command.kill()
    (plan,) = [plan for plan in list_plans(plan_storage(archive)) if plan.done_ms is None]
    before = count_records(topics, target)
    assert 0 < before < KILLED_RECORDS
    # This process sends the remaining records, and the broker is killed once more.
    killer = threading.Thread(
        target=lambda: kill_after("broker", broker, None, lambda: count_records(topics, target), before + 1)
    )
    killer.start()
    try:
        summary = execute_plan(context_for(spark, archive, broker.bootstrap), plan, SpeedLimit(rate=8000))
    finally:
        killer.join()
    assert summary.plan.rows == KILLED_RECORDS
    assert broker.starts == 2 + sum(process != "command" for process in kills)
    assert 0 < summary.sent <= KILLED_RECORDS - before
    copies = topics.read(target)
    for partition in range(3):
        values = [int(m.value()) for m in copies if m.partition() == partition]
        assert values == list(range(partition, KILLED_RECORDS, 3))


def kill_after(process, broker, command, count, additional):
    """Wait for `additional` records, then kill the command, the broker, or both (kill -9); restart the broker."""
    if command is not None and not command.started:
        command.start()
    before = count() if command is not None else 0
    eventually(
        lambda: (command is None or command.running()) and count() >= before + additional,
        "records arrive",
        progress=count,
    )
    if process in ("command", "both"):
        command.kill()
    if process in ("broker", "both"):
        broker.restart()


def count_records(topics: Topics, name: str) -> int:
    """Return how many records a topic has, 0 if it does not exist yet."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": "count"})
    try:
        partitions = consumer.list_topics(timeout=DEADLINE_S).topics.get(name, TopicMetadata()).partitions or {}
        return sum(
            consumer.get_watermark_offsets(ConfluentPartition(name, p), timeout=DEADLINE_S)[1] for p in partitions
        )
    except KafkaException:
        return 0
    finally:
        consumer.close()


def test_groups_continue_at_their_archived_offsets(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(2)
    topics.fill(source, random_records(400, 2, begin_ms))
    original = topics.read(source)
    group = unique("group")
    archive = archive_topics(topics, tmp_path / "archive", {source: 2}, groups={group: {0: 50, 1: 10_000}})
    context = context_for(spark, archive, bootstrap)
    target = topics.create(2, name=unique("target"))
    topics.fill(target, [{"value": b"before", "partition": 0}] * 3)
    request = request_for(
        [source], target, from_ms=begin_ms + 1000, append=True, groups=(ALL_GROUPS,), group_prefix="new-"
    )
    prepared = prepare_replay(context, request, {})
    selected = [m for m in original if m.timestamp()[1] >= begin_ms + 1000]
    committed = sum(m.partition() == 0 and m.offset() < 50 for m in selected)
    in_partition_1 = sum(m.partition() == 1 for m in selected)
    assert [(p.target.partition, p.position) for p in prepared.group_positions()] == [
        (0, committed),
        (1, in_partition_1),
    ]
    summary = execute_plan(context, create_plan(context, prepared), SpeedLimit())
    expected = {0: 3 + committed, 1: in_partition_1}
    assert {at.partition: offset for at, offset in summary.groups[f"new-{group}"].items()} == expected
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request_offsets = [ConsumerGroupTopicPartitions(f"new-{group}")]
    listed = admin.list_consumer_group_offsets(request_offsets)[f"new-{group}"].result(DEADLINE_S).topic_partitions
    assert {p.partition: p.offset for p in listed if p.offset >= 0} == expected
    check_merged_partitions_are_not_skipped(context, topics, source, original)
    # a group with members is not changed
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.subscribe([source])
        eventually(lambda: consumer.poll(0.2) is None and consumer.assignment(), "the member has partitions")
        with pytest.raises(PipelineError, match=f"group {group} has members"):
            prepare_replay(context, request_for([source], "never", groups=(group,)), {})
    finally:
        consumer.close()


def check_merged_partitions_are_not_skipped(context, topics, source, original):
    """Check that a group with an offset in one of two merged partitions continues before all records of the other."""
    target = topics.create(1, name=unique("one"))
    group = unique("partly")
    prepared = prepare_replay(context, request_for([source], target, by_key=True), {})
    prepared = replace(prepared, committed=(CommittedOffset(group, TopicPartition(source, 0), 150),))
    merged, latest = [], {0: 0, 1: 0}
    for m in original:
        latest[m.partition()] = max(latest[m.partition()], m.timestamp()[1])
        merged.append((latest[m.partition()], m.partition(), m.offset()))
    first = next(i for i, (_, partition, offset) in enumerate(sorted(merged)) if partition == 1 or offset >= 150)
    assert prepared.group_positions() == [GroupPosition(group, TopicPartition(target, 0), first)]


def test_speed_and_rate(spark, topics: Topics, bootstrap, tmp_path, monkeypatch):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(3)
    topics.fill(source, [{"partition": n % 3, "value": b"%d" % n, "timestamp": begin_ms + n * 20} for n in range(300)])
    archive = archive_topics(topics, tmp_path / "archive", {source: 3})
    context = context_for(spark, archive, bootstrap)
    pacings: list[Pacing] = []

    def record_pacing(**fields: Any) -> Pacing:
        pacings.append(Pacing(**fields))
        return pacings[-1]

    monkeypatch.setattr(sending, "Pacing", record_pacing)
    arrivals = arrival_times(context, topics, source, SpeedLimit(speed=2.0))
    # 6 s of records in 3 s: all partitions by one clock, no record before its time
    begin_s, origin_ms = pacings[0].begin_s, pacings[0].origin_ms
    assert origin_ms == begin_ms
    assert [n for n, at in arrivals.items() if at < begin_s * 1000 + n * 10 - 2] == []
    arrivals = arrival_times(context, topics, source, SpeedLimit(rate=150))
    rates = pacings[1].rates
    assert rates is not None
    assert sorted(set(rates.values())) == pytest.approx([50, 100])  # of tasks with one and with two partitions
    assert max(arrivals.values()) - min(arrivals.values()) > 1700


def arrival_times(context: ReplayContext, topics: Topics, source: str, limit: SpeedLimit) -> dict[int, int]:
    """Replay numbered records and return when each arrived, in milliseconds of the broker's clock."""
    target = topics.create(3, name=unique("paced"))
    plan = create_plan(context, prepare_replay(context, request_for([source], target), {}))
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", target, incremental_configs=[entry])
    topics._admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    with pytest.raises(PipelineError, match="replaces timestamps by the time of the append"):
        prepare_replay(context, request_for([source], target), {})
    execute_plan(context, plan, limit)
    arrivals = {int(m.value()): m.timestamp()[1] for m in topics.read(target)}
    assert sorted(arrivals) == list(range(300))
    return arrivals


def test_the_command(spark, topics: Topics, bootstrap, tmp_path):
    source = topics.create(1)
    topics.fill(source, [{"value": b"%d" % n, "timestamp": YEAR_2014_MS + n} for n in range(50)])
    archive = archive_topics(topics, tmp_path / "archive", {source: 1})
    # a new topic would have the broker's default retention
    (warning,) = prepare_replay(context_for(spark, archive, bootstrap), request_for([source], "never"), {}).warnings
    assert warning.startswith("topic never deletes records that are older than retention.ms=")
    target = topics.create(1, {"retention.ms": "-1"}, name=unique("target"))
    from typer.testing import CliRunner

    from kbroker.cli.app import app

    command = ["replay", archive.location, source, "--to", target, "-b", bootstrap, "--json"]
    runner = CliRunner()
    dry_run = json.loads(runner.invoke(app, [*command, "--dry-run"]).stdout)
    assert (dry_run["records"], dry_run["targets"][0]["topic"]) == (50, target)
    assert topics.read(target) == []
    summary = json.loads(runner.invoke(app, command).stdout)
    assert (summary["records"], summary["sent"]) == (50, 50)
    assert [m.value() for m in topics.read(target)] == [b"%d" % n for n in range(50)]
    resume = ["replay", archive.location, "--resume", summary["replay"], "-b", bootstrap, "--json"]
    resumed = json.loads(runner.invoke(app, resume).stdout)
    assert (resumed["records"], resumed["sent"]) == (50, 0)
    assert load_plan(plan_storage(archive), summary["replay"]).done_ms is not None
