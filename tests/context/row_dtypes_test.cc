// Contexts and sessions over rows in q8 and q4: what every reader of rows makes of them is what
// float64 makes of the values that they stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/core/math/row_format.h"
#include "tests/support/key_bias.h"
#include "tests/support/row_blocks.h"
#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Stream;

const AttentionShape dtypes_shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64};
const std::vector<std::string> dtypes = {"q8", "q4", "q8/q4", "q4/bf16", "f32/q8"};

/// A fast pair, one whose turns are a few hundred tokens long, and a slow one.
std::vector<float> some_bias() {
  return key_biases(dtypes_shape.layers * dtypes_shape.kv_heads, dtypes_shape.head_dim, 1e4,
                    {{1, 8, -3}, {14, 0, 9}, {31, -12, 5}});
}

/// Adds the stream's bias to its keys.
void add_bias(Stream& stream) {
  const std::int64_t dim = dtypes_shape.head_dim;
  for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
    for (std::int64_t i = 0; i < stream.total * stream.kv_width(); ++i) {
      const std::int64_t head = l * dtypes_shape.kv_heads + i % stream.kv_width() / dim;
      stream.k[l][i] += static_cast<float>(
          rope_turned(&stream.key_bias[head * 3 * dim], dim, i % dim, i / stream.kv_width()));
    }
  }
}

/// A stream whose K and V are what rows of this dtype hold of them: storing them changes nothing.
/// One channel of the keys lies far out, so that it gets a scale of its own.
Stream as_stored(std::int64_t total, KvDType dtype, bool biased = false) {
  Stream stream(dtypes_shape, total, 7);
  for (auto& layer : stream.k) {
    for (std::int64_t t = 0; t < total; ++t) layer[t * stream.kv_width() + 9] *= 20;
  }
  if (biased) {
    stream.key_bias = some_bias();
    add_bias(stream);
  }
  const auto context = stream.prefill(total, dtype);
  for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
    for (std::int64_t h = 0; h < dtypes_shape.kv_heads; ++h) {
      const RowsView rows = context->rows(l, h);
      EXPECT_EQ(rows.keys.channels != nullptr, in_blocks(dtype.keys));
      EXPECT_EQ(rows.values.channels, nullptr);
      EXPECT_EQ(rows.keys.bias != nullptr, biased && in_blocks(dtype.keys));
      EXPECT_EQ(rows.values.bias, nullptr);
      for (auto* half : {&rows.keys, &rows.values}) {
        if (!in_blocks(half->dtype)) continue;
        auto& given = half == &rows.keys ? stream.k[l] : stream.v[l];
        for (std::int64_t t = 0; t < total; ++t) {
          const auto read = test::read_blocks(*half, t);
          std::vector<float> decoded(static_cast<std::size_t>(dtypes_shape.head_dim));
          decode(*half, t, decoded.data());
          for (std::int64_t i = 0; i < dtypes_shape.head_dim; ++i) {
            const double bias =
                half->bias == nullptr ? 0 : rope_turned(half->bias, dtypes_shape.head_dim, i, t);
            const double want = read.elements[static_cast<std::size_t>(i)] + bias;
            EXPECT_NEAR(decoded[static_cast<std::size_t>(i)], want, 1e-5);
            given[t * stream.kv_width() + h * dtypes_shape.head_dim + i] =
                decoded[static_cast<std::size_t>(i)];
          }
        }
      }
    }
  }
  return stream;
}

void check_steps(const Stream& stream, const RetrievalOptions& options, KvDType dtype) {
  const std::int64_t prefilled = 600;
  const auto context = stream.prefill(prefilled, dtype);
  const auto indexed = options.index == "exact" ? context : context->with_index(options.index);
  Session session(indexed, options);
  for (const std::int64_t step : {1, 3}) {
    const std::int64_t first = session.tokens();
    const auto outs = stream.feed(session, first + 30, step);
    for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
      for (std::int64_t p = first; p < first + 30; ++p) {
        test::expect_step(stream, l, p, options, &outs[l][(p - first) * stream.q_width()]);
      }
    }
  }
}

RetrievalOptions options_of(const char* index, std::int64_t k) {
  RetrievalOptions options;
  options.index = index;
  options.tail = "none";
  options.k = TopK::same(k);
  options.window = 32;
  options.sinks = 4;
  options.capacity = 64;
  return options;
}

TEST(RowDtypes, StepsAreThoseOfFloat64OverTheValuesStored) {
  for (const std::string& name : dtypes) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(name + (biased ? " with a bias" : ""));
      const KvDType dtype = KvDType::parse(name);
      const Stream stream = as_stored(700, dtype, biased);
      check_steps(stream, options_of("exact", 16), dtype);
      RetrievalOptions dense = options_of("exact", 16);
      dense.dense_layers = 1;
      check_steps(stream, dense, dtype);
    }
  }
}

