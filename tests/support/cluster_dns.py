"""DNS for pods of the local cluster, which has none: CoreDNS on the node, as kubeadm sets it up.

Pods ask it whose namespace has the label DNS; others are as they were.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.devcluster import kindnode, network, paths, tools

import cluster

LABEL: Final = {"dns": "coredns"}
"""Of a namespace."""
DOMAIN: Final = "cluster.local"
_COREFILE: Final = f"""
.:53 {{
    errors
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {paths.KUBECONFIG}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    cache 30 {{
        disable success {DOMAIN}
        disable denial {DOMAIN}
    }}
    loadbalance
}}
"""
_PATCH: Final = f"""
[
  JSONPatch{{op: "add", path: "/spec/dnsPolicy", value: "None"}},
  JSONPatch{{op: "add", path: "/spec/dnsConfig", value: Object.spec.dnsConfig{{
    nameservers: ["{network.ADDRESS}"],
    searches: [request.namespace + ".svc.{DOMAIN}", "svc.{DOMAIN}", "{DOMAIN}"],
    options: [Object.spec.dnsConfig.options{{name: "ndots", value: "5"}}]
  }}}}
]
"""
_PODS: Final = {
    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
}  # fmt: skip


def coredns() -> Path:
    """The program, built unless it is there."""
    module, binary = paths.CACHE / "coredns-module", paths.CACHE / "coredns"
    if not module.exists():
        kindnode.resolve(module)
    tools.go_build(binary, "./coredns", tools.kubernetes_flags(), what="coredns", module=module)
    return binary


@contextlib.contextmanager
def running() -> Iterator[None]:
    """CoreDNS answers, and new pods of namespaces with the label ask it."""
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [_PODS]},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCH}}],
    }
    selector = {"namespaceSelector": {"matchLabels": LABEL}}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "pods-dns"}}
    kinds = {
        "MutatingAdmissionPolicy": policy,
        "MutatingAdmissionPolicyBinding": {"policyName": "pods-dns", "matchResources": selector},
    }
    with tempfile.TemporaryDirectory(prefix="coredns-") as folder:
        file = Path(folder) / "Corefile"
        file.write_text(_COREFILE)
        with (Path(folder) / "log").open("w") as log:
            command = [str(coredns()), "-conf", str(file)]
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            for kind, spec in kinds.items():
                text = json.dumps({**head, "kind": kind, "spec": spec})
                cluster.kubectl("apply", "-f", "-", stdin=text)
            cluster.wait_for(lambda: cluster.listens(network.ADDRESS, 53), 30, "CoreDNS")
            yield
        finally:
            cluster.kubectl("delete", ",".join(kinds), "pods-dns", "--ignore-not-found")
            process.terminate()
            process.wait(30)
