#include "topkv/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "src/core/printable.h"
#include "src/core/utf8.h"
#include "src/text/chat_template_files.h"
#include "src/text/jinja/render.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::size_t longest_message = 300;

[[noreturn]] void refuse(const std::string& file, const TemplateFailure& failure) {
  std::string message = printable(failure.message.substr(0, longest_message));
  if (failure.message.size() > longest_message) message += "…";
  if (failure.refused) {
    throw InvalidArgument(
        fmt::format("{}: the chat template refuses this conversation: {}", file, message));
  }
  const std::string line = failure.line > 0 ? fmt::format(", line {}", failure.line) : "";
  throw FileError(fmt::format(
      "{}: the chat template{}: {}; put one that does without it into chat_template.jinja", file,
      line, message));
}

}  // namespace

struct ChatTemplate::Impl {
  ChatTemplateFiles files;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const std::filesystem::path& model) {
  auto impl = std::make_unique<Impl>(Impl{read_chat_template(model)});
  try {
    check_template(impl->files.source);
  } catch (const TemplateFailure& failure) {
    refuse(impl->files.file, failure);
  }
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 bool add_generation_prompt) const {
  if (messages.empty()) throw InvalidArgument("no messages to render; expected one at least");
  TemplateInput input;
  input.texts = impl_->files.special_tokens;
  input.add_generation_prompt = add_generation_prompt;
  for (const ChatMessage& message : messages) {
    input.messages.push_back({{"role", replace_invalid_utf8(message.role)},
                              {"content", replace_invalid_utf8(message.content)}});
  }
  try {
    return render_template(impl_->files.source, input);
  } catch (const TemplateFailure& failure) {
    refuse(impl_->files.file, failure);
  }
}

const std::string& ChatTemplate::source() const { return impl_->files.source; }

}  // namespace topkv
