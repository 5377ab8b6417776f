// Indices of selection methods whose entries are chosen elsewhere, as a device does: what they find
// is what they find by themselves, of the entries that they were given and of no others.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "index/common/rule_based_index.h"
#include "index/methods/squeezed_index.h"
#include "src/core/io/faults.h"
#include "tests/support/key_cases.h"
#include "tests/support/reference.h"
#include "tests/support/wanted_choice.h"

namespace topkv {
namespace {

using test::Keys;
using test::WantedChoice;

constexpr std::int64_t given_dim = 48;
constexpr std::int64_t given_rows = 3000;
constexpr std::int64_t given_group = 3;
constexpr float given_scale = 0.1F;

std::unique_ptr<RuleBasedIndex> built_choosing(const std::string& spec, const KeyView& keys) {
  auto index = make_index(spec);
  index->add(keys);
  index->build();
  auto* choosing = dynamic_cast<RuleBasedIndex*>(index.release());
  if (auto* squeezed = dynamic_cast<SqueezedIndex*>(choosing); squeezed != nullptr) {
    const SqueezedIndex::Thresholds some{.fine = 64 * 9};  // importances above 2^-9
    squeezed->set_thresholds(some, some);
  }
  return std::unique_ptr<RuleBasedIndex>(choosing);
}

/// Choices that searches were given, while one lives.
class Choices {
 public:
  Choices() {
    taken = dropped = 0;
    fault_hook = [](const char* place) {
      taken += std::string_view(place) == "search.choice_taken";
      dropped += std::string_view(place) == "search.choice_dropped";
    };
  }
  ~Choices() { fault_hook = nullptr; }
  Choices(const Choices&) = delete;  // belongs to one scope
  Choices& operator=(const Choices&) = delete;

  static inline std::atomic<std::int64_t> taken{0}, dropped{0};
};

/// A token of a group, and its search.
struct AskingToken {
  std::vector<float> queries = reference::random_bf16(given_group * given_dim, 7, 2.0F);
  std::vector<PositionRange> allowed;
  explicit AskingToken(PositionRange range) : allowed(given_group, range) {}

