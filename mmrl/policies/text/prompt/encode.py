"""Prompts with pictures and clips -> what the model is fed, one prompt at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int, Real
from PIL import Image
from torch import Tensor, nn

from mmrl.answers.spans.sounds import read_wave
from mmrl.core.samples import IMAGE, KINDS, VIDEO, ClipTime, MediaKind, kind_of
from mmrl.core.types import MediaSize, Prompt, Video
from mmrl.policies.shared.chat_templates import REMEDY, refuse_endless
from mmrl.policies.shared.pictures import PictureInput
from mmrl.policies.text.families import Family, Media
from mmrl.policies.text.families.base import TYPE_NAMES
from mmrl.policies.text.kept import Past
from mmrl.policies.text.prompt.templates import Message, answer_template, messages
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.input import VideoInput, clip_time, processor_arguments
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import to_device


@dataclass(frozen=True)
class Encoded:
    """One prompt as the model is fed it, with its media: no selection of rows can mix up whose they are."""

    prompt_id: str
    token_ids: Int[Tensor, " p"]
    positions: Real[Tensor, "a p"]
    """On one axis, or on three (M-RoPE)."""
    type_ids: Int[Tensor, " p"] | None = None
    """0 text, 1 image, 2 video, where the model wants to know."""
    media: Media = field(default_factory=dict)
    sizes: tuple[MediaSize, ...] = ()
    clips: tuple[ClipTime, ...] = ()
    opened: str = ""
    """The tag that the chat template leaves open at the end: `<think>`."""
    prompt: Prompt | None = None
    """The prompt that was encoded."""
    seed: int = 0
    """The seed that views of this prompt are drawn from."""
    view: str = "plain"
    """The view under which the prompt is shown."""
    views: dict[str, "Encoded"] = field(default_factory=dict, compare=False)
    """View -> the prompt as that view shows it, for the views asked for so far."""
    begun: tuple[int, ...] = ()
    """Its last tokens are these, the beginning of a completion that is to be continued."""
    more: tuple[Media, ...] = ()
    """Media within these tokens, in order."""
    short_ids: tuple[int, ...] | None = None
    """Of a row of several turns: `begun` with one placeholder per picture, as an engine is sent it."""
    pictures: tuple[Any, ...] = ()
    """Of a row of several turns: the pictures within `begun`, opened."""
    past: Past | None = None
    """Of a row of several turns: what it has read of this, where that is kept."""

    def __len__(self) -> int:
        return len(self.token_ids)


Opened = dict[str, list[Any]]
"""Name of a kind -> a prompt's media of it, opened, in order; a kind that is not there has no entry."""
Options = dict[str, object]
"""Arguments of a processor."""


@dataclass(frozen=True)
class Reader:
    """How a text policy reads one kind of media."""

    open: Callable[..., object]
    """(a value of its kind, prompt, encoder) -> what `options` takes; raises ValueError, FileNotFoundError or RuntimeError."""
    options: Callable[..., Options]
    """(all of a prompt's, opened; family) -> what the processor is given."""
    remedy: str = "leave them out of the data"
    """What to do where a family takes none."""


READERS = {
    "image": Reader(
        lambda media, prompt, encode: encode.pictures(media, prompt.id), lambda pictures, family: {"images": [list(pictures)]}
    ),
    "video": Reader(
        lambda clip, prompt, encode: encode.videos(clip),
        lambda clips, family: processor_arguments(list(clips), family.video_options),
        "use a model that `mmrl ls families` lists with clips",
    ),
    "audio": Reader(
        lambda sound, prompt, encode: read_wave(sound, encode.videos.ear),
        lambda waves, family: {"audio": list(waves)},
        "use a model that `mmrl ls families` lists with sounds",
    ),
}
"""Name of a kind -> its reader."""


def videos_of(prompt: Prompt) -> list[Video]:
    """The prompt's clips, in order."""
    return [clip for media in prompt.media if VIDEO.holds(media) and isinstance(clip := VIDEO.value_of(media), Video)]


