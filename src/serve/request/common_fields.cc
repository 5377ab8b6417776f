#include "src/serve/request/common_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

std::vector<std::string> stops(Fields& fields) {
  const BodyJson* value = fields.find("stop");
  if (value == nullptr) return {};
  const std::string expected =
      fmt::format("a string or up to {}, each of 1 to {} bytes", max_stops, max_stop_bytes);
  const std::vector<BodyJson> given =
      value->is_array() ? value->get<std::vector<BodyJson>>() : std::vector<BodyJson>{*value};
  if (given.size() > max_stops) fields.refuse("stop", *value, expected);
  std::vector<std::string> stops;
  for (const BodyJson& one : given) {
    if (!one.is_string()) fields.refuse("stop", *value, expected);
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || stops.back().size() > max_stop_bytes)
      fields.refuse("stop", *value, expected);
  }
  return stops;
}

/// The id that a key spells, as clients do: digits, the first not 0 unless it is alone.
std::optional<Token> id_of(std::string_view key) {
  Token id = 0;
  const char* const end = key.data() + key.size();
  const auto [read, error] = std::from_chars(key.data(), end, id);
  if (error != std::errc() || read != end || key.front() == '-') return {};
  if (key.front() == '0' && key.size() > 1) return {};
  return id;
}

std::vector<TokenBias> biases(Fields& fields) {
  const BodyJson* value = fields.find("logit_bias");
  if (value == nullptr) return {};
  const std::string expected = fmt::format(
      "an object of up to {} token ids, such as \"50256\", with numbers from -100 to 100",
      max_biases);
  if (!value->is_object() || value->size() > max_biases)
    fields.refuse("logit_bias", *value, expected);
  std::vector<TokenBias> biases;
  for (const auto& [key, bias] : value->items()) {
    const std::optional<Token> id = id_of(key);
    if (!id) fields.refuse("logit_bias", BodyJson(key), expected);
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100))
      fields.refuse("logit_bias", bias, expected);
    biases.push_back({*id, bias.get<double>()});
  }
  return biases;
}

}  // namespace

std::optional<std::int64_t> read_max_tokens(Fields& fields, std::string_view key,
                                            std::int64_t fewest, AnswerOptions& options) {
  const BodyJson* value = fields.find(key);
  if (value != nullptr && value->is_number_integer() && !value->is_number_unsigned() &&
      value->get<std::int64_t>() == -1) {
    options.unlimited = true;
    return {};
  }
  return fields.integer(key, fewest, INT64_MAX);  // --room says how many at most
}

void take_sampling(Fields& fields, AnswerOptions& options, std::string_view repetition_penalty) {
  options.temperature = fields.number("temperature", 0, 100);
  options.top_p = fields.number("top_p", 0, 1);
  if (options.top_p == 0.0) {  // of the likeliest token alone
    options.top_p = 1;
    options.temperature = 0;
  }
  options.top_k = fields.integer("top_k", -1, most_tokens);
  if (options.top_k == -1) options.top_k = 0;  // as vLLM's clients turn it off
  options.min_p = fields.number("min_p", 0, 1);
  options.frequency_penalty = fields.number("frequency_penalty", -2, 2);
  options.presence_penalty = fields.number("presence_penalty", -2, 2);
  options.repetition_penalty = fields.number(repetition_penalty, 0, 10, true);
  options.stop = stops(fields);
}

void take_seed(Fields& fields, AnswerOptions& options) {
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX))
    options.seed = static_cast<std::uint64_t>(*seed);
}

void take_chat_logprobs(Fields& fields, AnswerOptions& options) {
  const bool logprobs = fields.flag("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, max_top_logprobs);
  if (top && !logprobs)
    throw Problem(
        400, fmt::format("{}: top_logprobs is for requests with \"logprobs\": true", request_body),
        "top_logprobs");
  if (logprobs) options.logprobs = top.value_or(0);
}

void take_common(Fields& fields, AnswerRequest& request, std::int64_t fewest) {
  AnswerOptions& options = request.options;
  request.model = fields.text("model").value_or("");
  request.context = fields.text("context").value_or("");
  options.max_tokens = read_max_tokens(fields, "max_tokens", fewest, options);
  take_sampling(fields, options, "repetition_penalty");
  take_seed(fields, options);
  options.choices = fields.integer("n", 1, max_choices).value_or(1);
  request.stream = fields.flag("stream").value_or(false);
  if (const BodyJson* more = fields.find("stream_options")) {
    Fields of_stream(*more, "stream_options");
    request.stream_usage = of_stream.flag("include_usage").value_or(false);
    of_stream.done();
    if (!request.stream)
      throw Problem(
          400,
          fmt::format("{}: stream_options is for requests with \"stream\": true", request_body),
          "stream_options");
  }
  options.logit_bias = biases(fields);
}

}  // namespace topkv::serve
