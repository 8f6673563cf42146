"""Code in the sandbox that tries to get out, or to take more than it may: every try of the attacks, from one sandbox."""

import pytest

from mmrl.runtime.sandbox.lock import missing
from tests.attacks.sandbox import TRIES, Target, Try, target

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")


@pytest.fixture(scope="module")
def aim(tmp_path_factory: pytest.TempPathFactory):
    with target(tmp_path_factory.mktemp("target")) as found:
        yield found


@pytest.mark.parametrize("one", TRIES, ids=lambda one: one.name)
def test_code_stays_inside(aim: Target, one: Try):
    aim.attempt(one)
