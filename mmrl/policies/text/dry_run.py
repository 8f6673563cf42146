"""A text policy that goes through the motions of a run without its weights: it counts what a model would have to do.

Prompts are read by the model's own processor, completions have a length that is given. Every value is 0, but tokens are unlikely.
What its worlds answer fills an episode up to its limits, with pictures first.
"""

import inspect
import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

from mmrl.core.episodes import Limits
from mmrl.core.protocols import View
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.policies.shared.dry_run import OF_TEACHERS, CallLog, DryRun, StillWeights, fake_weights, no_audit, size_of, tensors_in
from mmrl.policies.shared.quantized.layer import SCALES_OF, nf4_layers, rest_on_host
from mmrl.policies.shared.quantized.load import put_stored
from mmrl.policies.shared.quantized.table import method_of
from mmrl.policies.text import loading
from mmrl.policies.text.families import Family, Media, family_of
from mmrl.policies.text.families.base import OwnProcessor
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.kept import KeptStrip, Past, layers_of, token_bytes
from mmrl.policies.text.loading import Loaded
from mmrl.policies.text.net import Cache, TextNet
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.packed.team import Team
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded, Encoder
from mmrl.policies.text.read.distance import STATES, ComparedRows
from mmrl.policies.text.read.evaluate import RowEvaluation
from mmrl.policies.text.read.packable import prepare_packing
from mmrl.policies.text.settings import Sampling, TextPolicyConfig, TextTeacher
from mmrl.policies.text.write.episodes import observe
from mmrl.policies.text.write.generate import Completions, Generation, Generator, LocalGenerator, Seed, draw
from mmrl.policies.text.write.read_on import parted, usable

DOUBT = {"logprobs": -1.0, "entropy": 1.0, "lead": 0.5}
"""Tokens are so unlikely that methods which look for doubt find it everywhere, and ask for the most."""
JOINED = "flash_meta"
"""A name with flash means to towers that cut pictures into windows: one call, given where windows begin."""

LOGITS = "logits that exist at one time"
"""A part of the memory of a forward."""


def load_meta(config: TextPolicyConfig, kind: Callable[[Any], Family] = family_of, frozen: bool = False) -> Loaded:
    """The model and its processor as `loading.load` gives them, without weights; FileNotFoundError where files are missing."""
    model, family = meta_model(config, kind, frozen)
    processor, packs = load_processor(config, family), prepare_packing(model, config, weights=False)
    return Loaded(model, processor, family, None, loading.stop_tokens(model, processor.tokenizer), packs)


def meta_model(config: TextPolicyConfig, kind: Callable[[Any], Family] = family_of, frozen: bool = False) -> tuple[Any, Family]:
    """The model as `loading.load` prepares it, without weights, from its config.json; raises as that does."""
    model_config = loading.load_config(config)
    family = kind(model_config)
    half = config.dtype == "bfloat16" and (frozen or config.lora is not None)
    options: dict[str, object] = {"dtype": torch.bfloat16 if half else torch.float32}
    if config.attn_implementation:
        options["attn_implementation"] = config.attn_implementation
    with torch.device("meta"):
        model = loading.without_weights(model_config, config, **options)
        loading.switch_off_dropout(model)
        if config.weights == "nf4" or method_of(model_config) is not None:
            loading.refuse_other_codes(model_config, config)
            put_stored(model, loading.layers_in_4_bits(model, config, family, method_of(model_config) is not None))
        if config.quantized.embeddings == "host":
            rest_on_host(model, config.model)
        if config.lora is not None and not frozen:
            loading.add_adapter(model, family, replace(config.lora, adapter=None))
        loading.add_head(model, config.scores, Path())
    loading.settle(model, family, config, frozen)
    join_windows(model)
    fake_weights(model)
    return model.eval(), family


