// What is done with a context that was loaded: all that is done with one that was built here, to
// the same bits, with rows in memory or in the file.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "src/context/file/file_format.h"
#include "src/core/io/open_file.h"
#include "tests/support/context_file_case.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::answers;
using test::bytes_of_file;
using test::file_shape;
using test::saved_context;

constexpr std::int64_t tokens = 1500;

std::shared_ptr<const Context> built(const std::vector<std::string>& indices) {
  return saved_context(file_shape(), tokens, {}, indices);
}

/// Tokens given to sessions in joint steps; what comes of it goes to `all`.
void step(const std::vector<Session*>& sessions, std::int64_t count, unsigned seed,
          std::vector<float>& all) {
  const AttentionShape shape = file_shape();
  const std::int64_t rows = count * std::ssize(sessions);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto of = 3 * (seed + static_cast<unsigned>(layer));
    const auto q = reference::random_bf16(rows * shape.q_heads * shape.head_dim, of);
    const auto k = reference::random_bf16(rows * shape.kv_heads * shape.head_dim, of + 1);
    const auto v = reference::random_bf16(rows * shape.kv_heads * shape.head_dim, of + 2);
    std::vector<float> out(q.size());
    AttentionStep step;
    step.layer = layer;
    step.tokens = count;
    step.q = q.data();
    step.k = k.data();
    step.v = v.data();
    step.out = out.data();
    Session::attend_together(sessions, step);
    all.insert(all.end(), out.begin(), out.end());
  }
}

/// A text read on top of the context, once; then forks of it that go different ways, alone and
/// together, and take tokens back.
std::vector<float> goes_on(const std::shared_ptr<const Context>& context, const std::string& index,
                           const std::string& tail) {
  std::vector<float> all;
  Session read(context,
               {.index = index, .k = TopK::same(16), .tail = tail, .window = 32, .capacity = 300});
  for (unsigned i = 0; i < 3; ++i) step({&read}, 60, 1000 + 10 * i, all);
  Session one = read.fork();
  Session other = read.fork();
  EXPECT_EQ(one.tokens(), tokens + 180);
  EXPECT_EQ(&one.context(), context.get());
  step({&one}, 1, 2000, all);
  step({&other}, 7, 2100, all);
  step({&one, &other, &read}, 1, 2200, all);
  other.truncate(100);
  step({&other}, 2, 2300, all);
  step({&one, &other}, 3, 2400, all);
  return all;
}

class Loaded : public testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<const Context> saved(const std::shared_ptr<const Context>& context,
                                       std::optional<std::vector<std::string>> indices = {}) {
    save_context(*context, path_);
    return load(std::move(indices));
  }
  std::shared_ptr<const Context> load(std::optional<std::vector<std::string>> indices = {}) {
    return load_context(path_, {.mapped = GetParam(), .indices = std::move(indices)}).context;
  }

  TempDirectory folder_;
  std::filesystem::path path_ = folder_.path() / "c.tkv";
};

TEST_P(Loaded, IsReadOnFromForkedAndSteppedTogether) {
  const auto context = built({"codes:k=16,v=8", "ivf:size=32,share=32", "mean"});
  const auto loaded = saved(context);
  for (const auto& [index, tail] :
       std::vector<std::pair<std::string, std::string>>{{"exact", ""},
                                                        {"exact", "mean"},
                                                        {"codes:k=16,v=8", ""},
                                                        {"codes:k=16,v=8", "none"},
                                                        {"ivf:size=32,share=32", "codes:k=16,v=8"}})
    EXPECT_EQ(goes_on(context, index, tail), goes_on(loaded, index, tail)) << index << " " << tail;
}

TEST_P(Loaded, TakesAnotherIndexOverItsRows) {
  const auto plain = built({});
  const auto loaded = saved(built({"codes:k=16,v=8"}), std::vector<std::string>{});
  EXPECT_EQ(loaded->indices(), std::vector<std::string>{"exact"});
  EXPECT_EQ(loaded->rows(0, 0).keys.count, tokens);
  for (const char* index : {"codes:k=8,v=8", "codes:k=16,v=8", "ivf:size=64,share=16", "h2o",
                            "quest:page=16", "retroinfer:size=16,segment=1024,v=1"})
    EXPECT_EQ(goes_on(plain->with_index(index), index, ""),
              goes_on(loaded->with_index(index), index, ""))
        << index;
  EXPECT_EQ(goes_on(plain->with_index("pages:size=16"), "exact", "pages:size=16"),
            goes_on(loaded->with_index("pages:size=16"), "exact", "pages:size=16"));
}

