// Named bad inputs of the parsers that read bytes: GGUF files, headers of tensors, tables of
// contexts' files and the tensors of quantised matrices, made by writers that share no code with
// the library. Each is refused in one line that names the file, the field, what was found and what
// is allowed. (Texts: bad_inputs_test.cc.)
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/model/weights/quantisation.h"
#include "src/model/weights/safetensors.h"
#include "src/text/files/chat_template_files.h"
#include "tests/fuzz/context_bytes.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/model.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

/// field, found, allowed: what the error names.
void expect_refused(const std::string& name, const std::string& beginning,
                    const std::function<void()>& call, const std::vector<std::string>& parts) {
  SCOPED_TRACE(name);
  std::string text;
  try {
    call();
  } catch (const Error& error) {
    text = error.what();
  }
  ASSERT_FALSE(text.empty()) << "it was taken";
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  EXPECT_LT(text.size(), 1000U) << text;
  EXPECT_TRUE(text.starts_with(beginning)) << text << "\nshould begin with " << beginning;
  ASSERT_EQ(parts.size(), 3U);
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part, beginning.size()), text.npos) << text << "\nshould name " << part;
}

gguf::File small_gguf() {
  Sizes sizes;
  sizes.hidden = 32;
  sizes.head = 16;
  sizes.mlp = 32;
  sizes.vocab = 8;
  return gguf::llama(config_of(sizes), random_tensors(sizes));
}

struct GgufCase {
  const char* name;
  std::function<void(gguf::File&)> change;
  std::vector<std::string> parts;
};

