// Chat templates as checkpoints ship them: a conversation to the text that the model was trained
// on.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace topkv {

struct ChatMessage {
  /// "system", "user", "assistant", "tool"; what the template knows. "developer" is given to a
  /// template that does not name it as "system".
  std::string role;
  std::string content;
  /// Other fields of the message as the text of one JSON object; empty: none. Templates know
  /// "tool_calls", "tool_call_id", "name" and "reasoning_content", the thinking before an answer.
  /// Arguments of tool calls are objects, as transformers wants them.
  std::string fields = {};
};

/// The template of a model directory, in Jinja, rendered as transformers' apply_chat_template does
/// without documents. Immutable; safe from many threads.
///
/// The text holds special tokens, a BOS among them where the template writes one: encode it with
/// Tokenizer::encode(text), without add_special_tokens. A message that spells a special token
/// ("<|im_end|>") becomes that token, as in transformers: strip such text from people you do not
/// trust before it gets here.
class ChatTemplate {
 public:
  /// Of a GGUF file: tokenizer.chat_template and the special tokens of its metadata. In a directory
  /// looks where transformers' tokenizers do: additional_chat_templates/default.jinja,
  /// chat_template.jinja, then "chat_template" of tokenizer_config.json, a text or a list of named
  /// ones with "default". bos_token and other special tokens are those of tokenizer_config.json and
  /// special_tokens_map.json. Throws FileError when there is none, or it is broken; Unsupported in
  /// a build without Jinja.
  static ChatTemplate load(const std::filesystem::path& model);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// The text of the conversation; with add_generation_prompt up to where the assistant's answer
  /// begins. What is not UTF-8 becomes U+FFFD.
  ///
  /// Templates come with models that nobody vouches for. They reach nothing outside of the
  /// conversation, and may take steps, memory and depth within limits that grow with its length.
  ///
  /// variables: the text of one JSON object; empty: none. The template sees each entry by its name,
  /// such as {"tools": [...], "enable_thinking": false}. JSON is at most 64 deep, with at most 1024
  /// keys in an object.
  ///
  /// Nothing is lost in silence: content of a message, a tool or a tool call that does not get into
  /// the text is an error. An assistant's content beside tool calls may be left out, as templates
  /// do. Thinking may be left out, too. To find out, the template is rendered a second time, with
  /// marks in the place of the contents.
  ///
  /// Throws InvalidArgument for no messages, for messages or tools that the template leaves out,
  /// for variables that it does not use, for fields and variables that are not JSON objects, and
  /// when the template itself refuses the messages; FileError with the line for a template that
  /// fails, exceeds a limit or uses what is not implemented, rather than to render something else
  /// than transformers would; OutOfMemory.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                     const std::string& variables = {}) const;

  /// The template itself.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
