"""Chat templates are programs that come with a model: one that would loop for hours over a chat is refused.

It is run first in a sandbox that counts turns of loops, calls and characters, so the bound is the same on every machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from jinja2.runtime import Context

MOST_TURNS = 200_000
"""Turns of loops, calls and the like in one chat; published templates take about ten per message or picture."""
CHARACTERS_PER_TURN = 64
LARGEST_POWER = 1_000
HELD = (str, bytes, list, tuple, dict, range)
REMEDY = "take the chat_template.jinja of the model's makers, or download it again"
Chat = Sequence[Mapping[str, object]]
EXAMPLE: Chat = ({"role": "user", "content": [{"type": "text", "text": "What is this?"}]},)


class EndlessTemplateError(ValueError):
    """A chat template does more for one chat than any published one."""


def refuse_endless(template: object, place: str, chat: Chat = EXAMPLE, **variables: object) -> None:
    """Raise ValueError for a chat template, or one of several by name, that takes more than MOST_TURNS for a chat."""
    sources = template.values() if isinstance(template, Mapping) else [template]
    # Templates of text-only models want one text per message.
    forms = [list(chat), [{**one, "content": text_of(one["content"])} for one in chat]]
    for source, messages in [(one, form) for one in sources for form in forms if isinstance(one, str)]:
        try:
            written = counting(source)
            vars(written.environment)["spent"] = 0
            written.render(messages=messages, add_generation_prompt=True, **variables)
        except EndlessTemplateError as error:
            raise ValueError(f"{place}: its chat template {error} for one chat: {REMEDY}") from None
        except Exception:  # noqa: BLE001 - other faults are reported where it is used
            continue


def text_of(content: object) -> str:
    """The text of a message, whose content is a text or a list of pieces."""
    return "".join(str(part.get("text", "")) for part in content) if isinstance(content, list) else str(content)


@lru_cache(maxsize=8)
def counting(source: str) -> "Template":
    """A template of jinja whose `environment.spent` counts what it does."""
    from jinja2 import nodes

    environment = counting_sandbox()
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
    for joined in tree.find_all(nodes.Concat):
        joined.nodes = [nodes.Filter(part, "measured", [], [], None, None, lineno=joined.lineno) for part in joined.nodes]
    return environment.from_string(tree)


def counting_sandbox() -> "Environment":
    """An environment of jinja that raises EndlessTemplateError once MOST_TURNS are spent."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Counting(ImmutableSandboxedEnvironment):
        """Counts calls, filters and, with the filter `counted`, turns of loops."""

        intercepted_binops = frozenset({"*", "**"})
        spent = 0

        def spend(self, *values: object) -> None:
            self.spent += 1 + sum(len(one) for one in values if isinstance(one, HELD)) // CHARACTERS_PER_TURN
            if self.spent > MOST_TURNS:
                raise EndlessTemplateError(f"takes more than {MOST_TURNS:,} turns")

        def count(self, values: Iterable[object]) -> Iterator[object]:
            for value in values:
                self.spend()
                yield value

        def count_calls_of(self, function: Callable[..., object]) -> Callable[..., object]:
            @wraps(function)
            def run(*given: object, **named: object) -> object:
                self.spend(*given)
                return function(*given, **named)

            return run

        def call(*parts: Any, **named: object) -> object:
            self, _, function, *given = parts
            self.spend(getattr(function, "__self__", None), *given)
            found = ImmutableSandboxedEnvironment.call(*parts, **named)
            self.spend(found)
            return found

        def call_binop(self, context: "Context", operator: str, left: object, right: object) -> object:
            texts = [one for one in (left, right) if isinstance(one, HELD)]
            times = [one for one in (left, right) if isinstance(one, int)]
            power = right if operator == "**" and isinstance(right, int | float) else 0
            if (texts and times and len(texts[0]) * times[0] > MOST_TURNS) or power > LARGEST_POWER:
                raise EndlessTemplateError(f"makes a value of more than {MOST_TURNS:,} characters")
            return super().call_binop(context, operator, left, right)

    sandbox = Counting(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    sandbox.filters |= {name: sandbox.count_calls_of(one) for name, one in sandbox.filters.items()}
    sandbox.filters |= {"counted": sandbox.count, "measured": sandbox.count_calls_of(str)}
    return sandbox
