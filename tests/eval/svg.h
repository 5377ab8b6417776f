// A check of SVG documents, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace topkv {

/// Tags nest and close, attributes are quoted, and no text holds a bare & or <.
inline void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < xml.size()) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) + 1 - at);
      EXPECT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;" ||
                  entity == "&apos;")
          << entity;
    }
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    bool quoted = false;
    for (; end < xml.size() && (quoted || xml[end] != '>'); ++end) {
      if (xml[end] == '\'') quoted = !quoted;
      ASSERT_NE(xml[end], '<') << xml.substr(at, 80);
    }
    ASSERT_LT(end, xml.size());
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

}  // namespace topkv
