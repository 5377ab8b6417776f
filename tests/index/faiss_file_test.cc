// What FAISS's indices have learned, as bytes of a file: read again they find the same and grow the
// same; bytes that could lead FAISS astray are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/index/index_bytes.h"
#include "tests/support/key_cases.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::read;
using test::written;

constexpr std::int64_t faiss_dim = 32;
constexpr std::int64_t faiss_rows = 1500;

/// What some searches find, with their scores.
std::vector<std::pair<std::vector<std::int64_t>, std::vector<float>>> found(const KeyIndex& index) {
  std::vector<std::pair<std::vector<std::int64_t>, std::vector<float>>> all;
  constexpr std::int64_t count = 12;
  const std::vector<float> queries = reference::random_bf16(count * faiss_dim, 11);
  for (const std::int64_t k : {1, 20, 100}) {
    for (const PositionRange range : {test::everything, PositionRange{7, index.size() - 3}}) {
      const std::vector<PositionRange> allowed(count, range);
      SearchResult result;
      index.search({.data = queries.data(), .count = count, .dim = faiss_dim, .allowed = allowed},
                   k, result);
      for (std::int64_t q = 0; q < count; ++q) {
        const auto positions = result.positions(q);
        for (const std::int64_t position : positions) {
          EXPECT_GE(position, std::max<std::int64_t>(0, range.begin));
          EXPECT_LT(position, std::min(index.size(), range.end));
        }
        EXPECT_EQ(std::ssize(positions), k);
        all.push_back({{positions.begin(), positions.end()},
                       {result.scores(q).begin(), result.scores(q).end()}});
      }
    }
  }
  return all;
}

const test::Keys& some_keys() {
  static const test::Keys keys =
      test::make_keys(test::clustered(faiss_rows, faiss_dim, 3), faiss_dim, DType::bf16);
  return keys;
}

class FaissFile : public testing::TestWithParam<const char*> {};

TEST_P(FaissFile, FindsAndGrowsAsBefore) {
  const IndexSpec spec(GetParam());
  constexpr std::int64_t first = 1200;
  const KeyView keys = some_keys().view(0, first);
  const KeyView more = some_keys().view(first, faiss_rows);
  const auto index = spec.factory().make();
  index->add(keys);
  index->build();
  const std::string bytes = written(*index, keys);
  const auto again = read(spec, keys, bytes);
  EXPECT_EQ(again->size(), first);
  EXPECT_EQ(again->inserted(), first);
  EXPECT_TRUE(written(*again, keys) == bytes);
  EXPECT_EQ(found(*again), found(*index));
  EXPECT_LE(again->memory(), index->memory());
  EXPECT_GE(again->memory(), index->memory() / 2);
  index->add(more);
  again->add(more);
  EXPECT_EQ(found(*again), found(*index));
  EXPECT_TRUE(written(*again, some_keys().view()) == written(*index, some_keys().view()));
}

// Version 0.1.0 took no mean off the keys.
TEST_P(FaissFile, OfAnEarlierVersionWhichHasNoMeanFindsAndGrows) {
  const IndexSpec spec(GetParam());
  const std::size_t of_mean = spec.text() == "faiss:Flat" ? 0 : 16 + faiss_dim * 4;
  const KeyView keys = some_keys().view(0, 1200);
  const auto index = spec.factory().make();
  index->add(keys);
  index->build();
  const auto earlier = read(spec, keys, written(*index, keys).substr(of_mean));
  EXPECT_EQ(found(*earlier), found(*index));
  const auto again = read(spec, keys, written(*earlier, keys));
  earlier->add(some_keys().view(1200, faiss_rows));
  again->add(some_keys().view(1200, faiss_rows));
  EXPECT_EQ(found(*again), found(*earlier));
}

TEST_P(FaissFile, IsRefusedWhenItIsCutOffOrLonger) {
  const IndexSpec spec(GetParam());
  const KeyView keys = some_keys().view(0, 300);
  const auto index = spec.factory().make();
  index->add(keys);
  index->build();
  const std::string bytes = written(*index, keys);
  for (std::size_t size = 0; size < bytes.size(); size += size < 64 ? 1 : 61)
    EXPECT_THROW(read(spec, keys, bytes.substr(0, size)), FileError) << size;
  EXPECT_THROW(read(spec, keys, bytes + '\0'), FileError);
  // Of other keys.
  EXPECT_THROW(read(spec, some_keys().view(0, 299), bytes), FileError);
  EXPECT_THROW(read(spec, some_keys().view(0, 301), bytes), FileError);
}

