// What tails that attend query by query have in common.
#pragma once

#include <algorithm>
#include <cstdint>

#include "index/common/row_tail.h"
#include "index/common/scratch.h"
#include "src/core/threads/threads.h"

namespace topkv {

/// Makes the parts empty and calls attend(query number, its allowed range within `count` rows,
/// which is not empty, workspace, its parts) for each query that has such a range. On several
/// threads.
template <class Workspace, class Attend>
void attend_each(const QueryBlock& queries, std::int64_t count, const TailParts& out,
                 const Attend& attend) {
  make_empty(out);
  parallel_for(queries.count, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<Workspace> workspace;
    for (std::int64_t q = begin; q < end; ++q) {
      const PositionRange allowed = queries.allowed[static_cast<std::size_t>(q)].within({0, count});
      if (allowed.size() == 0) continue;
      attend(q, allowed, *workspace, out.part(q, 1));
    }
  });
}

}  // namespace topkv
