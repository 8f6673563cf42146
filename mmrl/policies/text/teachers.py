"""Teachers: they read what the policy wrote, token by token and behind prompts of their own, and write nothing themselves."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmrl.core.types import Target
from mmrl.policies.shared.lora import LoraSettings, adapter_layers, refuse_no_peft, with_adapter
from mmrl.policies.shared.teachers import TEACHER, adapter_of, numbers_of
from mmrl.policies.text.families import family_of
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.loading import load_config, read_processor
from mmrl.policies.text.parts import ServedTeacher
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.distance import STATES, Head, Other, States, TeachersPart, ToldPart
from mmrl.policies.text.read.evaluate import show, show_rows, trace_of_nothing
from mmrl.policies.text.settings import QuantizedSettings, TextPolicyConfig, TextTeacher
from mmrl.policies.text.trace import TextTrace, append
from mmrl.policies.text.write.rollout import vocabulary_of
from mmrl.runtime.tensors import pad_actions


def config_of(policy: TextPolicyConfig, teacher: TextTeacher) -> TextPolicyConfig:
    """The settings of a policy that is only read."""
    own = {"model": teacher.model, "dtype": teacher.dtype, "weights": teacher.weights, "variant": None, "lora": LoraSettings()}
    own |= {"quantized": policy.quantized if teacher.weights == "nf4" else QuantizedSettings()}
    own |= {"trust_remote_code": teacher.trust_remote_code}
    return replace(policy, **own, teachers=(), engine=None, scores=(), freeze=(), gradient_checkpointing=False)


@contextmanager
def named(number: int) -> Iterator[None]:
    """A block whose errors about policy.model, or about code that comes with it, are about the model of a teacher."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        said = re.sub(r"policy\.(model|trust_remote_code)", rf"policy.teachers.{number}.\1", str(error))
        raise (FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError)(said) from error


def refuse_other_tokens(policy: TextPolicyConfig) -> None:
    """Raise ValueError for a teacher of another tokenizer, before any weights load; FileNotFoundError where files are missing."""
    found: dict[str, str] = {}
    for number, one in enumerate(policy.teachers):
        if one.adapter is not None:
            refuse_no_peft(one.adapter, f"policy.teachers.{number}.adapter")
            continue
        if policy.model not in found:
            found[policy.model] = vocabulary(policy)
        with named(number):
            found[str(one.model)] = vocabulary(config_of(policy, one))
        if found[str(one.model)] != found[policy.model]:
            raise ValueError(
                f"policy.teachers {one.name!r} ({one.model}) has other tokens than policy.model {policy.model!r}, and reads what "
                "the policy wrote token by token: take a teacher with the same tokenizer, or teach from its texts "
                "(`mmrl sample`, then a stage of the kind sft)"
            )


def vocabulary(config: TextPolicyConfig) -> str:
    """The fingerprint of the tokens of a model that is not loaded."""
    return vocabulary_of(read_processor(config, family_of(load_config(config))).tokenizer)


