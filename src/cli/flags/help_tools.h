// What --help says of the commands that tell, plan, measure and compare.
#pragma once

#include "src/cli/flags/help.h"

namespace topkv::cli {

CommandHelp info_help();
CommandHelp plan_help();
CommandHelp fidelity_help();
CommandHelp perplexity_help();
CommandHelp eval_help();
CommandHelp bench_help();
CommandHelp completion_help();
CommandHelp manual_help();

}  // namespace topkv::cli
