// Building: stopping it, repeating it, what it holds, and which specs name the same index.
#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <oneapi/tbb/task_arena.h>

#include <cctype>
#include <chrono>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "index/graphs/faiss_interrupt.h"
#include "tests/support/key_cases.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::check_result;
using test::clustered;
using test::everything;
using test::Keys;
using test::make_keys;
using test::make_queries;
using test::search;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "nothing was thrown";
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class Builds : public testing::TestWithParam<std::string> {};

TEST_P(Builds, ThatAreStoppedMayBeRepeated) {
  const Keys keys = make_keys(clustered(4000, 64, 1), 64, DType::bf16);
  const auto index = make_index(GetParam());
  index->add(keys.view());
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(index->build(source.get_token()), Stopped);
  EXPECT_EQ(index->inserted(), 0);
  EXPECT_EQ(index->size(), 4000);
  const auto queries = make_queries(keys, 8, everything, 2);
  EXPECT_NE(message_of([&] { search(*index, queries, 4); }).find("call build"), std::string::npos);
  index->build();
  EXPECT_EQ(index->inserted(), 4000);
  EXPECT_GE(check_result(keys, queries, 32, search(*index, queries, 32)), 0.8);
}

TEST_P(Builds, AnAddThatIsStoppedTakesNoKeys) {
  const Keys keys = make_keys(clustered(4000, 64, 3), 64, DType::bf16);
  const auto index = make_index(GetParam());
  index->add(keys.view(0, 3000));
  index->build();
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(index->add(keys.view(3000, 4000), source.get_token()), Stopped);
  EXPECT_EQ(index->size(), 3000);
  index->build();
  index->add(keys.view(3000, 4000));
  const auto queries = make_queries(keys, 8, everything, 4);
  EXPECT_GE(check_result(keys, queries, 32, search(*index, queries, 32)), 0.8);
}

INSTANTIATE_TEST_SUITE_P(Specs, Builds,
                         testing::Values("hnsw:M=8,efc=40", "codes", "ivf", "faiss:HNSW16",
                                         "faiss:IVF16,SQ8", "faiss:Flat", "faiss:PQ16x4"),
                         test_name);

