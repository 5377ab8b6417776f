// Modes of a prefill: which one a text of some length is read in, and the measured share of
// attention that a sparse one meets, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/attention/block_choice.h"
#include "src/context/prefill_visibility.h"
#include "src/device/device_sizes.h"
#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/view.h"

namespace topkv {
namespace {

TEST(ResolvedPrefill, DependsOnTheLengthAndTheDevice) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  const auto mode = [](const AttentionShape& of, Prefill given, std::int64_t tokens, bool cuda) {
    return resolve_prefill({.mode = given}, of, tokens, cuda).mode;
  };
  EXPECT_EQ(mode(shape, Prefill::automatic, longest_dense_on_host, false), Prefill::dense);
  EXPECT_EQ(mode(shape, Prefill::automatic, longest_dense_on_host + 1, false), Prefill::sparse);
  EXPECT_EQ(mode(shape, Prefill::automatic, 1 << 20, false), Prefill::sparse);
  EXPECT_EQ(mode(shape, Prefill::automatic, longest_dense_on_cuda, true), Prefill::dense);
  EXPECT_EQ(mode(shape, Prefill::automatic, longest_dense_on_cuda + 1, true), Prefill::sparse);
  AttentionShape chunks = shape;
  chunks.chunk_len = 100;  // borders are inside blocks of queries
  EXPECT_EQ(mode(chunks, Prefill::automatic, 1 << 20, false), Prefill::dense);
  EXPECT_EQ(mode(chunks, Prefill::automatic, 1 << 20, true), Prefill::dense);
  chunks.chunk_len = 256;
  EXPECT_EQ(mode(chunks, Prefill::automatic, 1 << 20, false), Prefill::sparse);
  for (const Prefill given : {Prefill::dense, Prefill::sparse, Prefill::window})
    EXPECT_EQ(mode(shape, given, 1 << 20, true), given);
  EXPECT_EQ(
      resolve_prefill({.mode = Prefill::automatic, .keys = 64, .mass = 0.5}, shape, 1, false).keys,
      64);
}

/// The message with which a call is refused as Unsupported.
template <class Call>
std::string refused(const Call& call) {
  try {
    call();
  } catch (const Unsupported& error) {
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

/// Sizes of a device on which attention takes two bytes for each number of its arguments.
class FewSizes final : public DeviceSizes {
 public:
  explicit FewSizes(bool cuda) : cuda_(cuda) {}
  bool is_cuda() const override { return cuda_; }
  DType operand_dtype() const override { return DType::bf16; }
  std::int64_t prefill_chunk() const override { return 8192; }
  std::int64_t allocation_bytes(std::int64_t bytes) const override { return bytes + 1; }
  std::int64_t upload_bytes(const Matrix& /*host*/) const override { return 0; }
  std::int64_t decode_backend_bytes(const SessionShape& /*shape*/) const override { return 0; }
  std::int64_t prefill_attention_bytes(const AttentionShape& shape,
                                       const PrefillVisibility& visible, KvDType rows,
                                       std::int64_t chunk, std::int64_t tokens) const override {
    EXPECT_TRUE(visible[0].chooses());
    EXPECT_EQ(rows, DType::q8);
    return 2 * (shape.head_dim + chunk + tokens);
  }

 private:
  bool cuda_;
};

TEST(FittingPrefill, IsDenseOnACudaDeviceWithoutTheMemory) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  constexpr std::int64_t text = longest_dense_on_cuda + 1;
  constexpr std::int64_t needed = 2 * (16 + 100 + 3000) + 1;
  const auto mode = [&](Prefill given, std::int64_t tokens, bool cuda, std::int64_t bytes) {
    return fitting_prefill({.mode = given}, shape, tokens, FewSizes(cuda),
                           {.bytes = bytes, .rows = DType::q8, .chunk = 100, .capacity = 3000})
        .mode;
  };
  EXPECT_EQ(mode(Prefill::automatic, text, true, needed), Prefill::sparse);
  EXPECT_EQ(mode(Prefill::automatic, text, true, needed - 1), Prefill::dense);
  EXPECT_EQ(mode(Prefill::automatic, text, true, -1), Prefill::dense);
  EXPECT_EQ(mode(Prefill::automatic, text - 1, true, needed), Prefill::dense);
  EXPECT_EQ(mode(Prefill::automatic, text, false, 0), Prefill::sparse);
  for (const Prefill given : {Prefill::dense, Prefill::sparse, Prefill::window})
    EXPECT_EQ(mode(given, text, true, 0), given);
}

TEST(ResolvedPrefill, IsDenseWithoutASparseOneOnTheDevice) {
  constexpr std::int64_t tokens = 1 << 20;
  const AttentionShape shape{.layers = 2, .q_heads = 256, .kv_heads = 2, .head_dim = 16};
  AttentionShape large = shape;  // 256 query heads for each KV head
  large.kv_heads = 1;
  AttentionShape windowed = large;  // no layer chooses
  windowed.sliding_window = {64, 64};
  AttentionShape chunks = shape;
  chunks.chunk_len = 100;
  const PrefillAttention given{.mode = Prefill::automatic};
  PrefillAttention many = given;
  many.keys = 65537;
  PrefillAttention most = given;
  most.keys = 65536;
  struct Case {
    const AttentionShape& shape;
    const PrefillAttention& attention;
    bool cuda;
    std::string refusal;  // empty: read in sparse mode
  };
  const std::vector<Case> cases = {
      {shape, given, true, ""},
      {shape, most, true, ""},
      {windowed, given, true, ""},
      {large, given, false, ""},
      {shape, many, false, ""},
      {large, given, true,
       "256 query heads for each KV head on a CUDA device; expected at most 128"},
      {shape, many, true, "up to 65537 keys on a CUDA device; expected at most 65536"},
      {chunks, given, true, "chunks of 100 tokens; expected a multiple of 128"},
      {chunks, given, false, "chunks of 100 tokens; expected a multiple of 128"},
  };
  for (const Case& c : cases) {
    const auto mode = resolve_prefill(c.attention, c.shape, tokens, c.cuda).mode;
    PrefillAttention asked = c.attention;
    asked.mode = Prefill::sparse;
    if (c.refusal.empty()) {
      EXPECT_EQ(mode, Prefill::sparse);
      EXPECT_EQ(resolve_prefill(asked, c.shape, tokens, c.cuda).mode, Prefill::sparse);
      EXPECT_EQ(prefill_visibility(c.shape, asked, c.cuda).size(), 2U);
      continue;
    }
    EXPECT_EQ(mode, Prefill::dense) << c.refusal;
    for (const std::string& message :
         {refused([&] { resolve_prefill(asked, c.shape, tokens, c.cuda); }),
          refused([&] { prefill_visibility(c.shape, asked, c.cuda); })}) {
      EXPECT_NE(message.find(c.refusal), std::string::npos) << message;
      EXPECT_NE(message.find("mode dense or window"), std::string::npos) << message;
    }
  }
}

TEST(ResolvedPrefill, IsNotMeasuredOnACudaDevice) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  for (const Prefill mode : {Prefill::automatic, Prefill::sparse}) {
    const PrefillAttention measured{.mode = mode, .measure = true};
    EXPECT_EQ(resolve_prefill(measured, shape, 1 << 20, false).mode, Prefill::sparse);
    const std::string message = refused([&] { resolve_prefill(measured, shape, 1 << 20, true); });
    EXPECT_NE(message.find("measured share of attention"), std::string::npos) << message;
  }
}

TEST(ResolvedPrefill, HasNames) {
  for (const Prefill mode : {Prefill::automatic, Prefill::dense, Prefill::sparse, Prefill::window})
    EXPECT_EQ(parse_prefill(name_of(mode)), mode);
  try {
    parse_prefill("full");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "prefill is 'full'; expected 'auto', 'dense', 'sparse' or 'window'");
  }
}

