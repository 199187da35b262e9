"""Replays requests of DescribeAcls, CreateAcls and DeleteAcls, and compares the responses with Apache Kafka's.

kafka_4_4_acls.jsonl has one step per line, in order: [API, rows, responses]. A row has the elements of an ACL or a
filter in the order of `Acl`. The recorded node was started with Kafka's authorizer and super.users=User:ANONYMOUS. To
record the responses again:

    python -m tests.unit.support.acl_recording HOST:PORT
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbroker.authorization.authorizer import Authorizer
from kbroker.common import ANONYMOUS
from protocol.apis import ApiKey
from protocol.errors import MalformedError
from protocol.messages.k29_acls import AclCreation, DeleteAclsFilter
from tests.unit.support.handlers import Handlers, start_handlers

RESPONSES = Path(__file__).with_name("kafka_4_4_acls.jsonl")
DESCRIBE, CREATE, DELETE = "DescribeAcls", "CreateAcls", "DeleteAcls"
CLOSED = "closed"
CREATION = ("resource_type", "resource_pattern_type", "resource_name", "principal", "host", "operation",
            "permission_type")  # fmt: skip
FILTER = ("resource_type_filter", "pattern_type_filter", "resource_name_filter", "principal_filter", "host_filter",
          "operation", "permission_type")  # fmt: skip
FOUND = ("resource_type", "pattern_type", "resource_name", "principal", "host", "operation", "permission_type")

Row = list[Any]
ACL: Row = [2, 3, "t", "User:a", "*", 3, 3]
ALL: Row = [1, 1, None, None, None, 1, 1]
TYPE, PATTERN, NAME, PRINCIPAL, HOST, OPERATION, PERMISSION = range(7)


def changed(row: Row, changes: Mapping[int, object]) -> Row:
    return [changes.get(index, value) for index, value in enumerate(row)]


def steps() -> list[tuple[str, list[Row]]]:
    """Return the requests."""

    def create(*changes: Mapping[int, object]) -> None:
        made.append((CREATE, [changed(ACL, each) for each in changes]))

    def describe(**changes: object) -> None:
        made.append((DESCRIBE, [changed(ALL, {globals()[name]: value for name, value in changes.items()})]))

    def delete(*changes: Mapping[int, object]) -> None:
        made.append((DELETE, [changed(ALL, each) for each in changes]))

    made: list[tuple[str, list[Row]]] = []
    describe()
    create()
    create({})
    create({}, {NAME: "u"}, {NAME: "u"})
    for element in (TYPE, PATTERN, OPERATION, PERMISSION):
        for number in (0, 1, 2, 99, -1):
            create({NAME: "w"}, {element: number})
            describe(**{("TYPE", "PATTERN", "", "", "", "OPERATION", "PERMISSION")[element]: number})
            delete({element: number, NAME: "unused"})
    for element in (NAME, PRINCIPAL, HOST):
        create({element: ""})
    for principal in ("a", "User", "User:", ":a", ":", "Group:x", "User:a:b", "User:*", "user:a", "*", "User: é"):
        create({PRINCIPAL: principal})
    for host in ("x", "::1", "10.0.0.0/8", " * "):
        create({HOST: host})
    create({TYPE: 4, NAME: "x"}, {TYPE: 4, NAME: "*"}, {TYPE: 4, NAME: "kafka-cluster", PATTERN: 4})
    create({OPERATION: 9}, {TYPE: 7, OPERATION: 13}, {TYPE: 6, OPERATION: 8}, {TYPE: 5, OPERATION: 15}, {OPERATION: 16})
    create({NAME: "a b/c"}, {NAME: "x" * 400}, {NAME: "*", PATTERN: 4}, {NAME: "*"}, {NAME: "ok", PATTERN: 4})
    # Several errors: which comes first.
    create(
        {TYPE: 4, NAME: "x", OPERATION: 99}, {NAME: "", OPERATION: 99}, {PRINCIPAL: "a", OPERATION: 99},
        {TYPE: 99, PATTERN: 99, OPERATION: 99, PERMISSION: 99}, {PATTERN: 99, OPERATION: 99, PERMISSION: 99},
        {OPERATION: 99, PERMISSION: 99}, {HOST: "", PRINCIPAL: "a"}, {HOST: "", OPERATION: 99}, {NAME: "fine"},
    )  # fmt: skip
    create({TYPE: 4, NAME: "x"}, {OPERATION: 1})
    describe()
    describe(PATTERN=2, NAME="okay")
    describe(PATTERN=3, NAME="*")
    describe(NAME="")
    describe(PRINCIPAL="User:*")
    describe(PRINCIPAL="")
    describe(TYPE=4)
    describe(HOST="::1")
    delete()
    delete({OPERATION: 99}, {NAME: "ok"}, {NAME: "ok"})
    delete({PATTERN: 99}, {NAME: "*", TYPE: 2, PATTERN: 4}, {PATTERN: 99, OPERATION: 99})
    delete({PATTERN: 2, NAME: "t"})
    describe()
    delete({}, {PRINCIPAL: "User:a"})
    describe()
    return made


def values(row: object, names: Sequence[str]) -> Row:
    return [
        getattr(row, name) if isinstance(getattr(row, name), str | None) else int(getattr(row, name)) for name in names
    ]


def plain(api: str, response: Any) -> Any:
    """Return a response as JSON values. Kafka's order of ACLs is arbitrary."""
    if api == CREATE:
        return [[int(each.error_code), each.error_message] for each in response.results]
    if api == DELETE:
        return [
            [int(each.error_code), each.error_message, sorted(values(acl, FOUND) for acl in each.matching_acls)]
            for each in response.filter_results
        ]
    acls = [
        [int(each.resource_type), int(each.pattern_type), each.resource_name, *values(acl, FOUND[3:])]
        for each in response.resources
        for acl in each.acls
    ]
    return [int(response.error_code), response.error_message, sorted(acls)]


