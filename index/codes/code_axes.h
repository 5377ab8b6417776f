// What codes of keys and of values have in common: the axes along which the vectors of one head
// vary.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/core/format/archive.h"
#include "topkv/view.h"

namespace topkv {

/// Mean and principal axes of one head's vectors, most variance first. Vectors are scaled by a
/// power of 2, so that squares stay finite; all that is said of them here is said of scaled ones.
/// Const members are safe from many threads.
class CodeAxes {
 public:
  static constexpr std::int64_t tile = 512;  ///< vectors projected at a time
  /// The work on axes grows with its third power.
  static constexpr std::int64_t most_dims = 1024;

  /// Throws InvalidArgument for keys of more dims, of an index with this spec.
  static void check(std::string_view spec, std::int64_t dim);

  CodeAxes() = default;

  /// Learns from vectors sampled evenly out of all, which it leaves centred in `sample` [n, dim].
  /// REQUIRES: vectors.count > 0. Throws InvalidArgument when one is not finite.
  CodeAxes(const KeyView& vectors, std::vector<float>& sample);

  /// Of all vectors the mean and, instead of variances, their sum; no axes. The scale is 1. The
  /// result does not depend on the number of threads. Throws InvalidArgument when a vector is not
  /// finite.
  static CodeAxes mean_of(const KeyView& vectors);

  /// Returns the position of number i of `count` vectors that are spread evenly over `all`.
  static std::int64_t sampled(std::int64_t i, std::int64_t count, std::int64_t all);

  std::int64_t dim() const { return dim_; }
  float scale() const { return scale_; }
  const std::vector<float>& mean() const { return mean_; }
  /// [dim], of the vectors along each axis.
  const std::vector<double>& variances() const { return variances_; }
  /// [dim], of length 1.
  const float* axis(std::int64_t i) const { return axes_.data() + i * dim_; }

  /// Vectors first and on, scaled and centred. out: [count, dim]; squares: [count], of their
  /// lengths. Throws InvalidArgument when a vector is not finite.
  void read(const KeyView& vectors, std::int64_t first, std::int64_t count, float* out,
            float* squares) const;

  /// What centred vectors [count, dim] are along the first `axes` axes; count at most tile.
  /// out: [axes, tile].
  void project(const float* centred, std::int64_t count, std::int64_t axes, float* out) const;
  /// The same, vector by vector. out: [count, stride], stride >= axes.
  void project_each(const float* centred, std::int64_t count, std::int64_t axes, float* out,
                    std::int64_t stride) const;

  /// What centred vectors [n, dim] are along the first `axes` axes, of at most `most` of them:
  /// ascending, [axes][..].
  std::vector<std::vector<float>> spread(const std::vector<float>& centred, std::int64_t axes,
                                         std::int64_t most) const;

  std::int64_t memory() const;

  /// For a file, of vectors of so many dims. axes: with them; else as mean_of gives it.
  void fields(std::int64_t dim, bool axes, Archive& archive);

 private:
  void find_axes(const std::vector<float>& sample);

  std::int64_t dim_ = 0;
  float scale_ = 1;
  std::vector<float> mean_;
  std::vector<float> axes_;  // [dim, dim]
  std::vector<double> variances_;
};

}  // namespace topkv
