"""Log files of kbroker, read by Kafka's own DumpLogSegments after a clean stop."""

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import zip_longest

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_tools.log_facts import facts_of_kafka, facts_of_kbroker
from tests.compat.support import DEADLINE_S, eventually, need_own_broker, running_broker

# With --deep-iteration the tool prints "-1 is followed by" the base offset of each segment but the first.
COMPLAINT = re.compile(
    r"Mismatches in|^ *\d+ is followed by|out of order|Found timestamp mismatch|Index timestamp|isvalid: false"
    r"|invalid|corrupt|Exception|sanity check failed",
    re.IGNORECASE | re.MULTILINE,
)
# In each of two topics with several segments; in the partitions of the others.
RECORDS, FEW = 9_000, 1_000
DELETED = 6_000


def produce(bootstrap, topic, count, partition, **settings):
    many_batches = {"linger.ms": 5, "batch.num.messages": 50}
    sender = Producer({"bootstrap.servers": bootstrap, **many_batches, **settings})
    failed = []
    for n in range(count):
        sender.produce(
            topic,
            f"value {n} ".encode() * 40,
            key=str(n % 50).encode(),
            partition=partition,
            headers=[("n", str(n).encode())],
            on_delivery=lambda error, _: error and failed.append(error),
        )
        sender.poll(0)
    assert sender.flush(DEADLINE_S) == 0
    assert not failed


def dump(jvm, files, *options):
    """Return the output of DumpLogSegments. Fails if it complains."""
    assert files, "no such files"
    run = jvm.check("kafka-dump-log", "--files", ",".join(str(file) for file in files), *options)
    complaint = COMPLAINT.search(run.out + run.err)
    assert complaint is None, (run.out + run.err)[max(0, complaint.start() - 500) : complaint.end() + 500]
    return run.out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A broker with segments of every kind that was stopped cleanly."""
    need_own_broker()
    settings = {
        "log.retention.check.interval.ms": "300",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
    }
    with running_broker(tmp_path_factory.mktemp("dumped"), settings) as broker:
        fill(broker)
        eventually(lambda: len(bases(broker, "cut")) == 1 or bases(broker, "cut")[1] > DELETED, "old segments to go")
        broker.stop()
        yield broker


def bases(broker, topic):
    """Return the base offsets of the segments of partition 0."""
    return sorted(int(path.stem) for path in broker.partition_dir(topic, 0).glob("*.log"))


def fill(broker):
    """Write logs with every codec, rolled segments, both types of timestamps, deleted records and transactions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = {
        "codecs": NewTopic("codecs", 5, 1, config={"index.interval.bytes": "1024"}),
        "rolled": NewTopic("rolled", 1, 1, config={"segment.bytes": "1048576"}),
        "append-time": NewTopic("append-time", 1, 1, config={"message.timestamp.type": "LogAppendTime"}),
        "recompressed": NewTopic("recompressed", 1, 1, config={"compression.type": "zstd"}),
        "cut": NewTopic("cut", 1, 1, config={"segment.bytes": "1048576"}),
        "transacted": NewTopic("transacted", 2, 1),
    }
    for created in admin.create_topics(list(topics.values())).values():
        created.result(DEADLINE_S)
    for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        settings = {"compression.type": codec, "enable.idempotence": True}
        produce(broker.bootstrap, "codecs", FEW, partition, **settings)
    produce(broker.bootstrap, "rolled", RECORDS, 0, **{"enable.idempotence": True})
    produce(broker.bootstrap, "append-time", FEW, 0)
    produce(broker.bootstrap, "recompressed", FEW, 0, **{"compression.type": "gzip"})
    produce(broker.bootstrap, "cut", RECORDS, 0)
    start = TopicPartition("cut", 0, DELETED)
    admin.delete_records([start])[start].result(DEADLINE_S)
    commit(broker.bootstrap, "rolled")
    transact(broker.bootstrap, "transacted")


def transact(bootstrap, topic):
    """Run a committed, an aborted and an open transaction."""
    for name in ("ended", "open"):
        sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        sender.init_transactions(DEADLINE_S)
        for ending in (sender.commit_transaction, sender.abort_transaction) if name == "ended" else (None,):
            sender.begin_transaction()
            for partition in range(2):
                sender.produce(topic, b"in a transaction", partition=partition)
            sender.flush(DEADLINE_S)
            if ending is not None:
                ending(DEADLINE_S)


