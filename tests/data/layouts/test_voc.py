"""Pascal VOC's XML files: pixels from 1, splits from lists, and files that are refused."""

import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.data.layouts.source import guess


def an_object(name, *sides):
    bounds = "".join(f"<{key}>{side}</{key}>" for key, side in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True))
    return f"<object><name>{name}</name><bndbox>{bounds}</bndbox></object>"


def annotation(*objects, name="1.jpg", head=""):
    size = "<size><width>64</width><height>48</height><depth>3</depth></size>"
    return f"{head}<annotation><filename>{name}</filename>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def voc(tmp_path):
    """Write annotations of 1.jpg, 2.jpg, ..; gives the folder."""

    def write(*texts):
        for below in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (tmp_path / "voc" / below).mkdir(parents=True)
        for number, text in enumerate(texts, start=1):
            (tmp_path / f"voc/Annotations/{number}.xml").write_text(text)
            Image.new("RGB", (64, 48), "red").save(tmp_path / f"voc/JPEGImages/{number}.jpg")
        return tmp_path / "voc"

    return write


def read(path, **settings):
    return [(p.text, p.answer, p.media) for p in load("grounding_jsonl", "datasets")(path, **settings)]


def test_boxes_by_name_and_splits_by_lists(voc):
    cats = an_object("cat", 1, 1, 20, 20), an_object("cat", 30, 30, 64, 48)
    folder = voc(annotation(*cats, an_object("dog", 5, 6, 7.5, 8)), annotation(an_object("cow", 2, 2, 9, 9), name="2.jpg"))
    (folder / "ImageSets/Main/train.txt").write_text("1\n")
    (folder / "ImageSets/Main/val.txt").write_text("2 -1\n")
    assert (guess(folder).layout, guess(folder / "Annotations/1.xml").layout) == ("voc", "voc")
    one, two = (str(folder / f"JPEGImages/{i}.jpg") for i in (1, 2))
    train = [
        ("Locate every cat in the picture.", (Box(0, 0, 20, 20, label="cat"), Box(29, 29, 64, 48, label="cat")), (one,)),
        ("Locate every dog in the picture.", (Box(4, 5, 7.5, 8, label="dog"),), (one,)),
    ]
    cow = [("Locate every cow in the picture.", (Box(1, 1, 9, 9, label="cow"),), (two,))]
    assert read(folder) == train + cow
    assert read(folder, split="train") == train and read(folder, split="val") == cow


def test_names_in_lists_may_hold_blanks(voc):
    folder = voc(annotation(an_object("cow", 2, 2, 9, 9)))
    (folder / "Annotations/1.xml").rename(folder / "Annotations/a red 1.xml")
    for listed in ("a red 1\n", "a red 1  1\n", " a red 1 -1 \n"):
        (folder / "ImageSets/Main/test.txt").write_text(listed)
        assert len(read(folder, split="test")) == 1


def test_pictures_may_lie_next_to_their_files(tmp_path):
    (tmp_path / "1.xml").write_text(annotation(an_object("cat", 1, 1, 20, 20)))
    Image.new("RGB", (64, 48), "red").save(tmp_path / "1.jpg")
    for path in (tmp_path, tmp_path / "1.xml"):
        assert read(path) == [("Locate every cat in the picture.", (Box(0, 0, 20, 20, label="cat"),), (str(tmp_path / "1.jpg"),))]


LAUGHS = "<!DOCTYPE x [<!ENTITY a 'ha'>" + "".join(f"<!ENTITY a{i} '&a{i - 1};&a{i - 1};'>" for i in range(1, 40)) + "]>"
FILE = "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (annotation(an_object("&a39;", 1, 1, 9, 9), head=LAUGHS), "declares a document type, .*: remove <!DOCTYPE"),
        (annotation(an_object("&a;", 1, 1, 9, 9), head=FILE), "declares a document type, .*: remove <!DOCTYPE"),
        (annotation(an_object("&a;", 1, 1, 9, 9)), "is not XML: undefined entity"),
        ("<annotation>", "is not XML: no element found"),
        ("<annotation/>", "<filename> is missing or empty: it does not have the layout of voc"),
        (annotation(an_object("cat", "a", 1, 9, 9)), "<bndbox><xmin> is 'a' and must be a number"),
        (annotation(an_object("cat", "nan", 1, 9, 9)), "must be four numbers"),
        (annotation(an_object("cat", 1, 1, 9, 9), name="../../secret.jpg"), "leads out of the folder"),
    ],
)
def test_a_file_that_is_hostile_or_something_else_is_named(text, words, voc):
    with pytest.raises(ValueError, match=rf"Annotations/1\.xml:1: .*{words}"):
        read(voc(text))


def test_xml_in_utf_16_hides_no_entities(voc):
    folder = voc("")
    (folder / "Annotations/1.xml").write_bytes(annotation(an_object("&a;", 1, 1, 9, 9), head=FILE).encode("utf-16"))
    with pytest.raises(ValueError, match=r"1\.xml is text in UTF-16 or UTF-32"):
        read(folder)


def test_lists_that_name_missing_files_are_named(voc):
    folder = voc(annotation(an_object("cow", 2, 2, 9, 9)))
    (folder / "ImageSets/Main/train.txt").write_text("1 -1\n\n000012\n")
    with pytest.raises(
        ValueError, match=r"ImageSets/Main/train\.txt:3: it names '000012', and there is no such file in Annotations: remove"
    ):
        read(folder)
    (folder / "ImageSets/Main/train.txt").write_text("1 -1\n\n")
    assert len(read(folder)) == 1
