#include "src/text/chat/chat_marks.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"

namespace topkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Letters and digits alone: filters leave such texts as they are. Nobody gains by spelling a mark,
// which replaces the texts of the conversation.
constexpr std::string_view mark_begin = "topkvmark";
constexpr std::string_view mark_end = "end";

std::string mark_of(std::size_t number) {
  return fmt::format("{}{}{}", mark_begin, number, mark_end);
}

/// Which marks a text has. Linear in the text.
std::vector<bool> marks_in(const std::string& text, std::size_t count) {
  std::vector<bool> found(count);
  for (std::size_t at = text.find(mark_begin); at != text.npos; at = text.find(mark_begin, at)) {
    at += mark_begin.size();
    std::size_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + at, end, number);
    if (error == std::errc() && number < count && std::string_view(stop, end).starts_with(mark_end))
      found[number] = true;
  }
  return found;
}

/// A text of the conversation.
struct Marked {
  std::string name;     // for messages to people
  std::string content;  // without white space around it
  bool needed = true;
};

std::string trimmed(const std::string& text) {
  constexpr const char* white = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(white);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(white) + 1 - begin);
}

class Marks {
 public:
  /// A text gets its mark, unless it is white space: then there is nothing to lose.
  void put(OrderedJson& text, std::string name, bool needed = true) {
    if (!text.is_string()) return;
    std::string content = trimmed(text.get_ref<const std::string&>());
    if (content.empty()) return;
    text = mark_of(marked_.size());
    marked_.push_back({std::move(name), std::move(content), needed});
  }

  const std::vector<Marked>& all() const { return marked_; }

 private:
  std::vector<Marked> marked_;
};

/// The name of the function in a tool or a tool call; null where there is none.
OrderedJson* name_in(OrderedJson& tool) {
  if (!tool.is_object()) return nullptr;
  OrderedJson* function = &tool;
  if (const auto inner = tool.find("function"); inner != tool.end() && inner->is_object())
    function = &*inner;
  const auto name = function->find("name");
  return name == function->end() ? nullptr : &*name;
}

void put_marks(OrderedJson& message, std::size_t number, Marks& marks) {
  const std::string name = fmt::format("message {} (counted from 0), of the role \"{}\"", number,
                                       printable_beginning(message["role"].get<std::string>()));
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
  marks.put(message["content"], name, !has_calls);
  if (!has_calls) return;
  std::size_t of_call = 0;
  for (OrderedJson& call : *calls) {
    OrderedJson* const called = name_in(call);
    if (called != nullptr) marks.put(*called, fmt::format("tool call {} of {}", of_call, name));
    ++of_call;
  }
}

}  // namespace

std::string lost_in(std::string_view source, const TemplateInput& input, const std::string& text) {
  TemplateInput probe = input;
  Marks marks;
  std::size_t number = 0;
  for (OrderedJson& message : probe.messages) put_marks(message, number++, marks);
  if (const auto tools = probe.variables.find("tools"); tools != probe.variables.end()) {
    std::size_t of_tool = 0;
    if (tools->is_array()) {
      for (OrderedJson& tool : *tools) {
        if (OrderedJson* const name = name_in(tool))
          marks.put(*name, fmt::format("tool {} (counted from 0)", of_tool));
        ++of_tool;
      }
    }
  }
  if (marks.all().empty()) return {};
  std::optional<std::vector<bool>> found;
  try {
    found = marks_in(render_template(source, probe), marks.all().size());
  } catch (const TemplateFailure&) {
    // It looks into the contents: they are looked for as they are.
  }
  for (std::size_t i = 0; i < marks.all().size(); ++i) {
    const Marked& one = marks.all()[i];
    const bool there = found ? (*found)[i] : text.find(one.content) != text.npos;
    if (one.needed && !there) return one.name;
  }
  return {};
}

}  // namespace topkv
