"""Small data sets that are drawn here and written, file by file, in the layouts of published ones.

    refcoco      refcoco/, refcoco+/, refcocog/ with instances.json and refs(...).json, train2014/, and what is converted of them
    screenspot   screenspot/screenspot_{mobile,desktop,web}.json with screenspot_imgs/, and gui_train.jsonl
    charades     charades/charades_sta_{train,test}.txt with Charades_v1_480/
    clevrer      clevrer/{train,validation}.json with their clips, and nextgqa/test.csv with gsub_test.json and videos/
    lessons      NAME/{sft,simple,rl,pairs,test}.jsonl with pictures for each NAME of CHAINS: which digit is next to the 7, with
                 thoughts, rules, and better and worse answers
    key_frames   veason_r1/{sft,rl,test}.jsonl: in which of three pictures a digit is largest, and where, with its masks
    sounds       r1_aqa/train.jsonl in AVQA's form and mmau/mmau-test-mini.json: is a tone of two seconds low or high
    comparisons  unified_reward_think/{sft,rl,test}.jsonl: which of two pictures shows a digit
    prompts      geneval/, ocr/, pickscore/, hpd/: GenEval's metadata, lines with quoted text, lines of text

Pictures and clips show handwritten digits (mmrl.data.drawn.scenes, mmrl.data.drawn.moving); nothing in them is from the sets
that they look like.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from mmrl.data.convert import convert_source
from mmrl.data.drawn import moving
from mmrl.data.drawn.prompt_writers import geneval_like, ocr_like
from mmrl.data.drawn.scenes import Scene, SceneStyle, draw_scene
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.files.paths import write_jsonl
from mmrl.data.files.wav import write_wav
from mmrl.data.layouts.base import BOXES
from mmrl.data.layouts.source import open_source

Row = dict[str, object]
"""An object of a JSON file."""
SIZE = {"train": 24, "held_out": 12}
"""Clips or prompts of a split."""
PICTURES = {"train": 64, "held_out": 12}
"""Pictures of a split."""
REFERRING = {
    "refcoco": ("refs(unc).json", ("train", "val", "testA", "testB")),
    "refcoco+": ("refs(unc).json", ("train", "val", "testA", "testB")),
    "refcocog": ("refs(umd).json", ("train", "val", "test")),
}
"""Set of referring expressions -> its file of sentences, and its splits."""
PLATFORMS = {"mobile": "ios", "desktop": "windows", "web": "shop"}
"""ScreenSpot's files -> what a row's data_source says."""
CHAINS = ("ton_geoqa", "veripo_video", "vlaa_thinker", "mm_rlhf", "mm_helix", "trimpi")
"""Recipes of several stages, each with a folder of its own."""
RULES = "Leave the 7 out and name the other digit."
CLIP = moving.ClipStyle(
    side=32, glyph=(20, 24), seconds=5.6, stay=(1.2, 4.0), speed=10.0, digits=(0, 3, 4, 7), asked=(7,), shown=(1, 2), num_discs=0
)
"""The clips that tiny:clips has seen."""
LONE = moving.ClipStyle(side=32, glyph=(20, 24), seconds=6.0, stay=(1.2, 4.0), speed=10.0, shown=(1, 1), num_discs=0)


def draw(layout: str, folder: Path, seed: int = 0) -> None:
    """Write a layout's files into a folder; ValueError if there is no such layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"no layout is called {layout!r}: choose one of {', '.join(LAYOUTS)}")
    folder.mkdir(parents=True, exist_ok=True)
    LAYOUTS[layout](folder, seed)


def referring(folder: Path, seed: int) -> None:
    """RefCOCO's three sets: one digit is asked for in every picture."""
    for number, (name, (refs_name, splits)) in enumerate(REFERRING.items()):
        images, annotations, refs = list[Row](), list[Row](), list[Row]()
        for split in splits:
            for i in range(PICTURES["train" if split == "train" else "held_out"]):
                place = len(images) + 1000 * (number + 1)
                scene = scene_of(split, seed + 100 * number, i + 1000 * splits.index(split))
                file = save(scene, folder / "train2014" / f"COCO_train2014_{place:012d}.jpg")
                images.append({"id": place, "file_name": file.name, "width": scene.image.width, "height": scene.image.height})
                annotations.append({"id": place, "image_id": place, "category_id": 1, "bbox": xywh(scene), "iscrowd": 0})
                sentence = [{"sent": f"the {scene.asked.digit}"}]
                refs.append({"ref_id": place, "ann_id": place, "image_id": place, "split": split, "sentences": sentence})
        own = folder / name
        instances = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "digit"}]}
        write_json(own / "instances.json", instances)
        write_json(own / refs_name, refs)
        convert_source(open_source(own, BOXES, "refcoco"), folder / f"{name}.jsonl", folder / "train2014")


