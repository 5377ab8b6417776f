// What `topkv bench` prints: a table for people, or a JSON line per row. Both are made from the
// same columns.
#pragma once

#include <string>
#include <vector>

#include "src/cli/bench/bench_run.h"

namespace topkv::cli {

/// Heading, figures of the rows, one table row per measurement, notes; with profile also the time
/// of each layer. In lines of `width` characters.
std::string bench_text(const BenchReport& report, bool profile, std::size_t width);

/// One object per measurement, each complete in itself; times in seconds, null where a figure does
/// not apply.
std::vector<Json> bench_json(const BenchReport& report, bool profile);

}  // namespace topkv::cli
