// Files that were damaged, cut off or made to do harm: each is refused, in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "src/context/file/file_format.h"
#include "src/core/io/checksum.h"
#include "src/core/io/open_file.h"
#include "tests/support/context_file_case.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::answers;
using test::bytes_of_file;
using test::saved_context;

AttentionShape small() { return {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 32}; }

const std::vector<std::string>& stored_indices() {
  static const std::vector<std::string> all = {"codes:k=16,v=8", "mean", "ivf:size=32,share=32"};
  return all;
}

/// A file's bytes, to be changed and written back.
class Changed {
 public:
  explicit Changed(const TempDirectory& folder, std::int64_t tokens = 40,
                   const std::vector<std::string>& indices = stored_indices(), KvDType dtype = {},
                   const std::vector<float>& key_bias = {}, const AttentionShape& shape = small())
      : path_(folder.path() / "c.tkv") {
    const auto context = saved_context(shape, tokens, dtype, indices, key_bias);
    ContextOrigin origin{.model = "m", .made_with = "t"};
    for (Token t = 0; t < tokens; ++t) origin.tokens.push_back(t);
    save_context(*context, path_, origin);
    whole_ = bytes_of_file(path_);
    table_ = FileTable::parse(ReadableFile(path_));
  }

  const std::filesystem::path& path() const { return path_; }
  const std::string& whole() const { return whole_; }
  const FileTable& table() const { return table_; }

  void write(const std::string& bytes) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  /// With other bytes of a section, and the checksums that belong to them: what somebody would
  /// write who knows the format. Sizes may change.
  void write_with(std::size_t number, const std::string& content) const {
    std::vector<std::string> all = contents();
    all[number] = content;
    write_all(table_, all);
  }
  /// Likewise with other sections, whose sizes are those of `contents`.
  void write_all(FileTable table, const std::vector<std::string>& contents) const {
    for (std::size_t i = 0; i < contents.size(); ++i)
      table.sections[i].bytes = std::ssize(contents[i]);
    std::string bytes(static_cast<std::size_t>(table.place()), '\0');
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const Section& section = table.sections[i];
      std::copy(contents[i].begin(), contents[i].end(), bytes.begin() + section.at);
      for (std::int64_t b = 0; b < FileTable::blocks(section.bytes); ++b)
        table.checksum(section, b) =
            checksum(contents[i].data() + b * FileTable::block, FileTable::block_bytes(section, b));
    }
    const auto head = table.encode(std::ssize(bytes));
    std::memcpy(bytes.data(), head.data(), head.size());
    write(bytes);
  }
  std::string content(std::size_t number) const {
    const Section& section = table_.sections[number];
    return whole_.substr(static_cast<std::size_t>(section.at),
                         static_cast<std::size_t>(section.bytes));
  }
  /// Of all sections.
  std::vector<std::string> contents() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < table_.sections.size(); ++i) all.push_back(content(i));
    return all;
  }

 private:
  std::filesystem::path path_;
  std::string whole_;
  FileTable table_;
};

void expect_refused(const Changed& file, const std::string& what) {
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { load_context(file.path()); }, [&] { verify_context(file.path()); }}) {
    try {
      call();
      FAIL() << what << ": nothing was thrown";
    } catch (const FileError& error) {
      const std::string text = error.what();
      ASSERT_TRUE(text.starts_with(file.path().string())) << text;
      ASSERT_EQ(text.find('\n'), text.npos) << text;
    }
  }
}

TEST(DamagedContextFile, EveryTruncationIsTold) {
  const TempDirectory folder;
  const Changed file(folder);
  for (std::size_t size = file.whole().size(); size-- > 0;) {
    std::filesystem::resize_file(file.path(), size);
    ASSERT_THROW(load_context(file.path()), FileError) << size;
  }
  file.write(file.whole() + '\0');
  expect_refused(file, "a byte more");
}

TEST(DamagedContextFile, EveryFlippedBitIsTold) {
  const TempDirectory folder;
  const Changed file(folder);
  // All bits of the table and of short sections; of others, and of what is 0 up to the next page,
  // one of each byte.
  std::vector<bool> all(file.whole().size(), false);
  std::fill_n(all.begin(), file.table().bytes(), true);
  for (const Section& section : file.table().sections) {
    if (section.bytes < 1024) std::fill_n(all.begin() + section.at, section.bytes, true);
  }
  std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t i, int byte) {
    bytes.seekp(static_cast<std::streamoff>(i));
    bytes.put(static_cast<char>(byte));
    bytes.flush();
  };
  for (std::size_t i = 0; i < file.whole().size(); ++i) {
    const int byte = file.whole()[i];
    for (int bit = all[i] ? 0 : static_cast<int>(i % 8); bit < 8; bit += all[i] ? 1 : 8) {
      put(i, byte ^ (1 << bit));
      ASSERT_THROW(load_context(file.path()), FileError) << "byte " << i << ", bit " << bit;
    }
    put(i, byte);
  }
  EXPECT_EQ(load_context(file.path()).context->tokens(), 40);
}

