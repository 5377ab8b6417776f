// Rows in q8 and q4 on a device: the kernels against the host's encoder bit for bit, and prefills
// and sessions over such rows against float64.
#include "gpu/attention/row_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/math/key_bias.h"
#include "src/core/math/row_format.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/key_bias.h"
#include "tests/support/needs_gpu.h"
#include "tests/support/session_feed.h"
#include "topkv/session.h"

namespace topkv::gpu {
namespace {

using test::Feed;
using test::Place;
using test::TokenStream;
using Bf16 = std::uint16_t;  // its bits

const std::vector<std::string> dtypes = {"q8", "q4", "q8/q4", "q4/q8"};

struct Packed {
  std::vector<std::byte> blocks;  // [kv_heads, keys then values, tokens]
  std::vector<Bf16> rows;         // [kv_heads, keys then values, slots, head_dim]
  unsigned long long bad = 0;
};

struct Shape {
  std::int64_t tokens, kv_heads, head_dim, slots, first, ring;
};

/// The bias of the keys of some heads; empty: none.
struct Bias {
  std::vector<float> numbers;
  std::int64_t first_position = 0, chunk_len = 0;

  const float* of_head(std::int64_t h, std::int64_t dim) const {
    return numbers.empty() ? nullptr : numbers.data() + h * 3 * dim;
  }
};

Bias some_bias(std::int64_t heads, std::int64_t dim) {
  return {key_biases(heads, dim, 1e7, {{0, 100, -30}, {3, -7, 300}, {dim / 2 - 1, 500, 400}}),
          (1 << 20) - 9, (1 << 20) - 5};
}

Packed pack(const Shape& shape, KvDType dtype, const std::vector<float>& keys,
            const std::vector<float>& values, const std::vector<float>& channels,
            const Bias& bias = {}) {
  const Stream stream;
  const DeviceArray<float> k(keys), v(values), scales(channels), turned(bias.numbers);
  const StoredKeys stored{scales.data(), bias.numbers.empty() ? nullptr : turned.data(),
                          bias.first_position, bias.chunk_len};
  const std::int64_t key_bytes = shape.tokens * vector_bytes(dtype.keys, shape.head_dim);
  const std::int64_t head_bytes = shape.tokens * dtype.row_bytes(shape.head_dim);
  const DeviceArray<std::byte> blocks(shape.kv_heads * head_bytes);
  const std::int64_t half = shape.slots * shape.head_dim;
  const DeviceArray<Bf16> rows(shape.kv_heads * 2 * half);
  const DeviceArray<unsigned long long> bad(std::vector<unsigned long long>{all_finite});
  PackTarget target;
  target.keys = reinterpret_cast<__nv_bfloat16*>(rows.data());
  target.values = target.keys + half;
  target.head_stride = 2 * half;
  target.first = shape.first;
  target.ring = shape.ring;
  pack_blocks(k.data(), v.data(), shape.tokens, shape.kv_heads, shape.head_dim, dtype, stored,
              {blocks.data(), blocks.data() + key_bytes, head_bytes}, target, bad.data(), stream);
  return {blocks.read(), rows.read(), bad.read()[0]};
}

std::vector<float> some_channels(std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count), 1.0F);
  for (std::size_t i = 5; i < out.size(); i += 11) out[i] = i % 2 == 0 ? 32.0F : 2.0F;
  return out;
}

