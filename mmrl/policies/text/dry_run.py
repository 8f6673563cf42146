"""A text policy that goes through all motions of a run without its weights: it counts what a model would be asked, and how much.

Prompts are read by the model's own processor, completions have a length that is told, and every value is 0.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.protocols import View
from mmrl.policies.shared.call_log import Diary, Unexamined, with_gradients
from mmrl.policies.shared.meta_models import KnownMasks, counting, pretended, size_of
from mmrl.policies.text import loading
from mmrl.policies.text.encode import PromptBatch
from mmrl.policies.text.evaluate import Score
from mmrl.policies.text.families import Family, family_of
from mmrl.policies.text.generate import Completions, Job, draw
from mmrl.policies.text.loading import Loaded
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import TextPolicyConfig

JOINED = "flash_pretended"
"""To towers that cut pictures into windows, a name with flash means: one call, told where windows begin."""


def pretended_load(config: TextPolicyConfig) -> Loaded:
    """What `loading.load` gives, without weights: it needs the files of the config and of the processor alone.

    Raises:
        FileNotFoundError: neither a folder nor a model whose config the hub gave, or no processor.
        ValueError: a model that takes no pictures, or of which nothing would train.
    """
    model, family = pretended_model(config)
    processor = load_processor(config, family)
    return Loaded(model, processor, family, None, loading.stop_tokens(model, processor.tokenizer))


def pretended_model(config: TextPolicyConfig) -> tuple[Any, Family]:
    """The model as `loading.load` prepares it, without weights, from its config.json.

    Raises:
        FileNotFoundError: neither a folder nor a model whose config the hub gave.
        ValueError: a model that takes no pictures, or of which nothing would train.
    """
    from transformers import AutoModelForImageTextToText

    model_config = loading.load_config(config)
    family = family_of(model_config)
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    if config.attn_implementation:
        options["attn_implementation"] = config.attn_implementation
    half = config.dtype == "bfloat16" and config.lora is not None
    options["dtype"] = torch.bfloat16 if half else torch.float32
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(model_config, **options)
        loading.switch_off_dropout(model)
        if config.lora is not None:
            loading.add_adapter(model, family, replace(config.lora, adapter=None))
    loading.freeze(model, family, config.freeze)
    if config.gradient_checkpointing:
        # Renamed within transformers 5.
        renamed = hasattr(model, "activation_checkpointing_enable")
        enable = model.activation_checkpointing_enable if renamed else model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    join_windows(model)
    pretended(model)
    return model.eval(), family


def join_windows(model: nn.Module) -> None:
    """Let a vision tower look through all of its windows at once: as many bytes, and not a call for every window.

    Only where attention takes memory that grows with the positions, not with their square.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for part in model.modules():
        config: Any = getattr(part, "config", None)
        told = "cu_seqlens" in inspect.signature(part.forward).parameters
        if told and getattr(config, "_attn_implementation", None) == "sdpa":
            ALL_ATTENTION_FUNCTIONS.register(JOINED, joined)
            config._attn_implementation_internal = JOINED


def joined(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, scaling: float, **__: Any) -> tuple[Tensor, None]:
    """Attention over everything: bytes are those of attention inside windows, values are not."""
    seen = nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    return seen.transpose(1, 2).contiguous(), None


