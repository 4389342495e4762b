// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace infercluster {
namespace {

ErrorCode code_of(int system_errno) {
  switch (system_errno) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::permission;
    case ENOMEM:
      return ErrorCode::out_of_memory;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::unsupported;
    case ETIMEDOUT:
      return ErrorCode::timed_out;
    case ECANCELED:
      return ErrorCode::cancelled;
    case ESTALE:
      return ErrorCode::changed;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::invalid_argument;
    default:
      return ErrorCode::io;
  }
}

// Empty: nothing is known that helps.
std::string hint_of(int system_errno) {
  rlimit limit{};
  if (system_errno != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  return "This process may have " + std::to_string(limit.rlim_cur) +
         " files open: raise that limit with `ulimit -n` (up to " + std::to_string(limit.rlim_max) +
         " without privilege), or LimitNOFILE= of its service";
}

// Names come from files and peers: a control character in one must not reach a terminal or break a line.
std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

}  // namespace

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::permission:
      return "permission denied";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::changed:
      return "changed";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::too_large:
      return "too large";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::io:
      return "I/O error";
    case ErrorCode::timed_out:
      return "timed out";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown";
}

Error Error::from_errno(int system_errno, std::string_view action) {
  Error error(code_of(system_errno),
              std::string(action) + ": " + std::error_code(system_errno, std::system_category()).message());
  error.errno_ = system_errno;
  error.hint_ = hint_of(system_errno);
  return error;
}

std::string Error::to_string() const {
  std::string text;
  if (!path_.empty()) text += path_ + ": ";
  if (!tensor_.empty()) text += "tensor \"" + tensor_ + "\": ";
  if (offset_) text += "offset " + std::to_string(*offset_) + ": ";
  text += message_;
  if (!hint_.empty()) text += ". " + hint_;
  return printable(text);
}

}  // namespace infercluster
