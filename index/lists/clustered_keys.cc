#include "index/lists/clustered_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "index/common/in_place_keys.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t assigned_at_a_time = 64;  // whose scores stay in the second-level cache
constexpr std::int64_t keys_between_checks = 4096;
constexpr std::int64_t products_between_checks = 1 << 22;
constexpr std::int64_t sampled_per_part = 64;
constexpr std::int64_t most_of_mean = 16;  // keys of a part, as a multiple of what parts have
constexpr int rounds_of_parts = 6;         // more of them change no recall that was measured
constexpr int rounds_of_lists = 3;

constexpr float largest = std::numeric_limits<float>::max();

struct Nearest {
  std::int32_t centroid = 0;
  /// key · centroid - |centroid|² / 2: the larger, the nearer. -inf where none is a number.
  float score = -std::numeric_limits<float>::infinity();
};

/// Centroids [count, dim] and half their squared norms.
struct Centroids {
  const float* data = nullptr;
  const float* half_squares = nullptr;
  std::int64_t count = 0;
};

/// Of each of these keys, on the calling thread.
void find_nearest(const KeyView& keys, std::span<const std::int64_t> positions,
                  const Centroids& centroids, const std::function<void()>& check, Nearest* out) {
  std::vector<float> scores(static_cast<std::size_t>(centroids.count * assigned_at_a_time));
  std::int64_t products = 0;  // since the last check
  for (std::int64_t begin = 0; begin < std::ssize(positions); begin += assigned_at_a_time) {
    products += centroids.count * assigned_at_a_time;
    if (products > products_between_checks) {
      check();
      products = 0;
    }
    const std::int64_t count = std::min(assigned_at_a_time, std::ssize(positions) - begin);
    dot_gather(centroids.data, centroids.count, keys, positions.data() + begin, count,
               scores.data(), assigned_at_a_time);
    float best[assigned_at_a_time];
    std::int32_t at[assigned_at_a_time] = {};
    std::fill_n(best, assigned_at_a_time, -std::numeric_limits<float>::infinity());
    for (std::int64_t c = 0; c < centroids.count; ++c) {
      const float* of = scores.data() + c * assigned_at_a_time;
      const float half_square = centroids.half_squares[c];
      for (std::int64_t i = 0; i < count; ++i) {
        const float score = of[i] - half_square;
        const bool nearer = score > best[i];
        best[i] = nearer ? score : best[i];
        at[i] = nearer ? static_cast<std::int32_t>(c) : at[i];
      }
    }
    for (std::int64_t i = 0; i < count; ++i) out[begin + i] = {at[i], best[i]};
  }
}

float half_square(const float* x, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t j = 0; j < dim; ++j) sum += static_cast<double>(x[j]) * x[j];
  return static_cast<float>(std::min(sum / 2, double{largest}));
}

/// k-means of the keys at these positions: `count` centroids [count, dim] and half their squared
/// norms, from so many of the keys chosen by chance. On the calling thread.
void cluster(const KeyView& keys, std::span<const std::int64_t> positions, std::int64_t count,
             int rounds, float* centroids, float* half_squares,
             const std::function<void()>& check) {
  const std::int64_t dim = keys.dim;
  std::vector<std::int64_t> chosen(positions.begin(), positions.end());
  std::mt19937_64 random(1);
  for (std::int64_t c = 0; c < count; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const auto left = static_cast<std::uint64_t>(chosen.size() - at);
    std::swap(chosen[at], chosen[at + random() % left]);
    widen_key(keys, chosen[at], centroids + c * dim);
    half_squares[c] = half_square(centroids + c * dim, dim);
  }
  std::vector<Nearest> nearest(positions.size());
  std::vector<double> sums(static_cast<std::size_t>(count * dim));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count));
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (int round = 0; round < rounds; ++round) {
    check();
    find_nearest(keys, positions, {centroids, half_squares, count}, check, nearest.data());
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(sizes.begin(), sizes.end(), 0);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      widen_key(keys, positions[i], key.data());
      double* sum = sums.data() + nearest[i].centroid * dim;
      for (std::int64_t j = 0; j < dim; ++j) sum[j] += key[static_cast<std::size_t>(j)];
      ++sizes[static_cast<std::size_t>(nearest[i].centroid)];
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t size = sizes[static_cast<std::size_t>(c)];
      if (size == 0) continue;
      for (std::int64_t j = 0; j < dim; ++j) {
        centroids[c * dim + j] = static_cast<float>(sums[static_cast<std::size_t>(c * dim + j)] /
                                                    static_cast<double>(size));
      }
      half_squares[c] = half_square(centroids + c * dim, dim);
    }
  }
}

/// The squared distance of a key from its nearest centroid. Throws InvalidArgument when the key is
/// not finite.
float residual(const KeyView& keys, std::int64_t position, float score) {
  const float square = dot_stored(keys, position, position);
  if (!std::isfinite(square)) {
    std::vector<float> key(static_cast<std::size_t>(keys.dim));
    widen_key(keys, position, key.data());
  }
  const float distance = square - 2 * score;
  return distance < largest ? std::max(distance, 0.0F) : largest;  // NaN: the largest
}

