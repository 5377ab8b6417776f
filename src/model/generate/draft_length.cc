#include "src/model/generate/draft_length.h"

#include <algorithm>
#include <numeric>

namespace topkv {
namespace {

constexpr double least_gain = 1.05;  // in tokens a second; less may be noise
constexpr double remembered = 24;    // tokens judged of an evidence
constexpr double most_longer = 1.5;  // what a step may be longer than usual: machines pause
// Steps between tries of a draft model that has not been worth its time.
constexpr std::int64_t first_wait = 8;
constexpr std::int64_t longest_wait = 256;

constexpr double last_weight = 0.125;  // of the latest time in a mean
constexpr double first_weight = 2;     // of the share that is assumed, in times

/// Moves the mean of some times towards one more.
void average(double& mean, double& count, double seconds) {
  const double of_this = std::max(last_weight, 1 / ++count);
  mean += of_this * (std::min(seconds, count == 1 ? seconds : most_longer * mean) - mean);
}

}  // namespace

DraftLength::DraftLength(bool timed, bool takes_back, double guess_cost, double known_share)
    : timed_(timed),
      takes_back_(takes_back),
      share_(timed ? first_share : untimed_share),
      guess_(timed ? 0 : guess_cost) {
  if (!timed || known_share <= 0) return;
  share_ = std::min(known_share, most_known_share);
  shares_ = 1 / last_weight;
}

DraftLength::Evidence DraftLength::of_match(std::int64_t matched) {
  if (matched <= 3) return 0;
  if (matched <= 6) return 1;
  return matched <= 12 ? 2 : 3;
}

DraftLength::Evidence DraftLength::of_probability(double probability) {
  if (probability < 0.4) return matches;
  if (probability < 0.7) return matches + 1;
  return probability < 0.9 ? matches + 2 : matches + 3;
}

double DraftLength::guess_chance() const {
  const double accepted = std::accumulate(accepted_.begin() + matches, accepted_.end(), 0.0);
  return accepted / std::accumulate(judged_.begin() + matches, judged_.end(), 0.0);
}

double DraftLength::cost(std::int64_t tokens) const {
  return 1 + share_ * static_cast<double>(tokens - 1);
}

std::int64_t DraftLength::choose(std::span<const Evidence> draft, bool guessed) const {
  const std::int64_t most = std::ssize(draft);
  if (forced > 0) return std::min(forced, most);
  if (timed_ && one_ == 0 && (shares_ == 0 || guessed)) return 0;
  const double spent = guessed ? static_cast<double>(most) * guess_cost() : 0;
  double best = least_gain / (1 + spent);
  std::int64_t length = 0;
  double tokens = 1;  // expected
  double all = 1;     // the chance that all are accepted
  for (std::int64_t n = 1; n <= most; ++n) {
    all *= chance(draft[static_cast<std::size_t>(n - 1)]);
    tokens += all;
    double time = spent + cost(1 + n);
    if (takes_back_) time += (1 - all) * (1 + share_ * (tokens - 1));
    if (tokens / time <= best) continue;
    best = tokens / time;
    length = n;
  }
  return length;
}

bool DraftLength::guesses() {
  if (forced > 0) return true;
  if (timed_ && one_ == 0) return false;
  const bool known = guess_ > 0;
  if (known && (1 + guess_chance()) / (1 + guess_cost() + share_) > least_gain) {
    idle_ = 0;
    next_try_ = first_wait;
    return true;
  }
  if (++idle_ < next_try_) return false;
  idle_ = 0;
  next_try_ = std::clamp(2 * next_try_, first_wait, longest_wait);
  return true;
}

bool DraftLength::guesses_on(std::span<const Evidence> draft) const {
  const std::int64_t count = std::ssize(draft);
  if (forced > 0) return count < forced;
  // The first token comes with what the draft model reads before it, and times of it say little.
  if (guess_ == 0) return count < 2;
  double tokens = 1;
  double all = 1;
  for (const Evidence one : draft) {
    all *= chance(one);
    tokens += all;
  }
  const double time = cost(1 + count) + static_cast<double>(count) * guess_cost();
  return (tokens + all * guess_chance()) * time > tokens * (time + share_ + guess_cost());
}

void DraftLength::count(std::span<const Evidence> draft, std::int64_t accepted) {
  for (std::int64_t i = 0; i < std::min(std::ssize(draft), accepted + 1); ++i) {
    const std::size_t at = draft[static_cast<std::size_t>(i)];
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
  if (tokens == 1) return average(one_, ones_, seconds);
  if (one_ == 0) return;
  const double share = (seconds / one_ - 1) / static_cast<double>(tokens - 1);
  const double of_this = std::max(last_weight, 1 / (first_weight + ++shares_));
  share_ += of_this * (std::clamp(share, 0.01, most_longer) - share_);
}

void DraftLength::time_guess(double seconds) {
  if (timed_ && seconds > 0) average(guess_, guesses_, seconds);
}

}  // namespace topkv
