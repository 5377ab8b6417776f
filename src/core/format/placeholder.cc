#include "src/core/format/placeholder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "src/core/io/open_file.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// prefix: in small letters.
bool starts_with_any_case(std::string_view text, std::string_view prefix) {
  const auto alike = [](char of_text, char small) {
    return std::tolower(static_cast<unsigned char>(of_text)) == small;
  };
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [&](char small, char of_text) { return alike(of_text, small); });
}

/// Whether a tag's name ends here: "<html>", not "<htmlish>".
bool begins_with_tag(std::string_view text, std::string_view tag) {
  if (!starts_with_any_case(text, tag)) return false;
  return text.size() == tag.size() ||
         std::string_view(" \t\r\n>/").find(text[tag.size()]) != std::string_view::npos;
}

}  // namespace

void refuse_placeholder(std::string_view beginning, const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view is, std::string_view what_to_do) {
    throw FileError(fmt::format("{}: is {}; {}", path_text(path), is, what_to_do));
  };
  if (beginning.starts_with("version https://git-lfs")) {
    refuse("a pointer of Git LFS, not the file that it points to",
           "expected the file itself: fetch it with git lfs pull, or download the model again");
  }
  beginning = beginning.substr(0, placeholder_beginning);
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (beginning.starts_with(byte_order_mark)) beginning.remove_prefix(byte_order_mark.size());
  beginning.remove_prefix(std::min(beginning.find_first_not_of(" \t\r\n"), beginning.size()));
  for (const std::string_view tag : {"<!doctype html", "<html", "<head", "<body"}) {
    if (!begins_with_tag(beginning, tag)) continue;
    refuse("a web page (HTML), as a proxy or a sign-in page sends",
           "expected the file itself: open it in a browser to see what the server said, then "
           "download the file again");
  }
  if (begins_with_tag(beginning, "<?xml")) {
    refuse("XML, as a server sends with an error",
           "expected the file itself: read it to see what the server said, then download the file "
           "again");
  }
}

void refuse_placeholder(const std::filesystem::path& path) {
  const ReadableFile file(path);
  std::string beginning(static_cast<std::size_t>(std::min(file.bytes(), placeholder_beginning)),
                        '\0');
  file.read(beginning.data(), std::ssize(beginning), 0);
  refuse_placeholder(beginning, path);
}

}  // namespace topkv
