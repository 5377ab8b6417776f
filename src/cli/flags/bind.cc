#include "src/cli/flags/bind.h"

namespace topkv::cli {

FlagBinder::FlagBinder(CLI::App& command) : command_(command), help_(help_of(command.get_name())) {}

void FlagBinder::add_option(const Flag& flag, const CLI::callback_t& read) {
  CLI::Option* option = command_.add_option(flag.names, read, flag.value.expected);
  option->required(flag.required)->default_str(flag.fallback());
  if (!flag.value.repeats) return;
  if (!flag.names.starts_with('-')) option->expected(CLI::detail::expected_max_vector_size);
  option->take_all();
}

}  // namespace topkv::cli
