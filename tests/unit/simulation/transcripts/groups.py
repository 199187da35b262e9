"""Commands of group members: `a join ...` is the client a; its member ids are a1, a2, ... in the order of assignment.

Requests and responses are written as in tests/unit/support/group_transcript.py, without the common fields. A pending
join or sync prints `waits`; its response is printed below the command that completed it.
"""

from typing import Any

from protocol.apis import APIS
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.simulation.transcripts.play import Play, code
from tests.unit.simulation.transcripts.table import Table, options
from tests.unit.support.client import Client
from tests.unit.support.group_coordinator import from_dict, to_dict
from tests.unit.support.transcript_requests import Builder
from tests.unit.support.transcript_responses import render

COMMANDS = Table()
# The newest versions with topic names instead of topic ids.
VERSIONS = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "fetch": 9, "describe": 5}
DEFAULTS = {
    "group": "g",
    "protocols": "range:t",
    "session": "10000",
    "rebalance": "30000",
    "type": "consumer",
    "protocol": "range",
}
HIDDEN_FIELDS = ("protocol_type=consumer ", "protocol_name=range ")
KEYS = {APIS[key].name: key for key in APIS}


async def _ask(play: Play, name: str, verb: str, words: list[str]) -> list[str]:
    version = VERSIONS[verb]
    arguments = {**DEFAULTS, **dict.fromkeys(options(words)[0], ""), **options(words)[1]}

    async def send_once(client: Client) -> dict[str, Any]:
        api, body = getattr(Builder(play.members), verb)(arguments, version)
        request_class, response_class = message_classes(KEYS[api])
        response = to_dict(await client.request(from_dict(request_class, body), version, response_class), version)
        play.members.learn_member(name, response.get("member_id", ""))
        return response

    async def send(client: Client) -> str:
        response = await send_once(client)
        if response.get("error_code") == ErrorCode.MEMBER_ID_REQUIRED:
            arguments["member"] = response["member_id"]
            response = await send_once(client)
        show = FORMATS.get(verb)
        return show(response) if show else _render(play, response)

    return await play.request(f"{name} {verb}", send, name)


def _render(play: Play, response: dict[str, Any]) -> str:
    text = render(play.members, response) + " "
    for each in HIDDEN_FIELDS:
        text = text.replace(each, "")
    return text.rstrip()


def _committed(response: dict[str, Any]) -> str:
    return ", ".join(
        f"{topic['name']}-{row['partition_index']} {code(row['error_code'])}"
        for topic in response["topics"]
        for row in topic["partitions"]
    )


def _fetched(response: dict[str, Any]) -> str:
    (group,) = response["groups"]
    if group["error_code"]:
        return code(group["error_code"])
    return (
        ", ".join(
            f"{topic['name']}-{row['partition_index']} {row['committed_offset']}"
            for topic in group["topics"]
            for row in topic["partitions"]
        )
        or "nothing committed"
    )


def _state(response: dict[str, Any]) -> str:
    (group,) = response["groups"]
    if group["error_code"]:
        return code(group["error_code"])
    return f"{group['group_state']}, {len(group['members'])} members"


FORMATS = {"commit": _committed, "fetch": _fetched, "describe": _state}


def _add_verb(verb: str) -> None:
    """Add the command of a member's request. The group is g by default.

    `join`: instance=i: a static member; member=a1: a known member. After MEMBER_ID_REQUIRED the client immediately
    joins again. `sync`: the leader has assign=a1:x,b1:y. `leave`: members=a1. `commit`: offsets=orders:0:3.
    """

    @COMMANDS.add(f"<name> {verb} <words...>")
    async def ask(play: Play, name: str, words: list[str]) -> list[str]:
        return await _ask(play, name, verb, words)


for each in ("join", "sync", "heartbeat", "leave", "commit"):
    _add_verb(each)


@COMMANDS.add("committed by <group>")
async def fetch(play: Play, group: str) -> list[str]:
    return await _ask(play, "client", "fetch", [f"groups={group}(all)"])


@COMMANDS.add("state of <group>")
async def describe(play: Play, group: str) -> list[str]:
    return await _ask(play, "client", "describe", [f"groups={group}"])


@COMMANDS.add("find coordinator of <group>")
async def find(play: Play, group: str) -> list[str]:
    """Find the coordinator. This creates __consumer_offsets, as the first request of every client does."""

    async def send(client: Client) -> str:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (coordinator,) = (await client.request(request, 4, FindCoordinatorResponse)).coordinators
        return code(coordinator.error_code) if coordinator.error_code else f"broker {coordinator.node_id}"

    return await play.request(f"find coordinator of {group}", send)
