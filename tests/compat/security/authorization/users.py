"""The users of the matrix, with their ACLs. Resources of the matrix are called "in....", and some others "out...."."""

from typing import Any, NamedTuple

PASSWORD = "secret"
SUPER, NOTHING, ELSEWHERE, EVERYTHING = "super", "nothing", "elsewhere", "everything"
THIS_HOST, ANOTHER_HOST = "127.0.0.1", "10.1.2.3"
INSIDE, OUTSIDE = "in.", "out."
CLUSTER_NAME = "kafka-cluster"

RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
OPERATIONS = {
    "ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "ALTER": 7, "DESCRIBE": 8, "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10, "ALTER_CONFIGS": 11, "IDEMPOTENT_WRITE": 12, "TWO_PHASE_COMMIT": 15,
}  # fmt: skip
OPERATIONS_OF = {
    "topic": "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    "group": "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    "transactional-id": "DESCRIBE WRITE TWO_PHASE_COMMIT",
    "cluster": "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE",
}
# An operation and a type of resources.
RIGHTS = [f"{operation} {kind}" for kind, operations in OPERATIONS_OF.items() for operation in operations.split()]


class Grant(NamedTuple):
    right: str
    name: str
    pattern: int = LITERAL
    permission: int = ALLOW
    host: str = "*"

    def acl(self, user: str) -> dict[str, Any]:
        """Return a row of CreateAcls."""
        operation, kind = self.right.split()
        return {
            "resource_type": RESOURCES[kind],
            "resource_name": self.name,
            "resource_pattern_type": self.pattern,
            "principal": f"User:{user}",
            "host": self.host,
            "operation": OPERATIONS[operation],
            "permission_type": self.permission,
        }


def inside(right: str, permission: int = ALLOW) -> Grant:
    """Return the grant of a right for the resources that are called "in....", or for the cluster."""
    if right.endswith("cluster"):
        return Grant(right, CLUSTER_NAME, permission=permission)
    return Grant(right, INSIDE, PREFIXED, permission)


def everything(permission: int = ALLOW, host: str = "*") -> list[Grant]:
    names = {kind: CLUSTER_NAME if kind == "cluster" else "*" for kind in RESOURCES}
    return [Grant(f"ALL {kind}", name, permission=permission, host=host) for kind, name in names.items()]


def only(*rights: str) -> str:
    return f"only {', '.join(rights)}"


def without(right: str) -> str:
    return f"without {right}"


def grants_of(user: str) -> list[Grant]:
    """Return what a user has, by the user's name."""
    if user in FIXED:
        return FIXED[user]
    kind, _, rights = user.partition(" ")
    if kind == "only":
        return [inside(right) for right in rights.split(", ")]
    return [*everything(), inside(rights, DENY)]


FIXED = {
    SUPER: [],
    NOTHING: [],
    ELSEWHERE: [Grant(f"ALL {kind}", OUTSIDE, PREFIXED) for kind in RESOURCES if kind != "cluster"],
    EVERYTHING: everything(),
    "from this host": everything(host=THIS_HOST),
    "from another host": everything(host=ANOTHER_HOST),
    "not from this host": [*everything(), *everything(DENY, THIS_HOST)],
    "not from another host": [*everything(), *everything(DENY, ANOTHER_HOST)],
    "by name": [Grant("ALL topic", "in.t"), Grant("ALL group", "in.g"), Grant("ALL transactional-id", "in.x")],
    "the beginning of a name": [Grant("ALL topic", "in."), Grant("ALL group", "in."), Grant("ALL topic", "in.t.u")],
}


def users_of(rights: tuple[str, ...]) -> list[str]:
    """Return the users that matter most for an API which checks these rights."""
    users = [NOTHING, ELSEWHERE, EVERYTHING, SUPER, "from another host", "by name"]
    for right in rights:
        users += [only(right), without(right)]
    return users + ([only(*rights)] if len(rights) > 1 else [])


def all_users(rights: tuple[str, ...]) -> list[str]:
    """Return the users of the whole matrix, and the one with exactly the rights of an API."""
    users = [*FIXED, *map(only, RIGHTS), *map(without, RIGHTS)]
    return users + ([only(*rights)] if len(rights) > 1 else [])


def login(user: str) -> str:
    """Return the name with which a user logs in."""
    return user.replace(" ", "-").replace(",", "")


def settings(users: list[str]) -> dict[str, str]:
    """Return the broker configs of the matrix, apart from the listeners: of Kafka and of kbroker."""
    passwords = " ".join(f'user_{login(user)}="{PASSWORD}"' for user in users)
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{SUPER};User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
        f" required {passwords};",
        "group.initial.rebalance.delay.ms": "0",
    }
