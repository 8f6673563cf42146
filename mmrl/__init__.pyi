"""The types of the public names; mmrl/__init__.py imports each on first use."""

from collections.abc import Mapping

from mmrl.algorithms.algorithm import Algorithm as Algorithm
from mmrl.answers.boxes.box import Box as Box
from mmrl.answers.needs import Need as Need
from mmrl.answers.spans.interval import Interval as Interval
from mmrl.app.api.fit import Evaluation as Evaluation
from mmrl.app.api.fit import Run as Run
from mmrl.app.api.fit import evaluate as evaluate
from mmrl.app.api.fit import fit as fit
from mmrl.app.api.fit import load_data as load_data
from mmrl.app.api.fit import load_reward as load_reward
from mmrl.app.plugins.resolve import load_environment as load_environment
from mmrl.app.plugins.suites import find_suite as find_suite
from mmrl.app.reward_model.scorer import load_judge as load_judge
from mmrl.app.reward_model.scorer import load_painter as load_painter
from mmrl.app.reward_model.scorer import load_reward_model as load_reward_model
from mmrl.core.samples import Audio as Audio
from mmrl.core.samples import Group as Group
from mmrl.core.samples import Observation as Observation
from mmrl.core.samples import Prompt as Prompt
from mmrl.core.samples import Sample as Sample
from mmrl.core.samples import Scored as Scored
from mmrl.core.samples import Turn as Turn
from mmrl.core.samples import Video as Video
from mmrl.core.types import Scores as Scores
from mmrl.policies.flow.policy import FlowPolicy as FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig as FlowPolicyConfig
from mmrl.policies.text.policy import TextPolicy as TextPolicy
from mmrl.policies.text.settings import TextPolicyConfig as TextPolicyConfig
from mmrl.training.callbacks import Callback as Callback
from mmrl.training.callbacks import Examples as Examples
from mmrl.training.trainer import Trainer as Trainer

__all__: list[str]
__version__: str
presets: Mapping[str, Algorithm]
