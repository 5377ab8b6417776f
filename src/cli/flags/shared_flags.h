// Flags that several commands share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/flags/help.h"

namespace topkv::cli {

Flag required(Flag flag);
/// The flag is refused unless another flag has one of these values.
Flag needing(Flag flag, std::string other, std::vector<std::string> values);
/// run.json has the flag only if it is given.
Flag if_given(Flag flag);
Flag length_flag(const std::string& otherwise);
std::vector<Flag> draft_flags();
/// The flags of a draft model.
std::vector<Flag> draft_model_flags(const std::string& meaning);
Flag profile_flag();
Flag folder_flag(const std::string& meaning, const std::string& otherwise = {});
Flag fresh_flag();
Flag files_flag(const std::string& meaning);
Flag haystack_flag(const std::string& meaning);
Flag depths_flag(const char* name, const std::string& meaning, const std::string& initial);
Flag json_flag(const std::string& meaning);

FlagGroup model_flags(const std::string& weights =
                          "hold weights as stored, or round them to int8 or int4 while loading");
/// The flags of a model, with the file of a trained indexer behind the model.
FlagGroup with_indexer(FlagGroup model, const std::string& meaning =
                                            "choose rows with the trained indexer in this file, on "
                                            "a CPU: --kv-topk tokens and the last --kv-window");
/// otherwise: what help says in place of the number of tokens `predict`.
FlagGroup sampling_flags(const std::string& predict, const std::string& otherwise = {});
/// The sampling flags, whose defaults a model's files may replace, and other flags of answers.
FlagGroup answer_flags(const std::string& predict);
/// How such answers are shown.
FlagGroup shown_flags();
FlagGroup retrieval_flags();
/// mode: the default.
FlagGroup prefill_flags(const std::string& mode);

/// The flags with these names may be given several times to compare settings.
FlagGroup compared(FlagGroup group, std::initializer_list<const char*> names);

/// A flag of the shared groups by its long name.
const Flag& shared_flag(std::string_view name);

}  // namespace topkv::cli
