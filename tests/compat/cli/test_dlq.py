"""`kbroker retry` and `kbroker dlq`."""

import json
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kbroker.cli.app import run
from kbroker.cli.common.client import admin_client
from kbroker.cli.dlq.redrive import LetterFilter, Redrive
from kbroker.client.requests import MAX_VERSIONS
from kbroker.client.transactions import LAST_VERSIONS
from tests.compat.cli.conftest import COMMAND
from tests.compat.support import DEADLINE_S, eventually

pytestmark = pytest.mark.compat


def test_dead_letters_are_shown_redriven_once_and_purged(bootstrap: str, name: str, capsys: Any) -> None:
    dead, other = f"dlq.{name}", f"{name}-other"

    def cli(*args: str, status: int = 0) -> str:
        assert run([*args, "-b", bootstrap]) == status
        output, errors = capsys.readouterr()
        return output if status == 0 else errors

    cli("topics", "create", name, other, "-p", "1")
    cli("retry", "create", name, "-g", "billing", "--delays", "10s,1m")
    policies = json.loads(cli("retry", "list", "--json"))
    [policy] = [policy for policy in policies if policy["topic"] == name]
    assert (policy["attempts"], policy["delays_ms"]) == (3, [10_000, 60_000])

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(6):
        headers = [
            ("__dlq.errors.topic", name.encode()),
            ("__dlq.errors.group", b"billing" if number % 2 else b"shipping"),
            ("kafka_dlt-exception-fqcn", b"shop.Missing" if number < 4 else b"OSError"),
            ("trace", str(number).encode()),
        ]
        producer.send(dead, str(number).encode(), headers=headers, partition=0, timestamp_ms=1_700_000_000_000 + number)
    producer.flush()
    producer.close()

    def values(topic: str) -> list[str]:
        lines = cli("consume", topic, "--json").splitlines()
        return [json.loads(line)["value"] for line in lines]

    assert {"topic": dead, "records": 6} in json.loads(cli("dlq", "list", "--json"))
    shown = cli("dlq", "show", dead, "--error", "Missing", "-g", "billing", "--json").splitlines()
    assert [json.loads(line)["value"] for line in shown] == ["1", "3"]
    assert "2 records would be sent" in cli("dlq", "redrive", dead, "--error", "OSError", "--dry-run")
    assert values(name) == []
    redrive = ("dlq", "redrive", dead, "-g", "billing", "--to", other, "--rate", "1000")
    assert "3 records sent, 3 not selected" in cli(*redrive)
    assert "0 records sent" in cli(*redrive)
    assert values(other) == ["1", "3", "5"]
    assert "6 records sent" in cli("dlq", "redrive", dead)
    assert "6 records sent" in cli("dlq", "redrive", dead, "--again")
    assert sorted(values(name)) == sorted([*"012345"] * 2)
    [first, *_] = cli("consume", name, "--json").splitlines()
    assert [header["key"] for header in json.loads(first)["headers"]] == ["trace"]

    assert "not a dead-letter topic" in cli("dlq", "purge", name, "--all", status=1)
    assert "2 records would be deleted" in cli("dlq", "purge", dead, "--until", "1700000000002", "--dry-run")
    assert "2 records deleted" in cli("dlq", "purge", dead, "--until", "1700000000002")
    assert values(dead) == ["2", "3", "4", "5"]
    assert "4 records deleted" in cli("dlq", "purge", dead, "--all", "--yes")
    assert values(dead) == []


def test_a_redrive_until_a_time_before_now_sends_the_later_records_later(
    bootstrap: str, name: str, capsys: Any
) -> None:
    dead = f"dlq.{name}"
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    assert run(["retry", "create", name, "-g", "billing", "-b", bootstrap]) == 0
    now_ms = round(time.time() * 1000)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for age_ms in (7_200_000, 1_800_000):
        headers = [("__dlq.errors.topic", name.encode())]
        producer.send(dead, b"late", headers=headers, partition=0, timestamp_ms=now_ms - age_ms)
    producer.flush()
    producer.close()
    capsys.readouterr()
    redrive = ["dlq", "redrive", dead, "--until", "1h", "-b", bootstrap]
    for sent in ("1 record sent", "0 records sent"):
        assert run(redrive) == 0
        assert sent in capsys.readouterr().out
    # An hour later.
    selection = LetterFilter(until_ms=now_ms)
    with admin_client(bootstrap, {**MAX_VERSIONS, **LAST_VERSIONS}) as cluster:
        later = Redrive(cluster, dead, selection, None, (None, "1h"))
        assert later.run(rate=None, again=False, dry_run=False, progress=lambda _: None)["sent"] == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--delays", "soon"), "expected a duration"),
        (("--attempts", "0"), "attempts must be between 1 and 1000"),
        (("--delays", "41d"), "A delay must be whole milliseconds"),
        (("--dead-letter-topic", "a b"), "must be the name of a topic"),
    ],
)
def test_malformed_policies(bootstrap: str, capsys: Any, options: tuple[str, ...], reason: str) -> None:
    assert run(["retry", "create", "orders", "-g", "billing", *options, "-b", bootstrap]) == 2
    assert reason in capsys.readouterr().err