@dataclass(frozen=True)
class Encoder:
    """Prompt -> Encoded, by the model's own processor and chat template."""

    processor: Any
    family: Family
    core: nn.Module
    """The model below its head: it knows the positions of its tokens."""
    config: TextPolicyConfig
    videos: VideoInput
    pictures: PictureInput
    count: Callable[[Media], Media] = dict
    """One prompt's tensors, with its features counted where its family does so."""
    ready: dict[int, Encoded] = field(default_factory=dict[int, Encoded], compare=False)
    """By the identity of a prompt: what was encoded before it was asked for, to be given once."""
    tried: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]], compare=False)
    """(messages, length rounded to a power of two) of chats for which the template is known to terminate."""

    def unreadable(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        """Place -> what is wrong, of the prompts that cannot be encoded; the others are ready to be given."""
        self.ready.clear()
        self.prefetch(prompts)
        found: dict[int, str] = {}
        for place, prompt in enumerate(prompts):
            try:
                self.ready[id(prompt)] = self.encode(prompt)
            except (ValueError, OSError, RuntimeError) as error:
                found[place] = str(error)
        return found

    def prefetch(self, prompts: Iterable[Prompt]) -> None:
        """Let workers decode the clips and open the pictures of these prompts, without waiting for them."""
        prompts = [prompt for prompt in prompts if id(prompt) not in self.ready]
        if clips := [clip for prompt in prompts for clip in videos_of(prompt)]:
            self.videos.ask(clips)
        self.pictures.ask(IMAGE.value_of(media) for prompt in prompts for media in prompt.media if kind_of(media) is IMAGE)

    def __call__(self, prompt: Prompt, seed: int = 0) -> Encoded:
        """Encode a prompt, unless `unreadable` has done so already; raises what `encode` raises."""
        known = self.ready.pop(id(prompt), None)
        return self.encode(prompt, seed) if known is None else replace(known, seed=seed)

    @in_span("encode")
    @torch.no_grad()
    def encode(self, prompt: Prompt, seed: int = 0) -> Encoded:
        """Open the pictures, decode the clips, write the chat, tokenize.

        Raises:
            ValueError: unreadable media, markers or placeholders that do not fit them, or a prompt longer than max_prompt_tokens.
            FileNotFoundError: no such picture or clip.
            WorkerError: decoding workers died or hung twice at one clip.
        """
        opened = self.open_all(prompt, [IMAGE])
        # Markers that do not fit are reported before clips are decoded.
        chat = self.chat(prompt)
        try:
            opened |= self.open_all(prompt, [kind for kind in KINDS.values() if kind is not IMAGE])
            self._check_kinds(opened)
            encoded = self._encode(prompt, chat, opened)
        except (ValueError, FileNotFoundError, RuntimeError) as error:
            raise type(error)(f"{name_in_file(prompt)}: {error}") from error
        return replace(encoded, prompt=prompt, seed=seed)

    def open(self, media: object, prompt: Prompt) -> object:
        """One of a prompt's media, as its reader opens it."""
        kind = kind_of(media)
        return READERS[kind.name].open(kind.value_of(media), prompt, self)

    def open_all(self, prompt: Prompt, kinds: Sequence[MediaKind]) -> Opened:
        """A prompt's media of these kinds."""
        opened: Opened = {}
        for media in prompt.media:
            if (kind := kind_of(media)) in kinds:
                opened.setdefault(kind.name, []).append(self.open(media, prompt))
        return opened

    def _check_kinds(self, opened: Opened) -> None:
        kind, num_frames = self.family.config.model_type, [len(clip.times) for clip in opened.get("video", [])]
        if opened and not self.family.sees:
            raise ValueError(f"{kind} takes text alone: use a vision-language model, or leave pictures and clips out of the data")
        for name in opened:
            if name not in self.family.sees:
                raise ValueError(f"{kind} takes no {KINDS[name].nouns} here: {READERS[name].remedy}")
        if len(set(num_frames)) > 1 and not self.family.clips_differ:
            raise ValueError(
                f"{kind} wants as many frames of every clip of a prompt, not {', '.join(map(str, num_frames))}: "
                "give the videos the same `frames`"
            )
        if len(opened) > 1 and not self.family.mixes_kinds:
            either = " or ".join(KINDS[name].nouns for name in self.family.sees)
            raise ValueError(f"{kind} takes {either} in one prompt, not both: leave one kind out")

    def chat(self, prompt: Prompt, clips: Sequence[Frames] = ()) -> list[Message]:
        """The prompt as chat templates take it, its clips as this model is shown them; ValueError for markers that do not fit."""
        shown = clips if self.family.frames_are_pictures else ()
        return messages(prompt, self.template, self.config.system_prompt, shown)

    def write(self, chat: Sequence[Message]) -> str:
        """The chat as the model's template writes it, with the beginning of an answer; ValueError for one that cannot."""
        place = f"policy.model {self.config.model!r}"
        size = len(chat), len(str(chat)).bit_length()
        if size not in self.tried:
            refuse_endless(self.processor.chat_template, place, chat, **self.processor.tokenizer.special_tokens_map)
            self.tried.add(size)
        try:
            return self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            raise ValueError(f"{place}: its chat template fails ({type(error).__name__}: {error}): {REMEDY}") from error

    @property
    def box_space(self) -> str | None:
        """How the model writes boxes, a word of policy.box_space; None: neither its makers nor the config say."""
        return self.family.box_space if self.config.box_space == "auto" else self.config.box_space

    @property
    def template(self) -> str:
        """The text around every question, with {question} in it; ValueError for boxes in an unknown convention."""
        return answer_template(self.config.answer_format, self.box_space)

    def _encode(self, prompt: Prompt, chat: list[Message], opened: Opened) -> Encoded:
        clips = opened.get("video", [])
        sizes: list[tuple[int, int]] = [picture.size for picture in opened.get("image", [])]
        times = tuple(map(clip_time, clips))
        if self.family.frames_are_pictures:
            chat, opened, clips = self.chat(prompt, clips), with_frames(prompt, opened), []
        text = self.write(chat)
        # A template that writes the first token itself must not get another one from the tokenizer.
        bos = self.processor.tokenizer.bos_token
        special = bos is None or not text.startswith(bos)
        fed = self.feed(text, opened, sizes, clips, special=special, most=self.config.max_prompt_tokens)
        return replace(fed, prompt_id=prompt.id, clips=times, opened="<think>" if text.rstrip().endswith("<think>") else "")

    def feed(
        self,
        text: str,
        opened: Opened,
        sizes: Sequence[tuple[int, int]],
        clips: Sequence[Frames] = (),
        special: bool = False,
        most: int | None = None,
    ) -> Encoded:
        """A text and its media as the model is fed them; `special`: the tokenizer adds its tokens, `most`: tokens at most."""
        options: Options = {} if special else {"add_special_tokens": False}
        for name, media in opened.items():
            options |= READERS[name].options(media, self.family) if media else {}
        if self.family.wants_rate and opened.get("audio"):
            options["sampling_rate"] = self.videos.ear.rate
        fed = dict(self.processor(text=[text], return_tensors="pt", **options))
        token_ids = fed.pop("input_ids")[0].long()
        fed.pop("attention_mask", None)
        types = next((fed.pop(name)[0] for name in TYPE_NAMES if name in fed), None)
        if most is not None and len(token_ids) > most:
            raise ValueError(
                f"it has {len(token_ids)} tokens, pictures included, and policy.max_prompt_tokens is {most}: "
                "raise it, lower policy.max_pixels or policy.video.total_pixels, or drop the prompt from the data set"
            )
        kept = self.family.keeps(self.core, fed)
        media = self.family.tidy({name: torch.as_tensor(value) for name, value in fed.items() if name in kept})
        media = self.count({**media, **self.family.counted(token_ids)} if media else media)
        check_media(self.family, token_ids, media)
        positions = self.family.positions(self.core, token_ids, types, media, clips)
        seen = self.family.seen_sizes(sizes, media)
        shown = tuple(MediaSize(*size, *own) for size, own in zip(sizes, seen, strict=True))
        return Encoded("", token_ids, positions, types, media, shown)


def with_frames(prompt: Prompt, opened: Opened) -> Opened:
    """Frames of clips as pictures among the pictures, in the order of the prompt's media."""
    rest = {name: iter(media) for name, media in opened.items()}
    ordered = [(kind, next(rest[kind.name])) for kind in map(kind_of, prompt.media)]
    pictures = [
        picture
        for kind, one in ordered
        if kind in (IMAGE, VIDEO)
        for picture in (map(Image.fromarray, one.pixels) if kind is VIDEO else [one])
    ]
    return {**opened, "image": pictures, "video": []}


def name_in_file(prompt: Prompt) -> str:
    """The prompt by its id, and its file and row where the data set noted them."""
    place = prompt.columns.get("file_row")
    return f"prompt {prompt.id!r}" + (f" ({place})" if place else "")


def check_media(family: Family, token_ids: Int[Tensor, " p"], media: Media) -> None:
    """Raise ValueError unless the prompt has one placeholder per vision feature and its media tensors agree."""
    family.check_rows(media)
    for kind, features in family.placeholders(media).items():
        held = int((token_ids == family.token_of(kind)).sum())
        if features is not None and held != features:
            raise ValueError(
                f"its text holds {held} {kind} placeholders, its {KINDS[kind].nouns} give {features} vision features: "
                f"the text must not spell {kind} tokens, and the processor must be the model's own"
            )


@dataclass(frozen=True)
class PromptBatch:
    """Several prompts side by side, padded on the left: u prompts, p positions, a axes."""

    token_ids: Int[Tensor, "u p"]
    attention: Int[Tensor, "u p"]
    positions: Real[Tensor, "a u p"]
    type_ids: Int[Tensor, "u p"] | None
    media: tuple[Media, ...]
    """One per prompt, empty where it has no picture; on the CPU, as they were encoded. Those within the beginning of a completion
    follow their prompt's."""

    @property
    def next_positions(self) -> Real[Tensor, "a u 1"]:
        """Where the first token after each prompt stands."""
        return self.positions[:, :, -1:] + 1


def collate_prompts(prompts: Sequence[Encoded], pad_token_id: int, device: torch.device) -> PromptBatch:
    """Prompts in order, moved to the device but for their media."""
    longest = max(map(len, prompts))

    def pad_left(x: Tensor, value: int = 0) -> Tensor:
        return nn.functional.pad(x, (longest - x.shape[-1], 0), value=value)

    types = None
    if any(prompt.type_ids is not None for prompt in prompts):
        rows = [torch.zeros_like(one.token_ids) if one.type_ids is None else one.type_ids for one in prompts]
        types = to_device(torch.stack([pad_left(row) for row in rows]), device)
    return PromptBatch(
        token_ids=to_device(torch.stack([pad_left(prompt.token_ids, pad_token_id) for prompt in prompts]), device),
        attention=to_device(torch.stack([pad_left(torch.ones_like(prompt.token_ids)) for prompt in prompts]), device),
        positions=to_device(torch.stack([pad_left(prompt.positions) for prompt in prompts], dim=1), device),
        type_ids=types,
        media=tuple(media for prompt in prompts for media in (prompt.media, *prompt.more)),
    )


def stand_in_prompt(family: Family) -> Prompt:
    """A prompt with a small grey picture if the model sees any, for a process that has none of its own to look at."""
    grey = (Image.new("RGB", (64, 64), (99, 99, 99)),)
    return Prompt("stand-in", media=grey if "image" in family.sees else ())
