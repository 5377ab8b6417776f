#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/handles.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"
#include "topkv/find_model.h"

namespace topkv::python {
namespace {

std::string json_of(const py::object& value) {
  return py::module_::import("json").attr("dumps")(value).cast<std::string>();
}

/// Messages as transformers takes them: {"role": "user", "content": "…"}, and other fields.
ChatMessage message_of(const py::handle& given, std::size_t index) {
  const auto text = [&](const char* key) -> std::string {
    if (py::isinstance<py::dict>(given)) {
      const auto message = py::reinterpret_borrow<py::dict>(given);
      if (message.contains(key) && py::isinstance<py::str>(message[key])) {
        return message[key].cast<std::string>();
      }
    }
    throw InvalidArgument(
        fmt::format("messages[{}] is {}; expected a dict with the texts \"role\" and \"content\"",
                    index, py::repr(given).cast<std::string>().substr(0, 100)));
  };
  ChatMessage message{.role = text("role"), .content = {}};
  const auto more = py::reinterpret_steal<py::dict>(PyDict_Copy(given.ptr()));
  const bool calls = more.contains("tool_calls") && !more["tool_calls"].is_none() &&
                     py::len(more["tool_calls"]) > 0;
  const bool none = !more.contains("content") || more["content"].is_none();
  if (!calls || !none) message.content = text("content");
  for (const char* key : {"role", "content"}) more.attr("pop")(key, py::none());
  if (!more.empty()) message.fields = json_of(more);
  return message;
}

}  // namespace

void bind_chat_template(py::module_& module) {
  py::class_<ChatTemplate>(
      module, "ChatTemplate",
      "The chat template of a model directory or a GGUF file, rendered as by transformers' "
      "apply_chat_template. Immutable; safe from many threads.")
      .def_static(
          "load",
          [](const std::filesystem::path& directory) {
            return ChatTemplate::load(find_model(directory.native(), ModelFiles::description));
          },
          py::arg("directory"), WithoutGil())
      .def(
          "render",
          [](const ChatTemplate& self, const py::sequence& messages, bool add_generation_prompt,
             const py::object& tools, const py::kwargs& variables) {
            std::vector<ChatMessage> conversation;
            for (const py::handle& message : messages) {
              conversation.push_back(message_of(message, conversation.size()));
            }
            py::dict all = variables;
            if (!tools.is_none()) all["tools"] = tools;
            const std::string seen = all.empty() ? std::string() : json_of(all);
            const GilReleased released;
            return self.render(conversation, add_generation_prompt, seen);
          },
          py::arg("messages"), py::arg("add_generation_prompt") = false,
          py::arg("tools") = py::none(),
          "Returns the text of a conversation.\n\n"
          "messages: dicts with role, content and other fields that the template knows "
          "(tool_calls, tool_call_id, name, reasoning_content).\n\n"
          "tools: a list of functions, described by JSON schemas.\n\n"
          "Further arguments are variables of the template, such as enable_thinking. Messages and "
          "tools that the template leaves out raise InvalidArgument. The text has special tokens: "
          "encode it without add_special_tokens.")
      .def_property_readonly("source", &ChatTemplate::source)
      .def("__repr__", [](const ChatTemplate& self) {
        return fmt::format("<ChatTemplate of {} bytes>", self.source().size());
      });
}

}  // namespace topkv::python
