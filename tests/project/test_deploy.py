"""The files in `deploy/`: each can be parsed, names what exists, and its commands start against a real storage."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import socket
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.cli.test_health import probe
from tests.cli.tools import Command
from tests.servers import valkey
from tests.servers.process import free_port
from tests.waiting import until_blocking
from treadle.cli.root import treadle as root
from treadle.core import defaults
from treadle.server.settings import GRACE
from treadle.worker.fleet.worker_process import MARGIN
from treadle_testkit.shows import shows

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="systemd and containers")]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = {path.name: path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))}
UNITS = {path.name: path for path in sorted((DEPLOY / "systemd").iterdir())}
EXE = "/srv/shop/venv/bin/treadle"
TASKS = """
from treadle import App

app = App()


@app.task(queue="mail")
async def send(to: str) -> str:
    return to
"""

Object = dict[str, Any]


def objects(*names: str) -> list[Object]:
    """The objects of these manifests; of all by default."""
    texts = [MANIFESTS[name].read_text() for name in names or MANIFESTS]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def the(kind: str, name: str) -> Object:
    [found] = [each for each in objects() if each["kind"] == kind and each.get("metadata", {}).get("name") == name]
    return found


def containers(of: Object) -> Iterator[Object]:
    pod = of["spec"]["template"]["spec"]
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


PODS = [each for each in objects() if each["kind"] in ("Deployment", "Job")]
COMMANDS = [(f"{pod['metadata']['name']}/{each['name']}", each["args"]) for pod in PODS for each in containers(pod)]


class Unit(configparser.ConfigParser):
    """A unit of systemd. Its keys keep their case; none of ours is given twice."""

    def __init__(self, path: Path) -> None:
        super().__init__(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(path.read_text())

    @property
    def words(self) -> list[str]:
        """The words of its command."""
        found = shlex.split(self["Service"]["ExecStart"])
        assert found[0] == EXE
        return found[1:]


COMMANDS += [(name, Unit(path).words) for name, path in UNITS.items()]


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_every_command_and_option_exists(where: str, words: list[str]) -> None:
    assert isinstance(root, click.Group)
    context = click.Context(root)
    command = root.get_command(context, words[0])
    assert command is not None, words
    command.make_context(words[0], [word.replace("%i", "mail") for word in words[1:]], parent=context)


def option(words: list[str], name: str) -> str | None:
    """The value of an option, as `--name=value` or as two words."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return after
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


# --- Kubernetes


def test_the_kustomization_has_every_manifest_but_the_secrets() -> None:
    [found] = objects("kustomization.yaml")
    assert set(found["resources"]) == set(MANIFESTS) - {"kustomization.yaml", "secret.example.yaml"}
    assert {each["image"] for pod in PODS for each in containers(pod)} == {each["name"] for each in found["images"]}


@pytest.mark.parametrize("pod", PODS, ids=[pod["metadata"]["name"] for pod in PODS])
def test_a_pod_is_locked_down_and_its_probes_and_secrets_exist(pod: Object) -> None:
    spec = pod["spec"]["template"]["spec"]
    secrets = {each["metadata"]["name"]: each["stringData"] for each in objects("secret.example.yaml")}
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert {each["secret"]["secretName"] for each in spec.get("volumes", ()) if "secret" in each} <= set(secrets)
    for each in containers(pod):
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert "memory" in each["resources"]["limits"]
        [env] = each["envFrom"]
        assert "TREADLE_URL" in secrets[env["secretRef"]["name"]]
        ports = {port["name"]: port["containerPort"] for port in each.get("ports", ())}
        for kind, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            if kind in each:
                assert each[kind]["httpGet"]["path"] == path
                assert each[kind]["httpGet"]["port"] in ports
    if pod["kind"] == "Deployment":
        assert pod["spec"]["selector"]["matchLabels"].items() <= pod["spec"]["template"]["metadata"]["labels"].items()


def test_the_platform_waits_longer_than_a_stop_takes() -> None:
    workers, server = (
        the("Deployment", name)["spec"]["template"]["spec"] for name in ("treadle-workers", "treadle-server")
    )
    grace = float(option(workers["containers"][0]["args"], "--grace") or 0)
    assert workers["terminationGracePeriodSeconds"] > grace + defaults.LEASE + MARGIN
    assert server["terminationGracePeriodSeconds"] > GRACE + defaults.GRACE + 15
    for unit in map(Unit, UNITS.values()):
        grace = float(option(unit.words, "--grace") or defaults.GRACE)
        assert float(unit["Service"]["TimeoutStopSec"]) > grace + defaults.LEASE + MARGIN


