// Files with a trained indexer for a model that was trained without one: what the runner makes of
// their projections beside float64, sessions that attend the choice, contexts in files, and files
// that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using Json = nlohmann::json;
using Metadata = std::map<std::string, std::string>;
using Doubles = std::vector<double>;

constexpr std::int64_t read_before = 60;  // tokens of the context
constexpr std::int64_t read_after = 20;

/// A model of 2 layers, 4 query heads and 2 KV heads of 40 elements, and an indexer for it.
class IndexerFiles : public testing::Test {
 protected:
  IndexerFiles() {
    Json config = config_of(sizes);
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 2;
    config["head_dim"] = 40;
    temp.write("config.json", config.dump());
    tensors = random_tensors(sizes);
    temp.write("model.safetensors", file_of(tensors));
    set(0, 6, 24, true);
    set(1, 6, 24, true);
  }

  /// Sets the tensors of a layer of the indexer.
  void set(std::int64_t layer, std::int64_t heads, std::int64_t dim, bool all) {
    std::mt19937 random(static_cast<unsigned>(11 + layer));
    std::normal_distribution<double> normal;
    const auto tensor = [&](const std::string& name, std::vector<std::int64_t> shape,
                            double scale) {
      std::int64_t count = 1;
      for (const std::int64_t size : shape) count *= size;
      Doubles values(static_cast<std::size_t>(count));
      for (double& x : values) x = scale * normal(random);
      index_tensors["layers." + std::to_string(layer) + "." + name] = {"F32", shape,
                                                                       bytes_of_floats(values)};
    };
    tensor("wq.weight", {heads * dim, sizes.hidden}, 0.2);
    tensor("wk.weight", {dim, sizes.hidden}, 0.2);
    if (!all) return;
    tensor("weights_proj.weight", {heads, sizes.hidden}, 0.2);
    tensor("k_norm.weight", {dim}, 1);
    tensor("k_norm.bias", {dim}, 0.3);
  }

  /// The file with `index_tensors` and `metadata`.
  std::filesystem::path written() const {
    std::string file = file_of(index_tensors);
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), 8);
    Json json = Json::parse(file.substr(8, header));
    json["__metadata__"] = metadata;
    const std::string text = json.dump();
    const std::uint64_t size = text.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &size, 8);
    return temp.write("indexer.safetensors", bytes + text + file.substr(8 + header));
  }
  Model plain() const { return Model::load(temp.path()); }
  Model indexed() const { return Model::load(temp.path(), {}, {}, {.indexer = written()}); }
  std::vector<Token> text() const { return some_tokens(read_before + read_after, sizes.vocab); }
  std::vector<Token> before() const { return some_tokens(read_before, sizes.vocab); }
  std::vector<Token> after() const {
    const std::vector<Token> all = text();
    return {all.begin() + read_before, all.end()};
  }
  /// A context in which tokens attend all tokens before them.
  std::shared_ptr<const Context> read(const Model& model) const {
    return model.prefill(before(), {.kv_dtype = DType::f32, .indexer_top = every_index_block});
  }
  /// The values of a tensor in a file of float32.
  static Doubles values_of(const FileTensor& tensor) {
    std::vector<float> narrow(tensor.bytes.size() / 4);
    std::memcpy(narrow.data(), tensor.bytes.data(), tensor.bytes.size());
    return {narrow.begin(), narrow.end()};
  }
  void expect_refused(const std::string& part) const {
    expect_error<FileError>([&] { indexed(); }, {part, "indexer.safetensors", "expected"});
  }
  template <class E>
  static void expect_error(const std::function<void()>& call, std::vector<std::string> parts) {
    try {
      call();
      ADD_FAILURE() << "was not refused: " << parts.front();
    } catch (const E& error) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << "\nhas no " << part;
    }
  }

  Sizes sizes;
  TempDirectory temp;
  FileTensors tensors, index_tensors;
  Metadata metadata = {{"topkv_indexer", "1"}, {"score", "relu"}, {"heads", "6"},
                       {"dim", "24"},          {"choices", "1"},  {"rope_dim", "8"},
                       {"rope_theta", "5000"}, {"top", "12"},     {"local", "3"},
                       {"key_dtype", "f32"},   {"format", "pt"}};
};