TEST(DamagedContextFile, SectionsThatAreNotWhereTheyShouldBe) {
  const TempDirectory folder;
  const Changed file(folder);
  const std::vector<std::string> contents = file.contents();
  for (std::size_t i = 0; i < contents.size(); ++i) {
    FileTable table = file.table();
    std::vector<std::string> fewer = contents;
    table.sections.erase(table.sections.begin() + static_cast<std::ptrdiff_t>(i));
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    file.write_all(table, fewer);
    const SectionKind kind = file.table().sections[i].kind;
    if (kind == SectionKind::tokens) {  // these may be missing, as a whole
      EXPECT_TRUE(load_context(file.path()).origin.tokens.empty());
    } else if (kind == SectionKind::queries) {
      EXPECT_EQ(load_context(file.path()).context->memory().queries_bytes, 0);
    } else {
      expect_refused(file, "without " + file.table().sections[i].name());
    }
    table = file.table();
    table.sections.insert(table.sections.begin() + static_cast<std::ptrdiff_t>(i),
                          file.table().sections[i]);
    std::vector<std::string> more = contents;
    more.insert(more.begin() + static_cast<std::ptrdiff_t>(i), contents[i]);
    file.write_all(table, more);
    expect_refused(file, "twice " + file.table().sections[i].name());
    file.write_with(i, contents[i] + std::string(8, '\0'));
    if (file.table().sections[i].kind != SectionKind::meta)
      expect_refused(file, "8 bytes more of " + file.table().sections[i].name());
    if (contents[i].size() >= 8) {
      file.write_with(i, contents[i].substr(0, contents[i].size() - 8));
      expect_refused(file, "8 bytes less of " + file.table().sections[i].name());
    }
  }
}

TEST(DamagedContextFile, SectionsThatAreNotKnown) {
  const TempDirectory folder;
  const Changed file(folder);
  FileTable table = file.table();
  std::vector<std::string> contents = file.contents();
  table.sections.push_back({.kind = static_cast<SectionKind>(99), .required = false, .bytes = 5});
  contents.push_back("hello");
  file.write_all(table, contents);
  EXPECT_EQ(load_context(file.path()).context->tokens(), 40);
  verify_context(file.path());
  std::string bytes = bytes_of_file(file.path());
  bytes[bytes.size() - FileTable::page] = 'j';  // of what is not read either
  file.write(bytes);
  EXPECT_THROW(verify_context(file.path()), FileError);
  table.sections.back().required = true;
  file.write_all(table, contents);
  expect_error<Unsupported>([&] { load_context(file.path()); }, file.path().string(),
                            {"kind 99", "does not know"});
  // Anywhere but before the description and amid the rows, which are mapped as one.
  table.sections.pop_back();
  contents.pop_back();
  for (const std::uint32_t kind : {0U, 13U, 99U}) {
    for (std::size_t at = 0; at <= file.table().sections.size(); ++at) {
      FileTable more = table;
      more.sections.insert(more.sections.begin() + static_cast<std::ptrdiff_t>(at),
                           {.kind = static_cast<SectionKind>(kind), .required = false, .bytes = 5});
      std::vector<std::string> with = contents;
      with.insert(with.begin() + static_cast<std::ptrdiff_t>(at), "hello");
      file.write_all(more, with);
      const bool amid =
          at < table.sections.size() && table.sections[at].kind == SectionKind::values;
      if (at == 0 || amid) {
        expect_refused(file, std::to_string(at));
      } else {
        EXPECT_EQ(load_context(file.path()).context->tokens(), 40) << at;
        verify_context(file.path());
      }
    }
  }
}

TEST(DamagedContextFile, BytesOfAnApplicationOutOfPlace) {
  const TempDirectory folder;
  const Changed file(folder);
  int accepted = 0;
  for (std::size_t at = 1; at <= file.table().sections.size(); ++at) {
    for (const int count : {1, 2}) {
      FileTable table = file.table();
      std::vector<std::string> contents = file.contents();
      for (int i = 0; i < count; ++i) {
        table.sections.insert(table.sections.begin() + static_cast<std::ptrdiff_t>(at),
                              {.kind = SectionKind::application, .bytes = 5});
        contents.insert(contents.begin() + static_cast<std::ptrdiff_t>(at), "hello");
      }
      file.write_all(table, contents);
      const bool behind_rows =
          table.sections[at - 1].kind == SectionKind::values &&
          (at + 1 == table.sections.size() || table.sections[at + 1].kind != SectionKind::keys);
      if (count == 1 && behind_rows) {
        EXPECT_EQ(load_context(file.path()).origin.application_data.size(), 5U);
        verify_context(file.path());
        ++accepted;
      } else {
        expect_refused(file, fmt::format("{} at {}", count, at));
      }
    }
  }
  EXPECT_EQ(accepted, 1);
}

