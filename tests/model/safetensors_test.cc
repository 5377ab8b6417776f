#include "src/model/weights/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Shape = std::vector<std::int64_t>;

/// The bytes of a safetensors file.
std::string file_of(const std::string& header, const std::string& data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

std::string length_only(std::uint64_t length, const std::string& rest = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
  return file + rest;
}

std::string zeros(std::size_t count) { return std::string(count, '\0'); }

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class SafeTensorsTest : public testing::Test {
 protected:
  SafeTensors open(const std::string& content) {
    temp.write("model.safetensors", content);
    return SafeTensors::open(temp.path());
  }
  TempDirectory temp;
};

TEST_F(SafeTensorsTest, TensorsComeBackWithTheirBytesDTypeAndShape) {
  const SafeTensors tensors = open(file_of(
      R"({"__metadata__":{"format":"pt"},"b":)" + tensor("BF16", "[2]", "[8,12]") + R"(,"a":)" +
          tensor("F32", "[1,2]", "[0,8]") + R"(,"none":)" + tensor("F16", "[3,0]", "[12,12]") +
          R"(,"scalar":)" + tensor("F16", "[]", "[12,14]") + "}   ",
      floats({1.5F, -2.0F}) + "\x80\x3f\x40\xc0" + std::string("\x00\x3c", 2)));
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b", "none", "scalar"}));
  EXPECT_TRUE(tensors.has("b"));
  EXPECT_FALSE(tensors.has("__metadata__"));
  EXPECT_FALSE(tensors.has("c"));

  const SafeTensors::Tensor a = tensors.get("a", Shape{1, 2});
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, (Shape{1, 2}));
  EXPECT_EQ(std::memcmp(a.data, floats({1.5F, -2.0F}).data(), 8), 0);
  const SafeTensors::Tensor b = tensors.get("b", Shape{2});
  EXPECT_EQ(b.dtype, DType::bf16);
  EXPECT_EQ(std::memcmp(b.data, "\x80\x3f\x40\xc0", 4), 0);
  EXPECT_EQ(tensors.get("none", Shape{3, 0}).shape, (Shape{3, 0}));
  const SafeTensors::Tensor scalar = tensors.get("scalar", Shape{});
  EXPECT_EQ(scalar.dtype, DType::f16);
  EXPECT_EQ(std::memcmp(scalar.data, "\x00\x3c", 2), 0);
}

TEST_F(SafeTensorsTest, DataSurvivesAMoveOfItsOwner) {
  SafeTensors first = open(file_of(R"({"a":)" + tensor("F32", "[1]", "[0,4]") + "}", floats({3})));
  const SafeTensors::Tensor a = first.get("a", Shape{1});
  const SafeTensors second = std::move(first);
  EXPECT_EQ(second.get("a", Shape{1}).data, a.data);
  EXPECT_EQ(std::memcmp(a.data, floats({3}).data(), 4), 0);
}

TEST_F(SafeTensorsTest, MisalignedDataIsReadThroughConversion) {
  for (int spaces = 0; spaces < 8; ++spaces) {
    const SafeTensors tensors = open(file_of(R"({"a":)" + tensor("F32", "[3]", "[0,12]") + "}" +
                                                 std::string(static_cast<std::size_t>(spaces), ' '),
                                             floats({1, 2, 3})));
    const SafeTensors::Tensor a = tensors.get("a", Shape{3});
    std::vector<float> values(3);
    to_float(a.data, a.dtype, 3, values.data());
    EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  }
}