/// What a layer's tokens were given, of all tokens so far.
struct LayerTokens {
  std::vector<float> k, v, index_k;
};

/// Attention of tokens in float64 and by plain loops. Tokens from position `from` on attend the
/// choice of the indexer, and others all tokens.
class Reference {
 public:
  Reference(const AttentionShape& shape, std::int64_t from, std::int64_t top, std::int64_t local)
      : shape_(shape),
        from_(from),
        top_(top),
        local_(local),
        layers_(static_cast<std::size_t>(shape.layers)) {}

  void attend(const AttentionStep& step) {
    LayerTokens& of = layers_[static_cast<std::size_t>(step.layer)];
    const std::int64_t kv = shape_.kv_heads * shape_.head_dim;
    const std::int64_t dim = shape_.indexer->dim;
    const std::int64_t first = std::ssize(of.k) / kv;
    of.k.insert(of.k.end(), step.k, step.k + step.tokens * kv);
    of.v.insert(of.v.end(), step.v, step.v + step.tokens * kv);
    if (step.index_k != nullptr)
      of.index_k.insert(of.index_k.end(), step.index_k, step.index_k + step.tokens * dim);
    for (std::int64_t t = 0; t < step.tokens; ++t)
      for (std::int64_t head = 0; head < shape_.q_heads; ++head)
        attend_head(step, of, t, first + t, head);
  }

 private:
  std::vector<std::int64_t> chosen(const AttentionStep& step, const LayerTokens& of, std::int64_t t,
                                   std::int64_t position, std::int64_t kv_head) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(position + 1));
    std::iota(all.begin(), all.end(), 0);
    if (position < from_ || std::ssize(all) <= top_ || step.index_q == nullptr) return all;
    const IndexerShape& by = *shape_.indexer;
    const std::int64_t each = by.heads / by.choices;
    const std::int64_t begin = by.choices == 1 ? 0 : kv_head * each;
    Doubles scores;
    for (std::int64_t p = 0; p <= position; ++p) {
      double sum = 0;
      for (std::int64_t h = begin; h < begin + each; ++h) {
        double product = 0;
        for (std::int64_t i = 0; i < by.dim; ++i)
          product += double{step.index_q[(t * by.heads + h) * by.dim + i]} *
                     of.index_k[static_cast<std::size_t>(p * by.dim + i)];
        if (by.score == IndexScore::relu) product = std::max(product, 0.0);
        sum += product *
               (step.index_weights == nullptr ? 1.0 : double{step.index_weights[t * by.heads + h]});
      }
      scores.push_back(p > position - local_ ? std::numeric_limits<double>::infinity() : sum);
    }
    std::stable_sort(all.begin(), all.end(), [&](std::int64_t a, std::int64_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    all.resize(static_cast<std::size_t>(top_));
    return all;
  }

  void attend_head(const AttentionStep& step, const LayerTokens& of, std::int64_t t,
                   std::int64_t position, std::int64_t head) const {
    const std::int64_t d = shape_.head_dim;
    const std::int64_t kv_head = head / shape_.group();
    const auto row = [&](std::int64_t p) {
      return static_cast<std::size_t>((p * shape_.kv_heads + kv_head) * d);
    };
    const float* const q = step.q + (t * shape_.q_heads + head) * d;
    Doubles out(static_cast<std::size_t>(d));
    double total = 0;
    for (const std::int64_t p : chosen(step, of, t, position, kv_head)) {
      double product = 0;
      for (std::int64_t i = 0; i < d; ++i)
        product += double{q[i]} * of.k[row(p) + static_cast<std::size_t>(i)];
      const double weight = std::exp(product / std::sqrt(static_cast<double>(d)));
      total += weight;
      for (std::int64_t i = 0; i < d; ++i)
        out[static_cast<std::size_t>(i)] += weight * of.v[row(p) + static_cast<std::size_t>(i)];
    }
    for (std::int64_t i = 0; i < d; ++i)
      step.out[(t * shape_.q_heads + head) * d + i] =
          static_cast<float>(out[static_cast<std::size_t>(i)] / total);
  }

  const AttentionShape& shape_;
  std::int64_t from_, top_, local_;
  std::vector<LayerTokens> layers_;
};