TEST_P(Loaded, HasTheIndicesThatAreWantedAndReadsNoOther) {
  const auto context = built({"codes:k=16,v=8", "quest:page=16", "mean"});
  save_context(*context, path_);
  // A byte of the second index, which only who reads it finds.
  const FileTable table = FileTable::parse(ReadableFile(path_));
  const auto quest = std::ranges::find_if(table.sections, [](const Section& section) {
    return section.kind == SectionKind::index && section.index == 2;
  });
  ASSERT_NE(quest, table.sections.end());
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(quest->at + 20);
  file.put('!');
  file.close();
  EXPECT_THROW(load(), FileError);
  EXPECT_THROW(verify_context(path_), FileError);
  EXPECT_THROW(load(std::vector<std::string>{"quest:page=16"}), FileError);
  const auto loaded = load(std::vector<std::string>{"codes:v=8,k=16", "lowrank:r=16"});
  EXPECT_EQ(loaded->indices(), (std::vector<std::string>{"exact", "codes:k=16,v=8"}));
  EXPECT_EQ(goes_on(context, "codes:k=16,v=8", ""), goes_on(loaded, "codes:k=16,v=8", ""));
  EXPECT_THROW(load(std::vector<std::string>{"nothing"}), InvalidArgument);
}

TEST_P(Loaded, AnIndexThatHasAnothersHeadsIsLoadedWithoutIt) {
  const auto context = built({"codes:k=16,v=8", "mean"});
  const auto loaded = saved(context, std::vector<std::string>{"mean"});
  EXPECT_EQ(loaded->indices(), (std::vector<std::string>{"exact", "mean"}));
  EXPECT_EQ(goes_on(context, "exact", "mean"), goes_on(loaded, "exact", "mean"));
  // Its own now: counted, and kept when it is saved again.
  EXPECT_EQ(loaded->memory().index_bytes,
            loaded->index_memory("mean") + loaded->index_memory("exact"));
  const auto again = saved(loaded);
  EXPECT_EQ(goes_on(context, "exact", "mean"), goes_on(again, "exact", "mean"));
  verify_context(path_);
}

TEST_P(Loaded, GraphsGiveTheSameBits) {
  for (const std::int64_t count : {1, 2, 700}) {
    for (const char* dtype : {"f32", "q8"}) {
      const auto context =
          saved_context(file_shape(), count, KvDType::parse(dtype), {"hnsw:M=4,efc=60"});
      const auto loaded = saved(context);
      const std::string index = "hnsw:M=4,efc=60,ef=0";
      EXPECT_EQ(loaded->indices(), (std::vector<std::string>{"exact", index}));
      EXPECT_EQ(loaded->index_memory(index), context->index_memory(index));
      EXPECT_EQ(answers(context, index, ""), answers(loaded, index, ""));
      const std::string bytes = bytes_of_file(path_);
      save_context(*loaded, path_);
      EXPECT_TRUE(bytes_of_file(path_) == bytes);
      verify_context(path_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Loaded, testing::Bool(),
                         [](const auto& info) { return info.param ? "InTheFile" : "InMemory"; });

TEST(ContextFile, TakesAboutWhatWasExpected) {
  const TempDirectory folder;
  for (const std::int64_t count : {6, 1500}) {
    for (const std::vector<std::string>& indices :
         {std::vector<std::string>{}, {"codes"}, {"codes:v=0"}, {"codes:k=32,v=8", "codes"}}) {
      const auto path = folder.path() / "c.tkv";
      save_context(*saved_context(file_shape(), count, {}, indices), path,
                   {.tokens = std::vector<Token>(static_cast<std::size_t>(count))});
      const std::int64_t expected = expected_file_bytes(file_shape(), count, {}, indices);
      const ContextFileInfo info = context_file_info(path);
      const std::int64_t taken = info.file_bytes - info.queries_bytes;
      SCOPED_TRACE(std::to_string(count) + " tokens, " + (indices.empty() ? "" : indices.front()));
      EXPECT_LE(expected, taken);  // or a file for which there is room would be refused
      // Parts begin at pages, and indices have more than codes and axes.
      EXPECT_GE(expected + (256 << 10), taken);
    }
  }
}

}  // namespace
}  // namespace topkv
