// What is shown where: terminals of any width, dumb ones, logs and pipes.

#include "src/cli/terminal/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace topkv::cli {
namespace {

// A terminal of its own, and the environment that tells what it can do.
class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(openpty(&master_, &slave_, nullptr, nullptr, nullptr), 0);
    out_ = fdopen(slave_, "w");
    ASSERT_NE(out_, nullptr);
    for (const char* name : variables) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      unsetenv(name);
    }
    setenv("TERM", "xterm-256color", 1);
  }
  void TearDown() override {
    for (const char* name : variables) {
      unsetenv(name);
      if (before_.contains(name)) setenv(name, before_[name].c_str(), 1);
    }
    std::fclose(out_);
    close(master_);
  }
  void resize(unsigned short columns) {
    const winsize size = {24, columns, 0, 0};
    ASSERT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  }

  static constexpr const char* variables[] = {"TERM", "NO_COLOR", "CI", "COLUMNS"};

  int master_ = -1;
  int slave_ = -1;
  std::FILE* out_ = nullptr;
  std::map<std::string, std::string> before_;
};

TEST_F(Terminal, ThatCanShowsColoursAndLinesRewritten) {
  EXPECT_TRUE(rewrites_lines(out_));
  EXPECT_TRUE(shows_colour(out_));
}

TEST_F(Terminal, ThatIsDumbOrUnknownGetsPlainLines) {
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(rewrites_lines(out_));
  EXPECT_FALSE(shows_colour(out_));
  unsetenv("TERM");
  EXPECT_FALSE(rewrites_lines(out_));
}

TEST_F(Terminal, OfACiRunGetsPlainLines) {
  setenv("CI", "true", 1);
  EXPECT_FALSE(rewrites_lines(out_));
  EXPECT_FALSE(shows_colour(out_));
}

TEST_F(Terminal, WithNoColorStillRewritesItsLine) {
  setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(rewrites_lines(out_));
  EXPECT_FALSE(shows_colour(out_));
  setenv("NO_COLOR", "", 1);  // as if it were not set, says no-color.org
  EXPECT_TRUE(shows_colour(out_));
}

TEST_F(Terminal, WidthIsThatOfTheWindowNow) {
  resize(40);
  EXPECT_EQ(line_width(out_), 40U);
  resize(200);
  EXPECT_EQ(line_width(out_), 200U);
}

TEST_F(Terminal, PagesAreAsWideAsColumnsAsksFor) {
  resize(60);
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(page_width(out_), 60U);
  EXPECT_EQ(page_width(file), 80U);
  setenv("COLUMNS", "120", 1);
  EXPECT_EQ(page_width(out_), 120U);
  EXPECT_EQ(page_width(file), 120U);
  EXPECT_EQ(line_width(out_), 60U);  // a line that is rewritten must not be wider than the window
  for (const char* none : {"", "0", "-1", "wide", "80x", "99999999999999999999999"}) {
    setenv("COLUMNS", none, 1);
    EXPECT_EQ(page_width(out_), 60U) << none;
    EXPECT_EQ(page_width(file), 80U) << none;
  }
  std::fclose(file);
}

TEST_F(Terminal, WhatIsNoneIs80WideAndPlain) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(line_width(file), 80U);
  EXPECT_FALSE(rewrites_lines(file));
  EXPECT_FALSE(shows_colour(file));
  std::fclose(file);
}

}  // namespace
}  // namespace topkv::cli