def screens(folder: Path, seed: int) -> None:
    """ScreenSpot's three files with xywh boxes in pixels, half of the targets text and half icons; and boxes to train on."""
    pictures = folder / "screenspot" / "screenspot_imgs"
    for number, (platform, source) in enumerate(PLATFORMS.items()):
        rows: list[Row] = []
        for i in range(PICTURES["held_out"]):
            scene = scene_of("held_out", seed + number, i)
            file = save(scene, pictures / f"{platform}_{i}.png")
            kind = "icon" if i % 2 else "text"
            facts = {"instruction": scene.question, "data_type": kind, "data_source": source}
            rows.append({"img_filename": file.name, "bbox": xywh(scene), **facts})
        write_json(folder / "screenspot" / f"screenspot_{platform}.json", rows)
    train: list[Row] = []
    for i in range(PICTURES["train"]):
        scene = scene_of("train", seed, i)
        file = save(scene, folder / "gui" / f"{i}.png")
        train.append({"image": f"gui/{file.name}", "question": scene.question, "box": list(scene.asked.corners)})
    write_jsonl({folder / "gui_train.jsonl": train})


def charades(folder: Path, seed: int) -> None:
    """Charades-STA's lines: when a digit is to be seen."""
    for split, name in (("train", "train"), ("held_out", "test")):
        lines: list[str] = []
        for i in range(SIZE[split]):
            clip = moving.plan_clip(seed, i, split, CLIP, ("when",))
            code = f"{'T' if split == 'train' else 'H'}{i:04d}"
            write_mp4(folder / "charades" / "Charades_v1_480" / f"{code}.mp4", moving.draw(clip), CLIP.fps)
            lines.append(f"{code} {clip.answer.start:g} {clip.answer.end:g}##{clip.question}")
        (folder / "charades" / f"charades_sta_{name}.txt").write_text("\n".join(lines) + "\n")


def questions(folder: Path, seed: int) -> None:
    """CLEVRER's counterfactual questions with one or several right options, and NExT-GQA's with five options."""
    for split, name in (("train", "train"), ("held_out", "validation")):
        videos: list[Row] = []
        for i in range(SIZE[split]):
            clip = moving.plan_clip(seed, i, split, CLIP, ("which",))
            file = f"video_{i:05d}.mp4"
            write_mp4(folder / "clevrer" / f"video_{name}" / file, moving.draw(clip), CLIP.fps)
            right = set(clip.answer.split(","))
            options = zip(moving.LETTERS, clip.options, strict=False)
            choices = [{"choice": words, "answer": "correct" if letter in right else "wrong"} for letter, words in options]
            asked = {"question_type": "counterfactual", "question": clip.question, "choices": choices}
            videos.append({"video_filename": file, "questions": [asked]})
        write_json(folder / "clevrer" / f"{name}.json", videos)
    write_next_gqa(folder / "nextgqa", seed)


