"""How long and how often: the numbers of a training run that belong to no part."""

from dataclasses import dataclass, field

from mmrl.training.health import HealthSettings
from mmrl.training.optim import OptimizerSettings


@dataclass(frozen=True)
class TrainSettings:
    """Counts are over all ranks; a step is one draw of prompts, their rollouts and all updates on them."""

    steps: int = 100
    prompts_per_step: int = 8
    micro_batch: int = 16384
    """Positions (tokens of prompts and completions, padding included) in one forward and backward pass of one rank."""
    max_skipped: int = 0
    """Prompts with pictures or clips that cannot be read which the whole run may skip, each with a warning; others are drawn in
    their place. 0 = the first one stops the run."""
    rollout_parts: int = 1
    """Parts in which a step's prompts are sampled, whole groups each. With several, slow rewards (judges, servers, `async def`)
    of one part work while the next is sampled: n parts hide all but the last one's time, and cost the policy larger batches."""
    seed: int = 0
    deterministic: bool = False
    """The same config gives the same run bit for bit on the same machine; slower. See mmrl.training.determinism for what is not
    promised."""
    evaluate_every: int = 0
    """Steps between evaluations; 0 = before and after training only."""
    save_every: int = 0
    """Steps between checkpoints; 0 = at the end only."""
    samples_every: int = 10
    """Steps between rollouts written to the run's samples; 0 = none."""
    ratio_bound: float = 2e-5
    """Largest |log ratio| of any action before the first update, where sampled and re-evaluated log-probs must agree.

    2e-5 is for text in float32. In bfloat16 single unlikely tokens may differ much: allow 1.0 and hold on to the mean.
    Configs of flow policies take 1e-6 unless they say otherwise, for clip ranges there are 1e-4 and less: keep it below a tenth.
    """
    mean_ratio_bound: float = 0.02
    """Largest mean |log ratio| there: a tenth of a clip range of 0.2. A tenth of the objective's own clip range, where that is
    less, bounds the mean at the first update."""
    audit_steps: int = 3
    """Steps at whose every row it is checked that media, positions and tokens fit together, from the start or resumption on."""
    audit_every: int = 1
    """Steps between later checks, of one group each; 0 = none."""
    max_unparsed: float = 0.2
    """Warn when more than this share of a step's completions could not be parsed by a reward."""

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    health: HealthSettings = field(default_factory=HealthSettings)

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 0),
            ("prompts_per_step", 1),
            ("micro_batch", 1),
            ("rollout_parts", 1),
            ("max_skipped", 0),
            ("audit_steps", 1),
            ("audit_every", 0),
            ("evaluate_every", 0),
            ("save_every", 0),
            ("samples_every", 0),
            ("ratio_bound", 0),
            ("mean_ratio_bound", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
