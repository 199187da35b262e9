"""Hosts as network namespaces, with links between them that can be cut in one direction.

The first host is this process's own namespace, where the clients are. Cutting a link changes the hardware address that
the sender has for the receiver to one that nobody has. So packets vanish silently, as behind a broken switch, and the
sender's system calls succeed. It needs no firewall in the kernel.

All namespaces, and all processes in them, end with this process: see `enter`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence

SUBNET = "10.77.0"
CLIENTS = "clients"
_NOBODY = "02:00:00:00:ff:ff"
_INSIDE = "SOAK_IN_NAMESPACE"
_BRIDGE = "hosts"


def enter(module: str, arguments: Sequence[str]) -> str:
    """Run this module again, with a network and processes of its own. Returns why that is not possible, or "".

    Returns "" only in the process that has its own network.
    """
    if os.environ.get(_INSIDE):
        return ""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return "unshare, nsenter (util-linux) or ip (iproute2) is not installed"
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    probe = f"ip link set lo up && ip link add {_BRIDGE} type bridge && unshare --net true"
    result = subprocess.run([*command, "sh", "-c", probe], capture_output=True, text=True)
    if result.returncode:
        return result.stderr.strip() or f"unshare has ended with {result.returncode}"
    sys.stdout.flush()
    os.environ[_INSIDE] = "1"
    os.execvp(command[0], [*command, sys.executable, "-m", module, *arguments])


class Host:
    """One network namespace. `prefix`: the beginning of a command that is to run there."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.hardware_address = f"02:00:00:00:00:{number:02x}"
        self.device = _BRIDGE if name == CLIENTS else "eth0"
        self.prefix: list[str] = []
        if name != CLIENTS:
            # The namespace exists as long as this process, which ends with ours.
            self._holder = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo ready; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert self._holder.stdout is not None
            assert self._holder.stdout.readline() == b"ready\n", f"no network namespace for {name}"
            self.prefix = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]

    @property
    def pid(self) -> int:
        return self._holder.pid

    def run(self, *command: str) -> None:
        result = subprocess.run([*self.prefix, *command], capture_output=True, text=True)
        assert result.returncode == 0, f"{self.name}: {' '.join(command)}: {result.stderr}"

    def set_neighbor(self, other: "Host", hardware_address: str) -> None:
        """Send packets for another host to this hardware address."""
        neighbor = ("ip", "neigh", "replace", other.address, "lladdr", hardware_address)
        self.run(*neighbor, "dev", self.device, "nud", "permanent")


class Network:
    """All hosts on one bridge. Only in a process that has called `enter`."""

    def __init__(self, names: Iterable[str]) -> None:
        clients = Host(CLIENTS, 254)
        clients.run("ip", "link", "set", "lo", "up")
        clients.run("ip", "link", "add", _BRIDGE, "type", "bridge")
        clients.run("ip", "link", "set", _BRIDGE, "address", clients.hardware_address, "up")
        clients.run("ip", "addr", "add", f"{clients.address}/24", "dev", _BRIDGE)
        self.hosts = {CLIENTS: clients}
        for number, name in enumerate(names, 1):
            self.hosts[name] = self._plug_in(Host(name, number), f"port{number}")
        for host in self.hosts.values():
            for other in self.hosts.values():
                if other is not host:
                    host.set_neighbor(other, other.hardware_address)
        self._cuts: set[tuple[str, str]] = set()

    def _plug_in(self, host: Host, port: str) -> Host:
        clients = self.hosts[CLIENTS]
        own_end = ("peer", "name", host.device, "address", host.hardware_address, "netns", str(host.pid))
        clients.run("ip", "link", "add", port, "type", "veth", *own_end)
        clients.run("ip", "link", "set", port, "master", _BRIDGE, "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "addr", "add", f"{host.address}/24", "dev", host.device)
        host.run("ip", "link", "set", host.device, "up")
        return host

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all packets of one host for another. The other direction stays as it is."""
        self.hosts[sender].set_neighbor(self.hosts[receiver], _NOBODY)
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Restore all links."""
        for sender, receiver in self._cuts:
            other = self.hosts[receiver]
            self.hosts[sender].set_neighbor(other, other.hardware_address)
        self._cuts.clear()
