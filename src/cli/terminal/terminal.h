// What the stream's other end can do: rewrite a line, show colours, and how wide it is.
#pragma once

#include <cstddef>
#include <cstdio>

namespace topkv::cli {

/// Whether a line there can be written over. Not in a pipe or a file, on a dumb terminal, or where
/// a log is kept (CI).
bool rewrites_lines(std::FILE* out);

/// The same, and colours are not declined (https://no-color.org).
bool shows_colour(std::FILE* out);

/// Characters of a line there, now: it changes with the window. 80 for what is no terminal.
std::size_t line_width(std::FILE* out);

/// The same of text that is read like a page, as help is: in a pipe, too, what the environment's
/// COLUMNS asks for, where that is a number.
std::size_t page_width(std::FILE* out);

}  // namespace topkv::cli
