// What an answer is worth. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

enum class Scoring : std::uint8_t {
  all,     ///< share of the references that occur in the answer, in any case (RULER's
           ///< string_match_all)
  any,     ///< 1 when one of them does (RULER's string_match_part)
  number,  ///< 1 when the first number in the answer is the reference
  match,   ///< characters that the answer has in common with the reference from its beginning
  prefixed_sequence,  ///< how alike answer and reference are behind their prefix (OpenAI's MRCR)
  tsv_rows,           ///< F1 of the reference's rows of tab-separated values (LongProc)
  records,            ///< share of the reference's JSON records that are right (Text2JSON)
};

/// Between 0 and 1; of Scoring::match a count of characters. REQUIRES: a reference.
double score_of(Scoring scoring, std::string_view answer,
                const std::vector<std::string>& references);

/// Characters (code points) that both begin with, once white space before them is left out. (Ribar
/// et al. 2024, SparQ Attention; graphcore-research/llm-inference-research,
/// llminference/tasks/repetition.py.)
std::int64_t match_length(std::string_view answer, std::string_view reference);

/// Characters of the random string that an answer of Scoring::prefixed_sequence begins with.
inline constexpr std::size_t mrcr_prefix = 10;

/// The score of OpenAI's MRCR (openai/mrcr, README.md), between 0 and 1: 0 when the answer does not
/// begin with the first mrcr_prefix bytes of the reference, else the sequence_ratio of the text
/// behind them. White space around the answer is left out first, for prompts without a chat
/// template end before a space. An answer of more than 100 times the bytes of the reference scores
/// 0: its ratio is near 0, and takes long to compute. REQUIRES: a reference with a prefix in ASCII.
double prefixed_sequence_score(std::string_view answer, std::string_view reference);

/// The first whole number in a text ("1,240" is 1240), as digits; empty where there is none.
std::string first_number(std::string_view text);

/// As SQuAD compares answers (Rajpurkar et al. 2016, evaluate-v1.1.py): lower case, without ASCII
/// punctuation and the words a, an, the, words apart by one space.
std::string squad_normalised(std::string_view text);

/// SQuAD's F1 of the words in common, with the reference that gives most. REQUIRES: a reference.
double squad_f1(std::string_view answer, const std::vector<std::string>& references);

}  // namespace topkv
