"""The systems of examples/ do what their pages say, also when their programs are killed in the middle of their work."""

import html
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scripts.ports import free_ports
from tests.compat.examples.conftest import ROOT, Program, System
from tests.compat.spark.pipeline.processes import JARS, quick_jvm
from tests.compat.support import eventually
from tests.sampling import runs_in_third

pytestmark = [pytest.mark.compat, pytest.mark.feature("examples")]


def kill_before_commit(system: System, start: Callable[[], Program]) -> None:
    """Start a program, and kill it when all of its first transaction is there but the commit."""
    with system.kafka.fault(api="EndTxn", drop=True) as fault:
        program = start()
        eventually(lambda: fault.hits, "the program commits")
        program.kill()


@pytest.mark.client("confluent_kafka")
def test_each_order_has_one_invoice_or_is_a_dead_letter(system: System) -> None:
    kafka = system.kafka
    kafka.topic("orders", partitions=2)
    kafka.topic("invoices")
    system.kbroker("retry", "create", "orders", "--group", "billing", "--attempts", "3", "--delays", "10m,1h")
    address = f"http://127.0.0.1:{free_ports()}"
    system.start("order_flow/bank.py", BANK=address).wait_for("is open")

    orders = [json.dumps({"id": f"o-{number}", "amount": number}).encode() for number in range(1, 41)]
    kafka.produce("orders", [(b"k%d" % (number % 7), order) for number, order in enumerate(orders)])
    kafka.produce("orders", [b"not an order", b'{"id": "free", "amount": 0}'])
    kill_before_commit(system, lambda: system.start("order_flow/billing.py", BANK=address))
    billing = system.start("order_flow/billing.py", BANK=address)
    kafka.wait_group("billing", lag=0, topic="orders", timeout_s=60)
    billed = {json.loads(value)["order"] for value in system.values("invoices")}
    assert billed == {f"o-{number}" for number in range(1, 41)}
    assert sorted(system.values("dlq.orders")) == [b"not an order", b'{"id": "free", "amount": 0}']

    (system.directory / "bank-is-away").touch()
    kafka.produce("orders", [b'{"id": "late", "amount": 7}', b'{"id": "later", "amount": 8}'], partition=0)
    pending = ("delayed", "list", "orders-billing-retry", "--json")
    for minutes in (11, 61):
        eventually(lambda: len(json.loads(system.kbroker(*pending))) == 2, "both wait for their next attempt")
        kafka.clock.advance(minutes=minutes)
    eventually(lambda: len(system.values("dlq.orders")) == 4, "the dead letters")
    (system.directory / "bank-is-away").unlink()
    assert "2" in system.kbroker("dlq", "redrive", "dlq.orders", "--error", "BankUnavailable")
    eventually(lambda: len(system.values("invoices")) == 42, "the invoices of those that were sent again")
    billing.stop()
    invoices = [json.loads(value) for value in system.values("invoices")]
    assert len({invoice["receipt"] for invoice in invoices}) == len({invoice["order"] for invoice in invoices}) == 42


