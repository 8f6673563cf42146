"""Policies that write text, and those that draw by tokens, as the commands see them."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.modality.base import EvaluationTable, ExportKind, Modality, PolicyNeeds
from mmrl.app.modality.merge import merge_adapter
from mmrl.app.modality.taught import follows_teachers, likely_asked, measured_apart, refuse_comparisons, with_teachers
from mmrl.app.modality.templates import auto_classes, code_template, draw_codes_again, text_template, write_again
from mmrl.core.episodes import Limits
from mmrl.core.hooks import PlannerHooks, with_hooks
from mmrl.core.types import Prompt
from mmrl.policies.codes.settings import CodePolicyConfig, check_sampling
from mmrl.policies.flow.sizes import own_size, size_text
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.blame import refuse_where

if TYPE_CHECKING:
    from mmrl.policies.codes.janus import Janus
    from mmrl.policies.codes.policy import CodePolicy
    from mmrl.policies.shared.dry_run import DryRun
    from mmrl.policies.text.policy import TextPolicy

TASKS = {"image": "image-text-to-text", "audio": "audio-text-to-text"}
"""Kind of media that a model takes -> the hub's word for what it does; the first counts."""


class TextModality(Modality[TextPolicyConfig, "TextPolicy"]):
    """Models that write: sampled token by token, greedily when they are evaluated."""

    name = "text"
    settings = TextPolicyConfig
    output = "text"
    has_turns = True
    idle_columns = ("system", "system_prompt", "temperature", "top_p", "max_tokens", "max_new_tokens", "stop")

    def stand_ins(self, policy: TextPolicyConfig) -> tuple[str, str]:
        """Words, one for each token that may be written."""
        one, other = (" ".join([letter] * policy.sampling.max_new_tokens) for letter in "ab")
        return one, other

    def evaluation_defaults(self, policy: TextPolicyConfig) -> dict[str, Any]:
        """The training's sampling at temperature 0."""
        return {"sampling": replace(policy.sampling, temperature=0.0)}

    def check_prompts(self, policy: TextPolicyConfig, prompts: Sequence[Prompt]) -> None:
        """A template that asks for boxes needs a model known to write some; pictures are looked at where they are read."""
        from mmrl.policies.text.prompt.templates import ANSWER_FORMATS, WHERE, answer_template

        asks_for_boxes = WHERE in ANSWER_FORMATS.get(policy.answer_format, "")
        answer_template(policy.answer_format, self.box_space(policy) if asks_for_boxes else None)

    def adapt_algorithm(
        self, algorithm: Algorithm, policy: TextPolicyConfig, label: str, prompts: Sequence[Prompt] = ()
    ) -> Algorithm:
        planner, engine = with_hooks(algorithm.planner, PlannerHooks), policy.engine is not None
        cut = [name for name, whole in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if getattr(policy.sampling, name) != whole]
        reasons = {
            f"has a schedule of denoising steps ({type(algorithm.schedule).__name__}), but policy.kind is 'text': take a preset "
            'for text such as grpo, or set policy.kind = "flow" for an image generator': algorithm.schedule is not None,
            f"looks at samples of few denoising steps first ({type(algorithm.planner).__name__}), but policy.kind is 'text', "
            'which has none: set algorithm.planner.kind = "Once"': planner.scouts,
            f"draws every token at a temperature of its own ({type(algorithm.planner).__name__}), which no server of "
            "[policy.engine] does: remove that table, or set algorithm.planner.kind = 'Once'": planner.heats_tokens and engine,
            f"trains on what an engine notes, the log-probabilities of what policy.sampling.{' and '.join(cut)} leaves: set "
            'algorithm.old = "reread", or leave the filter out': bool(cut) and engine and algorithm.old == "recorded",
        }
        refuse_where(f"algorithm {label} ", reasons)
        algorithm = with_teachers(algorithm, policy, label, prompts)
        return algorithm.with_length(policy.sampling.max_new_tokens)

    def able(self, policy: TextPolicyConfig) -> "tuple[type[TextPolicy], Set[str]]":
        from mmrl.policies.text.policy import TextPolicy, quantities

        return TextPolicy, quantities(policy)

    def look_around(self, policy: TextPolicyConfig, algorithm: Algorithm, episodes: Limits | None = None) -> None:
        from mmrl.engine.facts import look_at_engine

        look_at_engine(policy, episodes)
        if any(one.url for one in policy.teachers):
            from mmrl.engine.teachers import look_at_teachers

            look_at_teachers(policy, episodes, likely_asked(algorithm))

    def build(self, policy: TextPolicyConfig, needs: PolicyNeeds) -> "TextPolicy":
        from mmrl.engine.generator import text_parts
        from mmrl.policies.shared.weights import USUAL_DECAY
        from mmrl.policies.text.families import family_of
        from mmrl.policies.text.kept import refuse_idle_cache
        from mmrl.policies.text.loading import load_config
        from mmrl.policies.text.policy import TextPolicy, packs_episodes

        if needs.worlds is not None:
            family = family_of(load_config(policy))
            packs_episodes(family, policy, needs.worlds)
            refuse_idle_cache(policy, family.config)
            if policy.engine is not None and not family.pictures_alone:
                raise ValueError(
                    f"{family.config.model_type} reads a lone picture otherwise than several, and an engine reads those of all "
                    "turns together: leave policy.engine or [environment] out"
                )
        parts = text_parts(policy, needs.worlds)
        if needs.samplers is not None:
            from mmrl.app.modality.samplers import writing_generator

            parts = replace(parts, generator=writing_generator(needs.samplers))
            # Nothing is compiled in their processes, and they write to the bit what this one would.
            policy = replace(policy, decode="plain") if policy.decode == "auto" else policy
        return TextPolicy(policy, needs.shadows, needs.ema_decay or USUAL_DECAY, needs.views, parts)

    def build_dry_run(self, policy: TextPolicyConfig, needs: PolicyNeeds) -> "DryRun":
        from mmrl.policies.text.dry_run import TextDryRun
        from mmrl.policies.text.kept import refuse_idle_cache
        from mmrl.policies.text.loading import load_config

        if needs.limits is not None:
            refuse_idle_cache(policy, load_config(policy))
        return TextDryRun(policy, needs.shadows, needs.views, needs.limits)

    def box_space(self, policy: TextPolicyConfig) -> str | None:
        if policy.box_space != "auto":
            return policy.box_space
        from mmrl.policies.text.families import family_of
        from mmrl.policies.text.loading import load_config

        return family_of(load_config(policy)).box_space

    def refuse_box_reward(self, reward: str) -> None:
        """All may be read."""

    def with_box_space(self, policy: TextPolicyConfig, space: str | None) -> TextPolicyConfig:
        return replace(policy, box_space=space or "auto")

    def task(self, policy: "TextPolicy") -> str:
        return next((task for kind, task in TASKS.items() if kind in policy.family.sees), "text-generation")

    def snippet(self, policy: "TextPolicy", base: str, adapter: bool) -> Sequence[str]:
        """Transformers loads both alike."""
        variant = f', variant="{policy.config.variant}"' if adapter and policy.config.variant else ""
        model, other = auto_classes(policy.family)
        return (
            f"from transformers import AutoModelFor{model}, Auto{other}",
            "",
            f'model = AutoModelFor{model}.from_pretrained("THIS_FOLDER"{variant})',
            f'{other.lower()} = Auto{other}.from_pretrained("THIS_FOLDER")',
        )

    def template(self, policy: "TextPolicy", evaluation: EvaluationTable) -> dict[str, object]:
        return text_template(policy, evaluation)

    def again(self, policy: "TextPolicy", evaluation: EvaluationTable, base: str, kind: ExportKind) -> Sequence[str]:
        return write_again(policy, evaluation, kind)

    def merge(self, folder: Path, policy: TextPolicyConfig) -> None:
        parts = policy.quantized.parts if policy.weights == "nf4" else ()
        merge_adapter(
            folder, policy.model, policy.trust_remote_code, variant=policy.variant, parts=parts, double=policy.quantized.double
        )


