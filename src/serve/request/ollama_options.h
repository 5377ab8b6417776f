// "options" of requests in Ollama's form.
#pragma once

#include "src/serve/request/fields.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Reads the field "options". Options of how a model is loaded have no effect. Throws Problem (400)
/// for options that would change the answer in a way that topkv does not have.
void take_ollama_options(Fields& fields, AnswerOptions& options);

}  // namespace topkv::serve
