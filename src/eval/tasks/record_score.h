// What a list of records in JSON is worth. A pure function.
#pragma once

#include <string_view>

namespace topkv {

/// Text2JSON's score (Bocharnikov et al. 2026, arXiv 2604.08426;
/// yandex-research/context-intensive-kv-offloading, Text2jsonEvaluator), between 0 and 1. Records
/// are found by their "name", in any order. A record of which every value is right counts 1. A key
/// that is missing or null takes away 1 divided by the number of keys beside the name, a wrong
/// value half of that. The sum is divided by the number of records in the reference plus the number
/// of records in the answer that it does not have. A whole number equals its digits as a string.
///
/// An answer that is no JSON list of objects scores 0. Text2JSON also gives 0 to an answer with
/// more than one pair of brackets; here its first list counts, for an answer without a chat
/// template may go on. REQUIRES: the reference is a list of objects of strings, each with a "name"
/// of its own.
double record_score(std::string_view answer, std::string_view reference);

}  // namespace topkv
