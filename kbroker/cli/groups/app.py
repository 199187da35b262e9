"""`kbroker groups`: list, describe and delete consumer groups, delete and reset their offsets."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, committed_offsets, error_code_text, rephrase_client_error
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes
from kbroker.cli.common.output import Cell, print_heading, print_json, print_table
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.parsing import parse_topic_partitions
from kbroker.cli.groups.reset_offsets import reset_offsets

# The states of classic, consumer, share and streams groups.
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling", "NotReady", "Empty", "Dead",
)  # fmt: skip

app = typer.Typer()

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False, autocompletion=complete_groups)]


@app.command("list")
@paginated
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="List groups in this state only; repeatable.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List groups with their states."""
    states = {name.lower() for name in state or ()}
    for unknown in sorted(states - {name.lower() for name in STATES}):
        raise usage_error(f"--state must be one of {', '.join(STATES)}, not {unknown!r}")
    with admin_client(bootstrap) as client:
        groups = client.list_groups()
    rows = [
        {
            "group": group["group_id"],
            "state": group.get("group_state") or None,
            "type": group.get("group_type") or None,
            "protocol": group["protocol_type"] or None,
        }
        for group in sorted(groups, key=lambda group: group["group_id"])
        if not states or str(group.get("group_state")).lower() in states
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("group", "state", "type", "protocol"), [list(row.values()) for row in rows])


@app.command("describe")
@paginated
def describe(
    groups: Groups,
    members: Annotated[bool, typer.Option("--members", help="Show members instead of offsets.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show committed offsets, lag and members of groups.

    Example: kbroker groups describe billing --members
    """
    with admin_client(bootstrap) as client:
        results = [_description(client, group) for group in groups]
    descriptions = [group for group in results if group["error"] is None]
    for group in results:
        if group["error"] is not None:
            print_error(f"group {group['group']}: {group['error']}")
    if as_json:
        print_json([{name: value for name, value in group.items() if name != "error"} for group in descriptions])
    else:
        for group in descriptions:
            _print_description(group, members)
    if len(descriptions) < len(results):
        raise typer.Exit(1)


def _description(client: Any, group_id: str) -> dict[str, Any]:
    group = client.describe_groups([group_id])[group_id]
    if group["error"] is not None:
        return {"group": group_id, "error": rephrase_client_error(group["error"])}
    committed = committed_offsets(client, group_id)
    members = [member_summary(member) for member in group["members"]]
    owners = {
        (topic, index): member
        for member in members
        for topic, indexes in member["assignment"].items()
        for index in indexes
    }
    log_ends = _log_end_offsets(client, set(committed) | set(owners))
    return {
        "group": group_id,
        "state": group["group_state"],
        "protocol": group["protocol_type"] or None,
        "assignor": group["protocol_data"] or None,
        "offsets": lag_table(committed, log_ends, owners),
        "members": members,
        "error": None,
    }


def member_summary(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a member; its assignment is partitions by topic, {} if it cannot be decoded."""
    assignment = member["member_assignment"]
    assigned = assignment.get("assigned_partitions", []) if isinstance(assignment, dict) else []
    return {
        "member_id": member["member_id"],
        "instance_id": member["group_instance_id"],
        "client_id": member["client_id"],
        "host": member["client_host"].removeprefix("/"),
        "assignment": {topic["topic"]: sorted(topic["partitions"]) for topic in assigned},
    }


def _log_end_offsets(client: Any, partitions: set[Any]) -> dict[Any, int]:
    """Return log end offsets by partition, without deleted topics and partitions that have no leader."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    topics = sorted({topic for topic, _ in partitions})
    specs = {
        TopicPartition(topic["name"], partition["partition_index"]): OffsetSpec.LATEST
        for topic in (client.describe_topics(topics) if topics else [])
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0 and (topic["name"], partition["partition_index"]) in partitions
    }
    return {tp: at.offset for tp, at in client.list_partition_offsets(specs).items()} if specs else {}


def lag_table(
    committed: Mapping[Any, int], log_ends: Mapping[Any, int], owners: Mapping[Any, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row per committed or assigned partition; the lag is None if either offset is unknown."""
    rows = []
    for tp in sorted(set(committed) | set(owners)):
        offset, end, owner = committed.get(tp), log_ends.get(tp), owners.get(tp)
        rows.append(
            {
                "topic": tp[0],
                "partition": tp[1],
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member_id": owner["member_id"] if owner else None,
                "client_id": owner["client_id"] if owner else None,
                "host": owner["host"] if owner else None,
            }
        )
    return rows


def _print_description(group: Mapping[str, Any], members: bool) -> None:
    facts = [group["state"], count_text(len(group["members"]), "member")]
    facts += [group["assignor"]] if group["assignor"] else []
    lags = [row["lag"] for row in group["offsets"] if row["lag"] is not None]
    facts += [f"lag {sum(lags)}"] if lags else []
    print_heading(group["group"], "  ".join(facts))
    if members:
        print_table(
            ("member", "instance", "client", "host", "partitions"),
            [_member_row(member) for member in group["members"]],
        )
    else:
        names = ("topic", "partition", "committed", "end", "lag", "client_id", "host")
        columns = ("topic", "partition", "committed", "end", "lag", "client", "host")
        print_table(columns, [[row[name] for name in names] for row in group["offsets"]])


def _member_row(member: Mapping[str, Any]) -> list[Cell]:
    assignment = " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in member["assignment"].items())
    return [member["member_id"], member["instance_id"], member["client_id"], member["host"], assignment]


@app.command("delete")
def delete(groups: Groups, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete groups that have no members, with their committed offsets."""
    from kafka import errors

    confirm(f"Delete {', '.join(groups)} with all committed offsets?", yes)
    failed = False
    with admin_client(bootstrap) as client:
        for group, result in client.delete_groups(groups).items():
            if result == "OK":
                print(f"{group}: deleted")
                continue
            print_error(f"group {group}: {error_code_text(getattr(errors, result).errno)}")
            failed = True
    if failed:
        raise typer.Exit(1)


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION,...]",
            help="A topic, or some of its partitions; repeatable.",
            autocompletion=complete_topics,
        ),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete committed offsets of a group for topics that no member of it is subscribed to."""
    selections = [parse_topic_partitions(text) for text in topic]
    failed = False
    with admin_client(bootstrap) as client:
        committed = sorted(committed_offsets(client, group))
        selected = [tp for tp in committed if any(selection.includes(*tp) for selection in selections)]
        if not selected:
            raise CliError(f"group {group}: nothing is committed for {', '.join(topic)}")
        confirm(f"Delete {count_text(len(selected), 'committed offset')} of {group}?", yes)
        for (name, index), error in client.delete_group_offsets(group, selected).items():
            if error.errno:
                print_error(f"group {group}, {name}-{index}: {error_code_text(error.errno)}")
                failed = True
            else:
                print(f"{group}, {name}-{index}: deleted")
    if failed:
        raise typer.Exit(1)


app.command("reset-offsets")(paginated(reset_offsets))
