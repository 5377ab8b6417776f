// Whether and how much a model thinks before it answers, as variables of its chat template.
#pragma once

#include <string>

#include "src/serve/answer/answer_form.h"
#include "src/serve/request/request.h"

namespace topkv::serve {

/// Returns the request's variables of the template, with those that say how it thinks. source: of
/// the template; form: answer_form of it. Throws Problem (400) for a model that does not think, or
/// whose thinking cannot be turned off.
std::string variables_with_thinking(const AnswerRequest& request, const std::string& source,
                                    const AnswerForm& form);

}  // namespace topkv::serve
