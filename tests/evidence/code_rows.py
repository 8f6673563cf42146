"""Drawing by tokens with guidance inside the policy against drawing without it, at equal samples."""

from dataclasses import replace

from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from tests.evidence.codes import CodeTask, Drawing
from tests.evidence.plans import Words, WordTask
from tests.evidence.task import Row

COLOURS = CodeTask(
    "drawn_by_tokens",
    "pictures of 16 codes by an untaught model, whose prompt names the colour to draw",
    "how far pictures lean to the asked colour, in deviations of the colours of single codes",
    margin=0.1,
    watched="the same on the way",
)
PLAIN = replace(PRESETS["grpo"], objective=((1.0, Clip()),), group_size=16)
THINGS = WordTask(
    "things_unseen",
    "captions name things whose kind the model can say in three of four answers, and has never drawn; the picture is rewarded",
    "share of codes of the right kind in pictures of things that were not trained",
    margin=0.05,
    watched="the same of the trained things",
)
ROWS = [
    Row("token_image", Drawing(PLAIN, 3.0), Drawing(PLAIN, 1.0), "the same with guidance 1", COLOURS),
    Row("token_image", Words(PLAIN, True), Words(PLAIN, False), "the same without a plan, at equal cost", THINGS),
]
