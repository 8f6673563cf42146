"""A prompt as a policy is shown it: its text as tokens, and its pictures and frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from PIL import Image

from mmrl.core.samples import IMAGE, VIDEO, kind_of
from mmrl.core.types import Prompt, Request
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.prompt.encode import text_of
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import videos_of
from mmrl.policies.text.write.rollout import view_seed
from mmrl.policies.video.input import change_frames, without_changes


@dataclass(frozen=True)
class SeenPrompt:
    """One prompt as the model reads it."""

    text: str
    """With the chat template and all special tokens; runs of a picture's or clip's tokens are counted: <|image_pad|>*64."""
    num_tokens: int
    num_cut: int = 0
    """Tokens that the model does not read because the prompt is too long."""
    pictures: tuple[tuple[str, Image.Image], ...] = ()
    """By name, at the size the model sees. Pictures are resized by PIL, whose greys may differ a little from the processor's."""

    def lines(self) -> list[str]:
        cut = f", {self.num_cut} more are cut" if self.num_cut else ""
        number = len(self.pictures)
        media = f", {number} {'picture' if number == 1 else 'pictures and frames'}" if number else ""
        return [f"the model reads {self.num_tokens} tokens{cut}{media}:", *(f"    {line}" for line in self.text.splitlines())]


def prompt_view(policy: object, request: Request) -> SeenPrompt:
    """The prompt of a request as a TextPolicy or FlowPolicy is shown it, under the request's view; TypeError for others."""
    if isinstance(policy, TextPolicy):
        return writer_view(policy, request)
    if isinstance(policy, FlowPolicy):
        text, seen = text_of(request.prompt), policy.encoder.pictures(request.prompt)
        count, most = policy.family.count_tokens(text)
        named = tuple((f"picture-{i}", each) for i, each in enumerate(seen))
        return SeenPrompt(text, min(count, most), max(0, count - most), named)
    raise TypeError(f"there is no view of prompts for {type(policy).__name__}: add one in {__name__}")


def writer_view(policy: TextPolicy, request: Request) -> SeenPrompt:
    """The view of a model that writes: the processor's own tokens."""
    seed = view_seed(request)
    shown = request.shown_prompt
    prompt = shown if request.view == "plain" else policy.views[request.view](shown, seed)
    encoded = policy.encode.encode(prompt, seed)
    pieces = [(token, len(list(run))) for token, run in groupby(encoded.token_ids.tolist())]
    text = token_text(pieces, policy.media_token_ids, policy.tokenizer)
    sizes = [(size.seen_width, size.seen_height) for size in encoded.sizes]
    return SeenPrompt(text, len(encoded), pictures=tuple(pictures(policy, prompt, sizes)))


def token_text(pieces: Sequence[tuple[int, int]], media: frozenset[int], tokenizer: Any) -> str:
    """Tokens as text; several of one that stands for pictures are counted."""
    parts: list[str] = []
    for is_media, run in groupby(pieces, key=lambda piece: piece[0] in media and piece[1] > 1):
        if is_media:
            parts += [f"{tokenizer.decode([token])}*{count}" for token, count in run]
        else:
            parts.append(tokenizer.decode([token for token, count in run for _ in range(count)], skip_special_tokens=False))
    return "".join(parts)


def pictures(policy: TextPolicy, prompt: Prompt, sizes: Sequence[tuple[int, int]]) -> list[tuple[str, Image.Image]]:
    """The pictures at the sizes the model sees, and the frames of clips."""
    found: list[tuple[str, Image.Image]] = []
    left, clips = list(sizes), iter(videos_of(prompt))
    for i, media in enumerate(prompt.media):
        if kind_of(media) is IMAGE:
            found.append((f"picture-{i}", open_picture(media, prompt.id).resize(left.pop(0), Image.Resampling.BICUBIC)))
        if kind_of(media) is not VIDEO:
            continue
        video = next(clips)
        frames = change_frames(policy.encode.videos(without_changes(video)), video)
        named = zip(frames.times, frames.pixels, strict=True)
        found += [(f"clip-{i}-frame-{k:03d}-at-{time:.2f}s", Image.fromarray(pixels)) for k, (time, pixels) in enumerate(named)]
    return found