TEST_F(IndexerFiles, GiveLayersTheirIndexerAndTheOthersNone) {
  const AttentionShape both = indexed().config().attention;
  ASSERT_TRUE(both.indexer);
  EXPECT_EQ(both.indexer_layer, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(both.indexer->heads, 6);
  EXPECT_EQ(both.indexer->dim, 24);
  EXPECT_EQ(both.indexer->top, 12);
  EXPECT_EQ(both.indexer->local_blocks, 3);
  std::erase_if(index_tensors, [](const auto& one) { return one.first.starts_with("layers.0."); });
  metadata["key_dtype"] = "bf16";
  const AttentionShape one = indexed().config().attention;
  EXPECT_EQ(one.indexer_layer, (std::vector<std::int64_t>{-1, 1}));
  EXPECT_EQ(one.indexer->dtype, DType::bf16);
  EXPECT_FALSE(plain().config().attention.indexer);
}

TEST_F(IndexerFiles, ProjectTheInputOfAttentionAsFloat64Does) {
  const Model model = indexed();
  const std::vector<Token> tokens = text();
  const std::int64_t hidden = sizes.hidden, heads = 6, dim = 24, rope = 8;
  const Doubles embedding = values_of(tensors["model.embed_tokens.weight"]);
  const auto product = [&](const std::string& name, std::int64_t out, const Doubles& x) {
    const Doubles weight = values_of(index_tensors["layers.0." + name]);
    Doubles y(static_cast<std::size_t>(out));
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < hidden; ++i)
        y[static_cast<std::size_t>(o)] +=
            weight[static_cast<std::size_t>(o * hidden + i)] * x[static_cast<std::size_t>(i)];
    return y;
  };
  const auto turn = [&](Doubles& x, std::int64_t at, std::int64_t position) {
    for (std::int64_t i = 0; i < rope / 2; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(5000.0, -2.0 * static_cast<double>(i) / rope);
      double& a = x[static_cast<std::size_t>(at + i)];
      double& b = x[static_cast<std::size_t>(at + i + rope / 2)];
      const double first = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = first;
    }
  };
  double worst = 0;
  std::int64_t seen = 0;
  const auto compare = [&](const Doubles& want, const float* got) {
    for (std::size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, std::abs(want[i] - double{got[i]}));
  };
  model.logits(tokens, 0, [&](const AttentionStep& step) {
    std::fill(step.out, step.out + step.tokens * 4 * 40, 0.0F);
    if (step.layer != 0) return;
    for (std::int64_t t = 0; t < step.tokens; ++t, ++seen) {
      const auto row = embedding.begin() + tokens[static_cast<std::size_t>(seen)] * hidden;
      Doubles x(row, row + hidden);
      double squares = 0;
      for (const double value : x) squares += value * value;
      for (double& value : x) value /= std::sqrt(squares / static_cast<double>(hidden) + 1e-6);
      Doubles q = product("wq.weight", heads * dim, x);
      for (std::int64_t h = 0; h < heads; ++h) turn(q, h * dim, seen);
      compare(q, step.index_q + t * heads * dim);
      Doubles k = product("wk.weight", dim, x);
      const double mean = std::accumulate(k.begin(), k.end(), 0.0) / dim;
      double variance = 0;
      for (const double value : k) variance += (value - mean) * (value - mean) / dim;
      const Doubles norm = values_of(index_tensors["layers.0.k_norm.weight"]);
      const Doubles bias = values_of(index_tensors["layers.0.k_norm.bias"]);
      for (std::size_t i = 0; i < k.size(); ++i)
        k[i] = (k[i] - mean) / std::sqrt(variance + 1e-6) * norm[i] + bias[i];
      turn(k, 0, seen);
      compare(k, step.index_k + t * dim);
      compare(product("weights_proj.weight", heads, x), step.index_weights + t * heads);
    }
  });
  EXPECT_EQ(seen, std::ssize(tokens));
  EXPECT_LE(worst, 2e-4);  // sums of 96 products of about 2, in float32
}

