"""Configs of topics, brokers, groups: described, replaced, changed one by one, listed."""

from tests.compat.wire.play import Answer, Play

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OTHERS = ("log.segment.bytes", "log.cleaner.threads", "consumer.session.timeout.ms")
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe_configs(play: Play) -> None:
    topic = play.topic("t", cleanup_policy="compact", segment_bytes="1048576")
    node = str(play.cluster.node[0])

    def ask(step: str, kind: int, name: str, *keys: str, **more: object) -> None:
        rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}]
        play.ask(step, **{"resources": rows, **more})

    some = ("cleanup.policy", "segment.bytes", "max.message.bytes", "retention.ms")
    ask("a topic", TOPIC, topic, *some)
    ask("a topic, synonyms", TOPIC, topic, *some, include_synonyms=True)
    ask("a topic, documentation", TOPIC, topic, "cleanup.policy", include_documentation=True)
    ask("all of a topic", TOPIC, topic)
    play.show_only(
        "configs", *some, "no.such", "log.segment.bytes", "log.cleaner.threads", "consumer.session.timeout.ms"
    )
    ask("a key that does not exist", TOPIC, topic, "no.such")
    ask("unknown topic", TOPIC, play.name("unknown"))
    ask("invalid topic", TOPIC, "a b")
    ask("an empty topic", TOPIC, "")
    ask("a broker", BROKER, node, "log.segment.bytes", "log.cleaner.threads", include_synonyms=True)
    ask("every broker", BROKER, "", "log.segment.bytes", include_synonyms=True)
    ask("unknown broker", BROKER, "77")
    ask("no broker id", BROKER, "x")
    ask("unknown logger broker", LOGGER, "77")
    ask("no logger broker", LOGGER, "")
    ask("a group", GROUP, play.name("g"), "consumer.session.timeout.ms", include_synonyms=True)
    ask("an empty group", GROUP, "")
    ask("client metrics", METRICS, play.name("m"))
    ask("no such type", 99, "x")
    row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["cleanup.policy"]}
    play.ask("the same twice", resources=[row, row])
    play.ask("no keys", resources=[{**row, "configuration_keys": []}])
    play.ask("nothing", resources=[])


def alter_configs(play: Play) -> None:
    topic = play.topic("t")

    def ask(step: str, name: str, *configs: tuple[str, str | None], kind: int = TOPIC, only: bool = False) -> None:
        row = {"resource_type": kind, "resource_name": name}
        row["configs"] = [{"name": config, "value": value} for config, value in configs]
        play.ask(step, resources=[row], validate_only=only)

    ask("a topic", topic, ("segment.bytes", "1048576"), ("cleanup.policy", "compact"))
    seen(play, "both are set", topic, segment_bytes="1048576", cleanup_policy="compact")
    ask("one replaces all", topic, ("retention.ms", "1000"))
    seen(play, "the others are gone", topic, retention_ms="1000", cleanup_policy="delete")
    ask("only validated", topic, ("retention.ms", "2000"), only=True)
    ask("none", topic)
    ask("unknown config", topic, ("no.such", "1"))
    ask("a bad value", topic, ("retention.ms", "x"))
    ask("out of range", topic, ("segment.bytes", "1"))
    ask("not a choice", topic, ("cleanup.policy", "keep"))
    ask("a null value", topic, ("retention.ms", None))
    ask("unknown topic", play.name("unknown"), ("retention.ms", "1"))
    ask("invalid topic", "a b", ("retention.ms", "1"))
    ask("an empty topic", "", ("retention.ms", "1"))
    ask("a broker, only validated", "", ("log.cleaner.threads", "1"), kind=BROKER, only=True)
    ask("a read-only config of a broker", "", ("node.id", "3"), kind=BROKER, only=True)
    ask("unknown broker", "77", ("log.cleaner.threads", "1"), kind=BROKER, only=True)
    ask("no broker id", "x", ("log.cleaner.threads", "1"), kind=BROKER, only=True)
    ask("no such type", "x", ("a", "1"), kind=99)
    play.ask("nothing", resources=[])


