"""Facts that hold for every model of a family of generators, before any is loaded."""

from dataclasses import dataclass
from typing import ClassVar, Literal

EULER = "FlowMatchEulerDiscreteScheduler"


@dataclass(frozen=True)
class FamilyFacts:
    """The facts of a family, with the answers most of them share: class variables, which `FlowFamily` and its subclasses set."""

    networks: ClassVar[tuple[str, ...]] = ("transformer",)
    """The pipeline's names of what trains; a pipeline may have the first ones only."""
    schedulers: ClassVar[frozenset[str]] = frozenset({EULER})
    """Classes of the pipeline's scheduler whose steps are those taken here."""
    left_out: ClassVar[frozenset[str]] = frozenset()
    """Parts of the pipeline that are not loaded."""
    sources: ClassVar[tuple[int, int]] = (0, 0)
    """Fewest and most pictures in a prompt."""
    source_step: ClassVar[int] = 1
    """Pixels to a multiple of which the sides of a prompt's pictures are rounded, beside those of a token."""
    packed: ClassVar[bool] = True
    """Does the transformer take a token for every `patch` x `patch` latents? False: latents as they are."""
    source_least: ClassVar[int] = 1
    """The shortest side of a prompt's pictures that the model's processor takes."""
    usual_guidance: ClassVar[float]
    """Guidance of a run that names none; 1 = without."""
    usual_prompt_tokens: ClassVar[int]
    """Tokens that the long text encoder takes where a run says nothing."""
    lora_targets: ClassVar[tuple[str, ...]]
    """Linear layers of the transformer that adapters sit on with policy.lora.targets = "auto"."""
    text_width: ClassVar[str] = "joint_attention_dim"
    """What the transformer's config calls the width of a token's embedding."""
    lists_steps: ClassVar[bool] = True
    """Does its pipeline list even steps, which the scheduler shifts? False: the scheduler lists them."""
    guided_by: ClassVar[Literal["guidance_scale", "true_cfg_scale", ""]] = ""
    """The argument of its pipeline for a second pass; "": the pipeline does not take an evaluation's sigmas."""
    guided_from: ClassVar[float] = 0.0
    """Our guidance where that argument is 0: 1 of a pipeline that adds so many times the difference to the conditional pass."""
    sums_alike: ClassVar[bool] = False
    """Does its pipeline compute a single prompt, in its usual way, in the same order as the policy?"""
    empty_prompt: ClassVar[str] = ""
    """The text that stands for no prompt in guidance."""
    dead_ends: ClassVar[tuple[str, ...]] = ()
    """Modules of the last block that lead nowhere; training them is of no use, and wrappers wait for their gradients in vain."""
    idle_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of every block that nothing here asks; they do not train either."""
    told_by: ClassVar[tuple[str, ...]] = ()
    """Parts whose config files tell sizes, besides the networks that train, the autoencoder and the scheduler."""
    own_negatives: ClassVar[bool] = False
    """Each condition holds what guidance leads away from; see `negative`."""
    one_length: ClassVar[bool] = False
    """Prompts of different length have forwards of their own: padding between them would change what is drawn."""
    keep_norm: ClassVar[bool] = False
    """Guided velocities keep the norm of the conditional one."""
    draws_clips: ClassVar[bool] = False
    """May policy.frames be above 1?"""
    draws_sound: ClassVar[bool] = False
    """Does it draw sounds of policy.seconds?"""
    sound_beside: ClassVar[bool] = False
    """Are its clips drawn with a sound, which policy.sound decodes?"""

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Elements of each of several latents that are one vector, end to end: a log-probability is the mean of theirs."""
        return ()

    @property
    def rate(self) -> int | None:
        """Samples per second of sounds."""
        return None

    @property
    def embeds_guidance(self) -> bool:
        """Does the transformer take the guidance as an input, so that one forward is enough?"""
        return False

    @property
    def boundary(self) -> float | None:
        """The time below which the second network draws, 1000 = noise; None: one network for all times."""
        return None

    @property
    def is_distilled(self) -> bool:
        """Was it distilled, as far as is known, to draw in a few steps?"""
        return False
