"""Whatever a key is set to, a config resolves or is refused in a sentence: no value ends in another kind of error."""

import pytest

from mmrl.app.config.run import load


@pytest.mark.parametrize(("name", "value"), [("tiny/image", "[[]]"), ("tiny/image", "{}"), ("tiny/flow", "[]")])
def test_a_value_is_taken_or_refused(name: str, value: str):
    strange: dict[str, str] = {}
    for key, _, _ in load(name).rows():
        try:
            load(name, [f"{key}={value}"])
        except (ValueError, OSError, ModuleNotFoundError):
            continue
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            strange[key] = repr(error)
    assert strange == {}
