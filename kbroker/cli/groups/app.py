"""`kbroker groups`: list, describe and delete consumer groups, delete and reset their offsets."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import Cell, confirm, paginated, print_heading, print_json, print_rows, print_table
from kbroker.cli.common.values import count_text, parse_topic_partitions
from kbroker.cli.groups.reset_offsets import reset_offsets
from kbroker.client import groups as group_requests
from kbroker.client.admin import LATEST, describe_topics, list_offsets
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import committed_offsets, delete_group, describe_group
from kbroker.common import TopicPartition
from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from protocol.messages.k15_groups import DescribedGroupMember
from protocol.schema.codec import decode
from protocol.schema.message import message_info

# The states of classic, consumer, share and streams groups.
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling", "NotReady", "Empty", "Dead",
)  # fmt: skip

app = typer.Typer()

Groups = Annotated[list[str], argument("GROUP...", complete=complete_groups)]


@app.command("list")
@paginated
def list_groups(
    state: Annotated[list[str] | None, option("--state STATE", "List groups in this state only; repeatable.")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List groups with their states."""
    states = {name.lower() for name in state or ()}
    for unknown in sorted(states - {name.lower() for name in STATES}):
        raise usage_error(f"--state must be one of {', '.join(STATES)}, not {unknown!r}")
    with admin_client(bootstrap) as client:
        groups = group_requests.list_groups(client)
    rows = [
        {
            "group": group.group_id,
            "state": group.group_state or None,
            "type": group.group_type or None,
            "protocol": group.protocol_type or None,
        }
        for group in sorted(groups, key=lambda group: group.group_id)
        if not states or group.group_state.lower() in states
    ]
    print_rows(as_json, rows, ("group", "state", "type", "protocol"), [list(row.values()) for row in rows])


@app.command("describe")
@paginated
def describe(
    groups: Groups,
    members: Annotated[bool, option("--members", "Show members instead of offsets.")] = False,
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


def _description(client: ClusterClient, group_id: str) -> dict[str, Any]:
    group = describe_group(client, group_id)
    if group.error_code:
        return {"group": group_id, "error": error_code_text(group.error_code, group.error_message)}
    committed = committed_offsets(client, group_id)
    members = [member_summary(member) for member in group.members]
    owners = {
        TopicPartition(topic, index): member
        for member in members
        for topic, indexes in member["assignment"].items()
        for index in indexes
    }
    log_ends = _log_end_offsets(client, set(committed) | set(owners))
    return {
        "group": group_id,
        "state": group.group_state,
        "protocol": group.protocol_type or None,
        "assignor": group.protocol_data or None,
        "offsets": lag_table(committed, log_ends, owners),
        "members": members,
        "error": None,
    }


def member_summary(member: DescribedGroupMember) -> dict[str, Any]:
    """Return the JSON of a member; its assignment is partitions by topic, {} if it cannot be decoded."""
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.client_host.removeprefix("/"),
        "assignment": _assignment(member.member_assignment),
    }


def _assignment(data: bytes) -> dict[str, list[int]]:
    # The assignment begins with its version.
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        return {}
    try:
        latest = message_info(ConsumerProtocolAssignment).max_version
        assignment = decode(ConsumerProtocolAssignment, data, min(version, latest), 2)
    except MalformedError:
        return {}
    return {topic.topic: sorted(topic.partitions) for topic in assignment.assigned_partitions}


def _log_end_offsets(client: ClusterClient, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """Return log end offsets by partition, without deleted topics and partitions that have no leader."""
    topics = sorted({topic for topic, _ in partitions})
    timestamps = {
        partition: LATEST
        for topic in (describe_topics(client, topics) if topics else [])
        for row in topic.partitions
        if row.leader_id >= 0 and (partition := TopicPartition(topic.name, row.partition_index)) in partitions
    }
    return list_offsets(client, timestamps)


def lag_table(
    committed: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return one row per committed or assigned partition; the lag is None if either offset is unknown."""
    rows = []
    for tp in sorted(set(committed) | set(owners)):
        offset, end, owner = committed.get(tp), log_ends.get(tp), owners.get(tp, {})
        row = {
            "topic": tp[0],
            "partition": tp[1],
            "committed": offset,
            "end": end,
            "lag": None if offset is None or end is None else max(0, end - offset),
        }
        rows.append(row | {name: owner.get(name) for name in ("member_id", "client_id", "host")})
    return rows


def _print_description(group: Mapping[str, Any], members: bool) -> None:
    facts = [group["state"], count_text(len(group["members"]), "member")]
    facts += [group["assignor"]] if group["assignor"] else []
    lags = [row["lag"] for row in group["offsets"] if row["lag"] is not None]
    facts += [f"lag {sum(lags)}"] if lags else []
    print_heading(group["group"], "  ".join(facts))
    if members:
        columns: Sequence[str] = ("member", "instance", "client", "host", "partitions")
        rows: list[list[Cell]] = [
            [*list(member.values())[:-1], " ".join(f"{t}:{','.join(map(str, p))}" for t, p in assignment.items())]
            for member in group["members"]
            for assignment in [member["assignment"]]
        ]
    else:
        columns = ("topic", "partition", "committed", "end", "lag", "client", "host")
        names = ("topic", "partition", "committed", "end", "lag", "client_id", "host")
        rows = [[row[name] for name in names] for row in group["offsets"]]
    print_table(columns, rows)


@app.command("delete")
def delete(groups: Groups, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete groups that have no members, with their committed offsets."""
    confirm(f"Delete {', '.join(groups)} with all committed offsets?", yes)
    failed = False
    with admin_client(bootstrap) as client:
        for group in dict.fromkeys(groups):
            if code := delete_group(client, group):
                print_error(f"group {group}: {error_code_text(code)}")
                failed = True
            else:
                print(f"{group}: deleted")
    if failed:
        raise typer.Exit(1)


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[str, argument("GROUP", complete=complete_groups)],
    topic: Annotated[
        list[str],
        option(
            "--topic -t TOPIC[:PARTITION,...]",
            "A topic, or some of its partitions; repeatable.",
            complete=complete_topics,
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
        for (name, index), error in group_requests.delete_offsets(client, group, selected).items():
            if error:
                print_error(f"group {group}, {name}-{index}: {error_code_text(error)}")
                failed = True
            else:
                print(f"{group}, {name}-{index}: deleted")
    if failed:
        raise typer.Exit(1)


app.command("reset-offsets")(paginated(reset_offsets))
