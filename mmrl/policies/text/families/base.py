"""The questions that vision-language models answer differently, with the answers most of them share."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from mmrl.answers.spans.sounds import Ear
from mmrl.core.samples import KINDS
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.sampling import Budget, FrameRule, VideoSettings

Media = Mapping[str, Tensor]
"""The tensors a processor made of one prompt's pictures, by the name the model's forward gives them."""
Core = Any
"""A model of transformers below its head, whose methods are those of its own class."""
HubProcessor = Any
"""A processor, tokenizer or feature extractor of transformers, whose attributes are made while running."""
TYPE_NAMES = ("mm_token_type_ids", "token_type_ids")
"""Names of the token types: 0 text, 1 image, 2 video."""
HEAD_WORDS = ("output_multiplier", "logits_scaling", "final_logit_softcapping")
"""What configs of transformers call a number that logits are multiplied with, divided by, and kept below by tanh."""
LAYERS = re.compile(r"layers:(\d+)-(\d+)")
MEDIA_NAME = re.compile(r"image|img|video|vision|audio|row_\d+_col_\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Family:
    """One kind of model. Subclasses answer differently where their models do.

    Tensors of the processor that are not in `media_keys` are refused: how to batch them is unknown.
    """

    config: Any
    media_keys: frozenset[str] = frozenset({"pixel_values"})
    """Tensors of the processor that hold media, and what goes with them."""
    own_keys: tuple[tuple[str, frozenset[str]], ...] = ()
    """(kind, those of media_keys that hold media of this kind); all others hold pictures, and frames that are pictures among
    pictures."""
    pictures_alone: bool = True
    """Is a picture read the same whatever others stand beside it? An engine reads those of a row of several turns together."""
    sees: tuple[str, ...] = ("image",)
    """The kinds of media it takes; none: text alone."""
    mixes_kinds: bool = True
    """May one prompt hold media of several kinds?"""
    frames_are_pictures: bool = False
    """Its makers show it clips as pictures in a row: each frame becomes one, after its time in seconds."""
    clips_differ: bool = False
    """May the clips of one prompt have different numbers of frames?"""
    frame_multiple: int = 1
    """Frames that the model merges into one; clips have a multiple of it."""
    vision: tuple[str, ...] = ("vision_tower", "vision_model", "visual")
    """Where the weights of policy.freeze = ["vision"] lie: prefixes inside `model.model`."""
    projector: tuple[str, ...] = ("multi_modal_projector", "connector")
    """Where those between vision and language lie."""
    language: tuple[str, ...] = ("language_model", "text_model")
    """Where those of the language model lie."""
    box_space: str | None = None
    """How the model was taught to write boxes: pixel, resized, norm1000, norm1 or norm1000_yx; None: its makers do not say."""
    looks_both_ways: bool = False
    """Do the tokens of a picture see each other in both directions, or is that unknown?"""
    sounds_read_by: str = "transformers[audio]"
    """What pip installs for transformers alone to read sounds."""
    longest_sound: float | None = None
    """Seconds of a sound that are heard, whatever its processor says; None: as it says."""
    wants_rate: bool = False
    """Does its processor warn unless it is given the rate of the sounds?"""
    looks_apart: bool = False
    """Does each prompt pass the vision part by itself? What it gives is counted then, and nothing has to be batched."""

    @property
    def image_token_id(self) -> int:
        """The placeholder, one per vision feature; -1, which is no token, of a model that takes no pictures."""
        return self.config.image_token_id if "image" in self.sees else -1

    def token_of(self, kind: str) -> int:
        """The placeholder of a kind."""
        return self.image_token_id if kind == "image" else getattr(self.config, f"{kind}_token_id")

    @property
    def video_options(self) -> dict[str, Any]:
        """Arguments that the processor needs for clips besides frames and times."""
        return {}

    def video_budget(self, processor: HubProcessor, settings: VideoSettings) -> Budget | None:
        """How large frames may be; None: the processor brings all to one size."""
        for name in ("min_pixels", "max_pixels", "total_pixels"):
            if getattr(settings, name) is not None:
                raise ValueError(
                    f"{self.config.model_type} brings all frames to one size: remove policy.video.{name}, which only "
                    "Qwen-VL models know; policy.video.max_frames bounds the cost of a clip"
                )
        return None

    def frame_rule(self, processor: object, settings: VideoSettings) -> FrameRule:
        """The rule for every clip: what this model and these settings want of it."""
        able = self.frames_are_pictures or ("video" in self.sees and getattr(processor, "video_processor", None) is not None)
        return FrameRule(
            fps=settings.fps,
            min_frames=settings.min_frames,
            max_frames=settings.max_frames,
            multiple=self.frame_multiple,
            budget=self.video_budget(processor, settings) if able else None,
            backend=settings.backend,
        )

    def ear(self, processor: HubProcessor) -> Ear:
        """The rate at which sounds are heard, and for how long at most."""
        extractor = extractor_of(processor)
        if extractor is None or "audio" not in self.sees:
            return Ear()
        return Ear(extractor.sampling_rate, float(self.longest_sound or getattr(extractor, "chunk_length", Ear.longest)))

    def processor(self, model: str, trusted: bool = False) -> HubProcessor:
        """The processor of a folder or hub model, with its chat template; `trusted`: its own code may run."""
        from transformers import AutoProcessor

        found: HubProcessor = AutoProcessor.from_pretrained(model, trust_remote_code=trusted)
        if getattr(found, "chat_template", None) is None and hasattr(found, "tokenizer"):
            found.chat_template = found.tokenizer.chat_template
        return found

    def attach(self, core: Core) -> None:
        """Have a loaded model, below its head, take features of sounds, where it hears."""
        if "audio" in self.sees:
            write_sounds(core, self.token_of("audio"))

    def keeps(self, core: Core, names: Iterable[str]) -> frozenset[str]:
        """Which of the processor's tensors the model is given; ValueError for one that cannot be."""
        return frozenset(names)

    def tidy(self, media: Media) -> Media:
        """The processor's tensors of one prompt, brought to a form whose first dimension can be concatenated."""
        unknown = sorted(set(media) - self.media_keys)
        if unknown:
            raise ValueError(
                f"{self.config.model_type}: the processor made {', '.join(unknown)}, which the family "
                f"{type(self).__name__} cannot batch: add a family for this model in mmrl/policies/text/families"
            )
        return media

    def counted(self, token_ids: Int[Tensor, " p"]) -> Media:
        """Further tensors that a prompt with media has by its own tokens; none, for most."""
        return {}

    def collate(self, media: Sequence[Media]) -> dict[str, Tensor]:
        """Pictures of several prompts, in order, as one forward takes them; prompts without pictures have no tensors."""
        keys = dict.fromkeys(key for one in media for key in one)
        return {key: pad_cat([one[key] for one in media if key in one]) for key in keys}

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        """The tower's output for one kind of media of several prompts, on the model's device: one pass."""
        return getattr(core, f"get_{kind}_features")(**self.collate(media), return_dict=True)

    def kinds(self, media: Media) -> dict[str, Media]:
        """The tensors of each kind, separately; a kind that is absent has no entry."""
        owner = {key: kind for kind, keys in self.own_keys for key in keys}
        split = {kind: {key: value for key, value in media.items() if owner.get(key, "image") == kind} for kind in KINDS}
        return {kind: tensors for kind, tensors in split.items() if tensors}

    def entries(self, media: Media, kind: str = "image") -> int:
        """How many entries of the vision output's `pooler_output` belong to this prompt; not asked of one that looks apart."""
        return len(media["pixel_values"]) if media and kind == "image" else 0

    def num_features(self, media: Media) -> int | None:
        """Vision features, hence placeholders, these pictures give; None: unknown."""
        raise NotImplementedError

    def placeholders(self, media: Media) -> dict[str, int | None]:
        """Kind -> how many of its placeholders the prompt must hold."""
        return {"image": self.num_features(media)}

    def head(self, logits: Float[Tensor, "m v"]) -> Float[Tensor, "m v"]:
        """The model's logits, from what its last layer gives (which may be written into): multiplied, divided, capped."""
        text = self.config.get_text_config()
        multiplier, divisor, cap = (getattr(text, name, None) for name in HEAD_WORDS)
        if multiplier is not None:
            logits = logits.mul_(multiplier)
        if divisor is not None:
            logits = logits.div_(divisor)
        return logits if cap is None else logits.div_(cap).tanh_().mul(cap)

    def check_rows(self, media: Media) -> None:
        """Raise ValueError when the media tensors of one prompt contradict each other."""

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Real[Tensor, "a p"]:
        """Position ids of a prompt without padding: one axis, 0 1 2 ..."""
        return torch.arange(len(token_ids))[None]

    def seen_sizes(self, sizes: Sequence[tuple[int, int]], media: Media) -> list[tuple[int, int]]:
        """(width, height) of each picture as the model saw it. Tile models see several scales: the file's size stands in."""
        return list(sizes)

    def limit_pixels(self, processor: HubProcessor, min_pixels: int | None, max_pixels: int | None) -> None:
        """Make the processor keep pictures within these areas."""
        raise ValueError(
            f"{self.config.model_type} cuts pictures into tiles of one size: "
            "remove policy.min_pixels and policy.max_pixels, which only Qwen-VL models know"
        )

    def media_token_ids(self, tokenizer: HubProcessor) -> frozenset[int]:
        """Tokens that stand for media or frame it, which a completion must never hold."""
        named = {id for id, token in tokenizer.added_tokens_decoder.items() if MEDIA_NAME.search(token.content)}
        keys = [
            key for key in self.config.to_dict() if re.fullmatch(rf"({'|'.join(KINDS)}|vision\w*|boi|eoi)_token_(id|index)", key)
        ]
        return frozenset(named | {id for key in keys if isinstance(id := getattr(self.config, key), int) and id >= 0})


