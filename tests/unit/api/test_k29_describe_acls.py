"""DescribeAcls: the response of an Apache Kafka without an authorizer."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
from tests.unit.support.handlers import run, start_handlers

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
def test_there_is_no_authorizer(version: int, change: dict[str, object]):
    async def story():
        response = await (await start_handlers()).request(ApiKey.DESCRIBE_ACLS, version, **EVERYTHING | change)
        assert (response.throttle_time_ms, response.error_code, response.resources) == (0, 54, [])
        assert response.error_message == "No Authorizer is configured on the broker"

    run(story)


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_an_unknown_element_is_malformed(version: int, field: str):
    async def story():
        handlers = await start_handlers()
        with pytest.raises(MalformedError, match="unknown element"):
            await handlers.request(ApiKey.DESCRIBE_ACLS, version, **EVERYTHING | {field: 0})

    run(story)
