"""Replays of archived topics, read back record by record by another client."""

import json
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, TopicMetadata

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import CoveredRange, ManifestCommit, TopicInfo
from kbroker.pipeline.archive.staging.data_file_writer import staged
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import groups, job, plan
from kbroker.pipeline.replay.connection import Brokers
from kbroker.pipeline.replay.draft import World, drafted
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed, Placed
from kbroker.pipeline.replay.job import Limit
from kbroker.pipeline.replay.plan import Request
from kbroker.pipeline.replay.routing import murmur2, target_names
from kbroker.pipeline.replay.run import begin, go_on
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.task import Paced
from kbroker.pipeline.storage.local import LocalStorage
from tests.compat.spark.helpers import Topics, load
from tests.compat.spark.pipeline.processes import SMALL, Command
from tests.compat.support import eventually, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("replay")]

ORIGIN = ("kbroker.origin.topic", "kbroker.origin.partition", "kbroker.origin.offset", "kbroker.replay")
HOUR_MS = 3_600_000
THEN_MS = 1_388_534_400_000
# Of the command, each of which costs it a new start; one more of the broker comes after them.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "1"))
KILLED = 12_000 + 8_000 * KILLS


def variety(count: int, partitions: int, begin_ms: int, seed: int = 7) -> list[dict[str, Any]]:
    """Records of every kind: null and empty keys and values, headers with null values, times that go back."""
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


def archived(spark: Any, directory: Path, bootstrap: str, names: Mapping[str, int], **more: Any) -> Archive:
    """An archive of what the topics hold now; `names` with their partitions. `more`: of the commit."""
    archive = Archive.open_or_create(LocalStorage(str(directory)), {})
    rows = load(spark.read, bootstrap, ",".join(names), includeHeaders="true")
    ends = {
        (r.topic, r.partition): r.end
        for r in rows.groupBy("topic", "partition")
        .agg({"offset": "max"})
        .withColumnRenamed("max(offset)", "end")
        .collect()
    }
    covered = tuple(CoveredRange(topic, partition, 0, end + 1) for (topic, partition), end in sorted(ends.items()))
    topics = {name: TopicInfo("", partitions, more.pop("configs", {})) for name, partitions in names.items()}
    with staged(spark, archive) as files:
        added = files.write(rows)
        files.publish()
        commit = ManifestCommit(
            "append", time.time_ns() // 1_000_000, add=added, covered=covered, topics=topics, **more
        )
        archive.commit(lambda state: commit)
    return archive


def told(message: Any) -> tuple[Any, ...]:
    """What a replay keeps of a record."""
    headers = [(name, value) for name, value in message.headers() or [] if name not in ORIGIN]
    return message.partition(), message.key(), message.value(), headers, message.timestamp()


def world_of(spark: Any, archive: Archive, bootstrap: str, notes: list[str] | None = None) -> World:
    return World(
        spark, archive, Brokers(bootstrap), bootstrap, (notes if notes is not None else []).append, patience_s=20
    )


def request_for(topics: Sequence[str], to: str | None = None, **how: Any) -> Request:
    of_request = {name: how.pop(name) for name in list(how) if name not in Selection.__dataclass_fields__}
    return Request(Selection(tuple(topics), **how), target_names(topics, to, None), **of_request)


def replayed(world: World, request: Request, limit: Limit = Limit()) -> Any:  # noqa: B008 it is never changed
    return go_on(world, begin(world, drafted(world, request, {})), limit)


