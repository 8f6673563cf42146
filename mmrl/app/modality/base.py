"""A kind of policy as the app sees it: its settings, its part of [evaluation], how it is built and how its files load."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from PIL import Image
from torch import nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.episodes import Limits, Worlds
from mmrl.core.protocols import Policy, View
from mmrl.core.types import Prompt
from mmrl.flow.plan import NumSteps
from mmrl.policies.text.settings import Sampling
from mmrl.runtime.ranges import Factor, PositiveShare, Range, check_ranges
from mmrl.training.evaluate import EvaluationSettings, Variant, Weights

Settings = TypeVar("Settings")
"""`[policy]` of a modality."""
Model = TypeVar("Model", bound=Policy)
"""The policy that a modality builds."""

log = logging.getLogger("mmrl")

if TYPE_CHECKING:
    from mmrl.policies.shared.dry_run import DryRun
    from mmrl.policies.shared.workers.remote import SamplerSettings

ExportKind = Literal["whole", "adapter", "merged", "onto original"]
"""What an exported folder holds: the model whose weights all trained, an adapter, or the sum of model and adapter."""


@dataclass(frozen=True)
class VariantConfig:
    """One more way to answer the held-out prompts; its figures are eval/<name>/..."""

    name: str
    """Its metrics are eval/<name>/...; a name without a slash."""
    num_steps: NumSteps | None = None
    """Flow only; None: as evaluation.num_steps."""
    guidance: Factor | None = None
    """Flow only; None: as evaluation.guidance."""
    base_from: PositiveShare | None = None
    """Flow only: the weights from before training finish after this share of the steps; None: as evaluation.base_from."""
    weights: Weights | None = None
    """None: as evaluation.weights."""
    turns: Annotated[int, Range(1, 256)] | None = None
    """Text only: the most turns of an episode; 1: the model answers at once. None: as environment.limits.turns."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.name or "/" in self.name:
            raise ValueError(f"evaluation.also.name is {self.name!r}: give it a name without a slash")


@dataclass(frozen=True)
class EvaluationTable(EvaluationSettings):
    """How held-out prompts are answered: `[evaluation]` without its prompts and rewards."""

    sampling: Sampling | None = None
    """Text only: what differs from policy.sampling; temperature is 0 (greedy) unless given."""
    num_steps: NumSteps | None = None
    """Flow only: deterministic denoising steps of a picture; 28 unless given."""
    guidance: Factor | None = None
    """Flow only: 1 = none; None = policy.guidance."""
    base_from: PositiveShare | None = None
    """Flow only: the weights from before training finish pictures after this share of the steps (MixGRPO: 0.6); None: never."""
    also: tuple[VariantConfig, ...] = ()
    """Further ways to answer the same prompts, such as without guidance, or in one turn."""

    def __post_init__(self) -> None:
        check_ranges(self)
        names = [one.name for one in self.also]
        if len(set(names)) < len(names):
            raise ValueError(f"evaluation.also has the names {names}: give each its own")

    @property
    def weights_beside(self) -> frozenset[str]:
        """The weights that any way to answer needs beside the live ones."""
        mixed = any(one.base_from is not None for one in (self, *self.also))
        return frozenset(
            {self.weights, *(one.weights or self.weights for one in self.also), *(["ref"] if mixed else [])} - {"live"}
        )


@dataclass(frozen=True)
class PolicyNeeds:
    """Everything that a run keeps, shows and asks beside the weights of its policy."""

    shadows: frozenset[str]
    ema_decay: Callable[[int], float] | None = None
    """None: the usual one."""
    views: Mapping[str, View] = field(default_factory=dict[str, View])
    worlds: Worlds | None = None
    """Those that answer its turns; None: it takes one."""
    samplers: "SamplerSettings | None" = None
    """Processes that sample; None: it does itself."""
    limits: Limits | None = None
    """How far episodes go in a dry run, which opens no worlds; None: a sample is one turn."""


