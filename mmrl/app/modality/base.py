"""What the app must know of a kind of policy: its settings, its part of [evaluation], how it is built, how its files load."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.app.config.algorithm import plain
from mmrl.app.modality.flow_checks import check_objective, refuse_pictures, warn_of_clip_ranges, warn_of_half_precision
from mmrl.app.modality.merge import merge_adapter, merge_lora
from mmrl.app.toml.tables import Table
from mmrl.core.protocols import Policy, View
from mmrl.core.types import Prompt
from mmrl.flow.layout import lay_out
from mmrl.flow.plan import evaluation_plan
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.training.evaluate import Variant
from mmrl.training.settings import TrainSettings

PolicyConfig = TextPolicyConfig | FlowPolicyConfig
EVALUATION_STEPS = 28


@dataclass(frozen=True)
class Loading:
    """What a model card says of the exported files."""

    task: str
    """pipeline_tag of the Hugging Face hub."""
    library: str
    """Loads a whole model."""
    adapter_library: str
    adapter_note: str


@runtime_checkable
class Kind(Protocol):
    """One kind of policy."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> type: ...
    @property
    def evaluation_keys(self) -> tuple[str, ...]:
        """The keys of [evaluation] that belong to this kind alone; the first is the one to use."""
        ...

    @property
    def draws(self) -> str:
        """What its samples are: text or image."""
        ...

    @property
    def ratio_bound(self) -> float:
        """Of runs that do not say; clip ranges of flow objectives are 1e-4 and less."""
        ...

    @property
    def index_file(self) -> str:
        """The file every model folder of this kind holds."""
        ...

    @property
    def loading(self) -> Loading: ...

    def evaluated(self, policy: Any, given: Mapping[str, Any], table: Table) -> dict[str, Any]:
        """Defaults for keys of [evaluation]; `given` is what the config says there."""
        ...

    def how(self, evaluation: Any) -> Any:
        """What Policy.rollout is given to evaluate."""
        ...

    def variants(self, evaluation: Any) -> Sequence[Variant]:
        """Further ways to evaluate."""
        ...

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """ValueError for a prompt that this kind cannot answer."""
        ...

    def look(self, policy: Any, algorithm: Algorithm, evaluation: Any, prompts: Sequence[Prompt]) -> None:
        """A look at the loaded model before training: warn of what will be cut or clipped.

        Raises:
            ValueError: the model cannot do what algorithm or evaluation want.
        """
        ...

    def prepared(self, algorithm: Algorithm, policy: Any, label: str) -> Algorithm:
        """The algorithm as this run uses it.

        Raises:
            ValueError: it is not for this kind of policy.
        """
        ...

    def build(
        self, policy: Any, shadows: frozenset[str], ema_decay: Callable[[int], float] | None, views: Mapping[str, View]
    ) -> Policy: ...

    def rehearse(self, policy: Any, shadows: frozenset[str], views: Mapping[str, View], length: int | None) -> Any:
        """A policy without weights that counts what it is asked; completions have `length` tokens."""
        ...

    def box_space(self, policy: Any) -> str | None:
        """How the model writes boxes, from its own config alone; None where its makers do not say, or it writes none."""
        ...

    def refuse_box_reward(self, reward: str) -> None:
        """ValueError where nothing can be read by a reward that reads boxes."""
        ...

    def with_box_space(self, policy: Any, space: str | None) -> Any:
        """The settings with the space that was found."""
        ...

    def tiny(self, family: str, folder: Path) -> object:
        """Save a small random model."""
        ...

    def snippet(self, policy: Any, base: str, adapter: bool) -> Sequence[str]:
        """Python that loads the exported files of a policy, or of its adapter onto `base`."""
        ...

    def merge(self, folder: Path, policy: Any) -> None:
        """Replace the adapter in `folder` by the whole model."""
        ...


