"""What is deployed is well-formed by the real schemas, consistent in itself, and as confined as the documents say."""

from __future__ import annotations

import configparser
import copy
import ipaddress
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import amble
from amble.domain.policy import FetchLimits, ParseLimits

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SYSTEMD = DEPLOY / "systemd"
SCHEMAS = ROOT / "tests" / "data" / "schemas"

# Between the end of the last request and the end of the process: flush the archive, commit, hand partitions over.
HAND_OVER_S_MIN = 20

Document = dict[str, Any]


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, which YAML forbids and most readers pass over."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(names) == len(set(names)), f"{node.start_mark}: a key is given twice in {names}"
        return super().construct_mapping(node, deep)


@cache
def _documents(path: Path) -> tuple[Document, ...]:
    return tuple(yaml.load_all(path.read_text(), _StrictLoader))


def _copy_of(path: Path, index: int = 0) -> Document:
    return copy.deepcopy(_documents(path)[index])


def _seconds(text: str) -> float:
    """A span as Compose and systemd write it."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
    parts = re.findall(r"([0-9.]+)(ms|min|s|m|h)", text)
    assert parts, text
    return sum(float(count) * units[unit] for count, unit in parts)


# --- the image ---------------------------------------------------------------------------------------------------


def _instructions() -> list[tuple[str, str]]:
    """(instruction, rest of its line with continuations joined) of the Dockerfile, comments left out."""
    lines = [
        line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def _stages() -> list[list[tuple[str, str]]]:
    stages: list[list[tuple[str, str]]] = [[]]
    for instruction in _instructions():
        if instruction[0] == "FROM":
            stages.append([])
        stages[-1].append(instruction)
    return stages[1:]


def test_the_dockerfile_has_only_instructions_that_exist() -> None:
    known = {
        "ARG",
        "FROM",
        "ENV",
        "RUN",
        "WORKDIR",
        "COPY",
        "LABEL",
        "USER",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    }
    assert {word for word, _ in _instructions()} <= known


def test_both_stages_stand_on_one_slim_base_with_a_version() -> None:
    base = dict(rest.split("=", 1) for word, rest in _instructions()[:1] if word == "ARG")["PYTHON_IMAGE"]
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", base)
    assert [stage[0][1].split()[0] for stage in _stages()] == ["${PYTHON_IMAGE}", "${PYTHON_IMAGE}"]


def test_every_wheel_is_held_to_its_hash_and_nothing_else_is_asked_of_an_index() -> None:
    installs = [
        command
        for word, rest in _instructions()
        if word == "RUN"
        for command in re.split(r"&&", rest)
        if re.search(r"\bpip\b.* (install|download|wheel) ", command)
    ]
    assert len(installs) == 4
    for command in installs:
        locked = "--require-hashes" in command and "--only-binary :all:" in command
        assert locked or "--no-index" in command, command


def test_the_final_image_has_no_compiler_and_runs_without_root() -> None:
    final = _stages()[-1]
    assert not any("apt-get" in rest or "pip" in rest for word, rest in final if word == "RUN")
    users = [rest for word, rest in final if word == "USER"]
    assert users == ["10001:10001"]
    assert final.index(("USER", users[0])) < final.index(("ENTRYPOINT", '["amble"]'))


def test_the_image_carries_the_version_of_the_package() -> None:
    assert f'org.opencontainers.image.version="{amble.__version__}"' in (ROOT / "Dockerfile").read_text()


def test_what_the_dockerfile_copies_exists_and_nothing_else_reaches_the_builder() -> None:
    copied = {
        source
        for word, rest in _instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


# --- Compose -----------------------------------------------------------------------------------------------------

COMPOSE = DEPLOY / "compose.yaml"


def _compose() -> Document:
    return _copy_of(COMPOSE)


def _compose_problems(document: Document) -> list[str]:
    schema = json.loads((SCHEMAS / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_the_compose_file_is_valid() -> None:
    assert _compose_problems(_compose()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file["services"]["agent"].update(comand=["agent"]),
        lambda file: file["services"]["agent"].update(stop_grace_period=90),
        lambda file: file["services"]["agent"]["deploy"].update(replica=3),
        lambda file: file["services"]["agent"]["healthcheck"].update(retry=3),
        lambda file: file["services"]["agent"]["depends_on"]["postgres"].update(condition="healthy"),
        lambda file: file["services"]["agent"].update(read_only="perhaps-not", cap_drop="ALL"),
        lambda file: file.update(service={}),
        lambda file: file["networks"]["inside"].update(intern=True),
    ],
)
def test_a_typo_in_the_compose_file_is_found(spoil: Callable[[Document], None]) -> None:
    file = _compose()
    spoil(file)
    assert _compose_problems(file)


def test_the_services_are_a_fleet() -> None:
    services = _compose()["services"]
    assert {name: service.get("deploy", {}).get("replicas", 1) for name, service in services.items()} == {
        "postgres": 1,
        "objects": 1,
        "bucket": 1,
        "store-init": 1,
        "agent": 3,
        "parse": 2,
    }


def test_a_service_waits_for_what_can_be_waited_for() -> None:
    services = _compose()["services"]
    waits = [
        (services[other], wait["condition"])
        for service in services.values()
        for other, wait in service.get("depends_on", {}).items()
    ]
    assert len(waits) > 5
    for other, condition in waits:
        if condition == "service_healthy":
            assert "healthcheck" in other
        else:
            assert condition == "service_completed_successfully"
            assert not other["restart"].startswith(("always", "unless-stopped")), "it would never be complete"


def test_networks_volumes_and_secrets_of_services_are_declared() -> None:
    file = _compose()
    for service in file["services"].values():
        assert set(service.get("networks", [])) <= set(file["networks"])
        assert set(service.get("secrets", [])) <= set(file["secrets"])
        for volume in service.get("volumes", []):
            if isinstance(volume, str):
                named = not volume.startswith("/")
                assert not named or volume.partition(":")[0] in file["volumes"]
            elif volume["type"] == "bind":
                assert (DEPLOY / volume["source"]).is_file()


def test_only_agents_reach_the_internet() -> None:
    file = _compose()
    assert file["networks"]["inside"]["internal"] is True
    outside = {name for name, service in file["services"].items() if set(service["networks"]) != {"inside"}}
    assert outside == {"agent"}
    assert not any("ports" in service for service in file["services"].values())


def test_every_service_has_limits_and_every_image_a_version() -> None:
    for name, service in _compose()["services"].items():
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        assert re.search(r":[^:]*\d", service["image"]), name
        assert "latest" not in service["image"], name


def test_services_of_amble_are_confined() -> None:
    own = [service for service in _compose()["services"].values() if service["image"].startswith("amble:")]
    assert len(own) == 3
    for service in own:
        assert service["image"] == f"amble:{amble.__version__}"
        assert service["read_only"] is True
        assert service["user"] == "10001:10001"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_no_secret_stands_in_the_compose_file_and_the_example_names_all_that_it_wants() -> None:
    text = COMPOSE.read_text()
    wanted = set(re.findall(r"\$\{([A-Z0-9_]+)", text)) | set(re.findall(r"environment: ([A-Z_]+)\n", text))
    example = dict(
        line.split("=", 1)
        for line in (DEPLOY / "fleet.env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert set(example) == wanted
    for service in _compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD$|SECRET|ACCESS_KEY", name):
                assert value.startswith("${"), name
    assert {"fleet.env", "secret.yaml"} <= set((DEPLOY / ".gitignore").read_text().split())


def test_the_database_is_set_for_a_frontier() -> None:
    command = _compose()["services"]["postgres"]["command"]
    settings = dict(text.split("=", 1) for text in command if "=" in text)
    assert command.count("-c") == len(settings) == (len(command) - 1) // 2
    assert settings["synchronous_commit"] == "on"
    assert settings["wal_compression"] == "lz4"
    assert settings["idle_in_transaction_session_timeout"] == "30s"
    assert _seconds(settings["checkpoint_timeout"]) >= 15 * 60
    assert settings["max_wal_size"] == "16GB"


# --- Kubernetes --------------------------------------------------------------------------------------------------


@cache
def _kubernetes_schema() -> Document:
    return json.loads((SCHEMAS / "kubernetes-v1.37.0-strict.json").read_text())


def _definition(document: Document) -> str | None:
    """The name of the schema for a document's apiVersion and kind."""
    for name, definition in _kubernetes_schema()["$defs"].items():
        for made in definition.get("x-kubernetes-group-version-kind", []):
            version = "/".join(filter(None, (made["group"], made["version"])))
            if (version, made["kind"]) == (document.get("apiVersion"), document.get("kind")):
                return name
    return None


