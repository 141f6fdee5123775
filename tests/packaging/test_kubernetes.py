"""docker/kubernetes: the manifests conform to Kubernetes' schemas, fit together, and their pods serve clients.

kubernetes-schema.json has the strict schemas of four kinds of Kubernetes 1.36 (Apache-2.0, as ours) and what they refer to,
without descriptions; it was made of kubernetes-json-schema in the package kubernetes-validate 1.37.0.

NOT HERE A Kubernetes: pods are processes in network namespaces, with the variables that the manifests give them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

from broker.config.env_config import read_env_config
from tests.packaging.test_containers import barnabas, check_services, running, why_no_networks

MANIFESTS = Path(__file__).parents[2] / "docker" / "kubernetes" / "barnabas.yml"
SCHEMA = Path(__file__).with_name("kubernetes-schema.json")
CONTROLLED_SHUTDOWN_S = 30
METRICS_PORT = 9464
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).status)"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """The manifests by their kind."""
    return {found["kind"]: found for found in yaml.safe_load_all(MANIFESTS.read_text())}


def pods(objects: dict[str, Any]) -> dict[str, Any]:
    """The pods of the StatefulSet by their names in DNS, as services of a compose file."""
    name, spec = objects["StatefulSet"]["metadata"]["name"], objects["StatefulSet"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    found = {}
    for number in range(spec["replicas"]):
        fields = {
            "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
            "metadata.name": f"{name}-{number}",
            "metadata.namespace": "default",
        }
        variables = dict(objects["ConfigMap"]["data"])
        for entry in container["env"]:
            text = entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            variables[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)  # noqa: B023
        host = f"{name}-{number}.{spec['serviceName']}.default.svc"
        found[host] = {"image": "barnabas", "hostname": host, "environment": variables}
    return found


def conform(found: Any) -> None:
    """Raises an exception unless an object conforms to its kind's schema."""
    group, _, version = found["apiVersion"].rpartition("/")
    name = f"io.k8s.api.{group or 'core'}.{version}.{found['kind']}"
    fastjsonschema.validate({"$ref": f"#/$defs/{name}", **json.loads(SCHEMA.read_text())}, found)


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet"])
def test_a_manifest_conforms_to_its_schema(objects: dict[str, Any], kind: str) -> None:
    conform(objects[kind])


def test_the_schemas_refuse_an_unknown_field(objects: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps(objects["StatefulSet"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(fastjsonschema.JsonSchemaException, match="livenesProbe"):
        conform(wrong)


def test_the_objects_fit_together(objects: dict[str, Any]) -> None:
    """Selectors select the pods; ports, volumes and the configuration exist; a shutdown is not interrupted."""
    stateful, service = objects["StatefulSet"]["spec"], objects["Service"]["spec"]
    template = stateful["template"]
    (container,) = template["spec"]["containers"]
    labels = template["metadata"]["labels"].items()
    budget = objects["PodDisruptionBudget"]["spec"]
    for selected in (stateful["selector"]["matchLabels"], service["selector"], budget["selector"]["matchLabels"]):
        assert selected.items() <= labels
    assert stateful["serviceName"] == objects["Service"]["metadata"]["name"]
    assert service["publishNotReadyAddresses"]
    assert {one["containerPort"] for one in container["ports"]} == {one["port"] for one in service["ports"]}
    claims = {one["metadata"]["name"] for one in stateful["volumeClaimTemplates"]}
    assert {one["name"] for one in container["volumeMounts"]} == claims
    assert [one["configMapRef"]["name"] for one in container["envFrom"]] == [objects["ConfigMap"]["metadata"]["name"]]
    *command, wait_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["barnabas", "health", "--safe-to-stop", "--wait"]
    assert template["spec"]["terminationGracePeriodSeconds"] >= int(wait_s) + CONTROLLED_SHUTDOWN_S * 3
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert ports[container[probe]["httpGet"]["port"]] == METRICS_PORT
    assert template["spec"]["enableServiceLinks"] is False


def test_each_pod_is_a_voter_and_listens_where_the_others_look(objects: dict[str, Any]) -> None:
    voters = set(objects["ConfigMap"]["data"]["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(","))
    named = set()
    for host, pod in pods(objects).items():
        settings = read_env_config(pod["environment"]).settings
        named.add(f"{settings['node.id']}@{host.removesuffix('.default.svc')}:9093")
        assert settings["advertised.listeners"] == f"PLAINTEXT://{host}:9092"
    assert named == voters


@pytest.mark.long
@pytest.mark.skipif(why_no_networks() is not None, reason=why_no_networks() or "networks can be made")
def test_the_pods_serve_clients(objects: dict[str, Any]) -> None:
    check_services(pods(objects), port=9092)


@pytest.mark.long
@pytest.mark.skipif(why_no_networks() is not None, reason=why_no_networks() or "networks can be made")
def test_the_probes_and_the_prestop_command_succeed_in_each_pod(objects: dict[str, Any]) -> None:
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    with running(pods(objects)) as networks:
        for host, pod in pods(objects).items():
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = container[probe]["httpGet"]["path"]
                get = networks.command("client", sys.executable, "-c", GET, f"http://{host}:{METRICS_PORT}{path}")
                assert subprocess.run(get, capture_output=True, text=True, timeout=90, check=True).stdout == "200\n"
            command = networks.command(host, *barnabas(container["lifecycle"]["preStop"]["exec"]["command"]))
            variables = {**os.environ, **pod["environment"]}
            assert subprocess.run(command, env=variables, timeout=180, check=False).returncode == 0