TEST_F(IndexerFiles, ThatTakeEveryKeyAreDenseAttention) {
  const Model model = indexed();
  const Model dense = plain();
  EXPECT_EQ(model.logits(text()), dense.logits(text()));  // to the bit
  Session session(read(model), {.indexer_top = every_index_block});
  Session other(read(dense), {.dense_layers = 2});
  expect_same(model.logits(session, after()), dense.logits(other, after()));
  Session many(read(model), {.indexer_top = read_before + read_after});
  Session again(read(dense), {.dense_layers = 2});
  expect_same(model.logits(many, after()), dense.logits(again, after()));
}

TEST_F(IndexerFiles, SessionsAttendTheChoiceOfFloat64) {
  for (const char* score : {"relu", "dot"}) {
    for (const char* choices : {"1", "2"}) {
      for (const bool all : {true, false}) {
        SCOPED_TRACE(std::string(score) + ", choices " + choices + (all ? "" : ", bare"));
        metadata["score"] = score;
        metadata["choices"] = choices;
        metadata["rope_dim"] = all ? "8" : "0";
        index_tensors.clear();
        for (const std::int64_t layer : {0, 1}) set(layer, 6, 24, all);
        const Model model = indexed();
        for (const std::int64_t top : {5, 30}) {
          Session session(read(model), {.indexer_top = top, .indexer_local_blocks = 2});
          const std::vector<float> got = model.logits(session, after());
          Reference reference(model.config().attention, read_before, top, 2);
          std::vector<float> want =
              model.logits(text(), 0, [&](const AttentionStep& step) { reference.attend(step); });
          want.erase(want.begin(), want.begin() + read_before * sizes.vocab);
          expect_same(got, want);
          EXPECT_GT(session.stats().rows_retrieved, 0);
          EXPECT_EQ(session.options().tail, "none");
        }
      }
    }
  }
}

TEST_F(IndexerFiles, PrefillsAttendTheChoiceOfTheFile) {
  const Model model = indexed();
  std::vector<float> got;
  const auto keep = [&](std::int64_t, std::span<const float> logits) {
    got.insert(got.end(), logits.begin(), logits.end());
  };
  model.prefill(text(), {.chunk = 32, .kv_dtype = DType::f32, .on_logits = keep});
  Reference reference(model.config().attention, 0, 12, 3);
  expect_same(got,
              model.logits(text(), 0, [&](const AttentionStep& step) { reference.attend(step); }));
}

TEST_F(IndexerFiles, OfSomeLayersLeaveTheOthersToTheIndex) {
  std::erase_if(index_tensors, [](const auto& one) { return one.first.starts_with("layers.0."); });
  const Model model = indexed();
  const auto context = read(model)->ready_for({.index = "codes:k=16,v=8"});
  Session session(context, {.index = "codes:k=16,v=8",
                            .k = TopK::same(1000),
                            .tail = "none",
                            .indexer_top = 9,
                            .indexer_local_blocks = 0});
  const std::vector<float> got = model.logits(session, after());
  Reference reference(model.config().attention, read_before, 9, 0);
  std::vector<float> want =
      model.logits(text(), 0, [&](const AttentionStep& step) { reference.attend(step); });
  want.erase(want.begin(), want.begin() + read_before * sizes.vocab);
  expect_same(got, want);
}

