"""The promise of a modality to the app: its settings, its part of [evaluation], how a policy is built and how its files load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.episodes import Limits, Worlds
from mmrl.core.protocols import Policy, View
from mmrl.core.types import Prompt
from mmrl.policies.text.settings import Sampling
from mmrl.training.evaluate import Variant, Weights

Settings = TypeVar("Settings")
"""`[policy]` of a modality."""
Model = TypeVar("Model", bound=Policy)
"""The policy that a modality builds."""

if TYPE_CHECKING:
    from mmrl.policies.shared.call_log import DryRun
    from mmrl.policies.shared.workers.settings import SamplerSettings


@dataclass(frozen=True)
class Loading:
    """The facts that a model card states about exported files."""

    library: str
    """Loads a whole model."""
    adapter_library: str
    adapter_note: str


ExportKind = Literal["whole", "adapter", "merged", "onto original"]
"""What an exported folder holds: the model whose weights all trained, an adapter, or the sum of model and adapter."""


@runtime_checkable
class AlsoTable(Protocol):
    """One of `[[evaluation.also]]`."""

    @property
    def name(self) -> str: ...
    @property
    def num_steps(self) -> int | None: ...
    @property
    def guidance(self) -> float | None: ...
    @property
    def base_from(self) -> float | None: ...
    @property
    def weights(self) -> Weights | None: ...
    @property
    def turns(self) -> int | None: ...


@runtime_checkable
class EvaluationTable(Protocol):
    """`[evaluation]`, as far as modalities read it."""

    @property
    def sampling(self) -> Sampling | None: ...
    @property
    def num_steps(self) -> int | None: ...
    @property
    def guidance(self) -> float | None: ...
    @property
    def base_from(self) -> float | None: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def also(self) -> Sequence[AlsoTable]: ...


@runtime_checkable
class Modality(Protocol[Settings, Model]):
    """One kind of policy: its settings, and the policy that they make."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> type[Settings]: ...
    @property
    def evaluation_keys(self) -> tuple[str, ...]:
        """The keys of [evaluation] that belong to this kind alone; the first is the one to use."""
        ...

    @property
    def output(self) -> str:
        """The kind of its samples, as far as the kind of policy tells: text or image."""
        ...

    def output_of(self, policy: Settings) -> str:
        """The kind of samples that rewards of a policy see: text, image, video, sound or "video with sound", which is both."""
        ...

    def stand_ins(self, policy: Settings) -> tuple[object, object]:
        """Two different samples, as far as they can be told before the policy has drawn or written any."""
        ...

    @property
    def index_file(self) -> str:
        """The file every model folder of this kind holds."""
        ...

    @property
    def loading(self) -> Loading: ...

    def evaluation_defaults(self, policy: Settings) -> dict[str, Any]:
        """The values that [evaluation] starts from, by key."""
        ...

    def eval_sampling(self, evaluation: EvaluationTable) -> object:
        """The sampling that Policy.rollout is given to evaluate."""
        ...

    def variants(self, evaluation: EvaluationTable) -> Sequence[Variant]:
        """Further ways to evaluate."""
        ...

    def check_prompts(self, policy: Settings, prompts: Sequence[Prompt]) -> None:
        """Look at prompts before weights are loaded.

        Raises FileNotFoundError without such a model, and ValueError for a prompt that this kind, or the model, cannot answer.
        """
        ...

    def check_plans(self, policy: Settings, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]) -> None:
        """Look, before weights are loaded, at the steps along which prompts are answered; ValueError for those not to be had."""
        ...

    def warn_after_load(
        self, policy: Model, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]
    ) -> None:
        """Warn, with the loaded model, of what will be cut or clipped; ValueError for what it cannot do."""
        ...

    def adapt_algorithm(self, algorithm: Algorithm, policy: Settings, label: str, prompts: Sequence[Prompt] = ()) -> Algorithm:
        """The algorithm as this run uses it; ValueError if it is not for this kind of policy or these training prompts."""
        ...

    def look_around(self, policy: Settings, episodes: Limits | None = None) -> None:
        """Look, before anything is loaded, whether what the policy needs besides its model is there.

        `episodes`: how far those of several turns go.

        Raises ValueError where a server that samples cannot be started, does not answer, or is none for this policy.
        """
        ...

    def build(
        self,
        policy: Settings,
        shadows: frozenset[str],
        ema_decay: Callable[[int], float] | None,
        views: Mapping[str, View],
        worlds: Worlds | None = None,
        samplers: "SamplerSettings | None" = None,
    ) -> Model:
        """The policy, with the worlds that answer its turns and the processes that sample; ValueError where it takes none."""
        ...

    def build_dry_run(
        self, policy: Settings, shadows: frozenset[str], views: Mapping[str, View], limits: Limits | None = None
    ) -> "DryRun":
        """A policy without weights that counts what it is asked; completions have max_new_tokens."""
        ...

    def box_space(self, policy: Settings) -> str | None:
        """How the model writes boxes, from its own config alone; None where its makers do not say, or it writes none."""
        ...

    def refuse_box_reward(self, reward: str) -> None:
        """ValueError where nothing can be read by a reward that reads boxes."""
        ...

    def with_box_space(self, policy: Settings, space: str | None) -> Settings:
        """The settings with the space that was found."""
        ...

    def task(self, policy: Model) -> str:
        """The pipeline_tag that the Hugging Face hub has for a policy's model."""
        ...

    def snippet(self, policy: Model, base: str, adapter: bool) -> Sequence[str]:
        """Python that loads the exported files of a policy, or of its adapter onto `base`."""
        ...

    def template(self, policy: Model, evaluation: EvaluationTable) -> dict[str, object]:
        """The facts of prompt_template.json: what stands around prompts, and how held-out ones are answered."""
        ...

    def again(self, policy: Model, evaluation: EvaluationTable, base: str, kind: ExportKind) -> Sequence[str]:
        """The part of a model card that answers a held-out prompt again without mmrl: how far it agrees, and the code."""
        ...

    def merge(self, folder: Path, policy: Settings) -> None:
        """Replace the adapter in `folder` by the whole model."""
        ...