def test_the_service_the_budgets_and_the_scaler_name_what_exists() -> None:
    server, workers = the("Deployment", "treadle-server"), the("Deployment", "treadle-workers")
    service = the("Service", "treadle-server")["spec"]
    assert service["selector"] == server["spec"]["selector"]["matchLabels"]
    [port] = server["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert (service["ports"][0]["targetPort"], service["ports"][0]["port"]) == (port["name"], port["containerPort"])
    for deployment in (server, workers):
        budget = the("PodDisruptionBudget", deployment["metadata"]["name"])["spec"]
        assert budget["selector"] == deployment["spec"]["selector"]
    scaled = the("ScaledObject", "treadle-workers")["spec"]
    assert scaled["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    assert scaled["minReplicaCount"] == 0
    assert "replicas" not in workers["spec"]
    trigger = scaled["triggers"][0]
    args = workers["spec"]["template"]["spec"]["containers"][0]["args"]
    assert trigger["metadata"]["targetValue"] == option(args, "--concurrency")
    queues = [each.partition("=")[0] for each in (option(args, "--queues") or "").split(",")]
    [namespace] = {each["namespace"] for each in objects("kustomization.yaml")}
    host = f"{server['metadata']['name']}.{namespace}.svc.cluster.local:{port['containerPort']}"
    assert trigger["metadata"]["url"] == f"http://{host}/v1/scale?" + "&".join(f"queue={each}" for each in queues)
    secret = the("TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]["secretTargetRef"][0]
    assert secret["parameter"] in the("Secret", secret["name"])["stringData"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the app that the files name, on a real storage."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    monkeypatch.setenv("TREADLE_URL", f"{valkey.url()}?ns=deploy{os.getpid()}-{tmp_path.name}")
    return tmp_path


def started(words: list[str], shop: Path, **environment: str) -> Command:
    url = os.environ["TREADLE_URL"]
    return Command(*words, cwd=shop, TREADLE_URL=url, **environment)


def ended(words: list[str], shop: Path) -> int:
    with started(words, shop) as command:
        return command.ended()


def secret_of_a_token(shop: Path) -> str:
    with started(["token", "scaler", "--scope", "read", "--file", "tokens.toml"], shop) as command:
        assert command.ended() == 0, command.stderr
        return command.stdout.split()[-1]


@shows(
    "the manifests of `deploy/kubernetes` start a migration, a server and workers that are probed and scaled",
    area="Workers",
)
def test_the_commands_of_the_manifests_start(shop: Path) -> None:
    args = dict(COMMANDS)
    for where in ("treadle-migrate/migrate", "treadle-workers/wait-for-migration", "treadle-server/wait-for-migration"):
        assert ended(args[where], shop) == 0, where
    token = secret_of_a_token(shop)
    at, listening = free_port(), free_port()
    here = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=7373": f"--port={at}"}
    here |= {"--tokens=/etc/treadle/tokens.toml": "--tokens=tokens.toml", "--health=:8080": f"--health={listening}"}
    server_args, worker_args = args["treadle-server/server"], args["treadle-workers/worker"]
    assert set(here) <= {*server_args, *worker_args}
    scale = the("ScaledObject", "treadle-workers")["spec"]["triggers"][0]["metadata"]
    host = scale["url"].partition("://")[2].partition("/")[0]
    url = scale["url"].replace(host, f"127.0.0.1:{at}")
    with (
        started([here.get(word, word) for word in server_args], shop) as server,
        started([here.get(word, word) for word in worker_args], shop) as worker,
    ):
        for port in (at, listening):
            for path in ("/livez", "/readyz"):
                until_blocking(lambda p=port, q=path: answers(f"http://127.0.0.1:{p}{q}"), f"{path} of {port}")
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", "Host": host})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            found = json.loads(answer.read())
        assert found[scale["valueLocation"]] == 0
        assert found["slots"] == int(scale["targetValue"])
        for each in (worker, server):
            each.signal(15)
            assert each.ended() == 0, each.stderr


def answers(url: str) -> bool:
    try:
        return probe(url)[0] == 200
    except OSError:
        return False


# --- systemd


@pytest.mark.parametrize("name", UNITS)
@shows("the units of `deploy/systemd` notify systemd when they are ready, and stop in time", area="Workers")
def test_a_unit_starts_and_notifies_the_service_manager(name: str, shop: Path) -> None:
    unit = Unit(UNITS[name])
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert service.get("ExecReload", "/bin/kill -HUP $MAINPID") == "/bin/kill -HUP $MAINPID"
    secret_of_a_token(shop)
    port = str(free_port())
    words = [word.replace("%i", "mail").replace("${CREDENTIALS_DIRECTORY}", str(shop)) for word in unit.words]
    words = [port if word == "7373" else word for word in words]
    if "--processes" in words:
        words[words.index("--processes") + 1] = "1"
    address = shop / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(60)
        watchdog = str(int(float(service["WatchdogSec"]) * 1e6))
        with started(words, shop, NOTIFY_SOCKET=str(address), WATCHDOG_USEC=watchdog) as command:
            until_told(manager, "READY=1")
            until_told(manager, "WATCHDOG=1")
            command.signal(15)
            until_told(manager, "STOPPING=1")
            assert command.ended() == 0, command.stderr


def until_told(manager: socket.socket, line: str) -> None:
    while line not in manager.recv(4096).decode().split("\n"):
        pass


# --- the image


def test_the_image_installs_extras_that_exist_and_runs_the_command() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    steps = [line.partition(" ")[0] for line in lines]
    assert steps == ["FROM", "WORKDIR", "COPY", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"]
    extras = re.search(r'"/treadle\[([\w,]+)\]"', text)  # a checkout: no package index has Treadle
    assert extras is not None
    assert "COPY --from=treadle . /treadle" in lines
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= set(known)
    assert json.loads(lines[6].partition(" ")[2]) == ["treadle"]
    test_every_command_and_option_exists("Dockerfile", json.loads(lines[7].partition(" ")[2]))
    users = {pod["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for pod in PODS}
    assert {int(lines[5].partition(" ")[2])} == users
