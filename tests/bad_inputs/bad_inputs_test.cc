// Named bad inputs of every parser that reads text: each is refused in one line that names the
// file, the field, what was found and what is allowed. The tables are bad_inputs/*.txt: a text, a
// line for each of its keys, and below it cases, each a name, a key, what it is given (all of the
// text: *; nothing: -key), and what the error names. Texts are put together line by line: nothing
// of the library's, nor its parser of JSON, has a part in it.
#include "tests/bad_inputs/bad_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/cli/terminal/parse_numbers.h"
#include "src/model/weights/checkpoint.h"
#include "src/model/weights/safetensors.h"
#include "tests/fuzz/context_bytes.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"
#include "topkv/chat_template.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"
#include "topkv/model.h"
#include "topkv/tokenizer.h"

namespace topkv {
namespace {

using test::bad_inputs;
using test::BadInput;
using test::edited;

/// The call throws an error of the library, or of the command, as the case says.
/// beginning: of errors about a file.
void expect_refused(const BadInput& one, const std::string& beginning,
                    const std::function<void()>& call) {
  SCOPED_TRACE(one.name);
  std::string text;
  try {
    call();
  } catch (const Error& error) {
    text = error.what();
  } catch (const cli::UsageError& error) {
    text = error.what();
  }
  ASSERT_FALSE(text.empty()) << "it was taken";
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  EXPECT_LT(text.size(), 1000U) << text;
  EXPECT_TRUE(text.starts_with(beginning)) << text << "\nshould begin with " << beginning;
  const std::string rest = text.substr(std::min(beginning.size(), text.size()));
  for (const std::string& part : {one.field, one.found, one.allowed}) {
    EXPECT_FALSE(part.empty());
    EXPECT_NE(rest.find(part), rest.npos) << text << "\nshould name " << part;
  }
}

/// Of files that are read as `call` does from a folder.
void expect_all_refused(const std::string& table, const std::string& file,
                        const std::function<std::string(const std::string&)>& content,
                        const std::function<void(const std::filesystem::path&)>& call,
                        const TempDirectory& folder) {
  const auto [base, cases] = bad_inputs(table);
  for (const BadInput& one : cases) {
    const auto path = folder.write(file, content(edited(base, one)));
    expect_refused(one, path.string() + ": ", [&] { call(path); });
  }
}

std::string as_it_is(const std::string& text) { return text; }

TEST(BadInputs, Configurations) {
  for (const char* table :
       {"config", "config_qwen2", "config_mixtral", "config_ministral3", "config_lfm2",
        "config_granitemoehybrid", "config_nemotron_h", "config_nemotron_h_moe", "config_lfm2_moe",
        "config_gemma4", "config_latent"}) {
    const TempDirectory folder;
    expect_all_refused(
        table, "config.json", as_it_is, [&](const auto&) { ModelConfig::load(folder.path()); },
        folder);
  }
}

TEST(BadInputs, ConfigurationsOfGeneration) {
  const TempDirectory folder;
  folder.write("config.json", edited(bad_inputs("config").first, {}));
  expect_all_refused(
      "generation_config", "generation_config.json", as_it_is,
      [&](const auto&) { ModelConfig::load(folder.path()); }, folder);
}

TEST(BadInputs, SettingsOfQuantisedWeights) {
  std::string config = edited(bad_inputs("config").first, {});
  config.erase(config.rfind('}'));
  for (const char* table :
       {"quantisation_gptq", "quantisation_awq", "quantisation_fp8", "quantisation_compressed"}) {
    const TempDirectory folder;
    expect_all_refused(
        table, "config.json",
        [&](const std::string& text) { return config + ",\"quantization_config\": " + text + "}"; },
        [&](const auto&) { Checkpoint::open_or_describe(folder.path()); }, folder);
  }
}

TEST(BadInputs, HeadersOfTensors) {
  const TempDirectory folder;
  expect_all_refused(
      "safetensors", "model.safetensors",
      [](const std::string& header) {
        const std::uint64_t bytes = header.size();
        return std::string(reinterpret_cast<const char*>(&bytes), 8) + header + "123456789012";
      },
      [&](const auto&) { SafeTensors::open(folder.path()); }, folder);
}

TEST(BadInputs, IndicesOfShards) {
  const TempDirectory folder;
  folder.write("a.safetensors", file_of({{"x", {"F32", {1}, "abcd"}}}));
  folder.write("b.safetensors", file_of({{"y", {"U8", {4}, "abcd"}}}));
  expect_all_refused(
      "safetensors_index", "model.safetensors.index.json", as_it_is,
      [&](const auto&) { SafeTensors::open(folder.path()); }, folder);
}

TEST(BadInputs, Tokenizers) {
  const TempDirectory folder;
  expect_all_refused(
      "tokenizer", "tokenizer.json", as_it_is, [](const auto& path) { Tokenizer::load(path); },
      folder);
}

#if TOPKV_JINJA
TEST(BadInputs, ChatTemplates) {
  const TempDirectory folder;
  expect_all_refused(
      "tokenizer_config", "tokenizer_config.json", as_it_is,
      [&](const auto&) {
        const ChatMessage messages[] = {{"user", "hello"}};
        ChatTemplate::load(folder.path()).render(messages, true);
      },
      folder);
}
#endif

TEST(BadInputs, DescriptionsOfContexts) {
  const TempDirectory folder;
  expect_all_refused(
      "context_description", "c.tkv",
      [](const std::string& text) {
        const auto bytes = static_cast<std::uint32_t>(text.size()) << 8U;
        return fuzz::file_of_sections(std::string("\1\1\0\0", 4) +
                                      std::string(reinterpret_cast<const char*>(&bytes), 4) + text);
      },
      [](const auto& path) { load_context(path); }, folder);
}

TEST(BadInputs, NamesOfIndices) {
  for (const BadInput& one : bad_inputs("index_spec").second)
    expect_refused(one, "", [&] { IndexSpec(one.value).make(); });
}

TEST(BadInputs, NumbersOfFlags) {
  for (const BadInput& one : bad_inputs("numbers").second) {
    expect_refused(one, "", [&] {
      if (one.key == "count") cli::parse_count("-n", one.value);
      if (one.key == "bytes") cli::parse_bytes("--mem", one.value);
      if (one.key == "real") cli::parse_real("--temp", one.value, 0, 100);
      if (one.key == "seed") cli::parse_seed("--seed", one.value);
      if (one.key == "counts") cli::parse_counts("-c", one.value);
      if (one.key == "depths") cli::parse_depths("--depths", one.value);
    });
  }
}

TEST(BadInputs, TextsThatNothingIsWrongWithAreTaken) {
  const TempDirectory folder;
  for (const char* table :
       {"config", "config_qwen2", "config_mixtral", "config_ministral3", "config_lfm2",
        "config_granitemoehybrid", "config_nemotron_h", "config_nemotron_h_moe", "config_lfm2_moe",
        "config_gemma4", "config_latent"}) {
    folder.write("config.json", edited(bad_inputs(table).first, {}));
    EXPECT_NO_THROW(ModelConfig::load(folder.path())) << table;
  }
  for (const char* table :
       {"quantisation_gptq", "quantisation_awq", "quantisation_fp8", "quantisation_compressed"}) {
    std::string config = edited(bad_inputs("config").first, {});
    config.erase(config.rfind('}'));
    folder.write("config.json",
                 config + ",\"quantization_config\": " + edited(bad_inputs(table).first, {}) + "}");
    EXPECT_NO_THROW(Checkpoint::open_or_describe(folder.path())) << table;
  }
  const auto tokenizer = folder.write("tokenizer.json", edited(bad_inputs("tokenizer").first, {}));
  EXPECT_EQ(Tokenizer::load(tokenizer).encode("aa").size(), 1U);
}

}  // namespace
}  // namespace topkv
