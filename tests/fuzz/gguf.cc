// A GGUF file: metadata and tensors, and the configuration, the tokenizer and the chat template in
// it.
#include "src/core/gguf_file.h"
#include "src/model/gguf_config.h"
#include "tests/fuzz/tokenizer_use.h"
#include "topkv/chat_template.h"
#include "topkv/model.h"

namespace fuzz = topkv::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
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
        std::size_t bytes = 0;
        for (const auto& [name, tensor] : file.tensors()) bytes += tensor.bytes.size();
        fuzz::require(file.tensors().size() * 24 <= size, "more tensors than the file can name");
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
