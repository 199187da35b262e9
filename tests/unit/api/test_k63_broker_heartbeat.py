"""BrokerHeartbeat: a controlled shutdown."""

from typing import Any

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle


async def heartbeat(handlers: Handlers, broker_id: int, broker_epoch: int, **fields: Any) -> Any:
    peer = (broker_id, broker_epoch)
    return await handlers.request(
        ApiKey.BROKER_HEARTBEAT, 2, peer_broker=peer, broker_id=broker_id, broker_epoch=broker_epoch, **fields
    )


@async_test
async def test_the_leaderships_of_a_broker_move_before_it_stops():
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    topics = [NewTopic("t", assignments=[(0, [2, 1])]), NewTopic("alone", assignments=[(0, [2])])]
    await handlers.member.controller.topics.create_topics(topics, False)
    response = await heartbeat(handlers, 2, 2)
    assert (response.error_code, response.should_shut_down, response.is_fenced) == (0, False, False)
    response = await heartbeat(handlers, 2, 2, want_shut_down=True)
    assert (response.error_code, response.should_shut_down) == (0, True)
    (moved,), (alone,) = (handlers.member.image.topics[name].partitions for name in ("t", "alone"))
    assert (moved.leader, moved.isr) == (1, [1])
    assert (alone.leader, alone.isr, alone.elr) == (-1, [], [2])
    assert handlers.member.image.brokers[2].in_controlled_shutdown
    assert not handlers.member.image.is_replica_eligible(2, 2)


@async_test
async def test_a_lone_broker_keeps_its_leaderships():
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    assert (await heartbeat(handlers, 1, 1, want_shut_down=True)).should_shut_down
    assert handlers.member.image.topics["t"].partitions[0].leader == 1


@async_test
async def test_errors():
    handlers = await start_handlers()
    assert (await heartbeat(handlers, 1, 9, want_shut_down=True)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert (await heartbeat(handlers, 7, 1, want_shut_down=True)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    handlers.member.controller.resign()
    assert (await heartbeat(handlers, 1, 1, want_shut_down=True)).error_code == ErrorCode.NOT_CONTROLLER


@async_test
async def test_a_broker_says_whether_it_has_a_change():
    handlers = await start_handlers()
    number = handlers.member.controller.last_change_number
    assert (await heartbeat(handlers, 1, 1, current_metadata_offset=number)).is_caught_up
    assert not (await heartbeat(handlers, 1, 1, current_metadata_offset=number + 1)).is_caught_up