def join_windows(model: nn.Module) -> None:
    """Let a vision tower look through all of its windows at once where attention takes memory that grows with the positions."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for part in model.modules():
        config: Any = getattr(part, "config", None)
        takes_windows = "cu_seqlens" in inspect.signature(part.forward).parameters
        if takes_windows and getattr(config, "_attn_implementation", None) == "sdpa":
            ALL_ATTENTION_FUNCTIONS.register(JOINED, attend_to_all)
            config._attn_implementation_internal = JOINED


def attend_to_all(
    module: object, query: Tensor, key: Tensor, value: Tensor, *_: object, scaling: float, **__: object
) -> tuple[Tensor, None]:
    """Attention over everything: bytes are those of attention inside windows, values are not."""
    seen = nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    return seen.transpose(1, 2).contiguous(), None


@dataclass
class DryGenerator(Generator):
    """Writes one letter `length` times, another for each sample of a request, and counts what a model would have been asked."""

    inner: LocalGenerator
    length: int
    log: CallLog
    largest: Generation | None = None
    ends_turns: bool = False
    """Do completions count as finished, so that worlds answer them?"""
    compared: bool = True
    """May its completions be the largest?"""

    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[Seed], sampling: Sampling
    ) -> Completions:
        work = self.inner.generation(prompts, prompt_index, seeds, sampling)
        n, length = len(work.prompt_index), min(self.length, sampling.max_new_tokens)
        written = n * (length - 1)
        positions = work.prompts.token_ids.numel() + written
        fed = positions
        if work.shown:
            own = [usable(one, self.inner.host.net.family.looks_both_ways) for one in prompts]
            left = [len(one) - past.length for one, past in zip(prompts, own, strict=True)]
            fed = written + sum(len(part) * max(left[i] for i in part) for part in parted(list(map(len, prompts)), own))
        with self.log.rollout():
            passes = num_passes(self.inner.host.net, work.prompts.media)
            if self.log.note(length, passes, n, positions, self.compared, fed):
                self.largest = work
        letters = torch.tensor([ord("a") + sample % 26 for _, sample in seeds], dtype=torch.long)
        ids = letters[:, None].repeat(1, length)
        stopped = torch.full((n,), self.ends_turns or length < sampling.max_new_tokens)
        pasts = self.pasts(prompts, prompt_index, length) if work.shown else ()
        return Completions(ids, torch.full((n, length), DOUBT["logprobs"]), torch.full((n,), length), stopped, pasts=pasts)

    def pasts(self, prompts: Sequence[Encoded], prompt_index: Sequence[int], length: int) -> tuple[Past, ...]:
        """The pasts of rows, of which sizes alone are there."""
        host = self.inner.host
        size = token_bytes(host.config, host.net.model.config)

        def grown(past: Past, tokens: int, media: int) -> Past:
            new = tokens - past.length
            if past.final or not past.keeper.has_room(new * size):
                return past
            return past.grown(past.keeper.hold(KeptStrip((), new, new * size)), media)

        read = [one.past for one in prompts if one.past is not None]
        for i, one in enumerate(prompts):
            if prompt_index.count(i) > 1:
                read[i] = grown(read[i], len(one), len(one.more))
        return tuple(grown(read[i], len(prompts[i]) + length - 1, len(prompts[i].more)) for i in prompt_index)


@dataclass
class DryEvaluator:
    """Reads zeros, and log-probabilities as they were noted, and counts what a model would have been asked."""

    net: TextNet
    log: CallLog
    still: StillWeights
    teaches: bool = False
    """Is the network a teacher's? Its work is counted with the policy's, and is the largest of its own alone."""
    largest: dict[str, RowEvaluation] = field(default_factory=dict[str, RowEvaluation])
    """By phase."""

    def __call__(self, work: RowEvaluation) -> dict[str, Float[Tensor, "n t"]]:
        passes, phase = num_passes(self.net, work.media), self.log.phase
        is_largest = self.log.note(1, passes, len(work.prompt_index), work.positions_fed, not self.teaches)
        known = self.largest.get(phase)
        if is_largest or (self.teaches and (known is None or known.positions_fed < work.positions_fed)):
            self.largest[phase] = work
        if STATES in work.quantities:
            return {STATES: torch.zeros(int(work.mask.sum()), self.net.model.get_output_embeddings().weight.shape[1])}
        return {name: torch.full(work.mask.shape, DOUBT.get(name, 0.0)) + self.still.zero() for name in work.quantities}


class DrySilence:
    """A teacher behind servers, of which nothing is asked."""

    def __init__(self, config: TextPolicyConfig, teacher: TextTeacher, number: int) -> None:
        self.host = TextPolicy(config, parts=TextParts(load=partial(load_meta, frozen=True)))

    def tell(self, rows: Sequence[Encoded], likely: int) -> list[Sequence[Mapping[int, float]]]:
        return [[{x: DOUBT["logprobs"] for x in (*range(likely), token)} for token in row.begun] for row in rows]


class TextDryRun(DryRun):
    """A TextPolicy that writes `length` unlikely tokens and reads zeros; raises what `load_meta` and TextPolicy raise."""

    policy: TextPolicy
    writer: DryGenerator

    def __init__(
        self,
        config: TextPolicyConfig,
        shadows: Iterable[str] = (),
        views: Mapping[str, View] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`limits`: of the run's episodes; None: it has no environment."""
        self.worlds = worlds = None if limits is None else DryWorlds(limits)
        self.length = config.sampling.max_new_tokens
        self.log, still, self.cache_bytes = CallLog(), StillWeights(), 0

        def generator(host: TextHost) -> DryGenerator:
            self.writer = DryGenerator(LocalGenerator(host), self.length, self.log, ends_turns=worlds is not None)
            return self.writer

        def evaluator(host: TextHost) -> DryEvaluator:
            return DryEvaluator(host.net, self.log, still, host.config is not config and bool(config.teachers))

        self.policy = self.build(
            config,
            shadows,
            views,
            TextParts(
                load=self.load,
                generator=generator,
                evaluator=evaluator,
                weights=still.keeper(),
                audit=no_audit,
                asked=DrySilence,
                worlds=worlds,
            ),
        )
        if config.context > 1:
            self.policy.net.read_with(Team(config.context))
            self.policy.turns = config.context
        if worlds is not None:
            worlds.fill(self.policy.encode, self.length)
            self.policy.encode = replace(self.policy.encode, processor=OneReading(self.policy.processor))
            self.log.episode = worlds.words

    def load(self, config: TextPolicyConfig, frozen: bool = False) -> Loaded:
        return load_meta(config, frozen=frozen)

    def build(
        self, config: TextPolicyConfig, shadows: Iterable[str], views: Mapping[str, View] | None, parts: TextParts
    ) -> TextPolicy:
        """The policy of these parts."""
        return TextPolicy(config, shadows, views=views, parts=parts)

    @property
    def network(self) -> nn.Module:
        """The model that trains, and what it is built on, without weights."""
        return self.policy.net.model

    def largest(self) -> tuple[Generation | None, dict[str, RowEvaluation]]:
        """The largest completions and, by phase, the largest readings that were asked for since the log was cleared."""
        reader = self.policy.evaluator
        assert isinstance(reader, DryEvaluator)
        known = self.log.largest
        read = {phase: work for phase, work in reader.largest.items() if phase in known}
        return (self.writer.largest if "rollout" in known else None), read

    def largest_work(self) -> Iterator[tuple[str, Callable[[], object]]]:
        net, others = self.policy.net, self.policy.teachers.others.values()
        for features in filter(None, (net.features, *(one.net.features for one in others))):
            # What was only counted has no features.
            features.clear()
        written, read = self.largest()
        if written is not None:
            yield "rollout", partial(self.decode, written)
        for phase, work in read.items():
            net.train(phase == "update" and self.policy.config.gradient_checkpointing)
            yield phase, partial(forward, work, net)
            net.eval()
        for one in others:
            assert isinstance(one.evaluator, DryEvaluator)
            for phase, work in one.evaluator.largest.items():
                yield phase, partial(forward, work, one.net)

    def activations(self) -> Mapping[str, int]:
        """In the rollout, what unfinished episodes keep lies beside what is being written."""
        found = super().activations()
        return {phase: size + (self.kept if phase == "rollout" else 0) for phase, size in found.items()}

    @property
    def kept(self) -> int:
        """The most bytes that unfinished episodes kept."""
        return 0 if self.policy.keeper is None else self.policy.keeper.peak

    def beside(self) -> dict[str, int]:
        """The weights of teachers."""
        teachers, kept = self.policy.teachers, [one.net.model for one in self.policy.teachers.others.values()]
        scales = [getattr(layer, name) for model in kept for _, layer in nf4_layers(model) for name in SCALES_OF]
        found = {
            f"models of {OF_TEACHERS}": sum(size_of(model.parameters()) for model in kept) + size_of(scales),
            f"adapters of {OF_TEACHERS}": sum(adapter_bytes(folder) for folder in teachers.adapters.values()),
        }
        return {name: size for name, size in found.items() if size}

    def decode(self, written: Generation) -> None:
        """Take the last step of the largest completions, and note how large their cache is then."""
        self.cache_bytes = decode(written, self.policy.net, min(self.length, written.sampling.max_new_tokens))

    def host_bytes(self) -> dict[str, int]:
        """Pictures that worlds show, until they are trained on; besides these there are token ids and log-probabilities."""
        if self.worlds is None or not self.worlds.bytes:
            return {}
        return {"pictures of observations": self.worlds.bytes * self.log.counts["rollout"].rows // self.worlds.limits.turns}

    def parts_of_activations(self) -> dict[str, int]:
        """The cache at the end of the rollout, which `activations` has grown, and logits that exist at one time -> bytes."""
        found: dict[str, int] = {}
        written, read = self.largest()
        if written is not None:
            found["cache of keys and values at the end of the rollout"] = self.cache_bytes
            found |= {"keys and values that episodes keep between turns": self.kept} if self.kept else {}
        if read:
            vocabulary = len(self.policy.net.banned)
            rows = max(int(work.mask.sum()) for work in read.values())
            at_once = min(rows, max(1, self.policy.config.logit_chunk // vocabulary))
            found[LOGITS] = 4 * vocabulary * at_once * (2 if any(isinstance(work, ComparedRows) for work in read.values()) else 1)
        return found


def adapter_bytes(folder: str) -> int:
    """Bytes that a saved adapter takes in float32, by its file's header."""
    with safe_open(Path(folder).expanduser() / "adapter_model.safetensors", "pt") as saved:
        return sum(4 * math.prod(saved.get_slice(key).get_shape()) for key in saved.keys())  # noqa: SIM118 - no mapping


def num_passes(net: TextNet, shown: Sequence[Media]) -> int:
    """Passes of the vision tower: one per kind of media, or with features that are kept one per kind and unseen prompt."""
    return net.num_passes(shown) if net.features is None else net.features.pretend(shown)


def load_processor(config: TextPolicyConfig, family: Family) -> Any:
    """The model's processor, which says how many tokens a prompt has; raises FileNotFoundError where there is none."""
    try:
        with loading.refusing_code(config.model):
            processor = family.processor(config.model, config.trust_remote_code)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise
        raise FileNotFoundError(
            f"policy.model {config.model!r} has a config and no processor, which says how long prompts are: put its tokenizer "
            f"and processor files beside config.json, weights are not needed ({str(error).splitlines()[0]})"
        ) from None
    if config.min_pixels is not None or config.max_pixels is not None:
        family.limit_pixels(processor, config.min_pixels, config.max_pixels)
    return processor


def forward(work: RowEvaluation, net: TextNet) -> None:
    """One evaluation, and where gradients are on the backward pass that follows it."""
    with nullcontext() if net.team is None else net.team.led_by(0):
        values = net(work)
    if torch.is_grad_enabled():
        torch.stack([value.sum() for value in values.values()]).sum().backward()


def decode(generation: Generation, net: TextNet, length: int) -> int:
    """Read the prompts, and write the last token of completions of this length; bytes of keys and values of all rows."""
    index, n = generation.prompt_index, len(generation.prompt_index)

    def work(net: TextNet) -> int:
        last, cache = net.prefill(generation.prompts)
        hidden, fed = last[index], torch.zeros(n, 1, dtype=torch.long)
        positions = generation.prompts.next_positions[:, index]
        if generation.shares:
            ends = [generation.ends[i] for i in index.tolist()]
            room, _ = SharedRoom.of(layers_of(cache), index.tolist(), ends, generation.sampling.max_new_tokens)
            room.grow(length)
            hidden, held = net.extend(room, fed, positions, None)[:, -1], room.tensors
        else:
            cache.reorder_cache(index)
            if length > 1:
                grow(cache, length - 2)
                attention = torch.nn.functional.pad(generation.prompts.attention[index], (0, length - 1), value=1)
                hidden = net.extend(cache, fed, positions + length - 2, attention)[:, -1]
            held = list(cached(cache))
        draw(net.logits(hidden, torch.ones(n)), torch.rand(n), generation.sampling)
        return size_of(held)

    return net(work)


def cached(cache: Cache) -> Iterator[Tensor]:
    """Keys and values of all layers, and the states of those of linear attention."""
    for layer in cache.layers:
        for name in ("keys", "values", "conv_states", "recurrent_states"):
            held = getattr(layer, name, None)
            yield from tensors_in(list(held.values()) if isinstance(held, dict) else held)


def grow(cache: Cache, count: int) -> None:
    """Remember `count` more tokens of every row, as if they had been decoded; layers of linear attention grow by none."""
    for i, layer in enumerate(cache.layers if count > 0 else []):
        if getattr(layer, "keys", None) is None:
            continue
        keys, values = (x.new_zeros(*x.shape[:2], count, x.shape[-1]) for x in (layer.keys, layer.values))
        cache.update(keys, values, i)


STEP = 28
"""Sides of pictures are a multiple of this, in pixels."""
LETTERS = "".join(chr(ord("a") + (i * i) % 26) for i in range(26))
"""A text of these has a token per letter at most."""


@dataclass
class DryWorlds:
    """Worlds that answer every turn with as many pictures as the limits allow, as large as fit, and text in what room is left."""

    limits: Limits
    wave: float = 1.0
    repeats: bool = True
    answers: list[Observation] = field(default_factory=list[Observation])
    """To each turn but the last."""
    asked: list[int] = field(default_factory=list[int])
    """Turns of each world so far."""
    pictures: int = 0
    """Of an episode."""
    side: int = 0
    """Of the largest picture, in pixels."""
    tokens: int = 0
    """Of the largest picture."""
    bytes: int = 0
    """Of the pictures of an episode, as the model is given them."""

    def fill(self, encoder: Encoder, longest: int) -> None:
        """Make the answers, for turns of `longest` tokens that no stop token ended, so that the template's is added."""
        limits, token = self.limits, encoder.family.image_token_id
        count = limits.turns - 1
        for k in range(count):
            room = (limits.tokens - limits.turns * longest) // count
            pictures = (limits.pictures or 0) // count + (k < (limits.pictures or 0) % count) if encoder.family.vision else 0
            side = 0
            while pictures and not (side := self.largest(encoder, pictures, room)):
                pictures -= 1
            shown = blank(pictures, side)
            found = observe(encoder, Observation("", shown), None)
            left = max(0, min(room - len(found), limits.text))
            self.answers.append(Observation((LETTERS * (left // 26 + 1))[:left], shown))
            self.pictures, self.side = self.pictures + pictures, max(self.side, side)
            self.bytes += size_of(found.media.values())
            self.tokens = max(self.tokens, int((found.token_ids == token).sum()) // max(1, pictures))

    def largest(self, encoder: Encoder, pictures: int, room: int) -> int:
        """The side of the largest pictures, all of which fit; 0 where none do."""
        sides = range(STEP, isqrt(self.limits.pixels) + 1, STEP)
        fits = bisect(sides, room, key=lambda side: len(observe(encoder, Observation("", blank(pictures, side)), None)))
        return sides[fits - 1] if fits else 0

    @property
    def words(self) -> str:
        """The longest episode, in a few words."""
        shown = f"{self.pictures} pictures of up to {self.side} x {self.side} pixels ({self.tokens} tokens each)"
        seen = shown if self.pictures else "no picture"
        return f"up to {self.limits.turns} turns, {seen}, {self.limits.tokens} tokens behind the prompt"

    def open(self, prompt: Prompt, seed: int) -> int:
        self.asked.append(0)
        return len(self.asked) - 1

    def step(self, number: int, turn: Turn) -> Future[Observation | None]:
        future = Future[Observation | None]()
        future.set_result(self.answers[min(self.asked[number], len(self.answers) - 1)] if self.answers else None)
        self.asked[number] += 1
        return future

    def close(self, number: int) -> None:
        """Nothing is open."""

    def drain_metrics(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class OneReading(OwnProcessor):
    """A processor that reads every observation once: later ones are tensors of their own that share the first one's memory."""

    known: dict[str, dict[str, Tensor]] = field(default_factory=dict[str, dict[str, Tensor]])

    def __call__(self, text: Sequence[str], **options: object) -> Mapping[str, Tensor]:
        if options.get("add_special_tokens", True):
            return self.inner(text=text, **options)
        if text[0] not in self.known:
            self.known[text[0]] = dict(self.inner(text=text, **options))
        return {name: x.view_as(x) for name, x in self.known[text[0]].items()}


def blank(count: int, side: int) -> tuple[Image.Image, ...]:
    return tuple(Image.new("RGB", (side, side)) for _ in range(count))
