#include "src/eval/tasks/needle_context.h"

#include <fmt/format.h>

#include <cstddef>

#include "topkv/error.h"

namespace topkv {
namespace {

// Appends sentences to tokens. A space belongs to the word behind it, a line break to the
// punctuation before it.
class Writer {
 public:
  Writer(std::string separator, const EncodeFn& encode)
      : lines_(separator == "\n"), encode_(encode) {}

  // The tokens of a sentence, if it came next.
  const std::vector<Token>& encoded(const std::string& sentence, bool first_of_line) {
    std::string text = lines_ ? sentence + "\n" : first_of_line ? sentence : " " + sentence;
    if (text != text_) {  // repeated noise is encoded once
      text_ = std::move(text);
      encoded_ = encode_(text_);
    }
    return encoded_;
  }

  // Tokens that end_line may add.
  std::int64_t end_reserve() {
    return lines_ ? 0 : static_cast<std::int64_t>(encode_("\n").size());
  }

  // Ends the text with a line break, given the tokens of the last sentence at tokens[begin..].
  void end_line(std::vector<Token>& tokens, std::size_t begin, const std::string& text) {
    if (lines_) return;
    const std::vector<Token> line_break = encode_("\n");
    const std::vector<Token> joined = encode_(text + "\n");
    if (joined.size() <= tokens.size() - begin + line_break.size()) {
      tokens.resize(begin);
      tokens.insert(tokens.end(), joined.begin(), joined.end());
    } else {
      tokens.insert(tokens.end(), line_break.begin(), line_break.end());
    }
  }

  const std::string& last_text() const { return text_; }

 private:
  bool lines_;
  const EncodeFn& encode_;
  std::string text_;
  std::vector<Token> encoded_;
};

std::int64_t size_of(const std::vector<Token>& tokens) {
  return static_cast<std::int64_t>(tokens.size());
}

}  // namespace

NeedleContext build_needle_context(std::int64_t length, const std::vector<Token>& beginning,
                                   const std::string& intro, const std::vector<Needle>& needles,
                                   Haystack& haystack, const EncodeFn& encode) {
  Writer writer(haystack.separator(), encode);
  NeedleContext context;
  std::vector<Token>& tokens = context.tokens;
  tokens = beginning;
  if (!intro.empty()) {
    const std::vector<Token> encoded = encode(intro + "\n");
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  }

  // Room that must be kept for the needles still to come.
  std::int64_t needle_room = 0;
  std::vector<std::int64_t> needle_sizes;
  for (const Needle& needle : needles) {
    needle_sizes.push_back(size_of(writer.encoded(needle.sentence, false)));
    needle_room += needle_sizes.back();
  }
  const std::int64_t capacity = length - writer.end_reserve();
  if (size_of(tokens) + needle_room > capacity) {
    throw InvalidArgument(fmt::format(
        "a context of {} tokens cannot hold {} needles: they and the introduction take {} tokens; "
        "use a longer -c, fewer --depths (fidelity: --questions) or --separate",
        length, needles.size(), size_of(tokens) + needle_room + length - capacity));
  }
  // At least the intro's end must come before a word; a needle first of all has no space before.
  bool first = true;
  std::size_t last_begin = tokens.size();
  std::string last_text;
  const auto append = [&](const std::string& sentence) {
    const std::vector<Token>& encoded = writer.encoded(sentence, first);
    last_begin = tokens.size();
    last_text = writer.last_text();
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    first = false;
  };
  const auto place = [&](std::size_t i) {
    const std::int64_t begin = size_of(tokens);
    append(needles[i].sentence);
    needle_room -= needle_sizes[i];
    context.needles.push_back({needles[i], {begin, size_of(tokens)}});
  };

  std::size_t next = 0;
  for (;;) {
    const std::string sentence = haystack.next();
    std::int64_t size = size_of(writer.encoded(sentence, first));
    while (next < needles.size()) {
      const double target = needles[next].depth / 100 * static_cast<double>(length);
      const double here = target - static_cast<double>(size_of(tokens));
      if (here > 0 && static_cast<double>(size) - here < here) break;  // behind it is nearer
      place(next++);
      size = size_of(writer.encoded(sentence, first));
    }
    if (size_of(tokens) + size + needle_room > capacity) break;
    append(sentence);
  }
  while (next < needles.size()) place(next++);
  if (!last_text.empty()) writer.end_line(tokens, last_begin, last_text);
  if (!context.needles.empty() &&
      last_begin == static_cast<std::size_t>(context.needles.back().tokens.begin)) {
    context.needles.back().tokens.end = size_of(tokens);
  }
  return context;
}

}  // namespace topkv
