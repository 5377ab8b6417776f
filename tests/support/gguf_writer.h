// GGUF files put together by what the format's specification says, sharing no code with the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/tensor_file.h"

namespace topkv::gguf {

template <class T>
std::string bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A length and the text.
inline std::string text(std::string_view of) {
  return bytes(std::uint64_t{of.size()}) + std::string(of);
}

enum Kind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct Value {
  std::string key;
  std::string content;  // kind and value
};

inline Value number(std::string key, std::uint32_t value) {
  return {std::move(key), bytes(u32) + bytes(value)};
}
inline Value real(std::string key, float value) {
  return {std::move(key), bytes(f32) + bytes(value)};
}
inline Value flag(std::string key, bool value) {
  return {std::move(key), bytes(boolean) + bytes(std::uint8_t{value})};
}
inline Value words(std::string key, std::string_view value) {
  return {std::move(key), bytes(string) + text(value)};
}
inline Value texts(std::string key, const std::vector<std::string>& values) {
  std::string content = bytes(array) + bytes(string) + bytes(std::uint64_t{values.size()});
  for (const std::string& value : values) content += text(value);
  return {std::move(key), content};
}
inline Value integers(std::string key, const std::vector<std::int32_t>& values) {
  std::string content = bytes(array) + bytes(i32) + bytes(std::uint64_t{values.size()});
  for (const std::int32_t value : values) content += bytes(value);
  return {std::move(key), content};
}

inline Value flags(std::string key, const std::vector<bool>& values) {
  std::string content = bytes(array) + bytes(boolean) + bytes(std::uint64_t{values.size()});
  for (const bool value : values) content += bytes(std::uint8_t{value});
  return {std::move(key), content};
}

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> dims;  // as the file has them: the length of rows first
  std::uint32_t type = 0;
  std::string bytes = {};
  std::uint64_t move = 0;  // of where it is said to be
};

struct File {
  std::vector<Value> values;
  std::vector<Tensor> tensors;
  std::uint32_t version = 3;
  std::uint64_t more_values = 0;   // than there are
  std::uint64_t more_tensors = 0;  // likewise

  void set(const Value& value) {
    erase(value.key);
    values.push_back(value);
  }
  void erase(std::string_view key) {
    std::erase_if(values, [&](const Value& one) { return one.key == key; });
  }
  Tensor& tensor(std::string_view name) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const Tensor& one) { return one.name == name; });
  }

  std::string header() const {
    std::string out = "GGUF" + bytes(version) + bytes(tensors.size() + more_tensors) +
                      bytes(values.size() + more_values);
    for (const Value& value : values) out += text(value.key) + value.content;
    std::uint64_t at = 0;
    for (const Tensor& one : tensors) {
      out += text(one.name) + bytes(static_cast<std::uint32_t>(one.dims.size()));
      for (const std::uint64_t dim : one.dims) out += bytes(dim);
      out += bytes(one.type) + bytes(at + one.move);
      at += (one.bytes.size() + 31) / 32 * 32;
    }
    return out;
  }
  std::string content() const {
    std::string out = header();
    const auto align = [&] { out.resize((out.size() + 31) / 32 * 32, '\0'); };
    align();
    for (const Tensor& one : tensors) {
      out += one.bytes;
      align();
    }
    return out;
  }
};

/// The name that llama.cpp gives a tensor of a Hugging Face checkpoint.
inline std::string name_of(const std::string& name) {
  static const std::vector<std::pair<std::string, std::string>> parts = {
      {"model.embed_tokens.", "token_embd."},
      {"model.norm.", "output_norm."},
      {"lm_head.", "output."},
      {"model.layers.", "blk."},
      {"self_attn.q_proj.", "attn_q."},
      {"self_attn.k_proj.", "attn_k."},
      {"self_attn.v_proj.", "attn_v."},
      {"self_attn.o_proj.", "attn_output."},
      {"input_layernorm.", "attn_norm."},
      {"post_attention_layernorm.", "ffn_norm."},
      {"mlp.gate_proj.", "ffn_gate."},
      {"mlp.up_proj.", "ffn_up."},
      {"mlp.down_proj.", "ffn_down."}};
  std::string out = name;
  for (const auto& [from, to] : parts) {
    if (const std::size_t at = out.find(from); at != out.npos) out.replace(at, from.size(), to);
  }
  return out;
}