def family_of_model(policy: CodePolicyConfig) -> "Janus":
    """The family of a model by its config; raises what `load_config` and `family_of` raise."""
    from mmrl.policies.codes.janus import family_of
    from mmrl.policies.text.loading import load_config
    from mmrl.policies.text.settings import TextPolicyConfig

    return family_of(load_config(TextPolicyConfig(policy.model)))


class TokenImageModality(Modality[CodePolicyConfig, "CodePolicy"]):
    """Models that write the codes of a picture, one after the other."""

    name = "token_image"
    settings = CodePolicyConfig
    output = "image"
    idle_columns = ("guidance", "guidance_scale", "temperature", "negative_prompt", "seed", "resolution")

    def evaluation_defaults(self, policy: CodePolicyConfig) -> dict[str, Any]:
        """The sampling of training: the most likely codes make poor pictures."""
        return {"sampling": policy.sampling}

    def check_prompts(self, policy: CodePolicyConfig, prompts: Sequence[Prompt]) -> None:
        side = family_of_model(policy).side
        for prompt in prompts:
            if prompt.media:
                raise ValueError(f"prompt {prompt.id!r} shows media, and the policy draws from text alone: leave them out")
            if (size := own_size(prompt)) not in (None, (side, side)):
                raise ValueError(
                    f"prompt {prompt.id!r} asks for {size_text(size or (0, 0))} pixels, and policy.model {policy.model!r} draws "
                    f"{side} x {side} alone: remove the columns width and height"
                )

    def check_plans(
        self, policy: CodePolicyConfig, algorithm: Algorithm, evaluation: EvaluationTable, prompts: Sequence[Prompt]
    ) -> None:
        super().check_plans(policy, algorithm, evaluation, prompts)
        if evaluation.sampling is not None:
            check_sampling(evaluation.sampling, "evaluation.sampling")

    def adapt_algorithm(
        self, algorithm: Algorithm, policy: CodePolicyConfig, label: str, prompts: Sequence[Prompt] = ()
    ) -> Algorithm:
        reasons = {
            f"has a schedule of denoising steps ({type(algorithm.schedule).__name__}), but policy.kind is 'token_image', which "
            "draws by tokens: take a preset for text such as grpo": algorithm.schedule is not None,
            'follows policy.teachers, which models that draw by tokens have none of: set model = "ema"': (
                follows_teachers(algorithm)
            ),
        }
        refuse_where(f"algorithm {label} ", reasons)
        refuse_comparisons(algorithm, label, self.name)
        return measured_apart(algorithm, label).with_length(policy.plan_tokens + family_of_model(policy).num_codes)

    def able(self, policy: CodePolicyConfig) -> "tuple[type[CodePolicy], Set[str]]":
        from mmrl.policies.codes.policy import QUANTITIES, CodePolicy

        return CodePolicy, QUANTITIES

    def build(self, policy: CodePolicyConfig, needs: PolicyNeeds) -> "CodePolicy":
        from mmrl.policies.codes.policy import CodePolicy
        from mmrl.policies.shared.weights import USUAL_DECAY

        return CodePolicy(policy, needs.shadows, needs.ema_decay or USUAL_DECAY, needs.views)

    def build_dry_run(self, policy: CodePolicyConfig, needs: PolicyNeeds) -> "DryRun":
        from mmrl.policies.codes.dry_run import CodeDryRun

        return CodeDryRun(policy, needs.shadows, needs.views)

    def alone(self, policy: CodePolicyConfig, rows: int) -> CodePolicyConfig:
        return replace(policy, decode_rows=1)

    def tokens_read(self, policy: "CodePolicy", text: str) -> tuple[int, int]:
        """Nothing is cut."""
        count = len(policy.tokenizer(text).input_ids)
        return count, count

    def task(self, policy: "CodePolicy") -> str:
        return "any-to-any"

    def snippet(self, policy: "CodePolicy", base: str, adapter: bool) -> Sequence[str]:
        return (
            "from transformers import AutoProcessor, JanusForConditionalGeneration",
            "",
            'model = JanusForConditionalGeneration.from_pretrained("THIS_FOLDER")',
            'processor = AutoProcessor.from_pretrained("THIS_FOLDER")',
        )

    def template(self, policy: "CodePolicy", evaluation: EvaluationTable) -> dict[str, object]:
        return code_template(policy, evaluation)

    def again(self, policy: "CodePolicy", evaluation: EvaluationTable, base: str, kind: ExportKind) -> Sequence[str]:
        return draw_codes_again(policy)

    def merge(self, folder: Path, policy: CodePolicyConfig) -> None:
        merge_adapter(folder, policy.model)
