#include "src/cli/terminal/eta.h"

#include <algorithm>

namespace topkv::cli {
namespace {

constexpr std::int64_t least_told = 2;
/// From so many on the fit says something of whatever is ahead.
constexpr std::int64_t enough_told = 8;

}  // namespace

void Pace::add(std::int64_t done, double seconds) {
  if (done <= done_) return;
  if (told_++ == 0) unit_ = static_cast<double>(done);
  done_ = done;
  seconds_ = seconds;
  const double n = static_cast<double>(done) / unit_;
  n2_ += n * n;
  n3_ += n * n * n;
  n4_ += n * n * n * n;
  tn_ += seconds * n;
  tn2_ += seconds * n * n;
}

/// Least squares over all that was told. Of later ones more: they lie further from 0.
double Pace::seconds_at(double done) const {
  const double determinant = n2_ * n4_ - n3_ * n3_;  // above 0 with two different ones
  double a = (tn_ * n4_ - tn2_ * n3_) / determinant;
  double c = (n2_ * tn2_ - n3_ * tn_) / determinant;
  if (c < 0) {
    a = tn_ / n2_;
    c = 0;
  } else if (a < 0) {
    a = 0;
    c = tn2_ / n4_;
  }
  const double n = done / unit_;
  return a * n + c * n * n;
}

std::optional<double> Pace::steady_seconds_left(std::int64_t total) const {
  if (told_ == 0) return std::nullopt;
  return static_cast<double>(total - done_) * seconds_ / static_cast<double>(done_);
}

std::optional<double> Pace::seconds_left(std::int64_t total) const {
  if (told_ < least_told) return std::nullopt;
  // Of m that are uneven by 3 %, m times as far ahead the fit is some 20 % off.
  if (told_ < enough_told && total > told_ * done_) return std::nullopt;
  return std::max(0.0,
                  seconds_at(static_cast<double>(total)) - seconds_at(static_cast<double>(done_)));
}

}  // namespace topkv::cli
