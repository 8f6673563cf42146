"""Policies that draw by tokens, as the commands see them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.modality.again import draw_codes_again
from mmrl.app.modality.base import EvaluationTable, ExportKind, Modality, PolicyNeeds, refuse_turns
from mmrl.app.modality.merge import merge_adapter
from mmrl.app.modality.teachers import follows_teachers, measured_apart, refuse_comparisons
from mmrl.app.modality.templates import code_template
from mmrl.app.modality.text import LOADING
from mmrl.core.episodes import Limits
from mmrl.core.protocols import View
from mmrl.core.types import Prompt
from mmrl.policies.codes.settings import CodePolicyConfig, check_sampling
from mmrl.policies.flow.sizes import own_size, size_text
from mmrl.training.evaluate import Variant

if TYPE_CHECKING:
    from mmrl.policies.codes.janus import Janus
    from mmrl.policies.codes.policy import CodePolicy
    from mmrl.policies.shared.call_log import DryRun


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
    evaluation_keys = ("sampling",)
    output = "image"
    index_file = "config.json"
    loading = LOADING
    rates = (1e-5, 1e-6)
    idle_columns = ("guidance", "guidance_scale", "temperature", "negative_prompt", "seed", "resolution")

    def evaluation_defaults(self, policy: CodePolicyConfig) -> dict[str, Any]:
        """The sampling of training: the most likely codes make poor pictures."""
        return {"sampling": policy.sampling}

    def variants(self, evaluation: EvaluationTable) -> Sequence[Variant]:
        refuse_turns(evaluation)
        return super().variants(evaluation)

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
        if algorithm.schedule is not None:
            raise ValueError(
                f"algorithm {label} has a schedule of denoising steps ({type(algorithm.schedule).__name__}), but policy.kind is "
                "'token_image', which draws by tokens: take a preset for text such as grpo"
            )
        refuse_comparisons(algorithm, label, self.name)
        if follows_teachers(algorithm):
            raise ValueError(
                f'algorithm {label} follows policy.teachers, which models that draw by tokens have none of: set model = "ema"'
            )
        return measured_apart(algorithm, label).with_length(policy.plan_tokens + family_of_model(policy).num_codes)

    def build(self, policy: CodePolicyConfig, needs: PolicyNeeds) -> "CodePolicy":
        from mmrl.policies.codes.policy import CodePolicy
        from mmrl.policies.shared.weights import USUAL_DECAY

        return CodePolicy(policy, needs.shadows, needs.ema_decay or USUAL_DECAY, needs.views)

    def build_dry_run(
        self, policy: CodePolicyConfig, shadows: frozenset[str], views: Mapping[str, View], limits: Limits | None = None
    ) -> "DryRun":
        from mmrl.policies.codes.dry_run import CodeDryRun

        return CodeDryRun(policy, shadows, views)

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
