"""Settings of policies that draw by tokens: a plain frozen dataclass, validated at the file boundary."""

from dataclasses import dataclass, field, replace
from typing import Literal

from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.prompt.templates import QUESTION
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.runtime.ranges import Count, Factor, Large, check_ranges

PROMPT, PLAN = "{prompt}", "{plan}"
ALIKE = ("model", "dtype", "lora", "gradient_checkpointing", "rollout_rows", "logit_chunk", "attn_implementation", "copies_on")
"""Settings that mean the same of a policy that writes."""
ASK = (
    f'A picture will be drawn of this: "{PROMPT}". Describe it in 50 words at most: each thing that is named, and its number, '
    "colour, shape and place where they are said. Add nothing, and write the description alone."
)


@dataclass(frozen=True)
class PlanSettings:
    """Text that the model writes before it draws: both are one sample, under one reward (arXiv:2505.00703)."""

    max_new_tokens: Count = 128
    """Most tokens of a plan; one that is cut there is drawn all the same, and its sample counts as truncated."""
    ask: str = ASK
    """What the model is asked when it plans, with {prompt} in it."""
    draw: str = f"{PROMPT}. {PLAN}"
    """What it is asked to draw, with {prompt} and {plan} in it."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, marks in (("ask", (PROMPT,)), ("draw", (PROMPT, PLAN))):
            if any(getattr(self, name).count(mark) != 1 for mark in marks):
                raise ValueError(f"policy.plan.{name} is {getattr(self, name)!r}: write {' and '.join(marks)} in it, once")


@dataclass(frozen=True)
class CodePolicyConfig:
    """A model that draws by tokens, how it is trained and how it samples."""

    model: str
    """A folder, or a name on the Hugging Face hub."""
    guidance: Factor = 5.0
    """Guidance in sampling, training and evaluation, the logits being u + guidance (c - u) with the prompt (c) and without its
    words (u); 1 = none, which halves the work."""
    plan: PlanSettings | None = None
    """Text that the model writes first, without guidance, and draws from; None: it draws at once."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: full fine-tuning keeps float32 master weights and computes in bfloat16; with LoRA only adapters are float32."""
    lora: LoraSettings | None = None
    """None: the language model trains, with embeddings and heads; what sees and decodes pictures never does, nor does the head
    of text without a plan."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    sampling: Sampling = field(default_factory=Sampling)
    """How codes are drawn while training. A picture has as many as the model says, so max_new_tokens and stop are left out."""
    max_prompt_tokens: Count | None = None
    """A longer prompt is an error; None: as many as the model has positions for, beside the codes."""
    rollout_rows: Count = 128
    """Pictures written side by side; guidance doubles them. Samples do not depend on it."""
    decode_rows: Count = 16
    """Pictures made of codes at the same time."""
    logit_chunk: Large = 2**26
    """Logits that exist at the same time; guidance doubles them."""
    attn_implementation: str | None = None
    """Kernel of attention by transformers' name (sdpa, eager, flash_attention_2); None: its own choice."""
    copies_on: Literal["device", "cpu"] = "device"
    """Where reference and averaged weights are kept while not in use; cpu: they leave a GPU's memory to the run."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_sampling(self.sampling, "policy.sampling")

    @property
    def plan_tokens(self) -> int:
        """Tokens of a plan at most."""
        return 0 if self.plan is None else self.plan.max_new_tokens

    def as_text(self, codes: int, longest: int) -> TextPolicyConfig:
        """The settings of the text policy that writes a plan, if any, and codes, behind prompts of at most `longest` tokens."""
        return TextPolicyConfig(
            **{name: getattr(self, name) for name in ALIKE},
            freeze=("vision", "projector"),
            prefix="repeated",
            sampling=replace(self.sampling, max_new_tokens=self.plan_tokens + codes),
            answer_format="none" if self.plan is None else self.plan.ask.replace(PROMPT, QUESTION),
            max_prompt_tokens=longest if self.max_prompt_tokens is None else min(self.max_prompt_tokens, longest),
            vision_cache_mib=0,
        )


def check_sampling(sampling: Sampling, place: str) -> None:
    """Raise ValueError for settings of where a completion ends, which a picture does after its last code."""
    for name in ("max_new_tokens", "stop"):
        if getattr(sampling, name) != getattr(Sampling(), name):
            raise ValueError(
                f"{place}.{name} is {getattr(sampling, name)!r}, and a picture ends after its last code: leave it out"
            )
