"""Rows name files below the folder they belong to: neither `..` nor links nor foreign absolute paths lead out of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.plugins.resolve import load
from mmrl.app.reward_test.probes import read_tasks
from mmrl.data.files.paths import FOLLOW_LINKS, path_below
from mmrl.data.video_rows import VideoFolder
from tests.support.grounding import convert, split
from tests.support.refused import refused


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """data/ with a picture, and another picture beside it."""
    for name in ("data/in.png", "out.png", "real/deep.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "out.png")
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "data" / "again.png").symlink_to(tmp_path / "data" / "in.png")
    return tmp_path


def rows(place: Path, *pictures: Any) -> Path:
    file = place / "data" / "boxes.jsonl"
    lines = [{"image": picture, "question": f"q{i}", "box": [1, 1, 5, 5]} for i, picture in enumerate(pictures)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def grounding(*args: Any, **settings: Any) -> Any:
    return load("grounding_jsonl", "datasets")(*args, **settings)


@pytest.mark.parametrize(
    "name",
    ["../out.png", "x/../../out.png", "./../out.png", "link.png", "folder/deep.png", "folder/../../out.png", "folder/../out.png"],
)
def test_a_relative_path_stays_below_its_folder(name: str, place: Path):
    refused(r"boxes\.jsonl:2: the path .* (leads out of|leads through a link to) ", grounding, rows(place, "in.png", name))


def test_what_stays_is_read(place: Path):
    found = grounding(rows(place, "in.png", "./in.png", "again.png"))
    assert [Path(prompt.media[0]).resolve().name for prompt in found] == ["in.png"] * 3


def test_an_absolute_path_is_ones_own_until_a_folder_is_named(place: Path):
    inside, outside = str(place / "data" / "in.png"), str(place / "out.png")
    assert len(grounding(rows(place, outside, inside))) == 2
    assert len(grounding(rows(place, inside), image_root=place / "data")) == 1
    with pytest.raises(
        ValueError, match=r"boxes\.jsonl:1: the path .*out\.png' leads out of the folder .*: set image_root above it"
    ):
        grounding(rows(place, outside), image_root=place / "data")
    assert len(grounding(rows(place, "out.png", "data/in.png", "data/link.png"), image_root=place)) == 3


def test_links_may_be_followed_when_the_user_says_so(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLLOW_LINKS, "1")
    assert len(grounding(rows(place, "link.png", "folder/deep.png"))) == 2
    refused("leads out of", grounding, rows(place, "../out.png"))


def test_a_cell_that_holds_only_a_path_is_a_path(place: Path):
    refused("leads out of", grounding, rows(place, {"bytes": None, "path": "../out.png"}))


def test_a_folder_that_is_itself_a_link_is_a_folder(place: Path):
    (place / "linked").symlink_to(place / "data")
    assert path_below(place / "linked", "in.png", "image_root").endswith("linked/in.png")


def test_the_hubs_cache_links_to_its_own_blobs(tmp_path: Path):
    repository = tmp_path / "datasets--a--b"
    for name in ("blobs", "snapshots/1"):
        (repository / name).mkdir(parents=True)
    (repository / "blobs" / "abc").write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"x")
    (repository / "snapshots" / "1" / "a.png").symlink_to("../../blobs/abc")
    (repository / "snapshots" / "1" / "b.png").symlink_to("../../../secret")
    path_below(repository / "snapshots" / "1", "a.png", "image_root")
    refused("through a link", path_below, repository / "snapshots" / "1", "b.png", "image_root")


@pytest.mark.parametrize("name", ["../clip", "../clip.mp4", "/{place}/clip", "sub/../../clip.mp4"])
def test_a_video_stays_below_its_folder(name: str, place: Path):
    (place / "clip.mp4").write_bytes(b"x")
    file = place / "data" / "charades.txt"
    file.write_text(f"{name.format(place=place)} 0.0 6.9##a person sits\n")
    refused(r"charades\.txt:1: the path .* leads out of the folder .*set videos above it", load("charades_sta", "datasets"), file)


def test_a_linked_video_is_found_only_inside(place: Path):
    (place / "clip.mp4").write_bytes(b"x")
    (place / "data" / "sub").mkdir()
    (place / "data" / "sub" / "clip.mp4").symlink_to(place / "clip.mp4")
    refused("through a link", VideoFolder(place / "data").find, "clip")


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "split": lambda file, out: split(file, out, {"a": 0.5, "b": 0.5}),
    "score": lambda file, out: read_tasks(file),
}


@pytest.mark.parametrize("reader", READERS)
def test_tools_keep_to_the_same_rule(reader: str, place: Path):
    for name in ("../out.png", "link.png"):
        refused(r"boxes\.jsonl:2: the path", READERS[reader], rows(place, "in.png", name), place / "parts")


def test_a_conversion_does_not_launder_paths(place: Path):
    """Otherwise ../ in a COCO file would become an absolute path, which a row may name."""
    image = {"id": 1, "file_name": "../out.png", "width": 8, "height": 8}
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]}
    coco = {"images": [image], "annotations": [annotation], "categories": [{"id": 1, "name": "cat"}]}
    (place / "data" / "coco.json").write_text(json.dumps(coco))
    refused("leads out of the folder", convert, place / "data" / "coco.json", "coco", place / "boxes.jsonl")
    assert not (place / "boxes.jsonl").exists()


def test_what_a_split_writes_can_be_read(place: Path):
    for i in range(4):
        Image.new("RGB", (8, 8), (i * 20, 0, 0)).save(place / "data" / f"{i}.png")
    split(rows(place, *[f"{i}.png" for i in range(4)]), place / "parts", {"train": 0.5, "test": 0.5})
    assert len(grounding(place / "parts", split="train")) == 2


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Facts remembered of one folder are not said of another one of the same relative name."""
    for name in ("a", "b"):
        (tmp_path / name / "photos").mkdir(parents=True)
        (tmp_path / name / "photos" / "1.png").touch()
        monkeypatch.chdir(tmp_path / name)
        assert path_below(Path("."), "photos/1.png", "image_root") == "./photos/1.png"
