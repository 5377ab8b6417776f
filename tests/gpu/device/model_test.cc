// The model runner on a device: checkpoints of the head dims that it knows against transformers,
// and the bundled model against itself on the host.
#include "topkv/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "src/core/math/convert.h"
#include "src/model/weights/safetensors.h"
#include "tests/support/bundled_model.h"
#include "tests/support/temp_directory.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Place;

const std::filesystem::path root(TOPKV_SOURCE_DIR);

/// The typical error of logits, or of K and V, relative to their typical size.
///
/// Per layer eight operands are rounded to bf16 (the inputs of the products for q, k, v and of the
/// MLP, q, k, v, the attention weights, its result, the inner activations), and one before the
/// logits; each is off by at most 2^-9, relatively. These errors have either sign and go through
/// layers that keep their relative size on the whole, so they add up as a random walk does.
double typical_error(const ModelConfig& config) {
  return 0x1p-9 * std::sqrt(static_cast<double>(8 * config.attention.layers + 1));
}

struct Error {
  double typical = 0;  ///< root mean square, relative to that of the numbers wanted
  double worst = 0;    ///< relative to the largest number wanted
};

Error error_of(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double largest = 0;
  double squares = 0;
  double off_squares = 0;
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(double{got[i]} - want[i]);
    largest = std::max(largest, std::abs(double{want[i]}));
    squares += double{want[i]} * want[i];
    off_squares += off * off;
    if (!(off <= worst)) worst = off;
    if (std::isnan(worst)) break;
  }
  return {std::sqrt(off_squares / squares), worst / largest};
}

/// Layers may enlarge errors: twice the typical error is allowed, and three times that of Gated
/// DeltaNet layers, which normalise what each head gives. The worst of thousands of errors
/// is four times the typical one and more, the largest number wanted about four times a typical
/// number: twice that. (With bf16 operands imitated in PyTorch the typical error of the two-layer
/// checkpoints is 0.5 to 1.0 %, with 1.6 % allowed, and the worst 0.6 to 2.2 %, with 3.2 %. That of
/// Qwen3.5's four layers is 1.6 %.)
Error allowed_by(const ModelConfig& config) {
  const double typical = (config.delta.key_heads > 0 ? 3 : 2) * typical_error(config);
  return {typical, 2 * typical};
}

void expect_close(std::span<const float> got, std::span<const float> want, const Error& allowed,
                  const std::string& what) {
  const Error error = error_of(got, want);
  std::cout << what << ": typically off by " << error.typical << " (" << allowed.typical
            << " allowed), at worst by " << error.worst << " (" << allowed.worst << " allowed)\n";
  EXPECT_LE(error.typical, allowed.typical) << what;
  EXPECT_LE(error.worst, allowed.worst) << what;
}

void expect_close(std::span<const float> got, std::span<const float> want,
                  const ModelConfig& config, const std::string& what) {
  expect_close(got, want, allowed_by(config), what);
}

struct Variant {
  std::string device, name;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name << " on " << variant.device;
}

std::string name_of_case(const testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.name + "_on_" + info.param.device;
  std::ranges::replace(name, '-', '_');
  return name;
}

class ModelParity : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::ifstream file(folder() / "tokens.json");
    json_ = nlohmann::json::parse(file);
    tokens_ = json_.at("tokens").get<std::vector<Token>>();
  }
  std::filesystem::path folder() const { return root / "tests/fixtures/parity" / GetParam().name; }
  std::filesystem::path checkpoint() const {
    if (GetParam().name == "needle-14m") return root / "models/needle-14m";
    const auto gguf = folder() / "model.gguf";
    return std::filesystem::exists(gguf) ? gguf : folder();
  }
  /// transformers' logits of the last tokens.
  std::vector<float> reference(std::int64_t vocab) const {
    const bool bundled = GetParam().name == "needle-14m";  // its reference is 8 rows, to stay small
    const std::int64_t rows = bundled ? 8 : static_cast<std::int64_t>(tokens_.size());
    const auto tensors = SafeTensors::open(folder() / "reference");
    const auto logits = tensors.get("logits", std::vector<std::int64_t>{rows, vocab});
    std::vector<float> values(static_cast<std::size_t>(rows * vocab));
    to_float(logits.data, logits.dtype, rows * vocab, values.data());
    return values;
  }

  /// The errors allowed over "all" tokens, or over the "last" ones.
  ///
  /// How far rounding moves the logits of Gemma 4 depends on the weights drawn: in seven fixtures,
  /// by 1.0 to 4.7 times the typical error above. These fixtures therefore hold the largest errors
  /// of 32 imitations in PyTorch, each of which changes every operand of a product at random by as
  /// much as its rounding may (tools/parity_rounding.py). A device's rounding is one more such
  /// draw: half as much again as the largest of 32 is allowed. (Of other families the imitation is
  /// 0.3 to 1.2 times the typical error above.)
  Error allowed(const ModelConfig& config, const char* span) const {
    if (!json_.contains("rounding")) return allowed_by(config);
    const nlohmann::json& rounding = json_.at("rounding").at(span);
    return {1.5 * rounding.at("typical").get<double>(), 1.5 * rounding.at("worst").get<double>()};
  }

  nlohmann::json json_;
  std::vector<Token> tokens_;
};

