// Choices of entries by what stands for keys in a device's memory (gpu/entries/cuda_summaries.h),
// against float64.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/entries/cuda_summaries.h"
#include "index/common/rule_based_index.h"
#include "tests/support/key_cases.h"
#include "tests/support/reference.h"
#include "tests/support/token_stream.h"
#include "tests/support/wanted_choice.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using ::test::Place;
using test::WantedChoice;

constexpr std::int64_t layers = 3;  // the second has a sliding window, and no index

/// Indices over the keys of all heads, and what stands for these on a device.
struct Made {
  Made(const Place& where, const std::string& spec, const AttentionShape& of, std::int64_t rows)
      : place(where), shape(of) {
    for (std::int64_t i = 0; i < layers * shape.kv_heads; ++i) {
      keys.push_back(
          test::make_keys(test::clustered(rows, shape.head_dim, static_cast<unsigned>(i)),
                          shape.head_dim, DType::bf16));
      if (i / shape.kv_heads == 1) {
        heads.emplace_back();
        indices.emplace_back();
        continue;
      }
      indices.push_back(make_index(spec));
      indices.back()->add(keys.back().view());
      indices.back()->build();
      heads.push_back(dynamic_cast<const RuleBasedIndex&>(*indices.back()).key_summaries());
    }
  }
  void keep() { selection = place.compute().keep_selection(shape, heads); }

  /// Chooses for random queries, and checks all heads of the layer.
  void expect(std::int64_t layer, PositionRange allowed, std::int64_t k) const {
    const std::int64_t group = shape.group();
    const auto queries = reference::random_floats(shape.q_heads * shape.head_dim,
                                                  static_cast<unsigned>(100 + layer), 2.0F);
    std::vector<float> rounded;
    for (const float q : queries) rounded.push_back(reference::as_bf16(q));
    const Buffer on_device = place.put(queries);
    auto& cuda = static_cast<gpu::CudaDevice&>(place.compute());
    const auto& on_cuda = static_cast<const gpu::CudaSummaries&>(*selection);
    const std::int64_t most = on_cuda.most_entries(layer, k);
    const gpu::PinnedBuffer entries(shape.q_heads * most * 4);
    const gpu::PinnedBuffer log_sums(shape.q_heads * 4);
    CandidateEntries all;
    {
      const auto lock = cuda.lock();
      all = on_cuda.choose(layer, on_device.floats(), allowed, k,
                           {entries.as<int>(), log_sums.as<float>()}, cuda.compute_stream());
      cuda.synchronize();
    }
    EXPECT_LE(all.each, most);
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const KeySummaries& of = heads[static_cast<std::size_t>(layer * shape.kv_heads + head)];
      const auto from = (of.weighed ? queries : rounded).begin() + head * group * shape.head_dim;
      const WantedChoice wanted(of, {from, from + group * shape.head_dim}, shape.softmax_scale(),
                                allowed, k);
      const CandidateEntries given = all.part(head, shape.kv_heads);
      for (std::int64_t list = 0; list < wanted.lists(); ++list) {
        std::vector<std::int32_t> there;  // but for those of heads that have more
        for (const std::int32_t entry : given.of(list)) {
          if (given.first + entry < of.count) there.push_back(entry);
        }
        wanted.expect(there, given.first, list);
        if (of.weighed) {
          EXPECT_NEAR(given.log_sums[static_cast<std::size_t>(list)], wanted.log_sum(list),
                      wanted.error(list) + 3e-5);
        }
      }
      EXPECT_EQ(given.log_sums.empty(), !of.weighed);
    }
  }

  const Place& place;
  AttentionShape shape;
  std::vector<test::Keys> keys;
  std::vector<std::unique_ptr<KeyIndex>> indices;
  std::vector<KeySummaries> heads;
  std::shared_ptr<const DeviceIndex> selection;
};

AttentionShape shape_of(std::int64_t kv_heads, std::int64_t group, std::int64_t dim) {
  return {.layers = layers,
          .q_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = dim,
          .sliding_window = {0, 64, 0}};
}

const std::vector<std::string> specs = {"quest:page=16", "quest:page=5", "sparq:r=16",
                                        "sparq:r=500",   "retroinfer",   "squeezed:s=90",
                                        "squeezed:s=0"};

