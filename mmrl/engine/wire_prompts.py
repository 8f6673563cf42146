"""Encoded prompts as they are sent to a server, and those that cannot be."""

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from mmrl.core.samples import kind_of
from mmrl.core.types import Prompt
from mmrl.engine.facts import ServerFacts
from mmrl.engine.wire.completions import WirePrompt
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, videos_of
from mmrl.policies.video.decode import Frames

CLOSE_S = 0.02
"""Seconds by which a frame may be off from where the server assumes it."""


def wire_prompts(host: TextHost, encoded: Sequence[Encoded]) -> list[WirePrompt]:
    """Prompts, and rows of several turns, with one placeholder per picture or clip; the media stand beside them, as the model's
    processor gets them. What rows of one prompt share is made once."""
    prompts = {id(one.prompt): one.prompt for one in encoded if one.prompt is not None}
    ids = {key: short_ids(host, prompt) for key, prompt in prompts.items()}
    parts = {key: [part for media in one.media for part in media_parts(host, media, one)] for key, one in prompts.items()}
    found: list[WirePrompt] = []
    for one in encoded:
        prompt, expanded = prompts[id(one.prompt)], one.token_ids.tolist()
        # each turn may have all tokens of a completion, and the beginning of one counts among its own
        behind, begun = (one.begun, len(one.begun)) if one.short_ids is None else (one.short_ids, 0)
        pictures = [*parts[id(prompt)], *map(picture_part, one.pictures)]
        found.append(WirePrompt([*ids[id(prompt)], *behind], pictures, expanded, prompt.id, begun))
    return found


def picture_part(picture: Image.Image) -> dict[str, str]:
    """A picture of a prompt, (width, height) as the processor is to get it, as an address with its content inside."""
    return {"type": "image_url", "url": "data:image/png;base64," + as_png(picture)}


def clip_part(frames: np.ndarray) -> dict[str, str]:
    """A clip as its frames, (n, height, width, 3) in uint8.

    vLLM reads frames in a row under the type video/jpeg alone, whatever each of them is packed as.
    """
    pictures: Sequence[Image.Image] = [Image.fromarray(frame) for frame in frames]
    return {"type": "video_url", "url": "data:video/jpeg;base64," + ",".join(map(as_png, pictures))}


def as_png(picture: Image.Image) -> str:
    """The picture in base64; JPEG would change pixels."""
    buffer = io.BytesIO()
    # Time to pack matters more than bytes: pictures go to this machine, or to a neighbour's.
    picture.save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode()


PARTS: dict[str, Callable[..., dict[str, str]]] = {"image": picture_part, "video": lambda clip: clip_part(clip.pixels)}
"""Name of a kind of media -> one of it, opened, as it is sent."""


def media_parts(host: TextHost, media: object, prompt: Prompt) -> list[dict[str, str]]:
    """One of a prompt's media as it is sent: one part, or one per frame where frames are pictures."""
    kind = kind_of(media)
    if kind.name not in PARTS:
        raise ValueError(f"prompt {prompt.id!r} holds {kind.nouns}, which cannot be sent to a server: remove [policy.engine]")
    opened = host.encode.open(media, prompt)
    if isinstance(opened, Frames) and host.family.frames_are_pictures:
        return [picture_part(Image.fromarray(frame)) for frame in opened.pixels]
    return [PARTS[kind.name](opened)]


def short_ids(host: TextHost, prompt: Prompt) -> list[int]:
    """The token ids of the chat before the processor makes room for vision features."""
    chat = host.encode.chat(prompt, [host.encode.videos(video) for video in videos_of(prompt)])
    text = host.encode.write(chat)
    bos = host.tokenizer.bos_token
    # A template that writes the first token itself must not get another one from the tokenizer.
    options = {"add_special_tokens": False} if bos is not None and text.startswith(bos) else {}
    return host.tokenizer(text, **options)["input_ids"]


def untold_clip(host: TextHost, encoded: Encoded, facts: Sequence[ServerFacts]) -> str:
    """Why the servers would misread the timing of a clip of this prompt; empty if they would not.

    A server is sent frames without their times, and takes the k-th to stand at k / fps seconds.
    """
    if encoded.prompt is None or host.family.frames_are_pictures:
        return ""
    for video in videos_of(encoded.prompt):
        frames = host.encode.videos(video)
        for one in facts:
            if one.clip_frames != -1 and len(frames.times) > one.clip_frames:
                return f"a clip has {len(frames.times)} frames, of which the server would drop all beyond {one.clip_frames}"
            rate, times = one.clip_fps, frames.times
            if abs(frames.step - 1 / rate) > CLOSE_S or any(abs(time - k / rate) > CLOSE_S for k, time in enumerate(times)):
                return (
                    f"the frames of a clip are not {1 / rate:g} s apart from second 0 on, as the server takes them to be: "
                    f"let files have {rate:g} frames per second, and an even number of frames"
                )
    return ""
