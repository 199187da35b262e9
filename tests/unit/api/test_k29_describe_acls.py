"""DescribeAcls: the response of an Apache Kafka without an authorizer."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
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


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("change", [{}, {"resource_type_filter": 99}, {"operation": -3}, {"principal_filter": "x"}])
@async_test
async def test_security_is_disabled(version: int, change: dict[str, object]):
    response = await (await start_handlers()).request(ApiKey.DESCRIBE_ACLS, version, **EVERYTHING | change)
    assert (response.throttle_time_ms, response.error_code, response.resources) == (0, 54, [])
    assert response.error_message == "No Authorizer is configured on the broker"


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
@async_test
async def test_an_unknown_element_closes_the_connection(version: int, field: str):
    handlers = await start_handlers()
    with pytest.raises(MalformedError, match="unknown element"):
        await handlers.request(ApiKey.DESCRIBE_ACLS, version, **EVERYTHING | {field: 0})