TEST(BadFiles, Gguf) {
  using gguf::File;
  const auto set = [](const gguf::Value& value) { return [value](File& f) { f.set(value); }; };
  const auto without = [](const char* key) { return [key](File& f) { f.erase(key); }; };
  const std::string layers = "llama.block_count";
  const std::vector<GgufCase> cases = {
      {"version 1", [](File& f) { f.version = 1; }, {"version", "1", "2 and 3"}},
      {"of a later version", [](File& f) { f.version = 4; }, {"version", "4", "2 and 3"}},
      {"big-endian", [](File& f) { f.version = 0x03000000; }, {"version", "big-endian", "little"}},
      {"no architecture", without("general.architecture"),
       {"general.architecture", "missing", "a text"}},
      {"an architecture that is a number", set(gguf::number("general.architecture", 5)),
       {"general.architecture", "5", "a text"}},
      {"an architecture that is not known", set(gguf::words("general.architecture", "mamba")),
       {"general.architecture", "\"mamba\"", "llama"}},
      {"no layers", without("llama.block_count"), {layers, "missing", "an integer from 1"}},
      {"layers of 0", set(gguf::number(layers, 0)), {layers, "is 0", "an integer from 1"}},
      {"layers beyond all", set(gguf::number(layers, 4000000000U)),
       {"llama.block_count", "4000000000", "an integer from 1 to 1000"}},
      {"layers that are a text", set(gguf::words(layers, "2")),
       {layers, "\"2\"", "an integer from 1"}},
      {"layers that are a float", set(gguf::real(layers, 2.0F)), {layers, "2", "an integer from 1"}},
      {"layers that are a list", set(gguf::integers(layers, {2, 2})),
       {layers, "2", "an integer from 1"}},
      {"no heads", set(gguf::number("llama.attention.head_count", 0)),
       {"llama.attention.head_count", "is 0", "an integer from 1"}},
      {"KV heads that do not divide heads", set(gguf::number("llama.attention.head_count_kv", 3)),
       {"llama.attention.head_count_kv", "is 3", "an integer from 1 to 2"}},
      {"no width", without("llama.embedding_length"),
       {"llama.embedding_length", "missing", "an integer from 1"}},
      {"no length", set(gguf::number("llama.context_length", 0)),
       {"llama.context_length", "is 0", "an integer from 1"}},
      {"an epsilon that is a text", set(gguf::words("llama.attention.layer_norm_rms_epsilon", "x")),
       {"llama.attention.layer_norm_rms_epsilon", "\"x\"", "a number from"}},
      {"an epsilon below 0", set(gguf::real("llama.attention.layer_norm_rms_epsilon", -1)),
       {"llama.attention.layer_norm_rms_epsilon", "is -1", "a number from"}},
      {"values of another width than keys", set(gguf::number("llama.attention.value_length", 8)),
       {"llama.attention.value_length", "is 8", "16"}},
      {"RoPE scaling that is not known", set(gguf::words("llama.rope.scaling.type", "spiral")),
       {"llama.rope.scaling.type", "\"spiral\"", "topkv runs"}},
      {"an alignment of 0", set(gguf::number("general.alignment", 0)),
       {"general.alignment", "is 0", "an integer from 8"}},
      {"an alignment that is no power", set(gguf::number("general.alignment", 24)),
       {"token_embd.weight", "begins at 1024", "a multiple of 24 (general.alignment)"}},
      {"a value of no type", set({"a.b", gguf::bytes(std::uint32_t{99})}),
       {"a.b", "99", "type"}},
      {"a text beyond the file",
       set({"a.b", gguf::bytes(gguf::string) + gguf::bytes(std::uint64_t{1} << 40)}),
       {"a.b", "1099511627776", "bytes"}},
      {"a list beyond the file",
       set({"a.b", gguf::bytes(gguf::array) + gguf::bytes(gguf::u8) +
                       gguf::bytes(std::uint64_t{1} << 62)}),
       {"a.b", "4611686018427387904 elements", "more than the file can hold"}},
      {"lists within lists", set({"a.b", gguf::bytes(gguf::array) + gguf::bytes(gguf::array) + gguf::bytes(std::uint64_t{1} << 24)}),
       {"a.b", "an array of 16777216 elements", "more than the file can hold"}},
      {"a key twice",
       [](File& f) {
         f.values.push_back(gguf::number("llama.block_count", 2));
       },
       {layers, "twice", "once"}},
      {"more values than there are", [](File& f) { f.more_values = 1000; }, {"the name of a metadata value", "ends within", "of which the file has"}},
      {"more tensors than there are", [](File& f) { f.more_tensors = std::uint64_t{1} << 60; },
       {"tensors", "1152921504606846997", "bytes"}},
      {"a tensor twice", [](File& f) { f.tensors.push_back(f.tensors.front()); },
       {"output.weight", "twice", "expected each once"}},
      {"a tensor of a type that is not known",
       [](File& f) { f.tensor("token_embd.weight").type = 77; },
       {"token_embd.weight", "77", "type"}},
      {"a tensor of five dimensions",
       [](File& f) { f.tensor("token_embd.weight").dims = {1, 1, 1, 1, 32}; },
       {"token_embd.weight", "5", "4"}},
      {"a tensor of sizes that are no number",
       [](File& f) {
         f.tensor("token_embd.weight").dims = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
       },
       {"token_embd.weight", "1099511627776", "2^"}},
      {"a tensor beyond the file",
       [](File& f) { f.tensor("token_embd.weight").dims = {32, 800000}; },
       {"token_embd.weight", "102400000 bytes", "of which the file has"}},
      {"a tensor that is not aligned", [](File& f) { f.tensor("token_embd.weight").move = 1; },
       {"token_embd.weight", "1", "multiple of 32"}},
      {"a tensor of half a block",
       [](File& f) {
         f.tensor("token_embd.weight").type = 8;
         f.tensor("token_embd.weight").dims = {33, 2};
       },
       {"token_embd.weight", "33", "multiple of 32"}},
      {"a tensor of another shape",
       [](File& f) { f.tensor("blk.0.attn_norm.weight").dims = {16}; },
       {"blk.0.attn_norm.weight", "[16]", "[32]"}},
      {"a tensor missing",
       [](File& f) {
         std::erase_if(f.tensors, [](const auto& t) { return t.name == "blk.1.attn_q.weight"; });
       },
       {"blk.1.attn_q.weight", "no tensor", "[32, 32]"}}};
  const TempDirectory folder;
  for (const GgufCase& one : cases) {
    gguf::File file = small_gguf();
    one.change(file);
    const auto path = folder.write("m.gguf", file.content());
    expect_refused(
        one.name, path.string() + ": ", [&] { Model::plan(path, {}, {}, {}); }, one.parts);
  }
  const std::string whole = small_gguf().content();
  const auto path = folder.write("m.gguf", whole);
  EXPECT_NO_THROW(Model::plan(path, {}, {}, {}));
  const auto refused = [&](const char* name, const std::string& bytes,
                           const std::vector<std::string>& parts) {
    folder.write("m.gguf", bytes);
    expect_refused(
        name, path.string() + ": ", [&] { Model::plan(path, {}, {}, {}); }, parts);
  };
  refused("no bytes", "", {"not with the letters GGUF", "with \"\"", "the letters GGUF"});
  refused("another kind of file", "PK\3\4" + whole.substr(4),
          {"not with the letters GGUF", "with \"PK\\x03\\x04\"", "the letters GGUF"});
  refused("cut off in its header", whole.substr(0, 10),
          {"ends within the number of tensors", "8 bytes at 8", "of which the file has 2"});
}