def _kubernetes_problems(document: Document) -> list[str]:
    name = _definition(document)
    if name is None:
        return [f"there is no {document.get('kind')} in {document.get('apiVersion')}"]
    schema = {"$ref": f"#/$defs/{name}", "$defs": _kubernetes_schema()["$defs"]}
    return [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def _kustomization() -> Document:
    return _documents(KUBERNETES / "kustomization.yaml")[0]


def _manifests() -> dict[tuple[str, str], Document]:
    """(kind, name) to document, of all that the kustomization applies and the example of the secret."""
    paths = [KUBERNETES / name for name in _kustomization()["resources"]] + [
        KUBERNETES / "secret.example.yaml"
    ]
    found = {}
    for path in paths:
        for document in _documents(path):
            key = document["kind"], document["metadata"]["name"]
            assert key not in found, f"{key} is there twice"
            found[key] = document
    return found


def _pods() -> dict[str, Document]:
    """Name of the workload to its pod template."""
    return {
        name: document["spec"]["template"]
        for (kind, name), document in _manifests().items()
        if kind in ("Deployment", "Job")
    }


@pytest.mark.parametrize("key", list(_manifests()), ids=lambda key: "-".join(key))
def test_a_manifest_is_valid(key: tuple[str, str]) -> None:
    assert _kubernetes_problems(_manifests()[key]) == []


def _container(document: Document) -> Document:
    return document["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("kind", "name", "spoil"),
    [
        ("Deployment", "amble-agent", lambda it: it.update(apiVersion="apps/v1beta1")),
        ("Deployment", "amble-agent", lambda it: it.update(kind="Deploiment")),
        ("Deployment", "amble-agent", lambda it: it["spec"].update(replica=3)),
        ("Deployment", "amble-agent", lambda it: it["spec"].update(replicas="3")),
        ("Deployment", "amble-agent", lambda it: it["spec"].pop("selector")),
        (
            "Deployment",
            "amble-agent",
            lambda it: it["spec"]["template"]["spec"].update(terminationGracePeriod=90),
        ),
        (
            "Deployment",
            "amble-agent",
            lambda it: _container(it)["livenessProbe"]["httpGet"].update(paths="/live"),
        ),
        ("Deployment", "amble-agent", lambda it: _container(it)["livenessProbe"]["httpGet"].pop("port")),
        (
            "Deployment",
            "amble-agent",
            lambda it: _container(it)["securityContext"].update(readOnlyRootFS=True),
        ),
        ("Deployment", "amble-agent", lambda it: _container(it)["resources"].update(request={"cpu": "1"})),
        ("HorizontalPodAutoscaler", "amble-parse", lambda it: it["spec"].update(maxReplica=9)),
        ("HorizontalPodAutoscaler", "amble-parse", lambda it: it["spec"].pop("scaleTargetRef")),
        ("PodDisruptionBudget", "amble-agent", lambda it: it["spec"].update(maxUnavailables=1)),
        (
            "NetworkPolicy",
            "amble-internet",
            lambda it: it["spec"]["egress"][0]["to"][0]["ipBlock"].update(excepts=[]),
        ),
        ("Job", "amble-store-init", lambda it: it["spec"].update(ttlSecondsAfterFinish=1)),
        ("Namespace", "amble", lambda it: it["metadata"].update(label={})),
    ],
)
def test_a_typo_in_a_manifest_is_found(kind: str, name: str, spoil: Callable[[Document], None]) -> None:
    document = copy.deepcopy(_manifests()[kind, name])
    spoil(document)
    assert _kubernetes_problems(document)


def test_the_kustomization_applies_every_manifest_but_the_example() -> None:
    known = {"apiVersion", "kind", "namespace", "labels", "resources", "configMapGenerator", "images"}
    assert set(_kustomization()) == known
    files = {path.name for path in KUBERNETES.glob("*.yaml")}
    assert files - set(_kustomization()["resources"]) == {"kustomization.yaml", "secret.example.yaml"}
    for generator in _kustomization()["configMapGenerator"]:
        assert all((KUBERNETES / name).is_file() for name in generator["files"])
    assert _kustomization()["images"] == [{"name": "amble", "newTag": amble.__version__}]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kustomize_renders_what_is_valid() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.load_all(done.stdout, _StrictLoader))
    assert len(rendered) == len(_manifests())  # without the example, with the generated ConfigMap
    assert [problem for document in rendered for problem in _kubernetes_problems(document)] == []


