"""The programs of docs/retry.md: retries by hand, in Java and Go, with real delays."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kbroker.cli.app import run
from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import eventually, need_own_broker
from tests.compat.toolchains import ROOT, go_program, need

pytestmark = [pytest.mark.compat, pytest.mark.feature("retries and dead letters")]

DELAY_MS = 400


def block(language: str) -> str:
    """Return the only code block of the page in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / "retry.md").read_text(), re.M | re.S)
    return str(found)


def java(directory: Path) -> list[str]:
    need("java", "javac", "mvn")
    source = directory / "RetryByHand.java"
    source.write_text(block("java"))
    return java_command("RetryByHand", classpath_of(source))


def go(directory: Path) -> list[str]:
    shutil.copytree(ROOT / "examples" / "go", directory / "go")
    (directory / "go" / "main.go").write_text(block("go"))
    return [str(go_program(directory / "go", directory / "retry-by-hand"))]


def letters(bootstrap: str, command: Sequence[str], dead: str) -> tuple[list[Any], list[str]]:
    """Run the program until there are two dead letters; return these, and what it has printed."""
    partition = TopicPartition(dead, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50)
    consumer.assign([partition])
    found: list[Any] = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:

        def has_both() -> bool:
            assert process.poll() is None, process.communicate()
            found.extend(consumer.poll(timeout_ms=200).get(partition, []))
            return len(found) >= 2

        eventually(has_both, "two dead letters", interval=0)
    finally:
        process.kill()
        output, _ = process.communicate()
        consumer.close()
    return found, output.splitlines()


programs = pytest.mark.parametrize(
    "program",
    [pytest.param(java, marks=pytest.mark.client("kafka_tools")), pytest.param(go, marks=pytest.mark.client("go"))],
)


@programs
def test_the_program_of_the_page_retries(bootstrap: str, name: str, group: str, tmp_path: Path, program: Any) -> None:
    need_own_broker()
    command = program(tmp_path)
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    delays = f"{DELAY_MS}ms,{DELAY_MS}ms"
    create = ["retry", "create", name, "-g", group, "--attempts", "3", "--delays", delays, "-p", "1"]
    assert run([*create, "-b", bootstrap]) == 0
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in ("first", "bad-1", "second", "bad-2", "last"):
        producer.send(name, value.encode(), key=b"k", headers=[("trace", b"7")], timestamp_ms=1_700_000_000_000)
    producer.flush()
    producer.close()

    policy = ["3", f"{DELAY_MS},{DELAY_MS}"] if program is go else []
    found, printed = letters(bootstrap, [*command, bootstrap, name, group, *policy], f"dlq.{name}")
    assert printed == ["first", "second", "last"]
    assert [(letter.key, letter.value) for letter in found] == [(b"k", b"bad-1"), (b"k", b"bad-2")]
    retries = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=1000)
    retries.assign([TopicPartition(f"{name}-{group}-retry", 0)])
    delivered = [dict(record.headers) | {"at": record.timestamp} for record in retries]
    retries.close()
    assert sorted(headers["__dlq.errors.delivery.count"] for headers in delivered) == [b"1", b"1", b"2", b"2"]
    for headers in delivered:
        wait_ms = int(headers["kbroker.delayed.due.ms"]) - int(headers["kbroker.delayed.timestamp.ms"])
        assert wait_ms >= DELAY_MS - 5, "the delay of the policy"
        assert headers["at"] >= int(headers["kbroker.delayed.due.ms"])
    for letter, offset in zip(found, (b"1", b"3"), strict=True):
        headers = dict(letter.headers)
        assert (headers["__dlq.errors.topic"], headers["__dlq.errors.offset"]) == (name.encode(), offset)
        assert (headers["__dlq.errors.partition"], headers["__dlq.errors.group"]) == (b"0", group.encode())
        assert (headers["__dlq.errors.delivery.count"], headers["trace"]) == (b"3", b"7")
        assert headers["__dlq.errors.message"] == b"cannot process " + letter.value
        assert headers["kafka_dlt-original-timestamp"] == (1_700_000_000_000).to_bytes(8)
        assert not [header for header in headers if header.startswith(("TIMER_", "kbroker.delayed."))]


@programs
def test_a_record_that_is_too_large_becomes_a_pointer(
    bootstrap: str, name: str, group: str, tmp_path: Path, program: Any
) -> None:
    need_own_broker()
    command = program(tmp_path)
    assert run(["topics", "create", name, "-p", "1", "-b", bootstrap]) == 0
    delays = f"{DELAY_MS}ms,{DELAY_MS}ms"
    create = ["retry", "create", name, "-g", group, "--attempts", "2", "--delays", delays, "-p", "1"]
    assert run([*create, "-b", bootstrap]) == 0
    for topic in (f"{name}-{group}-retry", f"dlq.{name}"):
        assert run(["configs", "set", "topic", topic, "max.message.bytes=3000", "-b", bootstrap]) == 0
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in ("first", "bad-1", "bad" + 5_000 * ".", "last"):
        producer.send(name, value.encode(), key=b"k", headers=[("trace", b"7")])
    producer.flush()
    producer.close()
    policy = ["2", f"{DELAY_MS},{DELAY_MS}"] if program is go else []
    found, printed = letters(bootstrap, [*command, bootstrap, name, group, *policy], f"dlq.{name}")
    assert printed == ["first", "last"]
    headers = {dict(letter.headers)["__dlq.errors.offset"]: dict(letter.headers) for letter in found}
    assert headers.keys() == {b"1", b"2"}
    assert headers[b"2"]["kbroker.dlq.omitted"] == b"key,value,headers"
    assert "trace" not in headers[b"2"]
    assert "kbroker.dlq.omitted" not in headers[b"1"]
