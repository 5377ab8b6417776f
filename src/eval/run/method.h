// A method to compare: how a session finds the rows that it attends, by a short text.
//
//   NAME[+TAIL][@PARAMETER,…]
//
// NAME is one of method_names(), or any index (IndexSpec). TAIL is what stands for the rows not
// found: none, mean, or an index that codes values; without it what the index has. Parameters:
// window=N, sinks=N, dense=N|all (first layers that attend all rows), select=query_head|group,
// schedule=same|rising (of the budget over the layers: Synk et al. 2025, section 4.4).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/session.h"

namespace topkv {

/// What methods have where their text does not say, and the model that they are for.
struct MethodDefaults {
  std::int64_t head_dim = 0;
  std::int64_t layers = 0;
  RetrievalOptions options = {};  ///< window, sinks, dense_layers and select_by are read
};

struct Method {
  std::string name;               ///< as it was given
  RetrievalOptions options = {};  ///< all but k and capacity
  /// False: the method has no budget. It attends all rows, or `topk` of them.
  bool budgets = true;
  std::string topk = {};  ///< options.k as given, of a method whose rows are no budget
  /// Finds no rows: the window is wider by the budget, so that as many are attended as by others.
  bool widens_window = false;
  /// Above 0: a budget for so many layers is theirs together, rising from layer to layer.
  std::int64_t rising_layers = 0;

  /// With so many rows, and room for so many tokens of the session's own.
  RetrievalOptions with(std::int64_t budget, std::int64_t capacity) const;
  /// Indices and tails that a context must have.
  std::vector<std::string> indices() const;
};

/// Names that are no index: "dense", …
std::vector<std::string> method_names();

/// Throws InvalidArgument naming the part that was not understood and what is known.
Method parse_method(std::string_view text, const MethodDefaults& defaults);

/// The texts of several methods, with ';' between them. ("nprobe=32" after a ';' belongs to the
/// index before it, as FAISS spells it.) Throws when two are the same.
std::vector<std::string> split_methods(std::string_view list);

/// Several, as split_methods parts them.
std::vector<Method> parse_methods(std::string_view list, const MethodDefaults& defaults);

}  // namespace topkv
