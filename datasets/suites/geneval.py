"""GenEval: do pictures show the objects that a prompt names, in number, colour and place?

The rule for a picture, four pictures per prompt and the mean over six kinds of prompts equal GenEval's own code. Its detector and
colour judge are the reward `object_counts` with a Mask2Former of transformers and OpenAI's CLIP, which are other
files than GenEval's mmdetection checkpoint and open_clip: single pictures may be judged differently.
"""

from mmrl.core.samples import Prompt
from mmrl.data.readers import Row
from mmrl.data.suites.suite import Suite, SuiteFile
from mmrl.data.video_rows import VideoFolder, text_of

FILE = "evaluation_metadata.jsonl"
DETECTOR, CLIP = "facebook/mask2former-swin-small-coco-instance", "openai/clip-vit-large-patch14"
TAGS = {"single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100, "color_attr": 100}


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    if not isinstance(include := row.values.get("include"), list):
        raise ValueError(f"column include is {include!r}, and must list objects")
    columns = {"tag": text_of(row, "tag"), "include": include, "exclude": row.values.get("exclude")}
    return Prompt(str(row.number), text_of(row, "prompt"), columns=columns)


SUITE = Suite(
    name="geneval",
    measures="objects, counts, colours and places in drawn pictures",
    paper="2310.11513",
    files=(SuiteFile(FILE, "https://github.com/djghosh13/geneval/tree/main/prompts", "MIT"),),
    prompt=prompt_of,
    sizes=TAGS,
    figures={"Overall": "object_counts/correct"},
    by=("tag",),
    macro=("tag",),
    exact="rule and mean over kinds equal GenEval's; its detector is another file of the same model",
    reward={"use": "object_counts", "detector": DETECTOR, "colour": CLIP, "score": "correct"},
    kind="flow",
    num_samples=4,
)
