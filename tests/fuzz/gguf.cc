// A GGUF file: metadata and tensors, and the configuration, the tokenizer and the chat template in
// it.
#include "src/model/config/gguf_config.h"
#include "tests/fuzz/gguf_use.h"
#include "tests/fuzz/tokenizer_use.h"
#include "topkv/chat_template.h"
#include "topkv/model.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(gguf)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto path = folder.write("m.gguf", fuzz::text_of(data, size));
  const std::string beginning = path.string();
  const bool opens = fuzz::accepts(
      [&] {
        const auto file = topkv::GgufFile::open(path);
        for (const std::string_view key : file.keys()) {
          const std::string shown = file.shown_value(key);
          fuzz::require(shown.find('\n') == shown.npos, "a value of several lines", shown);
          fuzz::accepts([&] { file.text(key); }, beginning);
          fuzz::accepts([&] { file.texts(key); }, beginning);
          fuzz::accepts([&] { file.numbers(key); }, beginning);
          fuzz::accepts([&] { file.integers(key); }, beginning);
        }
        fuzz::use_tensors(file, size);
        fuzz::accepts([&] { topkv::end_tokens(file); }, beginning);
        fuzz::accepts([&] { topkv::unread_gguf_warning(file); }, beginning);
      },
      beginning);
  if (!opens) return 0;
  fuzz::accepts([&] { topkv::ModelConfig::load(path); }, beginning);
  fuzz::accepts([&] { topkv::Model::plan(path, {}, {}, {}); }, beginning);
  fuzz::accepts([&] { fuzz::use_tokenizer(path); }, beginning);
  fuzz::accepts(
      [&] {
        const topkv::ChatMessage messages[] = {{"user", "hello"}};
        topkv::ChatTemplate::load(path).render(messages, true);
      },
      beginning);
  return 0;
}
