"""ACLs, quotas, SASL and SCRAM credentials of a broker without an authorizer, over a listener without SASL."""

from typing import Any

from tests.compat.wire.story import Story, of_api

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
# The numbers of the enum values; Kafka closes the connection for UNKNOWN and accepts numbers without a meaning.
FILTER_ELEMENTS = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
ACL_ELEMENTS = ("resource_type", "resource_pattern_type", "operation", "permission_type")
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

Component = tuple[str, int, str | None]


@of_api("DescribeAcls", "security")
def describe_acls(story: Story) -> None:
    story.request("all", **FILTER)
    story.request("of a topic", **FILTER | {"resource_type_filter": 2, "resource_name_filter": "t"})
    story.request("of a principal", **FILTER | {"principal_filter": "User:a", "host_filter": "*"})
    for field in FILTER_ELEMENTS:
        story.request(f"unknown {field}", **FILTER | {field: UNKNOWN})
        story.request(f"{field} 99", **FILTER | {field: 99})
        story.request(f"{field} -1", **FILTER | {field: -1})


@of_api("CreateAcls", "security")
def create_acls(story: Story) -> None:
    story.request("none", creations=[])
    story.request("one", creations=[ACL])
    story.request("one twice, and another one", creations=[ACL, ACL, ACL | {"resource_name": "u"}])
    for field in ACL_ELEMENTS:
        for number in (UNKNOWN, ANY, 99, -1):
            story.request(f"{field} {number}", creations=[ACL, ACL | {field: number}])
    for field in ("resource_name", "principal", "host"):
        story.request(f"an empty {field}", creations=[ACL | {field: ""}])
    story.request("a principal without a type", creations=[ACL | {"principal": "a"}])


@of_api("DeleteAcls", "security")
def delete_acls(story: Story) -> None:
    story.request("none", filters=[])
    story.request("all", filters=[FILTER])
    story.request("all twice", filters=[FILTER, FILTER])
    for field in FILTER_ELEMENTS:
        for number in (UNKNOWN, 99, -1):
            story.request(f"{field} {number}", filters=[FILTER, FILTER | {field: number}])
    story.request("of a principal", filters=[FILTER | {"principal_filter": "User:a", "host_filter": "*"}])


@of_api("DescribeClientQuotas", "security")
def describe_client_quotas(story: Story) -> None:
    def request(step: str, *components: Component, strict: bool = False) -> None:
        rows: list[dict[str, Any]] = [
            {"entity_type": kind, "match_type": options, "match": match} for kind, options, match in components
        ]
        story.request(step, components=rows, strict=strict)

    request("all")
    request("all, strict", strict=True)
    for kind in ("user", "client-id", "ip"):
        request(f"a {kind}", (kind, EXACT, "a"))
        request(f"a {kind}, strict", (kind, EXACT, "a"), strict=True)
        request(f"a {kind} without a name", (kind, EXACT, ""))
        request(f"the default {kind}", (kind, DEFAULT, None))
        request(f"any {kind}", (kind, SPECIFIED, None))
        request(f"a {kind}, null", (kind, EXACT, None))
        request(f"the default {kind}, named", (kind, DEFAULT, "a"))
        request(f"any {kind}, named", (kind, SPECIFIED, ""))
        request(f"a {kind}, match type 3", (kind, 3, None))
        request(f"a {kind}, match type -1", (kind, -1, "a"))
    request("a user and a client id", ("user", EXACT, "a"), ("client-id", SPECIFIED, None))
    request("a user twice", ("user", EXACT, "a"), ("user", EXACT, "b"))
    request("a user twice, with match type 7", ("user", EXACT, "a"), ("user", 7, None))
    request("a user and an address", ("user", EXACT, "a"), ("ip", SPECIFIED, None))
    request("an address and a client id", ("ip", EXACT, "127.0.0.1"), ("client-id", DEFAULT, None))
    request("no such type", ("host", EXACT, "a"))
    request("no such type, match type 7", ("host", 7, "a"))
    request("a type in capitals", ("USER", EXACT, "a"))
    request("an empty type", ("", EXACT, "a"))
    request("a bad match type, then no such type", ("user", 7, "a"), ("host", EXACT, "a"))
    request("no such type, then a bad match type", ("host", EXACT, "a"), ("user", 7, "a"))


