// SPDX-License-Identifier: Apache-2.0
// cuFile (GPUDirect Storage), found at run time: reads from files straight into device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "gpu/cufile_api.h"
#include "gpu/device.h"
#include "gpu/memory.h"

namespace infercluster::gpu {

// How cuFile moves bytes, by its own word.
enum class GdsMode : std::uint8_t {
  nvidia_fs,  // DMA from the device to the GPU, by the kernel module nvidia-fs
  p2p,        // the same, by the kernel's PCI peer-to-peer DMA (CUDA 12.8 and newer)
  compat,     // reads into host memory and copies: no GDS
  none,       // cuFile refuses what it cannot move directly
};
std::string_view name_of(GdsMode mode);
// Do bytes go past the host?
constexpr bool is_direct(GdsMode mode) {
  return mode == GdsMode::nvidia_fs || mode == GdsMode::p2p;
}

// cuFile's limits on one call (reference: cufile.json's max_direct_io_size_kb).
inline constexpr std::uint64_t kCuFileReadMax = 16u << 20;

class CuFile;

// A file that cuFile may read. Ended before its descriptor is closed.
class CuFileFile {
 public:
  ~CuFileFile();
  CuFileFile(const CuFileFile&) = delete;
  CuFileFile& operator=(const CuFileFile&) = delete;
  [[nodiscard]] CuFileHandle handle() const { return handle_; }

 private:
  friend class CuFile;
  CuFileFile(std::shared_ptr<const CuFile> owner, CuFileHandle handle) : owner_(std::move(owner)), handle_(handle) {}
  const std::shared_ptr<const CuFile> owner_;
  CuFileHandle handle_;
};

// Device memory that cuFile has pinned: for small buffers that are used again and again. Keeps the memory.
class CuFileBuffer {
 public:
  ~CuFileBuffer();
  CuFileBuffer(const CuFileBuffer&) = delete;
  CuFileBuffer& operator=(const CuFileBuffer&) = delete;
  [[nodiscard]] memory::Span span() const { return memory_->span(); }

 private:
  friend class CuFile;
  CuFileBuffer(std::shared_ptr<const CuFile> owner, std::shared_ptr<DeviceMemory> memory)
      : owner_(std::move(owner)), memory_(std::move(memory)) {}
  const std::shared_ptr<const CuFile> owner_;
  const std::shared_ptr<DeviceMemory> memory_;
};

// Where one read goes. `base` is where an allocation or a registered buffer starts.
struct CuFileRead {
  std::uintptr_t base = 0;
  std::uint64_t base_offset = 0;  // bytes behind base
  std::uint64_t bytes = 0;        // at most kCuFileReadMax
  std::uint64_t file_offset = 0;
};

struct CuFileDriver;

// cuFile on one device. Thread-safe. Everything here is an error in a forked child: cuFile is undefined there.
class CuFile : public std::enable_shared_from_this<CuFile> {
 public:
  // Opens cuFile's driver (about 2 s) when the process has not got it open: its owners share it, and the last one
  // closes it. Only when a load is about to use it, never to look: it makes contexts. The library is libcufile.so.0, or
  // what the environment variable INFERCLUSTER_LIBCUFILE names (empty: none). Errors: unsupported, with cuFile's code.
  static Result<std::shared_ptr<CuFile>> open(std::shared_ptr<Device> device);

  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  [[nodiscard]] GdsMode mode() const;
  [[nodiscard]] int version() const;  // 1000 * major + 10 * minor; 0 where cuFile does not say
  // "cuFile 1.13, nvidia_fs (nvidia-fs 2.25), compatibility mode allowed", for reports.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

  // `fd` should be open with O_DIRECT, and stays open as long as the result. In compatibility mode this succeeds on
  // file systems without GDS too. Errors: unsupported (another way may read the file), io.
  Result<std::unique_ptr<CuFileFile>> register_file(const Fd& fd) const;
  // Capacities below 64 KiB are multiples of 4 KiB, above of 64 KiB. Errors: invalid_argument for others; unsupported,
  // such as code 5016, where another process on the node has used up what can be pinned.
  Result<std::unique_ptr<CuFileBuffer>> register_buffer(std::shared_ptr<DeviceMemory> memory) const;
  // One read; how many bytes came, 0 at the end of the file. May be short. Errors name cuFile's code or errno.
  Result<std::uint64_t> read(const CuFileFile& file, const CuFileRead& what) const;

 private:
  friend class CuFileFile;
  friend class CuFileBuffer;
  CuFile(std::shared_ptr<const CuFileDriver> driver, std::shared_ptr<Device> device);

  const std::shared_ptr<Device> device_;  // after the driver, which is closed first
  const std::shared_ptr<const CuFileDriver> driver_;
};

// Is the library there, with what is needed? Opens no driver. Errors: unsupported, as open() would give.
Status cufile_found();
// Its version, "1.13"; empty where it is not there or does not say. Opens no driver.
std::string cufile_version_text();

// What cuFile's code 5016 and its like mean: the library exports no function for it.
std::string_view cufile_text(CuFileCode code);

}  // namespace infercluster::gpu
