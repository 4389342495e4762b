// SPDX-License-Identifier: Apache-2.0
#include "os/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/units.h"

namespace infercluster::os {
namespace {

Error cannot_get(std::uint64_t bytes) {
  return Error::from_errno(errno, "cannot get " + format_bytes(bytes) + " of shared memory");
}

}  // namespace

Result<SharedMemory> SharedMemory::create(std::uint64_t bytes) {
  Fd fd(::memfd_create("infercluster", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return cannot_get(bytes);
  }
  return map_whole(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::map(Fd fd, std::uint64_t bytes) {
  struct stat found {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (::fstat(fd.get(), &found) != 0 || static_cast<std::uint64_t>(found.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Error(ErrorCode::corrupt, "what another process shared is not the memory that was agreed on")
        .with_hint("Do all ranks run the same version?");
  }
  return map_whole(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::map_whole(Fd fd, std::uint64_t bytes) {
  void* const start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return cannot_get(bytes);
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = {static_cast<std::byte*>(start), bytes};
  if (::madvise(start, bytes, MADV_DONTFORK) != 0) return cannot_get(bytes);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!data_.empty()) ::munmap(data_.data(), data_.size());
}

}  // namespace infercluster::os
