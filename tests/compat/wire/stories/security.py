"""ACLs, quotas and SCRAM credentials of a broker that has none of them."""

from typing import Any

from tests.compat.wire.play import Play

UNKNOWN, ANY = 0, 1
FILTER = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
# Numbers of the elements; Kafka closes the connection for UNKNOWN and accepts numbers that belong to no type.
FILTER_ELEMENTS = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
ACL_ELEMENTS = ("resource_type", "resource_pattern_type", "operation", "permission_type")
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

Component = tuple[str, int, str | None]


def describe_acls(play: Play) -> None:
    play.ask("all", **FILTER)
    play.ask("of a topic", **FILTER | {"resource_type_filter": 2, "resource_name_filter": "t"})
    play.ask("of a principal", **FILTER | {"principal_filter": "User:a", "host_filter": "*"})
    for field in FILTER_ELEMENTS:
        play.ask(f"unknown {field}", **FILTER | {field: UNKNOWN})
        play.ask(f"{field} 99", **FILTER | {field: 99})
        play.ask(f"{field} -1", **FILTER | {field: -1})


def create_acls(play: Play) -> None:
    play.ask("none", creations=[])
    play.ask("one", creations=[ACL])
    play.ask("one twice, and another one", creations=[ACL, ACL, ACL | {"resource_name": "u"}])
    for field in ACL_ELEMENTS:
        for number in (UNKNOWN, ANY, 99, -1):
            play.ask(f"{field} {number}", creations=[ACL, ACL | {field: number}])
    for field in ("resource_name", "principal", "host"):
        play.ask(f"an empty {field}", creations=[ACL | {field: ""}])
    play.ask("a principal without a type", creations=[ACL | {"principal": "a"}])


def delete_acls(play: Play) -> None:
    play.ask("none", filters=[])
    play.ask("all", filters=[FILTER])
    play.ask("all twice", filters=[FILTER, FILTER])
    for field in FILTER_ELEMENTS:
        for number in (UNKNOWN, 99, -1):
            play.ask(f"{field} {number}", filters=[FILTER, FILTER | {field: number}])
    play.ask("of a principal", filters=[FILTER | {"principal_filter": "User:a", "host_filter": "*"}])


def describe_client_quotas(play: Play) -> None:
    def ask(step: str, *components: Component, strict: bool = False) -> None:
        rows: list[dict[str, Any]] = [
            {"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components
        ]
        play.ask(step, components=rows, strict=strict)

    ask("all")
    ask("all, strict", strict=True)
    for kind in ("user", "client-id", "ip"):
        ask(f"a {kind}", (kind, EXACT, "a"))
        ask(f"a {kind}, strict", (kind, EXACT, "a"), strict=True)
        ask(f"a {kind} without a name", (kind, EXACT, ""))
        ask(f"the default {kind}", (kind, DEFAULT, None))
        ask(f"any {kind}", (kind, SPECIFIED, None))
        ask(f"a {kind}, null", (kind, EXACT, None))
        ask(f"the default {kind}, named", (kind, DEFAULT, "a"))
        ask(f"any {kind}, named", (kind, SPECIFIED, ""))
        ask(f"a {kind}, match type 3", (kind, 3, None))
        ask(f"a {kind}, match type -1", (kind, -1, "a"))
    ask("a user and a client id", ("user", EXACT, "a"), ("client-id", SPECIFIED, None))
    ask("a user twice", ("user", EXACT, "a"), ("user", EXACT, "b"))
    ask("a user twice, with match type 7", ("user", EXACT, "a"), ("user", 7, None))
    ask("a user and an address", ("user", EXACT, "a"), ("ip", SPECIFIED, None))
    ask("an address and a client id", ("ip", EXACT, "127.0.0.1"), ("client-id", DEFAULT, None))
    ask("no such type", ("host", EXACT, "a"))
    ask("no such type, match type 7", ("host", 7, "a"))
    ask("a type in capitals", ("USER", EXACT, "a"))
    ask("an empty type", ("", EXACT, "a"))
    ask("a bad match type, then no such type", ("user", 7, "a"), ("host", EXACT, "a"))
    ask("no such type, then a bad match type", ("host", EXACT, "a"), ("user", 7, "a"))


def describe_user_scram_credentials(play: Play) -> None:
    def ask(step: str, *users: str) -> None:
        play.ask(step, users=[{"name": user} for user in users])

    play.ask("all", users=None)
    ask("an empty list")
    ask("one", "a")
    ask("three", "c", "a", "b")
    ask("an empty name", "")
    ask("one twice", "a", "a")
    ask("one three times, and another one", "a", "b", "a", "a")
    ask("a long name", "x" * 300)
