// What fidelity is measured on: a haystack with needles as the context, and questions for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/eval/run/fidelity.h"
#include "topkv/tokenizer.h"

namespace topkv {

struct FidelityText {
  std::vector<Token> context;
  std::vector<Probe> probes;  ///< each asks for one needle and answers
};

/// A context of at most `length` tokens that starts with `beginning`, and a needle and a probe for
/// each depth, in percent. Throws what make_haystack and build_needle_context throw.
FidelityText make_fidelity_text(const Tokenizer& tokenizer, const std::vector<Token>& beginning,
                                std::int64_t length, const std::vector<double>& depths,
                                const std::string& haystack, std::uint64_t seed);

}  // namespace topkv
