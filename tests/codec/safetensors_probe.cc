// SPDX-License-Identifier: Apache-2.0
// usage: safetensors_probe strict|reference|rebuild < FILES
// FILES: each a 64-bit little-endian length and so many bytes, a safetensors file. Prints one line for each file:
// strict, reference: "OK NAME_IN_HEX DTYPE SHAPE BEGIN END ..." by name, or "KIND MESSAGE" of the error;
// rebuild: "SAME" or "DIFFERENT": whether our writer makes the file's header of the file's table, byte for byte.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "safetensors/header.h"

namespace infercluster::safetensors {
namespace {

Result<Header> parse(std::string_view file, Compatibility compatibility) {
  const auto bytes = std::as_bytes(std::span(file.data(), file.size()));
  IC_TRY(const std::uint64_t length,
         parse_header_length(bytes.first(std::min<std::size_t>(bytes.size(), 8)), file.size()));
  return parse_header(bytes.subspan(8, length), file.size(), {.compatibility = compatibility});
}

std::string hex_of(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex = "x";
  for (const char c : text) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

std::string table_of(const Header& header) {
  std::vector<const Tensor*> tensors;
  for (const Tensor& tensor : header.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const Tensor* a, const Tensor* b) { return a->name < b->name; });
  std::string line = "OK";
  for (const Tensor* tensor : tensors) {
    line += " " + hex_of(tensor->name) + " " + std::string(name_of(tensor->dtype)) + " [";
    for (const std::uint64_t extent : tensor->shape) line += std::to_string(extent) + ",";
    line += "] " + std::to_string(tensor->bytes());
  }
  return line;
}

std::string judge(std::string_view file, Compatibility compatibility) {
  const Result<Header> header = parse(file, compatibility);
  if (header.ok()) return table_of(*header);
  return header.error().kind() + " " + header.error().to_string();
}

std::string rebuild(std::string_view file) {
  const Result<Header> header = parse(file, Compatibility::strict);
  if (!header.ok()) return header.error().to_string();
  std::vector<Tensor> tensors(header->tensors().rbegin(), header->tensors().rend());
  const Result<std::string> built = build_header(tensors, header->metadata());
  if (!built.ok()) return built.error().to_string();
  return file.starts_with(*built) && built->size() == header->data_begin() ? "SAME" : "DIFFERENT";
}

int run(std::string_view mode) {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  std::string_view rest = input;
  while (rest.size() >= 8) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i) length |= std::uint64_t{static_cast<unsigned char>(rest[i])} << (8 * i);
    if (length > rest.size() - 8) return 2;
    const std::string_view file = rest.substr(8, length);
    std::string line = mode == "rebuild"
                           ? rebuild(file)
                           : judge(file, mode == "strict" ? Compatibility::strict : Compatibility::reference);
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::puts(line.c_str());
    rest.remove_prefix(8 + length);
  }
  return rest.empty() ? 0 : 2;
}

}  // namespace
}  // namespace infercluster::safetensors

int main(int argc, char** argv) {
  return argc == 2 ? infercluster::safetensors::run(argv[1]) : 2;
}
