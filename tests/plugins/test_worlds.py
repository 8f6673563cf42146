"""Tools that a model may call, and worlds drawn on the spot: a player who sees solves them, and one who does not see fails."""

import base64
import io
import json
import socket
from collections.abc import Callable, Iterator
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mmrl import Observation, Prompt, Turn
from mmrl.answers.calls import harmless
from mmrl.app.config.plug_ins import read_environment
from mmrl.app.config.run import EnvironmentConfig
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.tables import Table
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.mazes import CELL, WALL, draw_maze, make_maze
from mmrl.data.drawn.screens import draw_screen
from mmrl.runtime.sandbox.lock import missing
from tests.support.refused import refused
from tests.support.rude_servers import answers, rude
from tests.support.text_policies import picture
from tests.support.videos import even, read_number, write_video


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


COUNT = 40
"""Episodes of a share."""


def play(world: Any, say: Callable[[int], str], most: int) -> tuple[float, list[Any]]:
    """The rewards of an episode added up, and its observations."""
    seen = []
    for number in range(most):
        seen.append(world.step(Turn(say(number), (0, 1), shown=(MediaSize(256, 192, 256, 192),))))
        if seen[-1] is None or seen[-1].done:
            break
    world.close()
    return sum(one.reward or 0.0 for one in seen if one is not None), seen


def walks(split: str = "train", **settings: Any) -> Iterator[tuple[Prompt, Any]]:
    environment = load("maze", "environments")(**settings)
    for prompt in load("mazes", "datasets")(split=split, size=COUNT):
        yield prompt, environment.open(prompt, 0)


def test_who_sees_the_maze_walks_through_it_and_who_does_not_see_gets_lost():
    blind = []
    for prompt, world in walks():
        way = world.maze.way(world.cell)
        total, seen = play(world, lambda i, way=way: f"I go {way[i]}.", len(way))
        assert total == 1 and seen[-1].done and len(way) == len(seen) == prompt.columns["difficulty"]
    for number, (_, world) in enumerate(walks()):
        moves = np.random.default_rng(number).choice(["up", "down", "left", "right"], 8)
        blind.append(play(world, lambda i, moves=moves: str(moves[i]), 8)[0])
    assert np.mean(blind) < 0.4


