"""Chat templates are untrusted code: sandboxed, bounded, with clear errors."""

import pytest

from engine.errors import ConfigError
from engine.llama.chat import render_chat

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HELLO = [{"role": "user", "content": "<b>Hi</b> {{ 7 * 7 }}"}]


def render(template: str) -> str:
    return render_chat(template, HELLO, bos="<s>", eos="</s>")


def test_messages_are_data_not_template() -> None:
    assert render(TEMPLATE) == "<s><|user|><b>Hi</b> {{ 7 * 7 }}</s>\n<|assistant|>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 9999999 }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content }}",
        "{{ [1] | map('nonsense') | list }}",
        "{{ [1, 'a'] | sort | first }}",
    ],
)
def test_a_template_that_fails_or_attacks_is_a_config_error(template: str) -> None:
    with pytest.raises(ConfigError, match="failed|produced 9,999,999 characters"):
        render(template)
