// SPDX-License-Identifier: Apache-2.0
#include "gpu/cufile.h"

#include <cerrno>

#include "base/log.h"
#include "base/units.h"
#include "gpu/cufile_driver.h"

namespace infercluster::gpu {
namespace {

// What cuFileBufRegister asks of sizes (shared limits of nvidia-fs mappings).
constexpr std::uint64_t kSmallMapping = 4 * kKiB;
constexpr std::uint64_t kLargeMapping = 64 * kKiB;

}  // namespace

std::string_view name_of(GdsMode mode) {
  switch (mode) {
    case GdsMode::nvidia_fs:
      return "nvidia_fs";
    case GdsMode::p2p:
      return "p2p";
    case GdsMode::compat:
      return "compat";
    case GdsMode::none:
      return "none";
  }
  return "";
}

Status cufile_found() {
  IC_CHECK(cufile_library());
  return {};
}

std::string cufile_version_text() {
  const auto api = cufile_library();
  int version = 0;
  if (!api.ok() || (*api)->cuFileGetVersion == nullptr) return "";
  if ((*api)->cuFileGetVersion(&version).code != CuFileCode::success) return "";
  return cuda_version_text(version);
}

Result<std::shared_ptr<CuFile>> CuFile::open(std::shared_ptr<Device> device) {
  IC_CHECK(gpu::driver());  // not in a forked child
  IC_TRY(auto driver, CuFileDriver::get(device));
  return std::shared_ptr<CuFile>(new CuFile(std::move(driver), std::move(device)));  // NOLINT: private constructor
}

CuFile::CuFile(std::shared_ptr<const CuFileDriver> driver, std::shared_ptr<Device> device)
    : device_(std::move(device)), driver_(std::move(driver)) {}

CuFile::~CuFile() = default;

GdsMode CuFile::mode() const {
  return driver_->mode;
}

int CuFile::version() const {
  return driver_->version;
}

std::string CuFile::text() const {
  std::string text = "cuFile" + (version() == 0 ? std::string() : " " + cuda_version_text(version()));
  text += ", " + std::string(name_of(mode()));
  const auto& nvfs = driver_->properties.nvfs;
  if (nvfs.major_version != 0 || nvfs.minor_version != 0) {
    text += " (nvidia-fs " + std::to_string(nvfs.major_version) + "." + std::to_string(nvfs.minor_version) + ")";
  }
  return text + (driver_->compat_allowed ? ", compatibility mode allowed" : ", compatibility mode refused");
}

Result<std::unique_ptr<CuFileFile>> CuFile::register_file(const Fd& fd) const {
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  CuFileDescriptor descriptor{};
  descriptor.type = kCuFileHandleTypeFd;
  descriptor.handle.fd = fd.get();
  CuFileHandle handle = nullptr;
  const CuFileError status = driver_->api.cuFileHandleRegister(&handle, &descriptor);
  if (status.code != CuFileCode::success) {
    return cufile_error(device_->driver(), status, "cuFileHandleRegister", "read the file by GPUDirect Storage");
  }
  return std::unique_ptr<CuFileFile>(new CuFileFile(shared_from_this(), handle));  // NOLINT: private constructor
}

CuFileFile::~CuFileFile() {
  if (may_call_driver()) owner_->driver_->api.cuFileHandleDeregister(handle_);
}

Result<std::unique_ptr<CuFileBuffer>> CuFile::register_buffer(std::shared_ptr<DeviceMemory> memory) const {
  const std::uint64_t bytes = memory->capacity();
  const std::uint64_t unit = bytes < kLargeMapping ? kSmallMapping : kLargeMapping;
  if (bytes == 0 || bytes % unit != 0) {
    return Error(ErrorCode::invalid_argument, "a buffer of " + std::to_string(bytes) +
                                                  " bytes cannot be registered with cuFile: it takes multiples of " +
                                                  format_bytes(unit));
  }
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  const auto* const base = reinterpret_cast<const void*>(memory->span().address);  // NOLINT: a device address
  const CuFileError status = driver_->api.cuFileBufRegister(base, bytes, 0);
  if (status.code != CuFileCode::success) {
    return cufile_error(device_->driver(), status, "cuFileBufRegister",
                        "register " + format_bytes(bytes) + " of " + device_->text());
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private
  return std::unique_ptr<CuFileBuffer>(new CuFileBuffer(shared_from_this(), std::move(memory)));
}

CuFileBuffer::~CuFileBuffer() {
  if (!may_call_driver()) return;
  const auto current = Device::Current::for_release(*owner_->device());
  const auto* const base = reinterpret_cast<const void*>(memory_->span().address);  // NOLINT: a device address
  const CuFileError status = owner_->driver_->api.cuFileBufDeregister(base);
  if (status.code == CuFileCode::success) return;
  log_warning(cufile_error(owner_->device()->driver(), status, "cuFileBufDeregister", "end a buffer").to_string());
}

Result<std::uint64_t> CuFile::read(const CuFileFile& file, const CuFileRead& what) const {
  IC_ASSERT(what.bytes <= kCuFileReadMax);
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  errno = 0;
  const ssize_t got =
      driver_->api.cuFileRead(file.handle(), reinterpret_cast<void*>(what.base),  // NOLINT: device
                              what.bytes, static_cast<off_t>(what.file_offset), static_cast<off_t>(what.base_offset));
  if (got >= 0) {
    if (static_cast<std::uint64_t>(got) <= what.bytes) return static_cast<std::uint64_t>(got);
    return Error(ErrorCode::internal,
                 "cuFileRead says that it read " + std::to_string(got) + " of " + std::to_string(what.bytes) + " bytes")
        .with_offset(what.file_offset);
  }
  const int system_errno = errno;
  const std::string doing = "read " + format_bytes(what.bytes) + " by GPUDirect Storage";
  if (got == -1) {
    return Error::from_errno(system_errno == 0 ? EIO : system_errno, "cannot " + doing).with_offset(what.file_offset);
  }
  const CuFileError status{static_cast<CuFileCode>(-got), CuResult::success};
  return cufile_error(device_->driver(), status, "cuFileRead", doing).with_offset(what.file_offset);
}

}  // namespace infercluster::gpu
