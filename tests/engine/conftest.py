"""One server for all tests: started by a policy as a run would, killed and started again by one test."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.types import Prompt
from mmrl.engine.generator import VllmGenerator
from mmrl.engine.venv import find_venv
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import EngineConfig
from tests.engine.servers import build_wide, environment, family, own_server, policy_of, prompts, server_of
from tests.policies.conftest import tiny as tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the model that is served."""
    return build_wide(family(), tmp_path_factory.mktemp("model") / family())


@pytest.fixture(scope="session")
def owner(model: str) -> Iterator[TextPolicy]:
    """The policy that has started the server."""
    find_venv(environment())
    policy = policy_of(model, own_server())
    try:
        policy.rollout([])
        yield policy
    finally:
        server_of(policy).close()


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Prompt]:
    return prompts(tmp_path_factory.mktemp("prompts"))


@pytest.fixture
def join(owner: TextPolicy, model: str, tmp_path: Path) -> Iterator[Callable[..., TextPolicy]]:
    """Make policies that use the same server, by its address; each gives it its own weights before it first samples."""
    server = server_of(owner).server
    assert server is not None
    made: list[VllmGenerator] = []

    def policy(sync: Any = "file", local: str = "", **settings: Any) -> TextPolicy:
        joined = policy_of(model, EngineConfig(url=(server.url,), sync=sync, folder=str(tmp_path), local=local), **settings)
        made.append(server_of(joined))
        return joined

    yield policy
    for each in made:
        each.close()
