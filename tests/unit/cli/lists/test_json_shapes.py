"""Every command with --json prints the same fields for the same things, and errors as JSON."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup

from kbroker.cli.app import load_command
from kbroker.cli.commands import COMMANDS
from tests.unit.cli.lists.conftest import Run

# The arguments of each command with --json that asks a broker.
ASKED = {
    "cluster status": "",
    "cluster info": "",
    "cluster roll": "--dry-run",
    "brokers list": "",
    "brokers balance": "--dry-run",
    "brokers drain": "1 --dry-run",
    "brokers replace": "1 2 --dry-run",
    "brokers execute": "/absent.json",
    "brokers plan": "",
    "topics list": "--internal",
    "topics describe": "orders paid --lag",
    "topics alter": "orders --replication-factor 1 --dry-run",
    "groups list": "",
    "groups describe": "billing",
    "groups reset-offsets": "billing --topic orders --to-earliest",
    "retry list": "",
    "dlq list": "",
    "delayed list": "reminders --payload",
    "delayed count": "reminders",
    "delayed deliver-now": "reminders --key absent",
    "delayed cancel": "reminders --partition 0 --offset 1",
    "transactions list": "",
    "transactions describe": "mover",
    "transactions producers": "orders",
    "transactions find-hanging": "--topic orders",
    "users list": "",
    "acls list": "",
    "acls add": "--topic orders --allow User:bob --consumer",
    "acls remove": "--topic orders --allow User:bob",
    "quotas list": "",
    "configs get": "topic orders --all",
    "configs list": "",
    "config show": "--all",
    "doctor": "",
}
# Their JSON is that of records, of measurements, of files or of Spark jobs, and has tests of its own.
OTHERS = {
    "produce", "consume", "bench produce", "bench consume", "dlq show", "log dump", "log verify",
    "archive run", "archive list", "archive describe", "backup", "restore",
    "archive compact", "archive verify", "archive repair", "archive expire", "archive erase", "archive convert",
    "archive retry", "replay", "pipeline aggregate", "tools frame",
}  # fmt: skip
# Commands that fail here by their arguments, or that another broker would have to be there for.
FAILING = {"brokers drain", "brokers replace", "brokers execute", "delayed deliver-now", "doctor"}
LISTS = {"topics", "partitions", "target_partitions", "brokers", "configs", "offsets", "members", "groups", "quotas"}
TEXTS = {"topic", "group", "transactional_id"}
NUMBERS = {"partition", "broker", "leader", "controller", "coordinator", "plan"}


def with_json() -> Iterator[str]:
    for name in COMMANDS:
        yield from _with_json(load_command(name), name)


def _with_json(command: Any, path: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _with_json(inner, f"{path} {name}")
    elif any("--json" in param.opts for param in command.params):
        yield path


def test_every_command_with_json_is_here() -> None:
    assert {*with_json()} == {*ASKED, *OTHERS}


def check(value: Any, where: str) -> None:
    """Check names and types of a document."""
    for item in value if isinstance(value, list) else ():
        check(item, where)
    for name, field in value.items() if isinstance(value, dict) else ():
        at = f"{where}.{name}"
        assert re.fullmatch("[a-z][a-z0-9_]*", name), at
        assert name not in LISTS or isinstance(field, list | None), (at, field)
        assert name not in TEXTS or isinstance(field, str | None), (at, field)
        assert name not in NUMBERS or isinstance(field, int | None), (at, field)
        if name.endswith("_ms"):
            assert all(isinstance(each, int | None) for each in (field if isinstance(field, list) else [field])), at
        assert not name.endswith(("time", "timestamp", "since", "date")), f"{at}: the unit is missing"
        if name == "configs":
            assert all({"name", "value"} <= config.keys() for config in field), at
        check(field, at)


@pytest.mark.parametrize("command", [name for name in ASKED if name not in FAILING])
def test_names_and_types(command: str, filled: Run) -> None:
    outcome = filled(f"{command} {ASKED[command]} --json")
    assert outcome.status == 0, outcome.err
    document = outcome.json
    # Nothing would be checked in an empty list.
    assert document or command in ("brokers plan", "transactions find-hanging", "transactions producers"), command
    check(document, command)


def test_the_same_thing_has_the_same_fields(filled: Run) -> None:
    def rows(command: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = filled(f"{command} --json").json
        return found

    [listed] = [row for row in rows("topics list") if row["topic"] == "orders"]
    [described] = rows("topics describe orders")
    assert described.items() >= {name: listed[name] for name in ("topic", "topic_id", "partition_count")}.items()
    assert (listed["records"], listed["size_bytes"] > 0, listed["last_write_ms"] > 0) == (3, True, True)
    [group] = [row for row in rows("groups list") if row["group"] == "billing"]
    [details] = rows("groups describe billing")
    assert {name: details[name] for name in ("group", "type", "state")}.items() <= group.items()
    assert group["lag"] == sum(row["lag"] for row in details["offsets"]) == 3
    [config] = rows("configs get topic orders")
    assert described["configs"][0].items() <= config.items()
    for command in ("configs get topic orders --all", "configs list", "config show --all"):
        assert all({"name", "value", "source"} <= row.keys() for row in rows(command)), command
    info, status = (filled(f"cluster {command} --json").json for command in ("info", "status"))
    common = info.keys() & status.keys() - {"brokers", "conditions"}
    assert len(common) == 5
    assert {name: info[name] for name in common} == {name: status[name] for name in common}
    brokers = [*rows("brokers list"), *info["brokers"], *status["brokers"]]
    names = ("broker", "address", "rack", "state", "leads", "replica_count", "in_sync")
    assert len({tuple(broker[name] for name in names) for broker in brokers}) == 1


@pytest.mark.parametrize(
    "command", [name for name in ASKED if name not in ("config show", "doctor", "brokers execute")]
)
def test_errors_are_json(command: str, run: Run) -> None:
    outcome = run(f"{command} {ASKED[command]} --json --bootstrap 127.0.0.1:1")
    assert (outcome.status, outcome.out) == (1, "")
    assert json.loads(outcome.err) == {
        "error": {
            "message": "cannot connect to 127.0.0.1:1: Connection refused",
            "hint": "start a broker with: kbroker start",
        }
    }


def test_an_error_of_a_broker_has_its_code(run: Run) -> None:
    errors = {
        "topics describe absent": "UNKNOWN_TOPIC_OR_PARTITION",
        "groups describe absent": "GROUP_ID_NOT_FOUND",
        "transactions describe absent": "TRANSACTIONAL_ID_NOT_FOUND",
        "topics list --sort": None,
    }
    for command, code in errors.items():
        outcome = run(f"{command} --json")
        assert outcome.status == (2 if code is None else 1)
        assert json.loads(outcome.err)["error"].get("code") == code
