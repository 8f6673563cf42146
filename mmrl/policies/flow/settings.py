"""Settings of the image-generator policy: a plain frozen dataclass, validated at the file boundary."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.policies.shared.compiled import refuse_computed_twice
from mmrl.policies.shared.lora import LoraSettings, check_teachers
from mmrl.policies.shared.quantized.load import Quantized, refuse_idle
from mmrl.runtime.pictures import Fit
from mmrl.runtime.ranges import Count, CountOrNone, Factor, Large, Positive, Range, check_ranges

SINGLE = ".safetensors"
"""The end of the name of a file that holds a whole generator, or its transformer."""
OWN_FAMILIES: dict[str, object] = {}
"""policy.family -> the class of a user's file, once the config that names it was read."""


@dataclass(frozen=True)
class FlowQuantizedSettings(Quantized):
    """Which weights of a generator rest in 4 bits with `policy.weights = "nf4"`: the linear layers of these parts."""

    parts: tuple[Literal["transformer", "text_encoders"], ...] = ("transformer",)
    """transformer: the network that trains adapters, or both of them; text_encoders: all that the pipeline has."""


@dataclass(frozen=True)
class TeacherSettings:
    """An adapter that knows how prompts of one kind are drawn: those whose column `teacher` holds its name."""

    name: str
    """As in the column `teacher` of prompts."""
    adapter: str
    """Folder of a saved adapter of the same model."""
    guidance: Factor | None = None
    """The guidance that it is read with; None: the policy's."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class FlowPolicyConfig:
    """A flow-matching pipeline of diffusers, how it is trained and what it draws."""

    model: str
    """A folder, a name on the Hugging Face hub, or one .safetensors file in its makers' layout (see `base`)."""
    height: Annotated[int, Range(1, 2**14, why="a picture and its activations are in memory")] = 512
    """Height of the images in pixels, in training and evaluation, for prompts without the columns width and height."""
    width: Annotated[int, Range(1, 2**14, why="a picture and its activations are in memory")] = 512
    """Width of the images in pixels; see height."""
    source_pixels: Large | None = None
    """For editors: the area in pixels at which the model sees the pictures of a prompt, in the shape of its output; None: the
    size of its output. Sides are rounded to what the model takes."""
    source_fit: Fit = "resize"
    """For editors: how a picture of another shape is fitted to that size. resize: stretched; crop: its middle; pad: all of it,
    with white on two sides."""
    frames: Annotated[int, Range(1, 2**12, why="a clip and its activations are in memory")] = 1
    """Frames of a clip, 1 = pictures; Wan draws 4k + 1 of them (5, 33, 81), and a single one as a picture."""
    fps: Positive | None = None
    """Frames per second at which clips are shown and rewarded; None = as the model was trained (Wan 16, Wan 2.2 5B 24)."""
    seconds: Annotated[float, Range(above=0, high=3600, why="a sound and its activations are in memory")] | None = None
    """Length of the sounds that a model of sounds draws; None for all others."""
    sound: bool = False
    """True: clips come with their sound (LTX-2), for rewards, samples and reports. False: it is drawn and not decoded."""
    guidance: Factor | None = None
    """Guidance in sampling, training and evaluation; 1 = none; None = the family's usual value."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: full fine-tuning keeps float32 master weights and computes in bfloat16; with LoRA only adapters are float32.
    Latents, steps and log-probabilities are always float32."""
    lora: LoraSettings | None = None
    """None: all weights of the transformer train. targets = auto are the layers the family's papers adapt."""
    teachers: tuple[TeacherSettings, ...] = ()
    """Adapters beside policy.lora, for objectives that read the model `teacher` (diffusion_opd)."""
    weights: Literal["float", "nf4"] = "float"
    """nf4: linear layers rest in 4 bits (arXiv:2305.14314), .52 bytes a weight in place of 2, and adapters train beside them;
    needs policy.lora."""
    quantized: FlowQuantizedSettings = FlowQuantizedSettings()
    """What rests in 4 bits with weights = "nf4"."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    compile: bool = False
    """Compile the network's blocks, for sampling and training: the first steps take minutes more, later ones less time."""
    max_prompt_tokens: CountOrNone | None = None
    """Most tokens for the long text encoder (T5, Qwen); None = as in the family's pipeline. SD3 without T5 gets this number of
    empty ones, as in its pipeline."""
    forward_rows: Count = 16
    """Most latents in one forward, in sampling and training; guidance doubles them. For prompts with another size, the number
    with the same tokens."""
    equal_forwards: bool = False
    """Fill every forward up to forward_rows and every prompt to max_prompt_tokens, so that sampling and training run the same
    kernels: in bfloat16 ratios then start much nearer to 1."""
    decode_rows: Count = 16
    """Images decoded at the same time; every frame of a clip counts, and at least one clip is decoded at a time."""
    vae_slicing: bool = False
    """Decode images one by one."""
    vae_tiling: bool = False
    """Decode images in tiles: large ones need less memory, but seams may show."""
    vae_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the autoencoder: bfloat16 halves its memory and time, and rounds pixels by about one step of 256."""
    cached_prompts: Count = 256
    """Number of prompts whose embeddings are kept in memory, the most recently used ones."""
    copies_on: Literal["device", "cpu"] = "device"
    """Where reference and averaged weights are kept while not in use. cpu: they leave a GPU's memory to the run, and are copied
    there and back for every reading."""
    embeddings: Literal["auto", "disk", "memory"] = "auto"
    """disk: embeddings of prompts are kept in mmrl's cache for later runs (mmrl cache ls); auto: the same if the text encoders
    have over 20 million weights."""
    rest_text_encoders: bool = False
    """True: text encoders stay in the CPU's memory and move to the GPU only while prompts are encoded."""
    attention_backend: str | None = None
    """Kernel of the transformer's attention by diffusers' name (native, flash, _native_cudnn, ...); None: diffusers' own choice.
    Stable Diffusion 3 always uses torch's own."""
    guidance_rule: Literal["family", "plain", "norm", "cap", "zero_star"] = "family"
    """How both passes are joined. plain: their difference times the guidance; norm: that, kept at the conditional pass's norm;
    cap: no longer than that pass over the whole latent (Z-Image's cfg_normalization); zero_star: the pass without the prompt is
    first scaled to fit the other (CFG-Zero*); family: as the pipeline does."""
    guidance_low: Factor | None = None
    """Guidance of a model's second network (Wan 2.2 A14B), which takes over below a certain time; None: as `guidance`."""
    guidance_sound: Factor | None = None
    """Guidance of the sound of clips (LTX-2), wherever that of the clip is not 1; None: 7."""
    family: str | None = None
    """Your own class for pipelines that mmrl does not know, such as "./mine.py:Mine"; None: mmrl's for the pipeline."""
    tf32: bool = False
    """Matrix products of float32 in TF32 on NVIDIA GPUs: faster, with about 3 digits; only for dtype = float32."""
    base: str | None = None
    """With one .safetensors file: folder or hub name of the pipeline that it belongs to, whose configs are read, and the weights
    that the file lacks; None: the one that diffusers knows for such a file, if it was downloaded before."""
    variant: str | None = None
    """Weights with this word in their files' names (diffusers' `variant`), such as fp16; parts without such files take the plain
    ones. None: the plain ones."""

    @property
    def rows_per_decode(self) -> int:
        """Images or clips decoded at the same time."""
        return max(1, self.decode_rows // self.frames)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_file(self.model, self.base, self.variant)
        if self.tf32 and self.dtype != "float32":
            raise ValueError(f"policy.tf32 acts on float32 alone, but policy.dtype is {self.dtype!r}: leave policy.tf32 out")
        check_teachers([one.name for one in self.teachers], bool(self.teachers), self.lora)
        refuse_computed_twice(self.compile, self.gradient_checkpointing)
        refuse_idle(self.weights, self.quantized, FlowQuantizedSettings(), self.lora)
        if self.weights != "float" and self.model.endswith(SINGLE):
            raise ValueError(
                f'policy.weights is "nf4", and policy.model {self.model!r} is one file, whose weights are renamed as they load: '
                "give the folder of the pipeline"
            )


def check_file(model: str, base: str | None, variant: str | None) -> None:
    """Raise ValueError for a model in one file of another kind, and for settings that go with another kind of model."""
    if model.endswith((".ckpt", ".pt", ".pth", ".bin")):
        raise ValueError(f"policy.model {model!r} is a pickle, which may run code when it is read: save it as {SINGLE}")
    if model.endswith(".gguf"):
        raise ValueError(f"policy.model {model!r} holds quantised weights, which do not train here: take a {SINGLE} file")
    if base is not None and not model.endswith(SINGLE):
        raise ValueError(f"policy.base is {base!r}, which goes with one {SINGLE} file, not with {model!r}: leave it out")
    if variant is not None and model.endswith(SINGLE):
        raise ValueError(f"policy.variant is {variant!r}, and policy.model {model!r} is one file, which has none: leave it out")