TEST(ResolvedPrefill, IsNotWhatABuilderTakes) {
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  try {
    const ContextBuilder builder(shape,
                                 {.capacity = 100, .attention = {.mode = Prefill::automatic}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("expected 'dense', 'sparse' or 'window'"),
              std::string::npos)
        << error.what();
  }
}

/// A text of random rows, whose keys differ enough for queries to prefer a few blocks.
struct ClusteredText {
  static constexpr std::int64_t tokens = 2048;
  static constexpr std::int64_t dim = 16;
  static constexpr std::int64_t group = 2;
  static constexpr PrefillAttention attention{
      .mode = Prefill::sparse, .window = 100, .sinks = 3, .keys = 256, .least_keys = 0};

  ClusteredText() {
    // Blocks have a direction of their own, without which all of them are alike.
    const std::vector<float> directions =
        reference::random_floats(tokens / key_block * dim, 99, 2.0F);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < dim; ++j)
        stream.k[0][t * dim + j] += directions[static_cast<std::size_t>(t / key_block * dim + j)];
    }
  }

  BlockQueries queries(std::vector<PassQueries>& passes, std::int64_t block) const {
    const std::int64_t first = block * query_block;
    passes = {
        {{stream.q[0].data() + first * group * dim, query_block, group, dim, first}, {0, tokens}}};
    return {passes, 0, group, stream.shape.softmax_scale(), 0};
  }
  RowSpan keys() const {
    const KeyView view{reinterpret_cast<const std::byte*>(stream.k[0].data()), DType::f32, tokens,
                       dim, dim * std::int64_t{sizeof(float)}};
    return {{view, view}};
  }
  ChosenBlocks choose(std::int64_t block, const BlockBudget& budget) const {
    std::vector<PassQueries> passes;
    const BlockQueries of = queries(passes, block);
    std::vector<float> means;
    extend_means(keys(), of.first(), means);
    return choose_blocks(of, ForcedBlocks(of.first(), attention.window, attention.sinks), budget,
                         keys(), means);
  }
  /// The share of attention that sampled queries of a block of queries have on blocks of keys.
  double mass(std::int64_t block, const std::vector<std::int64_t>& chosen) const {
    double sum = 0;
    std::int64_t count = 0;
    for (const std::int64_t token : sampled(query_block)) {
      const std::int64_t p = block * query_block + token;
      for (std::int64_t head = 0; head < group; ++head, ++count) {
        double met = 0;
        double all = 0;
        for (std::int64_t x = 0; x <= p; ++x) {
          double score = 0;
          for (std::int64_t j = 0; j < dim; ++j) {
            score += double(stream.q[0][(p * group + head) * dim + j]) *
                     double(stream.k[0][x * dim + j]);
          }
          const double weight = std::exp(score * stream.shape.softmax_scale());
          all += weight;
          if (std::ranges::find(chosen, x / key_block) != chosen.end()) met += weight;
        }
        sum += met / all;
      }
    }
    return sum / static_cast<double>(count);
  }

  test::Stream stream{{.layers = 1, .q_heads = group, .kv_heads = 1, .head_dim = dim}, tokens, 7};
};

