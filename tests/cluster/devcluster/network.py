"""The node's network: a bridge for pods, kernel settings, and what kube-proxy leaves behind."""

import json
import shutil
from pathlib import Path
from typing import Final

from . import paths
from .steps import run, succeeds

BRIDGE: Final = "batchedapi0"
ADDRESS: Final = "10.244.0.1"
"""Of the bridge and so of the node: reachable from here and from pods, from nowhere else."""
POD_CIDR: Final = "10.244.0.0/24"
SERVICE_CIDR: Final = "10.96.0.0/16"
API_SERVICE_ADDRESS: Final = "10.96.0.1"
SYSCTLS: Final = {
    "net/ipv4/ip_forward": "1",  # pods reach Services through the node
    "net/ipv4/conf/all/route_localnet": "1",  # NodePorts answer on 127.0.0.1; kube-proxy sets it
}
SAVED: Final = paths.RUN / "sysctls.json"
CHAIN_PREFIX: Final = "KUBE-"
"""Of every chain that kube-proxy and the kubelet make."""


def set_up() -> None:
    """Make the bridge and set the kernel settings, keeping the old ones for `tear_down`."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    # A Service's address that kube-proxy does not know yet must not leave by the default route.
    run("ip", "route", "add", SERVICE_CIDR, "dev", BRIDGE)
    files = {name: Path("/proc/sys") / name for name in SYSCTLS}
    SAVED.write_text(json.dumps({name: file.read_text().strip() for name, file in files.items()}))
    for name, file in files.items():
        file.write_text(SYSCTLS[name])


def tear_down() -> None:
    """Remove the bridge and the iptables rules and put the kernel settings back; safe to repeat."""
    if succeeds("ip", "link", "show", BRIDGE):
        run("ip", "link", "delete", BRIDGE)
    for family in ("iptables", "ip6tables"):
        if shutil.which(f"{family}-save"):
            remove_chains(family)
    if SAVED.exists():
        for name, value in json.loads(SAVED.read_text()).items():
            (Path("/proc/sys") / name).write_text(value)


def remove_chains(family: str) -> None:
    """Load the rules of ``family`` again without those that belong to Kubernetes."""
    rules = run(f"{family}-save").splitlines(keepends=True)
    kept = [rule for rule in rules if CHAIN_PREFIX not in rule]
    if len(kept) < len(rules):
        run(f"{family}-restore", stdin="".join(kept))


def plugin_configuration() -> dict[str, object]:
    """Give the CNI configuration: pods on the bridge, addresses handed out by this host."""
    addresses = {
        "type": "host-local",
        "dataDir": str(paths.RUN / "addresses"),
        "ranges": [[{"subnet": POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,  # a pod reaches itself through its own Service
        "ipam": addresses,
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
