// Tables of bad inputs: see bad_inputs_test.cc.
#pragma once

#include <cstdio>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace topkv::test {

struct BadInput {
  std::string name, key, value;
  std::string field, found, allowed;  // that the error names
};

/// Bytes written as \xNN; other backslashes stay.
inline std::string bytes_of(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\x") != 0 || i + 3 >= text.size()) {
      bytes += text[i];
      continue;
    }
    bytes += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
    i += 3;
  }
  return bytes;
}

/// "@bytes" becomes the vocabulary of all bytes, as GPT-2 spells them, with ids from 0 on.
inline std::string with_bytes(std::string text) {
  const std::string name = "@bytes";
  const auto utf8 = [](unsigned code) -> std::string {
    if (code < 0x80) return {static_cast<char>(code)};
    return {static_cast<char>(0xC0 | code >> 6U), static_cast<char>(0x80 | (code & 0x3FU))};
  };
  std::string all;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool seen =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    std::string spelled = utf8(seen ? byte : next++);
    if (spelled == "\"" || spelled == "\\") spelled.insert(0, 1, '\\');
    all += (all.empty() ? "\"" : ", \"") + spelled + "\": " + std::to_string(byte);
  }
  for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; at += all.size())
    text.replace(at, name.size(), all);
  return text;
}

/// The lines of the text, and its cases.
inline std::pair<std::vector<std::string>, std::vector<BadInput>> bad_inputs(
    const std::string& table) {
  std::ifstream file(TOPKV_SOURCE_DIR "/tests/bad_inputs/" + table + ".txt");
  std::vector<std::string> base;
  std::vector<BadInput> cases;
  std::set<std::string> names;
  std::string line;
  while (std::getline(file, line) && line != "---") base.push_back(with_bytes(line));
  while (std::getline(file, line)) {
    std::vector<std::string> columns;
    const std::string between = " | ";
    for (std::size_t at = 0;;) {
      const std::size_t end = line.find(between, at);
      // What is not given has one space of its own: "key | | field".
      columns.push_back(line.substr(at, end == line.npos ? end : end - at));
      if (end == line.npos) break;
      at = end + between.size();
      if (line.compare(at, 2, "| ") == 0) {
        columns.emplace_back();
        at += 2;
      }
    }
    if (columns.size() != 6 || !names.insert(columns[0]).second)
      throw std::runtime_error(table + ": not a case, or a name twice: " + line);
    cases.push_back(
        {columns[0], columns[1], with_bytes(columns[2]), columns[3], columns[4], columns[5]});
    if (columns[1] == "*") cases.back().value = bytes_of(cases.back().value);
  }
  if (cases.empty()) throw std::runtime_error(table + ": no cases");
  return {base, cases};
}

/// The text with what a case changes.
inline std::string edited(std::vector<std::string> lines, const BadInput& one) {
  if (one.key == "*") return one.value;
  const bool gone = one.key.starts_with("-");
  const std::string begins = "\"" + one.key.substr(gone ? 1 : 0) + "\":";
  bool is_there = false;
  for (std::size_t i = 0; i < lines.size() && !one.key.empty(); ++i) {
    if (!lines[i].starts_with(begins)) continue;
    is_there = true;
    if (gone) {
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      lines[i] = begins + " " + one.value;
    }
    break;
  }
  if (gone && !is_there) throw std::runtime_error(one.name + ": there is no such key");
  if (!one.key.empty() && !is_there) lines.push_back(begins + " " + one.value);
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "{" : ",\n") + line;
  return text + "}";
}

}  // namespace topkv::test
