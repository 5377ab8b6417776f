// Where the time of a session's steps went, layer by layer.
#pragma once

#include <string>
#include <vector>

#include "topkv/session.h"

namespace topkv::cli {

/// total += after - before, for times of one session at two moments; before may be empty.
void add_difference(std::vector<StepTimes>& total, const std::vector<StepTimes>& after,
                    const std::vector<StepTimes>& before);

/// Milliseconds per step in each layer and in all of them; columns that are 0 throughout are left
/// out. steps: calls of Session::attend per layer. whole_seconds: of these steps, network included.
/// In lines of `width` characters.
std::string profile_table(const std::vector<StepTimes>& layers, std::int64_t steps,
                          double whole_seconds, std::size_t width);

}  // namespace topkv::cli
