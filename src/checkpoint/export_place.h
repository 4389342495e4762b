// SPDX-License-Identifier: Apache-2.0
// Where an export goes: files under temporary names that get their final ones together, or vanish.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/export.h"
#include "io/files.h"

namespace infercluster::checkpoint {

// One thread.
class ExportPlace {
 public:
  static Result<ExportPlace> open(io::FileCalls& calls, const std::string& destination, OtherFiles other_files);
  // Removes what was made, unless it was published; what cannot be removed is a warning.
  ~ExportPlace();
  ExportPlace(ExportPlace&& other) noexcept;
  ExportPlace& operator=(ExportPlace&&) = delete;

  Result<io::OutputFile> create(const std::string& name);
  // All files are durable: makes them visible under their names, in the order of their creation, and that durable.
  Status publish();
  [[nodiscard]] std::string path_of(const std::string& name) const { return destination_ + "/" + name; }

 private:
  explicit ExportPlace(io::FileCalls& calls) : calls_(&calls) {}
  Status open_existing(OtherFiles other_files);
  Status make_beside();
  [[nodiscard]] std::string temporary(const std::string& name) const;
  void remove(const std::string& name);

  io::FileCalls* calls_;
  std::string destination_;         // absolute
  std::string name_;                // its last part
  std::string id_;                  // of the temporary names
  io::Directory parent_;            // of a destination that was not there
  io::Directory directory_;         // where files are created
  bool beside_ = false;             // directory_ is the temporary one in parent_
  bool open_ = false;               // there may be something to remove
  std::vector<std::string> files_;  // created
  std::size_t published_ = 0;       // of them, that have their final names
};

}  // namespace infercluster::checkpoint
