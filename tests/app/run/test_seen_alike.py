"""A drawing on transparent ground is one picture to the model, the report, rewards, their server, hashes, tools and frames."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.algorithms.views import repaint
from mmrl.app.commands.reward import data_url
from mmrl.app.plugins.foreign_rewards import image_tensor, picture_at
from mmrl.app.run.sample_files import frames_of, image_bytes, strip_of
from mmrl.core.samples import Group, Prompt, Sample, Video
from mmrl.data.files.pictures import content_hash
from mmrl.data.tools.foreign import pixels, show
from mmrl.data.tools.pictures import zoom
from mmrl.policies.shared.pictures import digest_of_picture, open_picture
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.sampling import FrameRule
from mmrl.serving.media import mask_of, pictures_of, sources_of, target_of
from mmrl.serving.wire import pack_group, unpack_group
from tests.support.each import for_each

SIDE = 32


def drawing(hidden: int = 0) -> Image.Image:
    picture = Image.new("RGBA", (SIDE, SIDE), (hidden, hidden, hidden, 0))
    picture.paste((255, 0, 0, 255), (4, 4, 12, 12))
    return picture


def on_white() -> np.ndarray:
    expected = np.full((SIDE, SIDE, 3), 255, np.uint8)
    expected[4:12, 4:12] = (255, 0, 0)
    return expected


def stored(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def over_the_wire(folder: Path) -> Image.Image:
    """What a reward on a server gets of a picture that lies in memory."""
    group = Group(0, Prompt("p", media=(drawing(),)), (Sample(text="x"),))
    return unpack_group(pack_group(group), folder).prompt.media[0]


def in_a_page() -> Image.Image:
    return stored(base64.b64decode(data_url(drawing()).partition(",")[2]))


def edit(file: Path) -> Prompt:
    return Prompt("p", media=(str(file),), columns={"target": drawing(), "mask": drawing()})


SEEN: dict[str, Callable[[Path], Any]] = {
    "the model": lambda file: open_picture(str(file), "p"),
    "the model, from memory": lambda file: open_picture(drawing(), "p"),
    "the report": lambda file: frames_of(str(file))[0][0],
    "the report's files": lambda file: stored(image_bytes(drawing())[0]),
    "a strip": lambda file: strip_of([drawing()]),
    "a gallery": lambda file: in_a_page(),
    "a reward for pictures": lambda file: pictures_of(Group(0, edit(file), (Sample(image=drawing()),)))[0],
    "a reward for edits": lambda file: sources_of(edit(file))[0],
    "the wanted edit": lambda file: target_of(edit(file)),
    "a reward's server": lambda file: over_the_wire(file.parent),
    "a reward of flow_grpo": lambda file: (
        image_tensor([Group(0, Prompt("p"), (Sample(image=drawing()),))])[0].permute(1, 2, 0) * 255
    ).byte(),
    "a reward of TRL": lambda file: picture_at(str(file)),
    "a masked view": lambda file: repaint(str(file), lambda found: found),
    "a zoom": lambda file: zoom(str(file), (0, 0, 1000, 1000), "norm1000"),
    "an environment of another library": lambda file: show(drawing())[1][0],
    "frames that are pictures": lambda file: fetch(Video((str(file),), fps=1.0), FrameRule(min_frames=1)).pixels[0],
}
"""Who sees it -> the pixels that they see, of a file or of a picture in memory."""


@for_each("name", SEEN)
def test_everybody_sees_the_drawing_on_white(name: str, tmp_path: Path) -> None:
    drawing().save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(SEEN[name](tmp_path / "a.png")), on_white())


def test_what_is_transparent_in_a_mask_may_change(tmp_path: Path) -> None:
    drawing().save(tmp_path / "a.png")
    assert np.asarray(mask_of(edit(tmp_path / "a.png"))).tolist() == np.where(on_white()[..., 1] == 255, 255, 76).tolist()


def test_hashes_are_of_what_is_seen(tmp_path: Path) -> None:
    own, plain = drawing(), Image.fromarray(on_white())
    empty = Image.new("RGBA", own.size, (255, 0, 0, 0))
    for of in (content_hash, pixels):
        assert of(own) == of(drawing(200)) == of(plain) != of(empty)


def test_pictures_that_look_different_have_different_digests() -> None:
    red, blue, clear, turned = (Image.new("P", (2, 2)) for _ in range(4))
    for one in (red, clear, turned):
        one.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    clear.info["transparency"] = 0
    turned.getexif()[0x112] = 6
    assert len(set(map(digest_of_picture, (red, blue, clear, turned)))) == 4
    assert digest_of_picture(red) == digest_of_picture(red.copy())


def test_pictures_without_a_white_are_refused_by_name(tmp_path: Path) -> None:
    floats = Image.fromarray(np.ones((4, 4), np.float32))
    floats.save(tmp_path / "depth.tif")
    prompt = Prompt("p", media=(str(tmp_path / "depth.tif"),), columns={"target": floats})
    for read in (
        lambda: open_picture(prompt.media[0], "p"),
        lambda: open_picture(floats, "p"),
        lambda: sources_of(prompt),
        lambda: target_of(prompt),
        lambda: content_hash(prompt.media[0]),
    ):
        with pytest.raises(ValueError, match=r"(depth\.tif'?|target|picture|file\)) holds floats of 32 bits, of which nothing"):
            read()
