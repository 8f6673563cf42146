"""A vision-language model as a policy: samples completions of prompts with pictures, and evaluates them again exactly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.episodes import Worlds
from mmrl.core.hooks import PolicyHooks
from mmrl.core.protocols import Diagnostics, State, View
from mmrl.core.ranks import OwnState, Ranks
from mmrl.core.readings import SCORE, VALUE
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts, Scope, Target, Tempering, Trace
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.pictures import PictureInput
from mmrl.policies.shared.quantized.layer import base_of, refuse_other_base
from mmrl.policies.shared.sharding import reshard, wrap_module
from mmrl.policies.shared.teachers import TEACHER
from mmrl.policies.shared.weights import USUAL_DECAY, Decay, Publication
from mmrl.policies.text.check.audit import check_worlds
from mmrl.policies.text.check.diagnose import TextRounding
from mmrl.policies.text.families import Family
from mmrl.policies.text.kept import drained, keeper_of
from mmrl.policies.text.loading import banned_tokens, writer_of
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packed.attention import with_layers_compiled
from mmrl.policies.text.packed.row import pack
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.prompt.encode import Encoded, Encoder, stand_in_prompt
from mmrl.policies.text.read.distance import COMPARED, ComparedRows
from mmrl.policies.text.read.evaluate import QUANTITIES, RowEvaluation, Shown, evaluation_of, show, show_rows, trace_of_nothing
from mmrl.policies.text.read.looks import ANSWERS, LOOKS, RHYTHM, RhythmEvaluation, answer_mask, look, shows_attention
from mmrl.policies.text.read.packable import shares_prompts
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.policies.text.teachers import Teachers, refuse_other_tokens
from mmrl.policies.text.trace import TextTrace, append, join
from mmrl.policies.text.vision.cache import cache_of
from mmrl.policies.text.write.episodes import Player
from mmrl.policies.text.write.generate import HotSampling, Part
from mmrl.policies.text.write.given import write_given
from mmrl.policies.text.write.rollout import (
    CompletionRow,
    PromptCache,
    assemble,
    by_weights,
    check_sampling,
    rows_of,
    tokens_of,
    vocabulary_of,
)
from mmrl.policies.video.input import VideoInput
from mmrl.policies.video.sampling import VideoSettings
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import pad_actions

__all__ = ["LoraSettings", "Sampling", "TextPolicy", "TextPolicyConfig", "TextTrace", "VideoSettings"]
T = TypeVar("T")


def quantities(config: TextPolicyConfig) -> frozenset[str]:
    """All that is offered with these settings, by a model that shows its attention."""
    scores = {SCORE + axis for axis in config.scores} | {VALUE.quantity} & set(config.scores)
    return QUANTITIES | LOOKS | COMPARED | {ANSWERS} | scores


class TextPolicy(PolicyHooks):
    """Any model of transformers that writes text. An action is a token of the completion.

    Rollouts and readings are on the CPU whatever the device of the model. Readings under live weights carry a gradient
    where gradients are on, under a shadow never.

    Args:
        ema_decay: see Weights.
        views: other ways to show a prompt, by the names that requests and readings give them.
        parts: what loads, writes, reads and keeps weights; a dry run has others.

    Raises what `loading.load` and Weights raise.
    """

    reads_at_temperatures = True

    def __init__(
        self,
        config: TextPolicyConfig,
        shadows: Iterable[str] = (),
        ema_decay: Decay = USUAL_DECAY,
        views: Mapping[str, View] | None = None,
        parts: TextParts = TextParts(),
    ) -> None:
        self.config, self.ema_decay, self.views, self.parts = config, ema_decay, dict(views or {}), parts
        refuse_other_tokens(config)
        loaded = parts.load(config)
        self.processor, self.family, self.adapter = loaded.processor, loaded.family, loaded.adapter
        self.tokenizer = loaded.processor.tokenizer
        self.eos_token_ids, self.packs = loaded.eos_token_ids, loaded.packs and packs_episodes(self.family, config, parts.worlds)
        self.banned, self.media_token_ids = banned_tokens(loaded), self.family.media_token_ids(self.tokenizer)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_token_ids[0]
        features = cache_of(loaded.model.model, self.family, config.vision_cache_mib)
        self.net = parts.net(loaded.model, self.family, self.banned, pad, config.dtype == "bfloat16", features)
        self.module: nn.Module = self.net
        videos = VideoInput(config.video, self.family.frame_rule(self.processor, config.video), self.family.ear(self.processor))
        pictures = PictureInput(config.pictures_ahead_mib)
        self.encode = Encoder(self.processor, self.family, self.net.core, config, videos, pictures, self.net.count)
        self.ranks, self._followed, self.keeper = Ranks(), False, keeper_of(config, loaded.model.config, parts.worlds is not None)
        self.weights = parts.weights(self.net, shadows, ema_decay, False, self.config.copies_on)
        self.generator, self.evaluator = parts.generator(self), parts.evaluator(self)
        unseen = frozenset[str]() if shows_attention(loaded.model) else RHYTHM
        self.offers = quantities(config) - unseen
        self.net.shares = shares_prompts(loaded.model, config)
        self.teachers = Teachers(self, lambda one: TextPolicy(one, parts=parts.of_reader()), parts.asked)

    @property
    def shadows(self) -> frozenset[str]:
        return frozenset(self.weights.shadows)

    @property
    def exact_sampler(self) -> bool:
        return self.generator.exact and self.config.quantized.kernels == "equal"

    def audit(self, rollouts: Rollouts) -> None:
        self.parts.audit(self, rollouts)
        if self.parts.worlds is not None:
            check_worlds(self.parts.worlds, rollouts)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        return self.parts.diagnostics(self)

    @property
    def rounding(self) -> TextRounding:
        return TextRounding(self)

    def parameters(self) -> list[nn.Parameter]:
        return list(self.weights.named.values())

    def advance(self) -> None:
        self.weights.follow()
        self._followed = False

    def publish(self, version: int | None = None) -> Publication:
        return self.generator.publish(self.weights.num_updates if version is None else version)

    def drain_metrics(self) -> Mapping[str, float]:
        return {} if self.parts.worlds is None else {**self.parts.worlds.drain_metrics(), **drained(self.keeper, self.ranks)}

    def begin_stage(self, shadows: Iterable[str], ema_decay: Callable[[int], float] | None, views: Mapping[str, View]) -> None:
        self.ema_decay, self.views = USUAL_DECAY if ema_decay is None else ema_decay, dict(views)
        updates = self.weights.num_updates
        self.weights = self.parts.weights(self.net, shadows, self.ema_decay, self.ranks.is_sharded, self.config.copies_on)
        self.weights.num_updates, self._followed = updates, False

    def end_step(self, rebase: bool = False) -> None:
        self.weights.end_step(rebase)

    @property
    def vocabulary(self) -> str:
        return vocabulary_of(self.tokenizer)

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Sampling | None = None) -> Rollouts:
        """Completions of all requests; `sampling` replaces the training one.

        Raises ValueError for an unknown view or model, an injected request without text, or a prompt that cannot be encoded.
        """
        sampling = check_sampling(sampling, self.config.sampling)
        rows, prompts = rows_of(requests, self.encode, self.shadows | {"policy"}, self.views, self.parts.worlds)
        self.generator.wake()
        if not self._followed:
            self.generator.follow(self.weights, self.weights.num_updates)
            self._followed = True
        drawn = [row for row in rows if not row.request.is_written]
        for row in rows:
            if row.request.given is not None:
                write_given(row, row.request.given, prompts[row.shown], self)
        versions = [self.weights.num_updates]
        for model in sorted(self.shadows | {"policy"}):
            own, played = by_turns([row for row in drawn if row.request.model == model], self.parts.worlds)
            # Clips are decoded while earlier rows are written, and a prompt's length is known once all its clips are decoded.
            chunks = split_rows(own, self.config.rollout_rows, None if self.encode.videos.used else prompts)
            chunks += [[]] * (self.ranks.forwards(len(chunks)) - len(chunks))
            if chunks or played:
                with self.weights.swapped_in(model):
                    versions += self._write(chunks, prompts, sampling)
                    if played and self.parts.worlds is not None:
                        versions += Player(self, self.generator, self.parts.worlds, sampling).play(played, prompts)
        return replace(assemble(rows, prompts, self, sampling.temperature), weights_version=min(versions))

    @in_span("forward")
    def read(self, trace: Trace, readings: Iterable[Reading], mask: Bool[Tensor, "n t"]) -> dict[Reading, Tensor]:
        """Log-probabilities and entropies of the recorded tokens, (n, t) in float32; 0 where mask is False.

        `answer_mask`: 1 inside the last <answer>; `group_divergence` takes all rows for one group; `LOOKS` have no gradient.
        Raises ValueError for a quantity, model or view that this policy does not have.
        """
        assert isinstance(trace, TextTrace)
        self.generator.rest()
        models, views, out = self.shadows | {"policy"} | self.teachers.models, {"plain", *self.views}, dict[Reading, Tensor]()
        for (model, view, temperature, target), asked in by_weights(readings, self.offers, models, frozenset(views)).items():
            names, rows = {reading.quantity for reading in asked}, trace.at(temperature)
            with self.weights.swapped_in("policy" if model == TEACHER else model):
                evaluate = partial(self.teachers.read if model == TEACHER else self.evaluate, view=view, target=target)
                values = look(names, rows, mask, evaluate, self.tokenizer, self.decode) if names & LOOKS else {}
                values |= evaluate(rows, mask, tuple(sorted(names - LOOKS - {ANSWERS})))
            if ANSWERS in names:
                values[ANSWERS] = answer_mask(trace, self.decode, mask)
            out |= {reading: values[reading.quantity] for reading in asked}
        return out

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        """Parts of at most `micro_batch` positions, padding included; rows of a prompt stay together while they fit."""
        return pack(batch, micro_batch * self.turns, scope, self.reads_packed(batch.rollouts.trace))

    def join(self, traces: Sequence[Trace]) -> TextTrace:
        return join([trace for trace in traces if isinstance(trace, TextTrace)])

    def state_dict(self) -> State:
        state = self.weights.state_dict(keep=self.ranks.is_main)
        return state if (base := base_of(self.net.model)) is None else OwnState(state, base=base)

    def load_state_dict(self, state: State) -> None:
        refuse_other_base(state, self.config.model, self.net.model)
        self.weights.load_state_dict(state)
        self._followed = False

    def save(self, folder: Path) -> None:
        """Write files for transformers (full fine-tuning) or peft (LoRA), and the processor's. Every process must call it."""
        write = writer_of(self.net.model, self.adapter)
        if self.ranks.is_main:
            write(folder)
            self.processor.save_pretrained(folder)

    def prepare(self, accelerator: Any) -> None:
        """Move to accelerate's device and wrap for its processes. Shadows start again from the weights as they are now."""
        # LLaVA, for one, never uses the last layer of its vision part.
        self.module = wrap_module(self.net, self.parameters(), accelerator, dead_ends=self.config.lora is None)
        self.net = with_layers_compiled(accelerator.unwrap_model(self.module), self.config)
        self.ranks = Ranks(accelerator)
        self.turns = self.net.join(self.ranks, self.stand_in.media if self.ranks.world > 1 else None, self.config.context)
        self.weights = self.parts.weights(self.net, self.shadows, self.ema_decay, self.ranks.is_sharded, self.config.copies_on)
        self.teachers.prepare()
        self._followed = False

    @cached_property
    def stand_in(self) -> Encoded:
        """The prompt that a process looks at while the others still have work and it has none."""
        return self.encode(stand_in_prompt(self.family))

    def reads_packed(self, trace: Trace) -> bool:
        """Are rows of a trace read behind their prompt in one packed row?"""
        assert isinstance(trace, TextTrace)
        return self.packs and trace.packed

    def run(self, work: Callable[[TextNet], T]) -> T:
        """One forward of the network, through its wrapper for many processes where there is a gradient."""
        if torch.is_grad_enabled():
            return self.module(work)
        out = self.net(work)
        if self.ranks.is_sharded:
            reshard(self.net)
        return out

    def decode(self, tokens: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def tokens_given(self, text: str, prompt: Prompt) -> list[int]:
        """The tokens of a completion that is given, with the one that ends it; ValueError for one it may not hold."""
        return tokens_of(text, prompt.id, self.tokenizer, self.eos_token_ids[0], self.banned)

    def prefetch(self, prompts: Iterable[Prompt]) -> None:
        self.encode.prefetch(prompts)

    def unreadable(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        return self.encode.unreadable(prompts)

    @property
    def prefetches(self) -> bool:
        return self.encode.videos.used or self.encode.pictures.used

    def _write(self, chunks: Sequence[Sequence[CompletionRow]], prompts: PromptCache, sampling: Sampling) -> list[int]:
        """Draw chunks of rows of one temperature; returns the versions of the weights that wrote. Without rows, keep step."""
        written = self.generator.write_all(part_of(rows, prompts, sampling, self) for rows in chunks)
        versions = list[int]()
        for rows, completions in zip(chunks, written, strict=True):
            for i, row in enumerate(rows):
                row.say(completions, i, sampling.max_new_tokens - len(row.tokens))
            versions.append(completions.weights_version if rows else self.weights.num_updates)
        return versions

    def evaluation(self, trace: TextTrace, shown: Sequence[Encoded], mask: Tensor, quantities: tuple[str, ...]) -> RowEvaluation:
        """The work of reading a compact trace whose prompts are shown as `shown`."""
        return evaluation_of(self.net, trace, shown, mask, quantities, self.config.logit_chunk)

    def shown(self, trace: TextTrace, view: str) -> Shown:
        """Compact rows, and their prompts under a view."""
        rows = replace(trace.compact(), packed=self.reads_packed(trace), told=trace.told if view != "plain" else ())
        return show_rows(rows, lambda prompt, told: show(prompt, view, self.views, self.encode, told))

    def evaluate(
        self, trace: TextTrace, mask: Tensor, quantities: tuple[str, ...], view: str = "plain", target: Target | None = None
    ) -> dict[str, Float[Tensor, "n t"]]:
        """Quantities of completions behind their prompts under a view, with the weights that are in place."""
        if not quantities or (len(trace) == 0 and self.ranks.world == 1):
            return {name: torch.zeros(mask.shape) for name in quantities}
        (count, width), rows, chosen = mask.shape, trace, mask
        if count == 0:
            # Other processes wait for this one's forward and backward.
            (trace, mask), view = trace_of_nothing(self, trace.packed), "plain"
        work = self.evaluation(*self.shown(trace, view), mask, quantities)
        if target is not None and COMPARED & set(quantities):
            work = ComparedRows(**vars(work), other=self.teachers.other(target, rows.compact(), chosen))
        values = self.evaluator(RhythmEvaluation.of(work) if RHYTHM & set(quantities) else work)
        return {name: pad_actions(value.cpu(), max(1, width))[:count, :width] for name, value in values.items()}


def at_temperature(sampling: Sampling, rows: Sequence[CompletionRow]) -> Sampling:
    """The settings for rows of one temperature, which may differ from the run's."""
    if not rows:
        return sampling
    tempering = rows[0].request.tempering
    sampling = sampling if tempering.temperature is None else replace(sampling, temperature=tempering.temperature)
    return sampling if tempering.rule is None else HotSampling(**vars(sampling), rule=tempering.rule)


def part_of(rows: Sequence[CompletionRow], prompts: PromptCache, sampling: Sampling, policy: TextPolicy) -> Part:
    """The question to the generator for these rows."""
    used = sorted({(row.shown, row.request.view, tuple(row.tokens)) for row in rows})
    place = {key: i for i, key in enumerate(used)}
    shown = [prompts[i] if view == "plain" else show(prompts[i], view, policy.views, policy.encode) for i, view, _ in used]
    return (
        [append(prompt, begun) if begun else prompt for prompt, (_, _, begun) in zip(shown, used, strict=True)],
        [place[row.shown, row.request.view, tuple(row.tokens)] for row in rows],
        [(row.request.seed, row.index) for row in rows],
        at_temperature(sampling, rows),
    )


def by_turns(rows: Sequence[CompletionRow], worlds: Worlds | None) -> tuple[list[CompletionRow], list[CompletionRow]]:
    """The rows that are one turn, and those that a world answers."""
    alone = [worlds is None or row.request.turns == 1 or row.request.role == "note" for row in rows]
    both = list(zip(rows, alone, strict=True))
    return [row for row, is_alone in both if is_alone], [row for row, is_alone in both if not is_alone]


def split_rows(rows: Sequence[CompletionRow], size: int, prompts: PromptCache | None) -> list[Sequence[CompletionRow]]:
    """Rows of one temperature, or one rule, `size` at a time; those at the run's own first.

    Of several chunks those with the longest prompts come first, if known by then, so that rows need little padding.
    """
    chunks: list[Sequence[CompletionRow]] = []
    for tempering in dict.fromkeys([Tempering(), *(row.request.tempering for row in rows)]):
        alike = [row for row in rows if row.request.tempering == tempering]
        if len(alike) > size and prompts is not None:
            alike.sort(key=lambda row: -(len(prompts[row.shown]) + len(row.tokens)))
        chunks += [alike[start : start + size] for start in range(0, len(alike), size)]
    return chunks


def packs_episodes(family: Family, config: TextPolicyConfig, worlds: Worlds | None) -> bool:
    """May rows be read packed as far as pictures within them go? Masks of a packed row that show pictures in both directions know
    of those of prompts alone.

    Raises:
        ValueError: the config asks for what may not be.
    """
    if worlds is None or not family.looks_both_ways:
        return True
    if config.prefix == "packed":
        raise ValueError(
            f"policy.prefix is 'packed', and {family.config.model_type} cannot read the pictures of [environment] so: "
            "set policy.prefix = 'auto' or 'repeated'"
        )
    return False