TEST_P(ModelParity, LogitsAreThoseOfTransformersWithinBf16) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const Model model = Model::load(checkpoint(), place.device());
  const auto want = reference(model.config().vocab_size);
  const auto got = model.logits(tokens_);
  expect_close(std::span(got).last(want.size()), want, allowed(model.config(), "all"),
               GetParam().name);
}

TEST_P(ModelParity, LogitsThroughASessionThatRetrievesEveryRowAreTheSame) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const Model model = Model::load(checkpoint(), place.device());
  constexpr std::size_t last = 8;
  const std::vector<Token> first(tokens_.begin(), tokens_.end() - last);
  const std::vector<Token> rest(tokens_.end() - last, tokens_.end());
  const auto context = model.prefill(first, {.chunk = 24});
  const auto all = reference(model.config().vocab_size);
  const auto want = std::span(all).last(last * static_cast<std::size_t>(model.config().vocab_size));
  for (const bool one_by_one : {false, true}) {
    Session session(context, {.k = TopK::same(4096), .window = 6, .sinks = 2}, place.device());
    std::vector<float> got;
    for (std::size_t i = 0; i < last; i += one_by_one ? 1 : last) {
      const auto piece = model.logits(session, std::span(rest).subspan(i, one_by_one ? 1 : last));
      got.insert(got.end(), piece.begin(), piece.end());
    }
    expect_close(got, want, allowed(model.config(), "last"),
                 GetParam().name + " through a session");
  }
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const char* name : {"llama-bias-head64",
                           "llama3-head80",
                           "qwen2-head96",
                           "qwen3-head128",
                           "mistral-window-head256",
                           "phi3-head64",
                           "glm",
                           "glm4",
                           "olmo2",
                           "smollm3",
                           "gemma2",
                           "gemma3",
                           "qwen3-chunks",
                           "gptq-llama",
                           "gptq-phi3",
                           "awq-qwen2",
                           "w4a16-llama",
                           "w8-qwen3",
                           "fp8-qwen3",
                           "gguf-llama",
                           "gguf-llama-small",
                           "gguf-qwen2",
                           "gguf-qwen3",
                           "gguf-qwen35",
                           "gguf-qwen35moe",
                           "gguf-qwen3next",
                           "qwen3-moe",
                           "qwen3-moe-window",
                           "qwen3-moe-chunks",
                           "mixtral",
                           "gpt-oss",
                           "qwen3-5",
                           "qwen3-5-moe",
                           "qwen3-next",
                           "ministral3",
                           "lfm2",
                           "granite",
                           "granite-h",
                           "granite-h-moe",
                           "nemotron-h",
                           "nemotron-h-moe",
                           "gguf-nemotron-h-moe",
                           "lfm2-moe",
                           "gptq-qwen3-moe",
                           "fp8-qwen3-moe",
                           "mxfp4-gpt-oss",
                           "gemma4",
                           "gemma4-shared-head64",
                           "gemma4-moe-head64",
                           "deepseek-v3-head576",
                           "needle-14m"}) {
    for (const char* device : {"cpu", "cuda"}) all.push_back({device, name});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ModelParity, testing::ValuesIn(variants()), name_of_case);