TEST(Builds, OfGraphsEndAmongTheirKeysWhenStopped) {
  const Keys keys = make_keys(clustered(20000, 64, 1), 64, DType::bf16);
  for (const char* spec : {"hnsw:M=8,efc=40", "faiss:HNSW16"}) {
    std::string text;
    for (int attempt = 0; attempt < 20 && text.empty(); ++attempt) {  // this thread may be late
      const auto index = make_index(spec);
      index->add(keys.view());
      std::stop_source source;
      auto built = std::async(std::launch::async, [&] { index->build(source.get_token()); });
      while (index->inserted() == 0 &&
             built.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
        std::this_thread::yield();
      source.request_stop();
      try {
        built.get();
      } catch (const Stopped& e) {
        text = e.what();
        if (text.find("after 20000 ") != std::string::npos) text.clear();  // all were in already
      }
    }
    EXPECT_NE(text.find(" of 20000 keys"), std::string::npos) << text;
    EXPECT_EQ(text.find("after 20000 "), std::string::npos) << text;
    EXPECT_EQ(text.find("after 0 "), std::string::npos) << text;
  }
}

TEST(Builds, ThatFailedMayBeRepeatedWithMoreKeys) {
  const Keys keys = make_keys(clustered(1000, 64, 5), 64, DType::bf16);
  for (const char* spec : {"faiss:IVF256,SQ8", "faiss:PQ16x8", "faiss:IVF16,PQ16"}) {
    const auto index = make_index(spec);
    index->add(keys.view(0, 100));
    EXPECT_THROW(index->build(), InvalidArgument) << spec;
    index->add(keys.view(100, 1000));
    index->build();
    const auto queries = make_queries(keys, 8, everything, 6);
    EXPECT_GE(check_result(keys, queries, 32, search(*index, queries, 32)), 0.8) << spec;
  }
}

TEST(Builds, AnAddThatFailsTakesNoKeys) {
  const Keys keys = make_keys(clustered(1000, 64, 7), 64, DType::bf16);
  const auto index = make_index("faiss:IVF256,SQ8");
  index->build();
  EXPECT_THROW(index->add(keys.view(0, 100)), InvalidArgument);
  EXPECT_EQ(index->size(), 0);
  index->add(keys.view());  // another beginning: nothing of the first is kept
  index->build();
  EXPECT_EQ(index->inserted(), 1000);
}

TEST(Builds, PartsThatDoNotDivideTheDimAreRefused) {
  const Keys keys = make_keys(clustered(300, 40, 8), 40, DType::bf16);
  const auto index = make_index("faiss:PQ16");
  index->add(keys.view());
  const std::string text = message_of([&] { index->build(); });
  EXPECT_NE(text.find("dim 40 cannot be cut into 16 equal parts"), std::string::npos) << text;
}

TEST(FaissInterrupt, EndsTrainingOfItsOwnThreadAlone) {
  std::vector<float> points = clustered(2000, 16, 9);
  const auto train = [&] {
    faiss::IndexFlatIP quantizer(16);
    faiss::IndexIVFFlat index(&quantizer, 16, 40, faiss::METRIC_INNER_PRODUCT);
    index.train(2000, points.data());
  };
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  const FaissInterrupt interrupt(stop);
  train();
  source.request_stop();
  EXPECT_THROW(train(), faiss::FaissException);
  std::thread(train).join();  // an exception would end the process
  {
    const std::stop_token none;
    const FaissInterrupt inner(none);
    train();
  }
  EXPECT_THROW(train(), faiss::FaissException);
}

TEST(Memory, OfAGraphIsInProportionToItsKeys) {
  const Keys keys = make_keys(clustered(200, 64, 10), 64, DType::bf16);
  const auto index = make_index("hnsw");
  index->add(keys.view());
  index->build();
  EXPECT_LT(index->memory(), 200 * 200);  // hnswlib's own locks are 2.5 MiB whatever the keys
}

// The sanitizers have an allocator of their own, which mallinfo2 does not know.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

std::int64_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

class Memory : public testing::TestWithParam<std::string> {};

TEST_P(Memory, IsWhatTheAllocatorGave) {
  // One arena of glibc and one thread: what other threads allocate is not counted.
  const Keys keys = make_keys(clustered(20000, 32, 11), 32, DType::bf16);
  oneapi::tbb::task_arena one(1);
  one.execute([&] {
    {  // what the first use of a library leaves behind
      const auto first = make_index(GetParam());
      first->add(keys.view());
      first->build();
    }
    const std::int64_t before = allocated();
    const auto index = make_index(GetParam());
    index->add(keys.view());
    index->build();
    const std::int64_t given = allocated() - before;
    EXPECT_NEAR(static_cast<double>(index->memory()), static_cast<double>(given),
                0.05 * static_cast<double>(given) + 65536);
  });
}

INSTANTIATE_TEST_SUITE_P(Specs, Memory,
                         testing::Values("hnsw", "codes", "ivf", "hnsw:M=4,efc=20", "faiss:Flat",
                                         "faiss:SQ8", "faiss:PQ8x5", "faiss:HNSW16",
                                         "faiss:IVF,SQ8", "faiss:IVF64,Flat", "faiss:IVF64,PQ8x4"),
                         test_name);

#endif

TEST(NormalSpec, IsOneForAllSpellingsOfAnIndex) {
  const std::vector<std::vector<std::string>> same = {
      {"exact"},
      {"hnsw:M=16,efc=100,ef=0", "hnsw", "hnsw:M=16", "hnsw:ef=0", "hnsw:efc=100,M=16",
       "hnsw:M=016"},
      {"hnsw:M=16,efc=100,ef=64", "hnsw:ef=64"},
      {"ivf:size=32,share=32", "ivf", "ivf:share=32", "ivf:share=032,size=32"},
      {"faiss:Flat"},
      {"faiss:HNSW32;ef=0,efc=40", "faiss:HNSW", "faiss:HNSW32", "faiss:HNSW32,Flat",
       "faiss:HNSW032;efc=40"},
      {"faiss:IVF,SQ8;nprobe=0", "faiss:IVF", "faiss:IVF,SQ8"},
      {"faiss:IVF64,SQ8;nprobe=4", "faiss:IVF64;nprobe=4", "faiss:IVF064,SQ8;nprobe=4"},
      {"faiss:PQ16x8", "faiss:PQ16", "faiss:PQ016x08"},
      {"faiss:IVF,PQ8x4;nprobe=0", "faiss:IVF,PQ8x4"}};
  std::vector<std::string> normals;
  for (const auto& spellings : same) {
    for (const std::string& spec : spellings) {
      EXPECT_EQ(IndexSpec(spec).text(), spellings.front()) << spec;
      EXPECT_EQ(make_index(spec)->spec(), spellings.front()) << spec;
    }
    normals.push_back(spellings.front());
  }
  EXPECT_EQ(std::set<std::string>(normals.begin(), normals.end()).size(), same.size());
}

TEST(IndexSpec, RefusesBeforeBuildWhatBuildRefuses) {
  struct Case {
    const char* spec;
    std::int64_t dim, keys;
  };
  for (const auto& [spec, dim, keys] :
       {Case{"faiss:PQ7", 64, 300}, Case{"faiss:PQ8", 64, 255}, Case{"faiss:IVF4096,SQ8", 64, 60},
        Case{"faiss:IVF4,PQ8", 64, 100}}) {
    const std::vector<float> values(static_cast<std::size_t>(dim * keys), 1.0F);
    const auto index = make_index(spec);
    index->add({reinterpret_cast<const std::byte*>(values.data()), DType::f32, keys, dim, 4 * dim});
    std::string built;
    std::string checked;
    try {
      index->build();
    } catch (const InvalidArgument& error) {
      built = error.what();
    }
    try {
      IndexSpec(spec).check(dim, keys);
    } catch (const InvalidArgument& error) {
      checked = error.what();
    }
    EXPECT_FALSE(built.empty()) << spec;
    EXPECT_EQ(checked, built) << spec;
  }
  for (const char* spec :
       {"exact", "hnsw", "ivf", "faiss:IVF4096,SQ8", "faiss:PQ8", "faiss:HNSW32"}) {
    EXPECT_NO_THROW(IndexSpec(spec).check(64, 0)) << spec;
    EXPECT_NO_THROW(IndexSpec(spec).check(64, 4096)) << spec;
  }
  EXPECT_NO_THROW(IndexSpec("exact").check(64, std::int64_t{1} << 40));
  EXPECT_THROW(IndexSpec("hnsw").check(64, std::int64_t{1} << 31), InvalidArgument);
}

TEST(IndexSpec, SaysWhatGrowsAsTheIndexDoes) {
  const std::vector<float> values(64 * 400, 1.0F);
  const auto view = [&](std::int64_t first, std::int64_t count) {
    return KeyView{reinterpret_cast<const std::byte*>(values.data() + first * 64), DType::f32,
                   count, 64, 256};
  };
  for (const char* spec : {"exact", "hnsw"}) {
    ASSERT_TRUE(IndexSpec(spec).grows()) << spec;
    const auto index = make_index(spec);
    index->add(view(0, 300));
    index->build();
    index->add(view(300, 100));
    const PositionRange late{300, 400};
    SearchResult found;
    index->search({values.data(), 1, 64, {&late, 1}}, 10, found);
    EXPECT_EQ(found.positions(0).size(), 10U) << spec;
  }
  EXPECT_FALSE(IndexSpec("faiss:IVF").grows());
}

TEST(FaissSpec, FamiliesThatWereNotMadeSafeAreRefusedNamingThoseThatWere) {
  for (const char* family : {"NSG32",
                             "NSG32,Flat",
                             "IVF64,NSG32",
                             "NNDescent16",
                             "LSH",
                             "LSHrt",
                             "IMI2x8,Flat",
                             "IVF64_HNSW32,Flat",
                             "IVF64_NSG32,Flat",
                             "IVF64(IVF8,Flat),Flat",
                             "IVF64,PQ16+8",
                             "IVF64,RQ4x8",
                             "RQ4x8",
                             "LSQ4x8",
                             "PRQ2x4x8",
                             "PLSQ2x4x8",
                             "RCQ2x8",
                             "Residual2x8",
                             "ZnLattice3x10_6",
                             "ITQ,LSH",
                             "IVF64,ITQ",
                             "PQ16x4fs",
                             "PQ16x4fsr",
                             "PQ16np",

                             "IVF64,PQ16x4fs",
                             "OPQ16,PQ16",
                             "OPQ16_32,IVF64,PQ16",
                             "PCA32,Flat",
                             "PCAR32,IVF64,Flat",
                             "RR32,Flat",
                             "L2norm,Flat",
                             "Pad128,Flat",
                             "IDMap,Flat",
                             "Flat,IDMap",
                             "IVF64,Flat,RFlat",
                             "PQ16,RFlat",
                             "Refine(Flat)",
                             "HNSW32_PQ16",
                             "HNSW32,SQ8",
                             "HNSW32,PQ16",
                             "HNSW32_SQ8",
                             "HNSW32_2x8",
                             "HNSW32,IVF64",
                             "SQbf16",
                             "SQ8bit",
                             "SQ3",
                             "sq8",
                             "flat",
                             "MinMax,SQ8",
                             "Flat,Flat",
                             "IVF64,",
                             ",Flat",
                             "IVF64,IVF64",
                             "IVF64,HNSW32"}) {
    const std::string spec = std::string("faiss:") + family;
    const std::string text = message_of([&] { make_index(spec); });
    EXPECT_NE(text.find("topkv takes: HNSW32, and Flat"), std::string::npos)
        << spec << ": " << text;
  }
}

}  // namespace
}  // namespace topkv