def test_the_disc_the_goal_and_the_walls_are_where_they_are_said_to_be():
    maze = make_maze(3, 1)
    pixels = np.asarray(draw_maze(maze, maze.start))
    middle = {cell: pixels[cell[1] * CELL + CELL // 2, cell[0] * CELL + CELL // 2] for cell in (maze.start, maze.goal)}
    assert middle[maze.start][0] > 200 > middle[maze.start][1] and middle[maze.goal][1] > 150 > middle[maze.goal][0]
    for x in range(maze.size - 1):
        for y in range(maze.size):
            dark = pixels[y * CELL + CELL // 2, (x + 1) * CELL + WALL // 2].max() < 100
            assert dark != (maze.after((x, y), "right") == (x + 1, y)) and dark == (maze.after((x + 1, y), "left") == (x + 1, y))
    assert all(maze.after((x, 0), "up") == (x, 0) for x in range(maze.size))


def test_a_step_costs_what_is_said_and_a_turn_that_names_no_step_is_told():
    _, world = next(walks(cost=0.25))
    for text in ("let me think", "up or down"):
        answer = world.step(Turn(text, (0, 1)))
        assert answer.text.startswith("Error: say one of") and answer.reward == -0.25 and answer.facts == {"error": 1.0}
    wall = next(move for move in ("up", "down", "left", "right") if world.maze.after(world.cell, move) == world.cell)
    answer = world.step(Turn(wall.upper(), (0, 1)))
    assert answer.text == "A wall is in the way." and answer.facts["wall"] == 1 and answer.key == ",".join(map(str, world.cell))


def presses(space: str = "pixel", split: str = "train") -> Iterator[tuple[Prompt, Any]]:
    environment = load("screen", "environments")(space=space)
    for prompt in load("screens", "datasets")(split=split, size=COUNT):
        yield prompt, environment.open(prompt, 0)


def click(x: float, y: float) -> str:
    return call("click", point=[float(x), float(y)])


@pytest.mark.parametrize("space", ["pixel", "norm1000", "norm1", "resized", "auto"])
def test_who_sees_the_buttons_presses_them_in_order(space: str):
    scale = {"norm1000": (1000, 1000), "auto": (1000, 1000), "norm1": (1, 1)}.get(space, (256, 192))
    for prompt, world in presses(space):
        wanted = [int(word.strip(",.")) for word in prompt.text.split() if word.strip(",.").isdigit()]

        def say(i: int, world: Any = world, wanted: list[int] = wanted) -> str:
            x1, y1, x2, y2 = world.screen().buttons[wanted[i]]
            return click((x1 + x2) / 2 * scale[0] / 256, (y1 + y2) / 2 * scale[1] / 192)

        total, seen = play(world, say, 2)
        assert total == 1 and [one.key for one in seen] == ["1", "2"] and seen[0].media and not seen[1].media


def test_who_does_not_see_the_buttons_or_presses_where_they_were_fails():
    totals: dict[str, list[float]] = {"blind": [], "stale": []}
    for number, (_, world) in enumerate(presses()):
        rng = np.random.default_rng(number)
        totals["blind"].append(play(world, lambda i, rng=rng: click(*rng.integers([256, 192])), 6)[0])
    for prompt, world in presses():
        first = world.screen().buttons
        wanted = [int(word.strip(",.")) for word in prompt.text.split() if word.strip(",.").isdigit()]
        totals["stale"].append(play(world, lambda i, b=first, w=wanted: click(b[w[i]][0] + 9, b[w[i]][1] + 9), 2)[0])
    assert np.mean(totals["blind"]) < 0.15 and np.mean(totals["stale"]) < 0.3


def test_a_wrong_button_ends_the_episode_and_a_click_beside_all_is_told():
    prompt, world = next(presses())
    assert world.step(Turn("3", (0, 1))).text.startswith("Error: click on a button")
    assert world.step(Turn(click(-5, -5), (0, 1))).facts == {"missed": 1.0}
    other = next(n for n in world.screen().buttons if f"Press {n}," not in prompt.text)
    x1, y1, *_ = world.screen().buttons[other]
    answer = world.step(Turn(click(x1 + 1, y1 + 1), (0, 1)))
    assert (answer.text, answer.reward, answer.done) == (f"That was {other}.", 0.0, True)


def test_buttons_show_their_numbers_lie_apart_and_are_as_many_as_presses():
    for index in range(20):
        drawn = draw_screen(1, index, "train", 8, 0)
        boxes = list(drawn.buttons.values())
        apart = [a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1] for a in boxes for b in boxes if a is not b]
        assert all(apart) and all(drawn.button_at(b[0], b[1]) == n for n, b in drawn.buttons.items())
        white = {n: (np.asarray(drawn.image.crop(box)) == 255).all(2).sum() for n, box in drawn.buttons.items()}
        assert len(drawn.buttons) == 8 and min(white.values()) > 60
    refused("presses is 3, and there are 2 buttons", load("screens", "datasets"), buttons=2, presses=3)


@pytest.mark.parametrize("name", ["mazes", "screens", "small_counts"])
def test_prompts_are_the_same_for_a_seed_and_others_for_another(name: str):
    def pictures(**settings: Any) -> list[bytes]:
        return [prompt.media[0].tobytes() for prompt in load(name, "datasets")(size=3, **settings)]

    assert pictures(seed=1) == pictures(seed=1)
    assert not {*pictures(seed=1)} & {*pictures(seed=2), *pictures(seed=1, split="held_out")}
    refused("split 'test' is unknown", pictures, split="test")


def test_dots_are_counted_in_the_part_and_the_overview_says_nothing_of_them():
    light: dict[int, list[float]] = {}
    for prompt in load("small_counts", "datasets")(size=200):
        x1, y1, x2, y2 = map(int, prompt.columns["box"].corners)
        part = np.asarray(prompt.media[0], np.float32)[y1:y2, x1:x2].mean(2)
        background = np.median(np.asarray(prompt.media[0]))
        lit = sum(part[y + 1, x + 1] > background + 25 for y in range(0, 18, 6) for x in range(0, 18, 6))
        assert lit == prompt.answer
        overview = np.asarray(prompt.media[0].resize((64, 64), Image.Resampling.BOX), np.float32).mean(2)
        light.setdefault(int(prompt.answer), []).append(float(overview.sum()))
    means = [np.mean(values) for values in light.values()]
    assert sorted(light) == [1, 2, 3, 4, 5] and max(means) - min(means) < 3 * max(np.std(values) for values in light.values())


@pytest.mark.parametrize("name", ["maze", "screen", "puzzle"])
def test_prompts_of_other_data_are_refused(name: str):
    refused(f"shows no {name}: take", load(name, "environments")().check_prompts, [Prompt("p", "x")])


Zoom = load(str(Path(__file__).parents[2] / "environments" / "zoom.py"), "environments")
SEEN = MediaSize(400, 200, 100, 50)


def zoomed(box: object, **more: object) -> str:
    return f"Let me see. {call('zoom', bbox_2d=box, **more)}"


def gradient() -> Image.Image:
    """400 x 200 pixels; red grows to the right, green downwards."""
    across = Image.linear_gradient("L").rotate(90).resize((400, 200))
    down = Image.linear_gradient("L").resize((400, 200))
    return Image.merge("RGB", (across, down, Image.new("L", (400, 200))))


@pytest.mark.parametrize(
    ("space", "box"),
    [
        ("norm1000", [250, 500, 750, 1000]),
        ("norm1", [0.25, 0.5, 0.75, 1]),
        ("pixel", [100, 100, 300, 200]),
        ("resized", [25, 25, 75, 50]),
    ],
)
def test_a_part_is_cut_from_the_file_in_every_space(space: str, box: list[float], tmp_path: Path):
    gradient().save(tmp_path / "a.png")
    world = Zoom(space=space).open(Prompt("p", media=(str(tmp_path / "a.png"),)), 0)
    seen = world.step(Turn(zoomed(box), (0, 1), shown=(SEEN,)))
    assert seen.media[0].size == (200, 100) and seen.facts == {"tool": 1.0, "area": 0.25}
    assert seen.media[0].tobytes() == gradient().crop((100, 100, 300, 200)).tobytes()
    assert world.step(Turn("It is red.", (0, 1))) is None
    world.close()


def test_parts_can_be_looked_into_and_are_clipped_and_a_prompt_shows_one_picture():
    world = Zoom(space="norm1000").open(Prompt("p", media=(gradient(),)), 0)
    first = world.step(Turn("<tool_call>[500, 500, 2000, 3000]</tool_call>", (0, 1)))
    assert first.media[0].size == (200, 100)
    second = world.step(Turn(zoomed([0, 0, 500, 500], image=1), (0, 1)))
    assert second.media[0].tobytes() == gradient().crop((200, 100, 300, 150)).tobytes()
    refused("prompt 'p' shows no picture alone", Zoom().check_prompts, [Prompt("p", "hi")])
    refused("prompt 'c' shows no picture alone", Zoom().check_prompts, [Prompt("c", "hi", ("a.mp4",))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (zoomed([0, 0, 20, 20]), "pixels on its shorter side, and needs 28"),
        (zoomed([500, 500, 100, 600]), "has no area"),
        (zoomed([2000, 2000, 3000, 3000]), "the box lies outside the picture"),
        (zoomed([1, 2, 3]), "zoom needs bbox_2d: a list of 4 numbers"),
        (zoomed([0, 0, 900, 900], image=3), "zoom has the images 0 to 0"),
        ('<tool_call>{"name": "search"}</tool_call>', "there is one tool, zoom"),
        ("<tool_call>{", "the call has no end"),
    ],
)
def test_what_cannot_be_followed_is_said(text: str, said: str):
    world = Zoom(space="norm1000").open(Prompt("p", media=(gradient(),)), 0)
    seen = world.step(Turn(text, (0, 1)))
    assert said in seen.text and seen.text.startswith("Error: ") and seen.facts == {"error": 1.0} and not seen.media


FILE = Path(__file__).parents[2] / "environments" / "tools.py"
Tools = load(str(FILE), "environments")
needs_lock = pytest.mark.skipif(bool(missing()), reason=f"no sandbox on this machine: {missing()}")


def answer(tools: Any, prompt: Prompt, text: str, shown: tuple[MediaSize, ...] = ()) -> Observation | None:
    world = tools.open(prompt, 5)
    try:
        return world.step(Turn(text, (0, 1), shown=shown))
    finally:
        world.close()


def said(tools: Any, prompt: Prompt, text: str) -> Observation:
    found = answer(tools, prompt, text)
    assert found is not None
    return found


SIGHT = Prompt("p", "What is it?", (picture(0, 200, 100), picture(1, 64, 64)))
PLAIN = Tools(space="norm1000")


def test_zoom_and_draw_work_on_the_picture_that_is_named_and_frames_on_the_clip(tmp_path: Path):
    first, second = SIGHT.media
    part = said(PLAIN, SIGHT, call("zoom", bbox_2d=[0, 0, 500, 1000]))
    assert part.media[0].tobytes() == first.crop((0, 0, 100, 100)).tobytes() and part.facts == {"tool": 1.0, "zoom": 1.0}
    assert part.text == "<image>\nYour answer?"
    marks = [{"point": [500, 500]}, {"box": [100, 100, 900, 900]}, {"line": [0, 0, 1000, 1000]}]
    drawn = said(PLAIN, SIGHT, call("draw", image=1, marks=marks)).media[0]
    assert drawn.size == (64, 64) and (np.asarray(drawn) != np.asarray(second)).any()
    world = PLAIN.open(SIGHT, 0)
    world.step(Turn(call("zoom", bbox_2d=[0, 0, 500, 1000]), (0, 1)))
    again = world.step(Turn(call("zoom", bbox_2d=[0, 0, 500, 500], image=2), (0, 1)))
    assert again.media[0].tobytes() == first.crop((0, 0, 50, 50)).tobytes(), "the third picture is the one that was shown"
    assert world.step(Turn("It is noise.", (0, 1))) is None
    clip = write_video(tmp_path / "even.mp4", even(50))
    found = said(PLAIN, Prompt("p", "When?", (clip,)), call("frames", times=[0.4, 1.0]))
    assert [read_number(np.asarray(one)) for one in found.media] == [10, 25]
    assert found.text == "0.40 s, 1.00 s\n<image><image>\nYour answer?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<tool_call>{", "the call has no end"),
        ("<tool_call>zoom(1)</tool_call>", "the call is no JSON"),
        (call("python", code="print(1)"), "the tools are zoom, draw, frames"),
        (call("zoom", bbox_2d=[0, 0, 500, 500], image=2), "zoom has the images 0 to 1"),
        (call("zoom", bbox_2d=[0, 0, 500, 500], image=0.5), "zoom has the images 0 to 1"),
        (call("zoom"), "zoom needs bbox_2d: a list of 4 numbers"),
        (call("draw", marks=[]), "draw needs marks"),
        (call("draw", marks=[{"circle": [1, 2]}]), 'a mark is {"point"'),
        (call("draw", marks=[{"point": [2000, 0]}]), "lies outside the picture"),
        (call("frames", times=[1.0]), "there is no video to look at"),
    ],
)
def test_a_call_that_cannot_be_followed_is_told_and_counted(text: str, words: str):
    found = said(PLAIN, SIGHT, text)
    assert found.text.startswith("Error: ") and words in found.text and found.facts == {"error": 1.0} and not found.media