TEST(CudaModel, HeadDimsThatTheDeviceDoesNotKnowAreNamedAndLeaveNothingBehind) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const auto& [name, head_dim] :
       std::vector<std::pair<std::string, std::string>>{{"llama2", "8"},
                                                        {"llama3", "16"},
                                                        {"llama-tied-bias", "24"},
                                                        {"qwen3", "32"},
                                                        {"gemma4-shared", "32"},
                                                        {"glm4-moe-lite", "40"}}) {
    const std::int64_t used = place.device().memory().used;
    try {
      Model::load(root / "tests/fixtures/parity" / name, place.device());
      ADD_FAILURE() << name << " was loaded";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("head_dim " + head_dim + " "), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(place.device().memory().used, used);
  }
}

TEST(CudaModel, LogitsOfTheBundledModelAreThoseOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Model host = test::bundled({});
  const Model cuda = test::bundled(place.device());
  const auto tokens = test::text_with_fact(host, 600);
  expect_close(cuda.logits(tokens), host.logits(tokens), host.config(), "needle-14m, 600 tokens");
}

// Both round the weights alike; the device rounds operands to bf16, and rows that it unpacks for
// many tokens, which adds as much again.
TEST(CudaModel, LogitsWithRoundedWeightsAreThoseOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const WeightFormat weights : {WeightFormat::int8, WeightFormat::int4}) {
    SCOPED_TRACE(name_of(weights));
    const std::filesystem::path bundled = root / "models/needle-14m";
    const Model host = Model::load(bundled, {}, {}, {.weights = weights});
    const Model cuda = Model::load(bundled, place.device(), {}, {.weights = weights});
    const auto tokens = test::text_with_fact(host, 600);
    const auto want = host.logits(tokens);
    expect_close(cuda.logits(tokens), want, host.config(), "600 tokens");
    // One token and a few, straight from the codes, recorded and replayed.
    const std::vector<Token> first(tokens.begin(), tokens.end() - 20);
    const auto context = cuda.prefill(first);
    Session session(context, {.k = TopK::same(4096)}, place.device());
    std::vector<float> got;
    for (std::size_t i = tokens.size() - 20; i < tokens.size();) {
      const std::size_t count = i + 10 < tokens.size() ? 1 : 10;
      const auto piece = cuda.logits(session, std::span(tokens).subspan(i, count));
      got.insert(got.end(), piece.begin(), piece.end());
      i += count;
    }
    expect_close(got, std::span(want).last(got.size()), host.config(), "through a session");
  }
}

/// A fixture whose tokens go through all experts, so that no rounding sends one elsewhere.
void write_with_all_experts(const std::string& name, const TempDirectory& to) {
  const std::filesystem::path from = root / "tests/fixtures/parity" / name;
  std::ifstream file(from / "config.json");
  auto config = nlohmann::json::parse(file);
  config["num_experts_per_tok"] = config.at("num_local_experts");
  to.write("config.json", config.dump());
  std::filesystem::copy_file(from / "model.safetensors", to.path() / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
}

TEST(CudaModel, LogitsOfRoundedExpertsAreThoseOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const auto& [name, weights] :
       {std::pair("mixtral", WeightFormat::int8), std::pair("qwen3-moe", WeightFormat::int8),
        std::pair("gpt-oss", WeightFormat::int8), std::pair("qwen3-moe-chunks", WeightFormat::int4),
        std::pair("mixtral", WeightFormat::stored), std::pair("gpt-oss", WeightFormat::stored),
        std::pair("gptq-qwen3-moe", WeightFormat::stored),
        std::pair("fp8-qwen3-moe", WeightFormat::stored),
        std::pair("mxfp4-gpt-oss", WeightFormat::stored)}) {
    SCOPED_TRACE(testing::Message() << name << " in " << name_of(weights));
    const TempDirectory temp;
    write_with_all_experts(name, temp);
    const DevicePlan plan = Model::plan(temp.path(), place.device(), {}, {}, weights);
    const std::int64_t before = place.device().memory().used;
    const Model host = Model::load(temp.path(), {}, {}, {.weights = weights});
    const Model cuda = Model::load(temp.path(), place.device(), {}, {.weights = weights});
    std::int64_t planned = 0;
    for (const MemoryItem& item : plan.items) {
      if (item.what == "weights" || item.what == "activations of a step") planned += item.bytes;
    }
    EXPECT_LE(place.device().memory().used - before, planned);
    std::vector<Token> tokens;
    for (int i = 0; i < 90; ++i) tokens.push_back(static_cast<Token>(3 + i * 37 % 90));
    const auto want = host.logits(tokens);
    const auto got = cuda.logits(tokens);
    EXPECT_EQ(got, cuda.logits(tokens)) << "sums of experts have a fixed order";
    expect_close(got, want, host.config(), name);
    // One token at a time: recorded, then replayed.
    const auto context = cuda.prefill(std::span(tokens).first(80));
    const auto context_there = host.prefill(std::span(tokens).first(80));
    Session session(context, {.k = TopK::same(4096)}, place.device());
    Session there(context_there, {.k = TopK::same(4096)});
    std::vector<float> steps, steps_there;
    for (std::size_t i = 80; i < tokens.size(); ++i) {
      const auto one = std::span(tokens).subspan(i, 1);
      const auto here = cuda.logits(session, one);
      const auto other = host.logits(there, one);
      steps.insert(steps.end(), here.begin(), here.end());
      steps_there.insert(steps_there.end(), other.begin(), other.end());
    }
    expect_close(steps, steps_there, host.config(), std::string(name) + " through a session");
  }
}

