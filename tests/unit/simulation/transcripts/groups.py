"""Members of groups: `a join ...` is the client a; its member ids are a1, a2, ... in the order in which it gets them.

Requests and answers are as in tests/unit/support/group_transcript.py, here from a whole broker, without what all of
them have in common. A join, a sync that wait say so; their answers come below the command that released them.
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
from tests.unit.support.group_transcript import Builder, render

COMMANDS = Table()
# The newest that name topics by their names.
VERSIONS = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "fetch": 9, "describe": 5}
DEFAULTS = {
    "group": "g",
    "protocols": "range:t",
    "session": "10000",
    "rebalance": "30000",
    "type": "consumer",
    "protocol": "range",
}
BORING = ("protocol_type=consumer ", "protocol_name=range ")
KEYS = {APIS[key].name: key for key in APIS}


async def _ask(play: Play, name: str, verb: str, words: list[str]) -> list[str]:
    version = VERSIONS[verb]
    arguments = {**DEFAULTS, **dict.fromkeys(options(words)[0], ""), **options(words)[1]}

    async def once(client: Client) -> dict[str, Any]:
        api, body = getattr(Builder(play.members), verb)(arguments, version)
        request_class, response_class = message_classes(KEYS[api])
        answer = await client.request(from_dict(request_class, body), version, response_class)
        found = to_dict(answer, version)
        play.members.learn_member(name, found.get("member_id", ""))
        return found

    async def work(client: Client) -> str:
        found = await once(client)
        if found.get("error_code") == ErrorCode.MEMBER_ID_REQUIRED:
            arguments["member"] = found["member_id"]
            found = await once(client)
        shown = SHOWN.get(verb)
        return shown(found) if shown else _render(play, found)

    return await play.ask(f"{name} {verb}", work, name)


def _render(play: Play, found: dict[str, Any]) -> str:
    text = render(play.members, found) + " "
    for each in BORING:
        text = text.replace(each, "")
    return text.rstrip()


def _committed(found: dict[str, Any]) -> str:
    return ", ".join(
        f"{topic['name']}-{row['partition_index']} {code(row['error_code'])}"
        for topic in found["topics"]
        for row in topic["partitions"]
    )


def _fetched(found: dict[str, Any]) -> str:
    (group,) = found["groups"]
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


def _state(found: dict[str, Any]) -> str:
    (group,) = found["groups"]
    if group["error_code"]:
        return code(group["error_code"])
    return f"{group['group_state']}, {len(group['members'])} members"


SHOWN = {"commit": _committed, "fetch": _fetched, "describe": _state}


@COMMANDS.add("<name> join <words...>")
async def join(play: Play, name: str, words: list[str]) -> list[str]:
    """Of group g unless told otherwise; instance=i: a static member; member=a1: it was one before. Who is first given a
    member id joins with it at once."""
    return await _ask(play, name, "join", words)


@COMMANDS.add("<name> sync <words...>")
async def sync(play: Play, name: str, words: list[str]) -> list[str]:
    """A leader's has assign=a1:x,b1:y."""
    return await _ask(play, name, "sync", words)


@COMMANDS.add("<name> heartbeat <words...>")
async def heartbeat(play: Play, name: str, words: list[str]) -> list[str]:
    return await _ask(play, name, "heartbeat", words)


@COMMANDS.add("<name> leave <words...>")
async def leave(play: Play, name: str, words: list[str]) -> list[str]:
    """members=a1"""
    return await _ask(play, name, "leave", words)


@COMMANDS.add("<name> commit <words...>")
async def commit(play: Play, name: str, words: list[str]) -> list[str]:
    """offsets=orders:0:3"""
    return await _ask(play, name, "commit", words)


@COMMANDS.add("committed by <group>")
async def fetch(play: Play, group: str) -> list[str]:
    return await _ask(play, "client", "fetch", [f"groups={group}(all)"])


@COMMANDS.add("state of <group>")
async def describe(play: Play, group: str) -> list[str]:
    return await _ask(play, "client", "describe", [f"groups={group}"])


@COMMANDS.add("find coordinator of <group>")
async def find(play: Play, group: str) -> list[str]:
    """As every client does first: there is the groups' topic then."""

    async def work(client: Client) -> str:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (found,) = (await client.request(request, 4, FindCoordinatorResponse)).coordinators
        return code(found.error_code) if found.error_code else f"broker {found.node_id}"

    return await play.ask(f"find coordinator of {group}", work)
