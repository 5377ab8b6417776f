#include "src/serve/request/ollama_options.h"

#include <fmt/format.h>

#include "src/serve/request/common_fields.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

/// How a model is loaded, and what becomes of a text that is too long. The server's flags say both.
constexpr const char* of_loading[] = {
    "num_ctx",    "num_keep",          "num_batch",    "num_gpu",      "main_gpu",
    "num_thread", "use_mmap",          "use_mlock",    "low_vram",     "f16_kv",
    "numa",       "draft_num_predict", "mirostat_tau", "mirostat_eta", "penalize_newline"};

bool penalises(const AnswerOptions& options) {
  return options.repetition_penalty.value_or(1) != 1 || options.presence_penalty.value_or(0) != 0 ||
         options.frequency_penalty.value_or(0) != 0;
}

/// Penalties count all tokens here.
void take_penalised_tokens(Fields& fields, AnswerOptions& options) {
  const auto last = fields.integer("repeat_last_n", -1, INT64_MAX);
  if (!last || *last == -1 || !penalises(options)) return;
  if (*last != 0)
    throw Problem(
        400,
        fmt::format("{}: options.repeat_last_n is {}, but penalties count all tokens here; give "
                    "-1, or 0 for no penalties",
                    request_body, *last),
        "options.repeat_last_n", "unsupported_value");
  options.repetition_penalty = 1;
  options.presence_penalty = options.frequency_penalty = 0;
}

}  // namespace

void take_ollama_options(Fields& fields, AnswerOptions& options) {
  options.unlimited = true;  // unless num_predict says otherwise
  const BodyJson* value = fields.find("options");
  if (value == nullptr) return;
  Fields given(*value, "options");
  if (given.find("num_predict") != nullptr && *given.find("num_predict") != -2)
    options.max_tokens = read_max_tokens(given, "num_predict", 1, options);
  options.unlimited = !options.max_tokens;
  take_sampling(given, options, "repeat_penalty");
  take_penalised_tokens(given, options);
  take_seed(given, options);
  if (options.seed == UINT64_MAX) options.seed.reset();  // -1: any
  given.only("typical_p", {1});
  given.only("tfs_z", {1});
  given.only("mirostat", {0});
  for (const char* key : {"vocab_only", "logits_all", "embedding_only"}) given.only(key, {false});
  for (const char* key : of_loading) given.find(key);
  given.done();
}

}  // namespace topkv::serve