TEST_F(SafeTensorsTest, EveryDTypeOfTheFormatMayBeInTheFile) {
  const std::vector<std::pair<std::string, int>> dtypes = {
      {"F64", 64},    {"F32", 32},        {"F16", 16},        {"BF16", 16},   {"I64", 64},
      {"I32", 32},    {"I16", 16},        {"I8", 8},          {"U64", 64},    {"U32", 32},
      {"U16", 16},    {"U8", 8},          {"BOOL", 8},        {"C64", 64},    {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [dtype, bits] : dtypes) {
    const std::string end = std::to_string(bits);  // 8 elements are `bits` bytes
    const SafeTensors tensors =
        open(file_of(R"({"a":)" + tensor(dtype, "[2,4]", "[0," + end + "]") + "}",
                     zeros(static_cast<std::size_t>(bits))));
    EXPECT_TRUE(tensors.has("a"));
    if (dtype == "F32" || dtype == "F16" || dtype == "BF16") {
      EXPECT_EQ(tensors.get("a", Shape{2, 4}).shape, (Shape{2, 4}));
    } else {
      expect_error<Unsupported>(
          [&] {
            tensors.get("a", Shape{2, 4});
          },
          (temp.path() / "model.safetensors").string(), {"\"a\"", dtype, "F32, F16 and BF16"});
    }
  }
}

TEST_F(SafeTensorsTest, GetOfAnotherShapeOrNameNamesTensorFoundAndExpected) {
  const SafeTensors tensors =
      open(file_of(R"({"a":)" + tensor("F32", "[1,2]", "[0,8]") + "}", zeros(8)));
  const std::string file = (temp.path() / "model.safetensors").string();
  for (const Shape& shape : {Shape{2, 1}, Shape{2}, Shape{1, 2, 1}, Shape{}}) {
    expect_error<FileError>([&] { tensors.get("a", shape); }, file,
                            {"\"a\"", "[1, 2]", shown_shape(shape)});
  }
  expect_error<FileError>(
      [&] {
        tensors.get("b", Shape{4, 5});
      },
      file, {"\"b\"", "no tensor", "[4, 5]"});
  expect_error<FileError>([&] { tensors.get("\xff\n", Shape{1}); }, file, {"no tensor"});
}

TEST_F(SafeTensorsTest, EmptyHeaderObjectIsAFileOfNoTensors) {
  EXPECT_TRUE(open(file_of("{}")).names().empty());
}

TEST_F(SafeTensorsTest, HostileFilesAreRefusedWithAnErrorThatNamesFileAndCause) {
  const auto one = [](const std::string& info, std::size_t data_bytes = 8) {
    return file_of(R"({"bad":)" + info + "}", zeros(data_bytes));
  };
  const std::string good = tensor("F32", "[2]", "[0,8]");
  struct Case {
    const char* name;
    std::string content;
    std::vector<std::string_view> says;
  };
  const std::vector<Case> cases = {
      {"empty file", "", {"0 bytes", "8"}},
      {"cut within the length", "1234567", {"7 bytes"}},
      {"length beyond the file", length_only(3, "{}"), {"header length is 3", "at most the 2"}},
      {"length over the limit", length_only(100'000'001, "{}"), {"100000001", "100000000"}},
      {"length of all ones", length_only(UINT64_MAX, "{}"), {"18446744073709551615", "100000000"}},
      {"length that overflows plus 8", length_only(UINT64_MAX - 7, "{}"), {"100000000"}},
      {"no header", file_of(""), {"not valid JSON"}},
      {"binary header", file_of(std::string("\x00\x01\x02\n", 4)), {"not valid JSON"}},
      {"invalid UTF-8", file_of("{\"\xff\xfe\":1}"), {"not valid JSON"}},
      {"cut header", file_of(R"({"a":{"dtype":)"), {"not valid JSON"}},
      {"text behind the header", file_of("{} x"), {"not valid JSON"}},
      {"comment", file_of("{} // x"), {"not valid JSON"}},
      {"huge number", file_of(R"({"a":1e999})"), {"not valid JSON"}},
      {"header is an array", file_of("[1]"), {"header is [1]", "JSON object"}},
      {"deep arrays", file_of(std::string(1'000'000, '[')), {"64 deep"}},
      {"deep objects",
       file_of([] {
         std::string text;
         for (int i = 0; i < 100'000; ++i) text += R"({"a":)";
         return text;
       }()),
       {"64 deep"}},
      {"tensor twice",
       file_of(R"({"bad":)" + good + R"(,"bad":)" + good + "}", zeros(8)),
       {"\"bad\"", "twice"}},
      {"tensor twice, one escaped",
       file_of(R"({"bad":)" + good + R"(,"b\u0061d":)" + good + "}", zeros(8)),
       {"\"bad\"", "twice"}},
      {"dtype twice",
       one(R"({"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]})"),
       {"\"dtype\"", "twice"}},
      {"metadata of numbers", file_of(R"({"__metadata__":{"a":1}})"), {"__metadata__", "strings"}},
      {"metadata a string", file_of(R"({"__metadata__":"a"})"), {"__metadata__", "strings"}},
      {"tensor is a number", one("7"), {"\"bad\"", "7", "object"}},
      {"tensor is null", one("null"), {"\"bad\"", "null", "object"}},
      {"no dtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), {"\"bad\"", "no dtype"}},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), {"\"bad\"", "no shape"}},
      {"no offsets", one(R"({"dtype":"F32","shape":[2]})"), {"\"bad\"", "no data_offsets"}},
      {"unknown dtype", one(tensor("F33", "[2]", "[0,8]")), {"\"bad\"", "F33", "BF16"}},
      {"dtype in lower case", one(tensor("f32", "[2]", "[0,8]")), {"\"bad\"", "\"f32\""}},
      {"dtype a number",
       one(R"({"dtype":5,"shape":[2],"data_offsets":[0,8]})"),
       {"\"bad\"", "dtype 5"}},
      {"shape a number", one(tensor("F32", "2", "[0,8]")), {"\"bad\"", "shape 2", "array"}},
      {"negative size", one(tensor("F32", "[-2]", "[0,8]")), {"\"bad\"", "[-2]", "from 0"}},
      {"fractional size", one(tensor("F32", "[2.0]", "[0,8]")), {"\"bad\"", "[2.0]", "integers"}},
      {"size a string", one(tensor("F32", R"(["2"])", "[0,8]")), {"\"bad\"", "shape", "integers"}},
      {"size above 2^63",
       one(tensor("F32", "[9223372036854775808]", "[0,8]")),
       {"\"bad\"", "9223372036854775808", "2^63 - 1"}},
      {"size above 2^64",
       one(tensor("F32", "[18446744073709551618]", "[0,8]")),
       {"\"bad\"", "shape"}},
      {"product overflows to the right size",  // 2^32 * 2^32 = 2^64 = 0 when wrapped
       one(tensor("F32", "[4294967296,4294967296]", "[0,0]"), 0),
       {"\"bad\"", "2^63 bits"}},
      {"product overflows before a 0",
       one(tensor("F32", "[4294967296,4294967296,0]", "[0,0]"), 0),
       {"\"bad\"", "2^63 bits"}},
      {"bits overflow",
       one(tensor("F64", "[1152921504606846976]", "[0,0]"), 0),
       {"\"bad\"", "2^63 bits"}},
      {"bits are no whole bytes",
       one(tensor("F4", "[3]", "[0,1]"), 1),
       {"\"bad\"", "12 bits", "whole bytes"}},
      {"one offset", one(tensor("F32", "[2]", "[0]")), {"\"bad\"", "data_offsets [0]"}},
      {"three offsets", one(tensor("F32", "[2]", "[0,8,8]")), {"\"bad\"", "[0, 8, 8]"}},
      {"offsets reversed", one(tensor("F32", "[2]", "[8,0]")), {"\"bad\"", "[8, 0]", "begin"}},
      {"negative offset", one(tensor("F32", "[2]", "[-8,0]")), {"\"bad\"", "[-8,0]", "from 0"}},
      {"end beyond the data", one(tensor("F32", "[3]", "[0,12]")), {"\"bad\"", "[0, 12]", "8"}},
      {"offsets near 2^63",
       one(tensor("F32", "[2]", "[9223372036854775799,9223372036854775807]")),
       {"\"bad\"", "9223372036854775807", "begin <= end <= 8"}},
      {"offsets an object",
       one(tensor("F32", "[2]", R"({"begin":0})")),
       {"\"bad\"", "data_offsets"}},
      {"size below the shape's",
       one(tensor("F32", "[3]", "[0,8]")),
       {"\"bad\"", "8 bytes", "[3]", "12 bytes"}},
      {"size above the shape's", one(tensor("F16", "[2]", "[0,8]")), {"\"bad\"", "4 bytes"}},
      {"overlap",
       file_of(R"({"a":)" + good + R"(,"bad":)" + tensor("F32", "[2]", "[4,12]") + "}", zeros(12)),
       {"\"bad\"", "byte 4", "overlap"}},
      {"the same bytes twice",
       file_of(R"({"a":)" + good + R"(,"bad":)" + good + "}", zeros(8)),
       {"\"bad\"", "overlap"}},
      {"hole before the first", one(tensor("F32", "[1]", "[4,8]")), {"\"bad\"", "byte 4", "hole"}},
      {"hole between two",
       file_of(R"({"a":)" + good + R"(,"bad":)" + tensor("F32", "[1]", "[12,16]") + "}", zeros(16)),
       {"\"bad\"", "byte 12", "8", "hole"}},
      {"data behind the last tensor", one(good, 9), {"9 bytes", "8"}},
      {"data but no tensors", file_of("{}", zeros(1)), {"1 bytes", "0"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string file = temp.write("model.safetensors", c.content).string();
    expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, file + ": ", c.says);
  }
}