/// Calls body(positions) for pieces of a range, from many threads.
template <class Body>
void for_pieces(PositionRange range, const std::function<void()>& check, const Body& body) {
  parallel_for(range.size(), keys_between_checks, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> positions;
    for (; begin < end; begin += keys_between_checks) {
      check();
      positions.resize(static_cast<std::size_t>(std::min(keys_between_checks, end - begin)));
      std::iota(positions.begin(), positions.end(), range.begin + begin);
      body(positions);
    }
  });
}

}  // namespace

KeyView ClusteredKeys::centroids() const {
  return {reinterpret_cast<const std::byte*>(centroids_.data()), DType::f32, count(), dim_,
          4 * dim_};
}

std::int64_t ClusteredKeys::memory() const {
  return static_cast<std::int64_t>((parts_.centroids.capacity() + parts_.half_squares.capacity() +
                                    centroids_.capacity() + half_squares_.capacity()) *
                                       sizeof(float) +
                                   (parts_.first.capacity() + list_.capacity()) *
                                       sizeof(std::int32_t)) +
         members_.memory();
}

void ClusteredKeys::learn(const KeyView& keys, std::int64_t keys_per_list,
                          std::vector<float>& residuals, const std::function<void()>& check,
                          const std::function<void(std::int64_t)>& done) {
  dim_ = keys.dim;
  const auto dim = static_cast<std::size_t>(dim_);
  const auto lists_of = [&](std::int64_t count) {
    return std::max<std::int64_t>(1, (count + keys_per_list / 2) / keys_per_list);
  };
  auto parts =
      std::min(keys.count,
               static_cast<std::int64_t>(2 * std::sqrt(static_cast<double>(lists_of(keys.count)))));
  parts_.centroids.resize(static_cast<std::size_t>(parts) * dim);
  parts_.half_squares.resize(static_cast<std::size_t>(parts));
  std::vector<std::int64_t> sample(static_cast<std::size_t>(keys.count));
  std::iota(sample.begin(), sample.end(), 0);
  if (keys.count > sampled_per_part * parts) {
    std::vector<std::int64_t> some;
    std::sample(sample.begin(), sample.end(), std::back_inserter(some), sampled_per_part * parts,
                std::mt19937_64(1));
    sample.swap(some);
  }
  cluster(keys, sample, parts, rounds_of_parts, parts_.centroids.data(), parts_.half_squares.data(),
          check);

  std::vector<std::int32_t> part(static_cast<std::size_t>(keys.count));
  const Centroids of_parts{parts_.centroids.data(), parts_.half_squares.data(), parts};
  for_pieces({0, keys.count}, check, [&](std::span<const std::int64_t> positions) {
    std::vector<Nearest> nearest(positions.size());
    find_nearest(keys, positions, of_parts, check, nearest.data());
    for (std::size_t i = 0; i < positions.size(); ++i)
      part[static_cast<std::size_t>(positions[i])] = nearest[i].centroid;
  });

  keep_used_parts(part);
  parts = cut_large_parts(part);

  const GroupedRows in_parts({.groups = parts, .group = part.data()}, keys.count);
  parts_.first.assign(1, 0);
  for (std::int64_t p = 0; p < parts; ++p) {
    const std::int64_t count = lists_of(std::ssize(in_parts.rows_of(p)));
    parts_.first.push_back(parts_.first.back() + static_cast<std::int32_t>(count));
  }
  const auto lists = static_cast<std::size_t>(parts_.first.back());
  centroids_.resize(lists * dim);
  half_squares_.resize(lists);
  list_.resize(static_cast<std::size_t>(keys.count));
  residuals.resize(static_cast<std::size_t>(keys.count));
  parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Nearest> nearest;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::span<const std::int64_t> positions = in_parts.rows_of(p);
      const auto first = static_cast<std::size_t>(parts_.first[static_cast<std::size_t>(p)]);
      const std::int64_t count = lists_of(std::ssize(positions));
      float* centroids = centroids_.data() + first * dim;
      float* half_squares = half_squares_.data() + first;
      cluster(keys, positions, count, rounds_of_lists, centroids, half_squares, check);
      nearest.resize(positions.size());
      find_nearest(keys, positions, {centroids, half_squares, count}, check, nearest.data());
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto at = static_cast<std::size_t>(positions[i]);
        list_[at] = static_cast<std::int32_t>(first) + nearest[i].centroid;
        residuals[at] = residual(keys, positions[i], nearest[i].score);
      }
      done(std::ssize(positions));
    }
  });
  members_ = GroupedRows({.groups = count(), .group = list_.data()}, keys.count);
}