TEST(RowBlocks, ArePackedAndUnpackedAsTheHostDoes) {
  TOPKV_NEEDS_GPU();
  for (const std::string& name : dtypes) {
    const KvDType dtype = KvDType::parse(name);
    for (const Shape& shape :
         {Shape{1, 1, 64, 1, 0, 0}, Shape{37, 3, 128, 40, 0, 0}, Shape{5, 2, 80, 16, 30, 16},
          Shape{40, 2, 96, 16, 7, 16}, Shape{3, 2, 256, 3, 0, 0}, Shape{3, 1, 512, 3, 0, 0},
          Shape{9, 1, 20, 9, 0, 0}}) {
      SCOPED_TRACE(name + " dim " + std::to_string(shape.head_dim));
      const std::int64_t width = shape.kv_heads * shape.head_dim;
      auto keys = reference::random_floats(shape.tokens * width, 1, 3.0F);
      const auto values = reference::random_floats(shape.tokens * width, 2, 0.1F);
      std::fill_n(keys.begin(), std::min<std::int64_t>(width, 32), 0.0F);  // a block of zeros
      const auto channels = some_channels(width);
      for (const bool biased : {false, true}) {
        const Bias bias = biased ? some_bias(shape.kv_heads, shape.head_dim) : Bias();
        const Packed packed = pack(shape, dtype, keys, values, channels, bias);
        EXPECT_EQ(packed.bad, all_finite);
        const std::int64_t head_bytes = shape.tokens * dtype.row_bytes(shape.head_dim);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (const bool of_keys : {true, false}) {
            const DType of = of_keys ? dtype.keys : dtype.values;
            const std::int64_t bytes = vector_bytes(of, shape.head_dim);
            const std::byte* got =
                packed.blocks.data() + h * head_bytes +
                (of_keys ? 0 : shape.tokens * vector_bytes(dtype.keys, shape.head_dim));
            const float* scales = of_keys ? channels.data() + h * shape.head_dim : nullptr;
            for (std::int64_t t = 0; t < shape.tokens; ++t) {
              std::vector<std::byte> want(static_cast<std::size_t>(bytes));
              const float* from = (of_keys ? keys : values).data() + t * width + h * shape.head_dim;
              KeyView view{want.data(), of, 1, shape.head_dim, bytes, scales};
              if (of_keys) view.bias = bias.of_head(h, shape.head_dim);
              view.first_position = bias.first_position + t;
              view.chunk_len = bias.chunk_len;
              encode(from, shape.head_dim, of, scales, want.data(), bias_at(view, 0));
              ASSERT_EQ(std::memcmp(got + t * bytes, want.data(), want.size()), 0)
                  << "head " << h << " token " << t << (of_keys ? " key" : " value");
              if (shape.ring > 0 && t + shape.ring < shape.tokens) continue;
              std::vector<float> wide(static_cast<std::size_t>(shape.head_dim));
              decode(view, 0, wide.data());
              std::vector<Bf16> rounded(wide.size());
              from_float(wide.data(), shape.head_dim, DType::bf16,
                         reinterpret_cast<std::byte*>(rounded.data()));
              const std::int64_t slot = shape.ring > 0 ? (shape.first + t) % shape.ring : t;
              const Bf16* row = packed.rows.data() +
                                ((2 * h + (of_keys ? 0 : 1)) * shape.slots + slot) * shape.head_dim;
              ASSERT_TRUE(std::equal(rounded.begin(), rounded.end(), row))
                  << "head " << h << " token " << t << (of_keys ? " key" : " value");
            }
          }
        }
        // Unpacked, keys are what packing left.
        const Stream stream;
        const DeviceArray<std::byte> blocks(packed.blocks);
        const DeviceArray<float> scales(channels), turned(bias.numbers);
        const StoredKeys stored{scales.data(), biased ? turned.data() : nullptr,
                                bias.first_position, bias.chunk_len};
        const std::int64_t stride = shape.tokens * shape.head_dim;
        const DeviceArray<Bf16> unpacked(shape.kv_heads * stride);
        unpack_blocks(blocks.data(), head_bytes, shape.tokens, shape.kv_heads, shape.head_dim,
                      dtype.keys, stored, reinterpret_cast<__nv_bfloat16*>(unpacked.data()), stride,
                      stream);
        const auto got = unpacked.read();
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t t = 0; t < shape.tokens; ++t) {
            if (shape.ring > 0 && t + shape.ring < shape.tokens) continue;
            const std::int64_t slot = shape.ring > 0 ? (shape.first + t) % shape.ring : t;
            ASSERT_TRUE(
                std::equal(got.begin() + h * stride + t * shape.head_dim,
                           got.begin() + h * stride + (t + 1) * shape.head_dim,
                           packed.rows.begin() + (2 * h * shape.slots + slot) * shape.head_dim));
          }
        }
      }
    }
  }
}

TEST(RowBlocks, WhatCannotBeStoredIsNamed) {
  TOPKV_NEEDS_GPU();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const std::string& name : dtypes) {
    for (const float bad : {infinity, -infinity, NAN, 1e9F, -1e9F}) {
      for (const bool in_keys : {true, false}) {
        std::vector<float> keys = reference::random_floats(6 * 2 * 64, 1);
        std::vector<float> values = keys;
        const std::size_t at = 3 * 128 + 64 + 40;
        (in_keys ? keys : values)[at] = bad;
        const Packed packed = pack({6, 2, 64, 6, 0, 0}, KvDType::parse(name), keys, values,
                                   std::vector<float>(128, 1.0F));
        ASSERT_NE(packed.bad, all_finite) << name << " " << bad;
        EXPECT_EQ(packed.bad % 2, in_keys ? 0U : 1U);
        // A block of which one element is too large may be lost as a whole.
        EXPECT_EQ(packed.bad / 2 / 32, at / 32) << name << " " << bad;
      }
    }
  }
}

