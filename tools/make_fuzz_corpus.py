#!/usr/bin/env python3
"""Writes the first inputs of the targets that are made from fixtures: python3 tools/make_fuzz_corpus.py

What fuzzing finds is added beside them. Contexts' are written by fuzz_context_corpus (context_corpus.cc).
"""
import json
import struct
from pathlib import Path

here = Path(__file__).resolve().parent.parent / "tests" / "fuzz"
fixtures = here.parent / "fixtures"


def put(target, name, content):
    folder = here / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def tensors(of):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, content) in of.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = compact(header).encode()
    return struct.pack("<Q", len(text)) + text + data


put("json", "values", '{"a":[1,-2.5e3,true,false,null,"\\u00e9\\n"],"b":{"c":{}}}')
put("json", "deep", "[" * 63 + "]" * 63)
put("json", "deeper", "[" * 65 + "]" * 65)
put("json", "twice", '{"a":1,"a":2}')
put("json", "large", "[18446744073709551616,-9223372036854775808,1e999]")

for config in sorted((fixtures / "parity").glob("*/config.json")):
    value = json.loads(config.read_text())
    put("config", config.parent.name, compact(value))
    if "quantization_config" in value:
        put("quantisation", config.parent.name, compact(value["quantization_config"]))

put("generation_config", "sampling", '{"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":50,"eos_token_id":[2,5]}')
put("generation_config", "one_end", '{"eos_token_id":2,"bos_token_id":1,"pad_token_id":null}')

put("safetensors", "three", tensors({"x": ("F32", [1], b"abcd"), "y": ("BF16", [2, 2], b"12345678"), "z": ("U8", [0, 3], b"")}))
text = b'{"__metadata__":{"format":"pt"},"i":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}  '
put("safetensors", "scalar", struct.pack("<Q", len(text)) + text + b"1234")
put("safetensors", "cut", struct.pack("<Q", 1 << 40) + b"{}")

put("safetensors_index", "two", '{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"}}')
put("safetensors_index", "outside", '{"weight_map":{"x":"../a.safetensors"}}')
put("safetensors_index", "missing", '{"weight_map":{"x":"c.safetensors"}}')


def zeros(kind, shape, width):
    count = 1
    for size in shape:
        count *= size
    return (kind, shape, bytes(count * width))


