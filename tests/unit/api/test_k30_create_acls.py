"""CreateAcls: the response of an Apache Kafka without an authorizer."""

import pytest

from protocol.apis import ApiKey
from protocol.errors import MalformedError
from protocol.messages.k30_create_acls import AclCreation, AclCreationResult
from tests.unit.support.handlers import run, start_handlers

READ_TOPIC = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
REFUSED = AclCreationResult(error_code=54, error_message="No Authorizer is configured.")


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_acl_is_refused(version: int, count: int):
    async def story():
        creations = [AclCreation(**READ_TOPIC)] * count
        response = await (await start_handlers()).request(ApiKey.CREATE_ACLS, version, creations=creations)
        assert response.throttle_time_ms == 0
        assert response.results == [REFUSED] * count

    run(story)


@pytest.mark.parametrize("change", [{"resource_type": 1}, {"operation": 99}, {"principal": ""}, {"host": ""}])
def test_the_contents_of_an_acl_are_not_checked(change: dict[str, object]):
    async def story():
        creations = [AclCreation(**READ_TOPIC | change)]
        assert (await (await start_handlers()).request(ApiKey.CREATE_ACLS, 3, creations=creations)).results == [REFUSED]

    run(story)


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_an_unknown_element_is_malformed(version: int, field: str):
    async def story():
        handlers = await start_handlers()
        creations = [AclCreation(**READ_TOPIC), AclCreation(**READ_TOPIC | {field: 0})]
        with pytest.raises(MalformedError, match="unknown element"):
            await handlers.request(ApiKey.CREATE_ACLS, version, creations=creations)

    run(story)
