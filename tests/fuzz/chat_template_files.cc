// tokenizer_config.json: where a chat template stands, and special tokens.
#include "tests/fuzz/target.h"
#include "topkv/chat_template.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(chat_template_files)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  folder.write("tokenizer_config.json", fuzz::text_of(data, size));
  fuzz::accepts(
      [&] {
        const auto chat = topkv::ChatTemplate::load(folder.path());
        const topkv::ChatMessage messages[] = {{"user", "hello"}};
        chat.render(messages, true);
      },
      folder.text());
  return 0;
}
