"""Deliberate mistakes at the command line: one line that says what to do, no traceback, the documented exit status."""

import pytest

from tests.unit.cli.lists.conftest import Run

# The command line, the exit status, and a part of the line.
MISTAKES = [
    # Global options, and commands that do not exist.
    ("toppics list", 2, "No such command 'toppics'. Did you mean 'topics'?"),
    ("topics lst", 2, "Did you mean 'list'? (see kbroker topics --help)"),
    ("--bogus", 2, "No such option: --bogus (see kbroker --help)"),
    ("version 3", 2, "unexpected extra argument(s) (3) (see kbroker version --help)"),
    ("completion", 2, "Missing argument 'SHELL'"),
    ("completion csh", 2, "SHELL must be one of bash, zsh, fish, powershell, pwsh, not 'csh'"),
    ("topics list --intenal", 2, "No such option: --intenal (Possible options: --internal)"),
    ("topics list --watch=soon", 2, "'soon' is not a number"),
    ("topics list --watch 0", 2, "0.0 is not in the range x>=0.1"),
    ("topics list --bootstrap", 2, "'--bootstrap' requires an argument"),
    ("topics list -b localhost:port", 2, "--bootstrap must be HOST:PORT, not 'localhost:port'"),
    ("topics list -b 127.0.0.1:99999", 2, "--bootstrap must be HOST:PORT"),
    ("topics list -b [::1", 2, "an IPv6 address needs brackets, as in [::1]:9092"),
    ("topics list -b absent.invalid", 1, "cannot connect to absent.invalid:9092: "),
    ("topics list -b 127.0.0.1:1", 1, "Connection refused (start a broker with: kbroker start)"),
    ("topics list --command-config /absent", 1, "--command-config /absent: /absent: No such file or directory"),
    ("topics list --login alice", 2, "--login needs the password in KBROKER_PASSWORD, or a terminal"),
    ("topics list --tls-ca /absent", 1, "--tls-ca: cannot load /absent: No such file or directory"),
    # Topics.
    ("topics create", 2, "Missing argument 'TOPIC...'"),
    ("topics create a/b", 1, "other than ASCII alphanumerics, '.', '_' and '-' (INVALID_TOPIC_EXCEPTION)"),
    ("topics create orders", 1, "Topic 'orders' already exists (TOPIC_ALREADY_EXISTS)"),
    ("topics create new --partitions many", 2, "'many' is not a whole number"),
    ("topics create new --partitions 0", 2, "0 is not in the range 1<=x<=2147483647"),
    ("topics create new --replication-factor 3", 1, "only 1 broker(s) are registered"),
    ("topics create new --config retention", 2, "expected NAME=VALUE, not 'retention'"),
    ("topics create new --config retention.ms=-7", 1, "Value must be at least -1 (INVALID_CONFIG)"),
    ("topics create new --config retentoin.ms=1", 1, "retentoin.ms (did you mean retention.ms?) (INVALID_CONFIG)"),
    ("topics create new --view-of absent", 1, "the topic 'absent' does not exist; create it first"),
    ("topics create new --view-of orders --filter (", 1, "'(' is not a tag; expected * or, for example, TagA"),
    ("topics describe", 2, "name a topic, or use a filter such as --under-replicated"),
    ("topics describe absent", 1, "topic absent does not exist"),
    ("topics delete absent", 1, "topic absent does not exist"),
    ("topics alter orders", 2, "nothing to alter: use --partitions, --replication-factor, --set"),
    ("topics alter absent --partitions 3", 1, "topic absent does not exist"),
    ("topics alter orders --set retentoin.ms=1", 1, "(did you mean retention.ms?) (INVALID_CONFIG)"),
    ("topics alter orders --replication-factor 3 --yes", 1, "only 1 broker(s) accept replicas"),
    ("topics delete-records orders", 2, "choose one: --until TIME, --offset OFFSET or --all"),
    ("topics delete-records orders --offset 3", 2, "--offset needs --partition"),
    ("topics delete-records orders -p 9 --offset 3", 1, "topic orders has no partition 9"),
    ("topics delete-records orders --until yesterday", 2, "expected a time such as 2026-01-31T12:00"),
    # Groups.
    ("groups list --state asleep", 2, "--state must be one of PreparingRebalance, "),
    ("groups list --type queue", 2, "--type must be one of classic, consumer, share, streams, not 'queue'"),
    ("groups describe", 2, "Missing argument 'GROUP...'"),
    ("groups describe absent", 1, "(GROUP_ID_NOT_FOUND)"),
    ("groups delete absent", 1, "(GROUP_ID_NOT_FOUND)"),
    ("groups delete-offsets billing --topic absent", 1, "group billing: nothing is committed for absent"),
    ("groups reset-offsets billing --topic orders", 2, "choose one target: --to-earliest, --to-latest, "),
    ("groups reset-offsets billing --to-latest", 2, "choose topics: --topic TOPIC[:PARTITION,...] or --all-topics"),
    ("groups reset-offsets billing --topic orders:7 --to-latest", 1, "topic orders has no partition 7: it has 2"),
    ("groups reset-offsets billing --from-file /absent", 1, "cannot read /absent: No such file or directory"),
    # Cluster and brokers.
    ("cluster stats", 2, "Did you mean 'status'?"),
    ("cluster roll 7", 1, "there is no broker 7"),
    ("brokers drain", 2, "Missing argument 'ID...'"),
    ("brokers drain one", 2, "'one' is not a whole number"),
    ("brokers replace 1 7", 1, "there is no broker 7"),
    ("brokers balance --throttle fast", 2, "expected a size such as 128MiB or 1GiB, not 'fast'"),
    ("brokers execute /absent.json", 1, "/absent.json: No such file or directory"),
    ("brokers plan --cancel", 1, "no plan is running"),
    # Users, ACLs and quotas.
    ("users set alice --mechanism MD5", 2, "--mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
    ("users set alice --iterations 1", 2, "1 is not in the range 4096<=x<=16384"),
    ("users delete nobody", 1, "user nobody has no password"),
    ("acls add --topic orders", 2, "name a principal with --allow or --deny"),
    ("acls add --allow User:alice", 2, "name a resource with --topic, --group, --transactional-id or --cluster"),
    ("acls add --topic orders --allow alice", 2, "a principal has a type and a name, such as User:alice"),
    ("acls add --topic orders --allow User:alice --operation FLY", 2, "--operation must be one of ALL, READ, "),
    ("acls remove", 2, "or a principal"),
    ("quotas set producer_byte_rate=1", 2, "name an entity: --user, --client-id, --ip or --default"),
    ("quotas set producer_byte_rate=fast --user alice", 2, "expected a size such as 128MiB"),
    ("quotas set producer_byte_rat=1 --user alice", 1, "Invalid configuration key producer_byte_rat"),
    ("quotas remove --user nobody", 1, "the entity has no quota"),
    ("quotas list --default everyone", 2, "--default must be one of user, client-id, ip"),
    # Transactions.
    ("transactions list --state Running", 2, "--state must be one of Empty, Ongoing, "),
    ("transactions list --longer-than long", 2, "expected a duration such as 90s, 1h30m or P1DT2H, not 'long'"),
    ("transactions list --pattern (", 1, "Invalid regular expression (INVALID_REGULAR_EXPRESSION)"),
    ("transactions describe absent", 1, "(TRANSACTIONAL_ID_NOT_FOUND)"),
    ("transactions producers orders:9", 1, "topic orders has no partition 9: it has 2"),
    ("transactions producers orders --broker 9", 1, "there is no broker 9"),
    ("transactions abort orders", 2, "expected TOPIC:PARTITION, not 'orders'"),
    ("transactions abort orders:0 --start-offset 5", 1, "no open transaction that begins at offset 5"),
    # Doctor, archives, retry topics, dead letters and delayed records.
    ("doctor --bogus", 2, "No such option: --bogus (see kbroker doctor --help)"),
    ("archive list /absent", 1, "/absent: is not an archive and contains none"),
    ("archive describe /absent", 1, "no archive found; create one with: kbroker archive run"),
    ("retry create orders", 2, "Missing option '--group' / '-g'"),
    ("retry create absent --group g", 1, "topic absent does not exist"),
    ("dlq show absent", 1, "topic absent does not exist"),
    ("dlq redrive orders", 1, "errors.deadletterqueue.group.enable is not true"),
    ("dlq purge dead", 2, "choose one: --until TIME, --offset OFFSET or --all"),
    ("delayed list orders", 1, "kbroker.delay.enable is not true"),
    ("delayed cancel reminders", 2, "choose one: --offset OFFSET with --partition, or --key KEY"),
    ("delayed count reminders -p 9", 1, "topic reminders has no partition 9: it has 1"),
]


@pytest.mark.parametrize(("command", "status", "part"), MISTAKES, ids=[command for command, *_ in MISTAKES])
def test_one_line_says_what_to_do(command: str, status: int, part: str, filled: Run) -> None:
    outcome = filled(command)
    assert (outcome.status, outcome.out) == (status, ""), outcome.err
    assert outcome.err.startswith("kbroker: ")
    assert outcome.err.count("\n") == 1
    assert part in outcome.err


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("doctor --config /absent.toml", "cannot read /absent.toml: No such file or directory"),
        ("doctor --set nonsense=1", "Unknown broker config name: nonsense"),
        ("doctor --set log.retention.ms=x", "Invalid value x for configuration log.retention.ms"),
    ],
)
def test_the_doctor_reports_mistakes_as_problems(command: str, part: str, run: Run) -> None:
    outcome = run(command)
    assert (outcome.status, outcome.err) == (1, "")
    assert part in outcome.out
    assert "-> " in outcome.out
