"""The rendered chart: valid objects, no more rights than needed, a pod without privileges."""

import json
import tomllib
from typing import Any, Final

import pytest
import yaml
from crds.alerts import RUNBOOKS
from crds.metrics import API_RELABELLING, OPERATOR_NAME

import dashboards
from batchedapi_core import contract
from batchedapi_operator.logs import LogFormat
from chart import (
    CHART,
    EVERYTHING,
    ROOT,
    TWO_NAMESPACES,
    Objects,
    granted,
    helm,
    of_operator,
    only,
    render,
    template,
)

MONITORING: Final = "networkPolicies.monitoringNamespaces"


def operator_container(objects: Objects) -> dict[str, Any]:
    """The one container of the operator's pod."""
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment(objects: Objects) -> dict[str, str]:
    """The operator's environment variables."""
    return {
        one["name"]: one["value"] if "value" in one else one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in operator_container(objects)["env"]
    }


@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_the_chart_is_free_of_lint_warnings(settings: tuple[str, ...]) -> None:
    """`--strict` turns warnings into failures."""
    flags = [flag for setting in settings for flag in ("--set", setting)]

    result = helm("lint", "--strict", str(CHART), *flags)

    assert "0 chart(s) failed" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("imagee.tag=1", "additional properties 'imagee' not allowed"),
        ("imagePullSecrets[0].nam=pull", "nam"),
        ("image.pullPolicy=Sometimes", "'Always', 'IfNotPresent', 'Never'"),
        ("logLevel=loud", "'debug', 'info', 'warning', 'error'"),
        ("defaults.pod.toleration=1", "additional properties 'toleration' not allowed"),
        ("defaults.pod.runAsUser=root", "does not match pattern '^Platform$'"),
        ("tolerations[0].effect=Never", "'NoSchedule', 'PreferNoSchedule', 'NoExecute'"),
        ("crds.install=maybe", "got string, want boolean"),
        ("watchNamespaces={Team_A}", "does not match pattern"),
        ("watchNamespaces={a,a}", "are equal"),
        ("image.digest=sha256:1", "does not match pattern"),
        ("image.tag=dev,image.digest=sha256:" + "0" * 64, "no effect beside a digest"),
        ("serviceAccount.create=false", "serviceAccount.name"),
        (
            "serviceAccount.create=false,serviceAccount.name=a,serviceAccount.annotations.b=c",
            "no effect",
        ),
        ("extraEnv[0].name=BATCHEDAPI_LOG_LEVEL", "set by a value of its own"),
        ("extraEnv[0].nam=A", "'nam' not allowed"),
        ("fullnameOverride=1a", "does not match pattern"),
        ("watchNamespace=team-a", "write `watchNamespaces: [team-a]`"),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_anything_is_written(
    setting: str, complaint: str
) -> None:
    """A typing error in a value would otherwise be an option that does nothing."""
    result = template([setting])

    assert result.returncode
    assert complaint in result.stderr


def test_a_chart_that_depends_on_this_one_may_set_global_values() -> None:
    """Helm hands `global` to every dependency, also to one that does not read it."""
    assert render("global.domain=example.org")


def test_the_crd_of_the_chart_is_the_crd_of_the_folder() -> None:
    """Braces and quotes in descriptions and rules survive helm's templating."""
    shipped = only(render(), "CustomResourceDefinition")
    plain = yaml.safe_load((ROOT / "crds/batchedapis.yaml").read_text(encoding="utf-8"))

    annotations = shipped["metadata"].pop("annotations")

    assert plain == shipped
    assert "keep" == annotations["helm.sh/resource-policy"]


def test_the_crd_can_be_left_to_somebody_else() -> None:
    """Where a cluster's owner installs CRDs, the release must not claim them."""
    kinds = {item["kind"] for item in render("crds.install=false")}

    assert "CustomResourceDefinition" not in kinds


def test_the_crd_goes_with_the_release_only_when_asked_to() -> None:
    """Deleting the CRD deletes every BatchedAPI in the cluster."""
    annotations = only(render("crds.keep=false"), "CustomResourceDefinition")["metadata"][
        "annotations"
    ]

    assert "helm.sh/resource-policy" not in annotations


