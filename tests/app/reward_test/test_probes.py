import pytest

from mmrl.app.reward_test.probes import Style, text_groups
from mmrl.core.types import Prompt


def test_data_without_answers_are_refused_with_both_remedies():
    with pytest.raises(ValueError, match="take data with answers; if the reward scores pictures, write `Modality: image`"):
        text_groups([Prompt("1", "a red fox")], Style("norm1000", None))
