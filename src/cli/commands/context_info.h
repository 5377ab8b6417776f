// What the commands say of a context in a file.
#pragma once

#include <string>

#include "topkv/context_file.h"

namespace topkv::cli {

/// `topkv info FILE.tkv`. Throws what context_file_info does.
void print_context_info(const std::string& file, bool json);

}  // namespace topkv::cli