@of_api("DescribeUserScramCredentials", "security")
def describe_user_scram_credentials(story: Story) -> None:
    def request(step: str, *users: str) -> None:
        story.request(step, users=[{"name": user} for user in users])

    story.request("all", users=None)
    request("an empty list")
    request("one", "a")
    request("three", "c", "a", "b")
    request("an empty name", "")
    request("one twice", "a", "a")
    request("one three times, and another one", "a", "b", "a", "a")
    request("a long name", "x" * 300)


@of_api("AlterUserScramCredentials", "security")
def alter_user_scram_credentials(story: Story) -> None:
    def delete(step: str, *names: str, mechanism: int = 1) -> None:
        story.request(step, deletions=[{"name": each, "mechanism": mechanism} for each in names], upsertions=[])

    def change(step: str, name: str, *mechanisms: int, iterations: int = 4096) -> None:
        rows = [
            {"name": name, "mechanism": each, "iterations": iterations, "salt": b"salt", "salted_password": b"p" * size}
            for each in mechanisms
            for size in (64 if each == 2 else 32,)
        ]
        story.request(step, deletions=[], upsertions=rows)

    delete("nothing")
    delete("no such user", "scram-a")
    change("a user", "scram-a", 1)
    change("again", "scram-a", 1, iterations=16384)
    change("another mechanism", "scram-a", 2)
    change("two mechanisms at once", "scram-a", 1, 2)
    change("an empty name", "", 1)
    change("no such mechanism", "scram-a", 3)
    change("mechanism 0", "scram-a", 0)
    change("too few iterations", "scram-a", 1, iterations=4095)
    change("too many iterations", "scram-a", 1, iterations=16385)
    delete("twice", "scram-a", "scram-a")
    delete("mechanism 9", "scram-a", mechanism=9)
    delete("one mechanism", "scram-a")
    delete("it again", "scram-a")
    delete("the other one", "scram-a", mechanism=2)


@of_api("SaslHandshake", "security")
def sasl_handshake(story: Story) -> None:
    """Over a listener without SASL."""
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "x", ""):
        story.request(f"mechanism {mechanism}", mechanism=mechanism)


@of_api("SaslAuthenticate", "security")
def sasl_authenticate(story: Story) -> None:
    """Over a listener without SASL."""
    story.request("a token", auth_bytes=b"\0alice\0secret")
    story.request("an empty token", auth_bytes=b"")


@of_api("CreateDelegationToken", "security")
def create_delegation_token(story: Story) -> None:
    """Over a listener without a login, as the other stories of delegation tokens."""
    story.request("a token", renewers=[], max_lifetime=-1)
    renewer = {"principal_type": "User", "principal_name": "bob"}
    story.request("with renewers", renewers=[renewer, renewer], max_lifetime=1000)
    if story.version >= 3:
        owner = {"owner_principal_type": "User", "owner_principal_name": "alice"}
        story.request("for another owner", renewers=[], max_lifetime=-1, **owner)


@of_api("RenewDelegationToken", "security")
def renew_delegation_token(story: Story) -> None:
    story.request("an unknown token", hmac=b"x", renew_period=1000)
    story.request("an empty token", hmac=b"", renew_period=-1)


@of_api("ExpireDelegationToken", "security")
def expire_delegation_token(story: Story) -> None:
    story.request("an unknown token", hmac=b"x", expiry_time_period=1000)
    story.request("an empty token", hmac=b"", expiry_time_period=-1)


@of_api("DescribeDelegationToken", "security")
def describe_delegation_token(story: Story) -> None:
    story.request("all", owners=None)
    story.request("none", owners=[])
    story.request("of an owner", owners=[{"principal_type": "User", "principal_name": "alice"}])
