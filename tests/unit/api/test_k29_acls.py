"""DescribeAcls, CreateAcls, DeleteAcls: the responses of Apache Kafka 4.4.0, recorded by acl_recording.py."""

import json
import logging

import pytest

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k29_acls import AclCreation, DeleteAclsFilter
from tests.unit.support.acl_recording import (
    ACL,
    ALL,
    CREATION,
    FILTER,
    RESPONSES,
    handlers_with_acls,
    replay,
    steps,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

NEW = AclCreation(**dict(zip(CREATION, ACL, strict=True)))
ANY = dict(zip(FILTER, ALL, strict=True))


@pytest.mark.parametrize("version", [1, 2, 3])
@async_test
async def test_responses_are_those_of_kafka(version: int) -> None:
    assert await replay(version) == []


def test_all_steps_are_recorded() -> None:
    recorded = [json.loads(line)[:2] for line in RESPONSES.open()]
    assert recorded == [list(step) for step in steps()]


@async_test
async def test_resources_are_listed_once_with_all_their_acls() -> None:
    handlers = await handlers_with_acls()
    rows = [(name, user) for name in "ba" for user in ("User:d", "User:c")]
    creations = [AclCreation(**dict(zip(CREATION, (2, 3, *row, "*", 3, 3), strict=True))) for row in rows]
    await handlers.request(ApiKey.CREATE_ACLS, 3, creations=creations)
    response = await handlers.request(ApiKey.DESCRIBE_ACLS, 3, **ANY)
    assert [(each.resource_name, [acl.principal for acl in each.acls]) for each in response.resources] == [
        ("a", ["User:c", "User:d"]),
        ("b", ["User:c", "User:d"]),
    ]


@async_test
async def test_without_an_authorizer_there_is_no_access_control() -> None:
    handlers = await start_handlers()
    disabled = ErrorCode.SECURITY_DISABLED
    response = await handlers.request(ApiKey.CREATE_ACLS, 3, creations=[NEW, NEW])
    assert [(each.error_code, each.error_message) for each in response.results] == [
        (disabled, "No Authorizer is configured.")
    ] * 2
    response = await handlers.request(ApiKey.DELETE_ACLS, 3, filters=[DeleteAclsFilter(**ANY)])
    assert [(each.error_code, each.error_message) for each in response.filter_results] == [
        (disabled, "No Authorizer is configured.")
    ]
    response = await handlers.request(ApiKey.DESCRIBE_ACLS, 3, **ANY)
    assert (response.error_code, response.error_message) == (disabled, "No Authorizer is configured on the broker")


@async_test
async def test_a_broker_that_is_not_the_controller_says_so() -> None:
    handlers = await handlers_with_acls()
    handlers.member.controller.resign()
    response = await handlers.request(ApiKey.CREATE_ACLS, 3, creations=[NEW])
    assert [each.error_code for each in response.results] == [ErrorCode.NOT_CONTROLLER]
    response = await handlers.request(ApiKey.DELETE_ACLS, 3, filters=[DeleteAclsFilter(**ANY)])
    assert [each.error_code for each in response.filter_results] == [ErrorCode.NOT_CONTROLLER]


@async_test
async def test_changes_are_logged_with_who_has_made_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handlers = await handlers_with_acls()
    await handlers.request(ApiKey.CREATE_ACLS, 3, creations=[NEW])
    await handlers.request(ApiKey.DELETE_ACLS, 3, filters=[DeleteAclsFilter(**ANY)])
    lines = [str(record.msg) for record in caplog.records if record.name == "kbroker.changes"]
    assert lines == [
        f'changed resource=TOPIC:t change="ACL {verb}: ALLOW READ to User:a from *" '
        f"principal=User:ANONYMOUS host=127.0.0.1 client=client api={verb[:-1].capitalize()}Acls"
        for verb in ("created", "deleted")
    ]