def test_a_topic_comes_back_record_by_record(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(3)
    topics.fill(source, variety(3000, 3, begin_ms))
    original = topics.read(source)
    archive = archived(spark, tmp_path / "archive", bootstrap, {source: 3}, configs={"max.message.bytes": "600000"})
    # the original name, after the topic is gone: created as it was
    topics._admin.delete_topics([source])[source].result(20)
    eventually(lambda: source not in topics._admin.list_topics(timeout=10).topics, "the topic is deleted")
    world = world_of(spark, archive, bootstrap)
    summary = replayed(world, request_for([source]))
    assert (summary.rows, summary.sent) == (3000, 3000)
    copies = topics.read(source)
    assert [told(m) for m in copies] == [told(m) for m in original]
    for old, new in zip(original, copies, strict=True):
        assert new.headers()[-4:] == [
            ("kbroker.origin.topic", source.encode()),
            ("kbroker.origin.partition", b"%d" % old.partition()),
            ("kbroker.origin.offset", b"%d" % old.offset()),
            ("kbroker.replay", summary.plan.id.encode()),
        ]
    assert world.brokers.topic(source).leaders.keys() == {0, 1, 2}
    # and without those headers, into another name
    other = unique("other")
    replayed(world, request_for([source], other, origin_headers=False))
    assert [(told(m), m.headers() or []) for m in topics.read(other)] == [
        (told(m), m.headers() or []) for m in original
    ]
    topics._made.append(other)
    with pytest.raises(PipelineError, match=f"topic {other} is not empty: partition 0 ends at"):
        drafted(world, request_for([source], other), {})


def test_the_same_replay_begun_twice_at_once_comes_once(spark, topics: Topics, bootstrap, tmp_path, monkeypatch):
    source, out = topics.create(), topics.create()
    topics.fill(source, variety(300, 1, time.time_ns() // 1_000_000 - HOUR_MS))
    world = world_of(spark, archived(spark, tmp_path / "archive", bootstrap, {source: 1}), bootstrap)
    drafts = [drafted(world, request_for([source], out), {}) for _ in range(3)]
    first = begin(world, drafts[0])
    with monkeypatch.context() as blind:  # both have looked before either has written its plan down
        blind.setattr(plan, "unfinished", lambda *_: None)
        assert begin(world, drafts[1]) == first
    go_on(world, first, Limit())
    with pytest.raises(PipelineError, match=f"topic {out} is not empty"):
        begin(world, drafts[2])
    assert len(topics.read(out)) == 300


def test_selections(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(2)
    topics.fill(source, variety(1000, 2, begin_ms, seed=3))
    original = topics.read(source)
    archive = archived(spark, tmp_path / "archive", bootstrap, {source: 2})
    world = world_of(spark, archive, bootstrap)

    def wanted(keep):
        return [told(m) for m in original if keep(m)]

    middle = begin_ms + 5000
    cases = [
        ({"from_ms": middle, "until_ms": middle + 2000}, lambda m: middle <= m.timestamp()[1] < middle + 2000),
        ({"offsets": ((1, 10, 30), (1, 100, None))}, lambda m: m.partition() == 1 and in_ranges(m.offset())),
        ({"key": "k3", "partitions": (0,)}, lambda m: m.key() == b"k3" and m.partition() == 0),
        ({"key_regex": "^k[12]$"}, lambda m: m.key() in (b"k1", b"k2")),
        ({"headers": (("a", "1"),)}, lambda m: ("a", b"1") in (m.headers() or [])),
        ({"headers": (("b", None), ("a", ""))}, lambda m: "b" in dict(m.headers() or [])),
    ]  # fmt: skip
    for number, (selection, keep) in enumerate(cases):
        target = topics.create(2, name=unique(f"case-{number}"))
        summary = replayed(world, request_for([source], target, **selection))
        assert [told(m) for m in topics.read(target)] == wanted(keep)
        assert summary.sent == len(wanted(keep)) > 0
    with pytest.raises(PipelineError, match="nothing of the archive is selected"):
        drafted(world, request_for([source], "never", key="no such key"), {})
    with pytest.raises(PipelineError, match=r"'\(' is no regular expression"):
        drafted(world, request_for([source], "never", key_regex="("), {})
    by_key(world, topics, source, original)


def in_ranges(offset):
    return 10 <= offset < 30 or offset >= 100


def by_key(world, topics, source, original):
    target = topics.create(1, name=unique("few"))
    with pytest.raises(PipelineError, match=f"topic {target} has 1 partition, but records of {source}-1"):
        drafted(world, request_for([source], target), {})
    target = topics.create(5, name=unique("by-key"))
    replayed(world, request_for([source], target, by_key=True))
    copies = topics.read(target)
    assert sorted(map(repr, [told(m)[1:] for m in copies])) == sorted(map(repr, [told(m)[1:] for m in original]))
    for m in copies:
        origin = int(dict(m.headers())["kbroker.origin.partition"])
        assert m.partition() == (origin % 5 if m.key() is None else (murmur2(m.key()) & 0x7FFFFFFF) % 5)
    # of one source partition, offsets still go up in each target
    for target_partition in range(5):
        for origin in (b"0", b"1"):
            mine = [dict(m.headers()) for m in copies if m.partition() == target_partition]
            offsets = [int(h["kbroker.origin.offset"]) for h in mine if h["kbroker.origin.partition"] == origin]
            assert offsets == sorted(offsets)


def test_kills_of_replayer_and_broker_double_and_lose_nothing(broker, spark, tmp_path):
    topics = Topics(broker.bootstrap, "killed")
    source, target = topics.create(3, name="source"), "target"
    # in 2014: the broker forgets such producers quickly
    topics.fill(source, [{"partition": n % 3, "value": b"%d" % n, "timestamp": THEN_MS + n} for n in range(KILLED)])
    archive = archived(spark, tmp_path / "archive", broker.bootstrap, {source: 3})
    command = Command(
        tmp_path / "replayer", "replay", archive.storage.root, source, "--to", target, "--rate", "4000",
        "--config", "retention.ms=-1", "--bootstrap", broker.bootstrap, "--master", "local[2]", "--conf", SMALL[0],
    )  # fmt: skip
    dice = random.Random(1)
    kills = [("replayer", "broker", "both")[number % 3] for number in range(KILLS - 1)] + ["both"]
    for kill in kills:
        killed(kill, broker, command, lambda: arrived(topics, target), dice.randrange(1000, 3000))
    command.kill()
    (made,) = [one for one in plan.plans(archive.storage) if one.done_ms is None]
    before = arrived(topics, target)
    assert 0 < before < KILLED
    # the rest in this process, and the broker is killed once more
    watcher = threading.Thread(
        target=lambda: killed("broker", broker, None, lambda: arrived(topics, target), before + 1)
    )
    watcher.start()
    try:
        summary = go_on(world_of(spark, archive, broker.bootstrap), made, Limit(rate=8000))
    finally:
        watcher.join()
    assert summary.rows == KILLED
    assert broker.starts == 2 + sum(kill != "replayer" for kill in kills)
    assert 0 < summary.sent <= KILLED - before
    copies = topics.read(target)
    for partition in range(3):
        assert [int(m.value()) for m in copies if m.partition() == partition] == list(range(partition, KILLED, 3))


def killed(what, broker, command, count, more):
    """Once so many records have arrived, kill -9 of the replayer, the broker, or both; the broker comes back."""
    if command is not None and not command.started:
        command.start()
    before = count() if command is not None else 0
    eventually(lambda: (command is None or command.running()) and count() >= before + more, "records arrive", 120)
    if what in ("replayer", "both"):
        command.kill()
    if what in ("broker", "both"):
        broker.restart()


def arrived(topics: Topics, name: str) -> int:
    """How many records a topic has; 0 where it is not there, or just being created."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": "looks"})
    try:
        partitions = consumer.list_topics(timeout=20).topics.get(name, TopicMetadata()).partitions or {}
        return sum(consumer.get_watermark_offsets(ConfluentPartition(name, p), timeout=20)[1] for p in partitions)
    except KafkaException:
        return 0
    finally:
        consumer.close()


def test_groups_stand_where_they_stood(spark, topics: Topics, bootstrap, tmp_path):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(2)
    topics.fill(source, variety(400, 2, begin_ms))
    original = topics.read(source)
    group = unique("group")
    offsets = {group: {source: {0: 50, 1: 10_000}}}
    archive = archived(spark, tmp_path / "archive", bootstrap, {source: 2}, groups=offsets)
    world = world_of(spark, archive, bootstrap)
    target = topics.create(2, name=unique("target"))
    topics.fill(target, [{"value": b"before", "partition": 0}] * 3)
    request = request_for(
        [source], target, from_ms=begin_ms + 1000, append=True, groups=(groups.ALL,), group_prefix="new-"
    )
    draft = drafted(world, request, {})
    chosen = [m for m in original if m.timestamp()[1] >= begin_ms + 1000]
    before = sum(m.partition() == 0 and m.offset() < 50 for m in chosen)
    assert [(p.target.partition, p.position) for p in draft.places(world)] == [
        (0, before), (1, sum(m.partition() == 1 for m in chosen))
    ]  # fmt: skip
    summary = go_on(world, begin(world, draft), Limit())
    wanted = {0: 3 + before, 1: sum(m.partition() == 1 for m in chosen)}
    assert {one.partition: at for one, at in summary.groups[f"new-{group}"].items()} == wanted
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(f"new-{group}")]
    listed = admin.list_consumer_group_offsets(asked)[f"new-{group}"].result(20).topic_partitions
    assert {p.partition: p.offset for p in listed if p.offset >= 0} == wanted
    never_skipped(world, topics, source, original)
    # whoever is in a group keeps it
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.subscribe([source])
        eventually(lambda: consumer.poll(0.2) is None and consumer.assignment(), "the member has partitions")
        with pytest.raises(PipelineError, match=f"group {group} has members"):
            drafted(world, request_for([source], "never", groups=(group,)), {})
    finally:
        consumer.close()


def never_skipped(world, topics, source, original):
    """Where partitions meet, a group that had committed of one of them is before all records of the other."""
    target = topics.create(1, name=unique("one"))
    group = unique("partly")
    draft = drafted(world, request_for([source], target, by_key=True), {})
    draft = replace(draft, committed=(Committed(group, TopicPartition(source, 0), 150),))
    merged, latest = [], {0: 0, 1: 0}
    for m in original:
        latest[m.partition()] = max(latest[m.partition()], m.timestamp()[1])
        merged.append((latest[m.partition()], m.partition(), m.offset()))
    before = next(i for i, (_, partition, offset) in enumerate(sorted(merged)) if partition == 1 or offset >= 150)
    assert draft.places(world) == [Placed(group, Target(target, 0), before)]


def test_speed_and_rate(spark, topics: Topics, bootstrap, tmp_path, monkeypatch):
    begin_ms = time.time_ns() // 1_000_000 - HOUR_MS
    source = topics.create(3)
    topics.fill(source, [{"partition": n % 3, "value": b"%d" % n, "timestamp": begin_ms + n * 20} for n in range(300)])
    archive = archived(spark, tmp_path / "archive", bootstrap, {source: 3})
    world = world_of(spark, archive, bootstrap)
    paced = []
    monkeypatch.setattr(job, "Paced", lambda **how: paced.append(Paced(**how)) or paced[-1])
    arrivals = timed(world, topics, source, Limit(speed=2.0))
    # 6 s of records in 3 s, all partitions by one clock, and none before its time
    begin_s, origin_ms = paced[0].begin_s, paced[0].origin_ms
    assert origin_ms == begin_ms
    assert [n for n, at in arrivals.items() if at < begin_s * 1000 + n * 10 - 2] == []
    arrivals = timed(world, topics, source, Limit(rate=150))
    assert sorted(set(paced[1].rates.values())) == pytest.approx([50, 100])  # tasks of one and of two partitions
    assert max(arrivals.values()) - min(arrivals.values()) > 1700


def timed(world: World, topics: Topics, source: str, limit: Limit) -> dict[int, int]:
    """When each number of a replay arrived, in ms: the target's own clock tells, once the replay is planned."""
    target = topics.create(3, name=unique("paced"))
    made = begin(world, drafted(world, request_for([source], target), {}))
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", target, incremental_configs=[entry])
    topics._admin.incremental_alter_configs([resource])[resource].result(20)
    with pytest.raises(PipelineError, match="gives records the time of their arrival"):
        drafted(world, request_for([source], target), {})
    go_on(world, made, limit)
    arrivals = {int(m.value()): m.timestamp()[1] for m in topics.read(target)}
    assert sorted(arrivals) == list(range(300))
    return arrivals


def test_the_command(spark, topics: Topics, bootstrap, tmp_path):
    source = topics.create(1)
    topics.fill(source, [{"value": b"%d" % n, "timestamp": 1_388_534_400_000 + n} for n in range(50)])
    archive = archived(spark, tmp_path / "archive", bootstrap, {source: 1})
    # a new topic would have the broker's own retention
    (warning,) = drafted(world_of(spark, archive, bootstrap), request_for([source], "never"), {}).warnings
    assert warning.startswith("topic never removes records that are older than retention.ms=")
    target = topics.create(1, {"retention.ms": "-1"}, name=unique("target"))
    from typer.testing import CliRunner

    from kbroker.cli.app import app

    common = ["replay", archive.storage.root, source, "--to", target, "-b", bootstrap, "--json"]
    runner = CliRunner()
    dry = runner.invoke(app, [*common, "--dry-run"])
    found = json.loads(dry.stdout)
    assert (found["records"], found["targets"][0]["topic"]) == (50, target)
    assert topics.read(target) == []
    done = json.loads(runner.invoke(app, common).stdout)
    assert (done["records"], done["sent"]) == (50, 50)
    assert [m.value() for m in topics.read(target)] == [b"%d" % n for n in range(50)]
    again = json.loads(
        runner.invoke(
            app, ["replay", archive.storage.root, "--resume", done["replay"], "-b", bootstrap, "--json"]
        ).stdout
    )
    assert (again["records"], again["sent"]) == (50, 0)
    assert plan.load(archive.storage, done["replay"]).done_ms is not None
