// What a table of tab-separated values is worth. A pure function.
#pragma once

#include <string_view>

namespace topkv {

/// LongProc's score of HTML to TSV (Ye et al. 2025, arXiv 2501.05414; princeton-pli/LongProc,
/// html_to_tsv_evaluator.py), between 0 and 1: F1 of the rows. Precision is the share of the
/// answer's rows that the reference has, recall the share of the reference's rows that the answer
/// has, in any order. Rows are equal if all their cells are, in any case and without punctuation,
/// the words a, an, the, and white space. A row with another number of cells than the header is
/// wrong; as the last row it is left out, for it may be cut off.
///
/// What stands in a fence ```tsv counts, or else the whole answer. The question ends with the
/// header, so that an answer begins with its first row; a header that it repeats is left out. It
/// ends at the first empty line, for an answer without a chat template may go on. Quotes have no
/// meaning. REQUIRES: the first line of the reference is the header, with a row after it.
double tsv_score(std::string_view answer, std::string_view reference);

}  // namespace topkv