def test_the_operator_runs_under_the_restricted_pod_security_standard() -> None:
    """Clusters that enforce it would refuse the pod."""
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert {"type": "RuntimeDefault"} == pod["securityContext"]["seccompProfile"]
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container["securityContext"]


def test_there_is_never_a_second_operator_during_an_upgrade() -> None:
    """Two would undo each other's decisions."""
    spec = only(render(), "Deployment")["spec"]

    assert (1, {"type": "Recreate"}) == (spec["replicas"], spec["strategy"])


def test_ports_and_probes_are_those_of_the_contract() -> None:
    """Helm templates cannot import the contract, so a test compares them."""
    container = operator_container(render())

    (port,) = container["ports"]
    assert (contract.ADMIN_PORT_NAME, contract.ADMIN_PORT) == (port["name"], port["containerPort"])
    assert contract.PATH_LIVE == container["livenessProbe"]["httpGet"]["path"]
    assert contract.PATH_READY == container["readinessProbe"]["httpGet"]["path"]
    assert str(contract.ADMIN_PORT) == environment(render())["BATCHEDAPI_ADMIN_PORT"]


def test_both_images_have_the_version_of_the_release_unless_set() -> None:
    """Operator and replicas of one release were tested together."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["version"] == chart["version"] == chart["appVersion"]
    assert f"batchedapi-operator:{project['version']}" == operator_container(render())["image"]
    assert (
        f"batchedapi-serving:{project['version']}"
        == environment(render())["BATCHEDAPI_SERVING_IMAGE"]
    )
    assert (
        environment(render("servingImage.repository=r/serving", "servingImage.tag=dev"))[
            "BATCHEDAPI_SERVING_IMAGE"
        ]
        == "r/serving:dev"
    )


def test_images_come_by_digest_from_a_registry_of_ones_own() -> None:
    """Clusters that are cut off have a mirror, and policies want digests."""
    digest = f"sha256:{'0' * 64}"
    mirrored = render(
        "imageRegistry=mirror.example.com/ml", f"image.digest={digest}", "servingImage.tag=dev"
    )

    name = "mirror.example.com/ml/batchedapi"
    assert f"{name}-operator@{digest}" == operator_container(mirrored)["image"]
    assert f"{name}-serving:dev" == environment(mirrored)["BATCHEDAPI_SERVING_IMAGE"]


def test_every_object_has_the_common_labels_and_keeps_its_own() -> None:
    """A policy of required labels holds for what the chart makes, too."""
    objects = render(
        *EVERYTHING, "commonLabels.team=ml", "commonLabels.app\\.kubernetes\\.io/name=x"
    )

    for one in objects:
        if one["kind"] != "CustomResourceDefinition":
            assert "ml" == one["metadata"]["labels"]["team"], one["kind"]
            own = "test" if one["kind"] == "Pod" else "operator"
            assert f"batchedapi-{own}" == one["metadata"]["labels"]["app.kubernetes.io/name"]
    assert "ml" == only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]["team"]


@pytest.mark.parametrize(("create", "name"), [(True, "mine"), (False, "mine"), (True, "")])
def test_the_operator_acts_as_the_account_that_it_is_given(*, create: bool, name: str) -> None:
    """Cloud identities are of accounts with a name or an annotation of the cloud's."""
    annotated = ("serviceAccount.annotations.cloud=role",) if create else ()
    flags = (f"serviceAccount.create={str(create).lower()}", f"serviceAccount.name={name}")
    objects = render(*flags, *annotated)

    account = name or "batchedapi-operator"
    assert account == only(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = [one for one in objects if one["kind"].endswith("RoleBinding")]
    assert {account} == {one["subjects"][0]["name"] for one in bindings}
    made = [one["metadata"] for one in objects if one["kind"] == "ServiceAccount"]
    assert [(account, {"cloud": "role"})] * create == [
        (one["name"], one["annotations"]) for one in made
    ]


def test_the_operators_container_and_names_are_as_they_are_asked_for() -> None:
    """A proxy, a CA and the security contexts of a stricter platform."""
    objects = render(
        "fullnameOverride=ml", "extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy",
        "podSecurityContext.runAsUser=1000", "securityContext.privileged=false",
    )  # fmt: skip
    deployment = only(objects, "Deployment")

    assert "ml" == deployment["metadata"]["name"] == environment(objects)["BATCHEDAPI_LEASE_NAME"]
    assert "http://proxy" == environment(objects)["HTTPS_PROXY"]
    pod = deployment["spec"]["template"]["spec"]
    assert {"runAsNonRoot": True, "runAsUser": 1000}.items() <= pod["securityContext"].items()
    own = operator_container(objects)["securityContext"]
    assert {"privileged": False, "readOnlyRootFilesystem": True}.items() <= own.items()


def test_monitors_may_be_where_prometheus_looks() -> None:
    """Some Prometheus select monitors of their own namespace alone."""
    objects = render("serviceMonitor.enabled=true", "serviceMonitor.namespace=monitoring")
    operator, replicas = (only(objects, kind) for kind in ("ServiceMonitor", "PodMonitor"))

    assert ["monitoring"] * 2 == [one["metadata"]["namespace"] for one in (operator, replicas)]
    home = only(objects, "Deployment")["metadata"]["namespace"]
    assert {"matchNames": [home]} == operator["spec"]["namespaceSelector"]


def test_the_values_reach_the_operator() -> None:
    """A value that nothing reads would be an option that does nothing."""
    seen = environment(render(TWO_NAMESPACES, "logLevel=debug", "logFormat=text"))

    assert (
        seen["BATCHEDAPI_WATCH_NAMESPACE"],
        seen["BATCHEDAPI_LOG_LEVEL"],
        seen["BATCHEDAPI_LOG_FORMAT"],
    ) == ("team-a team-b", "debug", "text")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], None),
        (["exposure.ingress=true"], "ingress"),
        (["exposure.ingress=true", "exposure.gateway=true"], "gateway ingress"),
    ],
)
def test_addresses_are_made_and_granted_only_where_they_are_asked_for(
    settings: list[str], words: str | None
) -> None:
    """A right that nothing needs is a way into the cluster."""
    chart = of_operator(render(*settings))

    assert words == environment(chart).get("BATCHEDAPI_EXPOSURE")
    kinds = {resource for _, resource, verb in granted(chart) if verb == "delete"}
    given = {"gateway": {"httproutes", "grpcroutes"}, "ingress": {"ingresses"}}
    expected = {kind for word in (words or "").split() for kind in given[word]}
    assert {"configmaps", *expected} == kinds