TEST(CudaModel, RoundedWeightsTakeWhatWasPlanned) {
  TOPKV_NEEDS_GPU();
  std::int64_t stored = 0;
  for (const WeightFormat weights :
       {WeightFormat::stored, WeightFormat::int8, WeightFormat::int4}) {
    const Place place("cuda");
    const Device device = place.device();
    const auto directory = root / "models/needle-14m";
    const std::int64_t before = device.memory().used;
    const DevicePlan plan = Model::plan(directory, device, {}, {}, weights);
    const Model model = Model::load(directory, device, {}, {.weights = weights});
    std::int64_t planned = 0;
    for (const MemoryItem& item : plan.items) {
      if (item.what == "weights" || item.what == "activations of a step") planned += item.bytes;
    }
    EXPECT_LE(device.memory().used - before, planned) << name_of(weights);
    if (weights == WeightFormat::stored) stored = plan.weights_bytes;
    const double share = static_cast<double>(plan.weights_bytes) / static_cast<double>(stored);
    const double bound = weights == WeightFormat::stored ? 1.0
                         : weights == WeightFormat::int8 ? 0.52
                                                         : 0.36;
    EXPECT_LE(share, bound);
  }
}

/// K and V of all tokens of a (layer, KV head), as float32.
void append_rows(const RowsView& rows, std::vector<float>& out) {
  const std::int64_t count = rows.count() * rows.dim();
  for (const std::byte* data : {rows.keys.data, rows.values.data}) {
    out.resize(out.size() + static_cast<std::size_t>(count));
    to_float(data, rows.keys.dtype, count, out.data() + out.size() - count);
  }
}

TEST(CudaModel, PrefilledRowsAreThoseOfTheHost) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Model host = test::bundled({});
  const Model cuda = test::bundled(place.device());
  const auto tokens = test::text_with_fact(host, 1500);
  for (const Prefill mode : {Prefill::dense, Prefill::window}) {
    PrefillOptions options{.attention = {.mode = mode, .window = 200, .sinks = 4}};
    const auto want = host.prefill(tokens, options);
    for (const std::int64_t chunk : {0, 400}) {
      options.chunk = chunk;
      const auto got = cuda.prefill(tokens, options);
      ASSERT_EQ(got->tokens(), want->tokens());
      std::vector<float> got_rows, want_rows;
      for (std::int64_t l = 0; l < want->shape().layers; ++l) {
        for (std::int64_t h = 0; h < want->shape().kv_heads; ++h) {
          append_rows(got->rows(l, h), got_rows);
          append_rows(want->rows(l, h), want_rows);
        }
      }
      expect_close(got_rows, want_rows, host.config(),
                   "rows of chunks of " + std::to_string(chunk));
    }
  }
}

class ModelOn : public testing::TestWithParam<std::string> {};

TEST_P(ModelOn, AnswersAsTheHostDoesByRetrievalAndDensely) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const Model host = test::bundled({});
  const Model model = test::bundled(place.device());
  const auto text = test::text_with_fact(host, 4096);
  const auto question = test::question(host);
  for (const Prefill mode : {Prefill::window, Prefill::dense}) {
    const PrefillOptions prefill{.attention = {.mode = mode}};
    const auto here = model.prefill(text, prefill);
    const auto there = host.prefill(text, prefill);
    for (const std::int64_t dense_layers : {0, 8}) {
      const RetrievalOptions options{
          .k = TopK::same(64), .dense_layers = dense_layers, .window = 256};
      Session on_host(there, options);
      const auto want = host.generate(on_host, question, {.max_tokens = test::answer_tokens});
      Session session(here, options, place.device());
      const auto got = model.generate(session, question, {.max_tokens = test::answer_tokens});
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_NE(model.tokenizer().decode(got.tokens).find(test::answer), std::string::npos)
          << model.tokenizer().decode(got.tokens);
      EXPECT_EQ(session.stats().rows_retrieved > 0, dense_layers == 0);
    }
  }
}

