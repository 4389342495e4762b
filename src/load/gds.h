// SPDX-License-Identifier: Apache-2.0
// GPUDirect Storage in a load: cuFile brings aligned extents into a small registered ring in device memory, from where
// they are copied to where the tensors live. What cuFile cannot take, the last bytes of a file that end within a block
// and what it refuses, goes through a host buffer, and is counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "gpu/cufile.h"
#include "io/source.h"
#include "memory/ring.h"

namespace infercluster::load {

class GdsReader;

// One file, read by cuFile. Once a read of it is refused, all that follow go through host memory.
class GdsSource final : public io::Source {
 public:
  // cuFile moves whole blocks.
  static constexpr std::uint32_t kAlignment = 4096;

  [[nodiscard]] const std::string& name() const override { return file_.name(); }
  [[nodiscard]] std::uint64_t size() const override { return file_.size(); }
  [[nodiscard]] std::uint32_t alignment() const override { return kAlignment; }
  std::optional<io::ReadOperation> operation(const io::Attempt&) override { return std::nullopt; }
  void start(const io::Attempt& attempt, const io::AttemptDone& done) override;

  // Why reads of it go through host memory after all; empty: they do not. Any thread, once the job is over.
  [[nodiscard]] std::string refusal() const;

 private:
  friend class GdsReader;
  GdsSource(GdsReader& gds, const io::FileSource& file, Fd direct, std::unique_ptr<gpu::CuFileFile> handle)
      : gds_(gds), file_(file), direct_(std::move(direct)), handle_(std::move(handle)) {}
  // Bytes read, or -errno. On threads of GdsReader.
  std::int64_t read(const io::Attempt& attempt);
  Result<std::uint64_t> read_by_cufile(const io::Attempt& attempt, std::uint64_t length);
  std::int64_t read_through_host(const io::Attempt& attempt, std::uint64_t length);
  void refuse(const Error& error);

  GdsReader& gds_;
  const io::FileSource& file_;
  const Fd direct_;
  const std::unique_ptr<gpu::CuFileFile> handle_;  // before direct_ is closed
  std::atomic<bool> refused_{false};
  mutable std::mutex mutex_;
  std::string refusal_;  // guarded by mutex_
};

// The ring and the threads that call cuFile, whose reads wait. Outlives its sources and what reads by them; ends when
// no read is under way.
class GdsReader {
 public:
  struct Options {
    std::uint64_t slot_bytes = 4u << 20;  // a multiple of GdsSource::kAlignment, and of 64 KiB with slots
    unsigned slots = 16;
    unsigned threads = 16;
  };
  static Result<std::unique_ptr<GdsReader>> open(std::shared_ptr<gpu::CuFile> cufile, const Options& options);
  ~GdsReader();
  GdsReader(const GdsReader&) = delete;
  GdsReader& operator=(const GdsReader&) = delete;

  // Reads go to slots of this ring alone. Taken once.
  memory::Ring take_ring();
  Result<std::unique_ptr<GdsSource>> open_source(const io::FileSource& file);

  // Bytes that came by cuFile, and through host memory.
  [[nodiscard]] std::uint64_t direct_bytes() const { return direct_bytes_.load(); }
  [[nodiscard]] std::uint64_t host_bytes() const { return host_bytes_.load(); }
  // Why the ring is not registered with cuFile; empty: it is. Unregistered reads work, and are slower.
  [[nodiscard]] const std::string& unregistered() const { return unregistered_; }

 private:
  friend class GdsSource;
  struct Work {
    GdsSource* source = nullptr;
    io::Attempt attempt;
    io::AttemptDone done;
  };
  GdsReader(std::shared_ptr<gpu::CuFile> cufile, const Options& options)
      : cufile_(std::move(cufile)), options_(options) {}
  void add(Work work);
  void run();

  const std::shared_ptr<gpu::CuFile> cufile_;
  const Options options_;
  std::shared_ptr<gpu::DeviceMemory> memory_;
  std::unique_ptr<gpu::CuFileBuffer> buffer_;
  std::string unregistered_;
  std::atomic<std::uint64_t> direct_bytes_{0};
  std::atomic<std::uint64_t> host_bytes_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // guarded by mutex_
  bool ending_ = false;    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace infercluster::load
