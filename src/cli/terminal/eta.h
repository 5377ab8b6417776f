// How long work that is under way will still take, from how it went so far.
#pragma once

#include <cstdint>
#include <optional>

namespace topkv::cli {

/// Fits seconds(done) = a done + b done²/2, a and b at least 0, to what it is told: a unit may take
/// the longer the more there is before it, as a token does that attends to all of them. One thread.
class Pace {
 public:
  /// So much was done after so many seconds. What is not beyond what was told before tells nothing.
  void add(std::int64_t done, double seconds);

  /// From the last told one to `total`. Empty before the second, and, before the eighth, where
  /// `total` is further ahead than the fit carries: what was told is never quite even.
  std::optional<double> seconds_left(std::int64_t total) const;

  /// Likewise of work each unit of which takes the same. Empty before the first.
  std::optional<double> steady_seconds_left(std::int64_t total) const;

  std::int64_t done() const { return done_; }
  double seconds() const { return seconds_; }

 private:
  double seconds_at(double done) const;

  std::int64_t told_ = 0;
  std::int64_t done_ = 0;  // of the last told, as seconds_
  double seconds_ = 0;
  double n2_ = 0, n3_ = 0, n4_ = 0;  // sums of powers of done, in units of the first
  double tn_ = 0, tn2_ = 0;          // and of these times the seconds
  double unit_ = 1;
};

}  // namespace topkv::cli
