"""The model runner against the forward pass in float64 with NumPy alone."""

import json
import os
import shutil
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from reference import attention, causal

import topkv

TEXT = "The special magic number for quiet-river is: 7128354. A quick brown fox. "


def load_tensors(path):
    """The bf16 and f32 tensors of a safetensors file, as float64."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] in ("BF16", "F32")
        begin, end = entry["data_offsets"]
        values = data[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(values, np.uint16).astype(np.uint32) << 16).tobytes()
        tensors[name] = np.frombuffer(values, np.float32).astype(np.float64).reshape(entry["shape"])
    return tensors


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * weight


def rotate(x, theta):
    """RoPE of x [tokens, heads, d]: halves rotate together."""
    half = x.shape[2] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[:, :, :half], x[:, :, half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)


def forward(directory, tokens):
    """Logits [tokens, vocab] of models/needle-14m."""
    config = json.loads((directory / "config.json").read_text())
    weights = load_tensors(directory / "model.safetensors")
    heads, kv_heads, dim = 6, 2, 64
    theta = config["rope_parameters"]["rope_theta"]
    n = len(tokens)
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        def linear(name, values):
            return values @ weights[f"model.layers.{layer}.{name}.weight"].T

        h = rms_norm(x, weights[f"model.layers.{layer}.input_layernorm.weight"])
        q = rotate(linear("self_attn.q_proj", h).reshape(n, heads, dim), theta)
        k = rotate(linear("self_attn.k_proj", h).reshape(n, kv_heads, dim), theta)
        v = linear("self_attn.v_proj", h).reshape(n, kv_heads, dim)
        out, _ = attention(q, k, v, causal(n, n, 0))
        x = x + linear("self_attn.o_proj", out.reshape(n, heads * dim))
        h = rms_norm(x, weights[f"model.layers.{layer}.post_attention_layernorm.weight"])
        gate = linear("mlp.gate_proj", h)
        x = x + linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * linear("mlp.up_proj", h))
    return rms_norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


@pytest.fixture(scope="module")
def model(needle_14m):
    return topkv.Model.load(needle_14m)


@pytest.fixture(scope="module")
def tokens(model):
    return model.tokenizer().encode(TEXT * 4)


@pytest.fixture(scope="module")
def wanted(needle_14m, tokens):
    return forward(needle_14m, tokens)


def close(got, wanted):
    """8 layers of float32 sums of up to 1024 terms: 1e-4 of the largest logit is generous."""
    np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


def test_logits_are_those_of_the_forward_pass_in_float64(model, tokens, wanted):
    got = model.logits(tokens)
    assert got.dtype == np.float32
    assert got.shape == (len(tokens), model.config.vocab_size)
    close(got, wanted)


def test_prefill_and_a_session_that_retrieves_all_rows_give_the_same_logits(model, tokens, wanted):
    split = len(tokens) - 9
    context = model.prefill(np.array(tokens[:split], np.int32), kv_dtype="f32", chunk=37)
    session = topkv.Session(context, k=10**6, window=10)
    got = [model.logits(session, tokens[split : split + 5]), model.logits(session, tokens[split + 5 :])]
    close(np.concatenate(got), wanted[split:])
    assert session.tokens == len(tokens)


def test_greedy_generation_takes_the_largest_logit_of_each_step(model, tokens, needle_14m):
    context = model.prefill(tokens, kv_dtype="f32")
    session = topkv.Session(context, k=10**6)
    prompt = model.tokenizer().encode("The special magic number")
    result = model.generate(session, prompt, max_tokens=6)
    chosen = list(result.tokens)
    logits = forward(needle_14m, [*tokens, *prompt, *chosen])
    first = len(tokens) + len(prompt) - 1
    for step, token in enumerate(chosen):
        assert logits[first + step, token] >= logits[first + step].max() - 1e-3
    assert result.ended or len(chosen) == 6
    assert result.steps <= 6
    assert result.times.total > 0 and result.prompt_seconds > 0


def test_sampling_is_fixed_by_its_seed(model, tokens):
    context = model.prefill(tokens)

    def sample(seed):
        session = topkv.Session(context)
        return model.generate(session, [20], 12, temperature=3.0, top_k=50, top_p=0.95, seed=seed).tokens

    assert sample(5) == sample(5)
    assert sample(5) != sample(6)


@pytest.fixture
def like_needle(needle_14m, tmp_path):
    """Makes a folder of the bundled model with another generation_config.json, and loads it."""

    def make(generation):
        for file in needle_14m.iterdir():
            link = tmp_path / file.name
            if file.name != "generation_config.json" and not link.exists():
                link.symlink_to(file)
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return topkv.Model.load(tmp_path)

    return make


def test_any_of_several_end_tokens_ends_generation(model, tokens, like_needle):
    context = model.prefill(tokens)
    greedy = model.generate(topkv.Session(context), [20], max_tokens=6).tokens
    end = next(i for i in range(1, 6) if greedy[i] not in greedy[:i])
    for ends in ([1, greedy[end]], [greedy[end], 1, 0]):
        other = like_needle({"eos_token_id": ends})
        assert other.config.eos == ends
        result = other.generate(topkv.Session(context), [20], max_tokens=6)
        assert result.ended and result.tokens == greedy[:end]


def test_the_models_sampling_is_used_unless_arguments_say_otherwise(model, tokens, like_needle):
    assert model.config.sampling.temperature == 0
    context = model.prefill(tokens)

    def sample(model, **how):
        return model.generate(topkv.Session(context), [20], 12, seed=5, **how).tokens

    hot = like_needle({"do_sample": True, "temperature": 3.0, "top_k": 40, "top_p": 0.9})
    assert repr(hot.config.sampling) == (
        "SamplingOptions(temperature=3, top_k=40, top_p=0.9, min_p=0, repetition_penalty=1)"
    )
    assert sample(hot) == sample(model, temperature=3.0, top_k=40, top_p=0.9) != sample(model)
    assert sample(hot, top_k=0) == sample(model, temperature=3.0, top_k=0, top_p=0.9)
    assert sample(hot, temperature=0) == sample(model)


def test_sampling_that_topkv_does_not_have_is_warned_of_where_it_is_used(tokens, like_needle):
    typical = like_needle({"do_sample": True, "typical_p": 0.9})
    session = topkv.Session(typical.prefill(tokens))
    with pytest.warns(UserWarning, match="typical_p is 0.9"):
        typical.generate(session, [20], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        typical.generate(session, [20], 1, temperature=0)


def test_the_length_that_is_meant_is_kept(needle_14m):
    assert topkv.Model.load(needle_14m, length=5000).config.length == 5000
    config = topkv.ModelConfig.load(needle_14m)
    assert (config.length, config.rotary_dim) == (config.reach, 64)
    with pytest.raises(topkv.InvalidArgument, match="-1 tokens"):
        topkv.ModelConfig.load(needle_14m, length=-1)


def test_a_fingerprint_is_of_all_that_rows_depend_on(model, needle_14m, tmp_path):
    mine = model.fingerprint()
    assert len(mine) == 16
    same = tmp_path / "same"
    shutil.copytree(needle_14m, same)
    copy = topkv.Model.load(same)
    assert copy.fingerprint() == mine
    assert topkv.Model.load(needle_14m, weights="int8").fingerprint() != mine
    assert topkv.Model.load(copy_with(needle_14m, tmp_path / "other", rms_norm_eps=0.5)).fingerprint() != mine
    (same / "model.safetensors").unlink()
    with pytest.raises(topkv.FileError, match="model.safetensors"):
        copy.fingerprint()


def test_prefill_options_reach_the_context(model, tokens):
    reports = []
    context = model.prefill(
        tokens, "window", window=16, sinks=2, chunk=50, kv_dtype="f16",
        indices=["hnsw:M=8"], progress=reports.append,
    )
    assert (context.tokens, context.dtype) == (len(tokens), "f16")
    assert context.indices() == ["exact", "hnsw:M=8,efc=100,ef=0"]
    # Told again while the first chunk is read, if that takes long.
    assert next(report.done for report in reports if report.done > 0) == 50
    with pytest.raises(topkv.OutOfMemory):
        model.prefill(tokens, memory_budget=1000)
    with pytest.raises(topkv.InvalidArgument, match="prefill is 'all'"):
        model.prefill(tokens, "all")
    with pytest.raises(topkv.InvalidArgument):
        model.prefill([4096])
    with pytest.raises(topkv.InvalidArgument, match="is not a token id"):
        model.prefill([2**40])
    with pytest.raises(topkv.InvalidArgument, match="tokens is f32"):
        model.prefill(np.zeros(3, np.float32))


def test_the_tokenizer_gives_ids_and_text_back(model, needle_14m):
    tokenizer = model.tokenizer()
    ids = tokenizer.encode("Grüße, quiet-river!")
    assert tokenizer.decode(ids) == "Grüße, quiet-river!"
    assert tokenizer.decode(np.array(ids)) == "Grüße, quiet-river!"
    assert b"".join(map(tokenizer.bytes_of_token, ids)).decode() == "Grüße, quiet-river!"
    assert tokenizer.vocab_size == 4096
    assert tokenizer.find("no such token") == -1
    same = topkv.Tokenizer.load(needle_14m / "tokenizer.json")
    assert same.encode("Grüße, quiet-river!") == ids


def test_a_tokenizer_outlives_the_name_of_its_model(needle_14m):
    tokenizer = topkv.Model.load(needle_14m).tokenizer()
    assert tokenizer.decode(tokenizer.encode("still here")) == "still here"


def test_bytes_without_a_token_are_left_out_of_a_text_with_one_warning(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    around = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"pre_tokenizer": around, "decoder": {"type": "ByteLevel"}, "model": model}))
    tokenizer = topkv.Tokenizer.load(file)
    with pytest.warns(UserWarning, match=r"no token for 2 bytes of the text, left out: 0x04 \(2\)") as found:
        assert tokenizer.encode("a\x04b\x04") == [2]
        assert tokenizer.encode("x") == []
    assert len(found) == 1
    assert tokenizer.left_out("ab") == ""
    assert tokenizer.left_out("\x04").startswith("the vocabulary has no token for 1 byte of the text")
    again = topkv.Tokenizer.load(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="left out"):
            again.encode("x")


def test_the_configuration_is_that_of_the_file(model, needle_14m):
    config = model.config
    assert (config.model_type, config.hidden_size, config.vocab_size) == ("llama", 384, 4096)
    assert (config.attention.layers, config.attention.q_heads, config.attention.kv_heads) == (8, 6, 2)
    assert (config.bos, config.eos) == (0, [1])
    assert config.kv_bytes_per_token() == 8 * 2 * 64 * 2 * 2
    assert topkv.ModelConfig.load(needle_14m).rope_theta == 1e10
    plan = topkv.Model.plan(needle_14m)
    assert (plan.items, plan.peak, plan.fits) == ([], 0, True)


def copy_with(needle_14m, directory, **changes):
    """A copy of the bundled model with keys of its config.json changed."""
    directory.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(needle_14m / name, directory / name)
    config = json.loads((needle_14m / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_tokens_beyond_what_the_model_was_made_for_are_warned_about_once(needle_14m, tmp_path):
    directory = copy_with(needle_14m, tmp_path / "short", max_position_embeddings=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = topkv.Model.load(directory)
        assert model.config.reach == 8
        context = model.prefill(list(range(5, 13)))
        with pytest.raises(UserWarning, match="9 tokens are more than the 8 positions"):
            model.generate(topkv.Session(context), [20], max_tokens=0)
        model.prefill(list(range(5, 25)))  # told before
    for work in (
        lambda model: model.prefill(list(range(5, 14))),
        lambda model: model.logits(list(range(5, 14))),
        lambda model: model.check_reach(9),
        lambda model: model.generate(topkv.Session(context), [20], max_tokens=1),
    ):
        with pytest.warns(UserWarning, match="9 tokens are more than the 8 positions") as told:
            work(topkv.Model.load(directory))
        assert len(told) == 1
        assert told[0].filename == __file__


def test_what_a_configuration_says_and_the_network_does_not_do_is_warned_about(needle_14m, tmp_path):
    directory = copy_with(needle_14m, tmp_path / "odd", attention_magic=3)
    with pytest.warns(UserWarning, match="attention_magic is 3"):
        topkv.Model.load(directory)
    with pytest.warns(UserWarning, match="attention_magic is 3"):
        config = topkv.ModelConfig.load(directory)
    assert len(config.warnings) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="attention_magic"):
            topkv.Model.load(directory)
        assert topkv.ModelConfig.load(needle_14m).warnings == []
        topkv.Model.load(needle_14m)
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e10}
    dual = copy_with(needle_14m, tmp_path / "dual", dual_chunk_attention_config={"chunk_size": 262144},
                     rope_parameters=rope)
    with pytest.raises(topkv.Unsupported, match="dual_chunk_attention_config is"):
        topkv.Model.load(dual)


def test_paths_of_any_bytes_are_taken_and_shown(needle_14m, tmp_path):
    directory = tmp_path / os.fsdecode(b"a\xffb")
    with pytest.raises(topkv.FileError, match=r"a\\xffb: there is no such directory"):
        topkv.Model.load(directory)
    copy_with(needle_14m, directory)
    assert topkv.Model.load(directory).logits([5]).shape == (1, 4096)
    assert topkv.Model.load(os.fsencode(directory)).config.reach == 1049600
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(topkv.FileError, match=r"a\\xffb/tokenizer.json: .*symbolic links"):
        topkv.Model.load(directory)
    with pytest.raises(topkv.FileError, match=r"a\\xffb/tokenizer.json: .*symbolic links"):
        topkv.Tokenizer.load(directory / "tokenizer.json")


def test_plan_checks_the_weights(needle_14m, tmp_path):
    directory = copy_with(needle_14m, tmp_path / "cut")
    assert topkv.Model.plan(directory).weights_bytes == 2 * 14162304
    os.truncate(directory / "model.safetensors", 10**6)
    with pytest.raises(topkv.FileError, match="model.safetensors: "):
        topkv.Model.plan(directory)


@pytest.mark.parametrize("name", ["gptq-llama", "fp8-qwen3", "gguf-llama/model.gguf"])
def test_checkpoints_that_are_quantised_already_are_models(name):
    path = Path(__file__).parents[2] / "tests/fixtures/parity" / name
    folder = path.parent if path.is_file() else path
    model = topkv.Model.load(path)
    tokens = json.loads((folder / "tokens.json").read_text())["tokens"]
    expected = load_tensors(folder / "reference/model.safetensors")["logits"]
    assert np.abs(model.logits(tokens) - expected).max() < 2e-5 * np.abs(expected).max()
    plan = topkv.Model.plan(path)
    assert plan.quantised.split()[0].rstrip(",") == name.split("-")[0]
    assert topkv.ModelConfig.load(path).model_type in ("llama", "qwen3")
    with pytest.raises(topkv.Unsupported, match="quantised already"):
        topkv.Model.load(path, weights="int4")


def test_a_plain_checkpoint_is_quantised_as_nothing(needle_14m):
    assert topkv.Model.plan(needle_14m).quantised == ""
