#include "index/graphs/hnsw_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "index/common/approximate_index.h"
#include "index/common/index_factory.h"
#include "index/common/spec.h"
#include "index/graphs/hnsw_graph.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using hnsw::Graph;
using hnsw::RowSpace;

struct HnswParams {
  std::int64_t m = 16;
  std::int64_t efc = 100;
  std::int64_t ef = 0;

  std::string text() const { return fmt::format("hnsw:M={},efc={},ef={}", m, efc, ef); }
};

void check_count(const HnswParams& params, std::int64_t keys) {
  if (keys <= std::numeric_limits<std::int32_t>::max()) return;
  throw InvalidArgument(
      fmt::format("{}: {} keys; hnswlib takes up to 2^31 - 1", params.text(), keys));
}

class HnswIndex final : public ApproximateIndex {
 public:
  explicit HnswIndex(const HnswParams& params) : params_(params) {}

  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) + (graph_ ? graph_->bytes() : 0) +
           rare_memory() + static_cast<std::int64_t>(space_.bytes());
  }

  std::string spec() const override { return params_.text(); }

 protected:
  void insert_judged(std::int64_t first, std::vector<float>& residuals,
                     const std::stop_token& stop) override {
    check_count(params_, keys().count);
    telling_errors([&] {
      space_.extend();
      if (!graph_) graph_.emplace(&space_, &keys(), params_.m, params_.efc);
      graph_->insert(first, [&] {
        check_stop(stop);
        note_inserted(1);
      });
      space_.drop_shifts();
      link_residuals_.find(
          keys(), first, [&](std::int64_t node) { return graph_->row_of(node); },
          [&](std::int64_t node, const auto& visit) { graph_->links_of(node, visit); }, residuals);
    });
  }

  void structure_fields(Archive& archive) override {
    check_count(params_, keys().count);
    telling_errors([&] {
      if (archive.reading()) graph_.emplace(&space_, &keys(), params_.m, params_.efc);
      space_.fields(archive);
      graph_->fields(archive);
    });
    link_residuals_.fields(keys().count, archive);
  }

  void clear_structure() override {
    graph_.reset();
    space_.clear();
    link_residuals_.clear();
  }

  void candidates(const float* query, PositionRange allowed, std::int64_t want,
                  std::vector<std::int64_t>& found) const override {
    graph_->search(query, allowed, std::max(want, ef(want)), found);
  }

 private:
  /// Has what hnswlib throws thrown as an error of topkv.
  template <class Work>
  void telling_errors(const Work& work) const {
    try {
      work();
    } catch (const std::runtime_error& e) {
      if (dynamic_cast<const Error*>(&e) != nullptr) throw;
      throw Error(fmt::format("{}: hnswlib: {}", spec(), one_line(e.what())));
    }
  }

  std::int64_t ef(std::int64_t want) const {
    // Attention's queries lie far from the keys that a graph is built of: they need a wide search.
    return params_.ef > 0 ? params_.ef : std::max<std::int64_t>(256, 8 * want);
  }

  HnswParams params_;
  RowSpace space_{&keys()};
  std::optional<Graph> graph_;
  LinkResiduals link_residuals_;
};

class HnswFactory final : public IndexFactory {
 public:
  explicit HnswFactory(const HnswParams& params) : IndexFactory({.grows = true}), params_(params) {}
  std::string text() const override { return params_.text(); }
  void check(std::int64_t, std::int64_t keys) const override { check_count(params_, keys); }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<HnswIndex>(params_); }

 private:
  HnswParams params_;
};

}  // namespace

std::shared_ptr<const IndexFactory> hnsw_factory(std::string_view spec, std::string_view options) {
  HnswParams params;
  parse_options(
      spec, options,
      {{"M", &params.m, 2, 512}, {"efc", &params.efc, 1, 100000}, {"ef", &params.ef, 0, 1000000}});
  return std::make_shared<HnswFactory>(params);
}

}  // namespace topkv
