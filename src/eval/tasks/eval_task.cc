#include "src/eval/tasks/eval_task.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv {

std::vector<Token> TaskTokens::context(std::string_view text) const {
  std::vector<Token> tokens = beginning;
  const std::vector<Token> encoded = encode(text);
  tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  return tokens;
}

std::int64_t TaskTokens::room(std::int64_t length, std::string_view question,
                              std::int64_t predict) const {
  const std::int64_t asked = count(question);
  const std::int64_t left = length - asked - predict - static_cast<std::int64_t>(beginning.size());
  if (left > 0) return left;
  throw InvalidArgument(
      fmt::format("a length of {} tokens leaves none for the context: the question takes {} and {} "
                  "are kept for "
                  "the answer; use a longer length",
                  length, asked, predict));
}

std::uint64_t sample_seed(std::uint64_t seed, const EvalTask& task, std::int64_t length,
                          std::int64_t number) {
  std::uint64_t name = 14695981039346656037ULL;  // FNV-1a
  for (const char c : task.seed_name) {
    name = (name ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  seed = mix_seed(seed, name);
  seed = mix_seed(seed, static_cast<std::uint64_t>(length));
  return mix_seed(seed, static_cast<std::uint64_t>(number));
}

}  // namespace topkv