async def handlers_with_acls(**configs: str) -> Handlers:
    """Start handlers whose authorizer follows the image, as a broker's does. User:ANONYMOUS is a super user."""
    handlers = await start_handlers(**configs)
    image = handlers.member.image
    authorizer = handlers.services.authorizer = Authorizer(image.rules, [ANONYMOUS], False)
    handlers.member.add_roles_listener(lambda delta: authorizer.use(image.rules) if delta.rules else None)
    return handlers


async def replay(version: int) -> list[str]:
    """Replay all steps in a version. Return the differences in the responses."""
    handlers = await handlers_with_acls()
    differences = []
    for line in RESPONSES.open():
        api, rows, recorded = json.loads(line)
        try:
            if api == CREATE:
                creations = [AclCreation(**dict(zip(CREATION, row, strict=True))) for row in rows]
                response = await handlers.request(ApiKey.CREATE_ACLS, version, creations=creations)
            elif api == DELETE:
                filters = [DeleteAclsFilter(**dict(zip(FILTER, row, strict=True))) for row in rows]
                response = await handlers.request(ApiKey.DELETE_ACLS, version, filters=filters)
            else:
                response = await handlers.request(
                    ApiKey.DESCRIBE_ACLS, version, **dict(zip(FILTER, rows[0], strict=True))
                )
            here = plain(api, response)
        except MalformedError:
            here = CLOSED
        if here != recorded:
            differences.append(f"{api} {rows}: {here}, not {recorded}")
    return differences


def record(bootstrap: str) -> None:
    """Send all requests to a new node of Kafka, and store its responses."""
    from tests.compat.broker_connection import ConnectionClosedError
    from tests.compat.wire.client import Client  # which needs kio

    client = Client(bootstrap)
    lines = []
    for api, rows in steps():
        names = CREATION if api == CREATE else FILTER
        fields = [dict(zip(names, row, strict=True)) for row in rows]
        field = {CREATE: "creations", DELETE: "filters"}.get(api)
        try:
            response = client.request(api, 3, **({field: fields} if field else fields[0]))
            answer = plain(api, response)
        except ConnectionClosedError:
            answer = CLOSED
            client = Client(bootstrap)
        if api != DESCRIBE:
            # Kafka lists new ACLs a moment after its response.
            time.sleep(0.1)
        lines.append(json.dumps([api, rows, answer], ensure_ascii=False))
    RESPONSES.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
