"""A vision-language model as a policy: samples completions of prompts with pictures, and evaluates them again exactly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.protocols import State, View
from mmrl.core.ranks import Ranks
from mmrl.core.tensors import pad_actions
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts, Scope, Trace
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.sharding import reshard, wrapped
from mmrl.policies.shared.weights import Shadow, load_state, state_of, whole
from mmrl.policies.text.answer_tokens import ANSWERS, answer_mask
from mmrl.policies.text.clips import plan_of
from mmrl.policies.text.diagnose import TextDiagnostics
from mmrl.policies.text.encode import Encoded, Encoder, collate_prompts
from mmrl.policies.text.evaluate import QUANTITIES, score_of
from mmrl.policies.text.generate import Job, Stops
from mmrl.policies.text.loading import load, never_written
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.packing import pack
from mmrl.policies.text.rollout import PromptCache, Row, assemble, check_reading, check_requests, given_tokens, plan, texts_of
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.policies.text.trace import TextTrace, join, of_nothing
from mmrl.policies.video.input import VideoInput
from mmrl.policies.video.settings import VideoSettings

__all__ = ["LoraSettings", "Sampling", "TextPolicy", "TextPolicyConfig", "TextTrace", "VideoSettings"]
T = TypeVar("T")
SHADOWS = frozenset({"ref", "ema"})


class TextPolicy:
    """Any image-text-to-text model of transformers. An action is a token of the completion.

    Rollouts and readings are on the CPU whatever the device of the model. Readings under the live weights carry a gradient
    where gradients are on; readings under a shadow never do.

    Raises:
        FileNotFoundError: no such model, adapter or picture.
        ValueError: a model without picture input, unknown shadows, or settings that contradict each other.
    """

    offers = QUANTITIES | {ANSWERS}
    load = staticmethod(load)

    def __init__(
        self,
        config: TextPolicyConfig,
        shadows: Iterable[str] = (),
        ema_decay: float = 0.99,
        views: Mapping[str, View] | None = None,
    ) -> None:
        wanted = frozenset(shadows)
        if wanted - SHADOWS:
            raise ValueError(f"a text policy keeps the shadows {sorted(SHADOWS)}, not {sorted(wanted - SHADOWS)}")
        self.config, self.ema_decay, self.views = config, ema_decay, dict(views or {})
        loaded = self.load(config)
        self.processor, self.family, self.adapter = loaded.processor, loaded.family, loaded.adapter
        self.tokenizer = loaded.processor.tokenizer
        self.eos_token_ids = loaded.eos_token_ids
        self.banned = never_written(loaded)
        self.media_token_ids = self.family.media_token_ids(self.tokenizer)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos_token_ids[0]
        self.net = TextNet(loaded.model, self.family, self.banned, pad, half=config.dtype == "bfloat16")
        self.module: nn.Module = self.net
        videos = VideoInput(config.video, plan_of(self.family, self.processor, config.video))
        self.encode = Encoder(self.processor, self.family, self.net.core, config, videos)
        self.ranks = Ranks()
        self.is_main = True
        self.diagnostics = TextDiagnostics(self)
        self._trainable = trainable(self.net)
        self._shadows = {name: self._shadow(name) for name in sorted(wanted)}

    @property
    def shadows(self) -> frozenset[str]:
        return frozenset(self._shadows)

    @property
    def box_space(self) -> str:
        """How the model writes boxes: pixel, resized, norm1000 or norm1.

        Raises:
            ValueError: the model's makers do not say and the config neither.
        """
        return known_space(self.family.box_space if self.config.box_space == "auto" else self.config.box_space, self.net.model)

    def parameters(self) -> list[nn.Parameter]:
        return [weight for _, weight in self._trainable]

    def advance(self) -> None:
        for shadow in self._shadows.values():
            shadow.follow()

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        """Completions of all requests; `sampling` is a Sampling that replaces the training one.

        Raises:
            ValueError: an unknown view or model, an injected request without text, or a prompt that cannot be encoded.
        """
        if not isinstance(sampling, Sampling | None):
            raise ValueError(f"a text policy samples with mmrl.policies.text.policy.Sampling, not with {type(sampling).__name__}")
        sampling = sampling or self.config.sampling
        check_requests(requests, self.shadows | {"policy"}, self._known_views)
        rows, prompts = plan(requests, self.encode)
        self.prefetch([request.prompt for request in requests])
        drawn = []
        for row in rows:
            if row.request.text is None:
                drawn.append(row)
            else:
                row.tokens = given_tokens(row.request, self.tokenizer, self.eos_token_ids[0], self.banned)
        for model in sorted(self.shadows | {"policy"}):
            chunks = cut([row for row in drawn if row.request.model == model], self.config.rollout_rows)
            chunks += [[]] * (self.ranks.forwards(len(chunks)) - len(chunks))
            if chunks:
                with self._weights(model):
                    for chunk in chunks:
                        self._write(chunk, prompts, sampling)
        return assemble(
            rows,
            texts_of(rows, self._decode, self.eos_token_ids),
            prompts,
            self.family,
            self.media_token_ids,
            sampling.temperature,
        )

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Bool[Tensor, "n t"]) -> dict[Reading, Tensor]:
        """Log-probabilities and entropies of the recorded tokens, (n, t) in float32; 0 where mask is False.

        `answer_mask` is 1 for tokens inside the last <answer>; `group_divergence` takes all rows for one group.

        Raises:
            ValueError: a quantity, model or view this policy does not have.
        """
        assert isinstance(trace, TextTrace)
        wanted: dict[tuple[str, str], list[Reading]] = {}
        for reading in readings:
            check_reading(reading, self.offers, frozenset({"policy", *self._shadows}), self._known_views)
            wanted.setdefault((reading.model, reading.view), []).append(reading)
        out: dict[Reading, Tensor] = {}
        for (model, view), asked in wanted.items():
            names = {reading.quantity for reading in asked}
            with self._weights(model):
                values = self._score(trace, mask, tuple(sorted(names - {ANSWERS})), view)
            if ANSWERS in names:
                values[ANSWERS] = answer_mask(trace, self._decode, mask.shape[1])
            out |= {reading: values[reading.quantity] for reading in asked}
        return out

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        """Parts of at most `micro_batch` positions, padding included; rows of a prompt stay together while they fit."""
        return pack(batch, micro_batch, scope, self._shares(torch.is_grad_enabled()))

    def join(self, traces: Sequence[Trace]) -> TextTrace:
        return join([trace for trace in traces if isinstance(trace, TextTrace)])

    def state_dict(self) -> State:
        """Trainable weights and shadows, whole and on the CPU. With sharded weights every process must call it."""
        return state_of(self._trainable, self._shadows)

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state belongs to other weights or shadows."""
        load_state(state, self._trainable, self._shadows)

    def save(self, folder: Path) -> None:
        """What transformers (full fine-tuning) or peft (LoRA) load, and the processor. Every process must call it."""
        prefix, saved = ("base_model.model.", self.adapter) if self.adapter is not None else ("", self.net.model)
        weights = {prefix + name: whole(weight) for name, weight in self.net.model.state_dict(keep_vars=True).items()}
        if self.is_main:
            saved.save_pretrained(folder, state_dict=weights)
            self.processor.save_pretrained(folder)

    def prepare(self, accelerator: Any) -> None:
        """Move to accelerate's device and wrap for its processes. Shadows start again from the weights as they are now."""
        # LLaVA, for one, never uses the last layer of its vision part.
        self.module = wrapped(self.net, self.parameters(), accelerator, dead_ends=self.config.lora is None)
        self.net = accelerator.unwrap_model(self.module)
        self.ranks = Ranks(accelerator)
        self.net.passes, self.net.stand_in = self.ranks.passes, self._stand_in.media if self.ranks.world > 1 else None
        self.is_main = accelerator.is_main_process
        self._trainable = trainable(self.net)
        self._shadows = {name: self._shadow(name) for name in self._shadows}

    @cached_property
    def _stand_in(self) -> Encoded:
        """What a process looks at while others have more to do than it has."""
        return self.encode(stand_in())

    def _shadow(self, name: str) -> Shadow:
        return Shadow.of(self.parameters(), decay=self.ema_decay if name == "ema" else None)

    def _weights(self, model: str) -> AbstractContextManager[Any]:
        if model == "policy":
            return nullcontext()
        reshard(self.net)
        return self._shadows[model].swapped_in()

    def _shares(self, grad: bool) -> bool:
        """Is every prompt read once? Checkpointing keeps no cache, so with a gradient it cannot share one."""
        return self.config.prefix != "repeated" and not (grad and self.config.gradient_checkpointing)

    def _run(self, work: Callable[[TextNet], T]) -> T:
        """One forward of the wrapped module; without a gradient, of the module itself."""
        if torch.is_grad_enabled():
            return self.module(work)
        out = self.net(work)
        reshard(self.net)
        return out

    def prefetch(self, prompts: Iterable[Prompt]) -> None:
        """Let workers decode the clips of prompts that will be rolled out soon; it waits for nothing."""
        self.encode.videos.ask(prompts)

    def unreadable(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        """Place -> what is wrong, of the prompts whose pictures or clips cannot be had."""
        self.prefetch(prompts)
        return self.encode.unreadable(prompts)

    @property
    def prefetches(self) -> bool:
        return self.encode.videos.used

    @property
    def _known_views(self) -> frozenset[str]:
        return frozenset({"plain", *self.views})

    def _shown(self, prompt: Encoded, view: str) -> Encoded:
        """The prompt under a view; drawn once, so a rollout and all readings see the same."""
        if view == "plain":
            return prompt
        if view not in prompt.views:
            assert prompt.prompt is not None
            prompt.views[view] = self.encode(self.views[view](prompt.prompt, prompt.seed), prompt.seed)
        return prompt.views[view]

    def _write(self, rows: Sequence[Row], prompts: PromptCache, sampling: Sampling) -> None:
        """Draw the completions of these rows; without rows, keep up with other processes that have some."""
        used = sorted({(row.prompt, row.request.view) for row in rows})
        place = {key: i for i, key in enumerate(used)}
        shown = [self._shown(prompts[i], view) for i, view in used] or [self._stand_in]
        job = Job(
            prompts=collate_prompts(shown, self.net.pad_token_id, self.net.device),
            prompt_index=torch.tensor([place[row.prompt, row.request.view] for row in rows] or [0]),
            seeds=[(row.request.seed, row.index) for row in rows] or [(0, 0)],
            sampling=sampling,
            stops=Stops(self.eos_token_ids, self._decode, sampling.stop),
            anyone=self.ranks.anyone,
            idle=not rows,
        )
        completions = self._run(job)
        for i, row in enumerate(rows):
            row.write(completions, i)

    def _decode(self, tokens: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _score(
        self, trace: TextTrace, mask: Bool[Tensor, "n t"], quantities: tuple[str, ...], view: str = "plain"
    ) -> dict[str, Float[Tensor, "n t"]]:
        if not quantities or (len(trace) == 0 and not self.ranks.world > 1):
            return {name: torch.zeros(mask.shape) for name in quantities}
        count, width = mask.shape
        if count == 0:
            # Other processes wait for this one's forward and backward.
            trace, view = of_nothing(trace, self._stand_in, self.eos_token_ids[0]), "plain"
            mask = torch.zeros(1, 1, dtype=torch.bool)
        trace, grad = trace.compact(), torch.is_grad_enabled()
        shown = [self._shown(prompt, view) for prompt in trace.prompts]
        # One token alone needs no forward after the prompt's, but other processes may make one.
        least, logits = 2 if self.ranks.is_sharded else 1, self.config.logit_chunk
        score = score_of(self.net, trace, shown, mask, quantities, shared=self._shares(grad), logits=logits, least=least)
        # Layers are checkpointed in training mode only; with every dropout off the two modes compute the same.
        self.net.train(grad and self.config.gradient_checkpointing)
        try:
            values = self._run(score)
        finally:
            self.net.eval()
        return {name: pad_actions(value.cpu(), max(1, width))[:count, :width] for name, value in values.items()}


def known_space(space: str | None, model: Any) -> str:
    """How boxes are written, if anybody says."""
    if space is None:
        raise ValueError(
            f"nobody says how {model.config.model_type} writes boxes: set policy.box_space to pixel, resized, norm1000 or norm1"
        )
    return space


def cut(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def stand_in() -> Prompt:
    """A prompt with a small grey picture."""
    from PIL import Image

    return Prompt("stand-in", media=(Image.new("RGB", (64, 64), (99, 99, 99)),))


def trainable(net: TextNet) -> list[tuple[str, nn.Parameter]]:
    """The weights that train, by their names in the model. Looked up once: while a forward runs, sharded ones are others."""
    return [(name, weight) for name, weight in net.model.named_parameters() if weight.requires_grad]
