"""Group scenarios as text: one command per line, with the responses that it caused indented below it.

The recorded responses are Apache Kafka 4.4.0's. A transcript runs against any target that accepts requests as plain
dicts (field names as in protocol/messages) and returns responses the same way, such as the handlers in virtual time.

    a join@9 group=g session=1000 rebalance=1000 protocols=range:x
      a< MEMBER_ID_REQUIRED member=a1
    sleep 500

The word before the command is the client; member ids are named after the client that received them (a1, a2, ...).
`null` and '' are written as such; `+` is a blank inside a value. A response that had to wait appears below the command
(or the sleep) that caused it, sorted by client.
"""

from collections.abc import Callable
from typing import Protocol

from tests.unit.support.transcript_names import Body, Names
from tests.unit.support.transcript_requests import Builder
from tests.unit.support.transcript_responses import render


class Target(Protocol):
    """The receiver of the requests. `responses` returns (client, API, version, body) since the last call."""

    def send(self, client: str, api: str, version: int, body: Body) -> None: ...

    def responses(self, sleep_ms: int) -> list[tuple[str, str, int, Body]]: ...

    def create_topic(self, name: str, partitions: int) -> bytes: ...

    def add_partitions(self, name: str, partitions: int) -> None: ...

    def remove_topic(self, name: str) -> None: ...


def run(text: str, target: Target) -> str:
    """Run the commands of a transcript, and return it with the responses of the target."""
    names, out = Names(), []
    builder = Builder(names)
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        sleep_ms = 0
        if words[0] == "sleep":
            sleep_ms = int(words[1])
        elif words[0] == "topic":
            topic, _, partitions = words[1].partition(":")
            names.topics[topic] = target.create_topic(topic, int(partitions))
        elif words[0] == "grow":
            topic, _, partitions = words[1].partition(":")
            target.add_partitions(topic, int(partitions))
        elif words[0] == "drop":
            target.remove_topic(words[1])
        else:
            _send(builder, target, words)
        responses = target.responses(sleep_ms)
        transactional_id = next((word[3:] for word in words if word.startswith("id=")), None)
        for client, _, _, body in responses:
            names.learn_member(client, body.get("member_id", ""))
            names.learn_producer(transactional_id, body)
        responses.sort(key=lambda response: response[0])
        out.extend(f"  {client}< {render(names, body)}" for client, _, _, body in responses)
    return "\n".join(out) + "\n"


def _send(builder: Builder, target: Target, words: list[str]) -> None:
    client, command, *rest = words
    verb, _, version = command.partition("@")
    arguments = {key: text for key, _, text in (word.partition("=") for word in rest)}
    make: Callable[[dict[str, str], int], tuple[str, Body]] = getattr(builder, verb)
    api, body = make(arguments, int(version))
    target.send(client, api, int(version), body)
