// Builds the context of a needle test: intro, haystack and needles, as tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/tasks/haystack.h"
#include "src/eval/tasks/needle_task.h"
#include "topkv/types.h"

namespace topkv {

using EncodeFn = std::function<std::vector<Token>(std::string_view)>;

/// A needle and the tokens [begin, end) of the context that hold it.
struct PlacedNeedle {
  Needle needle;
  PositionRange tokens;
};

struct NeedleContext {
  std::vector<Token> tokens;
  std::vector<PlacedNeedle> needles;  ///< in the order asked, by depth
};

/// The context is
///   beginning (a BOS, if any), intro, haystack sentences with the needles among them, "\n"
/// and holds as many whole haystack sentences as fit in `length` tokens: it is never longer, and
/// shorter by less than one sentence. Each needle stands between two sentences, where its first
/// token is nearest to depth/100 * length; the question is not part of it.
///
/// Sentences are encoded one by one, each with the white space that a pre-tokenizer would join to
/// it, so that the tokens are those of the whole text.
///
/// REQUIRES: needles in ascending depth. Throws InvalidArgument when intro and needles alone are
/// longer than length.
NeedleContext build_needle_context(std::int64_t length, const std::vector<Token>& beginning,
                                   const std::string& intro, const std::vector<Needle>& needles,
                                   Haystack& haystack, const EncodeFn& encode);

}  // namespace topkv