/// A Llama of Hugging Face's layout, as llama.cpp's converter would have it: rows i and i + d / 2 of
/// each head of q and k behind each other.
inline File llama(const nlohmann::json& config, const FileTensors& from) {
  const auto size = [&](const char* key) { return config.at(key).get<std::uint32_t>(); };
  const auto head = size("head_dim");
  File file;
  file.values = {words("general.architecture", "llama"),
                 number("llama.context_length", size("max_position_embeddings")),
                 number("llama.embedding_length", size("hidden_size")),
                 number("llama.block_count", size("num_hidden_layers")),
                 number("llama.feed_forward_length", size("intermediate_size")),
                 number("llama.attention.head_count", size("num_attention_heads")),
                 number("llama.attention.head_count_kv", size("num_key_value_heads")),
                 number("llama.attention.key_length", head),
                 number("llama.attention.value_length", head),
                 number("llama.rope.dimension_count", head),
                 real("llama.attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>())};
  for (const auto& [name, tensor] : from) {
    Tensor out{name_of(name), {}, tensor.dtype == "F32" ? 0U : tensor.dtype == "F16" ? 1U : 30U,
               tensor.bytes};
    for (const auto& dim : tensor.shape) out.dims.insert(out.dims.begin(), dim.get<std::uint64_t>());
    const bool turned = name.find("q_proj") != name.npos || name.find("k_proj") != name.npos;
    if (turned) {
      const std::size_t rows = tensor.shape[0];
      const std::size_t row = tensor.bytes.size() / rows;
      for (std::size_t r = 0; r < rows; ++r) {
        const std::size_t in_head = r % head;
        const std::size_t to = r - in_head + in_head % (head / 2) * 2 + in_head / (head / 2);
        out.bytes.replace(to * row, row, tensor.bytes.substr(r * row, row));
      }
    }
    file.tensors.push_back(out);
  }
  return file;
}

/// The metadata of a tokenizer.json of byte-level BPE.
inline void add_tokenizer(File& file, const nlohmann::json& json, std::string_view pre) {
  std::size_t count = 0;
  const auto grow = [&](const nlohmann::json& id) {
    count = std::max(count, id.get<std::size_t>() + 1);
  };
  for (const auto& [content, id] : json.at("model").at("vocab").items()) grow(id);
  for (const auto& token : json.at("added_tokens")) grow(token.at("id"));
  std::vector<std::string> tokens(count);
  std::vector<std::int32_t> types(count, 5);  // unused
  for (std::size_t i = 0; i < count; ++i) tokens[i] = "[PAD" + std::to_string(i) + "]";
  for (const auto& [content, id] : json.at("model").at("vocab").items()) {
    tokens[id.get<std::size_t>()] = content;
    types[id.get<std::size_t>()] = 1;
  }
  for (const auto& token : json.at("added_tokens")) {
    tokens[token.at("id").get<std::size_t>()] = token.at("content");
    types[token.at("id").get<std::size_t>()] = token.at("special").get<bool>() ? 3 : 4;
  }
  std::vector<std::string> merges;
  for (const auto& merge : json.at("model").at("merges")) {
    if (merge.is_string()) {
      merges.push_back(merge);
    } else {
      merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
  }
  file.set(words("tokenizer.ggml.model", "gpt2"));
  file.set(words("tokenizer.ggml.pre", pre));
  file.set(texts("tokenizer.ggml.tokens", tokens));
  file.set(integers("tokenizer.ggml.token_type", types));
  file.set(texts("tokenizer.ggml.merges", merges));
}

}  // namespace topkv::gguf
