// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace infercluster {

// Chosen by what the caller can do about it.
enum class ErrorCode : std::uint8_t {
  invalid_argument,  // the caller asked for something that cannot be; ask differently
  not_found,         // a file, tensor or revision is not there
  permission,        // the operating system refused access
  corrupt,           // bytes break their format's rules, or their checksum
  changed,           // a file changed while it was used; try again once it is at rest
  unsupported,       // this machine, mount or version cannot do it; another way may
  too_large,         // over a limit or budget that the message names
  out_of_memory,
  io,  // a device or file system failed
  timed_out,
  cancelled,
  internal,
};

std::string_view name_of(ErrorCode code);

// An operating error as a value: what happened, where, and what to do. Context is added once, where it is known.
// `message` is one sentence without a final stop; `hint` says what to do, and may be empty.
class Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // The error for a failed system call: the code follows from `system_errno`, the message is "ACTION: strerror".
  // Too many open files bring a hint that names the limit.
  static Error from_errno(int system_errno, std::string_view action);

  Error&& with_path(std::string path) && {
    path_ = std::move(path);
    return std::move(*this);
  }
  Error&& with_offset(std::uint64_t offset) && {
    offset_ = offset;
    return std::move(*this);
  }
  Error&& with_tensor(std::string tensor) && {
    tensor_ = std::move(tensor);
    return std::move(*this);
  }
  Error&& with_hint(std::string hint) && {
    hint_ = std::move(hint);
    return std::move(*this);
  }
  // For an error that comes from elsewhere (another rank, another process) with the errno it had there.
  Error&& with_errno(int system_errno) && {
    errno_ = system_errno;
    return std::move(*this);
  }
  // A finer kind within `code` that a codec defines, such as safetensors' "HeaderTooLarge".
  Error&& with_kind(std::string kind) && {
    kind_ = std::move(kind);
    return std::move(*this);
  }

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] int system_errno() const { return errno_; }  // 0 when no system call failed
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::optional<std::uint64_t> offset() const { return offset_; }
  [[nodiscard]] const std::string& tensor() const { return tensor_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }
  [[nodiscard]] const std::string& kind() const { return kind_; }

  // "PATH: tensor "NAME": offset N: MESSAGE. HINT." with the parts that are set.
  [[nodiscard]] std::string to_string() const;

 private:
  ErrorCode code_;
  int errno_ = 0;
  std::string message_;
  std::string path_;
  std::optional<std::uint64_t> offset_;
  std::string tensor_;
  std::string hint_;
  std::string kind_;
};

}  // namespace infercluster
