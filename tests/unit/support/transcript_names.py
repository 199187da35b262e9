"""The words of transcripts: the names of member ids, topic ids and producer ids, and the values of commands."""

import re
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The second form is that of Kafka's Uuid, in consumer groups.
MEMBER_ID = rf"{UUID}|^[-_A-Za-z0-9]{{22}}$"


@dataclass
class Names:
    """The names of member ids, topic ids and producer ids in a transcript."""

    by_name: dict[str, str] = field(default_factory=dict)
    by_id: dict[str, str] = field(default_factory=dict)
    topics: dict[str, bytes] = field(default_factory=lambda: {"nosuch": b"\x77" * 16})
    # The last producer id and epoch of each transactional id.
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def learn_member(self, client: str, member_id: str | None) -> None:
        if member_id and member_id not in self.by_id and re.search(MEMBER_ID, member_id):
            name = client + str(1 + sum(known.rstrip("0123456789") == client for known in self.by_name))
            self.by_name[name], self.by_id[member_id] = member_id, name

    def member_id(self, text: str | None) -> str:
        return "" if text is None else self.by_name.get(text, text)

    def learn_producer(self, transactional_id: str | None, response: Body) -> None:
        if transactional_id is not None and response.get("producer_id", -1) >= 0:
            self.producers[transactional_id] = (response["producer_id"], response["producer_epoch"])

    def producer(self, producer_id: int) -> str:
        """Return the transactional id of a producer id."""
        return next((name for name, (known, _) in self.producers.items() if known == producer_id), str(producer_id))

    def shown(self, member_id: str) -> str:
        """Return the name of a member id; of an unknown one, its prefix."""
        return self.by_id.get(member_id) or re.sub(UUID, "UUID", member_id) or "''"

    def topic_name(self, topic_id: bytes) -> str:
        return next((name for name, known in self.topics.items() if known == topic_id), topic_id.hex())


def value(text: str | None) -> str | None:
    if text is None or text == "null":
        return None
    return "" if text == "''" else text.replace("+", " ")


def items(text: str | None, sep: str = ",") -> list[str]:
    return [item for item in (text or "").split(sep) if item]


def data(text: str) -> bytes:
    """Return the bytes of a value: `x...` is hexadecimal."""
    return bytes.fromhex(text[1:]) if text.startswith("x") else text.encode()
