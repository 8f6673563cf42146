"""The parts of an answer that environments of all libraries share: calls, pictures among values, mistakes, beginnings.

What a world says may repeat the model's words, so nothing in it is a mark of the chat or the place of a picture.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from mmrl.answers.calls import harmless
from mmrl.core.samples import Media, Observation, Prompt, kind_of
from mmrl.data.files.pictures import upright
from mmrl.runtime.blame import shown as short
from mmrl.runtime.pictures import upright_rgb

Foreign = Any
"""An object of another library."""
Shown = tuple[str, tuple[Media, ...]]
"""Text and pictures."""
T = TypeVar("T")
SEEDED = "let your data set reset it with the seed in the prompt's column `seed`, and put what it shows into the prompt"
"""What to do where a prompt does not show what a reset does."""


def show(value: Foreign) -> Shown:
    """The text and the pictures in a value of another library: arrays of bytes (h, w, 3) and PIL images are pictures."""
    if value is None:
        return "", ()
    if isinstance(value, str):
        return harmless(value), ()
    if hasattr(value, "convert") and hasattr(value, "size"):
        return "", (upright_rgb(value),)
    if is_picture(value):
        from PIL import Image

        return "", (Image.fromarray(value),)
    if isinstance(value, Mapping):
        return show_table(cast(Mapping[object, Foreign], value))
    if hasattr(value, "model_dump"):
        return show(value.model_dump())
    if isinstance(value, Sequence) and any(isinstance(one, Mapping) or hasattr(one, "convert") for one in value):
        return join([show(one) for one in value])
    return harmless(spell(value)), ()


def show_table(value: Mapping[object, Foreign]) -> Shown:
    """A part of a chat as its content, another table line by line."""
    kind = value.get("type")
    if kind in ("text", "image") and kind in value:
        return show(value[kind])
    if kind == "image_url" or value.get("role"):
        return show(value.get("content") if "role" in value else picture_of(value["image_url"]))
    lines: list[Shown] = []
    for name, one in value.items():
        (text, media), named = show(one), harmless(str(name))
        lines.append((f"{named}: {text}" if text else "" if media else f"{named}:", media))
    return join(lines)


def picture_of(value: Foreign) -> Foreign:
    """The picture of a data address, `data:image/png;base64,..`; ValueError for one elsewhere."""
    import base64

    address = str(value["url"] if isinstance(value, Mapping) else value)
    head, comma, content = address.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError(f"an environment shows a picture by its address {short(address)}: let it send the picture itself")
    return upright(base64.b64decode(content))


def join(parts: Sequence[Shown]) -> Shown:
    return "\n".join(text for text, _ in parts if text), tuple(picture for _, media in parts for picture in media)


def is_picture(value: Foreign) -> bool:
    """Is this an array of colours?"""
    shape = getattr(value, "shape", ())
    return len(shape) == 3 and shape[2] == 3 and str(getattr(value, "dtype", "")) == "uint8"


def spell(value: Foreign) -> str:
    """Arrays and numbers as JSON, anything else as Python writes it."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    try:
        return json.dumps(plain, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(plain)


def mistake(words: object) -> Observation:
    """The answer to a turn that asks for what cannot be done; it is counted, and the episode goes on."""
    return Observation(f"Error: {harmless(str(words))}.", facts={"error": 1.0})


def accepted(function: Callable[..., Foreign], given: Mapping[str, Foreign]) -> Mapping[str, Foreign]:
    """Those of the given arguments that a function takes by their names."""
    parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}


def check_start(prompt: Prompt, first: Shown, remedy: str) -> None:
    """Raise ValueError unless the prompt shows what the episode begins with: nothing is put behind a prompt unsaid."""
    text, pictures = first
    if text.strip() and text.strip() not in harmless(prompt.text):
        raise ValueError(
            f"the episode of prompt {prompt.id!r} begins with {short(text.strip())}, which the prompt does not say: {remedy}"
        )
    if pictures and [pixels(one) for one in pictures] != [pixels(one) for one in prompt.media if kind_of(one).name == "image"]:
        raise ValueError(
            f"the episode of prompt {prompt.id!r} begins with {len(pictures)} picture(s), and the prompt shows others: {remedy}"
        )


def pixels(media: Media) -> tuple[tuple[int, int], bytes]:
    picture = upright(media)
    return picture.size, picture.tobytes()


def then(answer: T | Awaitable[T], read: Callable[[T], Foreign]) -> Foreign:
    """`read` of an answer, or of what it will be."""
    if not inspect.isawaitable(answer):
        return read(answer)

    async def later() -> Foreign:
        found = read(await answer)
        return await found if inspect.isawaitable(found) else found

    return later()
