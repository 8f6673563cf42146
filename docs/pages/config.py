"""Every key of a config, table by table."""

from collections.abc import Iterator

from docs.pages.lines import table_of
from mmrl.algorithms.miners import BestAndWorst, Difficulty
from mmrl.algorithms.views import Privileged
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.data import SourceConfig
from mmrl.app.config.run import (
    CheckpointConfig,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrackerConfig,
)
from mmrl.app.inspect.settings import Setting, settings_of
from mmrl.app.inspect.things import keys_inside
from mmrl.app.modality.base import VariantConfig
from mmrl.core.episodes import Limits
from mmrl.policies.codes.settings import CodePolicyConfig, PlanSettings
from mmrl.policies.flow.settings import FlowPolicyConfig, FlowQuantizedSettings
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings, Sampling, TextPolicyConfig, TextTeacher
from mmrl.policies.video.sampling import VideoSettings
from mmrl.serving.judges.judge import Endpoint
from mmrl.serving.scorers.painting import ImagesServer, Painting
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.calls import Calling, Transform
from mmrl.training.settings import AlarmSettings, StageSettings, Until
from mmrl.training.watch.health import HealthSettings
from mmrl.training.worlds.runner import WorldCalling

TABLES: dict[str, tuple[str, type]] = {
    "": ("Length of the run, evaluations, checkpoints and checks.", RunConfig),
    "[optimizer]": ("", OptimizerSettings),
    "[policy], kind = text": ("A vision-language model or video LLM.", TextPolicyConfig),
    "[policy.sampling]": ("How completions are sampled; `[evaluation.sampling]` has the same keys.", Sampling),
    "[policy.video]": ("How much of a clip the model sees.", VideoSettings),
    "[policy], kind = flow": ("A generator.", FlowPolicyConfig),
    "[policy], kind = token_image": ("A model that draws by tokens.", CodePolicyConfig),
    "[policy.plan]": ("Text before the picture ([how](../tutorials/drawing_by_tokens.md)).", PlanSettings),
    "[policy.engine]": ("Without it the policy samples with its own network ([vLLM](../how_to/engine.md)).", EngineConfig),
    "[policy.quantized]": ("Acts with `policy.weights = \"nf4\"`.", QuantizedSettings),
    "[policy.quantized], kind = flow": ("The same for a generator.", FlowQuantizedSettings),
    "[[policy.teachers]]": ("Models that read what the policy writes ([how](../how_to/teachers.md)).", TextTeacher),
    "[algorithm.objective.0.view]": ("What the teacher of a FollowTeacher sees besides.", Privileged),
    "[policy.lora]": ("Without it all weights that are not frozen train.", LoraSettings),
    "[[stage]]": ("A stage of a chain, one table each ([how](../how_to/stages.md)).", StageSettings),
    "[stage.until]": ("Ends a stage that trains before its last step.", Until),
    "[[stage]], kind = filter": ("Keys beside those of a stage.", Difficulty),
    "[[stage]], kind = pairs": ("Keys beside those of a stage.", BestAndWorst),
    "[data]": ("Other keys belong to the data set: `mmrl show datasets/NAME`, or the site's page *Data sets*.", DataConfig),
    "[[data]]": ("Several data sets, one table each ([how](../how_to/mixtures.md)).", SourceConfig),
    "[[reward]]": ("One table per reward; its other keys: `mmrl show NAME`, the site's page *Rewards in full*.", RewardConfig),
    "[reward.call]": ("How a reward is called.", Calling),
    "[reward.transform]": ("Without it the reward is not changed.", Transform),
    "[reward.server]": ("The model that judges ask, behind an OpenAI-compatible server.", Endpoint),
    "[reward.painter]": ("Who draws for the reward drawn; an easel's is `[environment.painter]`.", Painting),
    "[reward.painter.server]": ("A server that draws, which answers /images/generations.", ImagesServer),
    "[sampler]": ("Which prompts come next. Other keys belong to the sampler.", SamplerConfig),
    "[evaluation]": ("`[evaluation.data]` is like `[data]`, `[[evaluation.reward]]` like `[[reward]]`.", EvaluationConfig),
    "[[evaluation.also]]": ("Other ways to answer the same prompts.", VariantConfig),
    "[environment]": ("An environment that answers the policy's turns, and how its worlds are called.", EnvironmentConfig),
    "[environment.limits]": ("How far an episode may go.", Limits),
    "[environment.call]": ("How worlds are called.", WorldCalling),
    "[checkpoint]": ("Which checkpoints are kept.", CheckpointConfig),
    "[trackers]": ("Where metrics go in addition to the run's own files.", TrackerConfig),
    "[cluster]": ("What runs where with `mmrl launch` ([many machines](../how_to/many_machines.md)).", ClusterConfig),
    "[health]": ("Bounds beyond which a run gets a warning.", HealthSettings),
    "[health.alarm]": ("When a run is suspected of reward hacking.", AlarmSettings),
}  # fmt: skip
ALGORITHM_KEYS = ("group_size", "epochs", "minibatches", "old", "needs_rewards", "needs_turns")
INNER = (
    *("optimizer", "health", "args", "sampling", "lora", "video", "data", "reward", "also", "call", "alarm", "config"),
    *("algorithm", "policy", "sampler", "evaluation", "checkpoint", "trackers", "transform"),
)
"""Keys that are tables of their own."""


def config_page() -> Iterator[str]:
    yield "# Config"
    yield "\nEvery key of a TOML file or a command line. `mmrl show CONFIG` prints all values of a config and their origin.\n"
    chapters: dict[Setting, str] = {}
    for name, (words, cls) in TABLES.items():
        yield f"\n## {name or 'Top of the file'}\n"
        yield f"{words}\n" if words else ""
        settings = keys_inside(cls)
        alike = {one.name: chapters[one] for one in settings if chapters.setdefault(one, name) != name}
        yield from table_of(settings, (*INNER, *alike))
        for chapter in dict.fromkeys(alike.values()):
            names = [f"`{key}`" for key, found in alike.items() if found == chapter and key not in INNER]
            yield f"\n{', '.join(names)}: as in {chapter}." if names else ""
        if name == "[optimizer]":
            yield from algorithm_keys()


def algorithm_keys() -> Iterator[str]:
    from mmrl.algorithms.algorithm import Algorithm

    yield "\n## [algorithm]\n"
    yield "`preset` is where to start; `[algorithm.SLOT]` with `kind` replaces one part: see [Algorithms](algorithms.md).\n"
    yield from table_of([one for one in settings_of(Algorithm) if one.name in ALGORITHM_KEYS])
