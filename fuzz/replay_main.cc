// SPDX-License-Identifier: Apache-2.0
// usage: NAME_fuzz_replay [--whole] DIRECTORY ...
// Gives every file of the directories to the fuzz target, and each also cut short at every byte, unless --whole. Fails
// when there is none.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t files = 0;
  const bool whole = argc > 1 && std::string_view(argv[1]) == "--whole";
  for (int i = whole ? 2 : 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
      for (std::size_t size = whole ? bytes.size() : 0; size <= bytes.size(); ++size) {
        // A copy of exactly this size, so that a sanitizer sees a read beyond it.
        const std::vector<std::uint8_t> input(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        LLVMFuzzerTestOneInput(input.data(), input.size());
      }
      ++files;
    }
  }
  std::printf("%zu files\n", files);
  return files > 0 ? 0 : 1;
}
