"""Settings of the text policy: plain frozen dataclasses, validated at the file boundary."""

from dataclasses import dataclass
from typing import Literal

BoxSpaceSetting = Literal["auto", "pixel", "resized", "norm1000", "norm1"]


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn: temperature first, then the filters top_k, top_p and min_p in this order."""

    temperature: float = 1.0
    """0 = greedy."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this probability in all; 1 = all."""
    top_k: int = 0
    """Keep so many tokens; 0 = all."""
    min_p: float = 0.0
    """Keep tokens at least this likely, relative to the most likely one."""
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    """A completion ends when its text holds one of these; the text of the stop stays in the completion."""

    def __post_init__(self) -> None:
        checks = {
            "temperature": (self.temperature >= 0, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "top_k": (self.top_k >= 0, "0 (all tokens) or more"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "stop": ("" not in self.stop, "without empty strings"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"sampling.{name} is {getattr(self, name)!r}: it must be {wanted}")


@dataclass(frozen=True)
class VideoSettings:
    """How clips become frames; what a prompt's `Video` says of fps, frames, start and end comes first."""

    fps: float = 2.0
    """Frames shown per second of a clip."""
    min_frames: int = 4
    """A short clip is shown at a higher rate; one with fewer frames than this is an error."""
    max_frames: int = 768
    """A long clip is shown at a lower rate."""
    min_pixels: int | None = None
    max_pixels: int | None = None
    """Qwen-VL: frames are resized to an area between these; unset = what the model's own processor says."""
    total_pixels: int | None = None
    """Qwen-VL: the frames of a clip together have at most this area; it comes before min_pixels."""
    backend: Literal["auto", "decord", "pyav"] = "auto"
    """Who decodes; auto = decord, and PyAV where decord is missing or cannot read the file."""
    cache_mb: int = 512
    """Decoded and resized frames kept, found again by the content of their file; 0 = none."""
    workers: int = 2
    """Processes that decode while the policy works; 0 = decode where it is needed."""
    timeout: float = 120.0
    """Seconds a worker may take for one clip; then it is killed, and training stops with an error."""

    def __post_init__(self) -> None:
        pixels = {name: getattr(self, name) for name in ("min_pixels", "max_pixels", "total_pixels")}
        checks = {
            "fps": (self.fps > 0, "more than 0"),
            "min_frames": (self.min_frames >= 1, "1 or more"),
            "max_frames": (self.max_frames >= self.min_frames, f"min_frames ({self.min_frames}) or more"),
            "cache_mb": (self.cache_mb >= 0, "0 (no cache) or more"),
            "workers": (self.workers >= 0, "0 (decode where it is needed) or more"),
            "timeout": (self.timeout > 0, "more than 0"),
            **{name: (value is None or value >= 1, "1 or more") for name, value in pixels.items()},
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"policy.video.{name} is {getattr(self, name)!r}: it must be {wanted}")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"policy.video.min_pixels ({self.min_pixels}) is larger than policy.video.max_pixels ({self.max_pixels}): "
                "lower one or raise the other"
            )


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters (arXiv:2106.09685) by peft; the model's own weights stay as they are."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    """Must stay 0: with dropout the same weights would give other log-probabilities at every reading."""
    targets: tuple[str, ...] | Literal["auto"] = "auto"
    """Names of linear layers; auto = all of the language model."""
    adapter: str | None = None
    """Folder of a saved adapter to start from; its own rank, alpha and targets then count."""

    def __post_init__(self) -> None:
        if self.dropout != 0:
            raise ValueError(
                f"policy.lora.dropout is {self.dropout}: log-probabilities must be the same at every reading, set it to 0"
            )
        if self.rank < 1:
            raise ValueError(f"policy.lora.rank is {self.rank}: it must be 1 or more")


@dataclass(frozen=True)
class TextPolicyConfig:
    """A vision-language model, how it is trained and how it samples."""

    model: str
    """A folder, or a name on the Hugging Face hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: full fine-tuning keeps float32 master weights and computes in bfloat16; with LoRA only adapters are float32."""
    lora: LoraSettings | None = None
    """None: all weights train."""
    freeze: tuple[str, ...] = ()
    """Parts that do not train: vision, projector, language, or layers:0-3 of the language model (both ends included)."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    prefix: Literal["auto", "shared", "repeated"] = "auto"
    """How prompts are read: once per prompt (shared) or once per row; auto shares unless gradient_checkpointing forbids it."""
    sampling: Sampling = Sampling()
    system_prompt: str = ""
    answer_format: str = "none"
    """none, direct, think, or a text with {question} in it."""
    box_space: BoxSpaceSetting = "auto"
    """How the model writes boxes; auto = as its makers say."""
    min_pixels: int | None = None
    max_pixels: int | None = None
    """Qwen-VL: pictures are resized to an area between these; frames of clips: see video."""
    video: VideoSettings = VideoSettings()
    max_prompt_tokens: int | None = None
    """A longer prompt is an error; nothing is ever cut."""
    rollout_rows: int = 512
    """Completions decoded side by side; more of them need more memory, fewer more time. Samples do not depend on it."""
    logit_chunk: int = 2**26
    """Logits that exist at the same time: 256 MiB in float32, some 440 positions of a vocabulary of 152,000."""
    trust_remote_code: bool = False
    """True: Python files of the model's repository run, with your rights; a warning says so."""
    attn_implementation: str | None = None

    def __post_init__(self) -> None:
        if self.prefix == "shared" and self.gradient_checkpointing:
            raise ValueError(
                "policy.prefix is 'shared', but gradient checkpointing throws away the cache that shares it: "
                "set policy.prefix = 'auto' or policy.gradient_checkpointing = false"
            )
        for name in ("rollout_rows", "logit_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.{name} is {getattr(self, name)}: it must be 1 or more")
