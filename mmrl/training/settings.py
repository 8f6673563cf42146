"""How long and how often: the numbers of a training run that belong to no part."""

from dataclasses import dataclass, field
from typing import Literal

from mmrl.core.ranges import Count, CountOrNone, NonNegative, Seed, Share, check_ranges
from mmrl.training.health import HealthSettings
from mmrl.training.optim import OptimizerSettings

USUAL_POSITIONS = 16384


@dataclass(frozen=True)
class TrainSettings:
    """Counts are over all ranks; a step is one draw of prompts, their rollouts and all updates on them."""

    steps: CountOrNone = 100
    """Training steps of the whole run, those before a resumption included."""
    prompts_per_step: Count = 8
    """Prompts drawn at every step; each is sampled algorithm.group_size times."""
    micro_batch: Count | Literal["auto"] = USUAL_POSITIONS
    """Positions (tokens of prompts and completions, padding included) in one forward and backward pass of one rank. auto: begins
    small, grows while the device has room, halves where memory runs out, and remembers what fits in mmrl's cache."""
    max_skipped: CountOrNone = 0
    """Prompts with pictures or clips that cannot be read which the whole run may skip, each with a warning; others are drawn in
    their place. 0 = the first one stops the run."""
    rollout_parts: Count = 1
    """Parts in which a step's prompts are sampled, whole groups each. With several, slow rewards (judges, servers, `async def`)
    of one part work while the next is sampled: n parts hide all but the last one's time, and cost the policy larger batches."""
    seed: Seed = 0
    """Seed of all that a run draws: prompts, samples, order of minibatches."""
    deterministic: bool = False
    """The same config gives the same run bit for bit on the same machine; slower. See mmrl.training.determinism for what is not
    promised."""
    evaluate_every: CountOrNone = 0
    """Steps between evaluations; 0 = before and after training only."""
    save_every: CountOrNone = 0
    """Steps between checkpoints; 0 = at the end only."""
    samples_every: CountOrNone = 10
    """Steps between rollouts written to the run's samples; 0 = none."""
    ratio_bound: NonNegative | Literal["auto"] = "auto"
    """Largest |log ratio| of any action before the first update, where sampled and re-evaluated log-probs must agree.

    auto: 2e-5 for text in float32; in bfloat16 twenty times the mean's bound, at most 1; 1e-4 in float32 where an engine samples;
    1e-6 for flow policies, where clip ranges are 1e-4 and less: keep it below a tenth. A number always wins.
    """
    mean_ratio_bound: NonNegative | Literal["auto"] = "auto"
    """Largest mean |log ratio| there. auto: 0.02; in bfloat16 three times what equal readings of the run's own rows differ by, at
    most 2^-7 sqrt(layers); at the first update at most a tenth (bfloat16: a fifth) of the objective's own clip range, besides. A
    number always wins."""
    audit_steps: Count = 3
    """Steps at whose every row it is checked that media, positions and tokens fit together, from the start or resumption on."""
    audit_every: CountOrNone = 1
    """Steps between later checks, of one group each; 0 = none."""
    max_unparsed: Share = 0.2
    """Warn when more than this share of a step's completions could not be parsed by a reward."""

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """How weights follow gradients."""
    health: HealthSettings = field(default_factory=HealthSettings)
    """From where on a run is called unwell."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.deterministic and self.micro_batch == "auto":
            raise ValueError(
                'deterministic is true and micro_batch is "auto", whose size differs from run to run and rounds otherwise: set '
                "micro_batch to a number of positions"
            )