def test_every_object_is_in_the_namespace() -> None:
    for (kind, _), document in _manifests().items():
        assert kind == "Namespace" or document["metadata"]["namespace"] == "amble"


def test_selectors_find_the_pods_that_they_mean() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in _pods().items()}

    def found(selector: Document) -> set[str]:
        wanted = selector.get("matchLabels", {}).items()
        return {name for name, own in labels.items() if wanted <= own.items()}

    manifests = _manifests()
    for name in ("amble-agent", "amble-parse"):
        assert found(manifests["Deployment", name]["spec"]["selector"]) == {name}
        assert found(manifests["PodDisruptionBudget", name]["spec"]["selector"]) == {name}
        for spread in manifests["Deployment", name]["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert found(spread["labelSelector"]) == {name}
    assert found(manifests["NetworkPolicy", "amble-nothing"]["spec"]["podSelector"]) == set(labels)
    assert found(manifests["NetworkPolicy", "amble-stores"]["spec"]["podSelector"]) == set(labels)
    assert found(manifests["NetworkPolicy", "amble-internet"]["spec"]["podSelector"]) == {"amble-agent"}


def test_the_autoscaler_owns_the_number_of_parse_workers() -> None:
    manifests = _manifests()
    target = manifests["HorizontalPodAutoscaler", "amble-parse"]["spec"]["scaleTargetRef"]
    deployment = manifests[target["kind"], target["name"]]
    assert target["apiVersion"] == deployment["apiVersion"]
    assert "replicas" not in deployment["spec"]
    assert "cpu" in _container(deployment)["resources"]["requests"]
    assert manifests["Deployment", "amble-agent"]["spec"]["replicas"] >= 2


@pytest.mark.parametrize("name", list(_pods()))
def test_a_pod_meets_the_strictest_profile(name: str) -> None:
    spec = _pods()[name]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all(set(volume) <= {"name", "configMap", "emptyDir"} for volume in spec["volumes"])
    for container in spec["containers"]:
        assert container["image"] == f"amble:{amble.__version__}"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", list(_pods()))
def test_what_a_pod_refers_to_is_there(name: str) -> None:
    spec = _pods()[name]["spec"]
    assert ("ServiceAccount", spec["serviceAccountName"]) in _manifests()
    volumes = {volume["name"] for volume in spec["volumes"]}
    maps = {generator["name"] for generator in _kustomization()["configMapGenerator"]}
    assert {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume} <= maps
    for container in spec["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        for source in container["envFrom"]:
            assert ("Secret", source["secretRef"]["name"]) in _manifests()
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize("name", ["amble-agent", "amble-parse"])
def test_probes_ask_the_port_that_the_command_opens(name: str) -> None:
    container = _pods()[name]["spec"]["containers"][0]
    opened = container["args"][container["args"].index("--health") + 1]
    assert opened == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}


def test_agents_may_reach_no_address_that_is_not_public() -> None:
    egress = _manifests()["NetworkPolicy", "amble-internet"]["spec"]["egress"]
    blocks = [peer["ipBlock"] for rule in egress for peer in rule["to"]]
    inside = [
        "10.1.2.3",
        "172.20.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "127.0.0.1",
        "::1",
        "fd00::1",
    ]
    for address in map(ipaddress.ip_address, [*inside, "fe80::1"]):
        for block in blocks:
            network = ipaddress.ip_network(block["cidr"])
            if address.version == network.version:
                assert any(address in ipaddress.ip_network(hole) for hole in block["except"]), address
    assert {peer["ipBlock"]["cidr"] for rule in egress for peer in rule["to"]} == {"0.0.0.0/0", "::/0"}
    for block in blocks:
        for hole in block["except"]:
            assert ipaddress.ip_network(hole).subnet_of(ipaddress.ip_network(block["cidr"]))  # type: ignore[arg-type]


# --- systemd -----------------------------------------------------------------------------------------------------

UNITS = sorted([*SYSTEMD.glob("*.service"), *SYSTEMD.glob("*.slice")])


@cache
def _directives() -> dict[str, dict[str, str]]:
    """Section to directive to kind of value, as systemd itself prints them."""
    sections: dict[str, dict[str, str]] = {}
    for line in (SCHEMAS / "systemd-v252-directives.txt").read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line:
            name, _, kind = line.partition("=")
            section[name] = kind
    return sections


def _unit_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """(section, directive, value); directives may repeat, and the last one of a kind counts where they do not add up."""
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            name, equals, value = line.partition("=")
            assert equals, line
            yield section, name, value


def _unit_problems(text: str) -> list[str]:
    problems = []
    for section, name, value in _unit_lines(text):
        kind = _directives().get(section, {}).get(name)
        if kind is None:
            problems.append(f"[{section}] {name}: no such directive")
        elif kind == "BOOLEAN" and value not in ("yes", "no"):
            problems.append(f"[{section}] {name}={value}: neither yes nor no")
    return problems


def _unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_only_directives_that_exist(path: Path) -> None:
    assert _unit_problems(path.read_text()) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("TimeoutStopSec=", "TimeoutStopSecs="),
        ("[Service]", "[Services]"),
        ("NoNewPrivileges=yes", "NoNewPrivileges=always"),
        ("OOMPolicy=", "OomPolicy="),
        ("StartLimitIntervalSec=0\n", "\n[Service]\nStartLimitIntervalSecs=0\n"),
    ],
)
def test_a_typo_in_a_unit_is_found(right: str, wrong: str) -> None:
    text = (SYSTEMD / "amble-agent@.service").read_text()
    assert right in text
    assert _unit_problems(text.replace(right, wrong))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_itself_accepts_the_units(tmp_path: Path) -> None:
    names = []
    for path in UNITS:
        # The verifier looks for the program, which is installed elsewhere on this machine.
        text = path.read_text().replace("/opt/amble/bin/amble", shutil.which("true") or "/bin/true")
        name = path.name.replace("@.", "@8101.")
        for file in (path.name, name):
            (tmp_path / file).write_text(text)
        names.append(f"./{name}")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if "amble" in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("path", sorted(SYSTEMD.glob("*.service")), ids=lambda path: path.name)