TEST(DeviceSelection, ChoosesWhatScoresBest) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const AttentionShape& shape :
       {shape_of(2, 1, 64), shape_of(3, 4, 128), shape_of(1, 16, 64)}) {
    for (const std::string& spec : specs) {
      Made made(place, spec, shape, 3001);
      made.keep();
      for (const std::int64_t layer : {0, 2}) {
        for (const PositionRange allowed : {PositionRange{0, 3001},
                                            {4, 2900},
                                            {13, 2500},
                                            {13, 90},
                                            {1500, 1600},
                                            {2900, 3001}}) {
          for (const std::int64_t k : {1, 64, 1000}) {
            if (allowed.size() < 200 && k != 64) continue;  // which is enough of narrow ones
            SCOPED_TRACE(spec + ", " + std::to_string(shape.group()) + " heads of " +
                         std::to_string(shape.head_dim) + ", layer " + std::to_string(layer) +
                         ", " + std::to_string(k) + " rows of " + std::to_string(allowed.begin) +
                         " to " + std::to_string(allowed.end));
            made.expect(layer, allowed, k);
          }
        }
      }
    }
  }
}

TEST(DeviceSelection, HeadsMayHaveFewerClusters) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const char* spec : {"squeezed:s=90", "retroinfer"}) {
    Made made(place, spec, shape_of(3, 4, 64), 3001);
    KeySummaries& few = made.heads[1];
    few.count = 20;
    few.sizes.resize(few.weighed ? 20 : 0);
    few.spans.resize(40);
    made.keep();
    for (const std::int64_t k : {5, 64, 3000}) made.expect(0, {0, 3001}, k);
  }
}

TEST(DeviceSelection, TakesTheMemoryThatIsTold) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const std::string& spec : specs) {
    Made made(place, spec, shape_of(2, 3, 64), 20001);
    const std::int64_t before = place.device().memory().used;
    made.keep();
    const std::int64_t taken = place.device().memory().used - before;
    EXPECT_LE(taken, place.compute().allocation_bytes(made.selection->memory())) << spec;
    const auto index = make_index(spec);
    const std::int64_t told = place.compute().selection_bytes(
        made.shape, dynamic_cast<const RuleBasedIndex&>(*index).planned_key_summaries(64, 20001));
    EXPECT_GE(told, made.selection->memory()) << spec;
    EXPECT_LE(told, made.selection->memory() * 11 / 10) << spec;
    made.selection = nullptr;
    EXPECT_EQ(place.device().memory().used, before) << spec;
  }
}

/// What is on its way is a part of it.
TEST(DeviceSelection, TakesNoMoreOnTheWay) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const std::string spec : {"sparq:r=16", "quest:page=16"}) {
    Made made(place, spec, shape_of(2, 3, 64), 20001);
    const DeviceMemory before = place.device().memory();
    const std::int64_t told = place.compute().allocation_bytes(place.compute().selection_bytes(
        made.shape,
        dynamic_cast<const RuleBasedIndex&>(*make_index(spec)).planned_key_summaries(64, 20001)));
    const Buffer rest =
        place.compute().allocate(before.ceiling - before.used - told - (4 << 20), "test");
    made.keep();
    EXPECT_NE(made.selection, nullptr) << spec;
  }
}

TEST(DeviceSelection, WithoutMemoryNothingChanges) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  for (const char* spec : {"quest:page=4", "sparq"}) {
    Made made(place, spec, shape_of(2, 3, 64), 20001);
    const DeviceMemory memory = place.device().memory();
    const Buffer rest = place.compute().allocate(memory.ceiling - memory.used - (2 << 20), "test");
    const std::int64_t before = place.device().memory().used;
    try {
      made.keep();
      FAIL() << spec;
    } catch (const OutOfMemory& error) {
      EXPECT_NE(std::string(error.what()).find("index of a context"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(place.device().memory().used, before);
    EXPECT_EQ(made.selection, nullptr);
  }
}

TEST(DeviceSelection, ShapesThatKernelsDoNotKnowAreTheHosts) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const ComputeDevice& device = place.compute();
  EXPECT_TRUE(device.selects(shape_of(2, 16, 128), 1000));
  EXPECT_FALSE(device.selects(shape_of(2, 17, 128), 1000));
  EXPECT_FALSE(device.selects(shape_of(2, 4, 96), 1000));
  EXPECT_FALSE(device.selects(shape_of(2, 4, 64), (1 << 18) + 1));
}

}  // namespace
}  // namespace topkv
