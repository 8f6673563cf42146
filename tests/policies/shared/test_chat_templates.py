"""Chat templates that would not end are refused; those of models are not."""

import pytest

from mmrl.lab.tiny.text.vlms import chat_template
from mmrl.policies.shared.chat_templates import refuse_endless

ENDLESS = {
    "two loops": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "loops over a long text": "{% set s = 'x' * 99999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "long filters in a loop": "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "filters inside filters": "{% for a in range(900) %}{{ range(99999) | map('string') | join | length }}{% endfor %}",
    "a text that doubles": "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a text that is replaced": "{% set n = namespace(s='ab') %}"
    "{% for a in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "a long product": "{{ 'x' * 10 ** 12 }}",
    "a large power": "{{ 10 ** (10 ** 9) }}",
    "where a picture is": "{% for p in messages[0].content if p.type == 'image' %}{% for a in range(99999) %}"
    "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "where a message is a text": "{{ messages[0].content + 'x' }}"
    "{% for a in range(99999) %}{% for b in range(9) %}{% endfor %}{% endfor %}",
}
PICTURES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}] * 800}]


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_would_not_end_is_refused(name: str):
    with pytest.raises(ValueError, match=r"^policy\.model 'm': its chat template .* for one chat: take the chat_template"):
        refuse_endless(ENDLESS[name], "policy.model 'm'", PICTURES)


def test_a_template_by_name_is_looked_at_too():
    with pytest.raises(ValueError, match="200,000 turns"):
        refuse_endless({"default": "a", "tools": ENDLESS["two loops"]}, "m")


@pytest.mark.parametrize("template", [chat_template("<image>"), "{{ raise_exception('no') }}", "{% broken", None])
def test_other_templates_are_left_to_those_who_use_them(template: str | None):
    refuse_endless(template, "m", PICTURES)
    refuse_endless(template, "m")