def test_a_service_is_confined_and_still_lets_parser_children_confine_themselves(path: Path) -> None:
    service = _unit(path)["Service"]
    assert service["User"] == "amble"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert service["OOMPolicy"] == "continue"
    filters = [value for _, name, value in _unit_lines(path.read_text()) if name == "SystemCallFilter"]
    assert {"landlock_create_ruleset", "landlock_restrict_self"} <= set(filters[0].split())
    # A second SIGTERM would end amble at once, so its children must not be signalled, nor it be signalled again.
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")


# --- how much memory it may take ------------------------------------------------------------------------------------

# Beside its parser children: the process itself, and bodies of up to 1 MiB for every request under way.
OWN_BYTES = 1 << 30
_UNITS = {"g": 1 << 30, "G": 1 << 30, "Gi": 1 << 30}


def _bytes(text: str) -> int:
    count, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()  # type: ignore[union-attr]
    return int(count) * _UNITS[unit]


@pytest.mark.parametrize("command", ["agent", "parse"])
def test_every_parser_child_may_have_its_bound_at_once(command: str) -> None:
    """Where a container is killed as a whole, one hostile page would otherwise end all that runs in it."""
    limits = {
        "compose": _compose()["services"][command]["deploy"]["resources"]["limits"]["memory"],
        "kubernetes": _container(_manifests()["Deployment", f"amble-{command}"])["resources"]["limits"][
            "memory"
        ],
        "systemd": _unit(SYSTEMD / f"amble-{command}@.service")["Service"]["MemoryMax"],
    }
    for configuration in (DEPLOY / "amble.toml", KUBERNETES / "amble.toml"):
        parse = tomllib.loads(configuration.read_text())["parse"]
        wanted = parse["children"] * parse.get("memory_bytes_max", ParseLimits().memory_bytes_max) + OWN_BYTES
        assert {where: _bytes(limit) >= wanted for where, limit in limits.items()} == dict.fromkeys(
            limits, True
        )