def write_next_gqa(folder: Path, seed: int) -> None:
    """One digit comes and goes; which of five was it, and when."""
    columns = ("video_id", "frame_count", "width", "height", "question", "answer", "qid", "type", "a0", "a1", "a2", "a3", "a4")
    folder.mkdir(parents=True)
    spans: Row = {}
    with (folder / "test.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for i in range(SIZE["held_out"]):
            clip = moving.plan_clip(seed, i, "held_out", LONE, ("when",))
            video, actor = str(10_000 + i), clip.digits[0]
            write_mp4(folder / "videos" / f"{video}.mp4", moving.draw(clip), LONE.fps)
            right = int(actor.digit or 0)
            options = sorted({(right + step) % 10 for step in range(5)})
            kind = ("CW", "TN", "TC")[i % 3]
            place = (video, LONE.num_frames, LONE.side, LONE.side, "which digit appears", str(right), "0", kind)
            writer.writerow([*place, *map(str, options)])
            span = clip.span(actor)
            spans[video] = {"duration": clip.duration, "location": {"0": [[span.start, span.end]]}, "fps": float(LONE.fps)}
    write_json(folder / "gsub_test.json", spans)


def prompts(folder: Path, seed: int) -> None:
    """The prompts of generators: geneval-like, ocr-like, and plain lines."""
    for split, geneval, other in (("train", "train_metadata", "train"), ("held_out", "evaluation_metadata", "test")):
        geneval_like(folder / "geneval" / f"{geneval}.jsonl", 2 * SIZE[split], split, seed)
        ocr_like(folder / "ocr" / f"{other}.txt", SIZE[split], split, seed)
        for name in ("pickscore", "hpd"):
            ocr_like(folder / name / f"{other}.txt", SIZE[split], split, seed + 1)


def lessons(folder: Path, seed: int) -> None:
    """Questions with all that a stage teaches: a digit is next to the 7."""
    for split, files in {"train": ("sft", "simple", "rl", "pairs"), "held_out": ("test",)}.items():
        scenes = [scene_of(split, seed, i) for i in range(SIZE[split])]
        for name in CHAINS:
            rows: list[Row] = []
            for i, scene in enumerate(scenes):
                digit = scene.distractors[0].digit
                right, wrong = (think_first("There is a 7 and another digit.", str(n)) for n in (digit, (digit + 1) % 10))
                texts: Row = {"completion": right, "chosen": right, "rejected": wrong, "policy": RULES}
                asked: Row = {"question": "Which digit is next to the 7?", "answer": digit, "margin": 1.0 + i % 3}
                rows.append({"image": store(scene, folder / name, f"{split}_{i:03d}"), **asked, **texts})
            write_jsonl({folder / name / f"{file}.jsonl": rows for file in files})


def comparisons(folder: Path, seed: int) -> None:
    """Which of two pictures shows the digit that is asked for, with a judgement."""
    place = folder / "unified_reward_think"
    for split, files in {"train": ("sft", "rl"), "held_out": ("test",)}.items():
        rows: list[Row] = []
        for i in range(SIZE[split]):
            scenes = [scene_of(split, seed, 2 * i + k) for k in range(2)]
            images = [store(scene, place, f"{split}_{2 * i + k:03d}") for k, scene in enumerate(scenes)]
            right, shown = "AB"[i % 2], scenes[i % 2].distractors[0].digit
            asked: Row = {"question": f"Which picture shows a {shown}?", "options": ["the first", "the second"], "answer": right}
            rows.append({"images": images, **asked, "completion": think_first(f"I look for a {shown} in both.", right)})
        write_jsonl({place / f"{file}.jsonl": rows for file in files})


def key_frames(folder: Path, seed: int) -> None:
    """Three frames of a 7; its masks are the rectangles around its ink."""
    place = folder / "veason_r1"
    for split, files in {"train": ("sft", "rl"), "held_out": ("test",)}.items():
        rows: list[Row] = []
        for i in range(SIZE[split]):
            scenes = [scene_of(split, seed, 3 * i + k) for k in range(3)]
            corners = [[int(x) for x in scene.asked.corners] for scene in scenes]
            best = max(range(3), key=lambda k: (corners[k][2] - corners[k][0]) * (corners[k][3] - corners[k][1]))
            asked: Row = {
                "images": [store(scene, place, f"{split}_{3 * i + k:03d}") for k, scene in enumerate(scenes)],
                "question": "In which frame is the 7 largest, and where is it? Frames count from 0.",
                "masks": [[{"polygon": [[x1, y1, x2, y1, x2, y2, x1, y2]]}] for x1, y1, x2, y2 in corners],
            }
            named = json.dumps({"keyframe_id": best, "bbox_2d_list": [corners[best]]})
            rows.append({**asked, "completion": think_first("I compare the three.", named)})
        write_jsonl({place / f"{file}.jsonl": rows for file in files})


def store(scene: Scene, folder: Path, name: str) -> str:
    """The path, from the folder, of the file that a scene was saved in."""
    return str(save(scene, folder / "pictures" / f"{name}.jpg").relative_to(folder))


def think_first(words: str, answer: str) -> str:
    return f"<think>{words}</think><answer>{answer}</answer>"


def scene_of(split: str, seed: int, index: int) -> Scene:
    return draw_scene(seed, index, "train" if split == "train" else "held_out", SceneStyle())


def save(scene: Scene, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    scene.image.save(file, quality=95)
    return file


def xywh(scene: Scene) -> list[float]:
    """The box of the digit that is asked for: a corner, width and height, in pixels."""
    x1, y1, x2, y2 = scene.asked.corners
    return [x1, y1, x2 - x1, y2 - y1]


def write_json(file: Path, value: Mapping[str, object] | Sequence[object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")


def sounds(folder: Path, seed: int) -> None:
    """AVQA's questions as R1-AQA writes them, and MMAU's."""
    for split, name in (("train", "r1_aqa/train.jsonl"), ("held_out", "mmau/mmau-test-mini.json")):
        rows: list[Row] = []
        for i in range(SIZE[split]):
            rng = np.random.default_rng([seed, i, int(split == "train")])
            right, file = int(rng.integers(2)), f"wavs/{i}.wav"
            tone = np.sin(2 * np.pi * (300, 1200)[right] * np.arange(32_000) / 16_000)
            write_wav(folder / Path(name).parent / file, 0.3 * tone, 16_000)
            asked, options, kind = "Which tone is heard?", ["a low one", "a high one"], ("sound", "music", "speech")[i % 3]
            told: Row = {"question_text": asked, "multi_choice": options, "answer": right, "audio_path": file}
            shown: Row = {"question": asked, "choices": options, "answer": options[right], "audio_id": file, "task": kind}
            rows.append({"id": i, **(told if split == "train" else shown)})
        if split == "train":
            write_jsonl({folder / name: rows})
        else:
            write_json(folder / name, rows)


LAYOUTS: dict[str, Callable[[Path, int], None]] = {
    "refcoco": referring,
    "screenspot": screens,
    "charades": charades,
    "clevrer": questions,
    "prompts": prompts,
    "lessons": lessons,
    "key_frames": key_frames,
    "comparisons": comparisons,
    "sounds": sounds,
}
"""Name -> what writes its files, from a folder and a seed."""