def seen(play: Play, step: str, topic: str, **wanted: str) -> None:
    """Waits until the configs have these values; records all that are set on the topic itself."""
    asked = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}]

    def there(answer: Answer) -> bool:
        values = {row["name"]: row["value"] for row in answer["results"][0]["configs"]}
        return all(values[name.replace("_", ".")] == value for name, value in wanted.items())

    answer = play.until("DescribeConfigs", there, resources=asked)
    found = {row["name"]: row["value"] for row in answer["results"][0]["configs"] if row["config_source"] == 1}
    play.note(step, **found)


def incremental_alter_configs(play: Play) -> None:
    topic = play.topic("t")

    def ask(step: str, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, only: bool = False) -> None:
        row = {"resource_type": kind, "resource_name": name}
        row["configs"] = [{"name": config, "config_operation": what, "value": value} for config, what, value in changes]
        play.ask(step, resources=[row], validate_only=only)

    ask("set", topic, ("segment.bytes", SET, "1048576"))
    seen(play, "it is set", topic, segment_bytes="1048576")
    ask("append", topic, ("cleanup.policy", APPEND, "compact"))
    seen(play, "it is appended", topic, cleanup_policy="delete,compact")
    ask("subtract", topic, ("cleanup.policy", SUBTRACT, "delete"))
    seen(play, "it is subtracted", topic, cleanup_policy="compact")
    ask("delete", topic, ("segment.bytes", DELETE, None), ("cleanup.policy", DELETE, None))
    seen(play, "it is deleted", topic, cleanup_policy="delete")
    ask("delete what is not set", topic, ("segment.bytes", DELETE, None))
    ask("only validated", topic, ("retention.ms", SET, "2000"), only=True)
    ask("none", topic)
    ask("twice", topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    ask("append to what is no list", topic, ("retention.ms", APPEND, "1"))
    ask("no such operation", topic, ("retention.ms", 9, "1"))
    ask("set to null", topic, ("retention.ms", SET, None))
    ask("unknown config", topic, ("no.such", SET, "1"))
    ask("a bad value", topic, ("retention.ms", SET, "x"))
    ask("unknown topic", play.name("unknown"), ("retention.ms", SET, "1"))
    ask("invalid topic", "a b", ("retention.ms", SET, "1"))
    ask("a broker, only validated", "", ("log.cleaner.threads", SET, "1"), kind=BROKER, only=True)
    ask("a read-only config of a broker", "", ("node.id", SET, "3"), kind=BROKER, only=True)
    ask("unknown broker", "77", ("log.cleaner.threads", SET, "1"), kind=BROKER, only=True)
    ask("unknown logger broker", "77", ("root", SET, "INFO"), kind=LOGGER, only=True)
    ask("a group", play.name("g"), ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP)
    ask("a group, out of range", play.name("g"), ("consumer.session.timeout.ms", SET, "1"), kind=GROUP)
    ask("a group, unknown config", play.name("g"), ("no.such", SET, "1"), kind=GROUP)
    ask("a group as before", play.name("g"), ("consumer.session.timeout.ms", DELETE, None), kind=GROUP)
    ask("no such type", "x", ("a", SET, "1"), kind=99)
    row = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    play.ask("the same topic twice", resources=[row, row])
    play.ask("nothing", resources=[])


def list_config_resources(play: Play) -> None:
    group = play.name("g")
    change = [{"name": "consumer.session.timeout.ms", "config_operation": SET, "value": "50000"}]
    row = {"resource_type": GROUP, "resource_name": group, "configs": change}
    play.do("IncrementalAlterConfigs", resources=[row])
    play.topic("t")
    kinds = {"all": [], "topics": [TOPIC], "groups": [GROUP], "client metrics": [METRICS], "two": [TOPIC, GROUP]}

    def listed(answer: Answer) -> bool:
        return any(row["resource_name"] == group for row in answer["config_resources"])

    play.until("ListConfigResources", listed, resource_types=[GROUP])
    for title, wanted in kinds.items():
        if play.version >= 1 or title == "all":
            play.ask_own(title, resource_types=wanted)
    if play.version >= 1:
        play.ask("brokers", resource_types=[BROKER])
        play.ask("loggers", resource_types=[LOGGER])
        play.ask("no such type", resource_types=[99])
    play.do("IncrementalAlterConfigs", resources=[{**row, "configs": [{**change[0], "config_operation": DELETE}]}])
