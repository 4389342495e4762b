// SPDX-License-Identifier: Apache-2.0
// Numbers and strings as bytes, little-endian, each string behind its length. What is read is hostile: a Reader that
// ran out of bytes stays failed, and gives zeros and empty strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace infercluster::exchange {

class Writer {
 public:
  void number(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(value >> shift & 0xFF);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    const std::string_view part = take(sizeof(std::uint64_t));
    std::uint64_t value = 0;
    for (std::size_t i = part.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    return value;
  }
  std::string_view text() { return take(number()); }
  // All was there, and nothing is left.
  [[nodiscard]] bool complete() const { return !failed_ && rest_.empty(); }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  std::string_view take(std::uint64_t size) {
    if (failed_ || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace infercluster::exchange
