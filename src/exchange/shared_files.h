// SPDX-License-Identifier: Apache-2.0
// The calls on a shared directory, in one place so that tests can put faults between. Thread-safe. Errors have errno
// and path.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infercluster::exchange {

class SharedFiles {
 public:
  SharedFiles() = default;
  virtual ~SharedFiles() = default;
  SharedFiles(const SharedFiles&) = delete;
  SharedFiles& operator=(const SharedFiles&) = delete;

  // A whole file; over `limit` bytes: too_large.
  virtual Result<std::string> read(const std::string& path, std::uint64_t limit);
  // A new file (EEXIST where there is one), written and closed without an error.
  virtual Status create(const std::string& path, std::string_view bytes);
  // The first bytes of an existing file, in place.
  virtual Status overwrite(const std::string& path, std::string_view bytes);
  virtual Status rename(const std::string& from, const std::string& to);
  virtual Status link(const std::string& from, const std::string& to);
  virtual Status remove(const std::string& path);
  virtual Status make_directory(const std::string& path);
  virtual Status remove_directory(const std::string& path);
  // The names in a directory, from a descriptor opened for this: NFS asks the server then, and forgets what it believed
  // to be absent.
  virtual Result<std::vector<std::string>> list(const std::string& path);
};

}  // namespace infercluster::exchange
