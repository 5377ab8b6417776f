// Chat templates, as checkpoints ship them: they turn a conversation into the text that the model
// was trained on.
//
//     auto chat = topkv::ChatTemplate::load("models/qwen");
//     std::vector<topkv::ChatMessage> messages = {{"user", "Who is Ishmael?"}};
//     std::string text = chat.render(messages, /*add_generation_prompt=*/true);
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace topkv {

/// One message of a conversation.
struct ChatMessage {
  /// The role, as the template knows it: "system", "user", "assistant", "tool". "developer" is
  /// rendered as "system" by a template that does not have that word.
  std::string role;
  std::string content;
  /// Other fields of the message, as the text of one JSON object. Empty: there are no others.
  ///
  /// Templates know "tool_calls", "tool_call_id", "name" and "reasoning_content", which is the
  /// thinking before an answer. The arguments of tool calls are objects, as transformers expects.
  /// "role" and "content" may not be among the fields.
  std::string fields = {};
};

/// The chat template of a model, in Jinja. It renders as transformers' apply_chat_template does
/// without documents. It is immutable and safe from many threads.
///
/// The rendered text holds special tokens, also a BOS if the template writes one. Encode it with
/// Tokenizer::encode(text), without add_special_tokens.
///
/// A message that spells a special token, such as "<|im_end|>", becomes that token, as in
/// transformers. Remove such text from messages of people whom you do not trust.
class ChatTemplate {
 public:
  /// Reads the template of a model: a directory in Hugging Face layout, or a GGUF file.
  ///
  /// - A directory: the first of additional_chat_templates/default.jinja, chat_template.jinja, and
  ///   "chat_template" in tokenizer_config.json. The last may be a text, or a list of named
  ///   templates with one named "default". Special tokens, bos_token among them, come from
  ///   tokenizer_config.json and special_tokens_map.json.
  /// - A GGUF file: tokenizer.chat_template and the special tokens of its metadata.
  ///
  /// Throws FileError when there is no template or it is invalid, and Unsupported when topkv was
  /// built without Jinja.
  static ChatTemplate load(const std::filesystem::path& model);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Returns the text of a conversation. Invalid UTF-8 becomes U+FFFD.
  ///
  /// - add_generation_prompt: the text goes on to where the assistant's answer begins.
  /// - variables: the text of one JSON object, such as {"tools": [...], "enable_thinking": false}.
  ///   The template sees each entry by its name. Empty: there are no variables.
  ///
  /// JSON may be nested 64 deep, with 1024 keys in an object.
  ///
  /// A template comes with a model, and nobody vouches for it. It reaches nothing outside of the
  /// conversation. Its steps, memory and depth have limits that grow with the conversation's
  /// length.
  ///
  /// No content is lost without an error. If the content of a message, a tool or a tool call does
  /// not get into the text, render throws. Two kinds of text may be left out, as templates do: an
  /// assistant's content beside tool calls, and thinking. To find out, the template is rendered a
  /// second time with marks in place of the contents.
  ///
  /// Throws InvalidArgument when:
  /// - there are no messages;
  /// - the template leaves out a message or a tool;
  /// - the template does not use a variable, or the variable is "messages" or
  ///   "add_generation_prompt";
  /// - fields or variables are not a JSON object, or fields have "role" or "content";
  /// - the template itself refuses the messages.
  ///
  /// Throws FileError, with the line, when the template fails, exceeds a limit, or uses something
  /// that is not implemented. It never renders another text than transformers would. Throws
  /// OutOfMemory when there is no memory for the thread that renders.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                     const std::string& variables = {}) const;

  /// Returns the template's text.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