def commit(bootstrap, topic):
    """Join a group and commit, which writes both kinds of records to __consumer_offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dumped", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert len(consumer.consume(100, timeout=DEADLINE_S)) == 100
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.feature("log files")
def test_dump_log_segments_reads_every_file(jvm, stopped):
    directories = [path.parent for path in stopped.data_dir.rglob("*.log") if path.stem.isdigit()]
    assert len(directories) > 9
    for directory in sorted(set(directories)):
        logs = sorted(directory.glob("*.log"))
        dump(jvm, logs, "--deep-iteration")
        dump(jvm, [path.with_suffix(".index") for path in logs], "--index-sanity-check")
        dump(jvm, [path.with_suffix(".index") for path in logs])
        dump(jvm, [path.with_suffix(".timeindex") for path in logs])
        for ending in ("snapshot", "txnindex"):
            if files := sorted(directory.glob(f"*.{ending}")):
                dump(jvm, files)

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for partition, codec in enumerate(codecs):
        log = dump(jvm, sorted(stopped.partition_dir("codecs", partition).glob("*.log")), "--deep-iteration")
        batches = [line for line in log.splitlines() if line.startswith("baseOffset:")]
        assert {re.search(r"compresscodec: (\w+)", line)[1] for line in batches} == {codec}
        assert len(re.findall(r"^\| offset: ", log, re.MULTILINE)) == FEW
        assert "producerId: -1" not in log
        [snapshot] = stopped.partition_dir("codecs", partition).glob("*.snapshot")
        assert f"lastSequence: {FEW - 1}" in dump(jvm, [snapshot])

    recompressed = dump(jvm, sorted(stopped.partition_dir("recompressed", 0).glob("*.log")))
    assert set(re.findall(r"compresscodec: (\w+)", recompressed)) == {"zstd"}
    appended = dump(jvm, sorted(stopped.partition_dir("append-time", 0).glob("*.log")), "--deep-iteration")
    assert "LogAppendTime: " in appended
    assert "CreateTime: " not in appended


@pytest.mark.feature("log files")
def test_segments_roll_and_their_indexes_point_at_batches(jvm, stopped):
    directory = stopped.partition_dir("rolled", 0)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 3
    assert all(path.stat().st_size <= 1_048_576 for path in logs)
    offsets = [
        int(offset) for offset in re.findall(r"^\| offset: (\d+)", dump(jvm, logs, "--deep-iteration"), re.MULTILINE)
    ]
    assert offsets == list(range(RECORDS))
    for log in logs[:-1]:
        index = dump(jvm, [log.with_suffix(".index")])
        entries = re.findall(r"offset: (\d+) position: (\d+)", index)
        assert len(entries) > 20, f"an entry every 4096 bytes or so in {log.name}"
        times = re.findall(r"timestamp: (\d+) offset: (\d+)", dump(jvm, [log.with_suffix(".timeindex")]))
        assert len(times) > 1
    assert 0 < bases(stopped, "cut")[0] <= DELETED, "only segments wholly before the start offset are gone"


@pytest.mark.feature("log files")
def test_group_offsets_are_in_kafkas_record_format(jvm, stopped):
    logs = [path for path in stopped.data_dir.rglob("__consumer_offsets-*/*.log") if path.stat().st_size]
    decoded = dump(jvm, logs, "--offsets-decoder", "--print-data-log")
    assert '"group":"dumped"' in decoded
    assert '"topic":"rolled","partition":0' in decoded
    assert '"offset":100' in decoded
    assert '"protocolType":"consumer"' in decoded


@pytest.mark.feature("log files")
def test_transactions_are_in_kafkas_record_format(jvm, stopped):
    logs = [path for path in stopped.data_dir.rglob("__transaction_state-*/*.log") if path.stat().st_size]
    decoded = dump(jvm, logs, "--transaction-log-decoder", "--print-data-log")
    written: dict[str, list[str]] = {"ended": [], "open": []}
    for name, state in re.findall(r'"transactionalId":"(\w+)".*"transactionStatus":"(\w+)"', decoded):
        # Partitions may be added together or one after another.
        if state != "Ongoing" or written[name][-1] != state:
            written[name].append(state)
    begun = ["Empty", "Ongoing"]
    committed, aborted = ["PrepareCommit", "CompleteCommit"], ["Ongoing", "PrepareAbort", "CompleteAbort"]
    assert written == {"ended": begun + committed + aborted, "open": begun}
    partition = stopped.partition_dir("transacted", 0)
    aborted = dump(jvm, list(partition.glob("*.txnindex")))
    assert re.findall(r"firstOffset: (\d+) lastOffset: (\d+)", aborted) == [("2", "3")]
    snapshot = dump(jvm, list(partition.glob("*.snapshot")))
    assert "currentTxnFirstOffset: OptionalLong[4]" in snapshot


@pytest.mark.feature("log files")
def test_kbroker_log_dump_agrees_with_dump_log_segments(jvm, stopped):
    compared = Counter()
    for endings, options in ((("log",), ["--deep-iteration"]), (("index", "timeindex", "snapshot"), [])):
        # The tool does not dump an empty index.
        files = [path for end in endings for path in sorted(stopped.data_dir.rglob(f"*.{end}")) if path.stat().st_size]
        files = [path for path in files if path.stem.isdigit()]
        kafka = facts_of_kafka(dump(jvm, files, *options))
        ours = facts_of_kbroker(kbroker_log("dump", "--json", "--records", *files))
        for our_fact, kafka_fact in zip_longest(ours, kafka):
            assert our_fact == kafka_fact
        compared.update(kind for kind, *_ in ours)
    assert set(compared) == {"batch", "record", "index", "time index", "producer"}
    assert compared["record"] > RECORDS


@pytest.mark.feature("log files")
def test_kbroker_log_verify_finds_no_problem(stopped):
    [report] = kbroker_log("verify", "--json", stopped.data_dir)
    assert (report["problems"], report["clean_stop"]) == (0, True)
    # Deleted segments may not have been removed yet.
    assert all(finding["path"].endswith(".deleted") for finding in report["findings"])
    assert report["partition_count"] > 9


def kbroker_log(command, *args):
    """Return the JSON documents that the command prints. It must succeed."""
    run = subprocess.run([sys.executable, "-m", "kbroker", "log", command, *map(str, args)], capture_output=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
    if command == "verify":
        return [json.loads(run.stdout)]
    return [json.loads(line) for line in run.stdout.splitlines()]
