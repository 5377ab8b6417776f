// chat_template.jinja, rendered for a short conversation.
#include "topkv/chat_template.h"

#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(chat_template)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  [[maybe_unused]] static const auto config =
      folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  folder.write("chat_template.jinja", fuzz::text_of(data, size));
  fuzz::accepts(
      [&] {
        const auto chat = topkv::ChatTemplate::load(folder.path());
        const topkv::ChatMessage messages[] = {
            {"system", "be brief"}, {"user", "h\xc3\xa9llo\n"}, {"assistant", "hi"}, {"user", "?"}};
        // Two, as a template may refuse one of them.
        for (const bool all : {true, false}) {
          fuzz::accepts(
              [&] {
                const std::string text =
                    chat.render(all ? std::span(messages) : std::span(messages).subspan(1, 1), all);
                fuzz::require(text.size() < std::size_t{64} << 20, "a text beyond all limits");
              },
              folder.text());
        }
      },
      folder.text());
  return 0;
}
