"""The programs of the local node: their order, command lines and configuration files."""

import json
from pathlib import Path
from typing import Final

from . import network, paths
from .pki import Identity

NODE: Final = "batchedapi"
SERVER: Final = f"https://{network.ADDRESS}:6443"
ETCD: Final = "http://127.0.0.1:2379"
SHIM: Final = "containerd-shim-runc-v2"
SOCKET: Final = paths.RUN / "containerd.sock"
PAUSE_IMAGE: Final = "localhost/pause:1"
REGISTRIES: Final = paths.RUN / "registries"
"""A folder each, read at each pull: `HOST:PORT/hosts.toml` says how a registry is spoken to."""
PKI: Final = paths.RUN / "pki"
PORTS: Final = (2379, 2380, 6443, 10248, 10249, 10250, 10256, 10257, 10259)
"""Fixed ports of these programs; taken ones would belong to another cluster."""

API_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
API_ADDRESSES: Final = ("127.0.0.1", network.API_SERVICE_ADDRESS, network.ADDRESS)
ADMIN: Final = Identity("admin", "/O=system:masters/CN=admin")
API_SERVER: Final = Identity(
    "kube-apiserver",
    "/CN=kube-apiserver",
    ",".join([*(f"DNS:{name}" for name in API_NAMES), *(f"IP:{ip}" for ip in API_ADDRESSES)]),
)
KUBELET: Final = Identity(
    "kubelet",
    f"/O=system:nodes/CN=system:node:{NODE}",
    f"DNS:{NODE},IP:{network.ADDRESS}",
)
CONTROLLERS: Final = Identity("kube-controller-manager", "/CN=system:kube-controller-manager")
SCHEDULER: Final = Identity("kube-scheduler", "/CN=system:kube-scheduler")
PROXY: Final = Identity("kube-proxy", "/CN=system:kube-proxy")
CLIENTS: Final = (ADMIN, KUBELET, CONTROLLERS, SCHEDULER, PROXY)

CONTAINERD_TOML: Final = """\
version = 3
root = "{run}/containerd"
state = "{run}/containerd-state"
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{run}/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{registries}"
[plugins."io.containerd.cri.v1.runtime"]
  # Where CAP_SYS_RESOURCE is missing, every pod else fails with
  # "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
  # Else they are under /run/netns, among those of others.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{run}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{shim}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "{run}/runc"
"""


def kubelet_configuration() -> dict[str, object]:
    """Give the kubelet's settings; those not said here are Kubernetes' defaults."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",  # there may be no systemd
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "tlsCertFile": str(PKI / "kubelet.crt"),
        "tlsPrivateKeyFile": str(PKI / "kubelet.key"),
        "podLogsDir": str(paths.RUN / "pod-logs"),
        # A full disk is the developer's affair: no image is collected,
        # since none could be pulled again, and pods are evicted only when all but nothing is left.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "imagefs.available": "1%",
            "nodefs.available": "1%",
            "memory.available": "100Mi",
        },
    }


def proxy_configuration() -> dict[str, object]:
    """Give kube-proxy's settings: iptables, and NodePorts on this machine's own addresses only."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(paths.RUN / "kube-proxy.kubeconfig")},
        "clusterCIDR": network.POD_CIDR,
        "mode": "iptables",
        "hostnameOverride": NODE,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nodePortAddresses": ["127.0.0.0/8", network.POD_CIDR],
        "conntrack": {"maxPerCore": 0, "min": 0},  # the machine's own limit stays
    }


def files() -> dict[Path, str]:
    """Give the configuration files of the programs and what is in them."""
    shim = paths.BIN / SHIM
    toml = CONTAINERD_TOML.format(
        run=paths.RUN, pause=PAUSE_IMAGE, shim=shim.resolve(), registries=REGISTRIES
    )
    return {
        paths.RUN / "containerd.toml": toml,
        paths.RUN / "cni" / "10-pods.conflist": json.dumps(network.plugin_configuration()),
        paths.RUN / "kubelet.json": json.dumps(kubelet_configuration()),
        paths.RUN / "kube-proxy.json": json.dumps(proxy_configuration()),
    }


def etcd() -> list[str]:
    """Give etcd's command line; it does not sync to disk, since `down` discards its data."""
    peers = "http://127.0.0.1:2380"
    return [
        "etcd",
        f"--data-dir={paths.RUN / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server() -> list[str]:
    """Give kube-apiserver's command line: RBAC, and the default admission plugins plus one."""
    return [
        "kube-apiserver",
        f"--etcd-servers={ETCD}",
        f"--bind-address={network.ADDRESS}",
        f"--advertise-address={network.ADDRESS}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={network.SERVICE_CIDR}",
        f"--tls-cert-file={PKI / 'kube-apiserver.crt'}",
        f"--tls-private-key-file={PKI / 'kube-apiserver.key'}",
        f"--client-ca-file={PKI / 'ca.crt'}",
        f"--kubelet-certificate-authority={PKI / 'ca.crt'}",
        f"--kubelet-client-certificate={PKI / 'admin.crt'}",
        f"--kubelet-client-key={PKI / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI / 'sa.pub'}",
        f"--service-account-signing-key-file={PKI / 'sa.key'}",
        "--authorization-mode=Node,RBAC",
        # PodSecurity is among those enabled by default.
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        # A developer's apiserver that is stopped is not to linger over open watches.
        "--shutdown-delay-duration=0s",
    ]


def after_api_server() -> dict[str, list[str]]:
    """Give the command lines of the programs that need the apiserver, by name."""
    controllers = f"--kubeconfig={paths.RUN / 'kube-controller-manager.kubeconfig'}"
    scheduler = paths.RUN / "kube-scheduler.kubeconfig"
    return {
        "kubelet": [
            "kubelet",
            f"--config={paths.RUN / 'kubelet.json'}",
            f"--kubeconfig={paths.RUN / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE}",
            f"--node-ip={network.ADDRESS}",
            f"--root-dir={paths.RUN / 'kubelet'}",
        ],
        "kube-controller-manager": [
            "kube-controller-manager",
            controllers,
            "--bind-address=127.0.0.1",
            f"--service-account-private-key-file={PKI / 'sa.key'}",
            f"--root-ca-file={PKI / 'ca.crt'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # Ten times the defaults: nobody else uses this apiserver, and a start needs hundreds.
            "--kube-api-qps=200",
            "--kube-api-burst=300",
            # Addresses of pods are in the CNI configuration.
            "--controllers=*,-node-ipam-controller",
        ],
        "kube-scheduler": [
            "kube-scheduler",
            f"--kubeconfig={scheduler}",
            f"--authentication-kubeconfig={scheduler}",
            f"--authorization-kubeconfig={scheduler}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ],
        "kube-proxy": ["kube-proxy", f"--config={paths.RUN / 'kube-proxy.json'}"],
    }
