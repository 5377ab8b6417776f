// A graph of hnswlib over keys that stay where they are, searched by topkv's own walk.
#pragma once

// hnswlib's prefetching reads one link beyond the end of a list, which for the last list of a node
// lies outside its allocation.
#define NO_MANUAL_VECTORIZATION
#include <hnswlib/hnswlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "index/common/in_place_keys.h"
#include "src/core/format/archive.h"
#include "src/core/math/dot.h"
#include "src/core/math/topk.h"
#include "src/core/threads/threads.h"
#include "topkv/types.h"

namespace topkv::hnsw {

using Node = hnswlib::tableint;  // hnswlib's own number of a node, in order of insertion
using Row = std::uint32_t;       // a position among the keys; what a node stores

constexpr float largest = std::numeric_limits<float>::max();

/// The distance of two nodes, for building. It is not the inner product of their keys: there a key
/// of large norm is everybody's neighbour, the pruning of links leaves nothing else, and keys that
/// such hubs crowd out cannot be reached. Instead keys are put on a sphere: one more coordinate
/// brings a key to the common norm (Bachrach et al. 2014, "Speeding up the Xbox recommender
/// system", §3), which leaves q·k as it is for a query whose coordinate is 0.
///
/// The common norm is the 80th percentile of the norms, not the largest: a few very long keys would
/// make the extra coordinate all that counts. Longer keys are scaled down to it, in building only.
/// (20,000 clustered keys, M 16, efc 100, ef 192: recall@64 is 0.99 this way, 0.95 with the plain
/// inner product; with 400 longer keys that may not be found it is 0.99 and 0.66.)
///
/// The keys' mean is taken off before that. It changes no ranking, and keys after RoPE have a
/// strong one: their norms are then nearly equal, and the extra coordinate is all that tells them
/// apart. (6,000 clustered keys with a mean of eight times their spread, M 12, efc 80, ef 400,
/// queries against the mean: recall@32 is 1.00 this way, 0.91 with the mean.)
class RowSpace final : public hnswlib::SpaceInterface<float> {
 public:
  explicit RowSpace(const KeyView* keys) : keys_(keys) {}
  std::size_t get_data_size() override { return sizeof(Row); }
  hnswlib::DISTFUNC<float> get_dist_func() override { return distance; }
  void* get_dist_func_param() override { return this; }