TEST_F(SafeTensorsTest, MoreValuesThanTheLimitAreRefusedBeforeTheyFillTheMemory) {
  std::string header = R"({"a":[0)";
  for (int i = 0; i < (1 << 23); ++i) header += ",0";
  const std::string file = temp.write("model.safetensors", file_of(header)).string();
  expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, file, {"8388608 values"});
}

TEST_F(SafeTensorsTest, ThingsThatAreNotFilesAreRefused) {
  expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, temp.path().string(),
                          {"neither model.safetensors nor", "expected"});
  expect_error<FileError>([&] { SafeTensors::open(temp.path() / "absent"); },
                          (temp.path() / "absent").string(), {"neither"});
  const std::filesystem::path file = temp.path() / "model.safetensors";
  std::filesystem::create_directory(file);
  expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, file.string(),
                          {"not a regular file"});
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // opening it must not wait for a writer
  expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, file.string(),
                          {"not a regular file"});
}

class ShardedTest : public testing::Test {
 protected:
  ShardedTest() {
    temp.write("1.safetensors", file_of(R"({"a":)" + tensor("F32", "[1]", "[0,4]") + R"(,"x":)" +
                                            tensor("F32", "[1]", "[4,8]") + "}",
                                        floats({1, 9})));
    temp.write("2.safetensors",
               file_of(R"({"b":)" + tensor("F32", "[1]", "[0,4]") + "}", floats({2})));
  }
  SafeTensors open(const std::string& index_text) {
    temp.write(index_name, index_text);
    return SafeTensors::open(temp.path());
  }
  static float first(const SafeTensors::Tensor& tensor) {
    float value = 0;
    std::memcpy(&value, tensor.data, sizeof(value));
    return value;
  }
  static constexpr const char* index_name = "model.safetensors.index.json";
  static constexpr const char* good_index =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})";
  TempDirectory temp;
};

