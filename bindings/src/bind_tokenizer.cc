#include <fmt/format.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bindings/src/array.h"
#include "bindings/src/handles.h"
#include "topkv/tokenizer.h"

namespace topkv::python {

void bind_tokenizer(py::module_& module) {
  py::class_<Tokenizer>(
      module, "Tokenizer",
      "The tokenizer of a tokenizer.json or a GGUF file: BPE, of bytes or of SentencePiece's "
      "pieces, or Unigram. Immutable; safe from many threads.")
      .def_static(
          "load", [](const std::filesystem::path& file) { return Tokenizer::load(file, &warn); },
          py::arg("tokenizer_json"), WithoutGil())
      .def("encode", &Tokenizer::encode, py::arg("text"), py::arg("add_special_tokens") = false,
           WithoutGil(),
           "Returns token ids as the tokenizers library does. Bytes without a token in the "
           "vocabulary are left out, as the library does. The first text that loses bytes causes a "
           "UserWarning.")
      .def(
          "beginning_tokens", &Tokenizer::beginning_tokens,
          "Returns the special tokens that the file puts before a text: usually a BOS, or nothing.")
      .def("left_out", &Tokenizer::left_out, py::arg("text"), WithoutGil(),
           "The bytes that encode leaves out of a text, in one line; empty: none.")
      .def(
          "decode",
          [](const Tokenizer& self, py::handle tokens) {
            return self.decode(tokens_of(tokens, "tokens"));
          },
          py::arg("tokens"),
          "Returns the text of the tokens, without special ones. Incomplete UTF-8 becomes U+FFFD.")
      .def(
          "bytes_of_token",
          [](const Tokenizer& self, Token token) { return py::bytes(self.bytes_of_token(token)); },
          py::arg("token"), "Raw bytes of one token; empty for special tokens.")
      .def("content_of_token", &Tokenizer::content_of_token, py::arg("token"),
           "Content of a token as the file spells it; empty for ids without a token.")
      .def("find", &Tokenizer::find, py::arg("content"),
           "Id of a token by its content as the file spells it; -1: there is no such token.")
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def("__repr__", [](const Tokenizer& self) {
        return fmt::format("<Tokenizer of {} tokens>", self.vocab_size());
      });
}

}  // namespace topkv::python
