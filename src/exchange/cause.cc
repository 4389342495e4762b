// SPDX-License-Identifier: Apache-2.0
#include "exchange/cause.h"

#include <algorithm>

#include "base/units.h"
#include "exchange/wire.h"

namespace infercluster::exchange {
namespace {

constexpr std::size_t kTextBytesMax = 1024;
constexpr std::uint64_t kNoOffset = ~0ULL;

// Cut at 1 KiB, between characters of UTF-8.
std::string cut(std::string_view text) {
  if (text.size() <= kTextBytesMax) return std::string(text);
  constexpr std::string_view kMark = "...";
  std::size_t size = kTextBytesMax - kMark.size();
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return std::string(text.substr(0, size)) + std::string(kMark);
}

bool is_tag_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// `message` as it is.
Error error_of(ErrorCode code, std::string message, const Error& from) {
  Error error = Error(code, std::move(message))
                    .with_errno(from.system_errno())
                    .with_path(cut(from.path()))
                    .with_tensor(cut(from.tensor()))
                    .with_hint(cut(from.hint()))
                    .with_kind(cut(from.kind()));
  if (from.offset()) (void)std::move(error).with_offset(*from.offset());  // changes it in place
  return error;
}

}  // namespace

Status check_arguments(std::string_view tag, std::uint64_t bytes, std::uint64_t bytes_max) {
  if (tag.empty() || tag.size() > kTagBytesMax || !std::ranges::all_of(tag, is_tag_character))
    return Error(ErrorCode::invalid_argument, "the tag \"" + cut(tag) + "\" is not 1 to " +
                                                  std::to_string(kTagBytesMax) + " letters, digits, '.', '_' or '-'");
  if (bytes > bytes_max)
    return Error(ErrorCode::too_large, format_bytes(bytes) + " for \"" + std::string(tag) +
                                           "\", where one rank gives " + format_bytes(bytes_max) + " at most");
  return {};
}

int called(const std::vector<int>& in_job, int rank) {
  return in_job.empty() ? rank : in_job[static_cast<std::size_t>(rank)];
}

Cause cause_of(int rank, const Error& error, std::uint64_t bytes) {
  const std::string message = "rank " + std::to_string(rank) + ": " + error.message();
  return {.rank = rank, .bytes = bytes, .error = error_of(error.code(), cut(message), error)};
}

Error number_error(std::uint64_t number, std::uint64_t next) {
  return Error(ErrorCode::invalid_argument, "exchange " + std::to_string(number) + " was asked for after number " +
                                                std::to_string(next - 1) + "; numbers rise");
}

std::string encode_cause(const Cause& cause) {
  Writer out;
  out.number(static_cast<std::uint64_t>(cause.rank));
  out.number(cause.bytes);
  const Error& error = cause.error;
  out.number(static_cast<std::uint64_t>(error.code()));
  out.number(static_cast<std::uint64_t>(error.system_errno()));
  out.number(error.offset().value_or(kNoOffset));
  for (const std::string* text : {&error.message(), &error.path(), &error.tensor(), &error.hint(), &error.kind()})
    out.text(cut(*text));
  return out.take();
}

Result<Cause> decode_cause(std::string_view bytes) {
  Reader in(bytes);
  const auto rank = in.number();
  const auto concerned = in.number();
  const auto code = in.number();
  const auto system_errno = in.number();
  const auto offset = in.number();
  const std::string_view message = in.text();
  const std::string_view path = in.text();
  const std::string_view tensor = in.text();
  const std::string_view hint = in.text();
  const std::string_view kind = in.text();
  if (!in.complete() || rank >= kRanksMax || code > static_cast<std::uint64_t>(ErrorCode::internal) ||
      system_errno > 4095)
    return Error(ErrorCode::corrupt, "another rank's error cannot be read")
        .with_hint("Do all ranks run the same version?");
  Error error = Error(static_cast<ErrorCode>(code), std::string(message))
                    .with_errno(static_cast<int>(system_errno))
                    .with_path(std::string(path))
                    .with_tensor(std::string(tensor))
                    .with_hint(std::string(hint))
                    .with_kind(std::string(kind));
  if (offset != kNoOffset) (void)std::move(error).with_offset(offset);  // changes it in place
  return Cause{.rank = static_cast<int>(rank), .bytes = concerned, .error = std::move(error)};
}

}  // namespace infercluster::exchange
