// What commands read: texts of files, and lines that people type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace topkv::cli {

/// A file whose text a command has read.
struct TextFile {
  std::string name;
  std::int64_t bytes = 0;
};

/// The texts behind each other; "-" is standard input. Warns, on standard error, of one that is not
/// UTF-8. Throws FileError for one that cannot be read or is no text (a context, a PDF, a byte 0),
/// and where there are files and no text in them. parts: gets a member for each file, unless null.
std::string text_of_files(const std::vector<std::string>& files,
                          std::vector<TextFile>* parts = nullptr);

/// The next line of standard input; nothing at its end. prompts: a person is asked for it. One
/// signal ends the program while it waits. Throws FileError, and Interrupted when one has arrived
/// before.
std::optional<std::string> next_line(bool prompts);

/// Whether next_line would return without waiting: a line is there, or the end.
bool line_waits();

}  // namespace topkv::cli