TEST(BadFiles, LengthsOfHeadersOfTensors) {
  const TempDirectory folder;
  const auto file = [](std::uint64_t length, const std::string& rest) {
    return gguf::bytes(length) + rest;
  };
  const struct {
    const char* name;
    std::string bytes;
    std::vector<std::string> parts;
  } cases[] = {
      {"no bytes", "", {"file has", "0 bytes", "8 bytes or more"}},
      {"seven bytes", "1234567", {"file has", "7 bytes", "8 bytes or more"}},
      {"a header beyond the file",
       file(100, "{}"),
       {"header length", "100 bytes", "at most the 2"}},
      {"a header beyond all files",
       file(~std::uint64_t{0}, "{}"),
       {"header length", "18446744073709551615 bytes", "at most 100000000"}},
      {"a header of no bytes", file(0, ""), {"not valid JSON", "unexpected end", "expected"}},
  };
  for (const auto& one : cases) {
    const auto path = folder.write("model.safetensors", one.bytes);
    expect_refused(
        one.name, path.string() + ": ", [&] { SafeTensors::open(folder.path()); }, one.parts);
  }
}

/// What a checkpoint's files, and a context's, may be replaced by, and what the error says of it.
struct Placeholder {
  const char* bytes;
  std::vector<std::string> parts;
};
const std::vector<Placeholder>& placeholders() {
  static const std::vector<std::string> page = {"a web page", "HTML", "download the file again"};
  static const std::vector<Placeholder> all = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98989\n",
       {"a pointer of", "Git LFS", "git lfs pull"}},
      {"<!DOCTYPE html>\n<html lang=\"en\"><head><title>Sign in</title></head></html>\n", page},
      {"\n\n  <HTML>", page},
      {"\xEF\xBB\xBF<html\nclass=\"a\">", page},
      {"<head><meta charset=\"utf-8\"></head>", page},
      {"<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>",
       {"XML", "a server", "download the file again"}}};
  return all;
}

TEST(BadFiles, PlaceholdersOfFilesThatWereNotFetched) {
  const std::filesystem::path needle =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "models/needle-14m";
  const auto config = [](const auto& folder) { ModelConfig::load(folder); };
  const auto weights = [](const auto& folder) { SafeTensors::open(folder); };
  const auto chat = [](const auto& folder) { read_chat_template(folder); };
  const struct {
    const char* file;
    std::function<void(const std::filesystem::path& folder)> load;
  } files[] = {
      {"config.json", config},
      {"config.json", [](const auto& folder) { Quantisation::load(folder); }},
      {"generation_config.json", config},
      {"tokenizer.json", [](const auto& folder) { Tokenizer::load(folder / "tokenizer.json"); }},
      {"model.safetensors", weights},
      {"model.safetensors.index.json", weights},
      {"model-00001-of-00002.safetensors", weights},
      {"tokenizer_config.json", chat},
      {"special_tokens_map.json", chat},
      {"chat_template.jinja", chat},
      {"additional_chat_templates/default.jinja", chat},
      {"model.gguf", [](const auto& folder) { Model::load(folder / "model.gguf"); }},
      {"model.gguf", [](const auto& folder) { ModelConfig::load(folder / "model.gguf"); }},
      {"model.gguf", [](const auto& folder) { Tokenizer::load(folder / "model.gguf"); }},
      {"model.gguf", [](const auto& folder) { read_chat_template(folder / "model.gguf"); }},
      {"text.tkv", [](const auto& folder) { context_file_info(folder / "text.tkv"); }},
  };
  for (const auto& [name, load] : files) {
    const std::string_view file = name;
    const TempDirectory folder;
    for (const char* whole : {"config.json", "tokenizer.json", "chat_template.jinja"})
      std::filesystem::copy(needle / whole, folder.path());
    if (file.starts_with("model-0"))
      folder.write("model.safetensors.index.json",
                   nlohmann::json{{"weight_map", {{"a", std::string(file)}}}}.dump());
    std::filesystem::create_directories((folder.path() / file).parent_path());
    for (const Placeholder& one : placeholders()) {
      const auto path = folder.write(file, one.bytes);
      expect_refused(
          std::string(file) + " is " + one.bytes, path.string() + ": is ",
          [&, &load = load] { load(folder.path()); }, one.parts);
    }
  }
}

