// Scans over a context's codes on a device, against float64 of what the codes stand for.
#include "gpu/codes/codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "src/context/index_on_device.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/support/session_feed.h"

namespace topkv {
namespace {

using gpu::CodeScan;
using gpu::CudaCodes;
using gpu::DeviceArray;
using reference::distance;
using reference::normal_cdf;
using test::Place;

std::vector<std::uint16_t> to_bf16_bits(const std::vector<float>& x) {
  std::vector<std::uint16_t> out;
  for (const float value : x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    out.push_back(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
  return out;
}

std::vector<float> vectors(std::int64_t count, std::int64_t dim, unsigned seed) {
  return reference::some_vectors(count, dim, seed, 2.0F, 40);
}

struct Vectors {
  std::vector<float> keys, values;
};

/// Vectors whose values have a part of the keys that short codes lose: keys vary less in the second
/// half of their dims, and the first half of a value has four times this half of its key.
Vectors correlated_vectors(std::int64_t count, std::int64_t dim, unsigned seed) {
  Vectors out{reference::random_floats(count * dim, seed, 3),
              reference::random_floats(count * dim, seed + 1, 1)};
  for (std::int64_t i = 0; i < count * dim; ++i) {
    if (i % dim < dim / 2) continue;
    const auto at = static_cast<std::size_t>(i);
    out.keys[at] *= 0.8F;
    out.values[at - static_cast<std::size_t>(dim / 2)] += 4 * out.keys[at];
  }
  return out;
}

/// One KV head's rows, their codes, and what these stand for.
struct Head {
  Head(std::int64_t count, std::int64_t dim, CodesParams bytes, unsigned seed,
       std::int64_t rare_count = -1)
      : Head({vectors(count, dim, seed), vectors(count, dim, seed + 1)}, dim, bytes, rare_count) {}

  /// rare_count: -1: those that the index has.
  Head(const Vectors& vectors, std::int64_t dim, CodesParams bytes, std::int64_t rare_count = -1)
      : dim(dim),
        keys(to_bf16_bits(vectors.keys)),
        values(to_bf16_bits(vectors.values)),
        index(bytes) {
    const std::int64_t count = std::ssize(keys) / dim;
    rows = {{reinterpret_cast<const std::byte*>(keys.data()), DType::bf16, count, dim, dim * 2},
            {reinterpret_cast<const std::byte*>(values.data()), DType::bf16, count, dim, dim * 2}};
    index.add(rows.keys, {});
    index.build({});
    rare.assign(index.rare().begin(), index.rare().end());
    if (rare_count >= 0) {
      rare.clear();
      for (std::int64_t i = 0; i < rare_count; ++i) rare.push_back(i * count / rare_count);
    }
    if (bytes.value_bytes > 0)
      tail = std::make_unique<CodeTail>(index, rows, bytes.bits_of_value(dim), std::stop_token{});
    std::vector<float> one(static_cast<std::size_t>(dim));
    for (std::int64_t i = 0; i < count; ++i) {
      index.coder().decode(index.codes(), i, one.data());
      decoded_keys.insert(decoded_keys.end(), one.begin(), one.end());
      if (tail) tail->coder().decode(tail->codes(), i, one.data());
      decoded_values.insert(decoded_values.end(), one.begin(), one.end());
    }
  }

  bool is_rare(std::int64_t row) const { return std::ranges::binary_search(rare, row); }
  HeadCodes codes() const {
    HeadCodes of = codes_of(index, tail.get(), rows);
    of.rare = rare;
    if (!knows_shared_error) of.shared_form = {};
    return of;
  }
  double score(const float* q, std::int64_t row) const {
    const float* key = &decoded_keys[static_cast<std::size_t>(row * dim)];
    double sum = 0;
    for (std::int64_t j = 0; j < dim; ++j) sum += static_cast<double>(q[j]) * key[j];
    return sum;
  }

  std::int64_t dim;
  std::vector<std::uint16_t> keys, values;
  CodesIndex index;
  std::unique_ptr<CodeTail> tail;
  RowsView rows;
  std::vector<std::int64_t> rare;
  std::vector<float> decoded_keys, decoded_values;
  bool knows_shared_error = true;  // false: it is of a file of an early version
};

struct Case {
  const char* name;
  std::int64_t count, dim, group, value_bytes, wanted;
  PositionRange allowed;
  float size = 1;  // of queries
  std::int64_t key_bytes = 16;
  std::int64_t rare = -1;  // keys; -1: those that the index has
  std::int64_t lists = 1;  // of a KV head
  float softcap = 0;
};

std::vector<Case> cases() {
  return {
      {"head_dim_128", 5000, 128, 7, 16, 40, {0, 5000}},
      {"head_dim_64", 5000, 64, 2, 8, 40, {0, 5000}},
      {"head_dim_80", 5000, 80, 8, 16, 40, {4, 4321}},
      {"head_dim_96", 5000, 96, 1, 8, 40, {63, 4929}},
      {"no_values", 5000, 128, 4, 0, 40, {0, 5000}},
      {"one_row_wanted", 5000, 128, 4, 8, 1, {4, 5000}},
      {"all_wanted", 3000, 128, 4, 8, 5000, {4, 3000}},
      {"sharp", 5000, 128, 4, 8, 16, {0, 5000}, 8},
      {"flat", 5000, 128, 4, 8, 256, {0, 5000}, 0.02F},
      {"queries_of_zeros", 5000, 64, 4, 8, 16, {0, 5000}, 0},
      {"tiny_queries", 5000, 64, 4, 8, 16, {0, 5000}, 1e-6F},
      {"one_row", 300, 64, 3, 8, 4, {129, 130}},
      {"no_row", 300, 64, 3, 8, 4, {129, 129}},
      {"few_rows", 70, 64, 3, 8, 4, {0, 70}},
      {"within_a_unit", 300, 128, 8, 16, 4, {65, 120}},
      {"bytes_32", 5000, 128, 7, 8, 40, {4, 4990}, 1, 32},
      {"bytes_32_dim_64", 5000, 64, 2, 16, 40, {0, 5000}, 1, 32},
      {"bytes_32_sharp", 5000, 64, 8, 8, 16, {0, 5000}, 8, 32},
      {"bytes_24_dim_80", 5000, 80, 3, 8, 40, {0, 5000}, 1, 24},
      {"bytes_8_no_values", 5000, 128, 3, 0, 40, {0, 5000}, 1, 8},
      {"many_rare", 6000, 96, 5, 8, 40, {3, 6000}, 1, 16, 5000},
      {"all_rare", 300, 64, 3, 8, 4, {0, 300}, 1, 16, 300},
      {"two_lists", 5000, 128, 7, 8, 40, {4, 5000}, 1, 16, -1, 2},
      {"four_lists", 30000, 64, 4, 8, 64, {4, 29990}, 1, 32, -1, 4},
      {"four_long_lists", 12000, 64, 4, 8, 20000, {4, 12000}, 1, 16, -1, 4},
      {"four_lists_many_rare", 6000, 96, 5, 16, 40, {3, 6000}, 1, 32, 5000, 4},
      {"three_lists_few_rows", 70, 64, 3, 8, 4, {0, 70}, 1, 16, -1, 3},
      {"three_lists_no_row", 300, 64, 3, 8, 4, {129, 129}, 1, 16, -1, 3},
      {"bytes_64", 5000, 128, 7, 8, 40, {4, 4990}, 1, 64},
      {"bytes_48_dim_96", 5000, 96, 2, 16, 40, {0, 5000}, 1, 64},
      // Of 256 dims codes have twice as many bytes as are given.
      {"head_dim_256", 5000, 256, 7, 8, 40, {0, 5000}},
      {"head_dim_256_bytes_16", 5000, 256, 2, 4, 40, {4, 4321}, 1, 8},
      {"head_dim_256_bytes_16_values_16", 5000, 256, 8, 8, 40, {0, 5000}, 1, 8},
      {"head_dim_256_bytes_16_values_32", 5000, 256, 3, 16, 40, {0, 5000}, 1, 8},
      {"head_dim_256_bytes_16_no_values", 5000, 256, 3, 0, 40, {0, 5000}, 1, 8},
      {"head_dim_256_values_8", 5000, 256, 1, 4, 40, {63, 4929}},
      {"head_dim_256_values_32", 5000, 256, 8, 16, 40, {4, 5000}},
      {"head_dim_256_no_values", 5000, 256, 4, 0, 40, {0, 5000}},
      {"head_dim_256_bytes_64", 5000, 256, 7, 8, 40, {63, 4929}, 1, 32},
      {"head_dim_256_bytes_64_values_8", 5000, 256, 4, 4, 40, {0, 5000}, 1, 32},
      {"head_dim_256_bytes_64_values_32", 5000, 256, 8, 16, 40, {4, 4990}, 1, 32},
      {"head_dim_256_bytes_64_no_values", 5000, 256, 2, 0, 40, {0, 5000}, 1, 32},
      {"head_dim_256_sharp", 5000, 256, 4, 8, 16, {0, 5000}, 16},
      {"head_dim_256_bytes_64_sharp", 5000, 256, 4, 16, 16, {0, 5000}, 16, 32},
      {"head_dim_256_flat", 5000, 256, 4, 8, 256, {0, 5000}, 0.02F},
      {"head_dim_256_all_wanted", 3000, 256, 4, 8, 5000, {4, 3000}},
      {"head_dim_256_few_rows", 70, 256, 3, 16, 4, {0, 70}},
      {"head_dim_256_no_row", 300, 256, 3, 8, 4, {129, 129}},
      {"head_dim_256_many_rare", 6000, 256, 8, 8, 40, {3, 6000}, 1, 16, 5000},
      {"head_dim_256_all_rare", 300, 256, 3, 8, 4, {0, 300}, 1, 16, 300},
      {"head_dim_256_four_lists", 30000, 256, 4, 8, 64, {4, 29990}, 1, 32, -1, 4},
      // Of 512 dims, four times as many.
      {"head_dim_512", 5000, 512, 8, 8, 40, {0, 5000}},
      {"head_dim_512_bytes_32_values_16", 3000, 512, 3, 4, 40, {4, 2990}, 1, 8},
      {"head_dim_512_no_values", 3000, 512, 5, 0, 40, {0, 3000}},
      {"head_dim_512_many_rare", 3000, 512, 8, 8, 40, {3, 3000}, 1, 16, 2500},
      {"head_dim_512_few_rows", 70, 512, 3, 8, 4, {0, 70}, 4, 16, -1, 2},
      {"head_dim_512_capped", 3000, 512, 8, 8, 40, {0, 3000}, 4, 16, -1, 1, 3},
      {"head_dim_132", 5000, 132, 5, 8, 40, {0, 5000}},
      {"head_dim_160", 5000, 160, 4, 8, 40, {4, 4990}},
      {"head_dim_160_many_rare", 6000, 160, 3, 16, 40, {3, 6000}, 1, 16, 5000, 2},
      {"head_dim_192", 5000, 192, 6, 12, 40, {0, 5000}, 1, 24},
      // Scores of a size of 1 deviate by about 0.5.
      {"capped", 5000, 128, 7, 8, 40, {0, 5000}, 1, 16, -1, 1, 30},
      {"capped_bent", 5000, 128, 4, 16, 40, {4, 4990}, 4, 16, -1, 1, 2},
      {"capped_sharp", 5000, 128, 4, 8, 16, {0, 5000}, 8, 16, -1, 1, 10},
      {"capped_very_sharp", 5000, 64, 8, 8, 16, {0, 5000}, 40, 32, -1, 1, 50},
      {"capped_two_scores", 5000, 128, 4, 8, 16, {0, 5000}, 8, 16, -1, 1, 0.5F},
      {"capped_flat", 5000, 128, 4, 8, 256, {0, 5000}, 0.02F, 16, -1, 1, 1},
      {"capped_queries_of_zeros", 5000, 64, 4, 8, 16, {0, 5000}, 0, 16, -1, 1, 30},
      {"capped_bytes_32", 5000, 128, 7, 16, 40, {4, 4990}, 4, 32, -1, 1, 4},
      {"capped_bytes_64", 5000, 128, 3, 16, 40, {4, 4990}, 4, 64, -1, 1, 4},
      {"capped_no_values", 5000, 128, 4, 0, 40, {0, 5000}, 4, 16, -1, 1, 4},
      {"capped_bytes_32_no_values", 5000, 64, 4, 0, 40, {0, 5000}, 4, 32, -1, 1, 4},
      {"capped_all_wanted", 3000, 128, 4, 8, 5000, {4, 3000}, 4, 16, -1, 1, 4},
      {"capped_few_rows", 70, 64, 3, 8, 4, {0, 70}, 4, 16, -1, 1, 4},
      {"capped_no_row", 300, 64, 3, 8, 4, {129, 129}, 1, 16, -1, 1, 4},
      {"capped_many_rare", 6000, 96, 5, 8, 40, {3, 6000}, 4, 16, 5000, 1, 3},
      {"capped_all_rare", 300, 64, 3, 8, 4, {0, 300}, 4, 16, 300, 1, 3},
      {"capped_four_lists", 30000, 64, 4, 8, 64, {4, 29990}, 4, 32, -1, 4, 5},
      {"capped_head_dim_256", 5000, 256, 8, 8, 40, {0, 5000}, 4, 16, -1, 1, 3},
      {"capped_head_dim_256_bytes_16", 5000, 256, 3, 16, 40, {0, 5000}, 4, 8, -1, 1, 3},
      {"capped_head_dim_256_values_32", 5000, 256, 3, 16, 40, {4, 5000}, 4, 16, -1, 1, 3},
      {"capped_head_dim_256_bytes_64", 5000, 256, 7, 8, 40, {63, 4929}, 4, 32, -1, 1, 3},
      {"capped_head_dim_256_bytes_64_values_8", 5000, 256, 2, 4, 40, {0, 5000}, 4, 32, -1, 2, 3},
      {"capped_head_dim_256_bytes_64_values_32", 5000, 256, 2, 16, 40, {0, 5000}, 4, 32, -1, 1, 3},
      {"capped_head_dim_256_many_rare", 6000, 256, 8, 8, 40, {3, 6000}, 4, 32, 5000, 4, 3}};
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CodeScans : public testing::TestWithParam<Case> {};

/// A scan's results on the host.
struct Scanned {
  std::vector<std::vector<std::int64_t>> found;  // per KV head, ascending
  std::vector<float> out, lse;                   // [heads] (x dim)
  std::vector<float> estimate, estimate_lse;     // with a tail
  std::vector<TailNoise> noise;
};

struct Scanner {
  Scanner(const Place& place, const AttentionShape& shape,
          const std::vector<std::unique_ptr<Head>>& heads)
      : device(dynamic_cast<gpu::CudaDevice&>(place.compute())), shape(shape) {
    std::vector<HeadCodes> codes_of_heads;
    for (const auto& head : heads) codes_of_heads.push_back(head->codes());
    const auto lock = device.lock();
    codes = std::make_unique<CudaCodes>(device, shape, codes_of_heads);
  }

  Scanned run(const std::vector<float>& q, std::int64_t wanted, PositionRange allowed, bool tail,
              std::int64_t capacity, std::int64_t lists = 1) {
    return run_together({{q, allowed}}, wanted, tail, capacity, lists).front();
  }

  /// A form of a token's query, for the rows before `end`.
  struct Earlier {
    std::vector<float> q;
    std::int64_t end;
  };
  struct Asked {
    std::vector<float> q;  // of a token
    PositionRange allowed;
    std::vector<Earlier> earlier = {};  // ends descend
  };
  /// One scan for all of them.
  std::vector<Scanned> run_together(const std::vector<Asked>& asked, std::int64_t wanted, bool tail,
                                    std::int64_t capacity, std::int64_t lists) {
    const auto lock = device.lock();
    CodeScan scan = codes->scan(0);
    scan.wanted = static_cast<int>(wanted);
    scan.lists = static_cast<int>(lists);
    scan.capacity = static_cast<int>(capacity);
    scan.tail = tail;
    std::vector<std::unique_ptr<Memory>> memory;
    for (const Asked& token : asked) {
      memory.push_back(std::make_unique<Memory>(shape, token, lists * (1 + capacity)));
      scan.forms = 1 + static_cast<int>(token.earlier.size());
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        scan.range[scan.head_steps() + h] = codes->range(0, h, token.allowed);
        for (std::size_t form = 0; form < token.earlier.size(); ++form) {
          const auto of = codes->range(0, h, {token.earlier[form].end, token.allowed.end});
          scan.border[form][h] = {of.begin, of.rare_begin};
        }
      }
      scan.token[scan.tokens++] = memory.back()->token();
    }
    scan.splits = codes->splits(scan.tokens);
    gpu::prepare_queries(scan, {}, device.compute_stream());
    gpu::list_rows(scan, device.compute_stream());
    device.synchronize();
    std::vector<Scanned> results;
    for (const auto& of_token : memory) results.push_back(of_token->read(shape, tail, capacity));
    return results;
  }

  /// What a scan reads and writes of one token.
  struct Memory {
    std::vector<std::unique_ptr<DeviceArray<float>>> queries;  // of each form
    DeviceArray<int> found;
    DeviceArray<float> rare, rare_lse, estimate, estimate_lse;
    DeviceArray<TailNoise> noise;

    Memory(const AttentionShape& shape, const Asked& asked, std::int64_t lists)
        : found(shape.kv_heads * lists),
          rare(shape.q_heads * shape.head_dim),
          rare_lse(shape.q_heads),
          estimate(shape.q_heads * shape.head_dim),
          estimate_lse(shape.q_heads),
          noise(shape.q_heads) {
      const auto add = [&](const std::vector<float>& q) {
        queries.push_back(std::make_unique<DeviceArray<float>>(q, 1));  // aligned to elements only
      };
      add(asked.q);
      for (const Earlier& form : asked.earlier) add(form.q);
    }

    gpu::ScanToken token() const {
      gpu::ScanToken of{.parts = {{estimate.data(), estimate_lse.data()},
                                  {rare.data(), rare_lse.data()},
                                  noise.data()},
                        .found = found.data()};
      for (std::size_t form = 0; form < queries.size(); ++form)
        of.query[form] = queries[form]->data();
      return of;
    }

    Scanned read(const AttentionShape& shape, bool tail, std::int64_t capacity) const {
      Scanned result;
      const std::vector<int> given = found.read();
      result.found.resize(static_cast<std::size_t>(shape.kv_heads));
      for (std::int64_t i = 0; i < std::ssize(given) / (1 + capacity); ++i) {
        const int* of = &given[static_cast<std::size_t>(i * (1 + capacity))];
        auto& rows = result.found[static_cast<std::size_t>(i % shape.kv_heads)];
        EXPECT_LE(of[0], capacity);
        rows.insert(rows.end(), of + 1, of + 1 + of[0]);
      }
      for (auto& rows : result.found) std::ranges::sort(rows);
      result.out = rare.read();
      result.lse = rare_lse.read();
      if (tail) {
        result.estimate = estimate.read();
        result.estimate_lse = estimate_lse.read();
        result.noise = noise.read();
        merge({result.out.data(), result.lse.data(), shape.q_heads, shape.head_dim},
              {result.estimate.data(), result.estimate_lse.data(), shape.q_heads, shape.head_dim});
      }
      return result;
    }
  };

  gpu::CudaDevice& device;
  AttentionShape shape;
  std::unique_ptr<CudaCodes> codes;
};

double capped(double score, double softcap) {
  return softcap > 0 ? softcap * std::tanh(score / softcap) : score;
}

/// The deviation of a score's error that is reckoned with.
double deviation(const Head& head, const AttentionShape& shape, const float* query) {
  if (shape.softcap > 0) return 0;
  return shape.softmax_scale() *
         std::sqrt(static_cast<double>(head.index.coder().error_variance(query)));
}

/// log of the mean of exp(error) for errors of deviation s below x.
double mean_error(double s, double x) {
  if (s < 1e-6) return 0;
  return s * s / 2 + std::log(normal_cdf(x / s - s) / normal_cdf(x / s));
}

/// The squared error that rows share, by the host's form of it.
double shared_error(const Head& head, const AttentionShape& shape, const float* query) {
  const std::span<const float> form = head.tail->shared_form();
  const auto dim = static_cast<std::size_t>(head.dim);
  double sum = 0;
  for (std::size_t i = 0; i < form.size(); ++i)
    sum += static_cast<double>(query[i / dim]) * form[i] * query[i % dim];
  const double unit = shape.softmax_scale() * head.tail->shared_unit();
  return head.knows_shared_error ? std::max(0.0, sum * unit * unit) : 0;
}

/// The same by the rows and what codes stand for: the square of how far off their covariance with
/// the scores is.
double lost_covariance(const Head& head, const AttentionShape& shape, const float* query) {
  const auto dim = static_cast<std::size_t>(head.dim);
  struct Sums {
    explicit Sums(std::size_t dim) : products(dim), values(dim) {}
    double scores = 0;
    std::vector<double> products, values;
  };
  Sums rows(dim);
  Sums codes(dim);
  double count = 0;
  for (std::int64_t row = 0; row < head.rows.count(); ++row) {
    if (head.is_rare(row)) continue;
    ++count;
    double score = 0;
    for (std::size_t j = 0; j < dim; ++j)
      score += static_cast<double>(query[j]) *
               test::bf16_at(head.rows.key(row), static_cast<std::int64_t>(j));
    const auto add = [&](Sums& to, double of_row, const auto& value) {
      to.scores += of_row;
      for (std::size_t j = 0; j < dim; ++j) {
        to.products[j] += of_row * value(j);
        to.values[j] += value(j);
      }
    };
    add(rows, score, [&](std::size_t j) -> double {
      return test::bf16_at(head.rows.value(row), static_cast<std::int64_t>(j));
    });
    add(codes, head.score(query, row), [&](std::size_t j) -> double {
      return head.decoded_values[static_cast<std::size_t>(row) * dim + j];
    });
  }
  double square = 0;
  for (std::size_t j = 0; j < dim; ++j) {
    const auto covariance = [&](const Sums& of) {
      return of.products[j] / count - of.scores / count * (of.values[j] / count);
    };
    const double lost = covariance(rows) - covariance(codes);
    square += lost * lost;
  }
  return square * shape.softmax_scale() * shape.softmax_scale();
}

TEST_P(CodeScans, EqualFloat64OfWhatCodesStandFor) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Case& c = GetParam();
  constexpr std::int64_t kv_heads = 2;
  const AttentionShape shape{.layers = 1,
                             .q_heads = kv_heads * c.group,
                             .kv_heads = kv_heads,
                             .head_dim = c.dim,
                             .softcap = c.softcap};
  std::vector<std::unique_ptr<Head>> heads;
  for (unsigned h = 0; h < kv_heads; ++h)
    heads.push_back(std::make_unique<Head>(c.count, c.dim, CodesParams{c.key_bytes, c.value_bytes},
                                           10 * h + 1, c.rare));
  std::vector<float> q = reference::random_floats(shape.q_heads * c.dim, 7, c.size);
  Scanner scanner(place, shape, heads);
  const bool tail = c.value_bytes > 0;
  const Scanned got = scanner.run(q, c.wanted, c.allowed, tail, c.count, c.lists);
  const double scale = shape.softmax_scale();
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const Head& head = *heads[static_cast<std::size_t>(h)];
    const auto& found = got.found[static_cast<std::size_t>(h)];
    ASSERT_EQ(std::ranges::adjacent_find(found), found.end()) << "a row twice";
    std::vector<std::int64_t> coded;
    std::vector<std::int64_t> rare;
    for (std::int64_t row = c.allowed.begin; row < c.allowed.end; ++row)
      (head.is_rare(row) ? rare : coded).push_back(row);
    for (const std::int64_t row : found)
      ASSERT_TRUE(std::ranges::binary_search(coded, row)) << row << " is not a row to be found";

    std::vector<bool> due(coded.size(), false);     // found for some head, whatever rounding does
    std::vector<bool> may_be(coded.size(), false);  // or within rounding of it
    for (std::int64_t g = 0; g < c.group; ++g) {
      const std::int64_t at = h * c.group + g;
      const float* query = &q[static_cast<std::size_t>(at * c.dim)];
      std::vector<double> scores;
      double most = 0;  // of what is capped
      for (const std::int64_t row : coded) {
        const double score = scale * head.score(query, row);
        most = std::max(most, std::abs(score));
        scores.push_back(capped(score, c.softcap));
      }
      std::vector<double> sorted(scores);
      std::ranges::sort(sorted, std::greater<>());
      const bool all = c.wanted >= std::ssize(coded);
      const double last = coded.empty() || all ? -std::numeric_limits<double>::infinity()
                                               : sorted[static_cast<std::size_t>(c.wanted) - 1];
      const double next = all || coded.empty() ? last : sorted[static_cast<std::size_t>(c.wanted)];
      // Coefficients are rounded to 1 / 32512 of the largest, weights near the threshold to 2^-10.
      const double widest = coded.empty()   ? 0
                            : c.softcap > 0 ? most
                                            : sorted.front() - sorted.back();
      const double rounding = 2e-3 + 1e-3 * widest;
      for (std::size_t i = 0; i < coded.size(); ++i) {
        due[i] = due[i] || scores[i] > last + rounding;
        may_be[i] = may_be[i] || scores[i] > next - rounding;
      }

      // Rare rows as they are, and the tail: coded rows that were not found, whose mass is
      // corrected as that of those below the threshold.
      std::vector<std::pair<double, std::vector<double>>> parts;
      for (const std::int64_t row : rare) {
        double sum = 0;
        std::vector<double> value;
        for (std::int64_t j = 0; j < c.dim; ++j) {
          sum += static_cast<double>(query[j]) * test::bf16_at(head.rows.key(row), j);
          value.push_back(test::bf16_at(head.rows.value(row), j));
        }
        parts.emplace_back(capped(scale * sum, c.softcap), value);
      }
      if (tail && !all) {
        const double s = deviation(head, shape, query);
        // Of capped scores those that are nearly alike are found together.
        const double threshold = c.softcap > 0 ? next - 1.4e-3 : (last + next) / 2;
        double plain = 0;
        double corrected = 0;
        for (const double score : scores) {
          if (score >= threshold) continue;
          plain += std::exp(score - threshold);
          corrected += std::exp(score - threshold) * std::exp(mean_error(s, threshold - score));
        }
        const double correction = plain > 0 ? std::log(corrected / plain) : 0;
        double squares = 0;
        for (const double score : scores) {
          if (score >= threshold) continue;
          const double p =
              std::exp(score - threshold + mean_error(s, threshold - score)) / corrected;
          squares += p * p;
        }
        const TailNoise& noise = got.noise[static_cast<std::size_t>(at)];
        const ValueCoder& values = head.tail->coder();
        if (c.size > 1e-3F) {  // with scores that are all alike, a threshold may fall anywhere
          if (s > 0) {
            EXPECT_NEAR(noise.weights / (squares * std::expm1(s * s)), 1, 0.1) << "head " << at;
          } else {
            EXPECT_EQ(noise.weights, 0) << "head " << at;
          }
          const double shared = shared_error(head, shape, query);
          EXPECT_NEAR(noise.values / (squares * values.error_variance() + shared), 1, 0.1)
              << "head " << at;
        }
        EXPECT_EQ(noise.spread, values.variance());
        for (std::size_t i = 0; i < coded.size(); ++i) {
          if (std::ranges::binary_search(found, coded[i])) continue;
          const float* value = &head.decoded_values[static_cast<std::size_t>(coded[i] * c.dim)];
          parts.emplace_back(scores[i] + correction, std::vector<double>(value, value + c.dim));
        }
      }
      const float lse = got.lse[static_cast<std::size_t>(at)];
      if (parts.empty()) {
        EXPECT_EQ(lse, empty_lse) << "head " << at;
        continue;
      }
      double high = -1e300;
      for (const auto& [score, value] : parts) high = std::max(high, score);
      double mass = 0;
      std::vector<double> want(static_cast<std::size_t>(c.dim), 0.0);
      for (const auto& [score, value] : parts) {
        const double w = std::exp(score - high);
        mass += w;
        for (std::size_t j = 0; j < want.size(); ++j) want[j] += w * value[j];
      }
      const double tolerance = tail && !all ? 5e-3 + rounding : 1e-4;
      EXPECT_NEAR(lse, high + std::log(mass), tolerance) << "head " << at;
      double off = 0;
      double norm = 0;
      for (std::size_t j = 0; j < want.size(); ++j) {
        const double w = want[j] / mass;
        const double o = got.out[static_cast<std::size_t>(at * c.dim) + j];
        off += (w - o) * (w - o);
        norm += w * w;
      }
      EXPECT_LT(std::sqrt(off), 2e-3 + (2e-3 + rounding) * std::sqrt(norm)) << "head " << at;
    }
    for (std::size_t i = 0; i < coded.size(); ++i) {
      const bool is_found = std::ranges::binary_search(found, coded[i]);
      EXPECT_TRUE(is_found || !due[i]) << "row " << coded[i] << " was not found";
      EXPECT_TRUE(!is_found || may_be[i]) << "row " << coded[i] << " was found";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodeScans, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

/// What TailNoise::values is made of.
struct ValueErrors {
  double independent = 0;
  double shared = 0;  // by the host's form
  double lost = 0;    // by lost_covariance
};

/// In float64, for query head `at` of a token. No more keys than a sample has are allowed.
ValueErrors value_errors(const Head& head, const AttentionShape& shape, const Scanner::Asked& token,
                         std::int64_t at, std::int64_t wanted) {
  const std::size_t forms = 1 + token.earlier.size();
  const auto query = [&](std::size_t form) {
    return (form == 0 ? token.q : token.earlier[form - 1].q).data() + at * shape.head_dim;
  };
  std::vector<std::pair<double, std::size_t>> scores;  // and the form of the query
  for (std::int64_t row = token.allowed.begin; row < token.allowed.end; ++row) {
    if (head.is_rare(row)) continue;
    std::size_t form = 0;
    while (form + 1 < forms && row < token.earlier[form].end) ++form;
    scores.emplace_back(shape.softmax_scale() * head.score(query(form), row), form);
  }
  std::ranges::sort(scores, std::greater<>());
  const auto below = std::span(scores).subspan(static_cast<std::size_t>(wanted));
  const double threshold = (below.data()[-1].first + below[0].first) / 2;
  double squares = 0;
  std::vector<double> masses(forms);
  std::vector<double> deviations;
  for (std::size_t form = 0; form < forms; ++form)
    deviations.push_back(deviation(head, shape, query(form)));
  for (const auto& [score, form] : below) {
    const double weight =
        std::exp(score - threshold + mean_error(deviations[form], threshold - score));
    squares += weight * weight;
    masses[form] += weight;
  }
  const double mass = std::accumulate(masses.begin(), masses.end(), 0.0);
  ValueErrors out{squares / (mass * mass) * head.tail->coder().error_variance()};
  for (std::size_t form = 0; form < forms; ++form) {
    const double share = masses[form] / mass;
    out.shared += share * share * shared_error(head, shape, query(form));
    out.lost += share * share * lost_covariance(head, shape, query(form));
  }
  return out;
}

struct SharedCase {
  std::int64_t count, dim;
  CodesParams bytes;
  int forms = 1;
  int tokens = 1;
  int power = 0;  // of two: of keys, its inverse of queries, and half of it of values
  bool known = true;
};

/// Errors of keys that go with the values are most of the error.
TEST(CodeScan, TellsTheErrorThatRowsShare) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t kv_heads = 2;
  constexpr std::int64_t group = 3;
  constexpr std::int64_t wanted = 40;
  for (const SharedCase& c :
       {SharedCase{24000, 64, {8, 8}}, SharedCase{24000, 128, {8, 4}},
        SharedCase{24000, 64, {8, 8}, 1, 3}, SharedCase{24000, 64, {8, 8}, 2},
        SharedCase{24000, 128, {8, 4}, 3}, SharedCase{24000, 64, {8, 8}, 1, 1, 60},
        SharedCase{24000, 64, {8, 8}, 1, 1, -60}, SharedCase{24000, 64, {8, 8}, 1, 1, 0, false},
        SharedCase{24000, 80, {8, 4}}, SharedCase{16000, 256, {8, 4}},
        SharedCase{16000, 256, {8, 4}, 3}, SharedCase{12000, 512, {8, 8}}}) {
    SCOPED_TRACE(std::to_string(c.dim) + " dims, forms " + std::to_string(c.forms) + ", tokens " +
                 std::to_string(c.tokens) + ", power " + std::to_string(c.power));
    const AttentionShape shape{.layers = 1,
                               .q_heads = kv_heads * group,
                               .kv_heads = kv_heads,
                               .head_dim = c.dim,
                               .chunk_len = c.forms > 1 ? 4096 : 0};
    std::vector<std::unique_ptr<Head>> heads;
    for (unsigned h = 0; h < kv_heads; ++h) {
      Vectors rows = correlated_vectors(c.count, c.dim, 10 * h + 1);
      for (float& x : rows.keys) x = std::ldexp(x, c.power);
      for (float& x : rows.values) x = std::ldexp(x, c.power / 2);
      heads.push_back(std::make_unique<Head>(rows, c.dim, c.bytes));
      heads.back()->knows_shared_error = c.known;
    }
    const auto queries = [&](int seed) {
      auto q = reference::random_floats(shape.q_heads * c.dim, static_cast<unsigned>(seed),
                                        0.3F + 0.1F * static_cast<float>(seed % 3));
      for (float& x : q) x = std::ldexp(x, -c.power);
      return q;
    };
    std::vector<Scanner::Asked> asked;
    for (int i = 0; i < c.tokens; ++i) {
      Scanner::Asked& token = asked.emplace_back();
      token = {queries(7 + i), {4, c.count - 700 * i}};
      for (int form = 1; form < c.forms; ++form)
        token.earlier.push_back({queries(70 + form), form == 1 ? c.count * 3 / 4 : c.count / 8});
    }
    Scanner scanner(place, shape, heads);
    const auto got = scanner.run_together(asked, wanted, true, c.count, 1);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      for (std::int64_t at = 0; at < shape.q_heads; ++at) {
        const ValueErrors want =
            value_errors(*heads[static_cast<std::size_t>(at / group)], shape, asked[i], at, wanted);
        const double told = got[i].noise[static_cast<std::size_t>(at)].values;
        EXPECT_NEAR(told / (want.independent + want.shared), 1, c.known ? 0.03 : 0.1)
            << "head " << at;
        if (!c.known) continue;
        EXPECT_NEAR(told / (want.independent + want.lost), 1, 0.25) << "head " << at;
        EXPECT_GT(told, 4 * want.independent) << "head " << at;
      }
    }
  }
}

TEST(CodeScan, WhatDoesNotFitTheListStaysInTheTail) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape shape{.layers = 1, .q_heads = 4, .kv_heads = 1, .head_dim = 64};
  std::vector<std::unique_ptr<Head>> heads;
  heads.push_back(std::make_unique<Head>(4000, 64, CodesParams{16, 8}, 3));
  const std::vector<float> q = reference::random_floats(4 * 64, 7, 1.0F);
  Scanner scanner(place, shape, heads);
  const Scanned some = scanner.run(q, 100, {0, 4000}, true, 10);
  EXPECT_EQ(some.found[0].size(), 10U);
  EXPECT_EQ(scanner.run(q, 100, {0, 4000}, true, 10, 2).found[0].size(), 20U);
  const Scanned all = scanner.run(q, 100, {0, 4000}, true, 4000);
  EXPECT_GE(all.found[0].size(), 100U);
  for (std::size_t g = 0; g < 4; ++g) EXPECT_GT(some.lse[g], all.lse[g]);
}

TEST(CodeScan, OfALongContextFindsAboutAsManyRowsAsWanted) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t count = 300000;  // a ninth of which is sampled
  std::vector<std::unique_ptr<Head>> heads;
  heads.push_back(std::make_unique<Head>(count, 64, CodesParams{16, 8}, 1));
  const Head& head = *heads[0];
  const std::vector<std::pair<float, std::int64_t>> cases = {
      {0.0F, 16}, {0.0F, 64}, {0.0F, 1024}, {10.0F, 16}, {10.0F, 1024}};
  for (const auto& [softcap, wanted] : cases) {
    SCOPED_TRACE("softcap " + std::to_string(softcap));
    const AttentionShape shape{
        .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64, .softcap = softcap};
    Scanner scanner(place, shape, heads);
    const double scale = shape.softmax_scale();
    const auto capped_score = [&](double dot) { return capped(scale * dot, shape.softcap); };
    double total = 0;
    constexpr unsigned rounds = 24;
    for (unsigned round = 0; round < rounds; ++round) {
      const auto q = reference::random_floats(64, 70 + round, 1.0F);
      const std::int64_t lists = 1 + round % gpu::scan_lists;
      const Scanned got = scanner.run(q, wanted, {4, count}, true, 20 * wanted, lists);
      const auto& found = got.found[0];
      const auto n = static_cast<double>(found.size());
      total += n;
      EXPECT_GT(n, static_cast<double>(wanted) / 16);
      EXPECT_LT(n, static_cast<double>(wanted) * 6);
      if (round >= 3) continue;
      // The tail is that of the rows not found, wherever the threshold lies.
      const double s = deviation(head, shape, q.data());
      double threshold = 1e300;
      for (const std::int64_t row : found)
        threshold = std::min(threshold, capped_score(head.score(q.data(), row)));
      double plain = 0;
      double corrected = 0;
      for (std::int64_t row = 4; row < count; ++row) {
        if (head.is_rare(row)) {
          double score = 0;
          for (std::int64_t j = 0; j < 64; ++j)
            score += static_cast<double>(q[static_cast<std::size_t>(j)]) *
                     test::bf16_at(head.rows.key(row), j);
          corrected += std::exp(capped_score(score) - threshold);
          continue;
        }
        if (std::ranges::binary_search(found, row)) continue;
        const double below = std::max(0.0, threshold - capped_score(head.score(q.data(), row)));
        plain += std::exp(-below);
        corrected += std::exp(mean_error(s, below) - below);
      }
      EXPECT_NEAR(got.lse[0], threshold + std::log(corrected), 0.05)
          << "of which codes " << threshold + std::log(plain);
    }
    const double mean = total / rounds / static_cast<double>(wanted);
    EXPECT_GT(mean, 0.6) << wanted;
    EXPECT_LT(mean, 1.6) << wanted;
  }
}

TEST(CodeScan, OfSeveralTokensIsThatOfEach) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  struct Shape {
    CodesParams bytes;
    std::int64_t dim = 64;
    float softcap = 0;
  };
  for (const auto& [bytes, dim, softcap] :
       {Shape{{16, 8}}, Shape{{32, 16}}, Shape{{16, 0}}, Shape{{16, 8}, 256}, Shape{{16, 8}, 512},
        Shape{{16, 8}, 64, 4}, Shape{{32, 16}, 256, 4}}) {
    const std::int64_t count = dim > 256 ? 9000 : dim > 128 ? 20000 : 60000;
    const AttentionShape shape{
        .layers = 1, .q_heads = 6, .kv_heads = 2, .head_dim = dim, .softcap = softcap};
    std::vector<std::unique_ptr<Head>> heads;
    for (unsigned h = 0; h < 2; ++h) heads.push_back(std::make_unique<Head>(count, dim, bytes, h));
    Scanner scanner(place, shape, heads);
    std::vector<Scanner::Asked> asked;
    for (unsigned i = 0; i < gpu::scan_batch; ++i) {
      asked.push_back({reference::random_floats(6 * dim, 7 + i, i == 2 ? 8.0F : 1.0F),
                       {4, i == 3 ? 300 : count - 1000 * i}});
    }
    const bool tail = bytes.value_bytes > 0;
    // Sums are of other parts. (Equal: both may be infinite.)
    const auto near = [](float a, float b) { return a == b || std::abs(a - b) < 1e-4F; };
    for (const std::size_t tokens : {2U, 3U, 8U}) {
      const auto got = scanner.run_together(
          {asked.begin(), asked.begin() + static_cast<long>(tokens)}, 48, tail, 4000, 3);
      ASSERT_EQ(got.size(), tokens);
      for (std::size_t i = 0; i < tokens; ++i) {
        const Scanned want = scanner.run(asked[i].q, 48, asked[i].allowed, tail, 4000, 3);
        EXPECT_EQ(got[i].found, want.found);
        EXPECT_LT(distance({got[i].out}, {want.out}), 1e-4);
        for (std::size_t g = 0; g < 6; ++g) EXPECT_TRUE(near(got[i].lse[g], want.lse[g]));
        if (!tail) continue;
        EXPECT_LT(distance({got[i].estimate}, {want.estimate}), 1e-4);
        for (std::size_t g = 0; g < 6; ++g)
          EXPECT_TRUE(near(got[i].estimate_lse[g], want.estimate_lse[g]));
      }
    }
  }
}

}  // namespace
}  // namespace topkv
