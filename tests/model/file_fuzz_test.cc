// Files of a model with random damage: they load, or are refused by an error of the library, and
// nothing else. Seeded; for more than CI runs: file_fuzz_test --gtest_shuffle --gtest_random_seed=1
// --gtest_repeat=100, best in a build with sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

constexpr int rounds = 150;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

class Damage {
 public:
  Damage() : random_(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed())) {}

  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }

  /// The text with one to four places changed.
  std::string of(std::string text) {
    const std::size_t places = 1 + below(4);
    for (std::size_t i = 0; i < places; ++i) change(text);
    return text;
  }

 private:
  /// Half of the places are those where a value begins: what is behind a colon, a comma, a bracket.
  std::size_t place(const std::string& text) {
    const std::size_t anywhere = below(text.size() + 1);
    if (below(2) == 0) return anywhere;
    const std::size_t value = text.find_first_of(":,[{", anywhere);
    return value == std::string::npos ? anywhere : std::min(value + 2, text.size());
  }

  void change(std::string& text) {
    static constexpr std::string_view pieces[] = {"null",
                                                  "-1",
                                                  "0",
                                                  "1e999",
                                                  "1e308",
                                                  "-0.0",
                                                  "NaN",
                                                  "18446744073709551616",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "4294967296",
                                                  "2147483648",
                                                  "true",
                                                  "\"\"",
                                                  "\"\\ud800\"",
                                                  "[]",
                                                  "{}",
                                                  "[[[[[[[[",
                                                  "}",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "\\u0000",
                                                  "\xff",
                                                  std::string_view("\0", 1),
                                                  "[1,2,3]",
                                                  "{\"a\":",
                                                  "\"bf16\"",
                                                  "\"F64\"",
                                                  "(?i)(a*)*$",
                                                  "1",
                                                  "2",
                                                  "7",
                                                  "64",
                                                  "1000000"};
    const std::size_t at = place(text);
    const std::size_t length = std::min(1 + below(below(8) == 0 ? 400 : 12), text.size() - at);
    const std::string_view piece = pieces[below(std::size(pieces))];
    switch (below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, text.substr(place(text), length));
        break;
      case 4:
        text.insert(at, piece);
        break;
      case 5:
        text.replace(at, length, piece);
        break;
      default: {
        // A value for a value, so that the file stays well-formed.
        const std::size_t end = text.find_first_of(",}]\n", at);
        if (end != std::string::npos) text.replace(at, end - at, piece);
      }
    }
  }

  std::mt19937 random_;
};

/// What the call throws, if anything, is an error of the library.
template <class Call>
bool succeeds(const Call& call) {
  try {
    call();
    return true;
  } catch (const Error&) {
    return false;
  }
}

const fs::path all_fixtures = fs::path(TOPKV_SOURCE_DIR) / "tests" / "fixtures";

TEST(FileFuzz, TokenizersLoadOrAreRefused) {
  Damage damage;
  const TempDirectory temp;
  int loaded = 0;
  for (const char* name : {"cased", "gpt2", "llama3", "qwen2", "symbols"}) {
    const std::string whole = read(all_fixtures / "tokenizer" / (std::string(name) + ".json"));
    for (int i = 0; i <= rounds; ++i) {
      // The first as it is: hardly any that is damaged loads.
      const fs::path file = temp.write("tokenizer.json", i == 0 ? whole : damage.of(whole));
      SCOPED_TRACE(file.string());
      loaded += succeeds([&] {
        const Tokenizer tokenizer = Tokenizer::load(file);
        const std::vector<Token> tokens =
            tokenizer.encode("The 12 cafés\n\tdon't \xff <s> 語", true);
        EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [&](Token token) {
          return token >= 0 && token < tokenizer.vocab_size();
        }));
        tokenizer.decode(tokens);
      });
    }
  }
  EXPECT_GT(loaded, 0);
}

TEST(FileFuzz, ModelsLoadOrAreRefused) {
  Damage damage;
  int loaded = 0;
  for (const char* name : {"llama3", "qwen2-window", "llama-tied-bias"}) {
    const TempDirectory temp;
    const std::string config = read(all_fixtures / "parity" / name / "config.json");
    const std::string weights = read(all_fixtures / "parity" / name / "model.safetensors");
    for (int i = 0; i < 2 * rounds; ++i) {
      const bool is_config = i % 2 == 0;
      temp.write("config.json", is_config ? damage.of(config) : config);
      std::string changed = weights;
      if (!is_config) {
        // The header, behind the 8 bytes of its length; one in four lengths is then wrong.
        std::uint64_t length = 0;
        std::copy_n(weights.data(), sizeof length, reinterpret_cast<char*>(&length));
        const std::string header = damage.of(weights.substr(8, length));
        const std::string values = weights.substr(8 + length);
        if (damage.below(4) != 0) length = header.size();
        changed.assign(reinterpret_cast<const char*>(&length), sizeof length);
        changed += header + values.substr(damage.below(4) == 0 ? damage.below(values.size()) : 0);
      }
      temp.write("model.safetensors", changed);
      loaded += succeeds([&] {
        const Model model = Model::load(temp.path(), {}, [](const std::string&) {});
        const std::vector<Token> tokens = {1, 2, 3};
        model.logits(tokens);
      });
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace topkv