@dataclass(frozen=True)
class OwnProcessor:
    """A processor of transformers, some of whose methods are others here."""

    inner: HubProcessor

    def __getattr__(self, name: str) -> HubProcessor:
        if name.startswith("__"):  # a copy is asked for some before it has an inner one
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __call__(self, text: Sequence[str], **options: object) -> object:
        """Token ids (n, p) and their mask."""
        return self.tokenizer(list(text), **options)


def extractor_of(processor: object) -> HubProcessor:
    """The part of a processor that hears, under either of its names; None where it has none."""
    return getattr(processor, "feature_extractor", None) or getattr(processor, "audio_processor", None)


def belongs(name: str, family: Family, part: str) -> bool:
    """Is the weight `name` in this part of the model? The head counts as language."""
    name = name.removeprefix("model.")
    if part == "vision":
        return name.startswith(family.vision) and not name.startswith(family.projector)
    if part == "projector":
        return name.startswith(family.projector)
    if part == "language":
        return name.startswith((*family.language, "lm_head"))
    layers = LAYERS.fullmatch(part)
    if layers is None:
        raise ValueError(f"policy.freeze holds {part!r}: choose from vision, projector, language and layers:FIRST-LAST")
    found = re.search(r"\.layers\.(\d+)\.", name) if name.startswith(family.language) else None
    return found is not None and int(layers[1]) <= int(found[1]) <= int(layers[2])


