// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"

namespace infercluster::testing {

// What becomes of one file-system call.
struct FileFault {
  int error = 0;                 // not 0: it fails with this errno
  bool done_anyway = false;      // with `error`: it is done, and its answer is lost
  std::uint64_t write_most = 0;  // not 0: a write takes so many bytes only
};

// FileCalls over others that fail by a plan. The plan is asked once per call, in order, with its number from 0; it may
// also kill the process. Thread-safe: one call of the plan at a time.
class FaultFiles final : public io::FileCalls {
 public:
  using Plan = std::function<FileFault(std::uint64_t number, std::string_view call, const std::string& path)>;

  explicit FaultFiles(Plan plan, io::FileCalls& inner = io::system_files()) : plan_(std::move(plan)), inner_(inner) {}

  // "CALL PATH" of each.
  [[nodiscard]] std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

  Result<io::Directory> open_directory(const std::string& path) override {
    return run("open_directory", path, [&] { return inner_.open_directory(path); });
  }
  Result<io::Directory> open_directory_in(const io::Directory& parent, const std::string& name) override {
    return run("open_directory_in", in(parent, name), [&] { return inner_.open_directory_in(parent, name); });
  }
  Status make_directory(const io::Directory& parent, const std::string& name) override {
    return run("make_directory", in(parent, name), [&] { return inner_.make_directory(parent, name); });
  }
  Status sync_directory(const io::Directory& directory) override {
    return run("sync_directory", directory.path, [&] { return inner_.sync_directory(directory); });
  }
  Result<std::vector<io::Entry>> list(const io::Directory& directory) override {
    return run("list", directory.path, [&] { return inner_.list(directory); });
  }
  Result<bool> is_entry(const io::Directory& parent, const std::string& name, const io::Directory& directory) override {
    return run("is_entry", in(parent, name), [&] { return inner_.is_entry(parent, name, directory); });
  }
  Status remove_directory(const io::Directory& parent, const std::string& name) override {
    return run("remove_directory", in(parent, name), [&] { return inner_.remove_directory(parent, name); });
  }
  Result<io::OutputFile> create(const io::Directory& directory, const std::string& name) override {
    return run("create", in(directory, name), [&] { return inner_.create(directory, name); });
  }
  Result<io::OutputFile> open_to_write(const io::Directory& directory, const std::string& name) override {
    return run("open_to_write", in(directory, name), [&] { return inner_.open_to_write(directory, name); });
  }
  Status set_direct(const io::OutputFile& file, io::DirectIo direct) override {
    return run("set_direct", file.path, [&] { return inner_.set_direct(file, direct); });
  }
  Status reserve(const io::OutputFile& file, std::uint64_t bytes) override {
    return run("reserve", file.path, [&] { return inner_.reserve(file, bytes); });
  }
  Result<std::uint64_t> write(const io::OutputFile& file, std::span<const std::byte> bytes,
                              std::uint64_t offset) override {
    const FileFault fault = ask("write", file.path);
    if (fault.error != 0)
      return Error::from_errno(fault.error, "cannot write").with_path(file.path).with_offset(offset);
    if (fault.write_most != 0 && bytes.size() > fault.write_most) bytes = bytes.first(fault.write_most);
    return inner_.write(file, bytes, offset);
  }
  Status set_size(const io::OutputFile& file, std::uint64_t bytes) override {
    return run("set_size", file.path, [&] { return inner_.set_size(file, bytes); });
  }
  Status sync(const io::OutputFile& file) override {
    return run("sync", file.path, [&] { return inner_.sync(file); });
  }
  Status close(io::OutputFile file) override {
    const std::string path = file.path;
    return run("close", path, [&] { return inner_.close(std::move(file)); });
  }
  Result<bool> is_forgotten(const io::OutputFile& file) override {
    return run("is_forgotten", file.path, [&] { return inner_.is_forgotten(file); });
  }
  Status link(const io::Directory& directory, const std::string& from, const std::string& to) override {
    return run("link", in(directory, to), [&] { return inner_.link(directory, from, to); });
  }
  Status link_into(const io::Directory& from_directory, const std::string& from, const io::Directory& to_directory,
                   const std::string& to) override {
    return run("link_into", in(to_directory, to),
               [&] { return inner_.link_into(from_directory, from, to_directory, to); });
  }
  Status rename(const io::Directory& directory, const std::string& from, const std::string& to) override {
    return run("rename", in(directory, to), [&] { return inner_.rename(directory, from, to); });
  }
  Status remove(const io::Directory& directory, const std::string& name) override {
    return run("remove", in(directory, name), [&] { return inner_.remove(directory, name); });
  }
  Result<std::uint64_t> size_of(const io::Directory& directory, const std::string& name) override {
    return run("size_of", in(directory, name), [&] { return inner_.size_of(directory, name); });
  }
  Result<std::uint64_t> read_at(const io::Directory& directory, const std::string& name, std::span<std::byte> to,
                                std::uint64_t offset) override {
    return run("read_at", in(directory, name), [&] { return inner_.read_at(directory, name, to, offset); });
  }
  Result<std::string> read_small(const io::Directory& directory, const std::string& name,
                                 std::uint64_t limit) override {
    return run("read_small", in(directory, name), [&] { return inner_.read_small(directory, name, limit); });
  }

 private:
  static std::string in(const io::Directory& directory, const std::string& name) { return directory.path + "/" + name; }

  FileFault ask(std::string_view call, const std::string& path) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = calls_.size();
    calls_.push_back(std::string(call) + " " + path);
    return plan_ ? plan_(number, call, path) : FileFault{};
  }

  template <typename Call>
  auto run(std::string_view call, const std::string& path, const Call& body) -> decltype(body()) {
    const FileFault fault = ask(call, path);
    if (fault.error == 0) return body();
    if (fault.done_anyway) static_cast<void>(body());
    return Error::from_errno(fault.error, "cannot " + std::string(call)).with_path(path);
  }

  mutable std::mutex mutex_;
  std::vector<std::string> calls_;  // guarded by mutex_
  const Plan plan_;
  io::FileCalls& inner_;
};

}  // namespace infercluster::testing
