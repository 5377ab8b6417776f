// Chat templates as checkpoints ship them: a conversation to the text that the model was trained
// on.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace topkv {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"; what the template knows
  std::string content;
};

/// The template of a model directory, in Jinja, rendered as transformers' apply_chat_template does
/// without tools and documents. Immutable; safe from many threads.
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
  /// Throws InvalidArgument for no messages, and when the template itself refuses them (a role that
  /// it does not know); FileError with the line for a template that fails, exceeds a limit or uses
  /// what is not implemented, rather than to render something else than transformers would;
  /// OutOfMemory.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

  /// The template itself.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
