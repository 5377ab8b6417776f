#include "src/text/tokens/pre_tokenizer.h"

#include <utility>

#include "src/text/pattern/matches.h"

namespace topkv {
namespace {

/// Of a regular expression that goes over the text a few times from every place; one that goes over
/// all of it from every place takes as many as the text has bytes.
constexpr std::size_t split_steps_per_byte = 200;

}  // namespace

struct PreTokenizer::Run {
  const std::vector<Stage>& stages;
  Scratch& scratch;
  ByteAllowance& allowance;
  const PieceFn& piece;

  void from(std::size_t index, std::string_view text, bool at_front) const {
    if (text.empty()) return;
    if (index == stages.size()) {
      piece(text);
      return;
    }
    const Stage& stage = stages[index];
    if (!stage.mark.empty()) text = marked(stage, text, at_front, scratch.texts[index]);
    if (stage.cuts_at_marks) {
      cut_at_marks(stage.mark, text, [&](std::size_t begin, std::size_t end) {
        from(index + 1, text.substr(begin, end - begin), at_front && begin == 0);
      });
    } else if (stage.regex) {
      cut(stage, text, [&](std::size_t begin, std::size_t end) {
        from(index + 1, text.substr(begin, end - begin), at_front && begin == 0);
      });
    } else {
      from(index + 1, text, at_front);
    }
  }

  /// The text with marks for its spaces and in front, as the stage has it.
  std::string_view marked(const Stage& stage, std::string_view text, bool at_front,
                          std::string& buffer) const {
    const bool begins = text.starts_with(stage.mark) || (stage.replaces && text.front() == ' ');
    const bool wanted =
        stage.prefix == Prefix::always || (stage.prefix == Prefix::at_front && at_front);
    const bool replaces = stage.replaces && text.find(' ') != std::string_view::npos;
    if ((begins || !wanted) && !replaces) return text;
    buffer.clear();
    if (!begins && wanted) buffer = stage.mark;
    if (!replaces) buffer.append(text);
    for (std::size_t at = 0; replaces && at < text.size();) {
      const std::size_t space = std::min(text.find(' ', at), text.size());
      buffer.append(text.substr(at, space - at));
      if (space < text.size()) buffer += stage.mark;
      allowance.check(buffer.size());
      at = space + 1;
    }
    allowance.take(buffer.size());
    return buffer;
  }

  template <class Give>
  static void cut_at_marks(std::string_view mark, std::string_view text, const Give& give) {
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(mark, begin + 1), text.size());
      give(begin, end);
      begin = end;
    }
  }

  template <class Give>
  void cut(const Stage& stage, std::string_view text, const Give& give) const {
    // What is not given yet: pieces that may grow are held back until the next part is known.
    bool held = false;
    bool after_match = false;
    std::size_t begin = 0;
    std::size_t end = 0;
    const auto flush = [&] {
      if (held) give(begin, end);
      held = false;
    };
    const auto part = [&](std::size_t part_begin, std::size_t part_end, bool is_match) {
      if (stage.inverted) is_match = !is_match;
      bool grows = false;
      switch (stage.matches) {
        case Matches::isolated:
          break;
        case Matches::removed:
          if (is_match) return;
          break;
        case Matches::to_previous:
          grows = is_match && !after_match;
          break;
        case Matches::to_next:
          grows = after_match && !is_match;
          break;
        case Matches::contiguous:
          grows = is_match == after_match;
          break;
      }
      if (!grows) flush();
      if (!held) begin = part_begin;
      end = part_end;
      held = true;
      after_match = is_match;
    };
    std::size_t given = 0;
    for_each_match(*stage.regex, text, scratch.regex,
                   [&](std::size_t match_begin, std::size_t match_end) {
                     if (given < match_begin) part(given, match_begin, false);
                     part(match_begin, match_end, true);
                     given = match_end;
                   });
    if (given < text.size()) part(given, text.size(), false);
    flush();
  }
};

void PreTokenizer::split(std::string_view text, bool at_front, Scratch& scratch,
                         ByteAllowance& allowance, const PieceFn& piece) const {
  if (text.empty()) return;
  scratch.regex.allow(split_steps_per_byte * stages_.size() * text.size());
  scratch.texts.resize(stages_.size());
  Run{stages_, scratch, allowance, piece}.from(0, text, at_front);
}

}  // namespace topkv
