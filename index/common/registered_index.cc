#include "index/common/registered_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "index/common/in_place_keys.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "src/core/format/archive.h"
#include "src/core/math/dot.h"
#include "src/core/math/row_format.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// An application's index under one name. It lives as long as an index, or a spec, that it made.
struct Registered {
  std::string name;
  IndexRegistration functions;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Registered>, std::less<>> of_name;
};

/// It is never destroyed: functions of a registration may need an interpreter that is gone by then.
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

/// Calls a function of the application. spec: names the index in errors. what: names the function.
template <class Call>
auto guarded(std::string_view spec, std::string_view what, const Call& call) {
  const auto message = [&](std::string_view why) {
    return fmt::format("index \"{}\": {} failed: {}", one_line(spec), what, why);
  };
  try {
    return call();
  } catch (const Stopped&) {
    throw;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const InvalidArgument& error) {
    std::throw_with_nested(InvalidArgument(message(error.what())));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(message(error.what())));
  } catch (...) {
    std::throw_with_nested(Error(message("it threw something that is not a std::exception")));
  }
}

/// Throws for a result or an estimate that breaks the contract.
[[noreturn]] void fail(std::string_view spec, std::string_view what) {
  throw Error(fmt::format("index \"{}\": {}", one_line(spec), what));
}

/// Working memory of a search.
struct CheckedSearch {
  SearchResult found;
  std::vector<PositionRange> allowed;
};

/// Working memory of one query.
struct CheckedQuery {
  std::vector<std::int64_t> positions;  // ascending
  std::vector<float> scores;
  std::vector<Scored> ranked;
};

class RegisteredIndex final : public HeadIndex {
 public:
  RegisteredIndex(std::shared_ptr<const Registered> of, std::string spec,
                  std::unique_ptr<KeyIndex> index)
      : of_(std::move(of)), spec_(std::move(spec)), index_(std::move(index)) {}

  const KeyIndex& application() const { return *index_; }

  void add(const KeyView& keys, const std::stop_token& stop) override {
    InPlaceKeys with = keys_;
    with.append(keys);
    guarded(spec_, "add", [&] { index_->add(keys, stop); });
    check_size(with.size(), "add");
    keys_ = with;
  }

  void build(const std::stop_token& stop) override {
    if (built_) {
      throw InvalidArgument(spec_ + ": build called twice; keys added after it are searchable");
    }
    guarded(spec_, "build", [&] { index_->build(stop); });
    check_size(keys_.size(), "build");
    built_ = true;
  }