TEST(DamagedContextFile, DescriptionsThatAreNotOfAContext) {
  const TempDirectory folder;
  const Changed file(folder);
  const std::string text = file.content(0);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const auto at = changed.find(from);
    EXPECT_NE(at, changed.npos) << from;
    changed.replace(at, from.size(), to);
    file.write_with(0, changed);
    expect_refused(file, to);
  };
  file.write_with(0, "");
  expect_refused(file, "no text");
  file.write_with(0, "[1]");
  expect_refused(file, "a list");
  for (const std::string value : {"39", "41", "-1", "1.5", "\"40\"", "9223372036854775807",
                                  "99999999999999999999", "1e300", "null", "4611686018427387904"})
    with("\"tokens\": 40", "\"tokens\": " + value);
  for (const std::string value : {"0", "2", "1048577", "-1", "true"}) {
    with("\"layers\": 1", "\"layers\": " + value);
    with("\"kv_heads\": 1", "\"kv_heads\": " + value + (value == "2" ? "000" : ""));
    with("\"head_dim\": 32", "\"head_dim\": " + value);
  }
  with("\"q_heads\": 2", "\"q_heads\": 0");
  with("\"scale\": 0", "\"scale\": -1, \"x\": 0");
  with("\"softcap\": 0", "\"softcap\": 1e39, \"x\": 0");
  with("\"kv_dtype\": \"bf16\"", "\"kv_dtype\": \"q8\"");
  with("\"kv_dtype\": \"bf16\"", "\"kv_dtype\": \"f32\"");
  with("\"kv_dtype\": \"bf16\"", "\"kv_dtype\": \"nothing\"");
  with("\"tokens\": 40", "\"tokens\": 40, \"tokens\": 40");
  with("\"chunk_len\": 0", "\"chunk_len\": -1");
  with("\"chunk_len\": 0", "\"sliding_window\": [1, 2], \"chunk_len\": 0");
  with("\"chunk_len\": 0", "\"sliding_window\": [-1], \"chunk_len\": 0");
  with("\"chunk_len\": 0", "\"sliding_window\": {}, \"chunk_len\": 0");
  for (const std::string value : {"-1", "1048577", "[4]", "3"})
    with("\"chunk_len\": 0",
         "\"sliding_window\": [8], \"sliding_kv_heads\": " + value + ", \"chunk_len\": 0");
  for (const std::string value : {"-1", "1048577", "[4]", "16"})  // 16: without a scale
    with("\"chunk_len\": 0",
         "\"sliding_window\": [8], \"sliding_head_dim\": " + value + ", \"chunk_len\": 0");
  for (const std::string value : {"[1]", "[-1]", "[0, 0]", "[0.5]", "{}", "0"})
    with("\"chunk_len\": 0", "\"row_layer\": " + value + ", \"chunk_len\": 0");
  for (const std::string value : {"[1]", "[-1]", "[0, 1]", "[1e300]", "{}", "[1099511627777]"})
    with("\"chunk_len\": 0", "\"state_size\": " + value + ", \"chunk_len\": 0");
  for (const std::string value : {"[1]", "[-1]", "[0, 0]", "[0.5]", "{}", "0"})
    with("\"chunk_len\": 0", "\"first_rows\": " + value + ", \"chunk_len\": 0");
  for (const std::string value : {"[33]", "[32]", "[41]", "[1099511627776]"})  // no rows are there
    with("\"chunk_len\": 0",
         "\"sliding_window\": [8], \"first_rows\": " + value + ", \"chunk_len\": 0");
  // Heads that do not serve "mean": of a later version, it may be, but what they hold does not fit.
  const auto with_codes = [&](const std::string& spec) {
    std::string changed = text;
    changed.replace(changed.find("codes:k=16,v=8"), 14, spec);
    file.write_with(0, changed);
    expect_error<Unsupported>([&] { load_context(file.path()); }, file.path().string(),
                              {"does not know", "(mean)"});
    expect_error<FileError>([&] { verify_context(file.path()); }, file.path().string(), {"codes"});
  };
  with_codes("codes:k=8,v=8");
  with("codes:k=16,v=8", "codes:k=16,v=2");
  with("codes:k=16,v=8", "hnsw:M=8,efc=60,ef=0");
  with("codes:k=16,v=8", std::string(1025, 'x'));
  with("\"heads_of\": 1", "\"heads_of\": 2");
  with("\"heads_of\": 1", "\"heads_of\": -2");
  with("\"heads_of\": 1", "\"heads_of\": \"codes\"");
  with("\"writer\": ", "\"writter\": ");
  // As many sections as a file of any size could not have.
  file.write_with(0, [&] {
    std::string huge = text;
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"\"tokens\": 40", "\"tokens\": 0"},
             {"\"layers\": 1", "\"layers\": 1048576"},
             {"\"q_heads\": 2", "\"q_heads\": 1048576"},
             {"\"kv_heads\": 1", "\"kv_heads\": 1048576"},
             {"\"head_dim\": 32", "\"head_dim\": 1"}})
      huge.replace(huge.find(from), from.size(), to);
    return huge;
  }());
  expect_refused(file, "2^41 sections");
  with("\"spec\": \"mean\"", "\"spec\": \"exact\"");
}