def test_images_of_models_are_mounted_where_the_cluster_does_it() -> None:
    """The installer knows what its nodes can do; replicas pull them by default."""
    assert "false" == environment(render())["BATCHEDAPI_IMAGE_VOLUMES"]
    assert "true" == environment(render("imageVolumes=true"))["BATCHEDAPI_IMAGE_VOLUMES"]


def test_pods_have_budgets_unless_they_have_others() -> None:
    """The operator's own, and what it is told of those of the APIs."""
    budget = only(render(), "PodDisruptionBudget")
    labels = only(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    without = render("podDisruptionBudgets.enabled=false")

    assert 1 == budget["spec"]["maxUnavailable"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert "true" == environment(render())["BATCHEDAPI_POD_DISRUPTION_BUDGETS"]
    assert "false" == environment(without)["BATCHEDAPI_POD_DISRUPTION_BUDGETS"]
    assert "PodDisruptionBudget" not in {one["kind"] for one in without}


@pytest.mark.parametrize(
    ("setting", "namespaces"),
    [((), ["monitoring"]), ((f"{MONITORING}={{a,b}}",), ["a", "b"]), ((f"{MONITORING}=null",), [])],
)
def test_metrics_are_read_by_the_operator_and_by_monitoring(
    setting: tuple[str, ...], namespaces: list[str]
) -> None:
    """And by `helm test`; an empty `from` would let everybody in."""
    objects = render("networkPolicies.enabled=true", *setting)
    (operator, *others) = json.loads(environment(objects)["BATCHEDAPI_ADMIN_PEERS"])
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    rules = only(objects, "NetworkPolicy")["spec"]["ingress"]

    assert {"kubernetes.io/metadata.name": "system"} == operator["namespaceSelector"]["matchLabels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    monitoring = [
        {
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}
                ]
            }
        }
    ]
    assert (monitoring if namespaces else []) == others
    ports = [{"protocol": "TCP", "port": contract.OPERATOR_ADMIN_PORT}]
    (rule,) = rules
    test, *read_by = rule["from"]
    of_test = only(objects, "Pod", "-test")["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= of_test.items()
    assert ((monitoring if namespaces else []), ports) == (read_by, rule["ports"])
    assert "BATCHEDAPI_ADMIN_PEERS" not in environment(render())


def test_defaults_of_pods_reach_the_operator_as_they_were_written() -> None:
    """Text that looks like a reference to a variable stays text."""
    settings = ("runAsUser=1000680000", "annotations.note=$(HOME)", "tolerations[0].key=gpu")

    told = environment(render(*(f"defaults.pod.{setting}" for setting in settings)))

    as_kubernetes_reads_it = told["BATCHEDAPI_POD_DEFAULTS"].replace("$$(", "$(")
    assert {
        "runAsUser": 1000680000,
        "annotations": {"note": "$(HOME)"},
        "tolerations": [{"key": "gpu"}],
    } == json.loads(as_kubernetes_reads_it)


def test_the_operators_own_pod_is_placed_and_keeps_its_labels() -> None:
    """A control plane has its own nodes; a label of ours that were replaced would hide the pod."""
    made = only(render(*EVERYTHING, "podLabels.app\\.kubernetes\\.io/name=x"), "Deployment")[
        "spec"
    ]["template"]

    assert {"pool": "system"} == made["spec"]["nodeSelector"]
    assert [{"key": "system"}] == made["spec"]["tolerations"]
    assert "high" == made["spec"]["priorityClassName"]
    assert "gvisor" == made["spec"]["runtimeClassName"]
    (spread,) = made["spec"]["topologySpreadConstraints"]
    labels = made["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert ("a", "batchedapi-operator") == (labels["team"], labels["app.kubernetes.io/name"])
    assert "b" == made["metadata"]["annotations"]["note"]


def test_helm_test_reaches_an_operator_that_is_not_ready() -> None:
    """It asks what is in the way: a Service leaves such a pod out unless it is told otherwise."""
    objects = render()
    (container,) = only(objects, "Pod", "-test")["spec"]["containers"]
    service = only(objects, "Service", "-metrics")["spec"]

    assert "BATCHEDAPI_OPERATOR_METRICS_SERVICE_HOST" in container["command"][-1]
    assert service["publishNotReadyAddresses"] is True


def test_the_pod_of_helm_test_runs_where_the_operator_does() -> None:
    """Else it waits where no node is free of taints, or where a quota wants limits."""
    objects = render(*EVERYTHING)
    operator = only(objects, "Deployment")["spec"]["template"]["spec"]
    test = only(objects, "Pod", "-test")["spec"]

    assert [operator["nodeSelector"], operator["tolerations"]] == [
        test["nodeSelector"],
        test["tolerations"],
    ]
    assert [operator["containers"][0]["resources"]] == [
        container["resources"] for container in test["containers"]
    ]


@pytest.mark.parametrize(
    "settings",
    [
        ("imagePullSecrets={pull,other}",),
        ("imagePullSecrets[0].name=pull", "imagePullSecrets[1].name=other"),
        ("imagePullSecrets[0]=pull", "imagePullSecrets[1].name=other"),
    ],
    ids=["names", "as Kubernetes writes them", "both"],
)
def test_pull_secrets_are_taken_as_names_and_as_kubernetes_writes_them(
    settings: tuple[str, ...],
) -> None:
    """`spec.pod` and most charts have the second; the first is what this one had."""
    made = only(render(*settings), "Deployment")["spec"]["template"]["spec"]

    assert [{"name": "pull"}, {"name": "other"}] == made["imagePullSecrets"]


def test_replicas_of_a_release_share_a_lease_of_its_own_name() -> None:
    """Two releases in one namespace would take turns, if they shared one."""
    objects = render()
    seen, role = environment(objects), only(objects, "Role", "-leader-election")

    assert "batchedapi-operator" == seen["BATCHEDAPI_LEASE_NAME"]
    assert "metadata.namespace" == seen["BATCHEDAPI_LEASE_NAMESPACE"]
    assert "metadata.name" == seen["BATCHEDAPI_POD_NAME"]
    assert ["batchedapi-operator"] == role["rules"][1]["resourceNames"]
    assert "system" == role["metadata"]["namespace"]


def test_one_replica_is_recreated_and_two_roll_over_nodes() -> None:
    """An operator of before there was a Lease must not act beside the first that has one."""
    one = only(render(), "Deployment")["spec"]
    values = yaml.safe_load((CHART / "values-ha.yaml").read_text(encoding="utf-8"))
    two = only(render(*(f"{name}={value}" for name, value in values.items())), "Deployment")["spec"]

    assert (1, "Recreate") == (one["replicas"], one["strategy"]["type"])
    assert "topologySpreadConstraints" not in one["template"]["spec"]
    assert (2, "RollingUpdate") == (two["replicas"], two["strategy"]["type"])
    (spread,) = two["template"]["spec"]["topologySpreadConstraints"]
    assert two["selector"] == spread["labelSelector"]


def test_the_chart_offers_the_log_formats_that_the_operator_has() -> None:
    """The chart cannot know the operator's code: a format of one alone would fail at start."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    assert list(LogFormat) == schema["$defs"]["LogFormat"]["enum"]


def test_nothing_of_prometheus_or_grafana_is_needed_by_default() -> None:
    """Their kinds do not exist in a plain cluster, and the install would fail on them."""
    kinds = {item["kind"] for item in render()}

    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}


def test_the_pod_monitor_relabels_as_documented() -> None:
    """The dashboard finds a BatchedAPI by this label, however the pods are scraped."""
    monitor = only(render("serviceMonitor.enabled=true"), "PodMonitor")

    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert [
        {
            "sourceLabels": API_RELABELLING["source_labels"],
            "targetLabel": API_RELABELLING["target_label"],
        }
    ] == endpoint["relabelings"]
    assert (contract.ADMIN_PORT_NAME, contract.PATH_METRICS) == (endpoint["port"], endpoint["path"])
    (selected,) = monitor["spec"]["selector"]["matchExpressions"]
    assert contract.LABEL_API == selected["key"]


def test_the_service_monitor_keeps_the_labels_of_the_operator() -> None:
    """Without honorLabels every figure would be filed under the operator's own namespace."""
    objects = render("serviceMonitor.enabled=true", "serviceMonitor.labels.release=kps")
    monitor = only(objects, "ServiceMonitor")

    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"]
    assert "kps" == monitor["metadata"]["labels"]["release"]
    service = only(objects, "Service")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]


def test_the_documented_scrape_job_finds_the_operators_pod() -> None:
    """It selects by this label."""
    labels = only(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]

    assert OPERATOR_NAME == labels["app.kubernetes.io/name"]


def test_the_dashboards_arrive_unchanged() -> None:
    """Legends are written `{{label}}`, which helm would interpret in a template."""
    found = only(render("dashboards.enabled=true"), "ConfigMap")

    shipped = {f"batchedapi-{name}.json": dashboards.load(name) for name in dashboards.NAMES}
    assert shipped == {name: json.loads(text) for name, text in found["data"].items()}
    assert "1" == found["metadata"]["labels"]["grafana_dashboard"]


def test_the_rules_arrive_with_links_to_the_runbooks() -> None:
    """Messages are written `{{ $labels.x }}`, which helm would interpret in a template."""
    settings = ("prometheusRule.enabled=true", "prometheusRule.runbooks=https://wiki/alerts")

    found = only(render(*settings, "prometheusRule.labels.release=kps"), "PrometheusRule")

    shipped = (CHART / "rules/batchedapi.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(shipped.replace(RUNBOOKS, "https://wiki/alerts")) == found["spec"]
    assert "kps" == found["metadata"]["labels"]["release"]


def test_two_releases_can_be_installed_side_by_side() -> None:
    """Each with its namespace to watch; cluster-wide names must differ."""

    def names(release: str) -> set[str]:
        flags = ("--set", "watchNamespaces={team}", "--set", "crds.install=false")
        result = helm("template", release, str(CHART), *flags)
        documents = yaml.safe_load_all(result.stdout)
        return {f"{item['kind']}/{item['metadata']['name']}" for item in documents if item}

    assert names("one")
    assert set() == names("one") & names("two")
