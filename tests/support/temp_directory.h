// A directory for the files of one test, removed with it, and a check of what an error says.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <typeinfo>
#include <vector>

namespace topkv {

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "topkv-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;  // it removes the directory
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream stream(file, std::ios::binary | std::ios::trunc);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    stream.close();
    if (!stream) throw std::runtime_error("cannot write " + file.string());
    return file;
  }

 private:
  std::filesystem::path path_;
};

/// The call throws exactly an E, on one line that begins with `beginning` and has every part in it.
template <class E, class Call>
void expect_error(const Call& call, const std::string& beginning,
                  const std::vector<std::string_view>& parts) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    EXPECT_TRUE(typeid(error) == typeid(E)) << "another exception type, saying: " << text;
    EXPECT_TRUE(text.starts_with(beginning)) << text << "\nshould begin with " << beginning;
    for (const std::string_view part : parts) {
      EXPECT_NE(text.find(part), text.npos) << text << "\nshould contain " << part;
    }
    EXPECT_EQ(text.find('\n'), text.npos) << "more than one line: " << text;
    EXPECT_LT(text.size(), 1000U) << "too long: " << text.substr(0, 200);
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected an error about "
                << (parts.empty() ? beginning : parts.front());
}

}  // namespace topkv