TEST(DamagedContextFile, RecurrentStatesThatAreNotOfTheContext) {
  const TempDirectory folder;
  AttentionShape shape = small();
  shape.layers = 4;
  shape.row_layer = {0, 1, 0, 3};
  shape.state_size = {0, 0, 0, 5};
  const Changed file(folder, 40, {"mean"}, {}, {}, shape);
  EXPECT_EQ(load_context(file.path()).context->state(3)[4], test::state_after(shape, 3, 40)[4]);
  const auto found = std::ranges::find(file.table().sections, SectionKind::state, &Section::kind);
  const auto number = static_cast<std::size_t>(found - file.table().sections.begin());
  const auto section = [](const std::vector<std::int64_t>& tokens, std::vector<float> values) {
    const auto count = std::ssize(tokens);
    std::string bytes(8 + tokens.size() * 8 + values.size() * 4, '\0');
    std::memcpy(bytes.data(), &count, 8);
    if (count > 0) std::memcpy(bytes.data() + 8, tokens.data(), tokens.size() * 8);
    std::memcpy(bytes.data() + 8 + tokens.size() * 8, values.data(), values.size() * 4);
    return bytes;
  };
  const auto with = [&](const std::string& bytes, const char* what) {
    file.write_with(number, bytes);
    expect_refused(file, what);
  };
  const std::vector<float> one(5, 1.0F);
  const std::vector<float> two(10, 1.0F);
  with(section({}, {}), "no state");
  with(section({39}, one), "of another token");
  with(section({40, 41}, two), "beyond the last token");
  with(section({40, 40}, two), "a token twice");
  with(section({0, 40}, two), "of no token");
  with(section({-1, 40}, two), "of a token before the first");
  with(section({20, 40}, one), "values are missing");
  with(section({40}, two), "values that nothing names");
  with(section({40}, {1, 1, 1, 1, std::numeric_limits<float>::infinity()}), "infinity");
  with(std::string(8, '\x7f'), "more tokens than bytes");
  file.write_with(number, section({20, 40}, two));
  verify_context(file.path());
  EXPECT_EQ(load_context(file.path()).context->memory().states_bytes, 2 * 5 * 4);
  for (const std::string size : {"4", "6", "1099511627776"}) {
    std::string text = file.content(0);
    const auto at = text.find("5", text.find("state_size"));
    file.write_with(0, text.replace(at, 1, size));
    expect_refused(file, "state_size " + size);
  }
}

/// The same of indices, each with sections for every layer and head, and a place in memory for
/// layers with windows, which have none: 20,000 layers of 1,000 would have taken gigabytes.
TEST(DamagedContextFile, IndicesThatHaveFewerSectionsThanTheyNeed) {
  const TempDirectory folder;
  const Changed file(folder);
  constexpr int layers = 20000;
  std::string windows = "\"sliding_window\": [1";
  std::string many = "[";
  for (int i = 1; i < layers; ++i) windows += ",1";
  for (int i = 1; i <= 1000; ++i)
    many += (i > 1 ? "," : "") + ("{\"spec\":\"quest:page=" + std::to_string(i)) + "\"}";
  FileTable table;
  table.sections.push_back({.kind = SectionKind::meta});
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (const SectionKind kind : {SectionKind::keys, SectionKind::values})
      table.sections.push_back({.kind = kind, .layer = layer});
  }
  for (const std::string& of_layers : {std::string(), windows + "], "}) {
    std::string text = file.content(0);
    const auto set = [&](const std::string& from, const std::string& to) {
      ASSERT_NE(text.find(from), text.npos) << from;
      text.replace(text.find(from), from.size(), to);
    };
    set("\"tokens\": 40", "\"tokens\": 0");
    set("\"layers\": 1", of_layers + "\"layers\": " + std::to_string(layers));
    const std::size_t list = text.find('[', text.find("\"indices\""));
    text.replace(list, text.find(']', list) - list, many);
    std::vector<std::string> contents(table.sections.size());
    contents.front() = text;
    file.write_all(table, contents);
    expect_error<FileError>([&] { load_context(file.path()); }, file.path().string(),
                            {"1000 indices of 20000 layers", "40001 sections"});
  }
}

