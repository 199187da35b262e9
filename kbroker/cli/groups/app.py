"""`kbroker groups`: list, describe and delete groups of all kinds, delete and reset their offsets."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import (
    Cell,
    confirm,
    paginated,
    print_heading,
    print_json,
    print_outcomes,
    print_rows,
    print_table,
    watchable,
)
from kbroker.cli.common.partitions import partition_rows, partitions_text
from kbroker.cli.common.values import count_text, parse_choices, parse_topic_partitions
from kbroker.cli.groups.reset_offsets import reset_offsets
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import SHARE, GroupDescription, GroupMember, describe_group
from kbroker.client.group_summaries import summarize_groups
from kbroker.client.groups import committed_offsets, delete_group, delete_offsets, delete_share_offsets, share_offsets
from kbroker.client.offsets import latest_offsets
from kbroker.common import TopicPartition

# The states of classic, consumer, share and streams groups.
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling", "NotReady", "Empty", "Dead",
)  # fmt: skip
TYPES = ("classic", "consumer", "share", "streams")

app = typer.Typer()

Groups = Annotated[list[str], argument("GROUP...", complete=complete_groups)]


@app.command("list")
@watchable
def list_groups(
    state: Annotated[list[str] | None, option("--state STATE", "List groups in this state only; repeatable.")] = None,
    kind: Annotated[list[str] | None, option("--type TYPE", "List groups of this type only; repeatable.")] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List groups with their members and their lag, those that lag most first.

    LAG is the number of records after the committed offsets of a group, of a share group after its start offsets.

    Example: kbroker groups list --watch
    """
    states = parse_choices(state or (), STATES, "--state")
    types = parse_choices(kind or (), TYPES, "--type")
    with admin_client(bootstrap) as client:
        summaries = summarize_groups(client)
    rows = [
        {
            "group": group.group_id,
            "type": group.type,
            "state": group.state,
            "protocol": group.protocol,
            "member_count": group.members,
            "lag": group.lag,
        }
        for group in summaries
        if (not states or group.state in states) and (not types or group.type in types)
    ]
    columns = ("group", "type", "state", "protocol", "members", "lag")
    print_rows(as_json, rows, columns, [list(row.values()) for row in rows])