TEST(BadFiles, TemplatesThatBeginWithAMarkAreNoPages) {
  const TempDirectory folder;
  for (const char* source : {"<|im_start|>{{ messages }}", "<s>[INST]", "<headline>{{ x }}",
                             "<html_of>{{ x }}", "version {{ 1 }}"}) {
    folder.write("chat_template.jinja", source);
    EXPECT_EQ(read_chat_template(folder.path()).source, source);
  }
}

TEST(BadFiles, TensorsOfQuantisedMatrices) {
  const auto words = [](std::int64_t rows, std::int64_t columns) {
    return FileTensor{
        "I32", {rows, columns}, std::string(static_cast<std::size_t>(rows * columns * 4), '\0')};
  };
  const auto halves = [](std::int64_t rows, std::int64_t columns, const std::string& one) {
    FileTensor tensor{"F16", {rows, columns}, ""};
    for (std::int64_t i = 0; i < rows * columns; ++i) tensor.bytes += one;
    return tensor;
  };
  const std::string half_one("\0\x3c", 2);
  const FileTensors whole = {{"m.qweight", words(8, 16)},
                             {"m.qzeros", words(2, 2)},
                             {"m.scales", halves(2, 16, half_one)}};
  FileTensors ordered = whole;
  ordered["m.g_idx"] = {"I32", {64}, std::string(256, '\0')};
  const struct {
    const char* name;
    std::function<void(FileTensors&)> change;
    std::vector<std::string> parts;
  } cases[] = {
      {"no codes", [](FileTensors& t) { t.erase("m.qweight"); }, {"m.", "no tensor", "expected"}},
      {"no scales",
       [](FileTensors& t) { t.erase("m.scales"); },
       {"\"m.scales\"", "has no tensor", "[2, 16]"}},
      {"no zero points",
       [](FileTensors& t) { t.erase("m.qzeros"); },
       {"\"m.qzeros\"", "has no tensor", "[2, 2]"}},
      {"codes of another shape",
       [&](FileTensors& t) { t["m.qweight"] = words(8, 8); },
       {"\"m.qweight\"", "[8, 8]", "[8, 16]"}},
      {"codes of another type",
       [](FileTensors& t) { t["m.qweight"].dtype = "F32"; },
       {"\"m.qweight\"", "F32", "I32"}},
      {"scales of another shape",
       [&](FileTensors& t) { t["m.scales"] = halves(16, 2, half_one); },
       {"\"m.scales\"", "[16, 2]", "[2, 16]"}},
      {"scales that are infinite",
       [&](FileTensors& t) { t["m.scales"] = halves(2, 16, std::string("\0\x7c", 2)); },
       {"module m has scale", "inf of output 0, group 0", "expected finite numbers"}},
      {"an order of another shape",
       [&](FileTensors& t) {
         t["m.g_idx"].shape = {8, 8};
       },
       {"\"m.g_idx\"", "[8, 8]", "[64]"}},
      {"an order of groups that are not there",
       [](FileTensors& t) { t["m.g_idx"].bytes[0] = 9; },
       {"module m has g_idx", "9 of input 0", "expected 0 to 1"}},
      {"an order with a group below 0",
       [](FileTensors& t) { t["m.g_idx"].bytes.replace(0, 4, "\xff\xff\xff\xff"); },
       {"module m has g_idx", "-1 of input 0", "expected 0 to 1"}},
  };
  const TempDirectory folder;
  const auto path = folder.path() / "model.safetensors";
  for (const auto& one : cases) {
    FileTensors tensors =
        std::string(one.name).find("order") != std::string::npos ? ordered : whole;
    one.change(tensors);
    folder.write("model.safetensors", file_of(tensors));
    expect_refused(
        one.name, path.string() + ": ",
        [&] {
          const SafeTensors file = SafeTensors::open(folder.path());
          const Quantisation how{.method = Quantisation::Method::gptq,
                                 .bits = 4,
                                 .group = 32,
                                 .needs_order = tensors.contains("m.g_idx")};
          const MatrixSource source = find_quantised(file, "m.", {0, 16, 16}, 64, how);
          std::vector<std::byte> codes(static_cast<std::size_t>(16 * source.form.row_bytes()));
          std::vector<float> scales(32);
          std::vector<float> offsets(32);
          source.make(
              0, 16,
              {codes.data(), scales.data(), source.form.has_offsets ? offsets.data() : nullptr});
        },
        one.parts);
  }
}