/// Heads of an index that do not serve another, one after the other in a chain.
TEST(DamagedContextFile, HeadsThatDoNotServeAnIndex) {
  const TempDirectory folder;
  const Changed file(folder);
  std::string text = file.content(0);
  const std::size_t list = text.find('[', text.find("\"indices\""));
  std::string chain = "[{\"spec\":\"exact\"}";
  for (int i = 1; i < 1000; ++i)
    chain += ",{\"spec\":\"quest:page=" + std::to_string(i) +
             "\",\"heads_of\":" + std::to_string(i - 1) + "}";
  text.replace(list, text.find(']', list) - list, chain);
  FileTable table = file.table();
  std::vector<std::string> contents = file.contents();
  contents[0] = text;
  for (std::size_t i = table.sections.size(); i-- > 0;) {
    if ((table.sections[i].kind != SectionKind::index &&
         table.sections[i].kind != SectionKind::tail) ||
        table.sections[i].index == 0)
      continue;
    table.sections.erase(table.sections.begin() + static_cast<std::ptrdiff_t>(i));
    contents.erase(contents.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (int i = 0; i < 40000; ++i) {
    table.sections.push_back({.kind = SectionKind::index, .index = 999});
    contents.emplace_back();
  }
  file.write_all(table, contents);
  EXPECT_THROW(load_context(file.path()), Unsupported);
  verify_context(file.path());
  EXPECT_EQ(context_file_info(file.path()).indices, std::vector<std::string>{"exact"});
  EXPECT_EQ(load_context(file.path(), {.indices = {{"exact"}}}).context->tokens(), 40);
}

/// What a later version may write: all but such an index is as before.
TEST(DamagedContextFile, IndicesThatAreNotKnown) {
  const TempDirectory folder;
  const Changed file(folder, 40, {"codes:k=16,v=8", "mean", "ivf:size=32,share=32", "h2o"});
  const auto whole = load_context(file.path()).context;
  const std::string text = file.content(0);
  for (const char* spec : {"nothing", "codes:k=16", "codes:k=16,v=8,later=1",
                           "hnsw:M=1,efc=60,ef=0", "codes:k=16,v=8\\u0000", "\\n"}) {
    std::string changed = text;
    changed.replace(changed.find("codes:k=16,v=8"), 14, spec);
    file.write_with(0, changed);
    // Of what is known, too, "mean" has the heads of the one that is not.
    expect_error<Unsupported>([&] { load_context(file.path()); }, file.path().string(),
                              {"does not know", "exact, ivf:size=32,share=32, h2o"});
    const ContextFileInfo info = context_file_info(file.path());
    EXPECT_EQ(info.indices, (std::vector<std::string>{"exact", "ivf:size=32,share=32", "h2o"}));
    ASSERT_EQ(info.unknown_indices.size(), 2U);
    EXPECT_EQ(info.unknown_indices[0].find('\n'), std::string::npos);
    EXPECT_EQ(info.unknown_indices[1], "mean");
    verify_context(file.path());
    const auto loaded = load_context(file.path(), {.indices = info.indices}).context;
    EXPECT_EQ(loaded->indices(), info.indices);
    for (const std::string& index : info.indices) {
      const auto got = answers(loaded, index, "none");
      const auto want = answers(whole, index, "none");
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0) << index;
    }
    // It may have sections as it likes, behind the rows; what they hold is checked by its sums.
    FileTable table = file.table();
    std::vector<std::string> contents = file.contents();
    contents[0] = changed;
    const auto at =
        std::ranges::find_if(table.sections,
                             [](const Section& section) {
                               return section.kind == SectionKind::index && section.index == 1;
                             }) -
        table.sections.begin();
    table.sections.insert(table.sections.begin() + at,
                          {.kind = SectionKind::tail, .index = 1, .layer = 9, .bytes = 5});
    contents.insert(contents.begin() + at, "hello");
    file.write_all(table, contents);
    verify_context(file.path());
    EXPECT_EQ(load_context(file.path(), {.indices = info.indices}).context->tokens(), 40);
    std::string bytes = bytes_of_file(file.path());
    bytes[bytes.find("hello")] = 'j';
    file.write(bytes);
    EXPECT_THROW(verify_context(file.path()), FileError);
    table.sections.insert(table.sections.begin() + 1,
                          {.kind = SectionKind::index, .index = 1, .bytes = 0});
    contents.insert(contents.begin() + 1, "");
    file.write_all(table, contents);
    expect_refused(file, "before the rows");
  }
}

/// bfloat16 is kept as whole numbers, which look like any.
TEST(DamagedContextFile, LearnedNumbersThatAreNotFinite) {
  const TempDirectory folder;
  const Changed file(folder, 600, {"quest:page=16", "sparq:r=16,v=1", "lowrank:r=16"});
  int changed = 0;
  for (std::size_t i = 0; i < file.table().sections.size(); ++i) {
    if (file.table().sections[i].kind != SectionKind::index) continue;
    if (file.table().sections[i].bytes == 0) continue;  // exact
    for (const char last : {'\x7f', '\xff'}) {          // NaN, -NaN
      std::string content = file.content(i);
      content[content.size() - 2] = '\xc0';
      content[content.size() - 1] = last;
      file.write_with(i, content);
      expect_refused(file, file.table().sections[i].name());
      ++changed;
    }
    std::string infinite = file.content(i);
    infinite[infinite.size() - 2] = '\x80';
    infinite[infinite.size() - 1] = '\x7f';
    file.write_with(i, infinite);
    expect_refused(file, file.table().sections[i].name());
  }
  EXPECT_EQ(changed, 6);
}

/// Of axes that have no levels, too.
TEST(DamagedContextFile, VariancesBelowZero) {
  const TempDirectory folder;
  const Changed file(folder, 600, {"codes:k=4,v=8"});
  const auto section = static_cast<std::size_t>(
      std::ranges::find_if(
          file.table().sections,
          [](const Section& s) { return s.kind == SectionKind::index && s.bytes > 0; }) -
      file.table().sections.begin());
  std::string content = file.content(section);
  constexpr std::size_t dim = 32;
  // dims, scale, mean, axes and variances; bytes of a code; the length of what levels leave.
  const std::size_t left = 8 + 4 + (8 + dim * 4) + (8 + dim * dim * 4) + (8 + dim * 8) + 8 + 8;
  std::int64_t count = 0;
  std::memcpy(&count, &content[left - 8], sizeof count);
  ASSERT_EQ(count, std::int64_t{dim});
  const float below = -1;
  std::memcpy(&content[left + (dim - 1) * 4], &below, sizeof below);
  file.write_with(section, content);
  expect_error<FileError>([&] { load_context(file.path()); }, file.path().string(),
                          {"variance is below 0"});
}

TEST(DamagedContextFile, RowsThatAreNotFinite) {
  for (const char* dtype : {"f32", "f16", "bf16", "q8", "q4"}) {
    const TempDirectory folder;
    const Changed file(folder, 40, {}, KvDType::parse(dtype));
    for (std::size_t i = 0; i < file.table().sections.size(); ++i) {
      const SectionKind kind = file.table().sections[i].kind;
      if (kind != SectionKind::keys && kind != SectionKind::values) continue;
      std::string content = file.content(i);
      const std::size_t at = content.size() / 40 * 17;  // the row of token 17
      content[at] = content[at + 1] = content[at + 2] = content[at + 3] = '\x7f';
      if (std::string(dtype) == "f32") content[at + 2] = '\xff';
      if (std::string(dtype) == "bf16") content[at] = '\xff', content[at] = '\x80';
      if (std::string(dtype) == "bf16") content[at + 1] = '\x7f';
      file.write_with(i, content);
      expect_error<FileError>([&] { load_context(file.path()); }, file.path().string(),
                              {"token 17", "finite"});
      expect_error<FileError>([&] { verify_context(file.path()); }, file.path().string(),
                              {"token 17", "finite"});
    }
  }
}

AttentionShape indexed() {
  AttentionShape shape = small();
  shape.layers = 2;
  shape.indexer = IndexerShape{.dim = 24, .heads = 2, .tokens_per_key = 4, .top = 3};
  shape.indexer_layer = {0, 0};
  return shape;
}

TEST(DamagedContextFile, IndexKeysThatAreNotOfTheContext) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TempDirectory folder;
    AttentionShape shape = indexed();
    shape.indexer->dtype = dtype;
    const Changed file(folder, 43, {"mean"}, {}, {}, shape);
    ASSERT_EQ(load_context(file.path()).context->memory().rows_bytes, shape.context_bytes({}, 43));
    const auto found =
        std::ranges::find(file.table().sections, SectionKind::index_keys, &Section::kind);
    const auto number = static_cast<std::size_t>(found - file.table().sections.begin());
    ASSERT_EQ(found->bytes, 10 * vector_bytes(dtype, 24));
    std::string content = file.content(number);
    const std::size_t at = content.size() / 10 * 7;
    for (std::size_t i = 0; i < 4; ++i) content[at + i] = i % 2 == 0 ? '\x80' : '\x7f';
    if (dtype == DType::f32) content[at + 2] = '\xff';
    file.write_with(number, content);
    expect_error<FileError>([&] { load_context(file.path()); }, file.path().string(),
                            {"index keys of layer 0", "key 7", "finite"});
    expect_error<FileError>([&] { verify_context(file.path()); }, file.path().string(),
                            {"index keys of layer 0", "key 7", "finite"});
    load_context(file.path(), {.mapped = true});
    file.write_with(number, file.content(number).substr(1));
    expect_refused(file, "a byte less");
    std::vector<std::string> contents = file.contents();
    FileTable table = file.table();
    table.sections.erase(table.sections.begin() + static_cast<std::ptrdiff_t>(number));
    contents.erase(contents.begin() + static_cast<std::ptrdiff_t>(number));
    file.write_all(table, contents);
    expect_refused(file, "no index keys");
  }
}

