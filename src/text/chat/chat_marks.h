// Whether all of a conversation gets into the text that a template makes of it. Templates drop
// messages whose role they do not know, and tools that they do not take, without a word.
#pragma once

#include <string>
#include <string_view>

#include "src/text/jinja/render.h"

namespace topkv {

/// The first message, tool or tool call whose content is not in the text; empty: all are. Renders
/// the template again, with a mark in the place of each content and name. text: the template's for
/// the input; for templates that refuse marks the contents are looked for in it. Throws
/// OutOfMemory.
std::string lost_in(std::string_view source, const TemplateInput& input, const std::string& text);

}  // namespace topkv