  SearchResult search(const RuleBasedIndex& index, std::int64_t k,
                      const CandidateEntries* given) const {
    SearchResult result;
    index.search({.data = queries.data(),
                  .count = given_group,
                  .dim = given_dim,
                  .allowed = allowed,
                  .group = given_group,
                  .scale = given_scale},
                 k, given, result);
    return result;
  }
  WantedChoice wanted(const KeySummaries& of, std::int64_t k) const {
    return {of, queries, given_scale, allowed[0], k};
  }
};

/// What a device gives, as float64 has it, and some that do not exist.
struct Given {
  Given(const WantedChoice& wanted, bool sums) {
    for (std::int64_t list = 0; list < wanted.lists(); ++list) {
      const auto best = wanted.best(list);
      entries.insert(entries.end(), best.begin(), best.end());
      entries.insert(entries.end(), {1 << 20, 1 << 21});
      if (sums) log_sums.push_back(static_cast<float>(wanted.log_sum(list)));
    }
    all = {entries, wanted.count() + 2, wanted.among().begin, log_sums};
  }
  std::vector<std::int32_t> entries;
  std::vector<float> log_sums;
  CandidateEntries all;
};

void expect_same(const SearchResult& got, const SearchResult& want) {
  for (std::int64_t q = 0; q < given_group; ++q) {
    const auto have = got.positions(q);
    const auto should = want.positions(q);
    EXPECT_EQ(std::vector(have.begin(), have.end()), std::vector(should.begin(), should.end()))
        << q;
  }
}

const std::vector<std::string> specs = {"quest:page=16", "quest:page=7", "quest:page=1",
                                        "sparq:r=8",     "sparq:r=100",  "retroinfer:segment=512",
                                        "squeezed:c=5",  "squeezed:s=90"};

TEST(CandidateEntries, FindWhatTheIndexWouldFind) {
  const Keys keys =
      test::make_keys(test::clustered(given_rows, given_dim, 1), given_dim, DType::bf16);
  for (const std::string& spec : specs) {
    const auto index = built_choosing(spec, keys.view());
    const KeySummaries of = index->key_summaries();
    ASSERT_NE(of.kind, KeySummaryKind::none) << spec;
    const KeySummaries planned = index->planned_key_summaries(given_dim, given_rows);
    EXPECT_EQ(planned.kind, of.kind);
    EXPECT_EQ(planned.weighed, of.weighed);
    EXPECT_GE(planned.count, of.count);
    EXPECT_LE(planned.count, of.count + of.count / 20 + 1) << spec;
    for (const PositionRange range :
         {PositionRange{0, given_rows}, {4, 2900}, {13, 100}, {1500, 1580}, {2905, given_rows}}) {
      for (const std::int64_t k : {1, 40, 500}) {
        SCOPED_TRACE(spec + ", " + std::to_string(k) + " of " + std::to_string(range.size()));
        const AskingToken token(range);
        if (index->takes_all(range.size(), k)) continue;
        const Given given(token.wanted(of, k), of.weighed);
        const Choices choices;
        expect_same(token.search(*index, k, &given.all), token.search(*index, k, nullptr));
        EXPECT_EQ(Choices::taken, 1);
        EXPECT_EQ(Choices::dropped, 0);
      }
    }
  }
}

/// The worst in place of the best: nothing else is looked at.
TEST(CandidateEntries, NoOthersAreFound) {
  const Keys keys =
      test::make_keys(test::clustered(given_rows, given_dim, 1), given_dim, DType::bf16);
  for (const std::string& spec : specs) {
    const auto index = built_choosing(spec, keys.view());
    const KeySummaries of = index->key_summaries();
    AskingToken token({0, given_rows});
    AskingToken away = token;
    for (float& q : away.queries) q = -q;
    const std::int64_t k = 64;
    Given given(away.wanted(of, k), of.weighed);
    // That nearly nothing has importance is not to leave all of them out.
    for (float& sum : given.log_sums) sum = -100;
    const SearchResult got = token.search(*index, k, &given.all);
    const SearchResult own = token.search(*index, k, nullptr);
    for (std::int64_t q = 0; q < given_group; ++q) {
      ASSERT_EQ(std::ssize(got.positions(q)), k) << spec;
      const auto wanted = own.positions(q);
      const std::set<std::int64_t> without(wanted.begin(), wanted.end());
      std::int64_t common = 0;
      for (const std::int64_t row : got.positions(q)) common += without.contains(row) ? 1 : 0;
      EXPECT_LT(common, k) << spec;
    }
  }
}

/// Entries that hold too few rows of the range, or sums beyond float32: the index chooses for
/// itself.
TEST(CandidateEntries, ThatHoldTooFewRowsAreNotUsed) {
  const Keys keys =
      test::make_keys(test::clustered(given_rows, given_dim, 1), given_dim, DType::bf16);
  for (const std::string& spec : specs) {
    const auto index = built_choosing(spec, keys.view());
    const KeySummaries of = index->key_summaries();
    const AskingToken token({1500, 2900});
    const std::int64_t k = 64;
    Given given(token.wanted(of, k), of.weighed);
    // All of them but two do not exist.
    for (std::size_t i = 0; i < given.entries.size(); ++i) {
      if (i % static_cast<std::size_t>(given.all.each) >= 2) given.entries[i] = 1 << 20;
    }
    for (float& sum : given.log_sums) sum = std::numeric_limits<float>::quiet_NaN();
    const Choices choices;
    expect_same(token.search(*index, k, &given.all), token.search(*index, k, nullptr));
    EXPECT_EQ(Choices::dropped, 1);
  }
}

TEST(CandidateEntries, TwoLevelsAndOtherMethodsHaveNoKeySummaries) {
  const Keys keys =
      test::make_keys(test::clustered(given_rows, given_dim, 1), given_dim, DType::bf16);
  for (const char* spec : {"squeezed:coarse=1", "lowrank:r=8"}) {
    const auto index = built_choosing(spec, keys.view());
    EXPECT_EQ(index->key_summaries().kind, KeySummaryKind::none) << spec;
    EXPECT_EQ(index->planned_key_summaries(given_dim, given_rows).kind, KeySummaryKind::none)
        << spec;
  }
}

}  // namespace
}  // namespace topkv