TEST(RowBlocks, ScalesOfChannelsAreTheHosts) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {255, 256, 700, 3000}) {
    const std::int64_t heads = 3;
    const std::int64_t dim = 96;
    std::vector<float> keys = reference::random_floats(tokens * heads * dim, 5);
    for (std::int64_t t = 0; t < tokens; ++t) {
      keys[static_cast<std::size_t>((t * heads + 1) * dim + 7)] *= 30;
      keys[static_cast<std::size_t>((t * heads + 2) * dim + 9)] += 100;
      for (std::int64_t i = 0; i < dim; ++i)
        keys[static_cast<std::size_t>(t * heads * dim + i)] = 0;
    }
    const Stream stream;
    const DeviceArray<float> given(keys);
    const DeviceArray<float> channels(std::vector<float>(heads * dim, 2.0F));  // of rows before
    const Bias bias = some_bias(heads, dim);
    const DeviceArray<float> turned(bias.numbers);
    for (const bool biased : {false, true}) {
      const StoredKeys stored{nullptr, biased ? turned.data() : nullptr, bias.first_position,
                              bias.chunk_len};
      choose_channels(given.data(), tokens, heads, dim, stored, channels.data(), stream);
      const auto got = channels.read();
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t used = std::min<std::int64_t>(tokens, 1024);
        std::vector<float> of_head(static_cast<std::size_t>(used * dim)), want(dim);
        for (std::int64_t t = 0; t < used; ++t)
          std::copy_n(&keys[static_cast<std::size_t>((t * heads + h) * dim)], dim,
                      &of_head[static_cast<std::size_t>(t * dim)]);
        const KeyView view{nullptr,
                           DType::q4,
                           used,
                           dim,
                           0,
                           nullptr,
                           bias.of_head(h, dim),
                           bias.first_position,
                           bias.chunk_len};
        for (std::int64_t t = 0; biased && t < used; ++t) {
          for (std::int64_t i = 0; i < dim; ++i)
            of_head[static_cast<std::size_t>(t * dim + i)] -= bias_at(view, t)[i];
        }
        topkv::choose_channels(of_head.data(), used, dim, want.data());
        EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + h * dim))
            << tokens << " " << h;
      }
    }
  }
}

/// Elements that q8 or q4 holds exactly, and bf16 too: codes times a power of two, with the first
/// and the last code somewhere in every block. One channel of the keys is 16 times as large.
std::vector<float> exact_elements(std::int64_t tokens, std::int64_t heads, std::int64_t dim,
                                  DType dtype, bool keys, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (std::int64_t i = 0; i < tokens * heads; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) {
      float x = 0;
      if (dtype == DType::q8) {
        const int code = static_cast<int>(random() % 255) - 127;
        x = static_cast<float>((i + j) % 32 == 3 ? 127 : code) * 0x1p-6F;
      } else {
        const int code = static_cast<int>(random() % 16);
        x = static_cast<float>(((i + j) % 32 == 3    ? 15
                                : (i + j) % 32 == 20 ? 0
                                                     : code) -
                               8) *
            0x1p-2F;
      }
      out.push_back(keys && j == 9 ? 16 * x : x);
    }
  }
  return out;
}

TokenStream exact_stream(const AttentionShape& shape, std::int64_t total, KvDType dtype) {
  TokenStream stream(shape, total, 3);
  std::vector<std::vector<float>> k, v;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    const auto seed = static_cast<unsigned>(100 + 2 * l);
    k.push_back(exact_elements(total, shape.kv_heads, shape.head_dim, dtype.keys, true, seed));
    v.push_back(
        exact_elements(total, shape.kv_heads, shape.head_dim, dtype.values, false, seed + 1));
  }
  stream.replace_rows(std::move(k), std::move(v));
  return stream;
}

struct Parameter {
  std::string device, dtype;
};
void PrintTo(const Parameter& p, std::ostream* out) { *out << p.dtype << " on " << p.device; }

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const std::string& device : test::devices) {
    for (const std::string& dtype : dtypes) all.push_back({device, dtype});
  }
  return all;
}

class RowsInBlocks : public testing::TestWithParam<Parameter> {
 protected:
  static constexpr std::int64_t total = 700;
  const AttentionShape shape{.layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 64};
  const KvDType dtype = KvDType::parse(GetParam().dtype);

