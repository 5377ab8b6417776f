// The fields of a KL divergence in lines for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "src/eval/run/likelihood.h"

namespace topkv {

/// kl: not known: all fields are null.
inline void add_kl(nlohmann::ordered_json& json, const std::optional<Spread>& kl) {
  const auto add = [&](const char* name, double Spread::*member) {
    json[name] = kl ? nlohmann::ordered_json((*kl).*member) : nlohmann::ordered_json(nullptr);
  };
  add("kl_mean", &Spread::mean);
  add("kl_median", &Spread::median);
  add("kl_p90", &Spread::p90);
  add("kl_p95", &Spread::p95);
  add("kl_p99", &Spread::p99);
  add("kl_max", &Spread::most);
}

}  // namespace topkv