TEST_F(IndexerFiles, ContextsInFilesForksAndJointStepsGiveTheSame) {
  metadata["key_dtype"] = "bf16";
  const Model model = indexed();
  const RetrievalOptions options{.indexer_top = 10, .indexer_local_blocks = 4};
  const auto context = read(model);
  Session session(context, options);
  model.logits(session, after());
  Session fork = session.fork();
  const std::vector<Token> more = some_tokens(5, 13);
  const std::vector<float> expected = model.logits(session, more);
  EXPECT_EQ(model.logits(fork, more), expected);
  session.truncate(read_after);
  EXPECT_EQ(model.logits(session, more), expected);
  session.truncate(read_after);
  save_context(*context, temp.path() / "text.tkv");
  save_context(*session.own_rows(), temp.path() / "turns.tkv");
  for (const bool mapped : {false, true}) {
    const ContextLoadOptions how{.mapped = mapped};
    Session resumed(load_context(temp.path() / "text.tkv", how).context, options);
    resumed.resume(*load_context(temp.path() / "turns.tkv", how).context);
    EXPECT_EQ(model.logits(resumed, more), expected);
    // Another top is no other context.
    Session wider(load_context(temp.path() / "text.tkv", how).context, {.indexer_top = 40});
    wider.resume(*load_context(temp.path() / "turns.tkv", how).context);
    EXPECT_NE(model.logits(wider, more), expected);
  }
  Session one(context, options), two(context, options), alone(context, options);
  Session* const both[] = {&one, &two};
  const std::vector<std::vector<Token>> prompts = {after(), before()};
  const auto together = model.generate_together(both, prompts, {.max_tokens = 8});
  EXPECT_EQ(together[0].tokens, model.generate(alone, after(), {.max_tokens = 8}).tokens);
}

TEST_F(IndexerFiles, ContextsOfAnotherIndexerAreRefused) {
  const Model model = indexed();
  const Model dense = plain();
  EXPECT_NE(model.fingerprint(), dense.fingerprint());
  EXPECT_EQ(model.fingerprint(), indexed().fingerprint());
  Session of_dense(read(dense), {});
  expect_error<InvalidArgument>([&] { model.logits(of_dense, after()); },
                                {"no index keys", "has an indexer", "give it a context"});
  Session of_indexed(read(model), {});
  expect_error<InvalidArgument>([&] { dense.logits(of_indexed, after()); },
                                {"index keys", "has no trained indexer", "give it a context"});
  const std::string fingerprint = model.fingerprint();
  set(1, 6, 24, false);  // other values
  index_tensors["layers.1.wq.weight"].bytes[7] ^= 1;
  EXPECT_NE(indexed().fingerprint(), fingerprint);
}

TEST_F(IndexerFiles, OptionsOutOfRangeAreRefused) {
  const Model model = indexed();
  const auto context = read(model);
  const auto refuses = [&](RetrievalOptions options, const std::string& part) {
    expect_error<InvalidArgument>([&] { const Session session(context, options); },
                                  {part, "expected"});
  };
  refuses({.indexer_top = 0}, "indexer_top is 0");
  refuses({.indexer_top = 4, .indexer_local_blocks = 5}, "indexer_local_blocks is 5");
  refuses({.indexer_top = 4, .indexer_local_blocks = -1}, "indexer_local_blocks is -1");
  EXPECT_THROW(model.prefill(before(), {.indexer_top = 0}), InvalidArgument);
}

TEST_F(IndexerFiles, WithInvalidMetadataAreRefused) {
  const Metadata good = metadata;
  for (const auto& [key, value, found] :
       std::vector<std::array<std::string, 3>>{{"topkv_indexer", "2", "topkv_indexer is"},
                                               {"score", "softmax", "score is"},
                                               {"heads", "0", "heads is"},
                                               {"heads", "6x", "heads is"},
                                               {"heads", " 6", "heads is"},
                                               {"heads", "99999999999999999999", "heads is"},
                                               {"heads", "5", "wq.weight has shape"},
                                               {"dim", "-24", "dim is"},
                                               {"dim", "12", "wq.weight has shape"},
                                               {"choices", "3", "choices is"},
                                               {"top", "0", "top is"},
                                               {"top", "9223372036854775807", "top is"},
                                               {"local", "13", "local is"},
                                               {"rope_dim", "7", "rope_dim is 7"},
                                               {"rope_dim", "26", "rope_dim is"},
                                               {"rope_theta", "0", "rope_theta is"},
                                               {"rope_theta", "inf", "rope_theta is"},
                                               {"rope_theta", "nan", "rope_theta is"},
                                               {"key_dtype", "q8", "key_dtype is"}}) {
    metadata[key] = value;
    expect_refused(found);
    metadata = good;
    if (key == "topkv_indexer") continue;
    metadata.erase(key);
    expect_refused("has no " + key);
    metadata = good;
  }
  metadata.erase("topkv_indexer");
  expect_refused("is no indexer");
  metadata = good;
  metadata["choices"] = "2";
  metadata["heads"] = "5";
  expect_refused("heads is 5");
}