TEST_F(ShardedTest, TensorsAreFoundInTheShardsThatTheIndexNames) {
  const SafeTensors tensors = open(good_index);
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(first(tensors.get("a", Shape{1})), 1.0F);
  EXPECT_EQ(first(tensors.get("b", Shape{1})), 2.0F);
  EXPECT_FALSE(tensors.has("x"));  // in a shard, but not in the index
  expect_error<FileError>([&] { tensors.get("x", Shape{1}); }, (temp.path() / index_name).string(),
                          {"\"x\"", "no tensor"});
  expect_error<FileError>([&] { tensors.get("b", Shape{2}); },
                          (temp.path() / "2.safetensors").string(), {"\"b\"", "[1]", "[2]"});
}

TEST_F(ShardedTest, SingleFileWinsOverTheIndex) {
  temp.write("model.safetensors",
             file_of(R"({"a":)" + tensor("F32", "[1]", "[0,4]") + "}", floats({7})));
  const SafeTensors tensors = open(good_index);
  EXPECT_EQ(first(tensors.get("a", Shape{1})), 7.0F);
  EXPECT_FALSE(tensors.has("b"));
}

TEST_F(ShardedTest, ShardMayBeASymbolicLinkAsInADownloadCache) {
  const TempDirectory blobs;
  std::filesystem::rename(temp.path() / "2.safetensors", blobs.path() / "blob");
  std::filesystem::create_symlink(blobs.path() / "blob", temp.path() / "2.safetensors");
  EXPECT_EQ(first(open(good_index).get("b", Shape{1})), 2.0F);
}