TEST(DamagedContextFile, IndexersThatAreNotOfTheContext) {
  const TempDirectory folder;
  const Changed file(folder, 43, {"mean"}, {}, {}, indexed());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = file.content(0);
    ASSERT_NE(text.find(from), text.npos) << text;
    file.write_with(0, text.replace(text.find(from), from.size(), to));
    expect_refused(file, to);
  };
  with("\"dim\": 24", "\"dim\": 25");
  with("\"dim\": 24", "\"dim\": 0");
  with("\"tokens_per_key\": 4", "\"tokens_per_key\": 1");
  with("\"tokens_per_key\": 4", "\"tokens_per_key\": 0");
  with("\"choices\": 1", "\"choices\": 3");
  with("\"local_blocks\": 0", "\"local_blocks\": 4");
  with("\"score\": \"relu\"", "\"score\": \"cosine\"");
  with("\"dtype\": \"f32\"", "\"dtype\": \"q8\"");
  with("\"indexer\": {", "\"other\": {");
}

/// What an index or a tail has learned, changed at random with checksums that fit: it is refused,
/// or what it makes of it is a search as any, however bad.
TEST(DamagedContextFile, WhatWasLearnedMayBeAnything) {
  const TempDirectory folder;
  std::vector<std::string> indices = stored_indices();
  for (const char* more :
       {"quest:page=16", "sparq:r=16,v=1", "lowrank:r=16", "h2o",
        "retroinfer:size=16,segment=1024,v=1", "squeezed:c=5,coarse=1,s=80", "pages:size=16",
        "hnsw:M=4,efc=60,ef=0", "faiss:HNSW4;ef=0,efc=40", "faiss:IVF,SQ8;nprobe=0", "faiss:PQ8x4"})
    indices.emplace_back(more);
  const Changed file(folder, 600, indices);
  std::mt19937 random(5);
  int loaded = 0;
  int refused = 0;
  for (std::size_t i = 0; i < file.table().sections.size(); ++i) {
    const SectionKind kind = file.table().sections[i].kind;
    if (kind != SectionKind::index && kind != SectionKind::tail && kind != SectionKind::queries)
      continue;
    const std::string content = file.content(i);
    if (content.empty()) continue;
    for (int round = 0; round < 60; ++round) {
      std::string changed = content;
      for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
        // Lengths and small numbers lie at the beginning: half of the changes go there.
        const std::size_t at =
            random() %
            (random() % 2 == 0 ? changed.size() : std::min<std::size_t>(changed.size(), 64));
        const char values[] = {0, 1, '\x7f', '\x80', '\xff', static_cast<char>(random())};
        changed[at] = values[random() % 6];
      }
      file.write_with(i, changed);
      try {
        const auto context = load_context(file.path()).context;
        ++loaded;
        for (const char* index :
             {"codes:k=16,v=8", "ivf:size=32,share=32", "quest:page=16", "sparq:r=16,v=1",
              "lowrank:r=16", "h2o", "retroinfer:size=16,segment=1024,v=1",
              "squeezed:c=5,coarse=1,s=80", "hnsw:M=4,efc=60,ef=0", "faiss:HNSW4;ef=0,efc=40",
              "faiss:IVF,SQ8;nprobe=0", "faiss:PQ8x4"})
          answers(context, index, "");
        answers(context, "exact", "pages:size=16");
        answers(context, "exact", "mean");
        if (kind == SectionKind::queries) context->with_index("h2o");
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 20);
}

/// Each number that a walk over a graph follows, with one that it must not.
TEST(DamagedContextFile, GraphsThatLeadOutOfWhatThereIs) {
  const TempDirectory folder;
  constexpr std::int64_t nodes = 100;
  const Changed file(folder, nodes, {"hnsw:M=4,efc=60,ef=0"});
  const auto& sections = file.table().sections;
  const auto graph = static_cast<std::size_t>(
      std::ranges::find_if(
          sections, [](const Section& s) { return s.kind == SectionKind::index && s.index == 1; }) -
      sections.begin());
  ASSERT_LT(graph, sections.size());
  const std::string content = file.content(graph);
  const auto number = [&](std::size_t at, auto value) {
    std::memcpy(&value, content.data() + at, sizeof value);
    return value;
  };
  const std::size_t mean = 4 + 8;  // behind a mark and its length
  const std::size_t square = mean + 32 * 4;
  const std::size_t rows = square + 4 + 8 + nodes * 4 + 8;
  const std::size_t levels = rows + nodes * 4 + 8;
  const std::size_t entry = levels + nodes;
  const std::size_t lengths = entry + 4 + 8;
  const auto lists = static_cast<std::size_t>(number(lengths - 8, std::int64_t{}));
  const std::size_t links = lengths + lists * 2 + 8;
  ASSERT_EQ(number(levels - 8, std::int64_t{}), nodes);
  ASSERT_GT(lists, static_cast<std::size_t>(nodes));  // some have upper floors
  const auto with = [&](std::size_t at, auto value, const std::string& what) {
    std::string changed = content;
    std::memcpy(changed.data() + at, &value, sizeof value);
    ASSERT_NE(changed, content) << what;
    file.write_with(graph, changed);
    expect_refused(file, what);
  };
  with(0, -2.0F, "no mark, and a norm below 0");
  with(4, std::int64_t{31}, "a mean of another dim");
  with(mean, std::numeric_limits<float>::quiet_NaN(), "a mean that is not finite");
  with(square, -1.0F, "a norm below 0");
  with(square + 4, std::int64_t{nodes - 1}, "a place on the sphere is missing");
  with(square + 12, -2.0F, "a scale above 1");
  with(square + 12, 3e38F, "a place beyond float32");
  with(rows, std::uint32_t{nodes}, "a node of no key");
  with(rows, number(rows + 4, std::uint32_t{}), "two nodes of a key");
  with(levels, std::uint8_t{65}, "too many floors");
  with(levels, static_cast<std::uint8_t>(content[levels] + 1), "a floor more than there are lists");
  // Refused before memory is taken for them.
  std::string tall = content;
  std::fill_n(tall.begin() + static_cast<std::ptrdiff_t>(levels), nodes, char{64});
  file.write_with(graph, tall);
  expect_refused(file, "floors of more lists than there are bytes");
  try {
    load_context(file.path());
    FAIL() << "floors of more lists than there are bytes";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("more lists than the data holds"), std::string::npos)
        << error.what();
  }
  with(entry, std::uint32_t{nodes}, "an entry that is no node");
  std::uint32_t low = 0;  // on the ground floor alone
  while (content[levels + low] != 0) ++low;
  with(entry, low, "an entry below the highest floor");
  with(lengths, std::uint16_t{9}, "more links than a list has room for");
  with(lengths, std::uint16_t{0xffff}, "more links than there are");
  with(lengths, static_cast<std::uint16_t>(number(lengths, std::uint16_t{}) - 1),
       "a link too many");
  with(links, std::uint32_t{nodes}, "a link to no node");
  with(links, std::uint32_t{0xffffffff}, "a link to no node");
  // A link of an upper floor to a node that is not on it.
  std::size_t list = 0;
  std::size_t link = 0;
  for (std::uint32_t node = 0; content[levels + node] == 0; ++node)
    link += number(lengths + 2 * list++, std::uint16_t{});
  link += number(lengths + 2 * list++, std::uint16_t{});  // its ground floor
  ASSERT_GT(number(lengths + 2 * list, std::uint16_t{}), 0);
  with(links + 4 * link, low, "a link of a floor to a node below it");
}

