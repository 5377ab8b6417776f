#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/handles.h"
#include "topkv/chat_template.h"
#include "topkv/error.h"
#include "topkv/find_model.h"

namespace topkv::python {
namespace {

/// Messages as transformers takes them: {"role": "user", "content": "…"}.
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
  return {text("role"), text("content")};
}

}  // namespace

void bind_chat_template(py::module_& module) {
  py::class_<ChatTemplate>(
      module, "ChatTemplate",
      "The chat template of a model directory or a GGUF file, rendered as transformers' "
      "apply_chat_template does. Immutable; safe from many threads.")
      .def_static(
          "load",
          [](const std::filesystem::path& directory) {
            return ChatTemplate::load(find_model(directory.native(), ModelFiles::description));
          },
          py::arg("directory"), WithoutGil())
      .def(
          "render",
          [](const ChatTemplate& self, const py::sequence& messages, bool add_generation_prompt) {
            std::vector<ChatMessage> conversation;
            for (const py::handle& message : messages) {
              conversation.push_back(message_of(message, conversation.size()));
            }
            const py::gil_scoped_release release;
            return self.render(conversation, add_generation_prompt);
          },
          py::arg("messages"), py::arg("add_generation_prompt") = false,
          "The text of a conversation, of dicts with role and content. Special tokens are in it: "
          "encode it without add_special_tokens.")
      .def_property_readonly("source", &ChatTemplate::source)
      .def("__repr__", [](const ChatTemplate& self) {
        return fmt::format("<ChatTemplate of {} bytes>", self.source().size());
      });
}

}  // namespace topkv::python
