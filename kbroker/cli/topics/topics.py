"""`kbroker topics`: create, list, describe, alter, delete."""

import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from kbroker.cli.common.client import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, topic_refusal
from kbroker.cli.common.completion import complete_topic_config_names, complete_topic_configs, complete_topics
from kbroker.cli.common.errors import complain, usage
from kbroker.cli.common.output import Cell, LongWork, chunks, counted, heading, print_json, print_table
from kbroker.cli.common.pager import pages
from kbroker.cli.common.values import INT16, INT32, assignments, config_changes
from kbroker.cli.configs.requests import Resource
from kbroker.cli.configs.requests import alter as alter_configs
from protocol.errors import ErrorCode

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

NewTopics = Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False)]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)]

MOST_TOPICS = 50  # in one request, so that there is progress to be seen


@app.command("create")
def create(
    topics: NewTopics,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=INT32, help="How many.", show_default="the broker's num.partitions"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, max=INT16, help="Copies of each.", show_default="the broker's"
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            help="A topic config; repeat for more.",
            autocompletion=complete_topic_configs,
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no failure.")] = False,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Ask the broker, but create nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics."""
    wanted = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": assignments(config or []),
    }
    done = "could be created" if validate_only else "created"
    with admin(bootstrap) as client:

        def create_some(names: Sequence[str]) -> Any:
            return client.create_topics(dict.fromkeys(names, wanted), validate_only=validate_only, raise_errors=False)

        results = _by_parts("creating topics", topics, create_some)
    _report(
        results,
        lambda result: f"{done} with {counted(result['num_partitions'], 'partition')}",
        forgiven={ErrorCode.TOPIC_ALREADY_EXISTS} if if_not_exists else set(),
    )


def _by_parts(description: str, topics: Sequence[str], act: Callable[[Sequence[str]], Any]) -> list[Any]:
    """The results of a request about topics, made in parts with a progress bar."""
    results = []
    with LongWork(description, len(topics)) as work:
        for part in chunks(list(dict.fromkeys(topics)), MOST_TOPICS):
            results += act(part)["topics"]
            work.advance(len(part))
    return results


@app.command("list")
@pages
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics as well.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics with their partition counts."""
    with admin(bootstrap) as client:
        found = client.describe_topics(None)
    listed = sorted((topic for topic in found if internal or not topic["is_internal"]), key=lambda topic: topic["name"])
    if as_json:
        print_json([summary(topic) for topic in listed])
    else:
        columns = ("name", "partitions", "replication_factor")
        print_table(
            ("topic", "partitions", "replicas"),
            [[summary(topic)[name] for name in columns] for topic in listed],
        )


def topic_id(raw: Any) -> str:
    """As Kafka's own tools print a topic id: URL-safe base64 of its 16 bytes, without padding."""
    data = raw.bytes if isinstance(raw, UUID) else UUID(str(raw)).bytes
    return urlsafe_b64encode(data).decode().rstrip("=")


def summary(topic: Mapping[str, Any]) -> dict[str, Any]:
    """A topic of a Metadata answer in a few words."""
    partitions = topic["partitions"]
    return {
        "name": topic["name"],
        "topic_id": topic_id(topic["topic_id"]),
        "internal": topic["is_internal"],
        "partitions": len(partitions),
        "replication_factor": max((len(partition["replica_nodes"]) for partition in partitions), default=0),
    }