  std::shared_ptr<const Context> prefill(const Place& place, const TokenStream& stream,
                                         std::int64_t tokens, double* worst = nullptr) const {
    ContextBuilder builder(shape, {.capacity = tokens, .dtype = dtype}, place.device());
    for (std::int64_t first = 0; first < tokens; first += 300) {
      const std::int64_t count = std::min<std::int64_t>(300, tokens - first);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        const auto part = [&](const std::vector<float>& of, std::int64_t width) {
          return place.put({of.begin() + first * width, of.begin() + (first + count) * width});
        };
        const Buffer q = part(stream.q[at], stream.q_width());
        const Buffer k = part(stream.k[at], stream.kv_width());
        const Buffer v = part(stream.v[at], stream.kv_width());
        const Buffer out = place.room(count * stream.q_width());
        builder.attend({.layer = l,
                        .tokens = count,
                        .q = q.floats(),
                        .k = k.floats(),
                        .v = v.floats(),
                        .out = out.floats()});
        const auto got = place.get(out.floats(), count * stream.q_width());
        for (std::int64_t p = first; worst != nullptr && p < first + count; p += 13) {
          for (std::int64_t h = 0; h < shape.q_heads; ++h) {
            const float* of =
                &got[static_cast<std::size_t>((p - first) * stream.q_width() + h * shape.head_dim)];
            *worst = std::max(*worst, stream.error(l, p, h, place.is_cuda(), of, nullptr,
                                                   [](std::int64_t) { return true; }));
          }
        }
      }
    }
    builder.synchronize();
    return builder.freeze();
  }
};

TEST_P(RowsInBlocks, PrefillAttendsAndKeepsWhatTheHostKeeps) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const TokenStream stream = exact_stream(shape, total, dtype);
  double worst = 0;
  const auto context = prefill(place, stream, total, &worst);
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0);
  const auto want = stream.context(total, dtype);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const RowsView a = context->rows(l, h);
      const RowsView b = want->rows(l, h);
      EXPECT_EQ(a.keys.channels[9], 16);
      EXPECT_TRUE(std::equal(a.keys.channels, a.keys.channels + shape.head_dim, b.keys.channels));
      EXPECT_EQ(std::memcmp(a.keys.data, b.keys.data, total * a.keys.stride_bytes), 0);
      EXPECT_EQ(std::memcmp(a.values.data, b.values.data, total * a.values.stride_bytes), 0);
    }
  }
}

TEST_P(RowsInBlocks, SessionsEqualFloat64) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const TokenStream stream = exact_stream(shape, total, dtype);
  const auto context = prefill(place, stream, 500);
  for (const std::int64_t dense_layers : {0, 1, 2}) {
    for (const std::int64_t step : {1, 7}) {
      const RetrievalOptions options{.k = TopK::same(8),
                                     .dense_layers = dense_layers,
                                     .window = 20,
                                     .sinks = 4,
                                     .capacity = 256};
      Session session(context, options, place.device());
      Feed feed(place, stream, 500, 560);
      feed.run(session, step);
      EXPECT_LE(feed.worst(options, {500, 507, 519, 521, 540, 559}), 1)
          << dense_layers << " dense layers, steps of " << step;
      // Tokens taken back, and a window loaded from rows.
      session.truncate(30);
      Feed again(place, stream, 530, 560);
      again.run(session, 1);
      EXPECT_LE(again.worst(options, {530, 531, 545, 559}), 1);
    }
  }
}

TEST_P(RowsInBlocks, CodesMadeAndScannedThereAgreeWithTheHosts) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  const TokenStream stream = exact_stream(shape, total, dtype);
  const auto rows = prefill(place, stream, 640);
  const char* spec = "codes:k=32,v=8";
  const auto context = rows->with_index(spec, {}, place.device());
  const RetrievalOptions options{
      .index = spec, .k = TopK::same(64), .window = 20, .sinks = 4, .capacity = 256};
  Session session(context, options, place.device());
  Feed feed(place, stream, 640, 660);
  feed.run(session, 1);
  // Beside all rows attended densely: the tail's error is small against the size of values.
  const auto outs = feed.outs();
  double off = 0;
  double size = 0;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t p = 640; p < 660; ++p) {
      for (std::int64_t h = 0; h < shape.q_heads; ++h) {
        const auto truth =
            stream.truth(l, p, h, place.is_cuda(), [](std::int64_t) { return true; });
        const float* of =
            &outs[static_cast<std::size_t>(l)]
                 [static_cast<std::size_t>((p - 640) * stream.q_width() + h * shape.head_dim)];
        for (std::int64_t j = 0; j < shape.head_dim; ++j) {
          const double want = truth.out[static_cast<std::size_t>(j)];
          off += (of[j] - want) * (of[j] - want);
          size += want * want;
        }
      }
    }
  }
  EXPECT_LT(std::sqrt(off / size), 0.2);
}

