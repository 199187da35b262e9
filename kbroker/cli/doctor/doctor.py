"""`kbroker doctor`: would a broker start with these options, and would it be well?"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import print_json
from kbroker.cli.start.command import Advertise, ConfigFile, DataDir, Listen, Properties

if TYPE_CHECKING:
    from kbroker.cli.doctor.checks import Verdict
    from kbroker.cli.doctor.host import Machine
    from kbroker.cli.start.options import StartOptions
    from kbroker.runtime.disk import Disk


def doctor(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    properties: Properties = None,
    as_json: AsJson = False,
) -> None:
    """Check what `kbroker start` with the same options would meet: configuration, network, disk, clock, limits.

    Changes nothing. With a broker running on the data directory, that is asked as well. The exit status is 1 when there
    is a problem; warnings leave it at 0.
    """
    from kbroker.cli.doctor.host import Machine
    from kbroker.cli.start.options import StartOptions
    from kbroker.runtime.disk import RealDisk

    options = StartOptions(config, data_dir, listen, advertise, properties or [])
    verdicts = list(examine(options, Machine(), RealDisk()))
    if as_json:
        print_json([verdict._asdict() for verdict in verdicts])
    else:
        show(verdicts)
    raise typer.Exit(1 if any(verdict.status == "problem" for verdict in verdicts) else 0)


def examine(options: "StartOptions", machine: "Machine", disk: "Disk") -> Iterator["Verdict"]:
    """Everything that the checks find, in the order of a start."""
    from kbroker.cli.common.errors import CliError
    from kbroker.cli.doctor.checks import PROBLEM, Patient, Verdict
    from kbroker.cli.doctor.host_checks import CHECKS, check_programs
    from kbroker.cli.start.options import load_properties
    from kbroker.config import BrokerConfig, ConfigError

    try:
        given, sentences = load_properties(options, os.environ)
        patient = Patient(machine, disk, BrokerConfig.load({name: one.text for name, one in given.items()}))
    except (CliError, ConfigError) as error:
        yield Verdict("configuration", PROBLEM, str(error), "Mend it: the broker does not start so.")
        return
    for sentence in sentences:
        yield Verdict("configuration", "warning", sentence, "Remove it: kbroker leaves it out.")
    for check in CHECKS:
        found = list(check(patient))
        yield from found
        if check is CHECKS[0] and any(verdict.status == PROBLEM for verdict in found):
            return
    yield from check_programs(patient, sys.version_info[:3])


def show(verdicts: list["Verdict"]) -> None:
    """One line a finding, and one below it for what to do."""
    colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    paint = {"ok": "\x1b[32m", "warning": "\x1b[33m", "problem": "\x1b[31m"} if colors else {}
    off = "\x1b[0m" if colors else ""
    width = max(len(verdict.check) for verdict in verdicts)
    for verdict in verdicts:
        status = f"{paint.get(verdict.status, '')}{verdict.status:<7}{off}"
        print(f"{status}  {verdict.check:<{width}}  {verdict.found}")
        if verdict.advice:
            print(f"{'':7}  {'':{width}}  -> {verdict.advice}")
    problems = sum(verdict.status == "problem" for verdict in verdicts)
    warnings = sum(verdict.status == "warning" for verdict in verdicts)
    print(f"{count_text(problems, 'problem')}, {count_text(warnings, 'warning')}")
