"""Settings of the image-generator policy: a plain frozen dataclass, validated at the file boundary."""

from dataclasses import dataclass
from typing import Literal

from mmrl.answers.sources import Fit
from mmrl.core.ranges import Count, CountOrNone, Factor, Positive, check_ranges
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.tf32 import check_tf32

OWN_FAMILIES: dict[str, object] = {}
"""policy.family -> the class of a user's file, once the config that names it was read."""


@dataclass(frozen=True)
class FlowPolicyConfig:
    """A flow-matching pipeline of diffusers, how it is trained and what it draws."""

    model: str
    """A folder, or a name on the Hugging Face hub."""
    height: Count = 512
    """Height of the images in pixels, while training and while evaluating, of prompts whose columns width and height name no
    size of their own."""
    width: Count = 512
    """Width of the images in pixels; see height."""
    source_pixels: Count | None = None
    """Of editors: the area at which the model sees the pictures of a prompt, in pixels, in the shape of those that it draws;
    None: their size. Sides are rounded to what the model takes."""
    source_fit: Fit = "resize"
    """Of editors: how a picture of another shape comes to that size. resize: stretched; crop: its middle; pad: all of it, with
    white at two sides."""
    frames: Count = 1
    """Frames of a clip, 1 = pictures; Wan draws 4k + 1 of them (5, 33, 81), and a single one as a picture."""
    fps: Positive | None = None
    """Frames per second at which clips are shown and rewarded; None = as the model was taught (Wan 16, Wan 2.2 5B 24)."""
    guidance: Factor | None = None
    """1 = none; None = the family's usual one. Sampling, training and evaluation all use it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: full fine-tuning keeps float32 master weights and computes in bfloat16; with LoRA only adapters are float32.
    Latents, steps and log-probabilities are float32 always."""
    lora: LoraSettings | None = None
    """None: all weights of the transformer train. targets = auto are the layers the family's papers adapt."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    max_prompt_tokens: CountOrNone | None = None
    """Tokens that the long text encoder takes (T5, Qwen); None = as the family's pipeline. SD3 without T5 gets so many empty
    ones, as its pipeline gives it."""
    forward_rows: Count = 16
    """Most latents in one forward, while sampling and while training; guidance doubles them. Of prompts with a size of their own
    as many as have as many tokens."""
    equal_forwards: bool = False
    """Fill every forward up to forward_rows and every prompt to max_prompt_tokens, so that sampling and training run the same
    kernels: in bfloat16 ratios then start much nearer to 1."""
    decode_rows: Count = 16
    """Images decoded side by side; a clip counts as all its frames, and one at least is decoded at a time."""
    vae_slicing: bool = False
    """Decode them one by one."""
    vae_tiling: bool = False
    """Decode them in tiles: large images need less memory, and seams may show."""
    vae_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the autoencoder: bfloat16 halves its memory and time, and rounds pixels by about one step of 256."""
    cached_prompts: Count = 256
    """Prompts whose embeddings are kept in memory, the latest used."""
    copies_on: Literal["device", "cpu"] = "device"
    """Where reference and averaged weights are kept while not in use. cpu: they leave a GPU's memory to the run, and are copied
    there and back for every reading."""
    embeddings: Literal["auto", "disk", "memory"] = "auto"
    """disk: embeddings of prompts are kept in mmrl's cache for later runs (mmrl cache ls); auto: where the text encoders
    have over 20 million weights."""
    rest_text_encoders: bool = False
    """True: text encoders rest in the CPU's memory and come to the GPU only while prompts are encoded."""
    attention_backend: str | None = None
    """Kernel of the transformer's attention by diffusers' name (native, flash, _native_cudnn, ...); None: diffusers' own choice.
    Stable Diffusion 3 always takes torch's own."""
    guidance_rule: Literal["family", "plain", "norm", "cap", "zero_star"] = "family"
    """How both passes are joined. plain: their difference times the guidance; norm: that, kept at the conditional pass's norm;
    cap: no longer than that pass over the whole latent (Z-Image's cfg_normalization); zero_star: the pass without the prompt is
    first scaled to fit the other (CFG-Zero*); family: as the pipeline does."""
    guidance_low: Factor | None = None
    """Guidance below the time at which a model's second network takes over (Wan 2.2 A14B); None: as above it."""
    family: str | None = None
    """Your own class for pipelines that mmrl does not know, such as "./mine.py:Mine"; None: mmrl's for the pipeline."""
    tf32: bool = False
    """Matrix products of float32 in TF32 on NVIDIA GPUs: faster, with some 3 digits; for dtype = float32 alone."""

    @property
    def rows_per_decode(self) -> int:
        """Images or clips that are decoded side by side."""
        return max(1, self.decode_rows // self.frames)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_tf32(self.tf32, self.dtype)
