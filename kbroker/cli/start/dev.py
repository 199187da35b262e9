"""`kbroker start --dev`: the broker of kbroker.testing in a process of its own, for tests in any language."""

import gc
import signal
import threading
from collections.abc import Mapping

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.values import parse_host_port
from kbroker.cli.start.control import LOOPBACK, ControlServer
from kbroker.cli.start.control_calls import ControlCalls
from kbroker.cli.start.options import DEFAULT_ORIGIN, StartOptions, check_single, print_ready
from kbroker.cli.start.run import stop_signals
from kbroker.config import BrokerConfig
from kbroker.config.broker.listeners import PLAINTEXT
from kbroker.config.sources.static_configs import StaticConfigs
from kbroker.runtime.system import raise_descriptor_limit
from kbroker.testing.broker import InProcessBroker


def run_dev(options: StartOptions, properties: StaticConfigs) -> int:
    """Run the broker and its control until a signal stops them. Raises CliError, ConfigError, OSError."""
    address = _control_address(options)
    _exclude({"--console (use: kbroker console)": options.console})
    _exclude({"--secure": options.secure, "--add-scram": bool(options.add_scram), "--brokers": options.brokers})
    configs = {name: source.text for name, source in properties.items()}
    config = BrokerConfig.load(configs)
    _exclude(
        {
            "authorizer.class.name": config.authorizer,
            "zookeeper.connect": config.get("zookeeper.connect"),
            "several directories in log.dirs": len(config.log_dirs) > 1,
            **{f"the listener {each}": each.security_protocol != PLAINTEXT for each in config.listeners},
        }
    )
    directory = config.log_dirs[0]
    check_single(directory)
    is_temporary = "log.dir" not in properties and properties["log.dirs"].origin == DEFAULT_ORIGIN
    raise_descriptor_limit()
    gc.enable()
    stopped = threading.Event()
    for number in stop_signals():
        signal.signal(number, lambda *_: stopped.set())
    with InProcessBroker(configs, directory=None if is_temporary else directory) as kafka:
        if address is None:
            print_ready(kafka.bootstrap)
            stopped.wait()
            return 0
        with ControlServer(*address, ControlCalls(kafka), options.control_insecure_host) as server:
            threading.Thread(target=server.serve_forever, name="kbroker-control", daemon=True).start()
            print_ready(kafka.bootstrap, server.url)
            stopped.wait()
            server.shutdown()
    return 0


def _control_address(options: StartOptions) -> tuple[str, int] | None:
    """Return where the control listens, None without one. Raises CliError."""
    if not options.dev:
        raise usage_error("--control needs --dev: it controls a broker for tests, without a login")
    if options.control is None:
        if options.control_insecure_host:
            raise usage_error("--control-insecure-host needs --control")
        return None
    host, port = parse_host_port(options.control, "--control")
    if host not in LOOPBACK and not options.control_insecure_host:
        raise usage_error(
            f"--control {options.control} can be reached from other machines, and has no login: use 127.0.0.1, or in a "
            "container --control-insecure-host NAME with the name that tests use for it"
        )
    return host, port


def _exclude(settings: Mapping[str, object]) -> None:
    """Raise CliError if one of the settings is there: a broker that anybody may control needs no security."""
    for name, value in settings.items():
        if value:
            raise usage_error(f"--dev is for tests on this machine, and excludes {name}")
