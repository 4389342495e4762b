// SPDX-License-Identifier: Apache-2.0
#include "load/synth.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/units.h"
#include "os/file.h"
#include "safetensors/index.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;
using safetensors::Tensor;

constexpr std::uint64_t kShardBytesMax = 5'000'000'000;  // as the hub's tools cut
constexpr std::uint64_t kShardsMin = 4;                  // by default, so that there is something to interleave
constexpr std::uint64_t kShardsMax = 99'999;             // five digits in the names
constexpr std::size_t kBufferBytes = 8 << 20;
constexpr std::uint64_t kSpareBytes = 64 << 20;  // left on the file system for headers and small files
static_assert(kBufferBytes % kSynthBlockBytes == 0);

// Removes what it was told of, unless it is kept.
class Cleanup {
 public:
  Cleanup() = default;
  Cleanup(const Cleanup&) = delete;
  Cleanup& operator=(const Cleanup&) = delete;
  ~Cleanup() {
    std::error_code ignored;                     // of what cannot be removed nothing more can be done here
    std::reverse(paths_.begin(), paths_.end());  // files before their folder
    for (const std::string& path : paths_) fs::remove(path, ignored);
  }
  void add(std::string path) { paths_.push_back(std::move(path)); }
  void keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

Status prepare_directory(const std::string& directory, std::uint64_t bytes, Cleanup& cleanup) {
  std::error_code failed;
  const bool created = fs::create_directories(directory, failed);
  if (failed) return Error::from_errno(failed.value(), "cannot create the folder").with_path(directory);
  if (created) cleanup.add(directory);
  if (!fs::is_empty(directory, failed) || failed) {
    return Error(ErrorCode::invalid_argument, "the folder is not empty")
        .with_path(directory)
        .with_hint("Nothing is overwritten: name a new folder, or empty this one");
  }
  const fs::space_info space = fs::space(directory, failed);
  if (!failed && space.available < bytes + kSpareBytes) {
    return Error(ErrorCode::too_large, "the file system has " + format_bytes(space.available) + " free, and " +
                                           format_bytes(bytes + kSpareBytes) + " are needed")
        .with_path(directory);
  }
  return {};
}

// A new file, written from front to back through a buffer.
class ShardWriter {
 public:
  static Result<ShardWriter> create(const std::string& path) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid()) return Error::from_errno(errno, "cannot create").with_path(path);
    return ShardWriter(path, std::move(fd));
  }

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error::from_errno(errno, "cannot write").with_path(path_);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

  Status finish() {
    if (::fsync(fd_.get()) != 0) return Error::from_errno(errno, "cannot sync").with_path(path_);
    if (const int failed = fd_.close_checked(); failed != 0)
      return Error::from_errno(failed, "cannot close").with_path(path_);
    return {};
  }

 private:
  ShardWriter(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  Fd fd_;
};

std::string shard_name(std::size_t number, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name.data();
}

// Cuts the model, in its order, into parts of about equal bytes; none is empty.
std::vector<std::vector<Tensor>> cut(const SynthModel& model, std::uint64_t shards) {
  std::vector<std::vector<Tensor>> parts;
  std::uint64_t before = 0;
  std::uint64_t last_slot = shards;  // none yet
  for (const Tensor& tensor : model.tensors) {
    const std::uint64_t bytes = safetensors::tensor_bytes(tensor.dtype, tensor.shape).value();
    // The slot that the tensor's middle falls into.
    const double middle = static_cast<double>(before) + static_cast<double>(bytes) / 2;
    const auto slot = std::min(shards - 1, static_cast<std::uint64_t>(middle / static_cast<double>(model.bytes) *
                                                                      static_cast<double>(shards)));
    if (slot != last_slot) parts.emplace_back();
    last_slot = slot;
    parts.back().push_back(tensor);
    before += bytes;
  }
  return parts;
}

class RepositoryWriter {
 public:
  RepositoryWriter(const std::string& directory, const SynthOptions& options, std::uint64_t bytes_total)
      : directory_(directory),
        options_(options),
        bytes_total_(bytes_total),
        buffer_(std::make_unique<std::byte[]>(kBufferBytes)) {}