  /// Finds the place on the sphere of keys that have none yet.
  void extend() {
    const auto first = static_cast<std::int64_t>(lift_.size());
    if (first == 0) {
      mean_ = mean_of_keys(*keys_, [&](std::int64_t i, float* out) { widen_key(*keys_, i, out); });
    }
    extend_shifts();
    lift_.resize(static_cast<std::size_t>(keys_->count));
    parallel_for(keys_->count - first, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = first + begin; i < first + end; ++i) {
        const float square = dot_stored(*keys_, i, i);
        if (!std::isfinite(square)) {
          std::vector<float> wide(static_cast<std::size_t>(keys_->dim));
          widen_key(*keys_, i, wide.data());
        }
        const float centred = square - 2.0F * shift(static_cast<Row>(i));
        lift_[static_cast<std::size_t>(i)] = centred <= largest ? std::max(centred, 0.0F) : largest;
      }
    });
    if (first == 0) {
      std::vector<float> squares = lift_;
      const auto at = squares.begin() + static_cast<std::ptrdiff_t>(squares.size() * 8 / 10);
      std::nth_element(squares.begin(), at, squares.end());
      square_ = *at;
    }
    for (std::size_t i = static_cast<std::size_t>(first); i < lift_.size(); ++i) {
      const float square = lift_[i];
      lift_[i] = square <= square_ ? std::sqrt(square_ - square) : -std::sqrt(square_ / square);
    }
  }

  /// After an insertion: the shifts of all keys are computed anew before the next one.
  void drop_shifts() { std::vector<float>().swap(shift_); }

  void clear() {
    std::vector<float>().swap(mean_);
    drop_shifts();
    std::vector<float>().swap(lift_);
  }

  void fields(Archive& archive) {
    // Version 0.1.0 took no mean off, and began with the square.
    constexpr float mark = -1.0F;
    float first = mark;
    archive.value(first);
    if (first == mark) {
      archive.array(mean_);
      archive.check(mean_.empty() || std::ssize(mean_) == keys_->dim,
                    "its mean has another dimension than its keys");
      archive.check(std::ranges::all_of(mean_, [](float x) { return std::isfinite(x); }),
                    "a mean is not finite");
      archive.value(square_);
    } else {
      square_ = first;
    }
    archive.array(lift_);
    archive.check(square_ >= 0 && std::ssize(lift_) == keys_->count,
                  "it has not one place on the sphere for each key");
    const float most = std::sqrt(largest);
    archive.check(std::ranges::all_of(lift_, [&](float x) { return x >= -1 && x <= most; }),
                  "a key has a place that is not on the sphere");
  }

  std::size_t bytes() const {
    return (mean_.capacity() + shift_.capacity() + lift_.capacity()) * sizeof(float);
  }

  static Row row(const void* data) {
    Row row;
    std::memcpy(&row, data, sizeof row);
    return row;
  }

 private:
  static float distance(const void* a, const void* b, const void* param) {
    const auto& space = *static_cast<const RowSpace*>(param);
    const KeyView& keys = *space.keys_;
    const Row i = row(a);
    const Row j = row(b);
    const float x = space.lift_[i];
    const float y = space.lift_[j];
    float product = dot_stored(keys, i, j) - space.shift(i) - space.shift(j);
    if (!(std::abs(product) <= largest)) product = 0.0F;  // keys so long that it overflowed
    return -(product * scale(x) * scale(y) + coordinate(x) * coordinate(y));
  }

  static float scale(float lift) { return lift < 0.0F ? -lift : 1.0F; }
  static float coordinate(float lift) { return std::max(lift, 0.0F); }

  /// The product of two keys less their mean is the keys' own, less the shift of each.
  float shift(Row row) const { return mean_.empty() ? 0.0F : shift_[row]; }

  void extend_shifts() {
    if (mean_.empty()) return;
    const auto first = static_cast<std::int64_t>(shift_.size());
    shift_.resize(static_cast<std::size_t>(keys_->count));
    const double half = std::inner_product(mean_.begin(), mean_.end(), mean_.begin(), 0.0) / 2;
    parallel_for(keys_->count - first, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = first + begin; i < first + end; ++i)
        shift_[static_cast<std::size_t>(i)] =
            static_cast<float>(dot(mean_.data(), *keys_, i) - half);
    });
  }

  const KeyView* keys_;
  std::vector<float> mean_;   // [dim], or empty: nothing is taken off
  std::vector<float> shift_;  // [keys] with a mean, while keys are inserted: mean·(key - mean / 2)
  float square_ = 0.0F;       // of the common norm
  std::vector<float> lift_;   // [keys] the extra coordinate; of longer keys, minus their scale
};

/// Which nodes a search has seen. One per thread, shared by all graphs: 2 bytes per node of the
/// largest graph that the thread has searched.
class Visited {
 public:
  void begin(std::size_t nodes) {
    if (marks_.size() < nodes) marks_.resize(nodes, 0);
    if (++mark_ == 0) {
      std::fill(marks_.begin(), marks_.end(), std::uint16_t{0});
      mark_ = 1;
    }
  }
  /// False if it was seen before.
  bool insert(Node node) {
    if (marks_[node] == mark_) return false;
    marks_[node] = mark_;
    return true;
  }

 private:
  std::uint16_t mark_ = 0;
  std::vector<std::uint16_t> marks_;
};

/// What a walk over a graph needs. A walk never waits, so there is one per thread.
struct Walk {
  Visited visited;
  std::vector<Scored> frontier;  // a heap of nodes to expand, the best in front
  TopKeeper best;                // rows
  std::vector<Node> nodes;       // unseen neighbours of one node …
  std::vector<std::int64_t> rows;
  std::vector<float> scores;
};

