// Flags of the benchmarks that run a model: its device, its weights, its rows and its index.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topkv/error.h"
#include "topkv/model.h"

namespace bench {

inline std::int64_t number(const char* text) {
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, value).ptr == end && value > 0) return value;
  throw topkv::InvalidArgument(fmt::format("'{}' is not a number from 1", text));
}

/// lengths: of texts, in tokens; those of the call, or `usual`. top: rows that each query head
/// retrieves (RetrievalOptions::k), at least one number.
struct ModelFlags {
  std::string directory;
  std::string device = "cpu";
  std::string index = "exact";
  std::int64_t gpu_memory = 0;
  std::int64_t device_rows = 0;  ///< RetrievalOptions::device_rows
  topkv::LoadOptions load;
  topkv::PrefillOptions prefill;
  std::optional<topkv::PrefillAttention> turns;  ///< RetrievalOptions::turns
  std::int64_t question = 64;                    ///< tokens of a turn
  std::vector<std::int64_t> top;
  std::vector<std::int64_t> lengths;
};

inline ModelFlags model_flags(int argc, char** argv, std::vector<std::int64_t> usual) {
  ModelFlags flags;
  flags.prefill.attention.mode = topkv::Prefill::window;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto is = [&](const char* name) { return argument == name && i + 1 < argc; };
    if (is("--device")) {
      flags.device = argv[++i];
    } else if (is("--gpu-mem")) {
      flags.gpu_memory = number(argv[++i]) << 30;
    } else if (is("--device-rows")) {
      flags.device_rows = number(argv[++i]) << 30;
    } else if (is("--mem")) {
      flags.prefill.memory_budget = number(argv[++i]) << 30;
    } else if (is("--index")) {
      flags.index = argv[++i];
    } else if (is("--topk")) {
      flags.top.push_back(number(argv[++i]));
    } else if (is("--weights")) {
      flags.load.weights = topkv::parse_weight_format(argv[++i]);
    } else if (is("--kv-dtype")) {
      flags.prefill.kv_dtype = topkv::KvDType::parse(argv[++i]);
    } else if (is("--prefill")) {
      flags.prefill.attention.mode = topkv::parse_prefill(argv[++i]);
    } else if (is("--turns")) {
      flags.turns = {.mode = topkv::parse_prefill(argv[++i])};
    } else if (is("--question")) {
      flags.question = number(argv[++i]);
    } else if (flags.directory.empty()) {
      flags.directory = argument;
    } else {
      flags.lengths.push_back(number(argv[i]));
    }
  }
  if (flags.directory.empty()) flags.directory = "models/needle-14m";
  if (flags.top.empty()) flags.top = {64};
  if (flags.lengths.empty()) flags.lengths = std::move(usual);
  return flags;
}

/// Tokens that have no meaning: all of the vocabulary in turn, mixed.
inline std::vector<topkv::Token> any_tokens(std::int64_t count, std::int64_t vocab_size) {
  std::vector<topkv::Token> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<topkv::Token>(2 + i * 2654435761U % (vocab_size - 2));
  return tokens;
}

}  // namespace bench
