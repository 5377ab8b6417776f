// Scripts that let a shell complete commands, flags and values, from what --help says.
#pragma once

#include <string>

namespace topkv::cli {

std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();

}  // namespace topkv::cli
