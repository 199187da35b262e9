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
Entity = list[tuple[str, str | None]]
# A quota with its value, None to remove it.
Op = tuple[str, float | None]


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


@of_api("AlterClientQuotas", "security")
def alter_client_quotas(story: Story) -> None:
    def entry(entity: Entity, *ops: Op) -> dict[str, Any]:
        return {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
        }

    def alter(step: str, entity: Entity, *ops: Op, validate_only: bool = False) -> None:
        story.request(step, entries=[entry(entity, *ops)], validate_only=validate_only)

    def wait_for_changes() -> None:
        """Wait until the broker has what the controller has written."""
        sync = [("client-id", f"sync-{len(story.steps)}")]
        for value in (1.0, None):
            operation = entry(sync, ("producer_byte_rate", value))
            story.call("AlterClientQuotas", entries=[operation], validate_only=False)
            component = {"entity_type": sync[0][0], "match_type": EXACT, "match": sync[0][1]}
            story.call_until(
                "DescribeClientQuotas",
                lambda response, value=value: bool(response["entries"]) == bool(value),
                components=[component],
                strict=True,
            )

    def describe(step: str, *components: Component, strict: bool = False) -> None:
        wait_for_changes()
        rows = [{"entity_type": kind, "match_type": options, "match": match} for kind, options, match in components]
        entries = story.try_call("DescribeClientQuotas", components=rows, strict=strict)["entries"]
        quotas = [
            ",".join(sorted(f"{row['entity_type']}={row['entity_name']}" for row in each["entity"]))
            + "".join(sorted(f" {row['key']}={row['value']}" for row in each["values"]))
            for each in entries
        ]
        story.record(step, quotas=sorted(quotas))

    rate = ("producer_byte_rate", 1024.0)
    user, client, other = [("user", "a b/ü")], [("client-id", "c=1,d")], [("user", "b"), ("client-id", "c")]
    story.request("nothing", entries=[], validate_only=False)
    alter("only validated", user, rate, validate_only=True)
    describe("nothing is stored")
    alter("of a user", user, rate, ("consumer_byte_rate", 2048.0), ("request_percentage", 12.5))
    alter("of a client id", client, ("controller_mutation_rate", 0.5), rate)
    alter("of a user and a client id", other, rate)
    alter("of the default user", [("user", None)], ("consumer_byte_rate", 5.0))
    alter("of the default client id", [("client-id", None)], rate)
    alter("of both defaults", [("user", None), ("client-id", None)], rate)
    alter("of a user and the default client id", [("client-id", None), ("user", "b")], rate)
    alter("of an address", [("ip", "127.0.0.9")], ("connection_creation_rate", 100.0))
    alter("of the default address", [("ip", None)], ("connection_creation_rate", 1000.0))
    describe("all")
    describe("users", ("user", SPECIFIED, None))
    describe("users, strict", ("user", SPECIFIED, None), strict=True)
    describe("one user", ("user", EXACT, "b"))
    describe("one user, strict", ("user", EXACT, "b"), strict=True)
    describe("the default user", ("user", DEFAULT, None))
    describe("a user and any client id", ("user", EXACT, "b"), ("client-id", SPECIFIED, None))
    describe("any user and the default client id", ("client-id", DEFAULT, None), ("user", SPECIFIED, None), strict=True)
    describe("addresses", ("ip", SPECIFIED, None))
    describe("no component, strict", strict=True)
    alter("an operation on what is set", user, ("producer_byte_rate", 4096.0), ("consumer_byte_rate", None))
    alter("removal of what is not set", user, ("consumer_byte_rate", None))
    alter("removal of no quota", user, ("no_such_quota", None))
    alter("removal of a quota of addresses", user, ("connection_creation_rate", None))
    alter("removal for an entity without quotas", [("user", "nobody")], ("consumer_byte_rate", None))
    describe("what is left", ("user", EXACT, user[0][1]))
    for name, value in (
        ("no_such_quota", 1.0), ("", 1.0), ("producer_byte_rate", 0.0), ("producer_byte_rate", -1.0),
        ("producer_byte_rate", 1.5), ("producer_byte_rate", 1e19), ("producer_byte_rate", float("nan")),
        ("producer_byte_rate", float("inf")), ("producer_byte_rate", 1.0000001), ("consumer_byte_rate", 0.25),
        ("request_percentage", 0.0), ("request_percentage", -1.0), ("request_percentage", 1e10),
        ("controller_mutation_rate", 0.0), ("controller_mutation_rate", float("nan")),
        ("connection_creation_rate", 1.0), ("SCRAM-SHA-256", 1.0),
    ):  # fmt: skip
        alter(f"{name} {value}", [("user", "values")], (name, value))
        describe(f"after {name} {value}", ("user", EXACT, "values"))
    for value in (0.0, -1.0, 1.5, 2147483647.0, 2147483648.0):
        alter(f"connection_creation_rate {value}", [("ip", "127.0.0.8")], ("connection_creation_rate", value))
    alter("a byte rate of an address", [("ip", "127.0.0.8")], rate)
    alter("an address of version 6", [("ip", "::1")], ("connection_creation_rate", 1.0))
    for name in ("no address", "256.1.1.1", "localhost", "1", "[::1]", "host.invalid"):
        alter(f"address {name}", [("ip", name)], ("connection_creation_rate", 1.0))
    alter("no entity", [], rate)
    alter("an unknown type", [("host", "a")], rate)
    alter("an empty type", [("", "a")], rate)
    alter("an unknown type of two", [("user", "a"), ("host", "a")], rate)
    alter("an empty user", [("user", "")], rate)
    alter("an empty client id", [("client-id", "")], rate)
    alter("an address and a user", [("ip", "127.0.0.1"), ("user", "a")], rate)
    alter("an address and a client id", [("ip", "127.0.0.1"), ("client-id", "a")], rate)
    alter("a user twice", [("user", "a"), ("user", "z")], rate)
    alter("no operations", user)
    alter("a quota twice", [("user", "twice")], rate, rate)
    describe("after a quota twice", ("user", EXACT, "twice"))
    alter("a valid and an invalid quota", [("user", "half")], rate, ("no_such_quota", 1.0))
    describe("after a valid and an invalid quota", ("user", EXACT, "half"))
    story.request("an entity twice", entries=[entry([("user", "two")], rate)] * 2, validate_only=False)
    describe("after an entity twice", ("user", EXACT, "two"))
    rows = [entry([("user", "good")], rate), entry([("user", "")], rate)]
    story.request("a good and a bad entity", entries=rows, validate_only=False)
    describe("after a good and a bad entity", ("user", EXACT, "good"))
    for each in story.try_call("DescribeClientQuotas", components=[], strict=False)["entries"]:
        entity = [(row["entity_type"], row["entity_name"]) for row in each["entity"]]
        rows = [entry(entity, *((row["key"], None) for row in each["values"]))]
        story.call("AlterClientQuotas", entries=rows, validate_only=False)
    describe("after all are removed")


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

    def change(step: str, name: str, *mechanisms: int, iterations: int = 4096, key: bytes = b"p" * 32) -> None:
        rows = [
            {"name": name, "mechanism": each, "iterations": iterations, "salt": b"salt", "salted_password": key * each}
            for each in mechanisms
        ]
        story.request(step, deletions=[], upsertions=rows)

    delete("nothing")
    delete("no such user", "scram-a")
    change("a user", "scram-a", 1)
    change("again", "scram-a", 1, iterations=16384)
    change("another mechanism", "scram-a", 2)
    change("two mechanisms at once", "scram-a", 1, 2)
    change("a salted password of another size", "scram-a", 2, key=b"p")
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
