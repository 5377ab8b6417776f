// Graphs in files: lists of links in a layout of our own, of which every number is checked before
// anything follows it.
#include <algorithm>
#include <cstdlib>

#include "index/graphs/hnsw_graph.h"
#include "src/core/memory/memory_grant.h"
#include "topkv/error.h"

namespace topkv::hnsw {
namespace {

constexpr Node nodes_at_a_time = 4096;  // bounds what is beside the graph
constexpr int most_level = 64;          // the chance of one above is 2^-64 for the least M

}  // namespace

void Graph::fields(Archive& archive) {
  const auto count = static_cast<std::size_t>(keys_->count);
  std::vector<Row> rows = rows_;
  archive.array(rows);
  archive.check(rows.size() == count, "it has not one node for each key");
  std::vector<std::uint8_t> levels;
  Node entry = enterpoint_node_;
  if (!archive.reading()) {
    for (const int level : element_levels_) {
      archive.check(level <= most_level, "a node has too many levels");
      levels.push_back(static_cast<std::uint8_t>(level));
    }
  }
  archive.array(levels);
  archive.value(entry);
  archive.check(levels.size() == count, "it has not one level for each node");
  if (archive.reading()) {
    std::vector<bool> there(count);
    for (const Row row : rows) {
      archive.check(row < count && !there[row], "it has not one node for each key");
      there[row] = true;
    }
    const std::uint8_t highest = *std::ranges::max_element(levels);
    archive.check(highest <= most_level && entry < count && levels[entry] == highest,
                  "its entry point is not a node of the highest level");
    std::int64_t lists = std::ssize(levels);
    for (const std::uint8_t level : levels) lists += level;
    archive.check_left(lists * std::int64_t{sizeof(std::uint16_t)},
                       "its levels have more lists than the data holds");  // of each a length
    rows_ = std::move(rows);
    make_nodes(levels, entry);
  }
  for (std::size_t begin = 0; begin < count; begin += nodes_at_a_time)
    list_fields(static_cast<Node>(begin),
                static_cast<Node>(std::min<std::size_t>(count, begin + nodes_at_a_time)), archive);
}

void Graph::make_nodes(const std::vector<std::uint8_t>& levels, Node entry) {
  // Of many links, most of which may be missing: what is read does not bound what it takes.
  // Mutexes and marks of nodes are there for a moment alone (drop_locks).
  std::size_t bytes = levels.size() * (size_data_per_element_ + sizeof(char*) + sizeof(int) +
                                       sizeof(std::mutex) + sizeof(hnswlib::vl_type));
  for (const std::uint8_t level : levels)
    if (level > 0) bytes += level * size_links_per_element_ + malloc_overhead;
  const MemoryGrant grant("a graph of hnsw", static_cast<std::int64_t>(bytes));
  resizeIndex(levels.size());
  drop_locks();
  std::fill(element_levels_.begin(), element_levels_.end(), 0);
  std::memset(data_level0_memory_, 0, levels.size() * size_data_per_element_);
  cur_element_count = levels.size();  // what is there of them is freed from here on
  for (Node node = 0; node < levels.size(); ++node) {
    std::memcpy(getDataByInternalId(node), &rows_[node], sizeof(Row));
    setExternalLabel(node, rows_[node]);
    if (levels[node] == 0) continue;
    // free() is hnswlib's.
    const std::size_t links = levels[node] * size_links_per_element_;
    linkLists_[node] = static_cast<char*>(std::malloc(links));
    if (linkLists_[node] == nullptr) throw std::bad_alloc();
    std::memset(linkLists_[node], 0, links);  // taken now, while it is granted
    element_levels_[node] = levels[node];
  }
  maxlevel_ = levels[entry];
  enterpoint_node_ = entry;
}

void Graph::list_fields(Node begin, Node end, Archive& archive) {
  std::vector<std::uint16_t> lengths;
  std::vector<Node> links;
  if (!archive.reading()) {
    for (Node node = begin; node < end; ++node) {
      for (int floor = 0; floor <= element_levels_[node]; ++floor) {
        hnswlib::linklistsizeint* list = list_of(node, floor);
        const auto length = getListCount(list);
        lengths.push_back(static_cast<std::uint16_t>(length));
        links.insert(links.end(), list + 1, list + 1 + length);
      }
    }
  }
  archive.array(lengths);
  archive.array(links);
  if (!archive.reading()) return;
  std::size_t next_list = 0;
  std::size_t next_link = 0;
  for (Node node = begin; node < end; ++node) {
    for (int floor = 0; floor <= element_levels_[node]; ++floor) {
      archive.check(next_list < lengths.size(), "lists of links are missing");
      const std::uint16_t length = lengths[next_list++];
      archive.check(length <= (floor == 0 ? maxM0_ : maxM_) && length <= links.size() - next_link,
                    "a list of links is longer than it may be");
      hnswlib::linklistsizeint* list = list_of(node, floor);
      for (std::size_t i = 0; i < length; ++i) {
        const Node linked = links[next_link++];
        archive.check(linked < element_levels_.size() && element_levels_[linked] >= floor,
                      "a link leads to a node that is not on its level");
        list[1 + i] = linked;
      }
      setListCount(list, length);
    }
  }
  archive.check(next_list == lengths.size() && next_link == links.size(),
                "it has more links than its lists");
}

}  // namespace topkv::hnsw
