// Many partials at once.
#pragma once

#include "topkv/attention.h"

namespace topkv {

/// Merges partials that lie one behind the other, of into.heads heads each, into `into`: what merge
/// gives for one after the other, for less. Of empty ones nothing but lse is read. REQUIRES: the
/// key sets are disjoint.
void merge_parts(PartialView into, PartialView parts);

}  // namespace topkv
