"""Why a config has no effect in kbroker: a table of reasons. What has an effect is in acting.py."""

import re
from collections.abc import Iterable

from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.config_def import ConfigKey

QUORUM = "kbroker has no metadata quorum"
SECURITY = "there is no TLS, SASL, authorization or delegation token yet"
REPLICATION = "there is one broker and no replication yet"
TWO_PHASE = "no client can ask for it: the version of InitProducerId that does is not stable (KIP-939)"
CLASSIC = "only groups of the classic protocol are served yet"
TIERED = "there is no tiered storage"
QUOTAS = "there are no quotas yet"
JAVA = "classes of Java are not loaded"
METRICS = "kbroker's metrics are counters for Prometheus, without samples and reporters"
TELEMETRY = "clients are not asked for their metrics (KIP-714)"
ONE_LOOP = "one loop serves all requests, without threads for it"
OWN_REQUESTS = "the broker sends no requests of its own yet"

# (pattern, reason): the first that fits a name. Compiled when one is needed, which a start seldom does.
_REASONS = (
    (r"controller\.quota\..*|(alter\.log\.dirs\.replication\.|replication\.)?quota\.window\..*", QUOTAS),
    (r"(leader|follower)\.replication\.throttled\..*", QUOTAS),
    (r"(alter\.config|create\.topic)\.policy\.class\.name|client\.quota\.callback\.class|config\.providers", JAVA),
    (r"(sasl|ssl|delegation|connections\.max\.reauth|connection\.failed\.authentication)\..*", SECURITY),
    (r"authorizer\..*|principal\.builder\..*|security\..*|early\.start\.listeners", SECURITY),
    (r"connections\.max\.reauth\.ms", SECURITY),
    (r"(remote|local)\..*|log\.local\..*|follower\.fetch\.last\.tiered\..*", TIERED),
    (r"(group\.)?(consumer|share|streams)\..*|group\.coordinator\.rebalance\.protocols", CLASSIC),
    (r"transaction\.two\.phase\.commit\..*", TWO_PHASE),
    (r"metadata\..*|controller\..*|initial\.broker\.registration\..*|broker\.(heartbeat|session)\..*", QUORUM),
    (
        r"(unclean\.leader|auto\.leader|leader\.imbalance|controlled\.shutdown|replica|num\.replica)\..*",
        REPLICATION,
    ),
    (r"log\.dir\.failure\..*", REPLICATION),
    (r"(kafka\.)?metrics?\..*", METRICS),
    (r"telemetry\..*|interval\.ms|match|metrics", TELEMETRY),
    (r"(background|num\.network|group\.coordinator(\.background)?)\.threads", ONE_LOOP),
    (r"inter\.broker\..*|request\.timeout\.ms|socket\.connection\.setup\..*", OWN_REQUESTS),
    (r".*\.purgatory\..*", "requests that wait are forgotten as soon as they are answered"),
    (r"queued\.max\..*", "requests are served as they are read, there is no queue of them"),
    (r"(log\.)?preallocate", "segments grow as they are written"),
    (r"log\.flush\.start\.offset\..*", "log start offsets are written as soon as they change"),
    (r"group\.coordinator\.cached\.buffer\..*", "no buffer is kept from one write to the next"),
)


def why_inert(name: str) -> str:
    """For a config that is not in acting.py. Raises KeyError when nobody has said why."""
    base = strip_listener_prefix(name)
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, base):
            return reason
    if base != name:
        return "it acts for all listeners only"
    raise KeyError(name)


def by_reason(rows: Iterable[ConfigKey]) -> dict[str, list[ConfigKey]]:
    """Rows without effect under their reasons, in the order of the table above."""
    found: dict[str, list[ConfigKey]] = {reason: [] for _, reason in _REASONS}
    for row in rows:
        found[why_inert(row.name)].append(row)
    return {reason: listed for reason, listed in found.items() if listed}
