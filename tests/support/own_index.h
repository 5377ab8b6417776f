// An index as an application writes it, and registrations that end with a test.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "topkv/error.h"
#include "topkv/register_index.h"

namespace topkv::test {

/// Makes a search of an OwnIndex wrong: it may change what was found, or throw.
using Spoil = std::function<void(const QueryBlock& queries, SearchResult& result)>;

/// An exact index, with keys as float32. spoil: may be empty.
class OwnIndex : public KeyIndex {
 public:
  using KeyIndex::add;
  using KeyIndex::build;
  explicit OwnIndex(std::string spec = "own", Spoil spoil = {})
      : spec_(std::move(spec)), spoil_(std::move(spoil)) {}

  void add(const KeyView& keys, const std::stop_token& /*stop*/) override {
    dim_ = keys.dim;
    const std::size_t before = keys_.size();
    keys_.resize(before + static_cast<std::size_t>(keys.count * keys.dim));
    to_float(keys, keys_.data() + before);
    if (built_) inserted_ = size();
  }
  void build(const std::stop_token& /*stop*/) override {
    built_ = true;
    inserted_ = size();
  }
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const override {
    result.reset(queries.count, k);
    for (std::int64_t q = 0; q < queries.count; ++q) {
      const PositionRange allowed = queries.allowed[static_cast<std::size_t>(q)];
      std::vector<std::pair<float, std::int64_t>> found;
      for (std::int64_t at = allowed.begin; at < allowed.end; ++at) {
        const float* key = keys_.data() + at * dim_;
        found.emplace_back(-std::inner_product(key, key + dim_, queries.query(q), 0.0F), at);
      }
      std::ranges::sort(found);
      const auto count = std::min<std::int64_t>(std::ssize(found), k);
      for (std::int64_t i = 0; i < count; ++i)
        result.position_slots(q)[static_cast<std::size_t>(i)] =
            found[static_cast<std::size_t>(i)].second;
      result.set_count(q, count);
    }
    if (spoil_) spoil_(queries, result);
  }
  std::int64_t inserted() const override { return inserted_; }
  std::int64_t size() const override { return dim_ == 0 ? 0 : std::ssize(keys_) / dim_; }
  std::int64_t memory() const override { return 4 * std::ssize(keys_); }
  std::string spec() const override { return spec_; }

  std::vector<std::byte> save() const {
    const auto* bytes = reinterpret_cast<const std::byte*>(keys_.data());
    return {bytes, bytes + 4 * keys_.size()};
  }
  void load(const KeyView& keys, std::span<const std::byte> saved) {
    if (std::ssize(saved) != 4 * keys.count * keys.dim) throw InvalidArgument("other keys");
    dim_ = keys.dim;
    keys_.resize(saved.size() / 4);
    std::ranges::copy(saved, reinterpret_cast<std::byte*>(keys_.data()));
    build();
  }

 private:
  std::string spec_;
  Spoil spoil_;
  std::vector<float> keys_;
  std::int64_t dim_ = 0;
  bool built_ = false;
  std::atomic<std::int64_t> inserted_ = 0;
};

/// A tail that knows everything: exact attention over all rows that are not attended.
class OwnTail final : public IndexTail {
 public:
  explicit OwnTail(const RowsView& rows) : dim_(rows.dim()) {
    keys_.resize(static_cast<std::size_t>(rows.count() * dim_));
    values_.resize(keys_.size());
    to_float(rows.keys, keys_.data());
    to_float(rows.values, values_.data());
  }
  void estimate(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
                float scale, float softcap, const TailEstimate& out) const override {
    for (std::int64_t q = 0; q < queries.count; ++q) {
      const auto at = static_cast<std::size_t>(q);
      const PositionRange allowed = queries.allowed[at];
      std::vector<double> sum(static_cast<std::size_t>(dim_));
      double total = 0;
      for (std::int64_t row = allowed.begin; row < allowed.end; ++row) {
        if (std::ranges::binary_search(taken[at], row)) continue;
        const float* key = keys_.data() + row * dim_;
        double score = scale * std::inner_product(key, key + dim_, queries.query(q), 0.0);
        if (softcap > 0) score = softcap * std::tanh(score / softcap);
        total += std::exp(score);
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += std::exp(score) * values_[static_cast<std::size_t>(row * dim_) + i];
      }
      if (total == 0) continue;
      out.partial.lse[q] = static_cast<float>(std::log(total));
      for (std::size_t i = 0; i < sum.size(); ++i)
        out.partial.out[q * dim_ + static_cast<std::int64_t>(i)] =
            static_cast<float>(sum[i] / total);
    }
  }

 private:
  std::int64_t dim_;
  std::vector<float> keys_, values_;
};

/// Registers an index while one lives.
class Registration {
 public:
  Registration(std::string name, IndexRegistration index) : name_(std::move(name)) {
    register_index(name_, std::move(index));
  }
  explicit Registration(std::string name, Spoil spoil = {})
      : Registration(name, {.make = [name, spoil](std::string_view) {
                       return std::make_unique<OwnIndex>(name, spoil);
                     }}) {}
  ~Registration() { unregister_index(name_); }
  Registration(const Registration&) = delete;  // belongs to one scope
  Registration& operator=(const Registration&) = delete;

 private:
  std::string name_;
};

}  // namespace topkv::test
