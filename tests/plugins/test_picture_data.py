"""Pictures that generators are taught: captions, pairs, pairs as pickapic has them, and what is refused."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from mmrl.algorithms.planners.flow import TaughtPairs, TaughtPictures
from mmrl.core.samples import Video
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.validate import FILE_ROW

RED, BLUE = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))


def test_rows_with_a_caption_or_a_pair(dataset, tmp_path):
    for name, picture in (("a", RED), ("b", BLUE)):
        picture.save(tmp_path / f"{name}.png")
    rows = [
        {"image": "a.png", "caption": "a red square", "kind": "x"},
        {"prompt": "red", "chosen": "a.png", "rejected": "b.png", "id": "pair"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, pair = dataset("pictures")(tmp_path / "rows.jsonl")
    assert (one.id, one.text, one.media) == ("1", "a red square", ())
    assert one.columns == {"kind": "x", FILE_ROW: "rows.jsonl:1", "picture": str(tmp_path / "a.png")}
    assert (pair.id, pair.columns["chosen"], pair.columns["rejected"]) == ("pair", *(str(tmp_path / f"{n}.png") for n in "ab"))
    TaughtPictures().check_prompts([one])
    TaughtPairs().check_prompts([pair])


def test_pairs_as_pickapic_has_them(dataset, tmp_path):
    def of(picture: Image.Image) -> bytes:
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    pictures = {"caption": "red", "jpg_0": of(RED), "jpg_1": of(BLUE), "best_image_uid": "u"}
    rows = [{**pictures, "label_0": label} for label in (1.0, 0.0, 0.5)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    first, second = dataset("pictures")(tmp_path / "rows.parquet")
    shown = [[one.columns[name].getpixel((0, 0)) for name in ("chosen", "rejected")] for one in (first, second)]
    assert shown == [[(255, 0, 0), (0, 0, 255)], [(0, 0, 255), (255, 0, 0)]]
    assert first.columns["best_image_uid"] == "u" and "jpg_0" not in first.columns
    assert [one.id for one in dataset("pictures")(tmp_path / "rows.parquet", size=1)] == ["1"]
    parquet.write_table(pa.Table.from_pylist(rows[2:]), tmp_path / "ties.parquet")
    with pytest.raises(ValueError, match="no row with a picture or a pair of which one is preferred"):
        dataset("pictures")(tmp_path / "ties.parquet")


def test_bad_rows_are_listed_with_their_lines(dataset, tmp_path):
    RED.save(tmp_path / "a.png")
    rows = [
        {"caption": "x"},
        {"image": "a.png"},
        {"image": "no.png", "caption": "x"},
        {"image": 3, "caption": "x"},
        {"caption": "x", "jpg_0": "a.png", "jpg_1": "a.png", "label_0": 2},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="cannot be trained on") as caught:
        dataset("pictures")(tmp_path / "rows.jsonl")
    for sentence in (
        "rows.jsonl:1: the row has caption, and no picture: it needs image, video, chosen and rejected, or jpg_0, jpg_1 and",
        "rows.jsonl:2: column prompt is missing, and must hold the text of the prompt",
        "rows.jsonl:3: picture",
        "rows.jsonl:4: column image is '3': it must be the path of a picture or clip",
        "rows.jsonl:5: column label_0 is 2: it must be 1 where jpg_0 is preferred, 0 or 0.5",
    ):
        assert sentence in str(caught.value)


def test_clips_begin_where_a_row_says_and_may_follow_a_first_frame(dataset, tmp_path):
    write_mp4(tmp_path / "a.mp4", np.zeros((8, 16, 16, 3), np.uint8), 8)
    RED.save(tmp_path / "a.png")
    rows = [
        {"video": "a.mp4", "caption": "night"},
        {"clip": "a.mp4", "caption": "night", "start": 0.5, "first_frame": "a.png"},
        {"chosen": "a.mp4", "rejected": "a.png", "caption": "night"},
    ]
    file, clip = tmp_path / "rows.jsonl", str(tmp_path / "a.mp4")
    file.write_text("\n".join(map(json.dumps, rows)))
    whole, part, pair = dataset("pictures")(file)
    assert (whole.media, whole.columns["clip"], pair.columns["chosen"]) == ((), clip, clip)
    assert part.columns["clip"] == Video(clip, start=0.5) and part.media == (str(tmp_path / "a.png"),)
    TaughtPictures().check_prompts([whole, part])
    for bad, message in (({"start": 1.0}, "it asks for 1 s to 1 s"), ({"start": "x"}, "column start is 'x'")):
        file.write_text(json.dumps({**rows[0], **bad}))
        with pytest.raises(ValueError, match=message):
            dataset("pictures")(file)


def test_shapes_draws_what_its_captions_ask_for(dataset):
    plain, drawn = dataset("shapes")(size=3), dataset("shapes")(size=3, pictures=True)
    assert [one.text for one in plain] == [one.text for one in drawn] and "picture" not in plain[0].columns
    assert all(one.columns["chosen"].tobytes() != one.columns["rejected"].tobytes() for one in drawn)
    assert drawn[0].columns["picture"].tobytes() == dataset("shapes")(size=3, pictures=True)[0].columns["picture"].tobytes()
    TaughtPairs().check_prompts(drawn)