class Teachers:
    """The teachers of a policy, each an adapter beside the one that trains, or a policy of its own that is only read.

    Args:
        make: a policy of these settings that nothing trains.
        ask: who asks the servers of one; see TextParts.

    Raises what `loading.load` raises, and ValueError for an adapter that is broken, not whole or of another model.
    """

    def __init__(
        self,
        host: TextHost,
        make: Callable[[TextPolicyConfig], TextHost],
        ask: Callable[[TextPolicyConfig, TextTeacher, int], ServedTeacher],
    ) -> None:
        self.host, self.settings = host, host.config.teachers
        self.adapters = {i: one.adapter for i, one in enumerate(self.settings) if one.adapter is not None}
        self.others: dict[int, TextHost] = {}
        self.asked: dict[int, ServedTeacher] = {}
        for number, one in enumerate(self.settings):
            with named(number):
                if one.url:
                    self.asked[number] = ask(config_of(host.config, one), one, number)
                elif one.adapter is None:
                    self.others[number] = make(config_of(host.config, one))

    @property
    def models(self) -> frozenset[str]:
        """The model of readings that they have, where there are any."""
        return frozenset({TEACHER} if self.settings else ())

    def prepare(self) -> None:
        """Follow the policy to its device; every process has all of them, whole."""
        for one in self.others.values():
            one.net.to(self.host.net.device)

    def read(
        self, trace: TextTrace, mask: Bool[Tensor, "n t"], names: tuple[str, ...], view: str, target: None = None
    ) -> dict[str, Tensor]:
        """Quantities under the teacher of every row, without a gradient."""
        found = {name: torch.zeros(mask.shape) for name in names}
        for number, rows in self._shares(trace):
            if number in self.asked:
                for i, told in self._told(number, trace.take(rows), mask[rows], names, view):
                    values = [one[token] for one, token in zip(told, trace.tokens[rows[i]].tolist(), strict=False)]
                    found["logprobs"][rows[i], : len(told)] = torch.tensor(values) * mask[rows[i], : len(told)]
                continue
            with self._active(number), torch.no_grad():
                policy, own = self._reader(number, trace.take(rows), view)
                values = policy.evaluate(own, mask[rows], names, view if number in self.adapters else "plain")
            for name, value in values.items():
                found[name][rows] = value
        return found

    @torch.no_grad()
    def other(self, target: Target, trace: TextTrace, mask: Bool[Tensor, "n t"]) -> Other:
        """The other side for the tokens in the mask of a compact trace."""
        host, parts, told = self.host, list[TeachersPart](), list[ToldPart]()
        mask = pad_actions(mask, trace.tokens.shape[1])[:, : trace.tokens.shape[1]]
        if target.model != TEACHER:
            with host.weights.swapped_in(target.model):
                states = states_of(host, trace, mask, target.view)
            parts.append(TeachersPart(torch.arange(len(states), device=states.device), states, head_of(host, target.model)))
        else:
            for number, rows in self._shares(trace):
                mine = torch.zeros_like(mask)
                mine[rows] = mask[rows]
                places = mine[mask].nonzero()[:, 0]
                if number in self.asked:
                    rows_told = self._told(number, trace.take(rows), mask[rows], ("divergence",), target.view, target.top)
                    some = [one[j] for i, one in rows_told for j in mask[rows[i]].nonzero()[:, 0].tolist()]
                    told.append(ToldPart.of(places, some, target.top, host.net.banned))
                    continue
                with self._active(number):
                    policy, own = self._reader(number, trace if len(rows) == len(trace) else trace.take(rows), target.view)
                    states = states_of(policy, own, mask[rows], target.view if number in self.adapters else "plain")
                head = head_of(host, TEACHER) if number in self.adapters else own_head(policy)
                parts.append(TeachersPart(places.to(states.device), states, head))
        return Other(target, parts, host.net.banned, told)

    def _told(
        self, number: int, trace: TextTrace, mask: Bool[Tensor, "n t"], names: tuple[str, ...], view: str, likely: int = 0
    ) -> Iterator[tuple[int, Sequence[Mapping[int, float]]]]:
        """Rows with a token in the mask, and what the servers of a teacher tell of all tokens of each."""
        if names != (("divergence",) if likely else ("logprobs",)):
            raise unserved(self.settings[number].name, "all", names[0])
        own = self._reader(number, trace, view)[1]
        if bool((own.temperature != 1).any()):
            raise unserved(self.settings[number].name, "heat", float(own.temperature[own.temperature != 1][0]))
        rows = mask.any(1).nonzero()[:, 0].tolist()
        shown = [own.prompts[i] for i in own.prompt_index.tolist()]
        asked = [append(shown[i], own.tokens[i, : own.lengths[i]].tolist()) for i in rows]
        return zip(rows, self.asked[number].tell(asked, likely), strict=True)

    def _shares(self, trace: TextTrace) -> Iterator[tuple[int, Int[Tensor, " k"]]]:
        """The number of every teacher that reads, and its rows; of several processes each reads under all of its adapters."""
        names = [one.name for one in self.settings]
        numbers = numbers_of([one.prompt for one in trace.prompts if one.prompt is not None], names, alone=True)
        numbers = numbers[trace.prompt_index] if len(trace) else torch.zeros(0, dtype=torch.long)
        if bool((numbers < 0).any()):
            raise ValueError(f"rows are read under the model {TEACHER!r}, and prompts of theirs name none of policy.teachers")
        for number in range(len(names)):
            rows = (numbers == number).nonzero()[:, 0]
            if len(rows) or (number in self.adapters and self.host.ranks.world > 1):
                yield number, rows

    def _active(self, number: int) -> AbstractContextManager[None]:
        """A block in which the policy's network has a teacher's adapter in place of the one that trains."""
        if number not in self.adapters:
            return nullcontext()
        return with_adapter(adapter_layers(self.host.net.modules()), adapter_of(number))

    def _reader(self, number: int, trace: TextTrace, view: str) -> tuple[TextHost, TextTrace]:
        """Who reads for a teacher, and the rows: behind their prompts as another model is shown them under the view."""
        if number in self.adapters:
            return self.host, trace
        policy, host = self.others.get(number) or self.asked[number].host, self.host
        if any(trace.insets) and number in self.asked:
            raise unserved(self.settings[number].name, "insets")
        if any(trace.insets) and image_processor(policy) != image_processor(host):
            raise ValueError(
                f"policy.teachers {self.settings[number].name!r} sees pictures within completions otherwise than the policy: "
                "take a teacher with the same image processor, or leave [environment] out"
            )

        def encoded(prompt: Encoded, told: str) -> Encoded:
            return show(prompt, view, host.views, policy.encode, told, f"teacher {number}, ")

        rows, shown = show_rows(trace if view != "plain" else replace(trace, told=()), encoded)
        return policy, replace(rows, prompts=tuple(shown), told=(), family=policy.family)