@app.command("describe")
@pages
def describe(topics: Topics, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show partitions with leaders, replicas and offsets, and the configs that differ from the default."""
    with admin(bootstrap) as client:
        found = client.describe_topics(topics)
        missing = [topic for topic in found if topic["error_code"]]
        for topic in missing:
            complain(topic_refusal(topic["name"], topic["error_code"]))
        described = [_described(client, topic) for topic in found if not topic["error_code"]]
    if as_json:
        print_json(described)
    else:
        for topic in described:
            _print_described(topic)
    if missing:
        raise typer.Exit(1)


def _described(client: Any, topic: Mapping[str, Any]) -> dict[str, Any]:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, OffsetSpec

    name = topic["name"]
    led = [p["partition_index"] for p in topic["partitions"] if p["leader_id"] >= 0]
    ends = {
        spec: client.list_partition_offsets({TopicPartition(name, index): spec for index in led})
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    }
    configs = client.describe_configs([ConfigResource("TOPIC", name)])["topic"].get(name, {})

    def offset(spec: object, index: int) -> int | None:
        return ends[spec][TopicPartition(name, index)].offset if index in led else None

    return summary(topic) | {
        "configs": {key: config["value"] for key, config in sorted(configs.items())},
        "partitions": [
            {
                "partition": partition["partition_index"],
                "leader": partition["leader_id"],
                "leader_epoch": partition["leader_epoch"],
                "replicas": partition["replica_nodes"],
                "isr": partition["isr_nodes"],
                "earliest_offset": offset(OffsetSpec.EARLIEST, partition["partition_index"]),
                "latest_offset": offset(OffsetSpec.LATEST, partition["partition_index"]),
            }
            for partition in sorted(topic["partitions"], key=lambda partition: partition["partition_index"])
        ],
    }


def _print_described(topic: Mapping[str, Any]) -> None:
    facts = [f"id {topic['topic_id']}", counted(len(topic["partitions"]), "partition")]
    facts += ["internal"] if topic["internal"] else []
    facts += [f"{name}={value}" for name, value in topic["configs"].items()]
    heading(topic["name"], "  ".join(facts))
    print_table(
        ("partition", "leader", "epoch", "replicas", "in sync", "earliest", "latest"),
        [_partition_row(partition) for partition in topic["partitions"]],
    )


def _partition_row(partition: Mapping[str, Any]) -> list[Cell]:
    return [
        partition["partition"],
        partition["leader"] if partition["leader"] >= 0 else None,
        partition["leader_epoch"],
        ",".join(map(str, partition["replicas"])),
        ",".join(map(str, partition["isr"])),
        partition["earliest_offset"],
        partition["latest_offset"],
    ]


@app.command("alter")
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, max=INT32, help="Grow to so many partitions.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a config.", autocompletion=complete_topic_configs),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", metavar="NAME", help="Back to the default.", autocompletion=complete_topic_config_names
        ),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="NAME=VALUE", help="Add to a config that is a list."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="NAME=VALUE", help="Take from a config that is a list."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Grow a topic, and change its configs."""
    changes = config_changes(set_ or [], unset or [], append or [], subtract or [])
    if not changes and partitions is None:
        raise usage("nothing to alter: give --partitions, --set, --unset, --append or --subtract")
    with admin(bootstrap) as client:
        if changes:
            alter_configs(client, Resource("topic", topic), changes)
            print(f"{topic}: configs altered: {', '.join(changes)}")
        if partitions is not None:
            _report(
                client.create_partitions({topic: partitions}, raise_errors=False).to_dict()["results"],
                lambda _: f"has {counted(partitions, 'partition')} now",
            )


@app.command("delete")
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is no failure.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and their records. Asks first when somebody is there to answer."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes)
    with admin(bootstrap) as client:
        results = _by_parts("deleting topics", topics, lambda part: client.delete_topics(part, raise_errors=False))
    _report(
        results,
        lambda _: "deleted",
        forgiven={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if if_exists else set(),
    )


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; a script has nobody to ask and means what it says."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


def _report(
    results: Sequence[Mapping[str, Any]],
    done: Callable[[Mapping[str, Any]], str],
    forgiven: set[ErrorCode] | None = None,
) -> None:
    """One line for each result; exit status 1 when one of them failed."""
    failed = False
    for result in results:
        code = result["error_code"]
        if not code:
            print(f"{result['name']}: {done(result)}")
        elif code not in (forgiven or ()):
            complain(topic_refusal(result["name"], code, result["error_message"]))
            failed = True
    if failed:
        raise typer.Exit(1)
