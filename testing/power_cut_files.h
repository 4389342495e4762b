// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "io/files.h"

namespace infercluster::testing {

// FileCalls that remember in which order things were written and synced, so that a test can lay out what a disk may
// hold when the power goes after any of them: what was synced is there; of the rest, each 4 KiB of a write and each
// change of a directory's entries may be there or not, in any combination. Syncing a file says nothing of its name, and
// syncing a directory nothing of what its files hold. Thread-safe.
class PowerCutFiles final : public io::FileCalls {
 public:
  enum class Keep : std::uint8_t { nothing, everything, some };  // of what was not synced
  // The first attempt keeps nothing, the second everything, each later one something else by its seed.
  static Keep keep_of(std::uint64_t attempt) {
    return attempt == 0 ? Keep::nothing : attempt == 1 ? Keep::everything : Keep::some;
  }

  explicit PowerCutFiles(io::FileCalls& inner = io::system_files()) : inner_(inner) {}

  [[nodiscard]] std::size_t operations() const {
    const std::lock_guard lock(mutex_);
    return log_.size();
  }

  // What may be there when the power goes after the first `count` operations, below `root` (empty, and not synced).
  void lay_out(std::size_t count, Keep keep, std::uint64_t seed, const std::filesystem::path& root) const {
    const std::lock_guard lock(mutex_);
    std::mt19937_64 random(seed);
    const auto kept = [&] { return keep == Keep::everything || (keep == Keep::some && random() % 2 == 0); };
    std::map<int, std::map<std::string, int>> folders;
    std::map<int, std::string> contents;
    std::map<int, std::size_t> synced;  // node -> operations before this one are durable
    for (std::size_t i = 0; i < count; ++i) {
      if (log_[i].kind == Kind::sync) synced[log_[i].node] = i;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Operation& operation = log_[i];
      const auto last = synced.find(operation.node);
      const bool durable = last != synced.end() && i < last->second;
      if (operation.kind == Kind::write) {
        apply_write(contents[operation.node], operation, [&] { return durable || kept(); });
      } else if (durable || kept()) {
        apply(folders, contents, operation);
      }
    }
    materialize(kRoot, folders, contents, root);
  }

  Result<io::Directory> open_directory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    auto directory = inner_.open_directory(path);
    if (directory.ok()) open_[directory->fd.get()] = kRoot;
    return directory;
  }
  Result<io::Directory> open_directory_in(const io::Directory& parent, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    auto directory = inner_.open_directory_in(parent, name);
    if (directory.ok()) open_[directory->fd.get()] = entries_.at(node_of(parent)).at(name);
    return directory;
  }
  Status make_directory(const io::Directory& parent, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    IC_CHECK(inner_.make_directory(parent, name));
    entries_[next_];
    add(node_of(parent), name, next_++);
    return {};
  }
  Status sync_directory(const io::Directory& directory) override {
    const std::lock_guard lock(mutex_);
    log_.push_back({Kind::sync, node_of(directory)});
    return {};
  }
  Result<std::vector<io::Entry>> list(const io::Directory& directory) override { return inner_.list(directory); }
  Result<bool> is_entry(const io::Directory& parent, const std::string& name, const io::Directory& directory) override {
    return inner_.is_entry(parent, name, directory);
  }
  Status remove_directory(const io::Directory& parent, const std::string& name) override {
    return removed(parent, name, &io::FileCalls::remove_directory);
  }
  Result<io::OutputFile> create(const io::Directory& directory, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    auto file = inner_.create(directory, name);
    if (!file.ok()) return file;
    open_[file->fd.get()] = next_;
    add(node_of(directory), name, next_++);
    return file;
  }
  Result<io::OutputFile> open_to_write(const io::Directory& directory, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    auto file = inner_.open_to_write(directory, name);
    if (file.ok()) open_[file->fd.get()] = entries_.at(node_of(directory)).at(name);
    return file;
  }
  Status set_direct(const io::OutputFile& file, io::DirectIo direct) override {
    return inner_.set_direct(file, direct);
  }
  Status reserve(const io::OutputFile& file, std::uint64_t bytes) override { return resized(file, bytes, true); }
  Result<std::uint64_t> write(const io::OutputFile& file, std::span<const std::byte> bytes,
                              std::uint64_t offset) override {
    const std::lock_guard lock(mutex_);
    IC_TRY(const std::uint64_t count, inner_.write(file, bytes, offset));
    Operation operation{Kind::write, open_.at(file.fd.get())};
    operation.offset = offset;
    operation.data.assign(reinterpret_cast<const char*>(bytes.data()), count);
    log_.push_back(std::move(operation));
    return count;
  }
  Status set_size(const io::OutputFile& file, std::uint64_t bytes) override { return resized(file, bytes, false); }
  Status sync(const io::OutputFile& file) override {
    const std::lock_guard lock(mutex_);
    log_.push_back({Kind::sync, open_.at(file.fd.get())});
    return {};
  }
  Status close(io::OutputFile file) override { return inner_.close(std::move(file)); }
  Result<bool> is_forgotten(const io::OutputFile& file) override { return inner_.is_forgotten(file); }
  Status link(const io::Directory& directory, const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    IC_CHECK(inner_.link(directory, from, to));
    add(node_of(directory), to, entries_.at(node_of(directory)).at(from));
    return {};
  }
  Status link_into(const io::Directory& from_directory, const std::string& from, const io::Directory& to_directory,
                   const std::string& to) override {
    const std::lock_guard lock(mutex_);
    IC_CHECK(inner_.link_into(from_directory, from, to_directory, to));
    add(node_of(to_directory), to, entries_.at(node_of(from_directory)).at(from));
    return {};
  }
  Status rename(const io::Directory& directory, const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    IC_CHECK(inner_.rename(directory, from, to));
    auto& entries = entries_.at(node_of(directory));
    entries[to] = entries.at(from);
    entries.erase(from);
    Operation operation{Kind::move, node_of(directory)};
    operation.name = from;
    operation.to = to;
    log_.push_back(std::move(operation));
    return {};
  }
  Status remove(const io::Directory& directory, const std::string& name) override {
    return removed(directory, name, &io::FileCalls::remove);
  }
  Result<std::uint64_t> size_of(const io::Directory& directory, const std::string& name) override {
    return inner_.size_of(directory, name);
  }
  Result<std::uint64_t> read_at(const io::Directory& directory, const std::string& name, std::span<std::byte> to,
                                std::uint64_t offset) override {
    return inner_.read_at(directory, name, to, offset);
  }
  Result<std::string> read_small(const io::Directory& directory, const std::string& name,
                                 std::uint64_t limit) override {
    return inner_.read_small(directory, name, limit);
  }