class TextRehearsal(TextPolicy):
    """Answers every request with completions of `length` tokens and every reading with zeros.

    Raises:
        FileNotFoundError: no config or no processor of the model.
        ValueError: settings that contradict each other.
    """

    load = staticmethod(pretended_load)

    def __init__(
        self,
        config: TextPolicyConfig,
        shadows: Iterable[str] = (),
        views: Mapping[str, View] | None = None,
        length: int | None = None,
    ) -> None:
        self.nothing = nn.Parameter(torch.zeros(()))
        super().__init__(config, shadows, views=views)
        self.diagnostics: Any = Unexamined()
        self.length = config.sampling.max_new_tokens if length is None else length
        self.diary = Diary()

    def parameters(self) -> list[nn.Parameter]:
        return [self.nothing]

    def advance(self) -> None:
        """Nothing moves."""

    @property
    def network(self) -> nn.Module:
        """What trains, and what it is built on."""
        return self.net.model

    def beside(self) -> dict[str, int]:
        """Part -> bytes of further networks."""
        return {}

    def activations(self) -> dict[str, int]:
        """Phase -> most bytes that its largest piece of work keeps at a time, weights and their gradients apart."""
        found: dict[str, int] = {}
        with_gradients(self.network)
        for phase, (_, work) in self.diary.largest.items():
            with counting() as live:
                if phase == "rollout":
                    decode(work, self.net, self.length)
                else:
                    forward(work, self, with_gradient=phase == "update")
            found[phase] = live.peak
        return found

    def parts_of_activations(self) -> dict[str, int]:
        """What takes much of them: the cache of keys and values at the end of the rollout, logits that exist at one time."""
        found: dict[str, int] = {}
        if "rollout" in self.diary.largest:
            found["cache of keys and values at the end of the rollout"] = cache_size(self.diary.largest["rollout"][1], self)
        rows = [work.mask.sum() for phase, (_, work) in self.diary.largest.items() if phase != "rollout"]
        if rows:
            vocabulary = len(self.net.banned)
            found["logits that exist at one time"] = (
                4 * vocabulary * min(int(max(rows)), max(1, self.config.logit_chunk // vocabulary))
            )
        return found

    def _weights(self, model: str) -> AbstractContextManager[Any]:
        return nullcontext() if model == "policy" else torch.no_grad()

    def _run(self, work: Callable[[TextNet], Any]) -> Any:
        if isinstance(work, Job):
            return self._written(work)
        assert isinstance(work, Score)
        longest = work.tokens.shape[1]
        passes = 1 + (longest > 1) if work.shared else 1
        phase = "update" if torch.is_grad_enabled() else "read"
        self.diary.note(phase, work, passes, kinds_seen(self.family, work.prompts), len(work.prompt_index), fed(work))
        empty = torch.zeros(work.mask.shape)
        return {name: empty + 0.0 * self.nothing if torch.is_grad_enabled() else empty for name in work.quantities}

    def _written(self, job: Job) -> Completions:
        n, length = len(job.prompt_index), min(self.length, job.sampling.max_new_tokens)
        prompt_positions = job.prompts.token_ids.numel()
        seen = kinds_seen(self.family, job.prompts)
        self.diary.note("rollout", job, length, seen, n, prompt_positions + n * (length - 1))
        ids = torch.full((n, length), ord("a"))
        stopped = torch.full((n,), length < job.sampling.max_new_tokens)
        return Completions(ids, torch.zeros(n, length), torch.full((n,), length), stopped)


def fed(work: Score) -> int:
    """Tokens that a forward is fed, padding included; the last one of a completion predicts nothing."""
    rows, longest = work.tokens.shape
    prompts, length = work.prompts.token_ids.shape
    return (prompts if work.shared else rows) * length + rows * (longest - 1)


def kinds_seen(family: Family, prompts: PromptBatch) -> int:
    """The vision tower is called once for the pictures and once for the clips of a batch."""
    return len({kind for media in prompts.media for kind in family.kinds(media)})


def load_processor(config: TextPolicyConfig, family: Family) -> Any:
    """The model's processor: tokens and sizes of pictures come from it.

    Raises:
        FileNotFoundError: there is none.
    """
    from transformers import AutoProcessor

    try:
        with loading.refusing_code(config.model):
            processor = AutoProcessor.from_pretrained(config.model, trust_remote_code=config.trust_remote_code)
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


def forward(work: Score, policy: TextRehearsal, with_gradient: bool) -> None:
    """One evaluation, and the backward pass that follows it."""
    net = policy.net
    net.train(with_gradient and policy.config.gradient_checkpointing)
    try:
        with torch.set_grad_enabled(with_gradient):
            values = net(work)
            if with_gradient:
                torch.stack([value.sum() for value in values.values()]).sum().backward()
    finally:
        net.eval()


@torch.no_grad()
def decode(job: Job, net: TextNet, length: int) -> Tensor:
    """Read the prompts, and write the last token of completions of this length."""
    index, n = job.prompt_index, len(job.prompt_index)

    def work(net: TextNet) -> Tensor:
        last, cache = net.prefill(job.prompts)
        cache.reorder_cache(index)
        hidden = last[index]
        if length > 1:
            grow(cache, length - 2)
            attention = torch.nn.functional.pad(job.prompts.attention[index], (0, length - 1), value=1)
            positions = job.prompts.next_positions[:, index] + length - 2
            hidden = net.extend(cache, torch.zeros(n, 1, dtype=torch.long), positions, attention)[:, -1]
        logits = net.logits(hidden, torch.ones(n))
        return draw(logits, torch.rand(n), job.sampling)[0]

    return net(work)


def cache_size(job: Job, policy: TextRehearsal) -> int:
    """Bytes of keys and values of all rows, in the types that the model caches."""

    def work(net: TextNet) -> int:
        _, cache = net.prefill(job.prompts)
        cache.reorder_cache(job.prompt_index)
        grow(cache, policy.length - 1)
        return sum(size_of([layer.keys, layer.values]) for layer in cache.layers)

    with torch.no_grad(), KnownMasks():
        return policy.net(work)


def grow(cache: Any, count: int) -> None:
    """Remember `count` more tokens of every row, as if they had been decoded."""
    layers: list[Any] = cache.layers if count > 0 else []
    for i, layer in enumerate(layers):
        shape = (*layer.keys.shape[:2], count, layer.keys.shape[-1])
        value_shape = (*layer.values.shape[:2], count, layer.values.shape[-1])
        cache.update(layer.keys.new_zeros(shape), layer.values.new_zeros(value_shape), i)