  std::int64_t inserted() const override {
    return guarded(spec_, "inserted",
                   [&] { return std::max<std::int64_t>(0, index_->inserted()); });
  }
  std::int64_t size() const override { return keys_.size(); }
  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) +
           guarded(spec_, "memory", [&] { return std::max<std::int64_t>(0, index_->memory()); });
  }
  std::int64_t bytes_searched() const override {
    return guarded(spec_, "bytes_searched",
                   [&] { return std::max<std::int64_t>(-1, index_->bytes_searched()); });
  }
  std::string spec() const override { return spec_; }

  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const override {
    keys_.check_search(spec_, built_, queries, k);
    check_groups(spec_, queries);
    k = std::min(k, std::max<std::int64_t>(size(), 1));
    result.reset(queries.count, k);
    if (size() == 0 || queries.count == 0) return;
    const Scratch<CheckedSearch> workspace;
    auto& [found, allowed] = *workspace;
    allowed.clear();
    for (const PositionRange& range : queries.allowed) allowed.push_back(keys_.clamp(range));
    QueryBlock clamped = queries;
    clamped.allowed = allowed;
    found.reset(queries.count, k);  // what is left from before is no result
    guarded(spec_, "search", [&] { index_->search(clamped, k, found); });
    if (found.queries() != queries.count) {
      fail(spec_, fmt::format("search returned results of {} queries, expected {}", found.queries(),
                              queries.count));
    }
    parallel_for(queries.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t q = begin; q < end; ++q)
        take(q, queries.query(q), allowed[static_cast<std::size_t>(q)], k, found, result);
    });
  }

  /// A file has whether there is saved data, and the data. Without data a built index is made anew.
  void transfer(const KeyView& keys, Archive& archive) override {
    const auto& save = of_->functions.save;
    const auto& load = of_->functions.load;
    std::int64_t is_saved = save && !archive.reading() && size() > 0 ? 1 : 0;
    archive.value(is_saved);
    archive.check(is_saved == 0 || is_saved == 1, "it is neither saved nor to be built");
    std::vector<std::byte> saved;
    if (is_saved == 1 && !archive.reading())
      saved = guarded(spec_, "save", [&] { return save(*index_); });
    if (is_saved == 1) archive.array(saved);
    if (!archive.reading()) return;
    if (is_saved == 0 || !load) {
      add(keys, {});
      build({});
      return;
    }
    InPlaceKeys held;
    held.append(keys);
    guarded(spec_, "load", [&] { load(*index_, keys, saved); });
    check_size(held.size(), "load");
    keys_ = held;
    built_ = true;
  }

 private:
  void check_size(std::int64_t keys, std::string_view after) const {
    const std::int64_t has = guarded(spec_, "size", [&] { return index_->size(); });
    if (has == keys) return;
    fail(spec_, fmt::format("size() is {} after {}, expected {} keys", has, after, keys));
  }

  /// Checks what was found for one query, and writes it to the result.
  void take(std::int64_t query, const float* q, PositionRange allowed, std::int64_t k,
            const SearchResult& found, SearchResult& result) const {
    const auto count = static_cast<std::int64_t>(found.positions(query).size());
    if (count < 0 || count > std::min(k, found.k())) {
      fail(spec_, fmt::format("search returned {} positions for query {}, expected at most {}",
                              count, query, std::min(k, found.k())));
    }
    const Scratch<CheckedQuery> workspace;
    auto& [positions, scores, ranked] = *workspace;
    positions.assign(found.positions(query).begin(), found.positions(query).end());
    std::ranges::sort(positions);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (!allowed.contains(positions[i])) {
        fail(spec_, fmt::format("search returned position {} for query {}, expected positions from "
                                "{} to {}",
                                positions[i], query, allowed.begin, allowed.end - 1));
      }
      if (i > 0 && positions[i] == positions[i - 1]) {
        fail(spec_, fmt::format("search returned position {} twice for query {}, expected it once",
                                positions[i], query));
      }
    }
    scores.resize(positions.size());
    dot_gather(q, 1, keys_.view(), positions.data(), count, scores.data(), count);
    ranked.clear();
    for (std::size_t i = 0; i < positions.size(); ++i)
      if (!std::isnan(scores[i])) ranked.push_back({scores[i], positions[i]});
    std::ranges::sort(ranked, ranks_before);
    write_result(ranked, query, result);
  }

  std::shared_ptr<const Registered> of_;
  std::string spec_;
  std::unique_ptr<KeyIndex> index_;
  InPlaceKeys keys_;
  bool built_ = false;
};

class RegisteredTail final : public RowTail {
 public:
  RegisteredTail(std::shared_ptr<const Registered> of, std::string spec,
                 std::unique_ptr<IndexTail> tail)
      : of_(std::move(of)), spec_(std::move(spec)), tail_(std::move(tail)) {}

  void attend(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
              std::span<const float> /*ceilings*/, float scale, float softcap,
              const TailParts& out) const override {
    make_empty(out);
    const Scratch<std::vector<float>> errors;
    errors->assign(static_cast<std::size_t>(queries.count), 0.0F);
    guarded(spec_, "estimate", [&] {
      tail_->estimate(queries, taken, scale, softcap, {out.estimate, errors->data()});
    });
    for (std::int64_t q = 0; q < queries.count; ++q) {
      const float lse = out.estimate.lse[q];
      const float error = (*errors)[static_cast<std::size_t>(q)];
      const float* values = out.estimate.out + q * out.estimate.head_dim;
      const bool finite = std::all_of(values, values + out.estimate.head_dim,
                                      [](float x) { return std::isfinite(x); });
      if (!finite || !(std::isfinite(lse) || lse == empty_lse) || !std::isfinite(error) ||
          error < 0) {
        fail(spec_,
             fmt::format("estimate returned lse {}, squared error {} and {} values for query "
                         "{}, expected finite numbers, or lse -inf, and an error from 0",
                         lse, error, finite ? "finite" : "not finite", q));
      }
      out.noise[q].values = error;
    }
  }

  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) + guarded(spec_, "memory of the tail", [&] {
             return std::max<std::int64_t>(0, tail_->memory());
           });
  }

 private:
  std::shared_ptr<const Registered> of_;
  std::string spec_;
  std::unique_ptr<IndexTail> tail_;
};

class RegisteredFactory final : public IndexFactory {
 public:
  RegisteredFactory(std::shared_ptr<const Registered> of, std::string_view params)
      : IndexFactory({.grows = of->functions.grows,
                      .ranks_keys = of->functions.ranks_keys,
                      .has_tail = of->functions.make_tail != nullptr}),
        of_(std::move(of)),
        params_(params),
        text_(normal(params)) {}

