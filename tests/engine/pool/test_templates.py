"""Hostile chat templates: an error that names the limit, while the neighbours' tokens keep coming."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import ConfigError, Pool
from engine.errors import PromptTooLong
from tests.engine.pool.hostile import TIME, refusal

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Who lives in the wood?"}]
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MEMORY, DEPTH = "more memory than the limit of 0.5 GiB", "nested too deeply"


def render(pool: Pool, template: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pool, "chat_template", template)
    return refusal(pool, lambda: pool.render_chat(MESSAGES))


@pytest.mark.parametrize(
    ("template", "limit"),
    [
        ("{{ (7 ** 50000000) % 10 }}" + LOOPS, TIME),
        ("{% set x = 3 ** 100000000 %}{{ x % 7 }}" + LOOPS, TIME),
        (LOOPS, TIME),
        ("{{ 2 ** 8000000000 }}", MEMORY),
        ("{{ lipsum(n=100000000) }}", TIME),
        ("{{ 'x'|center(3000000000) }}", MEMORY),
        ("{{ messages|tojson(indent=3000000000) }}", MEMORY),
        ("{{ '%1999999999d'|format(1) }}", MEMORY),
        ("{{ ('x' * 1000000)|replace('x', 'y' * 100000) }}", MEMORY),
        ("{{ range(99999)|join('x' * 100000) }}", MEMORY),
        ("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", MEMORY),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DEPTH),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", DEPTH),
        ("{{ " + "[" * 3000 + "]" * 3000 + " }}", DEPTH),
        ("{{ range(10 ** 9)|list }}", "Range too big"),
        ("{{ 'x' * 9999999 }}", "at most 1,048,576 are allowed"),
        ("{{ bos_token * 20000 }}", "20,000 control tokens; at most 8,192"),
        ("{% for n in range(20000) %}{{ n }}{{ eos_token }}{% endfor %}", "20,000 control tokens; at most 8,192"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_attacks_ends_with_the_limit(
    attacked: Pool, template: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = render(attacked, template, monkeypatch)
    assert limit in said or TIME in said, said


NUMBERS = st.sampled_from(["7", "99999", "3000000000", "8000000000", "10 ** 9", "'a'", "messages", "-1"])
OPERATIONS = st.sampled_from(
    [
        "{0} ** {1}",
        "'x' * {0}",
        "'x'|center({0})",
        "messages|tojson(indent={0})",
        "range({0})|list|length",
        "range({0})|join('y' * {1})",
        "('%' ~ {0} ~ 'd')|format(1)",
        "('x' * {0})|replace('x', 'y' * {1})",
        "'x'|indent({0})",
        "'a b'|wordwrap({0})",
        "lipsum(n={0})",
        "range({0})|batch({1})|list|length",
        "'x y'|truncate({0}, false, 'z' * {1})",
        "cycler(*range({0})).next()",
    ]
)
EXPRESSIONS = st.builds(lambda form, a, b: form.format(a, b), OPERATIONS, NUMBERS, NUMBERS)
SHELLS = st.sampled_from(["{{{{ {0} }}}}", "{{% set x = {0} %}}{{{{ x }}}}", "{{% if {0} %}}a{{% endif %}}", "{0}{1}"])
TEMPLATES = st.builds(
    lambda shell, expression, is_long: shell.format(expression, "") + (LOOPS if is_long else ""),
    SHELLS, EXPRESSIONS, st.booleans(),
)  # fmt: skip


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(template=TEMPLATES)
def test_no_drawn_template_disturbs_a_neighbour(attacked: Pool, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = render(attacked, template, monkeypatch)
    assert not said or "chat template" in said or "control tokens" in said


def test_a_file_whose_own_template_attacks_can_be_used_without_it(story_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "attack.gguf"
    program = [
        sys.executable,
        "-m",
        "gguf.scripts.gguf_new_metadata",
        "--chat-template",
        "{{ (7 ** 5000000) % 10 }}" + LOOPS,
    ]
    subprocess.run([*program, story_model, path], check=True, capture_output=True, timeout=120)
    with Pool(path, threads=1, parallel=2, n_ctx=16_384) as pool:
        assert TIME in refusal(pool, lambda: pool.render_chat(MESSAGES))
        assert pool.submit("Once", max_tokens=2).result(60).ids


def test_a_template_after_attacks_is_rendered_as_before(attacked: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacked, "chat_template", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    before = attacked.render_chat(MESSAGES)
    assert before[0] == "<s>Who lives in the wood?"
    assert before[1] == attacked.tokenize("<s>Who lives in the wood?", special=True)[1:]
    for _ in range(3):
        monkeypatch.setattr(attacked, "chat_template", LOOPS)
        with pytest.raises(ConfigError, match=TIME):
            attacked.render_chat(MESSAGES)
        monkeypatch.undo()
        monkeypatch.setattr(
            attacked, "chat_template", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
        )
        assert attacked.render_chat(MESSAGES) == before


def test_control_tokens_in_a_message_are_limited(attacked: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacked, "chat_template", "{{ messages[0].content }}")
    attack = [{"role": "user", "content": "<s>" * 20_000}]
    assert "20,000 control tokens; at most 8,192" in refusal(attacked, lambda: attacked.render_chat(attack))
    assert "at most 8,192" in refusal(attacked, lambda: attacked.tokenize("a</s>" * 50_000, special=True))


def test_a_rendered_text_that_cannot_fit_is_not_tokenised(attacked: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacked, "chat_template", "{{ 'a ' * 500000 }}")
    monkeypatch.setattr(attacked._texts, "tokenize", None)
    with pytest.raises(PromptTooLong, match=r"at least [\d,]+ tokens; the context holds"):
        attacked.render_chat(MESSAGES)