TEST(ContextFileDamage, ABiasOfKeysThatCannotBeOneIsRefused) {
  const TempDirectory folder;
  const std::vector<float> bias(3 * 32, 1.5F);
  const Changed file(folder, 40, {}, DType::q4, bias);
  const auto at = static_cast<std::size_t>(
      std::ranges::find(file.table().sections, SectionKind::bias, &Section::kind) -
      file.table().sections.begin());
  ASSERT_LT(at, file.table().sections.size());
  const std::string whole = file.content(at);
  ASSERT_EQ(whole.size(), 3U * 32 * sizeof(float));
  for (const auto& [number, bad] : std::vector<std::pair<std::size_t, float>>{
           {0, NAN}, {40, INFINITY}, {63, 0x1p96F}, {64, 0x1p16F}, {95, -NAN}}) {
    std::string changed = whole;
    std::memcpy(changed.data() + number * sizeof(float), &bad, sizeof bad);
    file.write_with(at, changed);
    expect_refused(file, std::to_string(number));
  }
  file.write_with(at, whole.substr(4));
  expect_refused(file, "too short");
  FileTable table = file.table();
  std::vector<std::string> contents = file.contents();
  table.sections.insert(table.sections.begin() + static_cast<std::ptrdiff_t>(at),
                        table.sections[at]);
  contents.insert(contents.begin() + static_cast<std::ptrdiff_t>(at), whole);
  file.write_all(table, contents);
  expect_refused(file, "two of them");
  // Rows in bf16 have no use for one.
  const TempDirectory other;
  const Changed plain(other, 40, {});
  FileTable more = plain.table();
  std::vector<std::string> all = plain.contents();
  more.sections.insert(more.sections.begin() + 2, {.kind = SectionKind::bias});
  all.insert(all.begin() + 2, whole);
  plain.write_all(more, all);
  expect_refused(plain, "of bf16");
}

}  // namespace
}  // namespace topkv
