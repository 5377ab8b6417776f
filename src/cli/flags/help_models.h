// What --help says of the commands that run a model for what it answers.
#pragma once

#include "src/cli/flags/help.h"

namespace topkv::cli {

CommandHelp needle_help();
CommandHelp generate_help();
CommandHelp chat_help();
CommandHelp prefill_command_help();
CommandHelp ask_help();
CommandHelp serve_help();
CommandHelp verify_help();

}  // namespace topkv::cli
