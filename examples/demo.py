"""The whole product on a real cluster, step by step: `make demo`.

Cluster, images, helm install, two APIs, predictions through their Services, load until replicas are
added, why, and the way back down. Can be run again; leaves the cluster running for you to look at.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "demo"
SYSTEM = "batchedapi-system"
IMAGE = "batchedapi-serving:dev"
RATE = 1650
"""Requests a second: what three replicas serve at 80 % of 690 items a second each."""
LOAD_SECONDS = 90
LOADS = 3
"""Times at most that the load is sent: a machine with other work may not get it out the first."""
HALF = 0.5
"""Of the load: with less that came out, that no replica was added says nothing of the product."""
WAY_DOWN = 900
"""Seconds at most. The need is held for a start-up, half of the replicas go in a minute, and
bursts (a demo before this one) keep some for 5 minutes; a busy machine takes longer for each."""
PATIENCE = 300
"""Seconds at most for what takes a few."""


def sh(*command, stdin=None, quiet=False):
    """Run a command; its output, or the reason why the demo cannot go on."""
    result = subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True, check=False
    )
    if result.returncode and not quiet:
        sys.exit(f"\n{' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def kubectl(*arguments, stdin=None, quiet=False):
    return sh("kubectl", "--namespace", NAMESPACE, *arguments, stdin=stdin, quiet=quiet)


class Step:
    """Says what is done, how long it took, and whether that is slow.

    `usual` are the seconds that it takes at most on two cores with nothing else to do; None: that
    depends on what was built and fetched before.
    """

    count = 0

    def __init__(self, text, usual=None):
        Step.count += 1
        self.text, self.began, self.usual = f"{Step.count}. {text}", time.monotonic(), usual

    def __enter__(self):
        print(f"\n\033[1m{self.text}\033[0m", flush=True)

    def __exit__(self, *failure):
        if any(failure):
            return
        took = time.monotonic() - self.began
        print(f"   done in {took:.1f} s", flush=True)
        if self.usual is not None and took > self.usual:
            slower(f"this step takes up to {self.usual} s, it took {took:.0f} s")


def slower(what):
    """Say what a busy machine did to the demo, where it happened."""
    show(f"SLOWER THAN USUAL: {what}; is the machine busy with other work?")


def show(text):
    for line in text.rstrip("\n").split("\n"):
        print(f"   {line}", flush=True)


def until(condition, seconds, what):
    """Wait for `condition()` to be true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.5)
    show(kubectl("get", "bapi,pods", quiet=True))
    sys.exit(f"\nnot within {seconds} s: {what}")


def client_pod():
    """A pod to ask from: Services are reached the same way on every kind of cluster."""
    source = (ROOT / "examples/load.py").read_text()
    container = {
        "name": "client",
        "image": IMAGE,
        "command": ["sleep", "3600"],
        # Without a request it would get what the replicas leave, and be no open loop any more.
        "resources": {"requests": {"cpu": "400m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "load", "mountPath": "/load"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "load", "configMap": {"name": "load"}}],
    }
    items = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "load"},
            "data": {"load.py": source},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec},
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def address_of(service):
    return kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}").strip()


def ask(service, body):
    """One prediction, asked from the client pod; the body of the answer."""
    code = (
        "import sys, urllib.request as u\n"
        f"r = u.Request('http://{address_of(service)}/{service}',"
        f" data={json.dumps(body).encode()!r}, headers={{'content-type': 'application/json'}})\n"
        "print(u.urlopen(r, timeout=10).read().decode())"
    )
    return kubectl("exec", "client", "--", "python", "-c", code, quiet=True)


def replicas():
    """(desired, ready, why) of sleepy; None: the API server did not answer."""
    text = kubectl("get", "bapi", "sleepy", "-o", "json", quiet=True)
    if not text:
        return None  # asked again in a moment
    status = json.loads(text).get("status", {})
    why = status.get("autoscaling", {}).get("lastDecision", {}).get("text", "")
    return status.get("desiredReplicas", 0), status.get("readyReplicas", 0), why


class Watch:
    """Prints every change of sleepy's replicas, and the reason of a new count."""

    def __init__(self):
        self.began, self.seen, self.most = time.monotonic(), (None, None), 0

    def look(self):
        """The replicas desired and ready now."""
        now = replicas()
        if now is None:
            return self.seen
        desired, ready, why = now
        if (desired, ready) != self.seen:
            since = time.monotonic() - self.began
            show(f"{since:5.1f} s  desired {desired}  ready {ready}")
            if desired != self.seen[0]:
                show(f"         {why}")
            self.seen, self.most = (desired, ready), max(self.most, desired)
        return self.seen


def prepare(name):
    """Run a program of tests/cluster, which says itself what it does and why it cannot go on."""
    if subprocess.run([ROOT / "tests/cluster" / name], check=False).returncode:
        sys.exit(f"\ntests/cluster/{name} failed; the reason is above")


