"""Every API is sent by users with no right, one, all but one, and all: the responses are those of Apache Kafka 4.4.0.

Kafka's responses are in kafka-4.4.0-authorization.json, recorded by record.py.
"""

import pytest

from protocol.apis import ALL_APIS
from tests.compat.security.authorization.case import World, load_rows, matrix_users, steps_of, versions_of
from tests.compat.security.authorization.differences import DIFFERENCES
from tests.compat.security.authorization.recorded import Recorded
from tests.compat.wire import kio_messages
from tests.compat.wire.test_stories import differing
from tests.sampling import THOROUGH

pytestmark = [pytest.mark.feature("security"), pytest.mark.client("wire")]

FIRST_OWN = 10_000
ROWS = load_rows()
RECORDED = Recorded.load()


def test_every_api_has_its_row():
    assert RECORDED.users == matrix_users()
    assert set(RECORDED.responses) == set(ROWS)
    assert {api.name for key, api in ALL_APIS.items() if key < FIRST_OWN} <= set(ROWS)


@pytest.mark.parametrize("api", [api for api in ROWS if kio_messages.api_key(api) in ALL_APIS])
def test_responses_are_those_of_kafka(world: World, api: str):
    row, versions = ROWS[api], versions_of(world, api)
    unexpected, applied = [], set()
    for version in versions:
        for user in row.users(is_highest=THOROUGH and version == versions[-1]):
            expected = [each for each in DIFFERENCES if each.applies(api, version)]
            here = steps_of(world, api, version, user)
            for step, path, of_kafka, value in differing(RECORDED.steps(api, version, user), here):
                covering = [each for each in expected if each.covers(api, step, path, of_kafka, value)]
                applied |= {each.where for each in covering}
                if not covering:
                    unexpected.append(f"{version}, {user}: {step}: {path}: Kafka {of_kafka!r}, here {value!r}")
    assert not unexpected, f"{api}: {len(unexpected)}\n" + "\n".join(unexpected[:40])
    obsolete = {each.where for each in DIFFERENCES if each.where.startswith(f"{api}/")} - applied
    assert not obsolete, f"{api}: no difference any more: {obsolete}"