  std::string text() const override { return text_; }
  std::unique_ptr<HeadIndex> make() const override {
    return std::make_unique<RegisteredIndex>(of_, text_, made(params_));
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const Accelerator& /*accelerator*/,
                                     const std::stop_token& /*stop*/) const override {
    const auto& make = of_->functions.make_tail;
    if (!make) return nullptr;
    const KeyIndex& own = static_cast<const RegisteredIndex&>(index).application();
    auto tail = guarded(text_, "make_tail", [&] { return make(own, rows); });
    if (tail == nullptr) fail(text_, "make_tail returned null, expected a tail");
    return std::make_unique<RegisteredTail>(of_, text_, std::move(tail));
  }
  /// A file keeps nothing: the tail is made again of the rows.
  std::unique_ptr<RowTail> transfer_tail(RowTail* /*tail*/, const KeyIndex& index,
                                         const RowsView& rows, Archive& archive) const override {
    return archive.reading() ? make_tail(index, rows, {}, {}) : nullptr;
  }

 private:
  std::unique_ptr<KeyIndex> made(std::string_view params) const {
    const std::string spec = spec_of(params);
    auto index = guarded(spec, "make", [&] { return of_->functions.make(params); });
    if (index == nullptr) fail(spec, "make returned null, expected an index");
    return index;
  }
  std::string spec_of(std::string_view params) const {
    return params.empty() ? of_->name : fmt::format("{}:{}", of_->name, params);
  }
  /// Returns the spec of the index that `make` makes.
  std::string spec_from(std::string_view params) const {
    const std::unique_ptr<KeyIndex> index = made(params);
    return guarded(spec_of(params), "spec", [&] { return index->spec(); });
  }
  /// Returns the spec with all defaults spelled out, as the index itself has it.
  std::string normal(std::string_view params) const {
    const std::string given = spec_of(params);
    const std::string text = spec_from(params);
    if (text == given) return text;
    const std::size_t colon = text.find(':');
    std::string again;
    if (text.substr(0, colon) == of_->name)
      again = spec_from(colon == std::string::npos ? "" : text.substr(colon + 1));
    if (again != text) {
      fail(given,
           fmt::format("spec() is \"{}\", expected \"{}\", or a spec of this name that makes "
                       "an index with an equal spec()",
                       one_line(text), one_line(given)));
    }
    return text;
  }

  std::shared_ptr<const Registered> of_;
  std::string params_;
  std::string text_;
};

}  // namespace

void add_registration(std::string_view name, IndexRegistration registration) {
  if (!registration.make) {
    throw InvalidArgument(fmt::format(
        "register_index \"{}\": make is empty; expected a function that makes an index", name));
  }
  if (!registration.save != !registration.load) {
    throw InvalidArgument(
        fmt::format("register_index \"{}\": {} is empty; expected both save and load, or neither",
                    name, registration.save ? "load" : "save"));
  }
  auto made = std::make_shared<const Registered>(std::string(name), std::move(registration));
  const std::lock_guard lock(registry().mutex);
  if (!registry().of_name.emplace(made->name, made).second) {
    throw InvalidArgument(
        fmt::format("register_index \"{}\": the name is registered already; expected another name, "
                    "or unregister_index first",
                    name));
  }
}

std::shared_ptr<const IndexFactory> registered_factory(std::string_view spec) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  std::shared_ptr<const Registered> found;
  {
    const std::lock_guard lock(registry().mutex);
    const auto at = registry().of_name.find(name);
    if (at == registry().of_name.end()) return nullptr;
    found = at->second;
  }
  std::string_view params;
  if (colon != std::string_view::npos) {
    params = spec.substr(colon + 1);
    if (params.empty()) {
      throw InvalidArgument(
          fmt::format("index \"{}\": parameters are missing after the colon; write \"{}\" or "
                      "\"{}:…\"",
                      one_line(spec), name, name));
    }
  }
  return std::make_shared<RegisteredFactory>(std::move(found), params);
}

std::vector<std::string> registered_names() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, index] : registry().of_name) names.push_back(name);
  return names;
}

bool unregister_index(std::string_view name) {
  // Its functions end without the lock: destructors of the application may call topkv.
  std::shared_ptr<const Registered> found;
  const std::lock_guard lock(registry().mutex);
  const auto at = registry().of_name.find(name);
  if (at == registry().of_name.end()) return false;
  found = std::move(at->second);
  registry().of_name.erase(at);
  return true;
}

void to_float(const KeyView& vectors, float* out) {
  for (std::int64_t i = 0; i < vectors.count; ++i) decode(vectors, i, out + i * vectors.dim);
}

void score_keys(const float* query, const KeyView& keys, std::span<const std::int64_t> positions,
                float* scores) {
  dot_gather(query, 1, keys, positions.data(), std::ssize(positions), scores,
             std::ssize(positions));
}

}  // namespace topkv