TEST(BadFiles, TablesOfContexts) {
  const std::string description = R"({"writer": "t", "tokens": 1, "layers": 1, "q_heads": 1,
    "kv_heads": 1, "head_dim": 4, "scale": 0, "softcap": 0, "chunk_len": 0, "kv_dtype": "f32",
    "indices": [], "model": "", "made_with": "", "text_left": "", "chat": false, "system": ""})";
  const auto section = [](int kind, const std::string& bytes, int layer = 0) {
    return std::string{static_cast<char>(kind), '\1', '\0', static_cast<char>(layer)} +
           gguf::bytes(static_cast<std::uint32_t>(bytes.size()) << 8U) + bytes;
  };
  const std::string row(16, '\0');
  const std::string list = section(1, description) + section(4, row) + section(5, row);
  const std::string whole = fuzz::file_of_sections(list);
  const TempDirectory folder;
  const auto path = folder.write("c.tkv", whole);
  EXPECT_EQ(load_context(path).context->tokens(), 1);
  const auto refused = [&](const char* name, const std::string& bytes,
                           const std::vector<std::string>& parts) {
    folder.write("c.tkv", bytes);
    expect_refused(
        name, path.string() + ": ", [&] { load_context(path); }, parts);
  };
  const auto changed = [&](std::size_t at, auto number, bool mended = true) {
    std::string bytes = whole;
    fuzz::put(bytes, at, number);
    if (mended) fuzz::mend_checksums(bytes);
    return bytes;
  };
  refused("no bytes", "", {"is not a context file", "0 bytes", "a header alone has 64"});
  refused("another kind of file", "GGUF" + whole.substr(4),
          {"is not a context file", "first bytes", "topkv prefill"});
  refused("of another version", changed(8, std::uint32_t{6}),
          {"has version", "6", "reads versions 1 to 5"});
  refused("a header of another size", changed(12, std::uint32_t{128}),
          {"its header says", "128 bytes", "expected 64"});
  refused("bytes of the header that are not known", changed(48, std::uint64_t{1}),
          {"its header says", "1 in unused bytes", "and 0"});
  refused("a byte of the header changed", changed(24, std::uint64_t{9}, false),
          {"its header", "damaged: it has the checksum", "expected"});
  refused("a byte of the table changed", changed(64, std::uint32_t{9}, false),
          {"its table", "damaged: it has the checksum", "expected"});
  refused("cut off", whole.substr(0, whole.size() - 1),
          {"bytes", std::to_string(whole.size() - 1), std::to_string(whole.size())});
  refused("longer", whole + "x",
          {"bytes", std::to_string(whole.size() + 1), std::to_string(whole.size())});
  refused("more sections than the file holds", changed(24, std::uint64_t{1} << 50),
          {"sections", "1125899906842624", "bytes hold"});
  refused("more checksums than the file holds", changed(32, std::uint64_t{1} << 50),
          {"checksums", "1125899906842624", "bytes hold"});
  refused("a section that is not where it should be", changed(64 + 48 + 24, std::uint64_t{4096}),
          {"section 1 of 3 (K of layer 0, KV head 0)", "at 4096", "expected it at 8192"});
  refused("a section beyond the file", changed(64 + 96 + 32, std::uint64_t{1} << 40),
          {"section 2 of 3", "has 1099511627776 bytes", "within the file's"});
  refused("flags that are not known", changed(64 + 48 + 4, std::uint32_t{3}),
          {"section 1 of 3", "flags 3", "0 or 1"});
  refused("a kind that is not known", fuzz::file_of_sections(list + section(77, "x")),
          {"a section of kind 77", "does not know and cannot skip", "expected kinds 1 to 12"});
  refused("no sections", fuzz::file_of_sections(""),
          {"first section", "is none", "expected the description"});
  refused("no description", fuzz::file_of_sections(section(4, row)),
          {"first section", "is K of layer 0, KV head 0", "expected the description"});
  refused("no values", fuzz::file_of_sections(section(1, description) + section(4, row)),
          {"V of layer 0, KV head 0 is missing", "it has 1 sections", "expected 2"});
  refused(
      "keys twice", fuzz::file_of_sections(list + section(4, row)),
      {"K of layer 0, KV head 0", "is one section too many", "expected 2 after the description"});
  refused("values before keys",
          fuzz::file_of_sections(section(1, description) + section(5, row) + section(4, row)),
          {"V of layer 0, KV head 0", "is in the place of", "of K of layer 0, KV head 0"});
  refused("keys of another layer",
          fuzz::file_of_sections(section(1, description) + section(4, row, 1) + section(5, row)),
          {"K of layer 1, KV head 0", "is in the place of", "of K of layer 0, KV head 0"});
  refused("rows too short",
          fuzz::file_of_sections(section(1, description) + section(4, "123456789012") +
                                 section(5, row)),
          {"K of layer 0, KV head 0", "has 12 bytes", "expected 16, for 1 tokens"});
  refused("a row that is no number",
          fuzz::file_of_sections(section(1, description) + section(4, row) +
                                 section(5, std::string("\0\0\x80\x7f", 4) + row.substr(4))),
          {"V of layer 0, KV head 0", "token 0 is not finite", "expected"});
  const std::string hybrid = [&] {
    std::string text = description;
    text.replace(text.find("\"layers\": 1"), 11, "\"layers\": 2, \"state_size\": [0, 1]");
    return section(1, text) + section(4, row) + section(5, row);
  }();
  const auto state = [&](const std::vector<std::int64_t>& tokens, float value) {
    std::string bytes = gguf::bytes(static_cast<std::int64_t>(tokens.size()));
    for (const std::int64_t token : tokens) bytes += gguf::bytes(token);
    for (std::size_t i = 0; i < tokens.size(); ++i) bytes += gguf::bytes(value);
    return hybrid + section(10, bytes, 1);
  };
  EXPECT_EQ(load_context(folder.write("c.tkv", fuzz::file_of_sections(state({1}, 2))))
                .context->state(1)[0],
            2);
  refused("no recurrent state", fuzz::file_of_sections(hybrid),
          {"the recurrent state of layer 1 is missing", "it has 2 sections", "expected 3"});
  refused("a recurrent state of another token", fuzz::file_of_sections(state({2}, 2)),
          {"the recurrent state of layer 1", "its last state stands for 2 tokens", "expected 1"});
  refused(
      "recurrent states of one token", fuzz::file_of_sections(state({1, 1}, 2)),
      {"the recurrent state of layer 1", "state 1 stands for 1 tokens", "expected more than 1"});
  refused("token ids too few",
          fuzz::file_of_sections(section(1, description) + section(2, "12") + section(4, row) +
                                 section(5, row)),
          {"token ids", "has 2 bytes", "expected 4, for 1 tokens"});
  refused("a token id below 0",
          fuzz::file_of_sections(section(1, description) + section(2, "\xff\xff\xff\xff") +
                                 section(4, row) + section(5, row)),
          {"token ids", "token 0 has the id -1", "expected 0 or more"});
  std::string rubbish = whole;
  rubbish[rubbish.size() - 1] = 'x';
  fuzz::mend_checksums(rubbish);
  refused("rubbish behind a section", rubbish,
          {"V of layer 0, KV head 0", "the bytes between", "and the next page are not 0"});
}

}  // namespace
}  // namespace topkv