def test_calls_as_openthinkimg_writes_them():
    tools = Tools(form="json", space="norm1000")
    action = {"thought": "closer", "actions": [{"name": "Zoom", "arguments": {"bbox_2d": [0, 0, 500, 1000]}}]}
    assert said(tools, SIGHT, json.dumps(action)).media[0].size == (100, 100)
    over = {"thought": "done", "actions": [{"name": "Terminate", "arguments": {"ans": "noise"}}]}
    assert answer(tools, SIGHT, json.dumps(over)) is None
    assert said(tools, SIGHT, '{"actions": "zoom"}').facts == {"error": 1.0}


@needs_lock
def test_blocks_of_code_run_in_the_sandbox_and_share_their_variables():
    tools = Tools(tools=("python",), form="code", text=64)
    world = tools.open(SIGHT, 5)
    first = world.step(Turn("<code>half = image.crop((0, 0, 100, 100))\nshow(half)\nprint(half.size)</code>", (0, 1)))
    assert first.text == "(100, 100)\n<image>\nYour answer?" and first.facts == {"tool": 1.0, "python": 1.0}
    assert first.media[0].tobytes() == SIGHT.media[0].crop((0, 0, 100, 100)).tobytes()
    second = world.step(Turn("```python\nprint(half.width + len(images))\n```", (0, 1)))
    assert second.text == "103", "two pictures of the prompt and the one that was shown"
    wrong = world.step(Turn("<code>open('/etc/passwd')</code>", (0, 1)))
    assert wrong.text.startswith("Error: PermissionError in line 1") and wrong.facts == {"error": 1.0}
    marks = world.step(Turn("<code>print('<image> <|im_end|>' * 9)</code>", (0, 1)))
    assert "<image>" not in marks.text and "<|" not in marks.text
    process = world.session.sandbox._process
    world.close()
    assert process.poll() is not None
    assert tools.open(SIGHT, 5).step(Turn("I see.", (0, 1))) is None