@app.command("describe")
@watchable
def describe(
    groups: Groups,
    members: Annotated[bool, option("--members", "Show members instead of offsets.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show committed offsets, lag and members of groups of any type; of a share group its start offsets.

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
    return {
        "group": group_id,
        "type": group.type,
        "state": group.state,
        "protocol": group.protocol,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "offsets": offset_rows(client, group),
        "members": [_member_json(member) for member in group.members],
        "error": None,
    }


def _member_json(member: GroupMember) -> dict[str, Any]:
    fields = member._asdict()
    assignment, target = fields.pop("assignment"), fields.pop("target")
    return {
        **fields,
        "partitions": partition_rows(assignment),
        "target_partitions": None if target is None else partition_rows(target),
    }


def offset_rows(client: ClusterClient, group: GroupDescription) -> list[dict[str, Any]]:
    """Return one row for each partition with an offset or a member: committed offset, or start offset, and lag."""
    if group.type == SHARE:
        return _share_offset_rows(client, group.group_id)
    committed = committed_offsets(client, group.group_id)
    owners = {
        TopicPartition(topic, index): member
        for member in group.members
        for topic, indexes in member.assignment.items()
        for index in indexes
    }
    return lag_table(committed, latest_offsets(client, set(committed) | set(owners)), owners)


def _share_offset_rows(client: ClusterClient, group_id: str) -> list[dict[str, Any]]:
    """Return one row per partition with a start offset. Several members may have a partition: the rows name none."""
    offsets = share_offsets(client, group_id)
    log_ends = latest_offsets(client, set(offsets))
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start_offset": start,
            "latest_offset": log_ends.get(tp),
            "lag": lag,
        }
        for tp, (start, lag) in sorted(offsets.items())
    ]


def lag_table(
    committed: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
    owners: Mapping[TopicPartition, GroupMember],
) -> list[dict[str, Any]]:
    """Return one row per committed or assigned partition; the lag is None if either offset is unknown."""
    rows = []
    for tp in sorted(set(committed) | set(owners)):
        offset, end, owner = committed.get(tp), log_ends.get(tp), owners.get(tp)
        row = {
            "topic": tp[0],
            "partition": tp[1],
            "committed_offset": offset,
            "latest_offset": end,
            "lag": None if offset is None or end is None else max(0, end - offset),
        }
        rows.append(row | {name: getattr(owner, name, None) for name in ("member_id", "client_id", "host")})
    return rows


def _print_description(group: Mapping[str, Any], members: bool) -> None:
    facts = [group["type"], group["state"], count_text(len(group["members"]), "member")]
    facts += [group["assignor"]] if group["assignor"] else []
    if group["epoch"] is not None:
        behind = f", assignment {group['assignment_epoch']}" if group["assignment_epoch"] != group["epoch"] else ""
        facts.append(f"epoch {group['epoch']}{behind}")
    lags = [row["lag"] for row in group["offsets"] if row["lag"] is not None]
    facts += [f"lag {sum(lags)}"] if lags else []
    print_heading(group["group"], "  ".join(facts))
    if members:
        print_table(*_member_table(group["members"]))
        return
    if group["type"] == SHARE:
        names: Sequence[str] = ("topic", "partition", "start_offset", "latest_offset", "lag")
    else:
        names = ("topic", "partition", "committed_offset", "latest_offset", "lag", "client_id", "host")
    rows = [[row[name] for name in names] for row in group["offsets"]]
    print_table([name.removesuffix("_id").removesuffix("_offset") for name in names], rows)


def _member_table(members: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return columns and rows. Members of classic groups have no epoch; a target is shown if there is one."""
    columns = {"member": "member_id", "instance": "instance_id", "client": "client_id", "host": "host"}
    columns |= {"epoch": "epoch"} if any(member["epoch"] is not None for member in members) else {}
    columns |= {"classic": "is_classic"} if len({member["is_classic"] for member in members}) > 1 else {}
    columns |= {"tasks": "tasks"} if any(member["tasks"] is not None for member in members) else {}
    columns |= {"partitions": "partitions"}
    columns |= {"target": "target_partitions"} if any(member["target_partitions"] for member in members) else {}
    rows = [[_member_cell(member[name]) for name in columns.values()] for member in members]
    return list(columns), rows


def _member_cell(value: Any) -> Cell:
    """Return partitions as "t:0,1 u:2", and tasks by role as "active:0_0,0_1"."""
    if isinstance(value, list):
        return partitions_text(value)
    if isinstance(value, Mapping):
        return " ".join(f"{name}:{','.join(map(str, items))}" for name, items in value.items() if items)
    if isinstance(value, bool):
        return "yes" if value else "no"
    cell: Cell = value
    return cell


@app.command("delete")
def delete(groups: Groups, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete groups that have no members, with their committed offsets."""
    confirm(f"Delete {', '.join(groups)} with all committed offsets?", yes)
    with admin_client(bootstrap) as client:
        codes = ((group, delete_group(client, group)) for group in dict.fromkeys(groups))
        print_outcomes((f"{group}: deleted", _error(group, code)) for group, code in codes)


def _error(subject: str, code: int) -> str | None:
    return f"group {subject}: {error_code_text(code)}" if code else None


@app.command("delete-offsets")
def delete_committed_offsets(
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
    """Delete committed offsets of a group for topics that no member of it is subscribed to.

    Of a share group the state of whole topics is deleted.
    """
    selections = [parse_topic_partitions(text) for text in topic]
    with admin_client(bootstrap) as client:
        is_share = describe_group(client, group).type == SHARE
        current = sorted(share_offsets(client, group) if is_share else committed_offsets(client, group))
        selected = [tp for tp in current if any(selection.includes(*tp) for selection in selections)]
        if not selected:
            raise CliError(f"group {group}: nothing is committed for {', '.join(topic)}")
        topics = sorted({name for name, _ in selected})
        if is_share and [tp for tp in current if tp.topic in topics] != selected:
            raise usage_error("the offsets of a share group are deleted for whole topics only")
        confirm(f"Delete {count_text(len(selected), 'committed offset')} of {group}?", yes)
        errors = delete_share_offsets(client, group, topics) if is_share else delete_offsets(client, group, selected)
    names = ((f"{group}, {subject}", code) for subject, code in errors.items())
    print_outcomes((f"{name}: deleted", _error(name, code)) for name, code in names)


app.command("reset-offsets")(paginated(reset_offsets))
