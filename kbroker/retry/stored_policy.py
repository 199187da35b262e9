"""Reads the policy that `kbroker retry create` has stored in the configs of a retry topic."""

from typing import Any

from kbroker.retry.batch import client_library
from kbroker.retry.policy import RetryPolicy, retry_topic_name

TIMEOUT_S = 30.0


def read_policy(admin: Any, topic: str, group: str, retry_topic: str = "") -> RetryPolicy:
    """Return the policy of a topic and a group, with an admin client of kafka-python or confluent-kafka.

    Raises PolicyError if the retry topic stores none, and the client's error if it does not exist.
    """
    name = retry_topic or retry_topic_name(topic, group)
    if client_library(admin) == "kafka":
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        described = admin.describe_configs([resource], config_filter="all")
        rows = next(iter(described.values()))[name]
        return RetryPolicy.from_configs(name, {key: row["value"] for key, row in rows.items()})
    from confluent_kafka import admin as confluent_admin

    resource = confluent_admin.ConfigResource("TOPIC", name)
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return RetryPolicy.from_configs(name, {key: entry.value for key, entry in entries.items()})


async def read_policy_async(admin: Any, topic: str, group: str, retry_topic: str = "") -> RetryPolicy:
    """Return the policy of a topic and a group, with an AIOKafkaAdminClient. Raises as `read_policy` does."""
    from aiokafka.admin import config_resource
    from aiokafka.errors import for_code

    name = retry_topic or retry_topic_name(topic, group)
    resource = config_resource.ConfigResource(config_resource.ConfigResourceType.TOPIC, name)
    [response] = await admin.describe_configs([resource])
    code, message, _, _, rows = response.resources[0]
    if code:
        raise for_code(code)(message)
    return RetryPolicy.from_configs(name, {row[0]: row[1] for row in rows})
