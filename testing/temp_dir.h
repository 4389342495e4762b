// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"

namespace infercluster::testing {

// A fresh directory below TMPDIR (else /tmp), removed with all it holds by the destructor. Move-only.
// Failures abort: a test cannot go on without it.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "infercluster-XXXXXX").string();
    IC_ASSERT(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept {
    if (this != &other) {
      remove();
      path_ = std::exchange(other.path_, {});
    }
    return *this;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { remove(); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }

  // Writes `name` (folders on the way are made) and returns its path.
  std::string write(std::string_view name, std::string_view content) const {  // NOLINT(modernize-use-nodiscard)
    const std::filesystem::path target = path_ / name;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream stream(target, std::ios::binary | std::ios::trunc);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    stream.close();
    IC_ASSERT(stream.good());
    return target.string();
  }

 private:
  void remove() noexcept {
    std::error_code ignored;  // a directory left behind fails no test
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path path_;
};

}  // namespace infercluster::testing