TEST_F(IndexerFiles, WithDamagedTensorsAreRefused) {
  const FileTensors good = index_tensors;
  const auto refused = [&](const std::string& part, const std::function<void()>& damage) {
    damage();
    expect_refused(part);
    index_tensors = good;
  };
  const auto put = [&](const std::string& name, float value) {
    std::memcpy(index_tensors[name].bytes.data() + 4 * 5, &value, 4);
  };
  refused("tensor layers.1.wq.weight has nan at [0, 5]",
          [&] { put("layers.1.wq.weight", std::numeric_limits<float>::quiet_NaN()); });
  refused("has inf", [&] { put("layers.0.k_norm.bias", INFINITY); });
  refused("has -inf", [&] { put("layers.0.weights_proj.weight", -INFINITY); });
  for (const char* name : {"wk.weight", "k_norm.bias"})
    refused("has no tensor layers.1." + std::string(name),
            [&] { index_tensors.erase("layers.1." + std::string(name)); });
  refused("layers.1.k_norm.bias", [&] { index_tensors.erase("layers.1.wq.weight"); });
  refused("layers.1.k_norm.bias", [&] { index_tensors.erase("layers.1.k_norm.weight"); });
  refused("layers.2.wq.weight",
          [&] { index_tensors["layers.2.wq.weight"] = good.at("layers.0.wq.weight"); });
  refused("layers.00.wq.weight",
          [&] { index_tensors["layers.00.wq.weight"] = good.at("layers.0.wq.weight"); });
  refused("model.norm.weight",
          [&] { index_tensors["model.norm.weight"] = good.at("layers.0.k_norm.bias"); });
  refused("has shape [96, 24]", [&] {
    index_tensors["layers.0.wk.weight"].shape = {sizes.hidden, 24};
  });
  refused("has dtype I32", [&] { index_tensors["layers.0.wk.weight"].dtype = "I32"; });
  refused("has no tensors", [&] { index_tensors.clear(); });
  const std::string bytes = read_file(written());
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{7}, std::size_t{40}, bytes.size() - 1}) {
    temp.write("indexer.safetensors", bytes.substr(0, length));
    EXPECT_THROW(Model::load(temp.path(), {}, {}, {.indexer = temp.path() / "indexer.safetensors"}),
                 FileError);
  }
  EXPECT_THROW(Model::load(temp.path(), {}, {}, {.indexer = temp.path() / "none"}), FileError);
}

TEST_F(IndexerFiles, OfLayersThatDoNotAttendAllTokensAreRefused) {
  Json config = config_of(sizes);
  config["model_type"] = "mistral";
  config["sliding_window"] = 16;
  temp.write("config.json", config.dump());
  expect_refused("layer 0, which has a sliding window");
}

TEST_F(IndexerFiles, StepsThatFailLeaveTheSessionAsItWas) {
  const Model model = indexed();
  Session session(read(model), {.indexer_top = 8, .indexer_local_blocks = 1});
  Session untouched = session.fork();
  const std::vector<Token> bad = {1, static_cast<Token>(sizes.vocab)};
  EXPECT_THROW(model.logits(session, bad), InvalidArgument);
  EXPECT_EQ(model.logits(session, after()), model.logits(untouched, after()));
}

}  // namespace
}  // namespace topkv