/// Any bytes: refused, or a search as any, and keys can be added to it.
TEST_P(FaissFile, MayHoldAnything) {
  const IndexSpec spec(GetParam());
  const KeyView keys = some_keys().view(0, 1200);
  const auto index = spec.factory().make();
  index->add(keys);
  index->build();
  const std::string bytes = written(*index, keys);
  std::mt19937 random(5);
  int taken = 0;
  int refused = 0;
  for (int round = 0; round < 50; ++round) {
    std::string changed = bytes;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      const std::size_t at = random() % (random() % 2 == 0 ? changed.size() : 2048);
      const char values[] = {0, 1, '\x7f', '\x80', '\xff', static_cast<char>(random())};
      changed[at % changed.size()] = values[random() % 6];
    }
    try {
      const auto read_index = read(spec, keys, changed);
      ++taken;
      found(*read_index);
      read_index->add(some_keys().view(1200, 1210));
      found(*read_index);
    } catch (const FileError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(taken + refused, 49);
  EXPECT_GT(taken, 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, FaissFile,
                         testing::Values("faiss:Flat", "faiss:SQ8", "faiss:SQ6", "faiss:SQ4",
                                         "faiss:SQfp16", "faiss:PQ8", "faiss:PQ8x4", "faiss:PQ4x5",
                                         "faiss:IVF", "faiss:IVF20,Flat;nprobe=3", "faiss:IVF,SQ6",
                                         "faiss:IVF,SQ4", "faiss:IVF,SQfp16", "faiss:IVF,PQ8",
                                         "faiss:IVF7,PQ8x4", "faiss:HNSW8;ef=64,efc=40",
                                         "faiss:HNSW2"),
                         [](const auto& info) {
                           std::string name = std::string(info.param).substr(6);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

/// An index's bytes, of which numbers can be changed.
class Bytes {
 public:
  Bytes(const std::string& spec, std::int64_t keys)
      : spec_(spec), keys_(some_keys().view(0, keys)) {
    const auto index = spec_.factory().make();
    index->add(keys_);
    index->build();
    whole_ = written(*index, keys_);
  }

  template <class Number>
  Number at(std::size_t place) const {
    Number number;
    std::memcpy(&number, whole_.data() + place, sizeof number);
    return number;
  }

  /// With another number at a place it is refused, for this reason.
  template <class Number>
  void refused(std::size_t place, Number number, const std::string& why) const {
    std::string changed = whole_;
    std::memcpy(changed.data() + place, &number, sizeof number);
    refused(changed, why);
  }
  void refused(const std::string& changed, const std::string& why) const {
    ASSERT_TRUE(changed != whole_) << why;
    try {
      read(spec_, keys_, changed);
      FAIL() << why << ": nothing was thrown";
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
  const std::string& whole() const { return whole_; }

 private:
  IndexSpec spec_;
  KeyView keys_;
  std::string whole_;
};

/// What all but float32 copies begin with: a mark, and the mean's length and elements.
constexpr std::size_t of_mean = 8 + 8 + faiss_dim * 4;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(FaissFileOfLists, LeadsNowhereElse) {
  constexpr std::int64_t keys = 100;
  const Bytes file("faiss:IVF4,SQ8", keys);
  constexpr std::size_t centroids = of_mean + 8;
  constexpr std::size_t ranges = centroids + 4 * faiss_dim * 4 + 8;
  constexpr std::size_t first = ranges + 2 * faiss_dim * 4 + 8;  // ids of the first list
  ASSERT_EQ(file.at<std::int64_t>(of_mean), 4 * faiss_dim);
  ASSERT_EQ(file.at<std::int64_t>(ranges - 8), 2 * faiss_dim);
  const auto count = file.at<std::int64_t>(first - 8);
  ASSERT_GT(count, 1);
  const std::size_t codes = first + static_cast<std::size_t>(count) * 8 + 8;
  ASSERT_EQ(file.at<std::int64_t>(codes - 8), count * faiss_dim);
  for (const std::int64_t other : {0L, 3 * faiss_dim, 4 * faiss_dim - 1, 5 * faiss_dim})
    file.refused(of_mean, other, "another number of lists");
  file.refused(of_mean, std::int64_t{1} << 62, "longer than the data");
  file.refused(of_mean, std::int64_t{-1}, "longer than the data");
  file.refused(0, std::int64_t{-2}, "longer than the data");
  file.refused(8, std::int64_t{faiss_dim - 1}, "mean has another dimension");
  file.refused(16, nan, "not finite");
  file.refused(16, 32769.0F, "a mean is farther than keys can make it");
  file.refused(centroids, nan, "not finite");
  file.refused(centroids, 1e30F, "farther than keys can make it");
  file.refused(ranges - 8, std::int64_t{faiss_dim}, "not one range for each element");
  file.refused(ranges, -1e30F, "wider than keys can make it");
  file.refused(ranges + faiss_dim * 4, 1e30F, "wider than keys can make it");
  file.refused(ranges + faiss_dim * 4, -0.5F, "a range is below 0");
  file.refused(first - 8, std::int64_t{1} << 60, "longer than the data");
  file.refused(first, std::int64_t{-1}, "do not have each key once");
  file.refused(first, keys, "do not have each key once");
  file.refused(first, file.at<std::int64_t>(first + 8), "do not have each key once");
  file.refused(codes - 8, count * faiss_dim - 1, "not one code for each of its keys");
  // Without its last key.
  std::string fewer = file.whole();
  const std::int64_t less = count - 1;
  const std::int64_t less_codes = less * faiss_dim;
  fewer.erase(codes + static_cast<std::size_t>(less_codes), faiss_dim);
  std::memcpy(fewer.data() + codes - 8, &less_codes, 8);
  fewer.erase(codes - 16, 8);
  std::memcpy(fewer.data() + first - 8, &less, 8);
  file.refused(fewer, "do not have each key once");
}

TEST(FaissFileOfLists, AreNotMadeBeyondWhatThereIs) {
  const Bytes file("faiss:IVF,Flat", 100);
  // As many centroids as there are bytes for, and no lists behind them.
  std::string many(8 + 1000 * faiss_dim * 4, '\0');
  const std::int64_t numbers = 1000 * faiss_dim;
  std::memcpy(many.data(), &numbers, 8);
  file.refused(many, "ends before its lists");
}

TEST(FaissFileOfCodes, AreNumbers) {
  const Bytes flat("faiss:Flat", 50);
  for (const float bad : {nan, std::numeric_limits<float>::infinity(), 32769.0F, -1e38F})
    flat.refused(8 + 4 * 17, bad, "beyond FAISS's limits");
  flat.refused(0, std::int64_t{49 * faiss_dim * 4}, "not one code for each key");
  const Bytes lists("faiss:IVF1,Flat", 50);
  lists.refused(of_mean + 8 + faiss_dim * 4 + 8 + 50 * 8 + 8, nan, "beyond FAISS's limits");
  const Bytes half("faiss:SQfp16", 50);
  for (const std::uint16_t bad : {0x7c00, 0xfc00, 0x7e01})
    half.refused(of_mean + 16 + 2 * 9, bad, "a code is not finite");
  half.refused(of_mean, std::int64_t{1}, "not one range for each element");
  const Bytes parts("faiss:PQ4x4", 50);
  parts.refused(of_mean + 8, nan, "not finite");
  parts.refused(of_mean + 8, -1e20F, "farther than keys can make it");
  parts.refused(of_mean, std::int64_t{8 * faiss_dim}, "another number of centroids");
  // Of centroids that are made with it there must be bytes.
  const Bytes large("faiss:PQ32x8", 300);
  large.refused(large.whole().substr(0, of_mean + 100), "ends before its lists and centroids");
}

/// Each number that a walk over a graph follows.
TEST(FaissFileOfAGraph, LeadsNowhereElse) {
  constexpr std::int64_t keys = 200;
  constexpr std::size_t ground = 8;  // links, of which M are on other floors
  const Bytes file("faiss:HNSW4", keys);
  constexpr std::size_t floors = of_mean + 8;
  constexpr std::size_t entry = floors + keys;
  constexpr std::size_t links = entry + 4 + 8;
  ASSERT_EQ(file.at<std::int64_t>(of_mean), keys);
  std::size_t high = 0;  // the first key above the ground
  while (file.at<std::uint8_t>(floors + high) == 1) ++high;
  std::size_t low = high;  // and one on the ground behind it
  while (file.at<std::uint8_t>(floors + low) > 1) ++low;
  std::string fewer = file.whole();
  fewer.erase(entry - 1, 1);
  fewer[of_mean] = static_cast<char>(keys - 1);
  file.refused(fewer, "not one level for each key");
  file.refused(floors, std::uint8_t{0}, "unknown level");
  file.refused(floors, std::uint8_t{255}, "unknown level");
  file.refused(floors + low, std::uint8_t{2}, "places of links");
  for (const std::int32_t bad : {-1, -2, 200, 1 << 30})
    file.refused(entry, bad, "entry point is not a key of the highest level");
  file.refused(entry, static_cast<std::int32_t>(low),
               "entry point is not a key of the highest level");
  for (const std::int32_t bad : {-2, 200, 1 << 30, -(1 << 30)})
    file.refused(links, bad, "leads to a key that is not on its level");
  // From a floor above the ground to a key that is on the ground alone.
  const std::size_t above = links + 4 * ground * (high + 1);
  ASSERT_GE(file.at<std::int32_t>(above), 0);
  file.refused(above, static_cast<std::int32_t>(low), "leads to a key that is not on its level");
  const std::size_t judged = file.whole().size() - 4 - 8 - 8 - (keys / 128) * 8;
  file.refused(judged, keys + 1, "judged more keys");
}

}  // namespace
}  // namespace topkv