TEST(RowDtypes, AllRowsRetrievedThroughAnyIndexEqualDense) {
  for (const std::string& name : dtypes) {
    const KvDType dtype = KvDType::parse(name);
    const Stream stream = as_stored(700, dtype, true);
    for (const char* index : {"exact", "hnsw:M=16", "ivf", "faiss:Flat", "codes:k=16,v=0"}) {
      SCOPED_TRACE(name + " " + index);
      RetrievalOptions all = options_of(index, 700);
      const auto context = stream.prefill(600, dtype)->with_index(index);
      Session session(context, all);
      const auto outs = stream.feed(session, 620, 1);
      all.index = "exact";
      for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
        for (std::int64_t p = 600; p < 620; ++p)
          test::expect_step(stream, l, p, all, &outs[l][(p - 600) * stream.q_width()]);
      }
    }
  }
}

TEST(RowDtypes, PrefillAttendsTheValuesStored) {
  for (const std::string& name : dtypes) {
    SCOPED_TRACE(name);
    const KvDType dtype = KvDType::parse(name);
    const Stream stream = as_stored(400, dtype, true);
    ContextBuilder builder(dtypes_shape,
                           {.capacity = 400, .dtype = dtype, .key_bias = stream.key_bias});
    std::vector<float> out(static_cast<std::size_t>(100 * stream.q_width()));
    RetrievalOptions dense;
    dense.dense_layers = dtypes_shape.layers;
    for (const auto& [begin, end] : {std::pair{0, 300}, std::pair{300, 400}}) {
      out.resize(static_cast<std::size_t>((end - begin) * stream.q_width()));
      for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
        builder.attend(stream.step(l, begin, end - begin, out.data()));
        for (std::int64_t p = begin; p < end; p += 37)
          test::expect_step(stream, l, p, dense, &out[(p - begin) * stream.q_width()]);
      }
    }
  }
}

TEST(RowDtypes, ScalesOfChannelsAndTheBiasStayThroughRoomForksAndTruncation) {
  const KvDType dtype = DType::q8;
  const Stream stream = as_stored(700, dtype, true);
  ContextBuilder builder(dtypes_shape,
                         {.capacity = 300, .dtype = dtype, .key_bias = stream.key_bias});
  const auto append = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
      builder.append(
          l,
          TensorView::tokens_first(&stream.k[l][begin * stream.kv_width()], DType::f32, end - begin,
                                   dtypes_shape.kv_heads, dtypes_shape.head_dim),
          TensorView::tokens_first(&stream.v[l][begin * stream.kv_width()], DType::f32, end - begin,
                                   dtypes_shape.kv_heads, dtypes_shape.head_dim));
    }
  };
  append(0, 300);
  builder.reserve(600);
  append(300, 600);
  const auto context = builder.freeze();
  const auto whole = stream.prefill(600, dtype);
  for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
    for (std::int64_t h = 0; h < dtypes_shape.kv_heads; ++h) {
      const RowsView rows = context->rows(l, h);
      EXPECT_EQ(rows.keys.channels[9], h == 0 ? 16 : 1);
      const RowsView all = whole->rows(l, h);
      EXPECT_TRUE(
          std::equal(rows.keys.data, rows.keys.data + 600 * rows.keys.stride_bytes, all.keys.data));
    }
  }
  const RetrievalOptions options = options_of("exact", 16);
  Session session(context, options);
  stream.feed(session, 650, 5);
  session.truncate(20);
  Session fork = session.fork();
  const auto outs = stream.feed(fork, 640, 1);
  for (std::int64_t l = 0; l < dtypes_shape.layers; ++l) {
    for (std::int64_t p = 620; p < 640; ++p)
      test::expect_step(stream, l, p, options, &outs[l][(p - 620) * stream.q_width()]);
  }
}

// A norm of 900, as Qwen2.5's biases have: what attention makes of rows in 4 bits is as near to
// float64 with a bias as without, and far from it where the bias is rounded with the rest.
TEST(RowDtypes, LargeBiasesLeaveKeysIn4BitsAsNearAsNone) {
  const std::vector<BiasedPair> large = {
      {3, 80, -60}, {29, 300, 200}, {30, -500, 500}, {31, 250, -130}};
  const auto error = [&](bool biased, bool known, KvDType dtype) {
    Stream stream(dtypes_shape, 640, 3);
    for (auto& layer : stream.q) {
      // Little of a query lies along the bias that turns fast, or nothing else would count.
      for (std::int64_t i = 0; i < std::ssize(layer); ++i)
        if (i % (dtypes_shape.head_dim / 2) == 3) layer[i] *= 0.05F;
    }
    stream.key_bias =
        key_biases(dtypes_shape.layers * dtypes_shape.kv_heads, dtypes_shape.head_dim, 1e7, large);
    if (biased) add_bias(stream);
    Stream given = stream;
    if (!known) given.key_bias.clear();
    RetrievalOptions options = options_of("exact", 16);
    options.dense_layers = dtypes_shape.layers;
    Session session(given.prefill(600, dtype), options);
    const auto outs = given.feed(session, 640, 1);
    double off = 0;
    double size = 0;
    for (std::int64_t p = 600; p < 640; p += 3) {
      for (std::int64_t h = 0; h < dtypes_shape.q_heads; ++h) {
        const auto want = reference::attend(
            stream.rows(0, h / dtypes_shape.group(), p + 1),
            &stream.q[0][p * stream.q_width() + h * dtypes_shape.head_dim],
            dtypes_shape.softmax_scale(), [](std::int64_t) { return true; }, 0);
        for (std::int64_t j = 0; j < dtypes_shape.head_dim; ++j) {
          const double got = outs[0][(p - 600) * stream.q_width() + h * dtypes_shape.head_dim + j];
          off += (got - want.out[j]) * (got - want.out[j]);
          size += want.out[j] * want.out[j];
        }
      }
    }
    return std::sqrt(off / size);
  };
  for (const KvDType dtype : {KvDType(DType::q4, DType::bf16), KvDType(DType::q8, DType::bf16)}) {
    const double none = error(false, false, dtype);
    EXPECT_LT(error(true, true, dtype), 1.5 * none) << dtype.name();
    EXPECT_GT(error(true, false, dtype), 3 * none) << dtype.name();
  }
}