/// Forgets parts that no key is in, so that later keys find lists in theirs. part: of each key, by
/// its old number, then by its new one.
void ClusteredKeys::keep_used_parts(std::span<std::int32_t> part) {
  const auto dim = static_cast<std::size_t>(dim_);
  std::vector<std::int32_t> number(parts_.half_squares.size(), 0);
  for (const std::int32_t p : part) number[static_cast<std::size_t>(p)] = 1;
  std::size_t used = 0;
  for (std::size_t p = 0; p < number.size(); ++p) {
    if (number[p] == 0) continue;
    number[p] = static_cast<std::int32_t>(used);
    std::copy_n(&parts_.centroids[p * dim], dim, &parts_.centroids[used * dim]);
    parts_.half_squares[used++] = parts_.half_squares[p];
  }
  for (std::int32_t& p : part) p = number[static_cast<std::size_t>(p)];
  parts_.centroids.resize(used * dim);
  parts_.half_squares.resize(used);
}

/// Cuts parts that have many times the mean, as where most keys are alike, for the work on a part
/// is the square of its keys: pieces have the same centroid. Gives the number of parts then. part:
/// as above.
std::int64_t ClusteredKeys::cut_large_parts(std::span<std::int32_t> part) {
  const auto dim = static_cast<std::size_t>(dim_);
  const std::size_t parts = parts_.half_squares.size();
  const std::int64_t most =
      most_of_mean * std::max<std::int64_t>(1, std::ssize(part) / static_cast<std::int64_t>(parts));
  std::vector<std::int64_t> sizes(parts, 0);
  std::vector<std::int32_t> number(parts);  // of the piece that is being filled
  std::iota(number.begin(), number.end(), 0);
  for (std::int32_t& p : part) {
    const auto of = static_cast<std::size_t>(p);
    if (++sizes[of] > most) {
      sizes[of] = 1;
      number[of] = static_cast<std::int32_t>(parts_.half_squares.size());
      parts_.half_squares.push_back(parts_.half_squares[of]);
      parts_.centroids.resize(parts_.centroids.size() + dim);
      std::copy_n(&parts_.centroids[of * dim], dim,
                  parts_.centroids.end() - static_cast<std::ptrdiff_t>(dim));
    }
    p = number[of];
  }
  return std::ssize(parts_.half_squares);
}

void ClusteredKeys::add(const KeyView& keys, std::int64_t first, std::vector<float>& residuals,
                        const std::function<void()>& check,
                        const std::function<void(std::int64_t)>& done) {
  const std::int64_t parts = std::ssize(parts_.half_squares);
  list_.resize(static_cast<std::size_t>(keys.count));
  residuals.resize(static_cast<std::size_t>(keys.count - first));
  const Centroids of_parts{parts_.centroids.data(), parts_.half_squares.data(), parts};
  for_pieces({first, keys.count}, check, [&](std::span<const std::int64_t> positions) {
    std::vector<Nearest> part(positions.size());
    find_nearest(keys, positions, of_parts, check, part.data());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto p = static_cast<std::size_t>(part[i].centroid);
      const std::int64_t begin = parts_.first[p];
      Nearest nearest;
      find_nearest(keys, {&positions[i], 1},
                   {centroids_.data() + begin * dim_, half_squares_.data() + begin,
                    parts_.first[p + 1] - begin},
                   check, &nearest);
      list_[static_cast<std::size_t>(positions[i])] =
          static_cast<std::int32_t>(begin) + nearest.centroid;
      residuals[static_cast<std::size_t>(positions[i] - first)] =
          residual(keys, positions[i], nearest.score);
    }
    done(std::ssize(positions));
  });
  members_ = GroupedRows({.groups = count(), .group = list_.data()}, keys.count);
}

void ClusteredKeys::fields(const KeyView& keys, Archive& archive) {
  archive.value(dim_);
  archive.array(parts_.centroids);
  archive.array(parts_.half_squares);
  archive.array(parts_.first);
  archive.array(centroids_);
  archive.array(half_squares_);
  archive.array(list_);
  if (!archive.reading()) return;
  const std::int64_t parts = std::ssize(parts_.half_squares);
  archive.check(dim_ == keys.dim && count() > 0 && parts > 0 && std::ssize(list_) == keys.count &&
                    std::ssize(parts_.centroids) % dim_ == 0 &&
                    std::ssize(parts_.centroids) / dim_ == parts &&
                    std::ssize(centroids_) % dim_ == 0 && std::ssize(centroids_) / dim_ == count(),
                "its lists do not belong to these keys");
  archive.check(
      std::ssize(parts_.first) == parts + 1 && parts_.first.front() == 0 &&
          parts_.first.back() == count() &&
          std::ranges::adjacent_find(parts_.first, std::greater_equal<>()) == parts_.first.end(),
      "its parts do not follow each other");
  for (const std::int32_t list : list_)
    archive.check(list >= 0 && list < count(), "a key is in an unknown list");
  members_ = GroupedRows({.groups = count(), .group = list_.data()}, keys.count);
}

}  // namespace topkv
