#include "src/eval/run/method.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

/// A method that has a name of its own; all others are named after their index.
struct Named {
  std::string_view name;
  std::string_view index;  ///< empty: the model's default
  std::string_view tail;
  std::int64_t dense_layers;  ///< at least; all_layers: all
  bool widens_window;
};

constexpr std::int64_t all_layers = std::int64_t{1} << 40;

constexpr Named named[] = {
    {"dense", "exact", "none", all_layers, false},
    {"codes", "", "", 0, false},
    // Its first two layers attend all rows (Tang et al. 2024, section 4.1).
    {"quest", "quest:page=16", "", 2, false},
    // Sinks and window alone (Xiao et al. 2024, StreamingLLM; Han et al. 2024, LM-Infinite).
    {"streaming", "none", "none", 0, true},
};

[[noreturn]] void refuse(std::string_view method, const std::string& what) {
  throw InvalidArgument(fmt::format("method '{}': {}", method, what));
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void set_parameter(Method& method, const std::string& parameter, std::int64_t layers) {
  const std::size_t equals = std::min(parameter.find('='), parameter.size());
  const std::string name = parameter.substr(0, equals);
  const std::string value = parameter.substr(std::min(equals + 1, parameter.size()));
  const auto count = [&](std::int64_t least, std::int64_t most) {
    const std::optional<std::int64_t> number = whole_number(value);
    if (!number || *number < least || *number > most) {
      refuse(method.name, fmt::format("{}: expected a whole number from {} to {}, found '{}'", name,
                                      least, most, value));
    }
    return *number;
  };
  constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
  if (name == "window") {
    method.options.window = count(1, most_tokens);
  } else if (name == "sinks") {
    method.options.sinks = count(0, most_tokens);
  } else if (name == "dense") {
    method.options.dense_layers = value == "all" ? layers : count(0, layers);
  } else if (name == "select" && (value == "query_head" || value == "group")) {
    method.options.select_by = value == "group" ? SelectBy::group : SelectBy::query_head;
  } else if (name == "schedule" && (value == "same" || value == "rising")) {
    method.rising_layers = value == "rising" ? layers : 0;
  } else {
    refuse(method.name,
           fmt::format("'{}' is no parameter; expected window=N, sinks=N, dense=N, dense=all, "
                       "select=query_head, select=group, schedule=same or schedule=rising behind "
                       "'@', with commas between them",
                       parameter));
  }
}

/// The index and, beside it, the tail; each checked.
void set_index(Method& method, std::string_view name, std::optional<std::string_view> tail,
               const MethodDefaults& defaults) {
  RetrievalOptions& options = method.options;
  const auto* const own = std::ranges::find(named, name, &Named::name);
  if (own != std::end(named)) {
    options.index = own->index.empty() ? IndexSpec::default_for(defaults.head_dim).text()
                                       : std::string(own->index);
    options.tail = std::string(own->tail);
    options.dense_layers =
        std::max(options.dense_layers, std::min(own->dense_layers, defaults.layers));
    method.widens_window = own->widens_window;
  } else {
    options.index = std::string(name);
    options.tail.clear();
  }
  try {
    const IndexSpec index(options.index);
    index.check_index();
    index.check(defaults.head_dim, 0);
    if (!tail) return;
    options.tail = std::string(*tail);
    if (*tail == "none") return;
    // Plain codes are those that the index has itself, if it has some.
    if (*tail == "codes" && index.has_code_tail()) {
      options.tail.clear();
      return;
    }
    const IndexSpec spec(*tail);
    spec.check(defaults.head_dim, 0);
    if (spec.has_tail()) return;
  } catch (const InvalidArgument& error) {
    std::string names;
    for (const std::string& known : method_names()) names += known + ", ";
    refuse(method.name, fmt::format("{}; methods are {}or an index, with +TAIL and @PARAMETERS",
                                    error.what(), names));
  }
  refuse(method.name,
         fmt::format("the tail '{}' has no codes of values; expected none, mean, or codes", *tail));
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Named& one : named) names.emplace_back(one.name);
  return names;
}

RetrievalOptions Method::with(std::int64_t budget, std::int64_t capacity) const {
  RetrievalOptions made = options;
  if (budgets && widens_window) {
    made.window += budget;
  } else if (budgets) {
    made.k = rising_layers > 0 ? TopK::linear_sum(budget * rising_layers) : TopK::same(budget);
  }
  made.capacity = capacity;
  return made;
}

std::vector<std::string> Method::indices() const {
  std::vector<std::string> specs = {options.index};
  if (!options.tail.empty() && options.tail != "none") specs.push_back(options.tail);
  return specs;
}

Method parse_method(std::string_view text, const MethodDefaults& defaults) {
  Method method;
  method.name = std::string(text);
  method.options = defaults.options;
  const std::size_t at = std::min(text.find('@'), text.size());
  const std::string_view head = text.substr(0, at);
  const std::size_t plus = std::min(head.find('+'), head.size());
  std::optional<std::string_view> tail;
  if (plus < head.size()) tail = head.substr(plus + 1);
  set_index(method, head.substr(0, plus), tail, defaults);
  if (at < text.size()) {
    for (const std::string& parameter : split(text.substr(at + 1), ',')) {
      set_parameter(method, parameter, defaults.layers);
    }
  }
  method.budgets = method.options.dense_layers < defaults.layers;
  return method;
}

std::vector<std::string> split_methods(std::string_view list) {
  std::vector<std::string> texts;
  for (const std::string& part : split(list, ';')) {
    if (part.starts_with("nprobe=") && !texts.empty()) {
      texts.back() += ";" + part;
    } else {
      texts.push_back(part);
    }
  }
  for (const std::string& text : texts) {
    if (std::ranges::count(texts, text) > 1) {
      refuse(text, "is given twice; expected different methods");
    }
  }
  return texts;
}

std::vector<Method> parse_methods(std::string_view list, const MethodDefaults& defaults) {
  std::vector<Method> methods;
  for (const std::string& text : split_methods(list)) {
    methods.push_back(parse_method(text, defaults));
  }
  return methods;
}

}  // namespace topkv
