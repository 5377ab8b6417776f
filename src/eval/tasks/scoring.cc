#include "src/eval/tasks/scoring.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/record_score.h"
#include "src/eval/tasks/sequence_ratio.h"
#include "src/eval/tasks/tsv_score.h"

namespace topkv {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether the byte goes on with a character of UTF-8.
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

constexpr std::size_t longest_answer = 100;  ///< times the reference, of a prefixed sequence

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

double f1(const std::string& answer, const std::string& reference) {
  const std::vector<std::string> given = words_of(answer);
  const std::vector<std::string> wanted = words_of(reference);
  if (given.empty() || wanted.empty()) return given.empty() && wanted.empty() ? 1 : 0;
  std::map<std::string, std::int64_t> left;
  for (const std::string& word : wanted) ++left[word];
  std::int64_t common = 0;
  for (const std::string& word : given) common += left[word]-- > 0 ? 1 : 0;
  if (common == 0) return 0;
  // 2 pr / (p + r), of precision and recall.
  return 2.0 * static_cast<double>(common) / static_cast<double>(given.size() + wanted.size());
}

}  // namespace

std::int64_t match_length(std::string_view answer, std::string_view reference) {
  answer = without_leading_space(answer);
  reference = without_leading_space(reference);
  const auto [a, b] =
      std::mismatch(answer.begin(), answer.end(), reference.begin(), reference.end());
  // A character that differs may have its first bytes in common.
  std::int64_t characters =
      std::count_if(reference.begin(), b, [](char c) { return !continues(c); });
  if (b != reference.end() && continues(*b)) --characters;
  return characters;
}

double prefixed_sequence_score(std::string_view answer, std::string_view reference) {
  answer = without_leading_space(answer);
  while (!answer.empty() && is_space(answer.back())) answer.remove_suffix(1);
  if (!answer.starts_with(reference.substr(0, mrcr_prefix))) return 0;
  if (answer.size() / longest_answer > reference.size()) return 0;
  return sequence_ratio(answer.substr(mrcr_prefix), reference.substr(mrcr_prefix));
}

std::string first_number(std::string_view text) {
  const auto begin = std::find_if(text.begin(), text.end(), is_digit);
  std::string digits;
  for (auto at = begin; at != text.end(); ++at) {
    const bool group = *at == ',' && std::distance(at, text.end()) > 3 &&
                       std::all_of(at + 1, at + 4, is_digit) &&
                       (std::distance(at, text.end()) == 4 || !is_digit(at[4]));
    if (is_digit(*at)) {
      digits += *at;
    } else if (!group) {
      break;
    }
  }
  return digits;
}

std::string squad_normalised(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::ispunct(byte) != 0) continue;
    plain += byte < 0x80 ? static_cast<char>(std::tolower(byte)) : c;
  }
  std::string joined;
  for (const std::string& word : words_of(plain)) {
    if (word == "a" || word == "an" || word == "the") continue;
    joined += (joined.empty() ? "" : " ") + word;
  }
  return joined;
}

double squad_f1(std::string_view answer, const std::vector<std::string>& references) {
  const std::string given = squad_normalised(answer);
  double best = 0;
  for (const std::string& reference : references) {
    best = std::max(best, f1(given, squad_normalised(reference)));
  }
  return best;
}

double score_of(Scoring scoring, std::string_view answer,
                const std::vector<std::string>& references) {
  const auto occurs = [&](const std::string& reference) { return answer_has(answer, reference); };
  switch (scoring) {
    case Scoring::all:
      return static_cast<double>(std::count_if(references.begin(), references.end(), occurs)) /
             static_cast<double>(references.size());
    case Scoring::any:
      return std::any_of(references.begin(), references.end(), occurs) ? 1 : 0;
    case Scoring::number:
      return first_number(answer) == references.front() ? 1 : 0;
    case Scoring::prefixed_sequence:
      return prefixed_sequence_score(answer, references.front());
    case Scoring::tsv_rows:
      return tsv_score(answer, references.front());
    case Scoring::records:
      return record_score(answer, references.front());
    case Scoring::match:
      break;
  }
  return static_cast<double>(match_length(answer, references.front()));
}

}  // namespace topkv