@dataclass(frozen=True)
class TextKind:
    """Models that write: sampled token by token, greedily when they are evaluated."""

    name: str = "text"
    settings: type = TextPolicyConfig
    evaluation_keys: tuple[str, ...] = ("sampling",)
    draws: str = "text"
    ratio_bound: float = TrainSettings.ratio_bound
    index_file: str = "config.json"
    loading: Loading = Loading(
        task="image-text-to-text",
        library="transformers",
        adapter_library="peft",
        adapter_note="This needs the base model and `pip install peft`; to run without either, export with --merge.",
    )

    def evaluated(self, policy: TextPolicyConfig, given: Mapping[str, Any], table: Table) -> dict[str, Any]:
        """The training's sampling at temperature 0, changed by what the evaluation says."""
        base = {f.name: getattr(policy.sampling, f.name) for f in fields(Sampling)} | {"temperature": 0.0}
        return {"sampling": plain(Sampling, base | dict(given.get("sampling") or {}), ("evaluation", "sampling"), table)}

    def how(self, evaluation: Any) -> Sampling:
        return evaluation.sampling

    def variants(self, evaluation: Any) -> Sequence[Variant]:
        return ()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Pictures are looked at where they are read."""

    def look(self, policy: Any, algorithm: Algorithm, evaluation: Any, prompts: Sequence[Prompt]) -> None:
        """The policy looks at itself while sampling."""

    def prepared(self, algorithm: Algorithm, policy: TextPolicyConfig, label: str) -> Algorithm:
        if algorithm.schedule is not None:
            raise ValueError(
                f"algorithm {label} has a schedule of denoising steps ({type(algorithm.schedule).__name__}), but policy.kind is "
                "'text': take a preset for text such as grpo, or set policy.kind = \"flow\" for an image generator"
            )
        if not isinstance(algorithm.ema_decay, SteadyDecay | None):
            raise ValueError(
                f"algorithm {label} has an ema_decay, but averages of a text policy follow at a constant rate: "
                'leave algorithm.ema_decay out, or take kind = "SteadyDecay"'
            )
        return algorithm.with_length(policy.sampling.max_new_tokens)

    def build(
        self,
        policy: TextPolicyConfig,
        shadows: frozenset[str],
        ema_decay: Callable[[int], float] | None,
        views: Mapping[str, View],
    ) -> Policy:
        from mmrl.policies.text.policy import TextPolicy

        return TextPolicy(policy, shadows, views=views, **({} if ema_decay is None else {"ema_decay": ema_decay(0)}))

    def rehearse(self, policy: Any, shadows: frozenset[str], views: Mapping[str, View], length: int | None) -> Any:
        from mmrl.policies.text.dry_run import TextRehearsal

        return TextRehearsal(policy, shadows, views, length)

    def box_space(self, policy: TextPolicyConfig) -> str | None:
        if policy.box_space != "auto":
            return policy.box_space
        from mmrl.policies.text.families import family_of
        from mmrl.policies.text.loading import load_config

        return family_of(load_config(policy)).box_space

    def refuse_box_reward(self, reward: str) -> None:
        """All may be read."""

    def with_box_space(self, policy: TextPolicyConfig, space: Any) -> TextPolicyConfig:
        return replace(policy, box_space=space or "auto")

    def tiny(self, family: str, folder: Path) -> object:
        from mmrl.tiny import vlms

        return vlms.build(family, folder)

    def snippet(self, policy: Any, base: str, adapter: bool) -> Sequence[str]:
        """Transformers loads both alike."""
        return (
            "from transformers import AutoModelForImageTextToText, AutoProcessor",
            "",
            'model = AutoModelForImageTextToText.from_pretrained("THIS_FOLDER")',
            'processor = AutoProcessor.from_pretrained("THIS_FOLDER")',
        )

    def merge(self, folder: Path, policy: TextPolicyConfig) -> None:
        merge_adapter(folder, policy.model, policy.trust_remote_code)


@dataclass(frozen=True)
class FlowKind:
    """Image generators that integrate noise to pictures along a schedule."""

    name: str = "flow"
    settings: type = FlowPolicyConfig
    evaluation_keys: tuple[str, ...] = ("num_steps", "guidance", "also")
    draws: str = "image"
    ratio_bound: float = 1e-6
    index_file: str = "model_index.json"
    loading: Loading = Loading(
        task="text-to-image",
        library="diffusers",
        adapter_library="diffusers",
        adapter_note="This needs the base model; to run without it, export with --merge.",
    )

    def evaluated(self, policy: FlowPolicyConfig, given: Mapping[str, Any], table: Table) -> dict[str, Any]:
        return {"num_steps": given.get("num_steps", EVALUATION_STEPS)}

    def how(self, evaluation: Any) -> Any:
        return evaluation_plan(evaluation.num_steps, guidance=evaluation.guidance)

    def variants(self, evaluation: Any) -> Sequence[Variant]:
        return [
            Variant(
                one.name,
                evaluation_plan(
                    one.num_steps or evaluation.num_steps,
                    guidance=evaluation.guidance if one.guidance is None else one.guidance,
                ),
                one.weights or evaluation.weights,
            )
            for one in evaluation.also
        ]

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        refuse_pictures(prompts)

    def look(self, policy: Any, algorithm: Algorithm, evaluation: Any, prompts: Sequence[Prompt]) -> None:
        for plan in (algorithm.schedule.at(0), self.how(evaluation), *(one.how for one in self.variants(evaluation))):
            policy.sigmas(plan)
        policy.encoder.warn([prompt.text for prompt in prompts])
        warn_of_half_precision(algorithm, policy.config)
        warn_of_clip_ranges(algorithm, math.prod(policy.family.latent_shape))

    def prepared(self, algorithm: Algorithm, policy: FlowPolicyConfig, label: str) -> Algorithm:
        """Lays out a group of the first step, so that a group size that fills no tree is refused here."""
        if algorithm.schedule is None:
            raise ValueError(
                f"algorithm {label} has no schedule, but policy.kind is 'flow', and an image generator samples along one: "
                'take a preset for flow models such as flow_grpo, or set [algorithm.schedule] with kind = "Full"'
            )
        if algorithm.views:
            raise ValueError(
                f"algorithm {label} shows prompts in other ways ({', '.join(algorithm.views)}), but policy.kind is 'flow', whose "
                "prompts are texts: take a preset for flow models such as flow_grpo"
            )
        plan = algorithm.schedule.at(0)
        lay_out(plan, [algorithm.group_size], [0])
        check_objective(algorithm, plan, label)
        return algorithm

    def build(
        self,
        policy: FlowPolicyConfig,
        shadows: frozenset[str],
        ema_decay: Callable[[int], float] | None,
        views: Mapping[str, View],
    ) -> Policy:
        from diffusers.utils import logging

        from mmrl.policies.flow.policy import FlowPolicy

        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        return FlowPolicy(policy, shadows) if ema_decay is None else FlowPolicy(policy, shadows, ema_decay)

    def rehearse(self, policy: Any, shadows: frozenset[str], views: Mapping[str, View], length: int | None) -> Any:
        from mmrl.policies.flow.dry_run import FlowRehearsal

        return FlowRehearsal(policy, shadows)

    def box_space(self, policy: FlowPolicyConfig) -> str | None:
        return None

    def refuse_box_reward(self, reward: str) -> None:
        raise ValueError(
            f"reward {reward!r} reads boxes that a model wrote, but policy.kind is 'flow', which draws pictures: "
            "take a reward of pictures such as jpeg_size"
        )

    def with_box_space(self, policy: FlowPolicyConfig, space: Any) -> FlowPolicyConfig:
        return policy

    def tiny(self, family: str, folder: Path) -> object:
        from mmrl.tiny import pipelines

        return pipelines.build(family, folder)

    def snippet(self, policy: Any, base: str, adapter: bool) -> Sequence[str]:
        """Parts that the pipeline was saved without, such as SD3's T5, are named: diffusers refuses to leave them out itself."""
        pipeline = policy.pipeline
        absent = [name for name, part in pipeline.components.items() if part is None]
        named = "".join(f", {name}=None" for name in absent if name not in pipeline._optional_components)
        return (
            "from diffusers import DiffusionPipeline",
            "",
            f'pipeline = DiffusionPipeline.from_pretrained("{base if adapter else "THIS_FOLDER"}"{named})',
            *(['pipeline.load_lora_weights("THIS_FOLDER")'] if adapter else []),
        )

    def merge(self, folder: Path, policy: FlowPolicyConfig) -> None:
        merge_lora(folder, policy)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (TextKind(), FlowKind())}
POLICIES: dict[str, type] = {name: kind.settings for name, kind in KINDS.items()}
"""`policy.kind` -> its settings."""


def kind_of(policy: Any) -> Kind:
    """The kind whose settings these are."""
    return next(kind for kind in KINDS.values() if isinstance(policy, kind.settings))
