"""`kbroker quotas`: the client quotas of users, client ids and addresses."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.common.client import admin_client, raise_error
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import print_rows
from kbroker.cli.common.values import parse_assignments, parse_rate
from kbroker.client.cluster import ClusterClient
from protocol.messages.k48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
)
from protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    OpData,
)

app = typer.Typer()

TYPES = ("user", "client-id", "ip")
EXACT, DEFAULT = 0, 1


class EntityOptions(NamedTuple):
    """The entity that has the quotas: a user, a client id, both, or an address."""

    user: Annotated[str | None, option("--user NAME", "This user.")] = None
    client_id: Annotated[str | None, option("--client-id ID", "This client id, of the user if there is one.")] = None
    ip: Annotated[str | None, option("--ip ADDRESS", "This address.")] = None
    default: Annotated[
        list[str] | None,
        option(
            "--default TYPE", "All users, client ids or addresses (user, client-id, ip) without a quota of their own."
        ),
    ] = None

    def names(self) -> dict[str, str | None]:
        """Return the names by type, None for the default entity. Raises CliError."""
        names: dict[str, str | None] = {
            kind: name
            for kind, name in zip(TYPES, (self.user, self.client_id, self.ip), strict=True)
            if name is not None
        }
        for kind in self.default or ():
            if kind not in TYPES or kind in names:
                raise usage_error(f"--default must be one of {', '.join(TYPES)}, and not one that is named: {kind}")
            names[kind] = None
        return names


@app.command("list")
def list_quotas(entity: EntityOptions, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the quotas, of all entities or of those with the given names."""
    with admin_client(bootstrap) as client:
        found = _describe(client, entity.names(), strict=False)
    columns = ("user", "client id", "address", "quota", "value")
    rows = sorted(
        (*("" if kind not in names else names[kind] or "<default>" for kind in TYPES), quota, f"{value:.15g}")
        for names, quotas in found
        for quota, value in quotas.items()
    )
    document = [
        {
            "entity": [{"type": kind, "name": name} for kind, name in names.items()],
            "quotas": [{"name": name, "value": value} for name, value in quotas.items()],
        }
        for names, quotas in found
    ]
    print_rows(as_json, document, columns, rows)


@app.command("set")
def set_quotas(
    quotas: Annotated[
        list[str], argument("QUOTA=VALUE...", "Such as producer_byte_rate=10MiB or request_percentage=50.")
    ],
    entity: EntityOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas. Byte rates are per second.

    Example: kbroker quotas set producer_byte_rate=10MiB --user alice
    """
    ops = [OpData(key=name, value=_value(name, text)) for name, text in parse_assignments(quotas).items()]
    with admin_client(bootstrap) as client:
        _alter(client, entity.names(), ops)
    print(f"quotas set: {', '.join(op.key for op in ops)}")


@app.command("remove")
def remove_quotas(
    entity: EntityOptions,
    quotas: Annotated[list[str] | None, argument("[QUOTA...]", "Names of quotas; all without one.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas of an entity."""
    names = entity.names()
    with admin_client(bootstrap) as client:
        current = next((values for found, values in _describe(client, names, strict=True) if found == names), {})
        removed = quotas or list(current)
        missing = [quota for quota in removed if quota not in current]
        if missing or not removed:
            raise CliError(f"the entity has no quota {missing[0] if missing else ''}".rstrip())
        _alter(client, names, [OpData(key=name, remove=True) for name in removed])
    print(f"quotas removed: {', '.join(removed)}")


def _describe(
    client: ClusterClient, names: dict[str, str | None], strict: bool
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    rows = [
        ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in names.items()
    ]
    response = client.request(DescribeClientQuotasRequest(components=rows, strict=strict), DescribeClientQuotasResponse)
    raise_error(response.error_code, response.error_message)
    return [
        (
            {row.entity_type: row.entity_name for row in entry.entity},
            {row.key: row.value for row in entry.values},
        )
        for entry in response.entries or ()
    ]


def _alter(client: ClusterClient, names: dict[str, str | None], ops: Iterable[OpData]) -> None:
    if not names:
        raise usage_error("name an entity: --user, --client-id, --ip or --default")
    entity = [EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=list(ops))])
    for entry in client.request(request, AlterClientQuotasResponse).entries:
        raise_error(entry.error_code, entry.error_message)


def _value(name: str, text: str) -> float:
    if name.endswith("_byte_rate"):
        return parse_rate(text)
    try:
        return float(text)
    except ValueError:
        raise usage_error(f"{name} must be a number, not {text}") from None
