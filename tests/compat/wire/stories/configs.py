"""Configs of topics, brokers, groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from tests.compat.wire.story import Response, Story, of_api

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
OTHERS = ("log.segment.bytes", "log.cleaner.threads", "consumer.session.timeout.ms")
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@of_api("DescribeConfigs", "configs")
def describe_configs(story: Story) -> None:
    topic = story.create_topic("t", cleanup_policy="compact", segment_bytes="1048576")
    node = str(story.cluster.node[0])

    def request(step: str, kind: int, name: str, *keys: str, **more: object) -> None:
        rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}]
        story.request(step, **{"resources": rows, **more})

    names = ("cleanup.policy", "segment.bytes", "max.message.bytes", "retention.ms")
    request("a topic", TOPIC, topic, *names)
    request("a topic, synonyms", TOPIC, topic, *names, include_synonyms=True)
    request("a topic, documentation", TOPIC, topic, "cleanup.policy", include_documentation=True)
    request("all of a topic", TOPIC, topic)
    story.record_only(
        "configs", *names, "no.such", "log.segment.bytes", "log.cleaner.threads", "consumer.session.timeout.ms"
    )
    request("a key that does not exist", TOPIC, topic, "no.such")
    request("unknown topic", TOPIC, story.name("unknown"))
    request("invalid topic", TOPIC, "a b")
    request("an empty topic", TOPIC, "")
    request("a broker", BROKER, node, "log.segment.bytes", "log.cleaner.threads", include_synonyms=True)
    request("every broker", BROKER, "", "log.segment.bytes", include_synonyms=True)
    request("unknown broker", BROKER, "77")
    request("no broker id", BROKER, "x")
    request("unknown logger broker", LOGGER, "77")
    request("no logger broker", LOGGER, "")
    request("a group", GROUP, story.name("g"), "consumer.session.timeout.ms", include_synonyms=True)
    request("an empty group", GROUP, "")
    request("client metrics", CLIENT_METRICS, story.name("m"))
    request("no such type", 99, "x")
    row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["cleanup.policy"]}
    story.request("the same twice", resources=[row, row])
    story.request("no keys", resources=[{**row, "configuration_keys": []}])
    story.request("nothing", resources=[])


@of_api("AlterConfigs", "configs")
def alter_configs(story: Story) -> None:
    topic = story.create_topic("t")

    def request(
        step: str, name: str, *configs: tuple[str, str | None], kind: int = TOPIC, validate_only: bool = False
    ) -> None:
        row = {"resource_type": kind, "resource_name": name}
        row["configs"] = [{"name": config, "value": value} for config, value in configs]
        story.request(step, resources=[row], validate_only=validate_only)

    request("a topic", topic, ("segment.bytes", "1048576"), ("cleanup.policy", "compact"))
    record_topic_configs(story, "both are set", topic, segment_bytes="1048576", cleanup_policy="compact")
    request("one replaces all", topic, ("retention.ms", "1000"))
    record_topic_configs(story, "the others are gone", topic, retention_ms="1000", cleanup_policy="delete")
    request("only validated", topic, ("retention.ms", "2000"), validate_only=True)
    request("none", topic)
    request("unknown config", topic, ("no.such", "1"))
    request("a bad value", topic, ("retention.ms", "x"))
    request("out of range", topic, ("segment.bytes", "1"))
    request("not a choice", topic, ("cleanup.policy", "keep"))
    request("a null value", topic, ("retention.ms", None))
    request("unknown topic", story.name("unknown"), ("retention.ms", "1"))
    request("invalid topic", "a b", ("retention.ms", "1"))
    request("an empty topic", "", ("retention.ms", "1"))
    request("a broker, only validated", "", ("log.cleaner.threads", "1"), kind=BROKER, validate_only=True)
    request("a read-only config of a broker", "", ("node.id", "3"), kind=BROKER, validate_only=True)
    request("unknown broker", "77", ("log.cleaner.threads", "1"), kind=BROKER, validate_only=True)
    request("no broker id", "x", ("log.cleaner.threads", "1"), kind=BROKER, validate_only=True)
    request("no such type", "x", ("a", "1"), kind=99)
    story.request("nothing", resources=[])


def record_topic_configs(story: Story, step: str, topic: str, **configs: str) -> None:
    """Wait until the topic has these configs; record all configs that are set on the topic."""
    fields = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}]

    def is_altered(response: Response) -> bool:
        values = {row["name"]: row["value"] for row in response["results"][0]["configs"]}
        return all(values[name.replace("_", ".")] == value for name, value in configs.items())

    response = story.call_until("DescribeConfigs", is_altered, resources=fields)
    topic_configs = {
        row["name"]: row["value"] for row in response["results"][0]["configs"] if row["config_source"] == 1
    }
    story.record(step, **topic_configs)


@of_api("IncrementalAlterConfigs", "configs")
def incremental_alter_configs(story: Story) -> None:
    topic = story.create_topic("t")

    def request(
        step: str, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, validate_only: bool = False
    ) -> None:
        row = {"resource_type": kind, "resource_name": name}
        row["configs"] = [
            {"name": config, "config_operation": operation, "value": value} for config, operation, value in changes
        ]
        story.request(step, resources=[row], validate_only=validate_only)

    request("set", topic, ("segment.bytes", SET, "1048576"))
    record_topic_configs(story, "it is set", topic, segment_bytes="1048576")
    request("append", topic, ("cleanup.policy", APPEND, "compact"))
    record_topic_configs(story, "it is appended", topic, cleanup_policy="delete,compact")
    request("subtract", topic, ("cleanup.policy", SUBTRACT, "delete"))
    record_topic_configs(story, "it is subtracted", topic, cleanup_policy="compact")
    request("delete", topic, ("segment.bytes", DELETE, None), ("cleanup.policy", DELETE, None))
    record_topic_configs(story, "it is deleted", topic, cleanup_policy="delete")
    request("delete what is not set", topic, ("segment.bytes", DELETE, None))
    request("only validated", topic, ("retention.ms", SET, "2000"), validate_only=True)
    request("none", topic)
    request("twice", topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    request("append to what is no list", topic, ("retention.ms", APPEND, "1"))
    request("no such operation", topic, ("retention.ms", 9, "1"))
    request("set to null", topic, ("retention.ms", SET, None))
    request("unknown config", topic, ("no.such", SET, "1"))
    request("a bad value", topic, ("retention.ms", SET, "x"))
    request("unknown topic", story.name("unknown"), ("retention.ms", SET, "1"))
    request("invalid topic", "a b", ("retention.ms", SET, "1"))
    request("a broker, only validated", "", ("log.cleaner.threads", SET, "1"), kind=BROKER, validate_only=True)
    request("a read-only config of a broker", "", ("node.id", SET, "3"), kind=BROKER, validate_only=True)
    request("unknown broker", "77", ("log.cleaner.threads", SET, "1"), kind=BROKER, validate_only=True)
    request("unknown logger broker", "77", ("root", SET, "INFO"), kind=LOGGER, validate_only=True)
    request("a group", story.name("g"), ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP)
    request("a group, out of range", story.name("g"), ("consumer.session.timeout.ms", SET, "1"), kind=GROUP)
    request("a group, unknown config", story.name("g"), ("no.such", SET, "1"), kind=GROUP)
    request("a group as before", story.name("g"), ("consumer.session.timeout.ms", DELETE, None), kind=GROUP)
    request("no such type", "x", ("a", SET, "1"), kind=99)
    row = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    story.request("the same topic twice", resources=[row, row])
    story.request("nothing", resources=[])


@of_api("ListConfigResources", "configs")
def list_config_resources(story: Story) -> None:
    group = story.name("g")
    change = [{"name": "consumer.session.timeout.ms", "config_operation": SET, "value": "50000"}]
    row = {"resource_type": GROUP, "resource_name": group, "configs": change}
    story.call("IncrementalAlterConfigs", resources=[row])
    story.create_topic("t")
    kinds = {"all": [], "topics": [TOPIC], "groups": [GROUP], "client metrics": [CLIENT_METRICS], "two": [TOPIC, GROUP]}

    def listed(response: Response) -> bool:
        return any(row["resource_name"] == group for row in response["config_resources"])

    story.call_until("ListConfigResources", listed, resource_types=[GROUP])
    for title, configs in kinds.items():
        if story.version >= 1 or title == "all":
            story.request_own(title, resource_types=configs)
    if story.version >= 1:
        story.request("brokers", resource_types=[BROKER])
        story.request("loggers", resource_types=[LOGGER])
        story.request("no such type", resource_types=[99])
    story.call("IncrementalAlterConfigs", resources=[{**row, "configs": [{**change[0], "config_operation": DELETE}]}])
