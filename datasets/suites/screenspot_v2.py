"""ScreenSpot v2: a point on the element of a screenshot that an instruction names.

Prompt and scores: those of ScreenSpot's own code (SeeClick). An answer is two numbers, a point; or four, whose middle counts; or
`<box>(x1,y1),(x2,y2)</box>` in thousandths; with any other count of numbers it is wrong. Keys and labels of JSON, which
that code does not read, are left aside here, so `{"point_2d": [9, 8]}` is a point. Other numbers count in the model's space.
Sizes: 1,272 in all, as Voxel51/ScreenSpot-v2 on the hub says (its numbers of platforms are ScreenSpot's first version); 211 icons
of mobile and 203 of web screens are the only counts that give all shares in the README of bytedance/UI-TARS.
"""

import re

from mmrl.answers.boxes.box import Box, Space, extent
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.layouts.answers import four_numbers
from mmrl.data.readers import Row
from mmrl.data.suites.suite import READS_BOXES, Suite, SuiteFile, answer_text
from mmrl.data.video_rows import VideoFolder, text_of

ASKED = 'In this UI screenshot, what is the position of the element corresponding to the command "{}" (with point)?'
SOURCE, LICENCE = "https://huggingface.co/datasets/OS-Copilot/ScreenSpot-v2", "Apache-2.0"
PLATFORMS = {"mobile": 501, "desktop": 334, "web": 437}
PICTURES = "screenspotv2_image/"
_NUMBER = re.compile(r"-?\d+\.?\d*")
_TAGS = re.compile(r"<box>\((\d+),(\d+)\),\((\d+),(\d+)\)</box>")
_JSON = re.compile(r'"[^"\n]*"\s*:(?:\s*"[^"\n]*")?')


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    platform = row.source.split("_")[1]
    instruction, kind = text_of(row, "instruction"), text_of(row, "data_type")
    x, y, width, height = four_numbers(row.values.get("bbox"), "bbox")
    columns = {"platform": platform, "part": f"{platform} {kind}", "question": instruction}
    picture = str(media.root / text_of(row, "img_filename"))
    return Prompt(f"{platform}-{row.number}", ASKED.format(instruction), (picture,), Box(x, y, x + width, y + height), columns)


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """1 if the point lies in the element's box, edges included."""
    size, truth = sample.media_sizes[0], prompt.answer.to("norm1", sample.media_sizes[0])
    point = point_of(answer_text(sample), extent(space, size))
    hit = point is not None and truth.x1 <= point[0] <= truth.x2 and truth.y1 <= point[1] <= truth.y2
    return Scored(float(hit), {"unparsed": float(point is None)})


def point_of(text: str, sides: tuple[float, float]) -> tuple[float, float] | None:
    """The point that a text names, in shares of the picture; None where it names none, or several."""
    plain = _JSON.sub(" ", text)
    if "box" in plain:
        tags = _TAGS.search(plain)
        numbers, sides = ([float(number) for number in tags.groups()] if tags else []), (1000.0, 1000.0)
    else:
        numbers = [float(number) for number in _NUMBER.findall(plain)]
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    return (numbers[0] / sides[0], numbers[1] / sides[1]) if len(numbers) == 2 else None


SUITE = Suite(
    name="screenspot_v2",
    measures="points on elements of screenshots",
    paper="2410.23218",
    files=(
        *(SuiteFile(f"screenspot_{platform}_v2.json", SOURCE, LICENCE) for platform in PLATFORMS),
        SuiteFile(PICTURES, SOURCE, LICENCE),
    ),
    prompt=prompt_of,
    sizes=PLATFORMS,
    figures={"Accuracy": "suite"},
    by=("platform", "part"),
    exact="equals SeeClick's for answers in shares of the picture and for <box> tags; JSON and other spaces are read too",
    score=score,
    reward=READS_BOXES,
    max_new_tokens=128,
    hub="OS-Copilot/ScreenSpot-v2",
)