/// What a builder gives for the text in chunks of `chunk` tokens.
struct ClusteredRead {
  ClusteredRead(const ClusteredText& text, PrefillAttention attention,
                std::int64_t chunk = ClusteredText::tokens)
      : out(static_cast<std::size_t>(ClusteredText::tokens * ClusteredText::group *
                                     ClusteredText::dim)) {
    ContextBuilder builder(
        text.stream.shape,
        {.capacity = ClusteredText::tokens, .dtype = DType::f32, .attention = attention});
    for (std::int64_t begin = 0; begin < ClusteredText::tokens; begin += chunk) {
      builder.attend(text.stream.step(0, begin, std::min(chunk, ClusteredText::tokens - begin),
                                      &out[begin * ClusteredText::group * ClusteredText::dim]));
    }
    share = builder.share(0);
  }

  std::vector<float> out;
  PrefillShare share;
};

TEST(MeasuredPrefill, MeasuresTheShareOfAttention) {
  const ClusteredText text;
  for (const std::int64_t block : {4, 9, 15}) {
    BlockBudget budget{.most = 256, .least = 0, .mass = 0.9};
    const ChosenBlocks estimated = text.choose(block, budget);
    budget.measure = true;
    const ChosenBlocks measured = text.choose(block, budget);
    EXPECT_EQ(measured.blocks, estimated.blocks) << block;
    const double mass = text.mass(block, measured.blocks);
    EXPECT_NEAR(measured.mass, mass, 1e-5) << block;
    EXPECT_LT(mass, 0.999) << "too easy to tell right from wrong";
  }
}

TEST(MeasuredPrefill, SumsTheMeasuredShares) {
  const ClusteredText text;
  PrefillAttention attention = ClusteredText::attention;
  attention.measure = true;
  const ClusteredRead read(text, attention, 512);
  double mass = 0;
  for (std::int64_t block = 0; block < ClusteredText::tokens / query_block; ++block) {
    const ChosenBlocks chosen =
        text.choose(block, {.most = attention.keys, .least = 0, .mass = attention.mass});
    mass += text.mass(block, chosen.blocks) * query_block;
  }
  EXPECT_EQ(read.share.queries, ClusteredText::tokens);
  EXPECT_NEAR(read.share.mass, mass, 1e-2);
  EXPECT_LT(read.share.mean_mass(), 0.999);
  EXPECT_LT(read.share.key_share(), 0.7);
  // Measured or not, tokens attend the same keys.
  const ClusteredRead estimated(text, ClusteredText::attention, 512);
  EXPECT_EQ(estimated.out, read.out);
  EXPECT_EQ(estimated.share.keys, read.share.keys);
}

}  // namespace
}  // namespace topkv
