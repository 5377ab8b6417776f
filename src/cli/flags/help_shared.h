// What --help says of flags that several commands share (src/cli/flags/options.h).
#pragma once

#include <string>

#include "src/cli/flags/help.h"

namespace topkv::cli {

/// That a flag may be given several times to compare settings.
enum class Repeats : bool { no, yes };

FlagGroup model_help(const std::string& weights =
                         "hold weights as stored, or round them to int8 or int4 while loading");
/// model_default: what is written before a default that a model's files may replace.
FlagGroup sampling_help(const std::string& predict, const std::string& model_default = {});
/// The sampling flags, and the flags of src/cli/flags/answer_flags.h.
FlagGroup answer_help(const std::string& predict);
/// How such answers are shown.
FlagGroup shown_help();
FlagGroup retrieval_help(const std::string& k, Repeats repeats = Repeats::no);
/// mode: the default.
FlagGroup prefill_help(const std::string& mode);

FlagHelp model_flag_help(const std::string& more = {});
FlagHelp device_help();
FlagHelp gpu_memory_help();
FlagHelp weights_help(const std::string& meaning, const std::string& otherwise = "stored");
FlagHelp threads_help();
FlagHelp index_help(const std::string& otherwise, Repeats repeats = Repeats::no);
FlagHelp host_search_help();
FlagHelp dtype_help(Repeats repeats = Repeats::no);
FlagHelp memory_help();
FlagHelp length_help(const std::string& otherwise);
FlagHelp seed_help();

}  // namespace topkv::cli