def install():
    with Step("A cluster (CLUSTER=kind | local | current chooses; the first time takes minutes)"):
        prepare("up")
        prepare("tools")
    with Step("The images, from the Dockerfile"):
        prepare("images")
    with Step("helm install: the resource definition and the operator", 60):
        show(
            sh("helm", "upgrade", "--install", "batchedapi", ROOT / "charts/batchedapi",
               "--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout", f"{PATIENCE}s",
               "--take-ownership",
               "--set", "image.tag=dev,servingImage.tag=dev")
            .split("NOTES:")[0]
        )  # fmt: skip
        # Run again after an edit, the images have the same name: only a restart takes the new one.
        sh("kubectl", "rollout", "restart", "deployment", "--namespace", SYSTEM)
        rollout = ("kubectl", "rollout", "status", "deployment", "--namespace", SYSTEM)
        sh(*rollout, f"--timeout={PATIENCE}s")


def apply():
    with Step("kubectl apply: 01-iris and 02-sleepy, one manifest each", 30):
        if os.environ.get("CLUSTER") == "current":
            show(f"this needs {IMAGE} on the cluster's nodes: push and retag it for your registry")
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": NAMESPACE, "labels": labels}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        sh("kubectl", "apply", "-f", "-", stdin=json.dumps(namespace))
        kubectl("apply", "-f", "-", stdin=client_pod())
        show(kubectl("apply", "-f", ROOT / "examples/01-iris/batchedapi.yaml"))
        show(kubectl("apply", "-f", ROOT / "examples/02-sleepy/batchedapi.yaml"))
        ready = ("wait", "--for=condition=Ready", f"--timeout={PATIENCE}s")
        kubectl(*ready, "pod/client")
        kubectl(*ready, "bapi/iris", "bapi/sleepy")


def predict():
    def answer(service, body):
        return until(lambda: ask(service, body), PATIENCE, f"an answer from {service}")

    with Step("Predictions through the Services", 30):
        show(f"iris   [5.1, 3.5, 1.4, 0.2] -> {answer('iris', [5.1, 3.5, 1.4, 0.2])}")
        many = {"instances": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]}
        show(f"iris   two instances        -> {answer('iris', many)}")
        show(f'sleepy {{"hello": "world"}}     -> {answer("sleepy", {"hello": "world"})}')


def load():
    """Load until replicas are added; whether any were."""
    for number in range(LOADS):
        again = f" (again, {number + 1} of {LOADS} times)" if number else ""
        text = f"{RATE} requests/s on sleepy for {LOAD_SECONDS} s, until replicas are added{again}"
        most, sent = send(text)
        if most > 1:
            return True
        slower(f"{sent:.0f} of {RATE} requests/s were sent, and no replica was added")
    if sent > HALF * RATE:
        sys.exit("\nsleepy was not scaled up")
    slower("without more load one replica is enough, so the rest of the demo shows no scale-up")
    return False


def send(text):
    """The load once: (most replicas desired, requests sent a second)."""
    with Step(text, LOAD_SECONDS + 30):
        url = f"http://{address_of('sleepy')}/sleepy"
        generator = subprocess.Popen(
            ["kubectl", "--namespace", NAMESPACE, "exec", "client", "--", "python",
             "/load/load.py", url, "--rate", str(RATE), "--seconds", str(LOAD_SECONDS)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        watch = Watch()
        while generator.poll() is None:
            watch.look()
            time.sleep(1)
        said = generator.stdout.read()
        show(kubectl("get", "bapi", quiet=True))
        if not said:
            slower("the connection to the load generator broke, what it sent is not known")
            return watch.most, 0.0
        report = json.loads(said)
        show(
            f"{report['ok']} of {report['requests']} answered, {report['wrong']} wrong;"
            f" p50 {report['p50_ms']} ms, p99 {report['p99_ms']} ms (while scaling up)"
        )
        if report["wrong"]:
            sys.exit("\nanswers were given to others than those who asked")
        return watch.most, report["requests"] / report["seconds"]


def why(*options):
    """What the plugin says; asked again where the API server does not answer."""
    command = ("kubectl", "batchedapi", "why", "sleepy", "--namespace", NAMESPACE, *options)
    with Step(" ".join(map(str, (*command[:4], *options))), 10):
        show(until(lambda: sh(*command, quiet=True), PATIENCE, "an answer of the plugin"))


def way_down():
    with Step("No load any more: the way back down, within a few minutes", 240):
        watch = Watch()
        until(lambda: watch.look() == (1, 1), WAY_DOWN, "one replica of sleepy again")


def farewell():
    config = os.environ.get("KUBECONFIG", "")
    print(f"""
To look at it yourself:
   export KUBECONFIG={config} PATH={ROOT}/.venv/bin:{ROOT}/.cache/bin:$PATH
   kubectl -n {NAMESPACE} get bapi -w
   kubectl batchedapi why sleepy -n {NAMESPACE}
   kubectl -n {NAMESPACE} describe bapi sleepy
   kubectl -n {NAMESPACE} port-forward service/iris 8080:80    and open http://127.0.0.1:8080/docs
   make demo                                 again, in less time
   make cluster-down                         when you are done
""")


def main():
    install()
    apply()
    predict()
    if load():
        why()
        way_down()
    why("--last", 12)
    farewell()


if __name__ == "__main__":
    main()
