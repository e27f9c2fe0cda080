"""Where a replica listens: on machines of one family of addresses, and of both."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ports import HOST, free_ports
from raw_http import ask
from serving import PROGRAM, end_replica, start_replica

CODE = """
    from batchedapi_serving import batched

    class Model:
        @batched(example=1)
        def predict(self, items):
            return items
"""
MACHINES = {
    "both": ("true", ["127.0.0.1", "::1"]),
    "IPv4 alone": ("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", ["127.0.0.1"]),
    "IPv6 alone": ("ip address delete 127.0.0.1/8 dev lo", ["::1"]),
}
"""What is done to a machine that has both, and its addresses then."""
PROBE = """
import http.client, socket, sys
address, port, admin_port, grpc_port = sys.argv[1], *map(int, sys.argv[2:])
socket.create_connection((address, grpc_port)).close()
for asked, method, path in ((admin_port, "GET", "/readyz"), (port, "POST", "/predict")):
    connection = http.client.HTTPConnection(address, asked, timeout=10)
    connection.request(method, path, "7", {"content-type": "application/json"})
    print(connection.getresponse().status)
"""


def in_folder(folder: Path) -> None:
    """Write CODE as a model.py."""
    (folder / "model.py").write_text(textwrap.dedent(CODE))


@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))),
    reason="needs root, and a network of its own",
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize(("done", "addresses"), MACHINES.values(), ids=MACHINES)
def test_every_address_is_of_whatever_families_there_are(
    tmp_path: Path, host: str, done: str, addresses: list[str]
) -> None:
    """A kubelet asks for the health of a pod at the pod's first address, of either family."""
    in_folder(tmp_path)
    ports = [*map(str, free_ports(3))]
    listens = f"--host {host} --port {ports[0]} --admin-port {ports[1]} --grpc-port {ports[2]}"
    started = f"ip link set lo up && {done} && exec {PROGRAM} serve model:Model {listens}"
    replica = subprocess.Popen(["unshare", "--net", "sh", "-c", started], cwd=tmp_path)
    probe = ["nsenter", f"--net=/proc/{replica.pid}/ns/net", sys.executable, "-c", PROBE]
    try:
        for address in addresses:
            end = time.monotonic() + 60
            asked = [*probe, address, *ports]
            while (said := subprocess.run(asked, capture_output=True, check=False)).returncode or (
                said.stdout.split() != [b"200", b"200"]
            ):
                assert replica.poll() is None
                assert time.monotonic() < end, said
                time.sleep(0.3)
        replica.terminate()
        assert replica.wait(30) == 0
    finally:
        replica.kill()
        replica.wait()


async def test_port_0_is_one_that_is_free_and_the_log_says_which(tmp_path: Path) -> None:
    """Else nobody knows where to ask."""
    in_folder(tmp_path)
    nobody = {"--port": 0, "--admin-port": 0}
    replica = start_replica(tmp_path, ["model:Model"], ports=nobody)
    try:
        replica.wait_for(lambda: '"message": "ready"' in replica.text(), "not ready", 60)
        lines = map(json.loads, replica.text().splitlines())
        (listening,) = (line for line in lines if line["message"] == "listening")

        assert HOST == listening["host"]
        assert (await ask(listening["port"], 5)).json() == 5
        assert (await ask(listening["admin_port"], 5)).status == 405
    finally:
        end_replica(replica)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--port", "99999"], 2, "99999 is not in the range 0<=x<=65535"),
        (["--admin-port", "-1"], 2, "-1 is not in the range 0<=x<=65535"),
        (
            ["--host", "192.0.2.1"], 1,
            "192.0.2.1:8080 (Cannot assign requested address); choose another with --host",
        ),
        (["--host", "no.such.host.invalid"], 1, "; choose another with --host"),
    ],
)  # fmt: skip
def test_where_nobody_can_listen_is_one_clear_line(
    tmp_path: Path, arguments: list[str], code: int, expected: str
) -> None:
    """A stack trace tells nobody what to write instead."""
    in_folder(tmp_path)

    ended = subprocess.run(
        [PROGRAM, "serve", "model:Model", *arguments],
        cwd=tmp_path, capture_output=True, check=False, text=True,
    )  # fmt: skip

    assert code == ended.returncode
    assert expected in ended.stderr.splitlines()[-1]
