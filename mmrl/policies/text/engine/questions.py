"""Encoded prompts as they are sent to a server, and those that cannot be."""

from collections.abc import Sequence

from mmrl.core.types import Prompt
from mmrl.policies.text.encode import Encoded, open_picture
from mmrl.policies.text.engine.facts import Facts
from mmrl.policies.text.engine.wire.media import clip_part, picture_part
from mmrl.policies.text.engine.wire.request import Question
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.templates import answer_template, messages
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.input import as_video, videos_of

CLOSE_S = 0.02
"""Seconds that a frame may stand elsewhere than the server takes it to."""


def question_of(host: TextHost, encoded: Encoded) -> Question:
    """The prompt with one placeholder per picture or clip, and the media beside it, as the model's processor gets them."""
    prompt = encoded.prompt
    assert prompt is not None
    parts = [media_part(host, media, prompt) for media in prompt.media]
    ids = [*short_ids(host, prompt), *encoded.begun]
    return Question(ids, parts, encoded.token_ids.tolist(), prompt.id, len(encoded.begun))


def media_part(host: TextHost, media: object, prompt: Prompt) -> dict[str, str]:
    """A picture or a clip of a prompt as it is sent."""
    video = as_video(media)
    return picture_part(open_picture(media, prompt.id)) if video is None else clip_part(host.encode.videos(video).pixels)


def short_ids(host: TextHost, prompt: Prompt) -> list[int]:
    """The token ids of the chat before the processor makes room for vision features."""
    chat = messages(prompt, answer_template(host.config.answer_format), host.config.system_prompt)
    text = host.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    bos = host.tokenizer.bos_token
    # A template that writes the first token itself must not get another one from the tokenizer.
    options = {"add_special_tokens": False} if bos is not None and text.startswith(bos) else {}
    return host.tokenizer(text, **options)["input_ids"]


def untold_clip(host: TextHost, encoded: Encoded, facts: Sequence[Facts]) -> str:
    """Why the servers would take a clip of this prompt for another one; empty where they would not.

    A server is sent frames without their times, and takes the k-th to stand at k / fps seconds.
    """
    if encoded.prompt is None:
        return ""
    for video in videos_of(encoded.prompt):
        frames = host.encode.videos(video)
        for one in facts:
            if one.clip_frames != -1 and len(frames.times) > one.clip_frames:
                return f"a clip has {len(frames.times)} frames, of which the server would drop all beyond {one.clip_frames}"
            if not keeps_time(frames, one.clip_fps):
                return (
                    f"the frames of a clip are not {1 / one.clip_fps:g} s apart from second 0 on, as the server takes them to be"
                )
    return ""


def keeps_time(frames: Frames, fps: float) -> bool:
    """Do the frames stand where a server that knows their rate alone takes them to?"""
    return abs(frames.step - 1 / fps) <= CLOSE_S and all(abs(time - k / fps) <= CLOSE_S for k, time in enumerate(frames.times))
