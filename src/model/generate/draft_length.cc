#include "src/model/generate/draft_length.h"

#include <algorithm>

namespace topkv {
namespace {

constexpr double least_gain = 1.05;  // in tokens a second; less may be noise
constexpr double remembered = 24;    // tokens judged of a length

}  // namespace

std::size_t DraftLength::length_of(std::int64_t matched) {
  if (matched <= 3) return 0;
  if (matched <= 6) return 1;
  return matched <= 12 ? 2 : 3;
}

double DraftLength::chance(std::int64_t matched) const {
  const std::size_t at = length_of(matched);
  return accepted_[at] / judged_[at];
}

double DraftLength::cost(std::int64_t tokens) const {
  return 1 + share_ * static_cast<double>(tokens - 1);
}

std::int64_t DraftLength::choose(std::int64_t matched, std::int64_t most) const {
  if (forced > 0) return std::min(forced, most);
  if (timed_ && one_ == 0) return 0;
  double best = least_gain;
  std::int64_t length = 0;
  double tokens = 1;  // expected
  double all = 1;     // the chance that all are accepted
  for (std::int64_t n = 1; n <= most; ++n) {
    all *= chance(matched + n - 1);
    tokens += all;
    double time = cost(1 + n);
    if (takes_back_) time += (1 - all) * (1 + share_ * (tokens - 1));
    if (tokens / time <= best) continue;
    best = tokens / time;
    length = n;
  }
  return length;
}

void DraftLength::count(std::int64_t matched, std::int64_t drafted, std::int64_t accepted) {
  for (std::int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    const std::size_t at = length_of(matched + i);
    if (judged_[at] >= remembered) {
      accepted_[at] *= (remembered - 1) / judged_[at];
      judged_[at] = remembered - 1;
    }
    judged_[at] += 1;
    if (i < accepted) accepted_[at] += 1;
  }
}

void DraftLength::time(std::int64_t tokens, double seconds) {
  if (!timed_ || seconds <= 0) return;
  constexpr double weight = 0.125;
  constexpr double most = 1.5;  // what a step may be longer than usual: machines pause
  if (tokens == 1) {
    const double of_this = std::max(weight, 1 / ++ones_);
    one_ += of_this * (std::min(seconds, ones_ == 1 ? seconds : most * one_) - one_);
    return;
  }
  if (one_ == 0) return;
  const double share = (seconds / one_ - 1) / static_cast<double>(tokens - 1);
  share_ += weight * (std::clamp(share, 0.01, most) - share_);
}

}  // namespace topkv