order = struct.pack("<64i", *[i // 32 for i in range(64)])
scales = ("F16", [2, 16], b"\x00\x3c" * 32)
put("quantised_tensors", "gptq4", b"\0" + tensors({"m.qweight": zeros("I32", [8, 16], 4), "m.qzeros": zeros("I32", [2, 2], 4), "m.scales": scales}))
put("quantised_tensors", "gptq8_order", b"\1" + tensors({"m.qweight": zeros("I32", [16, 16], 4), "m.qzeros": zeros("I32", [2, 4], 4), "m.scales": scales, "m.g_idx": ("I32", [64], order)}))
put("quantised_tensors", "gptq4_v2_order", b"\2" + tensors({"m.qweight": zeros("I32", [8, 16], 4), "m.qzeros": zeros("I32", [2, 2], 4), "m.scales": scales, "m.g_idx": ("I32", [64], order)}))
put("quantised_tensors", "awq", b"\3" + tensors({"m.qweight": zeros("I32", [64, 2], 4), "m.qzeros": zeros("I32", [2, 2], 4), "m.scales": scales}))
put("quantised_tensors", "packed4", b"\4" + tensors({"m.weight_packed": zeros("I32", [16, 8], 4), "m.weight_scale": ("BF16", [16, 2], b"\x80\x3f" * 32), "m.weight_shape": ("I64", [2], struct.pack("<qq", 16, 64))}))
put("quantised_tensors", "packed8", b"\5" + tensors({"m.weight_packed": zeros("I32", [16, 16], 4), "m.weight_scale": ("BF16", [16, 1], b"\x80\x3f" * 16), "m.weight_zero_point": zeros("I32", [4, 1], 4), "m.weight_shape": ("I64", [2], struct.pack("<qq", 16, 64))}))
put("quantised_tensors", "int8", b"\6" + tensors({"m.weight": zeros("I8", [16, 64], 1), "m.weight_scale": ("BF16", [16, 1], b"\x80\x3f" * 16)}))
put("quantised_tensors", "fp8_blocks", b"\7" + tensors({"m.weight": zeros("F8_E4M3", [16, 64], 1), "m.weight_scale_inv": ("F32", [2, 2], struct.pack("<4f", 1, 1, 1, 1))}))
put("quantised_tensors", "fp8_rows", b"\x08" + tensors({"m.weight": zeros("F8_E4M3", [16, 64], 1), "m.weight_scale": ("BF16", [16, 1], b"\x80\x3f" * 16)}))
put("quantised_tensors", "fp8_matrix", b"\x09" + tensors({"m.weight": zeros("F8_E4M3", [16, 64], 1), "m.weight_scale": ("F32", [], struct.pack("<f", 1))}))
put("quantised_tensors", "mxfp4", b"\x0f" + tensors({"m_blocks": zeros("U8", [2, 16, 2, 16], 1), "m_scales": ("U8", [2, 16, 2], b"\x7f" * 64)}))

# Tokenizers cut down to the tokens of bytes and a few more.
for name in ("gpt2", "qwen2", "llama3", "pieces", "cased"):
    value = json.loads((fixtures / "tokenizer" / (name + ".json")).read_text())
    model = value["model"]
    kept, merges = {}, []
    small = [t for t, i in sorted(model["vocab"].items(), key=lambda item: item[1]) if len(t) == 1 or t.startswith("<0x")]
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        if len(merges) < 4 and left in small and right in small:
            merges.append(merge)
            small.append(left + right)
    for number, token in enumerate(small):
        kept[token] = number
    model["vocab"], model["merges"] = kept, merges
    value["added_tokens"] = (value.get("added_tokens") or [])[:3]
    ids = {}
    for number, token in enumerate(value["added_tokens"]):
        token["id"] = kept.get(token["content"], len(kept) + number)
        ids[token["content"]] = token["id"]
    processor = value.get("post_processor")
    for special in ((processor or {}).get("special_tokens") or {}).values():
        special["ids"] = [ids.get(t, 0) for t in special.get("tokens", [])]
    put("tokenizer", name, compact(value))
    rest = {key: value[key] for key in value if key not in ("model", "version")}
    for token in rest["added_tokens"]:
        token["id"] = token["id"] - len(kept) + (259 if name == "pieces" else 257)
    for special in ((processor or {}).get("special_tokens") or {}).values():
        special["ids"] = [257 for _ in special["ids"]]
    put("tokenizer_parts", name, (b"\1" if name == "pieces" else b"\0") + compact(rest)[1:].encode())

gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
put("regex", "gpt2", gpt2 + "\0The 12 cafés don't")
put("regex", "llama3", llama3 + "\0The 1234 cafés\n\n don't")
put("regex", "backtracks", "(a*)*b|(?=x)y++|[[:alpha:]&&[^a]]\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")

for template in sorted((fixtures / "chat").glob("*/chat_template.jinja")):
    text = template.read_text()
    put("chat_template", template.parent.name, text)
    if len(text) < 800:
        put("chat_template_files", template.parent.name, compact({"chat_template": text, "bos_token": "<s>"}))
put("chat_template_files", "named", compact({"chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "{{ bos_token }}{{ messages[0]['content'] }}"}], "bos_token": {"content": "<s>"}, "extra_special_tokens": {"image_token": "<i>"}}))
put("chat_template", "loops", "{%- for i in range(3) %}{{ loop.index ~ ',' }}{% else %}none{% endfor -%}{% set n = namespace(x=[1, 2]) %}{{ n.x | join('-') | upper }}{{ messages | map(attribute='role') | list | tojson }}{% if not false and 'a' in 'abc' %}{{ 'x' * 3 + ('y' if true else 'z') }}{% endif %}")
put("chat_template", "macros_and_slices", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ messages[::-1][0].content[1:3].split('l')|length }}{{ strftime_now('%d') is defined }}{{ {'a': 1}.items() | list }}{{ raise_exception('no') }}")

u8, i32, u32, f32, boolean, string, array, u64 = 0, 5, 4, 6, 7, 8, 9, 10


def word(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def entry(key, kind, content):
    return word(key) + struct.pack("<I", kind) + content


def list_of(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def gguf(entries, of):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(of), len(entries)) + b"".join(entries)
    data = b""
    for name, dims, kind, content in of:
        out += word(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    return out + bytes(-len(out) % 32) + data


sizes = {"context_length": 512, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32,
         "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 16,
         "attention.value_length": 16, "rope.dimension_count": 16}
for architecture in ("llama", "qwen2", "qwen3", "gemma3", "gemma2", "phi3", "glm4", "olmo2", "smollm3", "mistral3", "qwen3moe", "gpt-oss"):
    entries = [entry("general.architecture", string, word(architecture)), entry("general.alignment", u32, struct.pack("<I", 32))]
    entries += [entry(f"{architecture}.{key}", u32, struct.pack("<I", value)) for key, value in sizes.items()]
    entries.append(entry(f"{architecture}.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-6)))
    if architecture == "gemma3":
        entries += [entry("gemma3.attention.sliding_window", u32, struct.pack("<I", 16)), entry("gemma3.rope.freq_base_swa", f32, struct.pack("<f", 1e4)), entry("gemma3.rope.scaling.type", string, word("linear")), entry("gemma3.rope.scaling.factor", f32, struct.pack("<f", 8))]
    tensors = [("token_embd.weight", [32, 2], 0, bytes(256)), ("output_norm.weight", [32], 0, bytes(128)), ("blk.0.attn_q.weight", [32, 2], 8, bytes(68))]
    if architecture in ("gemma2", "phi3", "gpt-oss"):
        entries.append(entry(f"{architecture}.attention.sliding_window", u32, struct.pack("<I", 16)))
    if architecture == "phi3":
        tensors = tensors[:2] + [("rope_factors_long.weight", [8], 0, struct.pack("<8f", *range(1, 9))), ("rope_factors_short.weight", [8], 0, struct.pack("<8f", *[1] * 8)), ("blk.0.attn_qkv.weight", [32, 64], 8, bytes(64 * 34))]
        entries += [entry("phi3.rope.scaling.original_context_length", u32, struct.pack("<I", 128)), entry("phi3.rope.scaling.attn_factor", f32, struct.pack("<f", 1.2))]
    if architecture in ("qwen3moe", "gpt-oss"):
        entries += [entry(f"{architecture}.{key}", u32, struct.pack("<I", value)) for key, value in (("expert_count", 2), ("expert_used_count", 1), ("expert_feed_forward_length", 32), ("split.count", 1))]
        tensors.append(("blk.0.ffn_gate_exps.weight", [32, 32, 2], 39, bytes(64 * 17)))
    if architecture == "gpt-oss":
        entries.append(entry("gpt-oss.attention.sliding_window_pattern", array, list_of(boolean, [b"\1"])))
    put("gguf", architecture, gguf(entries, tensors))

# Latent attention.
latent = sizes | {"attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 24,
                  "attention.value_length_mla": 16, "attention.kv_lora_rank": 32, "attention.q_lora_rank": 16,
                  "rope.dimension_count": 8, "leading_dense_block_count": 0, "expert_count": 4,
                  "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_count": 1,
                  "expert_group_count": 2, "expert_group_used_count": 1, "expert_gating_func": 2}
put("gguf", "deepseek2", gguf(
    [entry("general.architecture", string, word("deepseek2"))]
    + [entry(f"deepseek2.{key}", u32, struct.pack("<I", value)) for key, value in latent.items()]
    + [entry("deepseek2.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-6)),
       entry("deepseek2.expert_weights_scale", f32, struct.pack("<f", 2.5)),
       entry("deepseek2.expert_weights_norm", boolean, b"\1")],
    [("token_embd.weight", [32, 2], 0, bytes(256)), ("output_norm.weight", [32], 0, bytes(128)),
     ("blk.0.attn_k_b.weight", [16, 32, 2], 0, bytes(4096)), ("blk.0.exp_probs_b.bias", [4], 0, bytes(16))]))

# Hybrids: a layer that is a recurrence, one of attention, and a block that drafts tokens.
for architecture in ("qwen35", "qwen35moe", "qwen3next"):
    hybrid = sizes | {"block_count": 3, "rope.dimension_count": 4, "ssm.conv_kernel": 4, "ssm.state_size": 16,
                      "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.inner_size": 32,
                      "full_attention_interval": 2, "nextn_predict_layers": 1}
    tensors = [("token_embd.weight", [32, 2], 0, bytes(256)), ("output_norm.weight", [32], 0, bytes(128)), ("blk.0.attn_qkv.weight", [32, 64], 8, bytes(64 * 34)), ("blk.0.ssm_a", [2], 0, struct.pack("<2f", -1, -2)), ("blk.2.nextn.enorm.weight", [32], 0, bytes(128))]
    entries = [entry("general.architecture", string, word(architecture)), entry(f"{architecture}.rope.dimension_sections", array, list_of(i32, [struct.pack("<i", n) for n in (1, 1, 0, 0)]))]
    if architecture != "qwen35":
        hybrid |= {"expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}
        entries.append(entry(f"{architecture}.attention.recurrent_layers", array, list_of(boolean, [b"\1", b"\0", b"\0"])))
        tensors.append(("blk.0.ffn_gate_inp_shexp.weight", [32], 0, bytes(128)))
    entries += [entry(f"{architecture}.{key}", u32, struct.pack("<I", value)) for key, value in hybrid.items()]
    entries.append(entry(f"{architecture}.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-6)))
    put("gguf", architecture, gguf(entries, tensors))

# A recurrent layer, an MLP where that is a layer, and one of attention.
for architecture, tensor in (("lfm2", ("blk.0.shortconv.conv.weight", [3, 32], 0, bytes(384))),
                             ("granitehybrid", ("blk.0.ssm_d", [1, 2], 0, bytes(8))),
                             ("nemotron_h", ("blk.0.ssm_norm.weight", [16, 2], 0, bytes(128))),
                             ("nemotron_h_moe", ("blk.1.exp_probs_b.bias", [4], 0, bytes(16))),
                             ("lfm2moe", ("blk.1.exp_probs_b.bias", [4], 0, bytes(16)))):
    apart = architecture.startswith("nemotron_h")
    mixed = architecture in ("nemotron_h_moe", "lfm2moe")
    kv_heads = (0, 0, 1) if apart else (0, 1)
    some = {key: value for key, value in sizes.items() if key not in ("attention.head_count_kv", "feed_forward_length")}
    some |= {"block_count": len(kv_heads), "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1,
             "ssm.time_step_rank": 2, "ssm.inner_size": 32, "shortconv.l_cache": 3}
    if not apart:
        some["feed_forward_length"] = 32
    if mixed:
        some |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
                 "expert_shared_feed_forward_length": 32, "expert_group_count": 2,
                 "leading_dense_block_count": 1}
    entries = [entry("general.architecture", string, word(architecture))]
    entries += [entry(f"{architecture}.{key}", u32, struct.pack("<I", value)) for key, value in some.items()]
    entries += [entry(f"{architecture}.attention.head_count_kv", array, list_of(i32, [struct.pack("<i", n) for n in kv_heads])),
                entry(f"{architecture}.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-6))]
    if apart:
        entries.append(entry(f"{architecture}.feed_forward_length", array, list_of(i32, [struct.pack("<i", n) for n in (0, 32, 0)])))
    if architecture == "granitehybrid":
        entries += [entry(f"granitehybrid.{key}", f32, struct.pack("<f", 2)) for key in ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")]
        entries.append(entry("granitehybrid.rope.scaling.finetuned", boolean, b"\0"))
    norm = "token_embd_norm.weight" if architecture.startswith("lfm2") else "output_norm.weight"
    put("gguf", architecture, gguf(entries, [("token_embd.weight", [32, 2], 0, bytes(256)), (norm, [32], 0, bytes(128)), tensor]))

u16 = 2
def parts(entries, first, second, count=2, of=None):
    """Two files of a model, as gguf_split takes them. of: how many tensors they claim to have."""
    of = len(first) + len(second) if of is None else of
    said = [entry("split.count", u16, struct.pack("<H", count)), entry("split.tensors.count", i32, struct.pack("<i", of))]
    files = [gguf((entries if number == 0 else []) + said + [entry("split.no", u16, struct.pack("<H", number))], tensors) for number, tensors in enumerate((first, second))]
    return struct.pack("<I", len(files[0])) + b"".join(files)


llama = [entry("general.architecture", string, word("llama")), entry("llama.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", 1e-6))]
llama += [entry(f"llama.{key}", u32, struct.pack("<I", value)) for key, value in sizes.items()]
embedding, norm, query = [("token_embd.weight", [32, 2], 0, bytes(256))], [("output_norm.weight", [32], 0, bytes(128))], [("blk.0.attn_q.weight", [32, 32], 8, bytes(32 * 34))]
put("gguf_split", "two", parts(llama, embedding + norm, query))
put("gguf_split", "metadata_apart", parts(llama, [], embedding + norm + query))
put("gguf_split", "twice", parts(llama, embedding + norm, norm + query))
put("gguf_split", "three", parts(llama, embedding + norm, query, count=3))
put("gguf_split", "fewer", parts(llama, embedding + norm, query, of=5))
put("gguf_split", "cut", parts(llama, embedding + norm, query)[:-40])
put("gguf_split", "first_alone", struct.pack("<I", 1 << 30) + parts(llama, embedding + norm, query)[4:])
spelled = [chr(b).encode() for b in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]] + [chr(256 + i).encode() for i in range(68)]
bytes_tokens = [word(t) for t in spelled] + [word("aa"), word("<s>")]
kinds = [struct.pack("<i", 1)] * 257 + [struct.pack("<i", 3)]
put("gguf", "bytes", gguf([entry("tokenizer.ggml.model", string, word("gpt2")), entry("tokenizer.ggml.pre", string, word("qwen2")), entry("tokenizer.ggml.tokens", array, list_of(string, bytes_tokens)), entry("tokenizer.ggml.token_type", array, list_of(i32, kinds)), entry("tokenizer.ggml.merges", array, list_of(string, [word("a a")])), entry("tokenizer.ggml.bos_token_id", u32, struct.pack("<I", 257)), entry("tokenizer.ggml.add_bos_token", boolean, b"\1"), entry("tokenizer.chat_template", string, word("{{ bos_token }}{{ messages[0].content }}"))], []))
piece_tokens = [word("<unk>"), word("<s>"), word("</s>")] + [word(f"<0x{b:02X}>") for b in range(256)] + [word("▁"), word("a"), word("aa")]
piece_kinds = [2, 3, 3] + [6] * 256 + [1, 1, 1]
put("gguf", "pieces", gguf([entry("tokenizer.ggml.model", string, word("llama")), entry("tokenizer.ggml.tokens", array, list_of(string, piece_tokens)), entry("tokenizer.ggml.token_type", array, list_of(i32, [struct.pack("<i", k) for k in piece_kinds])), entry("tokenizer.ggml.scores", array, list_of(f32, [struct.pack("<f", -i) for i in range(len(piece_tokens))])), entry("tokenizer.ggml.bos_token_id", u32, struct.pack("<I", 1))], []))

for kind in (2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 29, 34, 35, 39, 40):
    put("gguf_blocks", f"type{kind}", bytes([kind]) + bytes(range(256)))

specs = ["exact", "codes:k=16,v=8", "ivf:size=32,share=32", "hnsw:M=16,efc=100,ef=0", "faiss:HNSW32;ef=10,efc=20", "faiss:IVF4096,SQ8;nprobe=4", "faiss:IVF,PQ16x4", "quest:page=16", "sparq:r=32,v=0", "squeezed:c=5,coarse=0,s=0", "retroinfer:size=16,segment=8192,v=1", "lowrank:r=16", "h2o", "mean", "pages:size=16", "sample:rows=256,eps=0,delta=5", "q8/q4", "bf16", "int4", "64", "uniform:512", "linear:64-512", "pyramid:512"]
for spec in specs:
    put("index_spec", "".join(c if c.isalnum() else "_" for c in spec), spec)

put("cli_command_line", "needle", "needle\n-m\nmodels/needle-14m\n-c\n4K,8K\n--depths\n10\n--kv-topk=64\n-o\nout")
put("cli_command_line", "generate", "generate\n-m\nx\n-p\nhello\n-n32\n--temp\n0.7\n--chat\n--kv-index\nexact\n--kv-index\nivf")
put("cli_command_line", "info", "info\nx.gguf\n--json")
put("cli_command_line", "bench", "bench\ndecode\n--heads\n8\n--kv-dtype\nq8/q4")
put("cli_command_line", "help", "eval\n--help")
put("cli_command_line", "twice", "plan\n-m\nx\n-m\ny\n--\n-z")
put("cli_flags", "all", "codes:k=16,v=8\nuniform:64\n512\n4\ngroup\n2\nmean\n0.95\n0.1\nq8/q4\nwindow\n1K\nauto\n8GiB\n0.7\n0.9")
put("cli_flags", "count", "1.5M")
put("cli_flags", "counts", "128K,1M, 4Ki")
put("cli_flags", "bytes", "8GiB")
put("cli_flags", "depths", "5,50%,95")
put("cli_flags", "seed", "18446744073709551615")
