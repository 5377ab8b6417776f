"""Answers held to a JSON schema, given as a dict or as a text, alone and together."""

import json

import pytest

import topkv

SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "integer", "minimum": 0, "maximum": 99}, "a": {"enum": ["x", "y"]}},
    "required": ["z", "a"],
}


def test_answers_conform_to_a_schema(needle_14m):
    model = topkv.Model.load(needle_14m)
    context = model.prefill(model.tokenizer().encode("The grass is green. The sky is blue. " * 4), kv_dtype="f32")
    prompt = model.tokenizer().encode(" The sun is")

    def told(result):
        assert result.finish == "end_token"
        text = model.tokenizer().decode(result.tokens)
        value = json.loads(text)
        assert list(value) == ["z", "a"] and 0 <= value["z"] <= 99 and value["a"] in ("x", "y")
        return text

    def ask(schema, **options):
        return told(model.generate(topkv.Session(context), prompt, 200, json_schema=schema, **options))

    assert ask(SCHEMA) == ask(json.dumps(SCHEMA)) == ask(SCHEMA, draft="none")
    ask(SCHEMA, temperature=1.5, seed=4)
    sessions = [topkv.Session(context) for _ in range(2)]
    for result in model.generate_together(sessions, [prompt, prompt], 200, json_schema=SCHEMA):
        told(result)
    text = "".join(model.stream(topkv.Session(context), prompt, 200, json_schema=SCHEMA))
    assert json.loads(text)["a"] in ("x", "y")
    with pytest.raises(topkv.InvalidArgument, match="has not"):
        ask({"not": {}})
    with pytest.raises(topkv.InvalidArgument, match="JSON schema"):
        ask("{")