TEST_F(ShardedTest, HostileIndicesAreRefusedWithAnErrorThatNamesFileAndCause) {
  const TempDirectory outside;
  const std::string target =
      outside
          .write("o.safetensors",
                 file_of(R"({"a":)" + tensor("F32", "[1]", "[0,4]") + "}", floats({5})))
          .string();
  const std::string up = "../" + outside.path().filename().string() + "/o.safetensors";
  ASSERT_TRUE(std::filesystem::exists(temp.path() / up));
  const auto map = [](const std::string& value) { return R"({"weight_map":{"a":)" + value + "}}"; };
  struct Case {
    const char* name;
    std::string index;
    std::vector<std::string_view> says;
  };
  const std::vector<Case> cases = {
      {"empty", "", {"not valid JSON"}},
      {"array", "[]", {"top level is []", "object"}},
      {"no weight_map", "{}", {"weight_map is missing", "object"}},
      {"null weight_map", R"({"weight_map":null})", {"weight_map is null"}},
      {"weight_map an array", R"({"weight_map":[1]})", {"weight_map is [1]", "object"}},
      {"shard a number", map("1"), {"\"a\"", "into 1", "name of a file"}},
      {"shard null", map("null"), {"\"a\"", "null"}},
      {"shard above the directory", map('"' + up + '"'), {"\"a\"", "../", "in the directory"}},
      {"shard by absolute path", map('"' + target + '"'), {"\"a\"", "in the directory"}},
      {"shard in a sub-directory", map(R"("d/../1.safetensors")"), {"\"a\"", "in the directory"}},
      {"shard is the parent", map(R"("..")"), {"\"a\"", "in the directory"}},
      {"shard is the directory", map(R"(".")"), {"\"a\"", "in the directory"}},
      {"shard without a name", map(R"("")"), {"\"a\"", "in the directory"}},
      {"NUL in the name", map(R"("1.safetensors\u0000x")"), {"\"a\"", "in the directory"}},
      {"missing shard", map(R"("3.safetensors")"), {"\"a\"", "3.safetensors", "missing"}},
      {"tensor in another shard",
       map(R"("2.safetensors")"),
       {"\"a\"", "2.safetensors", "does not"}},
      {"tensor twice",
       R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})",
       {"\"a\"", "twice"}},
      {"deep", R"({"weight_map":)" + std::string(100'000, '['), {"64 deep"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string file = temp.write(index_name, c.index).string();
    expect_error<FileError>([&] { SafeTensors::open(temp.path()); }, file + ": ", c.says);
  }
}

TEST_F(ShardedTest, HeadersOfAllShardsTogetherAreLimited) {
  std::string header = "{" + std::string(60'000'000, ' ') + "}";
  temp.write("1.safetensors",
             file_of(header.replace(1, 60, R"("a":)" + tensor("F32", "[0]", "[0,0]"))));
  for (const char* other : {"2.safetensors", "3.safetensors"}) {
    std::filesystem::remove(temp.path() / other);
    std::filesystem::create_symlink(temp.path() / "1.safetensors", temp.path() / other);
  }
  const std::string index =
      temp.write(index_name, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})")
          .string();
  expect_error<FileError>(
      [&] { SafeTensors::open(temp.path()); }, index + ": ",
      {"headers of its shards", "bytes up to \"2.safetensors\"", "at most 100000000 of all"});
}

TEST_F(ShardedTest, BrokenShardIsNamed) {
  const std::string shard = temp.write("2.safetensors", "123").string();
  expect_error<FileError>([&] { open(good_index); }, shard + ": ", {"3 bytes"});
}

TEST(SafeTensorsBundledTest, BundledModelHasTheTensorsOfItsConfig) {
  const SafeTensors tensors = SafeTensors::open(TOPKV_SOURCE_DIR "/models/needle-14m");
  EXPECT_EQ(tensors.names().size(), 74U);  // 9 per layer, embedding and last norm
  const SafeTensors::Tensor embedding = tensors.get("model.embed_tokens.weight", Shape{4096, 384});
  EXPECT_EQ(embedding.dtype, DType::bf16);
  std::vector<float> values(4096 * 384);
  to_float(embedding.data, embedding.dtype, 4096 * 384, values.data());
  EXPECT_EQ(first_not_finite(values.data(), 4096 * 384), -1);
  for (int layer = 0; layer < 8; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    tensors.get(prefix + ".self_attn.k_proj.weight", Shape{128, 384});
    tensors.get(prefix + ".mlp.down_proj.weight", Shape{384, 1024});
  }
}

}  // namespace
}  // namespace topkv
