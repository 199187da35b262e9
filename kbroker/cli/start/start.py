"""Starts a broker with the options of `kbroker start`.

This module is loaded before the first accepted connection: it imports only what a start needs.
"""

import os
import sys
from typing import TYPE_CHECKING

from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.start.options import (
    StartOptions,
    check_single,
    exposed_secrets,
    failure_text,
    load_properties,
    origins_text,
    parse_first_users,
    print_ready,
)
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.sources.static_configs import StaticConfigs
from kbroker.runtime.event_log import EventLogger, formatter

if TYPE_CHECKING:
    from logging import Handler

LOG_LEVELS = ("debug", "info", "warning", "error")


def start(options: StartOptions) -> int:
    """Run the broker until it is stopped; returns the exit status."""
    import gc
    import logging

    # Imports create hardly any garbage. Collections would take a tenth of the start; the broker enables them.
    gc.disable()

    try:
        if options.log_level.lower() not in LOG_LEVELS:
            raise usage_error(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {options.log_level!r}")
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter("text"))
        logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
        properties = _load_properties(options, handler)
        if options.dev or options.control or options.control_insecure_host:
            if options.console is not None:
                raise usage_error("--console goes without --dev: start `kbroker console` beside it")
            from kbroker.cli.start.dev import run_dev

            return run_dev(options, properties)
        first_users = parse_first_users(options.add_scram)
        if options.console is not None:
            from kbroker.cli.start.console_process import check_console

            check_console(options.console)
        write_client_files = None
        if options.secure:
            from kbroker.cli.start.secure import secure

            properties, admin, write_client_files = secure(properties)
            first_users.append(admin)

        def on_ready(bootstrap: str) -> None:
            command_config = None
            if write_client_files is not None:
                directory = write_client_files(bootstrap)
                EventLogger("kbroker").info("secured", files_for_clients=directory)
                command_config = directory / "client.properties"
            print_ready(bootstrap)
            if options.console is not None:
                from kbroker.cli.start.console_process import start_console

                start_console(options.console, bootstrap, command_config)

        if options.brokers is not None:
            from kbroker.cli.start.local_cluster import run_local_cluster

            return run_local_cluster(properties, options.brokers, first_users, on_ready)
        config = _load_config(properties)
        check_single(config.log_dirs[0])
        handler.setFormatter(formatter(config.kbroker_log_format))
        from kbroker.cli.start.run import run

        return run(config, on_ready=on_ready, first_users=first_users)
    except KeyboardInterrupt:
        return 130
    except CliError as error:
        print_error(str(error))
        return error.status
    except Exception as error:
        logging.getLogger("kbroker").debug("start failed", exc_info=True)
        print_error(failure_text(error))
        return 1


def _load_properties(options: StartOptions, handler: "Handler") -> StaticConfigs:
    """Load the properties; warnings are logged in the configured format. Raises CliError."""
    properties, warnings = load_properties(options, os.environ)
    if "kbroker.log.format" in properties:
        handler.setFormatter(formatter(properties["kbroker.log.format"].text))
    for warning in warnings:
        EventLogger("kbroker").warning("config ignored", reason=warning)
    for better in exposed_secrets(options):
        EventLogger("kbroker").warning("a secret is in the list of processes", better=better)
    return properties


def _load_config(properties: StaticConfigs) -> BrokerConfig:
    """Raises ConfigError, with the origins of the configs that it names."""
    try:
        return BrokerConfig.load({name: source.text for name, source in properties.items()})
    except ConfigError as error:
        raise ConfigError(f"{error}{origins_text(str(error), properties)}") from None
