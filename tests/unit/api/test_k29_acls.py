"""DescribeAcls, CreateAcls and DeleteAcls: the responses of an Apache Kafka without an authorizer."""

from typing import Any

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
from protocol.messages.k29_acls import AclCreation, AclCreationResult, DeleteAclsFilter, DeleteAclsFilterResult
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

ANY = 1
EVERYTHING = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}
READ_TOPIC = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER_TYPES = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
ACL_TYPES = ("resource_type", "resource_pattern_type", "operation", "permission_type")
DISABLED: dict[str, Any] = {"error_code": 54, "error_message": "No Authorizer is configured."}


async def request(key: ApiKey, version: int, **fields: object) -> Any:
    return await (await start_handlers()).request(key, version, **fields)


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("change", [{}, {"resource_type_filter": 99}, {"operation": -3}, {"principal_filter": "x"}])
@async_test
async def test_describe(version: int, change: dict[str, object]):
    response = await request(ApiKey.DESCRIBE_ACLS, version, **EVERYTHING | change)
    assert (response.throttle_time_ms, response.error_code, response.resources) == (0, 54, [])
    assert response.error_message == "No Authorizer is configured on the broker"


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("count", [0, 1, 3])
@async_test
async def test_create_and_delete_have_a_result_for_each_element(version: int, count: int):
    created = await request(ApiKey.CREATE_ACLS, version, creations=[AclCreation(**READ_TOPIC)] * count)
    assert (created.throttle_time_ms, created.results) == (0, [AclCreationResult(**DISABLED)] * count)
    deleted = await request(ApiKey.DELETE_ACLS, version, filters=[DeleteAclsFilter(**EVERYTHING)] * count)
    assert (deleted.throttle_time_ms, deleted.filter_results) == (0, [DeleteAclsFilterResult(**DISABLED)] * count)


@pytest.mark.parametrize("change", [{"resource_type": 1}, {"operation": 99}, {"principal": ""}, {"host": ""}])
@async_test
async def test_the_contents_of_an_acl_are_not_validated(change: dict[str, object]):
    response = await request(ApiKey.CREATE_ACLS, 3, creations=[AclCreation(**READ_TOPIC | change)])
    assert response.results == [AclCreationResult(**DISABLED)]


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize(
    ("key", "field"),
    [
        *((ApiKey.DESCRIBE_ACLS, field) for field in FILTER_TYPES),
        *((ApiKey.CREATE_ACLS, field) for field in ACL_TYPES),
        *((ApiKey.DELETE_ACLS, field) for field in FILTER_TYPES),
    ],
)
@async_test
async def test_an_unknown_element_closes_the_connection(key: ApiKey, field: str, version: int):
    fields: dict[str, object] = EVERYTHING | {field: 0}
    if key is ApiKey.CREATE_ACLS:
        fields = {"creations": [AclCreation(**READ_TOPIC), AclCreation(**READ_TOPIC | {field: 0})]}
    elif key is ApiKey.DELETE_ACLS:
        fields = {"filters": [DeleteAclsFilter(**EVERYTHING), DeleteAclsFilter(**EVERYTHING | {field: 0})]}
    with pytest.raises(MalformedError, match="unknown element"):
        await request(key, version, **fields)
