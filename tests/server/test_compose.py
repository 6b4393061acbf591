"""compose.yaml, as far as it can be tested without a container engine.

Every command line and environment variable in it is one of Treadle's. The same processes with the same arguments work
together on a real server.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.server.fleet_kit import answer, command, leader
from tests.servers import valkey
from tests.servers.process import free_port
from treadle.cli.root import treadle
from treadle.contrib.delayed import options as delivery_options
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "treadle"}


@pytest.mark.parametrize("name", OURS)
def test_each_command_line_is_one_of_ours(name: str) -> None:
    words = list(OURS[name]["command"])
    found: click.Command | None = treadle
    with click.Context(treadle) as context:
        while isinstance(found, click.Group):
            found = found.get_command(context, words.pop(0))
        assert found is not None, name
        found.make_context(found.name, words, parent=context)  # reads every option, and raises for an unknown one


@pytest.mark.parametrize("name", OURS)
def test_each_name_of_the_environment_is_one_we_read(name: str) -> None:
    environment = OURS[name]["environment"]
    assert set(environment) <= {*delivery_options.NAMES, "JOB_COUNT", "TIME_OFFSET_SEC"}
    assert all(isinstance(text, str) for text in environment.values())
    if "REDIS_HOST" in environment:
        assert delivery_options.redis_url(environment) == "redis://redis:6379/0"
    if "WORKER_ROLE" in environment:
        assert delivery_options.role(None, environment) == name


def test_the_services_depend_on_healthy_ones() -> None:
    assert set(SERVICES) == {"redis", "api", "leader", "follower", "submit-jobs"}
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[needed]
    assert SERVICES["follower"]["deploy"] == {"replicas": 2}
    assert "ports" not in SERVICES["leader"]  # a service with several replicas cannot publish a port
    assert "ports" not in SERVICES["follower"]
    assert SERVICES["api"]["ports"] == [f"127.0.0.1:8080:{SERVICES['api']['environment']['API_PORT']}"]
    assert {name.partition(":")[0] for name in SERVICES["redis"]["volumes"]} == set(COMPOSE["volumes"])


def test_the_image_has_what_its_commands_need() -> None:
    text = (ROOT / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = set(re.findall(r"^([a-z0-9_-]+)==", (ROOT / "requirements/image.txt").read_text(), re.M))
    for extra in ("server", "redis", "http", "postgres"):
        wanted = {re.split(r"[\[>; ]", each)[0].replace("_", "-") for each in extras[extra]}
        assert wanted <= pinned
    assert "uv-build" in pinned
    assert re.findall(r"pip install --no-cache-dir (--\S+)", text) == ["--require-hashes", "--no-deps"]
    assert 'ENTRYPOINT ["treadle"]' in text
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.M) for word in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored


@shows("the commands of `compose.yaml` start an API, a leader and followers that run the posted jobs")
async def test_the_commands_of_the_file_run_the_posted_jobs(tmp_path: Path) -> None:
    port, server = free_port(), valkey.shared()
    here = {
        "API_HOST": "127.0.0.1",
        "API_PORT": str(port),
        "API_ENDPOINT": f"http://127.0.0.1:{port}",
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": str(server.port),
        "REDIS_DB": "9",
        "JOB_COUNT": "12",
        "TIME_OFFSET_SEC": "2",
    }

    def environment(name: str) -> dict[str, str]:
        # Addresses and REDIS_... variables are those of this machine, all others as in compose.yaml.
        given = OURS[name]["environment"]
        wanted = {*given, *(("REDIS_PORT", "REDIS_DB") if "REDIS_HOST" in given else ())}
        return {word: here.get(word, given.get(word, "")) for word in wanted}

    async with contextlib.AsyncExitStack() as stack:
        for name in ("api", "leader", *["follower"] * SERVICES["follower"]["deploy"]["replicas"]):
            made = await stack.enter_async_context(command(tmp_path, *OURS[name]["command"], **environment(name)))
            await made.says("http://" if name == "api" else "claiming")
        found = await answer(tmp_path, *OURS["submit-jobs"]["command"], **environment("submit-jobs"))
        assert (found["jobs"], found["completed"]) == (12, 12)
        await leader(tmp_path, "--url", f"{server.url[:-2]}/9")