@pytest.mark.client("confluent_kafka")
def test_each_order_is_enriched_once_though_the_program_is_killed(system: System) -> None:
    kafka = system.kafka
    for topic in ("orders", "enriched"):
        kafka.topic(topic, partitions=3)
    kafka.topic("customers", partitions=2, config={"cleanup.policy": "compact"})
    customers = {b"c%d" % number: {"name": f"customer {number}"} for number in range(50)}
    kafka.produce("customers", [(key, json.dumps({"name": "former"}).encode()) for key in [*customers, b"gone"]])
    kafka.produce("customers", [(key, json.dumps(row).encode()) for key, row in customers.items()] + [(b"gone", None)])
    keys = [*customers, b"gone", b"unknown"]
    orders = [(keys[number % len(keys)], json.dumps({"id": number}).encode()) for number in range(3_000)]
    for part in range(3):
        kafka.produce("orders", orders[part::3], partition=part)

    kill_before_commit(system, lambda: system.start("enrichment/enrich.py", BATCH="100"))
    # No order may be enriched before the table is there.
    with kafka.fault(api="Fetch", topic="customers", delay_ms=3_000, count=1):
        program = system.start("enrichment/enrich.py", BATCH="100")
        program.wait_for("enriched", 2)
        program.kill()
    kafka.produce("customers", [(b"new", b'{"name": "new"}')])
    kafka.produce("orders", [(b"new", b'{"id": 3000}')], partition=0)
    programs = [system.start("enrichment/enrich.py", BATCH="100", TIMEOUT_S="10")]
    programs[0].wait_for("enriched", 2)
    kafka.kill()
    kafka.start()

    def are_all_enriched() -> bool:
        if programs[-1].has_ended():  # a supervisor starts it again
            programs.append(system.start("enrichment/enrich.py", BATCH="100", TIMEOUT_S="30"))
        return len(system.values("enriched")) >= 3_001

    eventually(are_all_enriched, "all results")
    kafka.wait_group("enrichment", lag=0, topic="orders")
    programs[-1].stop()

    for part in range(3):
        expected = [({"id": json.loads(value)["id"]}, customers.get(key)) for key, value in orders[part::3]]
        expected += [({"id": 3000}, {"name": "new"})] if part == 0 else []
        results = kafka.consume("enriched", partition=part, read_committed=True)
        found = [json.loads(record.value or b"") for record in results]
        assert [(row["order"], row["customer"]) for row in found] == expected