def test_python_is_off_unless_it_is_named_and_refused_where_there_is_no_lock(monkeypatch: pytest.MonkeyPatch):
    assert "python" not in Tools().tools
    refused('form is "code", which calls python, and tools does not name it', Tools, form="code")
    refused("tools is empty", Tools, tools=())
    monkeypatch.setitem(unwrap(vars(Tools)["__post_init__"]).__globals__, "missing", lambda: "its kernel has no Landlock")
    refused("names python, and there is no sandbox on this machine: its kernel has no Landlock", Tools, tools=("zoom", "python"))


MINE = """
def read(picture):
    return f"{picture.size} <image>"

def find(picture):
    width, height = picture.size
    return [
        {"label": "cat", "score": 0.9, "box": [0, 0, width / 2, height]},
        {"label": "dog", "score": 0.6, "box": [width / 2, 0, width, height]},
        {"label": "fly", "score": 0.1, "box": [0, 0, 9, 9]},
    ]
"""


def test_a_reader_and_a_detector_of_ones_own_may_find_nothing(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    names = {"reader": f"{tmp_path}/mine.py:read", "detector": f"{tmp_path}/mine.py:find"}
    args = {"tools": ["ocr", "detect"], "space": "norm1000", **names}
    tools: Any = read_environment(EnvironmentConfig("tools", args=args), Table({"environment": {"use": "tools", **args}}))()
    tools.check_prompts([SIGHT])
    assert said(tools, SIGHT, call("ocr")).text == "(200, 100) < image>"
    assert said(tools, SIGHT, call("ocr", bbox_2d=[0, 0, 500, 1000])).text == "(100, 100) < image>"
    lines = [json.loads(line) for line in said(tools, SIGHT, call("detect")).text.splitlines()]
    assert lines == [
        {"label": "cat", "bbox_2d": [0, 0, 500, 1000], "score": 0.9},
        {"label": "dog", "bbox_2d": [500, 0, 1000, 1000], "score": 0.6},
    ]
    assert said(tools, SIGHT, call("detect", labels=["Dog"])).text.count("\n") == 0
    assert said(tools, SIGHT, call("detect", labels=["horse"])).text == "(nothing)"
    pixels = Tools(tools=("detect",), space="resized", detector=tools.detector)
    seen = answer(pixels, SIGHT, call("detect", labels=["cat"]), (MediaSize(200, 100, 400, 200),))
    assert seen is not None and json.loads(seen.text)["bbox_2d"] == [0, 0, 200, 200], "in pixels of the picture as it was seen"
    assert said(Tools(tools=("ocr",), space="norm1000", reader=lambda _: None), SIGHT, call("ocr")).text == "(no text)"
    with pytest.raises(ValueError, match="the reader answered list in place of a text: let it answer one, or None for none"):
        answer(Tools(tools=("ocr",), space="norm1000", reader=lambda _: ["a"]), SIGHT, call("ocr"))  # type: ignore[arg-type, return-value]


def service(connection: socket.socket, request: bytes) -> None:
    """Answers about a picture, by the path."""
    head, _, body = request.partition(b"\r\n\r\n")
    size = Image.open(io.BytesIO(base64.b64decode(json.loads(body)["image"]))).size
    found = {
        "/read": {"text": f"{size}"},
        "/none": {"text": None},
        "/find": {"objects": [{"label": "cat", "score": 1, "box": [0, 0, 20, 50]}]},
    }
    path = head.decode().split()[1]
    answers(200 if path in found else 500, json.dumps(found.get(path, {})).encode())(connection, request)


def test_a_reader_and_a_detector_behind_servers():
    with rude(service) as server:
        tools = Tools(tools=("ocr", "detect"), space="norm1000", reader=f"{server.url}/read", detector=f"{server.url}/find")
        assert said(tools, SIGHT, call("ocr", image=1)).text == "(64, 64)"
        assert json.loads(said(tools, SIGHT, call("detect")).text) == {"label": "cat", "bbox_2d": [0, 0, 100, 500], "score": 1.0}
        assert said(Tools(tools=("ocr",), space="norm1000", reader=f"{server.url}/none"), SIGHT, call("ocr")).text == "(no text)"
        with pytest.raises(RuntimeError, match="answered 500"):
            answer(Tools(tools=("ocr",), space="norm1000", reader=f"{server.url}/other"), SIGHT, call("ocr"))


@pytest.mark.evidence
def test_the_installed_reader_reads():
    pytest.importorskip("rapidocr", reason="the package rapidocr is not installed")
    sign = Image.new("RGB", (320, 96), "white")
    ImageDraw.Draw(sign).text((20, 20), "OPEN 24", fill="black", font_size=48)
    tools = Tools(tools=("ocr",), space="norm1000")
    tools.check_prompts([])
    assert "OPEN" in said(tools, Prompt("p", "What does it say?", (sign,)), call("ocr")).text


def test_what_a_tool_prints_is_no_mark():
    marks = ("<image>", "<|im_end|>", "</tool_call>", "<end_of_turn>", "[INST]", "[/INST]", "<IMG_CONTEXT>", "<\uff5cUser\uff5c>")
    for text in marks:
        assert text not in harmless(f"a{text}b")
    assert harmless("3 < 4, x[0] <= y and [1, 2]") == "3 < 4, x[0] <= y and [1, 2]"
