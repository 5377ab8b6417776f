// What run.json has of a command's flags, each in one spelling.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/eval/run/eval_result.h"

namespace topkv::cli {

/// The path as it is from anywhere, fit for JSON.
std::string absolute_path(const std::string& path);

/// Adds to the configuration of a run what run.json has of the flags that are visited
/// (visit_flags). Members that are there already stay.
class ConfigWriter {
 public:
  ConfigWriter(Json& json, const char* command) : json_(json), groups_(help_of(command).groups) {}

  template <class T>
  void operator()(std::string_view name, const T& value) const {
    const Flag* flag = find_flag(groups_, name);
    if (flag == nullptr || flag->in_config == Flag::InConfig::none) return;
    if (flag->in_config == Flag::InConfig::always || value != initial_value<T>(*flag))
      json_.emplace(flag->config_name(), to_json(*flag, value));
  }

 private:
  template <class T>
  static Json to_json(const Flag& /*flag*/, const T& value) {
    return value;
  }
  template <class T>
  static Json to_json(const Flag& flag, const std::optional<T>& value) {
    return value ? Json(*value) : Json(flag.value.word.empty() ? "auto" : flag.value.word);
  }

  Json& json_;
  const std::vector<FlagGroup>& groups_;
};

/// Replaces what only the run knows, and leaves out what the prefill does not read.
void resolve_settings(Json& json, const PrefillFlags& flags, std::int64_t threads,
                      const std::string& device);

/// The flags with the mode in which the contexts of all answers were read. It stays if they differ,
/// or if an answer does not have it.
PrefillFlags as_read(PrefillFlags flags, const std::vector<EvalResult>& answers);

/// The line of settings under a table: what begins it, then layers, prefill and rows.
std::string settings_text(std::string begin, const RetrievalFlags& retrieval,
                          const PrefillFlags& prefill);

}  // namespace topkv::cli