// With a bias: a device keeps the bytes that the host keeps, whichever the chunks, and what its
// sessions and codes give is what the host's give, to within bf16.
TEST_P(RowsInBlocks, KeysWithABiasAreKeptAndReadAsOnTheHost) {
  TOPKV_NEEDS_DEVICE(GetParam().device);
  const Place place(GetParam().device);
  TokenStream stream = exact_stream(shape, total, dtype);
  const std::int64_t d = shape.head_dim;
  const std::vector<float> bias = key_biases(shape.layers * shape.kv_heads, d, 1e7,
                                             {{2, 20, -10}, {20, 60, 30}, {31, -100, 80}});
  std::vector<std::vector<float>> keys = stream.k;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    auto& layer = keys[static_cast<std::size_t>(l)];
    for (std::size_t i = 0; i < layer.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t head = l * shape.kv_heads + at % stream.kv_width() / d;
      layer[i] += static_cast<float>(rope_turned(&bias[static_cast<std::size_t>(head * 3 * d)], d,
                                                 at % d, at / stream.kv_width()));
    }
  }
  stream.replace_rows(std::move(keys), std::vector<std::vector<float>>(stream.v));
  const auto context_of = [&](const Place& on, std::int64_t chunk) {
    ContextBuilder builder(shape, {.capacity = 500, .dtype = dtype, .key_bias = bias}, on.device());
    for (std::int64_t first = 0; first < 500; first += chunk) {
      const std::int64_t count = std::min(chunk, 500 - first);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        const auto part = [&](const std::vector<float>& of, std::int64_t width) {
          return on.put({of.begin() + first * width, of.begin() + (first + count) * width});
        };
        const Buffer q = part(stream.q[at], stream.q_width());
        const Buffer k = part(stream.k[at], stream.kv_width());
        const Buffer v = part(stream.v[at], stream.kv_width());
        const Buffer out = on.room(count * stream.q_width());
        builder.attend({.layer = l,
                        .tokens = count,
                        .q = q.floats(),
                        .k = k.floats(),
                        .v = v.floats(),
                        .out = out.floats()});
      }
    }
    builder.synchronize();
    return builder.freeze();
  };
  const Place host("cpu");
  const auto want = context_of(host, 300);
  const auto context = context_of(place, 300);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const RowsView a = context->rows(l, h);
      const RowsView b = want->rows(l, h);
      EXPECT_EQ(a.keys.channels[9], 16) << "the bias is taken off before scales are chosen";
      EXPECT_TRUE(std::equal(a.keys.channels, a.keys.channels + d, b.keys.channels));
      EXPECT_EQ(std::memcmp(a.keys.data, b.keys.data, 500 * a.keys.stride_bytes), 0);
    }
  }
  const char* spec = "codes:k=32,v=8";
  const auto coded = context->with_index(spec, {}, place.device());
  const auto host_coded = want->with_index(spec);
  for (const std::string index : {"exact", spec}) {
    for (const std::int64_t dense_layers : {0, 2}) {
      const RetrievalOptions options{.index = index,
                                     .k = TopK::same(64),
                                     .dense_layers = dense_layers,
                                     .window = 20,
                                     .sinks = 4,
                                     .capacity = 256};
      Session session(coded, options, place.device());
      Session of_host(host_coded, options);
      Feed feed(place, stream, 500, 560);
      feed.run(session, 1);
      Feed other(host, stream, 500, 560);
      other.run(of_host, 1);
      const auto got = feed.outs();
      const auto near = other.outs();
      double off = 0;
      double size = 0;
      for (std::size_t l = 0; l < got.size(); ++l) {
        for (std::size_t i = 0; i < got[l].size(); ++i) {
          off += std::pow(double{got[l][i]} - near[l][i], 2);
          size += std::pow(double{near[l][i]}, 2);
        }
      }
      EXPECT_LT(std::sqrt(off / size), place.is_cuda() ? 0.35 : 1e-4)
          << index << ", " << dense_layers << " dense layers";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RowsInBlocks, testing::ValuesIn(parameters()),
                         [](const auto& info) {
                           std::string name = info.param.device + "_" + info.param.dtype;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace topkv::gpu