class Modality(ABC, Generic[Settings, Model]):
    """One kind of policy: its settings, and the policy that they make. What one does not say holds for models of tokens."""

    name: ClassVar[str]
    settings: type[Settings]
    evaluation_keys: ClassVar[tuple[str, ...]] = ("sampling",)
    """The keys of [evaluation] that belong to this kind alone; the first is the one to use."""
    output: ClassVar[str]
    """The kind of its samples, as far as the kind of policy tells: text or image."""
    has_turns: ClassVar[bool] = False
    """May a sample have several?"""
    index_file: ClassVar[str] = "config.json"
    """The file every model folder of this kind holds."""
    library: ClassVar[str] = "transformers"
    """Loads a whole exported model, as its card says."""
    adapter_library: ClassVar[str] = "peft"
    adapter_note: ClassVar[str] = "This needs the base model and `pip install peft`; to run without either, export with --merge."
    idle_columns: ClassVar[tuple[str, ...]]
    """Columns of data sets that look as if they set how a prompt is answered."""
    rates: ClassVar[tuple[float, float]] = (1e-5, 1e-6)
    """The usual learning rates: where adapters train, and where all weights do."""

    def output_of(self, policy: Settings) -> str:
        """The kind of samples that rewards of a policy see: text, image, video, sound or "video with sound", which is both."""
        return self.output

    def stand_ins(self, policy: Settings) -> tuple[object, object]:
        """Two different samples, as far as they can be told before the policy has drawn or written any."""
        return Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "black")

    @abstractmethod
    def evaluation_defaults(self, policy: Settings) -> dict[str, Any]:
        """The values that [evaluation] starts from, by key."""

    def eval_sampling(self, evaluation: EvaluationTable, one: VariantConfig | None = None) -> Any:
        """The sampling that Policy.rollout is given to evaluate, or to evaluate in one further way."""
        return evaluation.sampling

    def variants(self, evaluation: EvaluationTable) -> Sequence[Variant]:
        """Further ways to evaluate; ValueError for settings that this kind has none of."""
        turned = [one.name for one in evaluation.also if one.turns is not None]
        if turned and not self.has_turns:
            raise ValueError(f"evaluation.also {turned[0]!r} sets turns, and pictures are drawn in one go: leave it out")
        stepped = [one.name for one in evaluation.also if {one.num_steps, one.guidance, one.base_from} != {None}]
        if stepped and "num_steps" not in self.evaluation_keys:
            raise ValueError(
                f"evaluation.also {stepped[0]!r} sets num_steps, guidance or base_from, which image generators have: take turns "
                "or weights"
            )
        return [
            Variant(one.name, self.eval_sampling(evaluation, one), one.weights or evaluation.weights, one.turns)
            for one in evaluation.also
        ]

    @abstractmethod
    def check_prompts(self, policy: Settings, prompts: Sequence[Prompt]) -> None:
        """Look at prompts before weights are loaded.

        Raises FileNotFoundError without such a model, and ValueError for a prompt that this kind, or the model, cannot answer.
        """

    def check_plans(self, policy: Settings, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]) -> None:
        """Look, before weights are loaded, at the steps along which prompts are answered; ValueError for those not to be had."""
        self.variants(evaluation)

    def warn_after_load(
        self, policy: Model, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]
    ) -> None:
        """Warn, with the loaded model, of what will be cut or clipped; ValueError for what it cannot do."""
        warn_of_columns(prompts, self.idle_columns)

    @abstractmethod
    def adapt_algorithm(self, algorithm: Algorithm, policy: Settings, label: str, prompts: Sequence[Prompt] = ()) -> Algorithm:
        """The algorithm as this run uses it; ValueError if it is not for this kind of policy or these training prompts."""

    @abstractmethod
    def able(self, policy: Settings) -> tuple[type[Model], Set[str]]:
        """The class of the policy and the quantities that it will offer, as far as its settings tell."""

    def look_around(self, policy: Settings, algorithm: Algorithm, episodes: Limits | None = None) -> None:
        """Look, before anything is loaded, whether what the policy needs besides its model is there.

        `episodes`: how far those of several turns go. Raises ValueError where a server that samples or teaches cannot be started,
        does not answer, or is none for this policy.
        """

    @abstractmethod
    def build(self, policy: Settings, needs: PolicyNeeds) -> Model:
        """The policy; ValueError for worlds that this model cannot answer."""

    @abstractmethod
    def build_dry_run(self, policy: Settings, needs: PolicyNeeds) -> "DryRun":
        """A policy without weights that counts what it is asked; completions have max_new_tokens."""

    def box_space(self, policy: Settings) -> str | None:
        """How the model writes boxes, from its own config alone; None where its makers do not say, or it writes none."""
        return None

    def refuse_box_reward(self, reward: str) -> None:
        """ValueError where nothing can be read by a reward that reads boxes."""
        raise ValueError(
            f"reward {reward!r} reads boxes that a model wrote, but policy.kind is {self.name!r}, which draws pictures: "
            "take a reward of pictures such as jpeg_size"
        )

    def alone(self, policy: Settings, rows: int) -> Settings:
        """The settings with which a sample is the same to the bit whatever `rows` others are drawn beside it."""
        raise ValueError(f"policy.kind is {self.name!r}, which draws nothing: name a model that does")

    def parts(self, policy: Model) -> Sequence[nn.Module]:
        """All networks that draw or write, to be moved to a device."""
        return [policy.net]  # pyright: ignore[reportAttributeAccessIssue] - every policy of mmrl has one

    def tokens_read(self, policy: Model, text: str) -> tuple[int, int]:
        """How many tokens a prompt has, and how many of them the model reads."""
        return 0, 0

    def with_box_space(self, policy: Settings, space: str | None) -> Settings:
        """The settings with the space that was found."""
        return policy

    @abstractmethod
    def task(self, policy: Model) -> str:
        """The pipeline_tag that the Hugging Face hub has for a policy's model."""

    @abstractmethod
    def snippet(self, policy: Model, base: str, adapter: bool) -> Sequence[str]:
        """Python that loads the exported files of a policy, or of its adapter onto `base`."""

    @abstractmethod
    def template(self, policy: Model, evaluation: EvaluationTable) -> dict[str, object]:
        """The facts of prompt_template.json: what stands around prompts, and how held-out ones are answered."""

    @abstractmethod
    def again(self, policy: Model, evaluation: EvaluationTable, base: str, kind: ExportKind) -> Sequence[str]:
        """The part of a model card that answers a held-out prompt again without mmrl: how far it agrees, and the code."""

    @abstractmethod
    def merge(self, folder: Path, policy: Settings) -> None:
        """Replace the adapter in `folder` by the whole model."""


def warn_of_columns(prompts: Sequence[Prompt], idle: Collection[str]) -> None:
    """Say once which columns change nothing about how prompts are answered: those in `idle`."""
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        for name in prompt.columns:
            if name in idle:
                found.setdefault(name, prompt)
    if found:
        name, prompt = next(iter(found.items()))
        log.warning(
            f"prompts have the columns {', '.join(sorted(found))}, which rewards can read and the policy does not: prompt "
            f"{prompt.id!r} says {name} = {str(prompt.columns[name])[:60]!r}, but [policy] alone decides; set what you mean in "
            "[policy], and rename or remove the columns"
        )
