"""docs/configuration.md, made from the tables of configs:

python -m kbroker.config.reference > docs/configuration.md
"""

from collections.abc import Iterable, Iterator

from kbroker.config.acting import BROKER, CLIENT_METRICS, GROUP, TOPIC, acts, inert_rows
from kbroker.config.config_def import CLUSTER_WIDE, PER_BROKER, READ_ONLY, ConfigDef, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.config.inert import by_reason
from kbroker.config.values import format_value

_INTRO = """\
# Configuration

Every topic, broker and group config of Apache Kafka 4.3 is taken, checked as Kafka checks it and described. This page
says which of them act, and why the others do not; a value other than the default of one that does not act is warned of
in the log and by `kbroker doctor`. It is made by `python -m kbroker.config.reference`.

A broker config comes from, the weakest first: its default; the file of `--config` (TOML or Kafka's own
`server.properties`); the environment (`KBROKER_LOG_RETENTION_MS` is `log.retention.ms`, where `_` stands for `.`, `__`
for `_` and `___` for `-`); `--set NAME=VALUE` and the other options of `kbroker start`; what was altered while it ran,
for all brokers and then for this one. `kbroker config show` tells which it was.
"""
_ALTERED = {READ_ONLY: "at the start", PER_BROKER: "live, per broker", CLUSTER_WIDE: "live"}
_KINDS = (
    (BROKER, "Broker configs"),
    (TOPIC, "Topic configs"),
    (GROUP, "Group configs"),
    (CLIENT_METRICS, "Client metrics"),
)


def page() -> str:
    parts = [_INTRO, *_acting("Topic configs that act", TOPIC, TOPIC_CONFIGS)]
    parts += _acting("Broker configs that act", BROKER, BROKER_CONFIGS)
    parts.append("## Configs without effect\n")
    for kind, title in _KINDS:
        parts += [f"### {title}\n", *_inert(inert_rows(kind))]
    return "\n".join(parts)


def _acting(title: str, kind: int, rows: ConfigDef) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| config | default | changes | what it does |\n|---|---|---|---|"
    for row in rows.values():
        if acts(kind, row.name):
            yield f"| `{row.name}` | {_default(row)} | {_ALTERED[row.mode]} | {_cell(row.doc)} |"
    yield ""


def _inert(rows: Iterable[ConfigKey]) -> Iterator[str]:
    yield "| because | configs, with their defaults |\n|---|---|"
    for reason, listed in by_reason(rows).items():
        yield f"| {reason} | {', '.join(f'`{row.name}` {_default(row)}' for row in listed)} |"
    yield ""


def _default(row: ConfigKey) -> str:
    text = format_value(row.default)
    return "none" if text is None else _cell(text) if text else "empty"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    print(page(), end="")
