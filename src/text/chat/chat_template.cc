#include "topkv/chat_template.h"

#include <fmt/format.h>

#include <utility>

#include "src/core/format/ordered_json.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/chat/chat_marks.h"
#include "src/text/files/chat_template_files.h"
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

using OrderedJson = nlohmann::ordered_json;

/// The text of one JSON object. what: for messages.
OrderedJson object_of(const std::string& text, const std::string& what) {
  if (text.empty()) return OrderedJson::object();
  try {
    OrderedJson object = parse_ordered_json(text, what);
    if (object.is_object()) return object;
  } catch (const FileError& error) {
    throw InvalidArgument(error.what());
  }
  throw InvalidArgument(fmt::format("{}: \"{}\" is not a JSON object; expected one", what,
                                    printable_beginning(text)));
}

/// Whether a template has a word as a name or a text of its own.
bool has_word(const std::string& source, const std::string& word) {
  const auto in_word = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (std::size_t at = source.find(word); at != source.npos; at = source.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !in_word(source[at - 1])) && (end == source.size() || !in_word(source[end])))
      return true;
  }
  return false;
}

}  // namespace

struct ChatTemplate::Impl {
  ChatTemplateFiles files;

  OrderedJson message(const ChatMessage& given, std::size_t number) const;
  OrderedJson variables(const std::string& text) const;
};

OrderedJson ChatTemplate::Impl::message(const ChatMessage& given, std::size_t number) const {
  const OrderedJson fields = object_of(given.fields, fmt::format("fields of message {}", number));
  OrderedJson message;
  message["role"] = replace_invalid_utf8(given.role);
  if (given.role == "developer" && !has_word(files.source, "developer")) message["role"] = "system";
  message["content"] = replace_invalid_utf8(given.content);
  for (const auto& [key, value] : fields.items()) {
    if (message.contains(key))
      throw InvalidArgument(fmt::format(
          "fields of message {} has \"{}\"; expected others than role and content", number, key));
    message[key] = value;
  }
  return message;
}

OrderedJson ChatTemplate::Impl::variables(const std::string& text) const {
  OrderedJson variables = object_of(text, "variables of the chat template");
  for (const auto& [name, value] : variables.items()) {
    if (name == "messages" || name == "add_generation_prompt")
      throw InvalidArgument(fmt::format(
          "variables of the chat template has \"{}\", which the conversation sets; leave it out",
          name));
    if (!has_word(files.source, name))
      throw InvalidArgument(fmt::format("{}: the chat template does not use \"{}\"; leave it out",
                                        files.file, printable_beginning(name)));
  }
  return variables;
}

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

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                 const std::string& variables) const {
  if (messages.empty()) throw InvalidArgument("no messages to render; expected one at least");
  TemplateInput input;
  input.texts = impl_->files.special_tokens;
  input.add_generation_prompt = add_generation_prompt;
  input.variables = impl_->variables(variables);
  for (const ChatMessage& message : messages)
    input.messages.push_back(impl_->message(message, input.messages.size()));
  std::string text;
  try {
    text = render_template(impl_->files.source, input);
  } catch (const TemplateFailure& failure) {
    refuse(impl_->files.file, failure);
  }
  if (const std::string lost = lost_in(impl_->files.source, input, text); !lost.empty())
    throw InvalidArgument(
        fmt::format("{}: the chat template leaves out {}", impl_->files.file, printable(lost)));
  return text;
}

const std::string& ChatTemplate::source() const { return impl_->files.source; }

}  // namespace topkv