def parameters_of(function: Any) -> tuple[str, ...]:
    """The names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def type_name_of(core: Core) -> str | None:
    """The name under which a model takes the token types; None: it does not."""
    return next((name for name in TYPE_NAMES if name in parameters_of(core.forward)), None)


def pad_cat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first dimension, padding the others with zeros at their end where sizes differ."""
    if len(tensors) == 1:
        return tensors[0]
    shape = [max(sizes) for sizes in zip(*(x.shape[1:] for x in tensors), strict=True)]
    if all(list(x.shape[1:]) == shape for x in tensors):
        return torch.cat(list(tensors))
    padded = []
    for x in tensors:
        room = x.new_zeros(len(x), *shape)
        room[tuple(slice(size) for size in x.shape)] = x
        padded.append(room)
    return torch.cat(padded)


def write_sounds(core: Core, token_id: int) -> None:
    """From now on a model takes features of sounds as `mm_encoder_outputs["audio"]`: they replace the embeddings of its
    placeholders `token_id`. A forward notes them, and its embeddings take them off again."""
    noted: list[tuple[Tensor, Tensor]] = []

    def note(core: Core, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
        own = dict(kwargs)
        outputs = dict(own.pop("mm_encoder_outputs", None) or {})
        heard = outputs.pop("audio", None)
        noted.clear()
        if heard is not None:
            noted.append((own["input_ids"] == token_id, torch.cat(list(heard.pooler_output))))
        return args, {**own, **({"mm_encoder_outputs": outputs} if outputs else {})}

    def write(embeddings: object, args: tuple[object, ...], words: Tensor) -> Tensor:
        for places, features in noted:
            words = words.masked_scatter(places[..., None], features.to(words))
        noted.clear()
        return words

    core.register_forward_pre_hook(note, with_kwargs=True)
    core.get_input_embeddings().register_forward_hook(write)