TEST_P(ModelOn, IndicesAskedForAtPrefillHoldEveryKeyAndFindThem) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const Model model = test::bundled(place.device());
  const auto text = test::text_with_fact(model, 4096);
  const std::string spec = "hnsw:M=16";
  const auto context = model.prefill(text, {.chunk = 500, .indices = {spec, "faiss:Flat"}});
  EXPECT_EQ(context->indices(),
            (std::vector<std::string>{"exact", IndexSpec(spec).text(), "faiss:Flat"}));
  for (std::int64_t l = 0; l < context->shape().layers; ++l) {
    for (std::int64_t h = 0; h < context->shape().kv_heads; ++h)
      EXPECT_EQ(context->index(spec, l, h).size(), static_cast<std::int64_t>(text.size()));
  }
  Session session(context,
                  {.index = spec, .k = TopK::same(64), .window = 256, .measure_recall = true},
                  place.device());
  model.generate(session, test::question(model), {.max_tokens = test::answer_tokens});
  const auto& stats = session.stats();
  ASSERT_GT(stats.exact_rows, 0);
  const double recall =
      static_cast<double>(stats.exact_rows_found) / static_cast<double>(stats.exact_rows);
  std::cout << "recall " << recall << '\n';
  EXPECT_GT(recall, 0.8);
}

TEST_P(ModelOn, SamplingTakesTheLogitsOfTheDevice) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const Model model = test::bundled(place.device());
  const auto context = model.prefill(test::text_with_fact(model, 500));
  const auto generate = [&](const SamplingOptions& sampling) {
    Session session(context, {}, place.device());
    return model.generate(session, test::question(model), {.max_tokens = 12, .sampling = sampling})
        .tokens;
  };
  EXPECT_EQ(generate({.temperature = 1, .top_k = 1}), generate({})) << "the likeliest token";
  const SamplingOptions wild{.temperature = 5, .seed = 3};
  EXPECT_EQ(generate(wild), generate(wild));
  EXPECT_NE(generate(wild), generate({.temperature = 5, .seed = 4}));
}

TEST_P(ModelOn, ConcurrentSessionsGiveTheTokensOfOneAlone) {
  TOPKV_NEEDS_DEVICE(GetParam());
  const Place place(GetParam());
  const Model model = test::bundled(place.device());
  const auto context =
      model.prefill(test::text_with_fact(model, 1000), {.attention = {.mode = Prefill::window}});
  const auto ask = [&] {
    Session session(context, {.k = TopK::same(16), .window = 256}, place.device());
    return model.generate(session, test::question(model), {.max_tokens = test::answer_tokens})
        .tokens;
  };
  const auto want = ask();
  std::vector<std::vector<Token>> got(3);
  {
    std::vector<std::jthread> threads;
    for (auto& tokens : got) threads.emplace_back([&] { tokens = ask(); });
  }
  for (const auto& tokens : got) EXPECT_EQ(tokens, want);
}

INSTANTIATE_TEST_SUITE_P(Devices, ModelOn, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST(CudaModel, SessionsOfAnotherDeviceAreRefused) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Model host = test::bundled({});
  const Model cuda = test::bundled(place.device());
  const auto context = cuda.prefill(test::text_with_fact(host, 100));
  Session on_host(context);
  Session on_cuda(context, {}, place.device());
  const auto question = test::question(host);
  EXPECT_THROW(cuda.generate(on_host, question), InvalidArgument);
  EXPECT_THROW(host.generate(on_cuda, question), InvalidArgument);
  EXPECT_EQ(on_host.own_tokens() + on_cuda.own_tokens(), 0);
  // The context belongs to neither.
  EXPECT_EQ(host.generate(on_host, question, {.max_tokens = 1}).tokens.size(), 1U);
  EXPECT_EQ(cuda.generate(on_cuda, question, {.max_tokens = 1}).tokens.size(), 1U);
}

}  // namespace
}  // namespace topkv