# --- how long a stop may take --------------------------------------------------------------------------------------


def _grace_periods(command: str) -> dict[str, float]:
    """Where a command is started to how many seconds it has from SIGTERM to SIGKILL."""
    pod = _pods()[f"amble-{command}"]["spec"]
    return {
        "compose": _seconds(_compose()["services"][command]["stop_grace_period"]),
        "kubernetes": float(pod["terminationGracePeriodSeconds"]),
        "systemd": _seconds(_unit(SYSTEMD / f"amble-{command}@.service")["Service"]["TimeoutStopSec"]),
    }


def _configured(section: str, key: str, default: float) -> float:
    """The largest value that a configuration gives."""
    files = (DEPLOY / "amble.toml", KUBERNETES / "amble.toml")
    return max(tomllib.loads(path.read_text()).get(section, {}).get(key, default) for path in files)


def test_an_agent_has_time_to_finish_its_requests_and_hand_over() -> None:
    for where, seconds in _grace_periods("agent").items():
        assert seconds >= _configured("fetch", "total_s", FetchLimits().total_s) + HAND_OVER_S_MIN, where


def test_a_parse_worker_has_time_to_finish_its_page() -> None:
    for where, seconds in _grace_periods("parse").items():
        assert seconds >= _configured("parse", "wall_s", ParseLimits().wall_s) + 5, where