UNSERVED = {
    "all": "tells of single tokens, and {} takes all of them, as form = 'exact' and SureTeacher do: set FollowTeacher.form = "
    "'sampled' with beta = 1.0, or top = 20",
    "heat": "tells what tokens are worth at temperature 1, and samples are read at {:g}: set policy.sampling.temperature = 1.0",
    "insets": "is not sent the pictures of [environment]: set environment.limits.pictures = 0",
}


def unserved(name: str, why: str, *said: object) -> ValueError:
    """The error about what a teacher behind a server does not tell, or is not sent."""
    return ValueError(f"policy.teachers {name!r} is behind a server, which {UNSERVED[why].format(*said)}, or leave url out")


def image_processor(policy: TextHost) -> object:
    """How a model's pictures become tensors."""
    return policy.processor.image_processor.to_dict()


def states_of(policy: TextHost, trace: TextTrace, mask: Bool[Tensor, "n t"], view: str) -> Float[Tensor, "m d"]:
    """The states that the tokens in the mask are predicted from; a process without rows keeps step with the others."""
    if not len(trace):
        (trace, mask), view = trace_of_nothing(policy, trace.packed), "plain"
    work = policy.evaluation(*policy.shown(trace, view), mask, (STATES,))
    return policy.evaluator(States(**vars(work)))[STATES]


def head_of(policy: TextHost, model: str) -> Head:
    """The policy's head as it is under the weights of this name, for use while the live ones are in place."""
    layer, net = policy.net.model.get_output_embeddings(), policy.net
    if model != "policy" and hasattr(layer, "lora_B"):
        raise ValueError(
            f"the next token is compared with that of the model {model!r} over the whole vocabulary, and an adapter, the "
            "policy's or a teacher's, is on the head, which has one at a time: take one without it, or set the form sampled"
        )
    if model == TEACHER:
        return net.logits
    own: tuple[Tensor, Tensor | None] = layer.weight, getattr(layer, "bias", None)
    weight, bias = policy.weights.value(model, own[0]), own[1] if own[1] is None else policy.weights.value(model, own[1])
    if weight is own[0] and bias is own[1]:
        return net.logits

    def logits(states: Tensor, temperature: Tensor) -> Tensor:
        return policy.family.head(nn.functional.linear(states, weight, bias).float()) / temperature[:, None]

    return logits


def own_head(policy: TextHost) -> Head:
    """The head of a model of its own, in its own precision."""

    def logits(states: Tensor, temperature: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            return policy.net(lambda net: net.logits(states, temperature))

    return logits