def test_redrives_that_cannot_work_are_refused(bootstrap: str, name: str, capsys: Any) -> None:
    dead = f"dlq.{name}"
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    assert run(["retry", "create", name, "-g", "billing", "-b", bootstrap]) == 0
    assert run(["topics", "create", f"{name}-view", "--view-of", name, "-b", bootstrap]) == 0
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(dead, b"1", headers=[("__dlq.errors.topic", f"{name}-view".encode())])
    producer.close()
    capsys.readouterr()
    view_reason = f"topic {name}-view is a view without records of its own: use its source with --to {name}"
    for options, status, reason in (
        (("--to", f"{name}-absent"), 1, f"topic {name}-absent does not exist"),
        (("--to", f"{name}-view"), 1, view_reason),
        ((), 1, view_reason),
        (("--to", dead), 2, f"--to is {dead} itself"),
        (("--header", "=x"), 2, "--header needs the name of a header"),
    ):
        assert run(["dlq", "redrive", dead, *options, "-b", bootstrap]) == status
        assert reason in capsys.readouterr().err


def test_a_refused_policy_creates_nothing(bootstrap: str, name: str, capsys: Any) -> None:
    other, dead = f"{name}-other", f"dlq.{name}"
    assert run(["topics", "create", name, other, "-p", "1", "-b", bootstrap]) == 0
    create = ["retry", "create", name, "-g", "billing", "-b", bootstrap]
    capsys.readouterr()
    for options, reason in (
        (("--retry-topic", other), f"Topic '{other}' already exists"),
        (("--dead-letter-topic", other), f"{other} is not a dead-letter topic"),
    ):
        assert run([*create, *options]) == 1
        assert reason in capsys.readouterr().err
    assert run(["topics", "list", "-b", bootstrap]) == 0
    topics = capsys.readouterr().out
    assert dead not in topics
    assert f"{name}-billing-retry" not in topics
    altered = ["topics", "alter", other, "--set", "errors.deadletterqueue.group.enable=true", "-b", bootstrap]
    assert run(altered) == 0
    assert run([*create, "--dead-letter-topic", other]) == 0


def test_an_interrupted_redrive_continues(bootstrap: str, name: str, capsys: Any) -> None:
    dead, count = f"dlq.{name}", 300
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    assert run(["retry", "create", name, "-g", "billing", "-b", bootstrap]) == 0
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(count):
        producer.send(dead, b"%d" % number, headers=[("__dlq.errors.topic", name.encode())], partition=0)
    producer.flush()
    producer.close()

    # Killed between two batches, or in the middle of one.
    command = ["dlq", "redrive", dead, "--rate", "60", "-b", bootstrap]
    process = subprocess.Popen([*COMMAND, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = TopicPartition(name, 0)
    watcher = KafkaConsumer(bootstrap_servers=bootstrap)
    eventually(lambda: watcher.end_offsets([end])[end] > 60, "a part of the records is sent")
    watcher.close()
    process.kill()
    process.wait()

    # Killed in the middle of a batch: its transaction is open, with records and the progress behind them.
    group = f"kbroker-redrive-{dead}"
    settings = {"bootstrap.servers": bootstrap}
    interrupted = Producer({**settings, "transactional.id": group, "transaction.timeout.ms": 600_000})
    interrupted.init_transactions(DEADLINE_S)
    interrupted.begin_transaction()
    interrupted.produce(name, b"of the open batch")
    interrupted.flush(DEADLINE_S)
    member = Consumer({**settings, "group.id": group}).consumer_group_metadata()
    interrupted.send_offsets_to_transaction([ConfluentPartition(dead, 0, count)], member, DEADLINE_S)

    capsys.readouterr()
    assert run(["dlq", "redrive", dead, "-b", bootstrap]) == 0
    assert f"{dead}: {count} records sent" not in capsys.readouterr().out, "it has begun anew"
    assert run(["consume", name, "--read-committed", "--json", "-b", bootstrap]) == 0
    values = [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()]
    assert values == [str(number) for number in range(count)]
