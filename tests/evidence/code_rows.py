"""Drawing by tokens with guidance inside the policy against drawing without it, at equal samples."""

from dataclasses import replace

from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from tests.evidence.codes import CodeTask, Drawing
from tests.evidence.task import Row

COLOURS = CodeTask(
    "drawn_by_tokens",
    "pictures of 16 codes by an untaught model, whose prompt names the colour to draw",
    "how far pictures lean to the asked colour, in deviations of the colours of single codes",
    margin=0.1,
    watched="the same on the way",
)
PLAIN = replace(PRESETS["grpo"], objective=((1.0, Clip()),), group_size=16)
ROWS = [Row("token_image", Drawing(PLAIN, 3.0), Drawing(PLAIN, 1.0), "the same with guidance 1", COLOURS)]
