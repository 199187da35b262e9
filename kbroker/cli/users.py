"""`kbroker users`: the users of SCRAM listeners, who are stored in the cluster's metadata."""

import sys
from typing import Annotated

import typer

from kbroker.cli.common.client import admin_client, raise_error
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import confirm, print_rows
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from protocol.scram import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, ScramMechanism, salted_password

app = typer.Typer()

User = Annotated[str, argument("USER")]
_NAMES = ", ".join(MECHANISMS)


@app.command("list")
def list_users(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the users and their mechanisms."""
    with admin_client(bootstrap) as client:
        response = client.request(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
    raise_error(response.error_code, response.error_message)
    rows = [
        (result.user, ScramMechanism(info.mechanism).sasl_name, info.iterations)
        for result in sorted(response.results, key=lambda result: result.user)
        for info in result.credential_infos
    ]
    columns = ("user", "mechanism", "iterations")
    print_rows(as_json, [dict(zip(columns, row, strict=True)) for row in rows], columns, rows)


@app.command("set")
def set_user(
    user: User,
    mechanism: Annotated[str, option("--mechanism MECHANISM", f"One of {_NAMES}.")] = "SCRAM-SHA-512",
    iterations: Annotated[
        int, option("--iterations N", "Rounds of hashing.", min=MIN_ITERATIONS, max=MAX_ITERATIONS)
    ] = MIN_ITERATIONS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the password of a user, for one mechanism. It is asked for, or the first line of standard input.

    Example: kbroker users set alice < password.txt
    """
    number = _mechanism(mechanism)
    password = _read_password()
    import secrets

    # In the form of Kafka's tools.
    salt = secrets.token_hex(13).encode()
    salted = salted_password(number, password, salt, iterations)
    row = ScramCredentialUpsertion(
        name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
    )
    _alter(bootstrap, AlterUserScramCredentialsRequest(upsertions=[row]))
    print(f"{user}: password set for {mechanism}")


@app.command("delete")
def delete_user(
    user: User,
    mechanism: Annotated[
        str | None, option("--mechanism MECHANISM", f"One of {_NAMES}.", show_default="all that the user has")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a user, or the password for one mechanism. The connections that have used it end."""
    with admin_client(bootstrap) as client:
        response = client.request(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse)
    found = [info.mechanism for each in response.results if each.user == user for info in each.credential_infos]
    numbers = found if mechanism is None else [number for number in found if number == _mechanism(mechanism)]
    if not numbers:
        raise CliError(f"user {user} has no password" + (f" for {mechanism}" if mechanism else ""))
    confirm(f"Delete user {user}?", yes)
    for number in numbers:
        row = ScramCredentialDeletion(name=user, mechanism=number)
        _alter(bootstrap, AlterUserScramCredentialsRequest(deletions=[row]))
    print(f"{user}: deleted")


def _mechanism(name: str) -> ScramMechanism:
    if name.upper() not in MECHANISMS:
        raise usage_error(f"--mechanism must be one of {_NAMES}, not {name}")
    return MECHANISMS[name.upper()]


def _read_password() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise usage_error("standard input has no password")
    return password


def _alter(bootstrap: str, request: AlterUserScramCredentialsRequest) -> None:
    with admin_client(bootstrap) as client:
        response = client.request(request, AlterUserScramCredentialsResponse)
    for result in response.results:
        raise_error(result.error_code, result.error_message, f"user {result.user}: ")
