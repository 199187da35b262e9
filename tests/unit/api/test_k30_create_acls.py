"""CreateAcls: the response of an Apache Kafka without an authorizer."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
from protocol.messages.k30_create_acls import AclCreation, AclCreationResult
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

READ_TOPIC = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
DISABLED = AclCreationResult(error_code=54, error_message="No Authorizer is configured.")


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("count", [0, 1, 3])
@async_test
async def test_security_is_disabled_for_each_acl(version: int, count: int):
    creations = [AclCreation(**READ_TOPIC)] * count
    response = await (await start_handlers()).request(ApiKey.CREATE_ACLS, version, creations=creations)
    assert response.throttle_time_ms == 0
    assert response.results == [DISABLED] * count


@pytest.mark.parametrize("change", [{"resource_type": 1}, {"operation": 99}, {"principal": ""}, {"host": ""}])
@async_test
async def test_the_contents_of_an_acl_are_not_validated(change: dict[str, object]):
    creations = [AclCreation(**READ_TOPIC | change)]
    assert (await (await start_handlers()).request(ApiKey.CREATE_ACLS, 3, creations=creations)).results == [DISABLED]


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
@async_test
async def test_an_unknown_element_closes_the_connection(version: int, field: str):
    handlers = await start_handlers()
    creations = [AclCreation(**READ_TOPIC), AclCreation(**READ_TOPIC | {field: 0})]
    with pytest.raises(MalformedError, match="unknown element"):
        await handlers.request(ApiKey.CREATE_ACLS, version, creations=creations)