TEST(RowDtypes, OwnRowsGoOnWhereTheBiasIsTheSame) {
  const KvDType dtype = DType::q4;
  const Stream stream = as_stored(700, dtype, true);
  const RetrievalOptions options = options_of("exact", 16);
  const auto context = stream.prefill(600, dtype);
  Session session(context, options);
  stream.feed(session, 620, 1);
  const auto rows = session.own_rows();
  Session other(context, options);
  other.resume(*rows);
  EXPECT_EQ(stream.feed(session, 640, 1), stream.feed(other, 640, 1));
  Stream unlike = stream;
  unlike.key_bias[5] += 1;
  Session third(unlike.prefill(600, dtype), options);
  EXPECT_THROW(third.resume(*rows), InvalidArgument);
  EXPECT_EQ(third.own_tokens(), 0);
}

TEST(RowDtypes, BiasesThatCannotBeOnesAreRefused) {
  const std::vector<float> good = some_bias();
  const auto make = [](std::vector<float> bias) {
    ContextBuilder(dtypes_shape, {.capacity = 4, .dtype = DType::q4, .key_bias = std::move(bias)});
  };
  make(good);
  EXPECT_THROW(make({good.begin(), good.end() - 1}), InvalidArgument);
  for (const std::size_t at : {std::size_t{3}, good.size() - 1}) {
    for (const float bad : {NAN, INFINITY, 0x1p96F}) {
      std::vector<float> bias = good;
      bias[at] = bad;
      EXPECT_THROW(make(bias), InvalidArgument) << at << " " << bad;
    }
  }
}

TEST(RowDtypes, RowsTakeTheBytesOfTheirDtype) {
  const Stream stream(dtypes_shape, 600);
  const auto bytes = [&](const char* name) {
    return stream.prefill(600, KvDType::parse(name))->memory().rows_bytes;
  };
  const std::int64_t rows = 600 * dtypes_shape.layers * dtypes_shape.kv_heads;
  EXPECT_EQ(bytes("bf16"), rows * 256);
  EXPECT_EQ(bytes("q8"), rows * 136);
  EXPECT_EQ(bytes("q8/q4"), rows * (68 + 40));
  EXPECT_EQ(bytes("q4"), rows * 80);
}

TEST(RowDtypes, NamesAreReadBackAndUnknownOnesRefused) {
  for (const std::string& name : dtypes) EXPECT_EQ(KvDType::parse(name).name(), name);
  EXPECT_EQ(KvDType::parse("q8/q8").name(), "q8");
  for (const char* name : {"", "q5", "q8/", "/q4", "q8/q4/q4", "Q8"})
    EXPECT_THROW(KvDType::parse(name), InvalidArgument) << name;
}

TEST(RowDtypes, TensorsInBlocksAndValuesBeyondAreRefusedAndChangeNothing) {
  const Stream stream(dtypes_shape, 10);
  ContextBuilder builder(dtypes_shape, {.capacity = 10, .dtype = DType::q8});
  std::vector<float> k = stream.k[0];
  const auto view = [&](const std::vector<float>& x, DType dtype = DType::f32) {
    return TensorView::tokens_first(x.data(), dtype, 10, dtypes_shape.kv_heads,
                                    dtypes_shape.head_dim);
  };
  EXPECT_THROW(builder.append(0, view(k, DType::q8), view(k)), InvalidArgument);
  k[77] = 1e30F;
  EXPECT_THROW(builder.append(0, view(k), view(stream.v[0])), InvalidArgument);
  EXPECT_EQ(builder.tokens(0), 0);
  builder.append(0, view(stream.k[0]), view(stream.v[0]));
  EXPECT_EQ(builder.tokens(0), 10);
}

}  // namespace
}  // namespace topkv