  Status write_shard(const std::string& name, std::vector<Tensor> tensors, safetensors::Index& index,
                     Cleanup& cleanup) {
    IC_TRY(const std::string header, safetensors::build_header(tensors, safetensors::Metadata{{"format", "pt"}}));
    const std::string path = (fs::path(directory_) / name).string();
    IC_TRY(ShardWriter file, ShardWriter::create(path));
    cleanup.add(path);
    IC_CHECK(file.write(std::as_bytes(std::span(header))));
    for (const Tensor& tensor : tensors) {
      IC_CHECK(write_tensor(file, tensor));
      index.weight_map.emplace_back(tensor.name, name);
    }
    IC_CHECK(flush(file));
    IC_CHECK(file.finish());
    report.shards.push_back(path);
    report.tensors += tensors.size();
    report.file_bytes += header.size() + tensors.back().end;
    return {};
  }

  Status write_small(const std::string& name, const std::string& content, Cleanup& cleanup) {
    const std::string path = (fs::path(directory_) / name).string();
    cleanup.add(path);
    IC_CHECK(os::write_file_atomically(path, std::as_bytes(std::span(content))));
    report.file_bytes += content.size();
    return {};
  }

  SynthReport report;

 private:
  Status write_tensor(ShardWriter& file, const Tensor& tensor) {
    const SynthContent content(options_.seed, tensor.name, tensor.dtype);
    std::uint64_t offset = 0;
    while (offset < tensor.bytes()) {
      const std::uint64_t rest = tensor.bytes() - offset;
      const std::uint64_t room = kBufferBytes - used_;
      const std::uint64_t length = rest <= room ? rest : align_down(room, kSynthBlockBytes);
      content.fill(offset, {buffer_.get() + used_, length});
      used_ += length;
      offset += length;
      if (rest > room || used_ == kBufferBytes) IC_CHECK(flush(file));
    }
    return {};
  }

  Status flush(ShardWriter& file) {
    if (used_ > 0) {
      IC_CHECK(file.write({buffer_.get(), used_}));
      report.bytes += std::exchange(used_, 0);
      if (options_.progress && !options_.progress({.bytes_done = report.bytes, .bytes_total = bytes_total_})) {
        return Error(ErrorCode::cancelled, "cancelled").with_path(directory_);
      }
    }
    return {};
  }

  const std::string& directory_;
  const SynthOptions& options_;
  std::uint64_t bytes_total_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t used_ = 0;  // of buffer_, still to be written to the open shard
};

}  // namespace

Result<SynthReport> write_synthetic_repository(const std::string& directory, const SynthOptions& options) {
  if (options.shards > kShardsMax) {
    return Error(ErrorCode::invalid_argument, "at most " + std::to_string(kShardsMax) + " shards can be named");
  }
  IC_TRY(SynthModel model, synthesize_model(options.preset, options.bytes));
  Cleanup cleanup;
  IC_CHECK(prepare_directory(directory, model.bytes, cleanup));
  const std::uint64_t by_size = std::max(kShardsMin, (model.bytes + kShardBytesMax - 1) / kShardBytesMax);
  std::vector<std::vector<Tensor>> parts = cut(model, options.shards != 0 ? options.shards : by_size);

  RepositoryWriter writer(directory, options, model.bytes);
  safetensors::Index index;
  index.total_size = model.bytes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    IC_CHECK(writer.write_shard(shard_name(i, parts.size()), std::move(parts[i]), index, cleanup));
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  for (const auto& [name, content] : synthesize_small_files(model))
    IC_CHECK(writer.write_small(name, content, cleanup));
  // Its atomic write also syncs the folder, and with it the names of all the files.
  IC_CHECK(writer.write_small("model.safetensors.index.json", safetensors::build_index(index), cleanup));
  cleanup.keep();
  return std::move(writer.report);
}

}  // namespace infercluster::load
