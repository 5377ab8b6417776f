"""Chat templates through Python; tests/text/chat_template_test.cc compares them with transformers."""

import json

import pytest

import topkv


@pytest.fixture(scope="module")
def fixtures(repository):
    return repository / "tests" / "fixtures" / "chat"


@pytest.fixture(scope="module")
def qwen3(fixtures):
    try:
        return topkv.ChatTemplate.load(fixtures / "qwen3")
    except topkv.Unsupported as error:  # a build without the engine says what to do
        assert "TOPKV_JINJA_DIR" in str(error)
        pytest.skip(str(error))


def test_a_conversation_is_rendered_as_transformers_renders_it(fixtures, qwen3):
    data = json.loads((fixtures / "cases.json").read_text())
    cases = [case for case in data["cases"] if case["template"] == "qwen3"]
    assert cases
    for case in cases:
        messages = data["conversations"][case["conversation"]]
        assert qwen3.render(messages, case["add_generation_prompt"]) == case["text"]


def test_source_and_repr(fixtures, qwen3):
    source = (fixtures / "qwen3" / "chat_template.jinja").read_text()
    assert qwen3.source == source
    assert repr(qwen3) == f"<ChatTemplate of {len(source)} bytes>"


def test_a_model_without_a_template_is_refused(tmp_path, needle_14m):
    (tmp_path / "tokenizer.json").symlink_to(needle_14m / "tokenizer.json")
    with pytest.raises(topkv.FileError, match="no chat template here"):
        topkv.ChatTemplate.load(tmp_path)


def test_the_bundled_model_is_asked_as_it_was_trained(needle_14m, qwen3):
    template = topkv.ChatTemplate.load(needle_14m)
    asked = [{"role": "user", "content": "A text.\nWhat is the word for x? "},
             {"role": "assistant", "content": " 12."}, {"role": "user", "content": "Go on."}]
    assert template.render(asked) == (
        "A text.\nWhat is the word for x?  The word for x is 12.\nGo on.")


@pytest.mark.parametrize("message", ["text", {"role": "user"}, {"role": "user", "content": 1}, None])
def test_what_is_no_message_is_named(qwen3, message):
    with pytest.raises(topkv.InvalidArgument, match=r"messages\[1\] is .*; expected a dict"):
        qwen3.render([{"role": "user", "content": "a"}, message])


def test_nothing_is_lost_in_silence(fixtures, qwen3):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    asked = [{"role": "user", "content": "Is it warm?"}]
    assert '"name": "weather"' in qwen3.render(asked, tools=[tool])
    assert qwen3.render(asked, True, enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(topkv.InvalidArgument, match='leaves out message 1 .*"critic"'):
        qwen3.render([*asked, {"role": "critic", "content": "No."}])
    with pytest.raises(topkv.InvalidArgument, match='does not use "tools"'):
        topkv.ChatTemplate.load(fixtures / "chatml").render(asked, tools=[tool])
    with pytest.raises(topkv.InvalidArgument, match='does not use "enable_thinkin"'):
        qwen3.render(asked, enable_thinkin=False)
    call = {"type": "function", "function": {"name": "weather", "arguments": {"at": "Rome"}}}
    qwen2 = topkv.ChatTemplate.load(fixtures / "qwen2.5")
    text = qwen2.render([*asked, {"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "content": "21 degrees"}])
    assert '{"name": "weather", "arguments": {"at": "Rome"}}' in text and "21 degrees" in text


def test_what_a_template_refuses_is_an_invalid_argument(tmp_path, qwen3):
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    template = topkv.ChatTemplate.load(tmp_path)
    with pytest.raises(topkv.InvalidArgument, match="refuses this conversation: no system"):
        template.render([{"role": "system", "content": "a"}])
    with pytest.raises(topkv.InvalidArgument, match="no messages"):
        template.render([])


def test_a_template_that_never_ends_is_refused(tmp_path, qwen3):
    (tmp_path / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(topkv.FileError, match="line 1: it "):
        topkv.ChatTemplate.load(tmp_path).render([{"role": "user", "content": "a"}])
