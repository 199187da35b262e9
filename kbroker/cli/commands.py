"""The commands, and the help of the command line itself, which needs neither them nor typer."""

from typing import NamedTuple

from kbroker.cli.common.help_text import CommandHelp, HelpRow, help_text

HELP = """\
Run a broker that speaks the Kafka protocol, and work with any Kafka broker.

The exit status is 0 for success, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C."""


class CommandSource(NamedTuple):
    """The definition of a command: `name` in `module` is a function or, for a group of commands, a typer.Typer."""

    module: str
    name: str
    help: str


COMMANDS = {
    "start": CommandSource("kbroker.cli.start.command", "start", "Run a broker until SIGTERM or SIGINT."),
    "config": CommandSource("kbroker.cli.configs.show", "app", "Show the configuration that a broker starts with."),
    "cluster": CommandSource(
        "kbroker.cli.cluster.app", "app", "Show the state of the cluster, and guide through a rolling restart."
    ),
    "brokers": CommandSource("kbroker.cli.cluster.brokers", "app", "List brokers, balance, drain and replace them."),
    "topics": CommandSource("kbroker.cli.topics.app", "app", "Create, list, describe, alter and delete topics."),
    "produce": CommandSource("kbroker.cli.records.produce", "produce", "Produce records to a topic."),
    "consume": CommandSource("kbroker.cli.records.consume", "consume", "Print records of topics."),
    "bench": CommandSource("kbroker.cli.bench", "app", "Measure how fast records are produced and consumed."),
    "groups": CommandSource("kbroker.cli.groups.app", "app", "List, describe, reset and delete consumer groups."),
    "retry": CommandSource("kbroker.cli.retry", "app", "Create and list the retry topics of topics and groups."),
    "dlq": CommandSource("kbroker.cli.dlq.app", "app", "List, show, redrive and purge dead letters."),
    "delayed": CommandSource("kbroker.cli.delayed", "app", "List, count, cancel and deliver delayed records."),
    "transactions": CommandSource(
        "kbroker.cli.transactions.app", "app", "List and describe transactions, find and end hanging ones."
    ),
    "users": CommandSource("kbroker.cli.users", "app", "List, set and delete the SCRAM users of secured listeners."),
    "acls": CommandSource("kbroker.cli.acls", "app", "List, add and remove ACLs: what clients may do."),
    "quotas": CommandSource(
        "kbroker.cli.quotas", "app", "List, set and remove quotas of users, clients and addresses."
    ),
    "configs": CommandSource(
        "kbroker.cli.configs.app", "app", "Get, set and unset configs of topics, brokers, groups and client metrics."
    ),
    "log": CommandSource("kbroker.cli.log.app", "app", "Dump and verify the files of a data directory."),
    "backup": CommandSource("kbroker.cli.backup", "backup", "Copy the data directory of a broker that may run."),
    "restore": CommandSource("kbroker.cli.backup", "restore", "Copy a backup into an empty data directory."),
    "archive": CommandSource("kbroker.cli.archive.app", "app", "Archive topics as Parquet files."),
    "replay": CommandSource("kbroker.cli.replay.replay", "replay", "Produce the records of an archive to topics."),
    "pipeline": CommandSource("kbroker.cli.pipeline.app", "app", "Run Spark jobs on topics."),
    "tools": CommandSource("kbroker.cli.tools.app", "app", "Print captured requests and responses."),
    "console": CommandSource("kbroker.cli.console", "console", "Serve pages that show a cluster in a browser."),
    "doctor": CommandSource("kbroker.cli.doctor.doctor", "doctor", "Check whether a broker can start and run well."),
    "completion": CommandSource("kbroker.cli.shell", "completion", "Print the completion script of a shell."),
    "version": CommandSource("kbroker.cli.shell", "version", "Print the version, and the commit of a checkout."),
}

_OPTIONS = [
    HelpRow("--version", "Print the version and exit."),
    HelpRow("--install-completion", "Install completion for the current shell."),
    HelpRow("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
    HelpRow("-h, --help", "Show this message and exit."),
]


def root_help() -> str:
    """Return the text of `kbroker --help`. Loading typer would take longer than the rest."""
    commands = [HelpRow(name, source.help) for name, source in COMMANDS.items()]
    return help_text(CommandHelp("kbroker [OPTIONS] COMMAND", HELP.split("\n\n"), [], [], _OPTIONS, commands))