inline Walk& thread_walk() {
  thread_local Walk walk;
  return walk;
}

/// The order of a heap with the best in front.
inline bool worse(const Scored& a, const Scored& b) { return ranks_before(b, a); }

class Graph final : public hnswlib::HierarchicalNSW<float> {
 public:
  Graph(RowSpace* space, const KeyView* keys, std::int64_t m, std::int64_t efc)
      : HierarchicalNSW(space, 1, static_cast<std::size_t>(m), static_cast<std::size_t>(efc)),
        keys_(keys) {}

  /// Inserts rows first..keys.count; calls before_each, from many threads, before each of them.
  template <class BeforeEach>
  void insert(std::int64_t first, const BeforeEach& before_each) {
    const auto nodes = static_cast<std::size_t>(keys_->count);
    resizeIndex(nodes);
    std::vector<std::mutex>(std::min(nodes, most_update_locks)).swap(update_locks(*this));
    parallel_for(keys_->count - first, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        before_each();
        const auto row = static_cast<Row>(first + i);
        addPoint(&row, row);
      }
    });
    drop_locks();
    rows_.resize(static_cast<std::size_t>(keys_->count));
    for (Node node = 0; node < rows_.size(); ++node) {
      rows_[node] = RowSpace::row(getDataByInternalId(node));
    }
  }

  /// The ef best rows within the allowed range that the walk comes across.
  void search(const float* query, PositionRange allowed, std::int64_t ef,
              std::vector<std::int64_t>& found) const {
    Walk& walk = thread_walk();
    walk.visited.begin(rows_.size());
    walk.frontier.clear();
    walk.best.reset(ef);

    const Scored entry = descend(query, walk);
    walk.visited.insert(static_cast<Node>(entry.position));
    visit(entry, allowed, walk);
    while (!walk.frontier.empty()) {
      std::pop_heap(walk.frontier.begin(), walk.frontier.end(), worse);
      const Scored node = walk.frontier.back();
      walk.frontier.pop_back();
      if (node.score < walk.best.threshold()) break;
      collect(get_linklist0(static_cast<Node>(node.position)), true, walk);
      score(query, walk);
      for (std::size_t i = 0; i < walk.nodes.size(); ++i) {
        if (walk.scores[i] >= walk.best.threshold()) {
          visit({walk.scores[i], walk.nodes[i]}, allowed, walk);
        }
      }
      if (!walk.frontier.empty()) {
        __builtin_prefetch(get_linklist0(static_cast<Node>(walk.frontier.front().position)));
      }
    }
    found.clear();
    for (const Scored& scored : walk.best.held()) found.push_back(scored.position);
  }

  Row row_of(std::int64_t node) const { return rows_[static_cast<std::size_t>(node)]; }

  /// Calls visit with each row that a node's is linked to on the ground floor.
  template <class Visit>
  void links_of(std::int64_t node, const Visit& visit) const {
    hnswlib::linklistsizeint* links = get_linklist0(static_cast<Node>(node));
    for (std::size_t i = 0; i < getListCount(links); ++i) visit(rows_[(links + 1)[i]]);
  }

  /// The learned data of keys_->count keys, for a file: see docs/reference/context-files.md.
  /// Reading: into a graph of no nodes.
  void fields(Archive& archive);

  std::int64_t bytes() const {
    std::size_t bytes = max_elements_ * (size_data_per_element_ + sizeof(char*)) +
                        element_levels_.capacity() * sizeof(int) + rows_.capacity() * sizeof(Row) +
                        sizeof *visited_list_pool_;
    for (const int level : element_levels_) {
      if (level == 0) continue;
      bytes += static_cast<std::size_t>(level) * size_links_per_element_ + malloc_overhead;
    }
    return static_cast<std::int64_t>(bytes);
  }

 private:
  static constexpr std::size_t malloc_overhead = 16;       // about, of one small piece
  static constexpr std::size_t most_update_locks = 65536;  // hnswlib picks by number modulo this

  // Versions of hnswlib differ in the name of these locks, and in who deletes the pool.
  template <class AnyGraph>
  static std::vector<std::mutex>& update_locks(AnyGraph& graph) {
    if constexpr (requires { graph.link_list_update_locks_; }) {
      return graph.link_list_update_locks_;
    } else {
      return graph.label_op_locks_;
    }
  }
  static void empty(hnswlib::VisitedListPool*& pool) {
    delete std::exchange(pool, nullptr);
    pool = new hnswlib::VisitedListPool(0, 0);
  }
  static void empty(std::unique_ptr<hnswlib::VisitedListPool>& pool) {
    pool = std::make_unique<hnswlib::VisitedListPool>(0, 0);
  }

  /// Only building needs the mutexes, 2.6 MB of them whatever the number of keys and 40 bytes for
  /// each key, the map from label to node, and a list of visited nodes for every thread that took
  /// part. Every insertion makes them anew.
  void drop_locks() {
    std::vector<std::mutex>().swap(link_list_locks_);
    std::vector<std::mutex>().swap(update_locks(*this));
    decltype(label_lookup_)().swap(label_lookup_);
    empty(visited_list_pool_);
  }

  /// Room for nodes of these levels, none of which has links yet. Throws OutOfMemory.
  void make_nodes(const std::vector<std::uint8_t>& levels, Node entry);
  /// Of a node on a floor.
  hnswlib::linklistsizeint* list_of(Node node, int floor) const {
    return floor == 0 ? get_linklist0(node) : get_linklist(node, floor);
  }
  /// The lists of nodes begin..end, of all their floors.
  void list_fields(Node begin, Node end, Archive& archive);

  void visit(const Scored& node, PositionRange allowed, Walk& walk) const {
    walk.frontier.push_back(node);
    std::push_heap(walk.frontier.begin(), walk.frontier.end(), worse);
    const std::int64_t row = rows_[static_cast<std::size_t>(node.position)];
    if (allowed.contains(row)) walk.best.push(node.score, row);
  }

  /// walk.nodes and walk.rows = the linked nodes (of those, the unseen ones), their rows on the way
  /// to the cache.
  void collect(hnswlib::linklistsizeint* links, bool unseen_only, Walk& walk) const {
    const std::size_t count = getListCount(links);
    const Node* linked = links + 1;
    walk.nodes.clear();
    walk.rows.clear();
    const std::int64_t key_bytes = vector_bytes(keys_->dtype, keys_->dim);
    for (std::size_t i = 0; i < count; ++i) {
      if (unseen_only && !walk.visited.insert(linked[i])) continue;
      const std::int64_t row = rows_[linked[i]];
      walk.nodes.push_back(linked[i]);
      walk.rows.push_back(row);
      const std::byte* key = keys_->key(row);
      for (std::int64_t offset = 0; offset < key_bytes; offset += 64) {
        __builtin_prefetch(key + offset);
      }
    }
  }

  void score(const float* query, Walk& walk) const {
    const auto count = static_cast<std::int64_t>(walk.rows.size());
    walk.scores.resize(walk.rows.size());
    dot_gather(query, 1, *keys_, walk.rows.data(), count, walk.scores.data(), count);
  }

  /// Greedy descent through the upper floors to the entry of the ground floor.
  Scored descend(const float* query, Walk& walk) const {
    Scored at{0.0F, enterpoint_node_};
    at.score = dot(query, *keys_, rows_[enterpoint_node_]);
    for (int level = maxlevel_; level > 0; --level) {
      for (bool moved = true; moved;) {
        moved = false;
        collect(get_linklist(static_cast<Node>(at.position), level), false, walk);
        score(query, walk);
        for (std::size_t i = 0; i < walk.nodes.size(); ++i) {
          if (walk.scores[i] > at.score) {
            at = {walk.scores[i], walk.nodes[i]};
            moved = true;
          }
        }
      }
    }
    return at;
  }

  const KeyView* keys_;
  std::vector<Row> rows_;  // of each node
};

}  // namespace topkv::hnsw
