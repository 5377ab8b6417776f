// The thresholds of squeezed, from the attention of the context's last tokens.
#include <algorithm>

#include "index/common/scratch.h"
#include "index/common/topk_stream.h"
#include "index/methods/squeezed_index.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t calibration_tokens = 100;
constexpr double coarse_share = 0.5;  // of keys that the coarse threshold leaves

}  // namespace

void SqueezedIndex::learn(const PrefillQueries& queries) {
  if (size() == 0) return;
  const std::int64_t all = std::ssize(queries.positions);
  const std::int64_t used = std::min(all - queries.spread, calibration_tokens);
  if (used <= 0) {
    throw InvalidArgument(
        spec() +
        ": needs the queries of a prefill, and this context has no queries; expected a prefill "
        "with ContextOptions::keep_queries, without appended or truncated rows, and without steps "
        "whose out is q or that use chunks; or coarse=0 with s=0, which needs no queries");
  }
  observed_ = {.queries = {queries.token(all - used), queries.token(all)},
               .tokens = used,
               .group = queries.group,
               .scale = queries.scale};
}

/// use(first): for questions of so many of the tokens that were observed.
template <class Use>
void SqueezedIndex::each_observed(std::int64_t tokens, const std::stop_token& stop,
                                  const Use& use) const {
  const std::int64_t width = observed_.group * keys().dim;
  for (std::int64_t t = 0; tokens > 0 && t + tokens <= observed_.tokens; t += tokens) {
    check_stop(stop);
    use(TokenHeads{observed_.queries.data() + t * width, observed_.group, keys().dim,
                   observed_.scale});
  }
}

/// Keys by the bin of their clusters' importance, summed over heads and questions.
struct SqueezedIndex::Histogram {
  std::vector<double> keys = std::vector<double>(static_cast<std::size_t>(bins), 0.0);
  double clusters_read = 0;
  double all = 0;  // keys, those that were not looked at, too

  void add(float importance, std::int64_t count) {
    keys[static_cast<std::size_t>(bin_of(importance))] += static_cast<double>(count);
  }
  void add(const Histogram& other) {
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] += other.keys[i];
    all += other.all;
  }
  /// How many bins, largest importances first, hold no more than this share of all keys.
  std::int64_t within(double share) const {
    std::int64_t count = 0;
    for (double taken = 0; count < bins; ++count) {
      taken += keys[static_cast<std::size_t>(count)];
      if (taken > share * all) break;
    }
    return count;
  }
};

SqueezedIndex::Thresholds SqueezedIndex::find_thresholds(std::span<SqueezedIndex* const> heads,
                                                         bool questions,
                                                         const std::stop_token& stop) {
  const SqueezedParams& params = heads[0]->params_;
  // add(index, first of a question's tokens, their number, the index's part)
  const auto over_heads = [&](const auto& add) {
    std::vector<Histogram> parts(heads.size());
    parallel_for(std::ssize(heads), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const SqueezedIndex& index = *heads[static_cast<std::size_t>(i)];
        Histogram& part = parts[static_cast<std::size_t>(i)];
        const std::int64_t tokens = questions ? index.observed_.tokens : 1;
        index.each_observed(tokens, stop, [&](const TokenHeads& first) {
          part.all += static_cast<double>(first.heads * index.size());
          add(index, first, tokens, part);
        });
      }
    });
    return parts;
  };
  const auto sum = [](const std::vector<Histogram>& parts) {
    Histogram all;
    for (const Histogram& part : parts) all.add(part);
    return all;
  };
  Thresholds thresholds;
  if (params.coarse > 0) {
    const Histogram coarse = sum(over_heads([](const SqueezedIndex& index, const TokenHeads& first,
                                               std::int64_t tokens, Histogram& part) {
      const Scratch<Workspace> workspace;
      index.weigh_coarse(first, tokens, *workspace);
      const std::int64_t count = index.coarse_clusters();
      for (std::int64_t i = 0; i < first.heads * count; ++i) {
        part.add(workspace->coarse[static_cast<std::size_t>(i)],
                 index.keys_of_[static_cast<std::size_t>(i % count)]);
      }
    }));
    thresholds.coarse = coarse.within(coarse_share);
  }
  const std::vector<Histogram> parts =
      over_heads([&](const SqueezedIndex& index, const TokenHeads& first, std::int64_t tokens,
                     Histogram& part) {
        const Scratch<Workspace> workspace;
        index.weigh(first, tokens, thresholds.coarse, *workspace);
        part.clusters_read += static_cast<double>(index.has_coarse() ? std::ssize(workspace->read)
                                                                     : index.clusters());
        for (std::int64_t i = 0; i < first.heads * index.clusters(); ++i) {
          const float importance = workspace->fine[static_cast<std::size_t>(i)];
          if (importance != no_threshold) part.add(importance, index.members(i % index.clusters()));
        }
      });
  if (params.sparsity > 0)
    thresholds.fine = sum(parts).within(1 - static_cast<double>(params.sparsity) / 100);
  for (std::size_t i = 0; !questions && i < heads.size(); ++i) {
    heads[i]->clusters_read_ =
        parts[i].clusters_read / static_cast<double>(heads[i]->observed_.tokens);
  }
  return thresholds;
}

void SqueezedIndex::calibrate(std::span<SqueezedIndex* const> heads, const std::stop_token& stop) {
  if (heads.empty() || heads[0]->size() == 0) return;
  const Thresholds of_token = find_thresholds(heads, false, stop);
  const Thresholds of_question = find_thresholds(heads, true, stop);
  for (SqueezedIndex* head : heads) {
    head->set_thresholds(of_token, of_question);
    head->observed_ = {};
  }
}

}  // namespace topkv