class Shop:
    """The database whose changes are published. `run` makes changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as database:
            database.executescript((ROOT / "examples/change_data/schema.sql").read_text())
        self._random = Random(42)
        self._numbers = iter(range(1, 1_000_000))

    def run(self, count: int) -> None:
        for _ in range(count):
            number, row_id = next(self._numbers), self._random.randrange(60)
            statement, values = self._random.choice(
                [
                    ("REPLACE INTO customers VALUES (?, ?, ?)", (row_id, f"name {number}", None)),
                    ("UPDATE customers SET city = ? WHERE id = ?", (f"city {number}", row_id)),
                    ("UPDATE OR IGNORE customers SET id = ? WHERE id = ?", (row_id, row_id + 1)),
                    ("DELETE FROM customers WHERE id = ?", (row_id,)),
                ]
            )
            with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
                database.execute(statement, values)

    def is_published(self) -> bool:
        return not self._select(self._path, "SELECT * FROM changes")

    def has_replica(self, path: Path) -> bool:
        rows = "SELECT * FROM customers ORDER BY id"
        return self._select(path, rows) == self._select(self._path, rows)

    @staticmethod
    def _select(path: Path, statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            return database.execute(statement).fetchall()


@pytest.mark.client("kafka_python")
def test_a_table_is_rebuilt_from_its_compacted_topic(system: System) -> None:
    kafka = system.kafka
    compaction = {"cleanup.policy": "compact", "segment.ms": 100, "min.cleanable.dirty.ratio": 0.001}
    kafka.topic("customers", partitions=2, config=compaction)
    publisher = ("change_data/publish.py", "shop.db")
    shop = Shop(system.directory / "shop.db")
    program = system.start(*publisher)
    for _ in range(2):
        shop.run(100)
        program.wait_for("published")
        program.kill()
        shop.run(50)  # while it does not run
        program = system.start(*publisher)
    replica, first = system.directory / "replica.db", ("change_data/replicate.py", "replica.db")
    replication = system.start(*first)
    replication.wait_for("up to date")
    replication.kill()
    shop.run(100)
    replication = system.start(*first)
    replication.wait_for("up to date")
    eventually(shop.is_published, "all changes are published")
    eventually(lambda: shop.has_replica(replica), "the replica equals the table")

    def is_compacted() -> bool:
        shop.run(1)  # a new record in a new segment: the cleaner compacts those before it
        keys = [record.key for record in kafka.consume("customers")]
        return len(keys) - len(set(keys)) < 20

    eventually(is_compacted, "the cleaner keeps the last record of each key")
    eventually(shop.is_published, "all changes are published")
    program.stop()
    rebuilt = system.start("change_data/replicate.py", "rebuilt.db")
    rebuilt.wait_for("up to date")
    assert shop.has_replica(system.directory / "rebuilt.db")
    eventually(lambda: shop.has_replica(replica), "the replica has followed")
    rebuilt.stop()
    replication.stop()


@pytest.mark.client("confluent_kafka")
def test_each_task_has_a_result_though_a_worker_dies(system: System) -> None:
    kafka = system.kafka
    for topic in ("tasks", "checksums"):
        kafka.topic(topic)
    kafka.topic("dlq.tasks", config={"errors.deadletterqueue.group.enable": True})
    group = ("share.auto.offset.reset=earliest", "kbroker.share.retry.delays.ms=3000", "share.delivery.count.limit=10")
    system.kbroker("configs", "set", "group", "workers", *group, "errors.deadletterqueue.topic.name=dlq.tasks")

    slow, late = system.directory / "slow", system.directory / "late"
    os.mkfifo(slow)  # nobody writes to it: the worker that opens it hangs
    first = system.start("work_queue/worker.py")
    kafka.produce("tasks", [b'{"file": "slow"}'])
    first.wait_for("tasks-0@0, attempt 1: begins")

    files = [system.directory / f"file-{number}" for number in range(20)]
    for path in files:
        path.write_text(path.name)
    worker = system.start("work_queue/worker.py")
    kafka.produce("tasks", [json.dumps({"file": path.name}).encode() for path in [*files, late]] + [b"not a task"])
    worker.wait_for("done", len(files))
    worker.wait_for("tasks-0@21, attempt 1: failed")
    eventually(lambda: kafka.consume("dlq.tasks"), "the dead letter of what is not a task")

    slow.unlink()  # before the kill, after which the other worker opens it at once
    slow.write_text("slow")
    late.write_text("late")
    first.kill()
    expected = {path.name: sha256(path.read_bytes()).hexdigest() for path in [*files, slow, late]}

    def are_all_done() -> bool:
        records = kafka.consume("checksums")
        return {str(record.key, "utf8"): str(record.value, "utf8") for record in records} == expected

    eventually(are_all_done, "each file has its checksum")
    worker.stop()
    assert len(kafka.consume("dlq.tasks")) == 1


@pytest.mark.spark
@runs_in_third(1)
@pytest.mark.client("spark")
def test_the_dashboard_has_each_sale_once_after_a_restart(system: System, spark: Any) -> None:
    kafka, page = system.kafka, system.directory / "sales.html"
    kafka.topic("sales", partitions=2)
    shops = {"north": [0, 0.0], "south & <west>": [0, 0.0]}

    def sell(first: int, last: int) -> None:
        for number in range(first, last):
            shop = list(shops)[number % 3 == 0]
            shops[shop][0] += 1
            shops[shop][1] += number / 4
            sale = json.dumps({"shop": shop, "amount": number / 4}).encode()
            kafka.produce("sales", [sale], partition=number % 2, timestamp=1_790_000_000_000 + number * 5_000)

    def shows_all() -> bool:
        text = page.read_text() if page.exists() else ""
        found = re.findall(r"<h2>(.*)</h2>\n<table><tr><td>(\d+) sales</td><td>(.*)</td></tr></table>", text)
        is_noticed = "<p>2 records are no sales.</p>" in text
        return is_noticed and {html.unescape(shop): [int(n), float(amount)] for shop, n, amount in found} == shops

    def start() -> Program:
        options = ("--conf", quick_jvm(), "--conf", "spark.sql.shuffle.partitions=2")
        arguments = (ROOT / "examples/dashboard/dashboard.py", "sales", page, "checkpoint")
        environment = {"KBROKER_SPARK_JARS": str(JARS), "SPARK_LOCAL_IP": "127.0.0.1"}
        return system.run("-m", "kbroker", "pipeline", "run", *options, *arguments, **environment)

    sell(0, 40)
    at_ms = 1_790_000_100_000
    kafka.produce("sales", [b"no sale", b'{"shop": "east", "amount": "?"}'], partition=0, timestamp=at_ms)
    program = start()
    eventually(shows_all, "the page has the sales", progress=program.lines)
    sell(40, 60)
    eventually(shows_all, "the page has the sales after it", progress=program.lines)
    program.kill()
    sell(60, 80)
    program = start()
    eventually(shows_all, "the page has the sales after the restart", progress=program.lines)
    assert len(re.findall("<rect ", page.read_text())) == 14, "a bar for each shop and minute"
    program.stop()