 private:
  static constexpr int kRoot = 0;
  static constexpr std::size_t kPage = 4096;
  enum class Kind : std::uint8_t { add, remove, move, write, grow, cut, sync };
  struct Operation {
    Kind kind;
    int node;  // the directory, or the file
    std::string name{};
    std::string to{};
    int child = -1;
    std::uint64_t offset = 0;  // or the size
    std::string data{};
  };

  int node_of(const io::Directory& directory) const { return open_.at(directory.fd.get()); }

  void add(int directory, const std::string& name, int child) {
    entries_[directory][name] = child;
    Operation operation{Kind::add, directory};
    operation.name = name;
    operation.child = child;
    log_.push_back(std::move(operation));
  }

  Status removed(const io::Directory& directory, const std::string& name,
                 Status (io::FileCalls::*call)(const io::Directory&, const std::string&)) {
    const std::lock_guard lock(mutex_);
    IC_CHECK((inner_.*call)(directory, name));
    entries_.at(node_of(directory)).erase(name);
    Operation operation{Kind::remove, node_of(directory)};
    operation.name = name;
    log_.push_back(std::move(operation));
    return {};
  }

  Status resized(const io::OutputFile& file, std::uint64_t bytes, bool grow) {
    const std::lock_guard lock(mutex_);
    IC_CHECK(grow ? inner_.reserve(file, bytes) : inner_.set_size(file, bytes));
    Operation operation{grow ? Kind::grow : Kind::cut, open_.at(file.fd.get())};
    operation.offset = bytes;
    log_.push_back(std::move(operation));
    return {};
  }

  template <typename Kept>
  static void apply_write(std::string& content, const Operation& operation, const Kept& kept) {
    for (std::size_t at = 0; at < operation.data.size(); at += kPage) {
      if (!kept()) continue;
      const std::string_view page = std::string_view(operation.data).substr(at, kPage);
      const std::size_t begin = operation.offset + at;
      if (content.size() < begin + page.size()) content.resize(begin + page.size(), '\0');
      content.replace(begin, page.size(), page);
    }
  }

  static void apply(std::map<int, std::map<std::string, int>>& folders, std::map<int, std::string>& contents,
                    const Operation& operation) {
    auto& folder = folders[operation.node];
    if (operation.kind == Kind::add) folder[operation.name] = operation.child;
    if (operation.kind == Kind::remove) folder.erase(operation.name);
    if (operation.kind == Kind::move && folder.contains(operation.name)) {
      folder[operation.to] = folder.at(operation.name);
      folder.erase(operation.name);
    }
    std::string& content = contents[operation.node];
    if (operation.kind == Kind::grow && content.size() < operation.offset) content.resize(operation.offset, '\0');
    if (operation.kind == Kind::cut) content.resize(operation.offset, '\0');
  }

  void materialize(int node, const std::map<int, std::map<std::string, int>>& folders,
                   const std::map<int, std::string>& contents, const std::filesystem::path& path) const {
    std::filesystem::create_directories(path);
    const auto folder = folders.find(node);
    if (folder == folders.end()) return;
    for (const auto& [name, child] : folder->second) {
      if (entries_.contains(child)) {
        materialize(child, folders, contents, path / name);
        continue;
      }
      std::ofstream file(path / name, std::ios::binary);
      const auto content = contents.find(child);
      if (content != contents.end()) file << content->second;
    }
  }

  mutable std::mutex mutex_;
  io::FileCalls& inner_;
  // All guarded by mutex_. Directories that are there now, and what they hold; which node a descriptor is.
  std::map<int, std::map<std::string, int>> entries_{{kRoot, {}}};
  std::map<int, int> open_;
  int next_ = kRoot + 1;
  std::vector<Operation> log_;
};

}  // namespace infercluster::testing
